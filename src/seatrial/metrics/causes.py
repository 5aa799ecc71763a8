"""Finds the root cause among many faults, and what followed from it.

The earliest fault that can be a *cause* is blamed. *Symptoms* (a collective that timed out, a peer that is gone) are
what the other ranks saw of it; *victims* were stopped because of it. What the run survived explains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seatrial.errors import some
from seatrial.logs.faults import KINDS, classify
from seatrial.logs.lines import read_prefix
from seatrial.metrics.record import ranges

MAX_PLACES = 4
MAX_QUOTE = 160  # characters
ZONES_APART = 900.0  # seconds; nor in which zone they are
CLOCKS_APART = 120.0  # seconds by which clocks may differ that nobody compared
STEPS_APART = 1.0  # seconds by which clocks may differ that were compared by their steps
# What logging puts before a line: glog's and absl's, [E921 09:40:11.1 ProcessGroupNCCL.cpp:607], or a time in brackets.
_LOGGED = re.compile(
    r"^(?:\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d[\d.]* [^\]]{0,80}\] |\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*\]?:? )+"
)
# What a process that has lost its peers does in the end, too.
_AFTERMATH = {"exception", "segfault", "interpreter_died", "interrupted", "non_finite_gradient"}
# What a process says of the end of another, before the kernel or the scheduler says what that was.
_EXPLAINED_LATER = {"dataloader_died": "host_oom"}
# What is done to a run that hangs or fails anyhow.
_ORDERED = {"cancelled", "preempted", "time_limit", "interrupted", "hung_up"}
_SUMMARY = "Subject: Job "  # LSF's, which says that a job exited, and on later lines why
# Symptoms that say that something ended, but not of what; a collective's error says a little more.
_VAGUE = {
    "collective_error": 1,
    **dict.fromkeys(("coordination_lost", "bad_exit", "job_failed", "worker_failed", "aborted", "step_failed"), 2),
}
# Whoever these name is what the others lost.
_NAMING = {"heartbeat_lost", "coordination_lost"}
_ALL_CAME = "All ranks joined, and none got through: check the network between the nodes, with NCCL_DEBUG=INFO."
_EXITS = {"bad_exit", "worker_failed", "aborted"}
_DONE_TO = {"killed", "terminated", "aborted", "interrupted", "hung_up"}
_STOOD_STILL = {"collective_timeout", "heartbeat_lost"}
_STOPPED_BY_SIGNAL = {137, 143, -9, -15, 9, 15}
# Exit codes of a process that may end otherwise the next time: killed, asked to stop, or without its peers (our trainer
# says 75, JAX aborts).
_NOT_BY_ITSELF = {*_STOPPED_BY_SIGNAL, 75, 134}
_REFINED = {"step_failed", "process_died", "exception", "start_failed"}


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault, `seconds` after the first event of the run.

    `survived`: the run went on after it; None: nothing tells whether it came before the last step or after.
    `count` is how often it came up to here; `root`: the launcher itself calls it the first. Of a kind that tells of
    others, `where` is what is named, if anything is, and `reporter` and `reporter_host` who says so. `waits_for` is the
    rank that a collective has not heard of, by the one that waits. `order`: "own" where the clock of its log could not
    be compared with those of others, "unknown" where it tells no times. `after` is the step that a fault came after
    whose line gives no time, where logs of several ranks were read: `seconds` is when that step ended. `program` is the
    command beside the training that it is of.
    """

    seconds: float
    process: int
    fault: str
    where: str
    text: str
    line: int | None = None
    source: str = ""
    rank: int | None = None
    host: str = ""
    exit_code: int | None = None
    sequence: int | None = None
    operation: str = ""
    count: int = 1
    root: bool = False
    survived: bool | None = False
    reporter: int | None = None
    reporter_host: str = ""
    waits_for: int | None = None
    order: str = ""
    after: int | None = None
    program: str = ""

    @property
    def title(self) -> str:
        """The kind of fault for a reader."""
        return KINDS[self.fault].title if self.fault in KINDS else self.fault.replace("_", " ")

    @property
    def place(self) -> str:
        """File and line for a reader, as far as they are known."""
        return f"{self.source}:{self.line}" if self.source and self.line is not None else self.source

    @property
    def reported_by(self) -> str:
        """Who says so of others, for a reader; empty where that is not known."""
        rank = "" if self.reporter is None else f"rank {self.reporter}"
        return f"{rank} on {self.reporter_host}" if rank and self.reporter_host else rank or self.reporter_host

    @property
    def is_fatal(self) -> bool:
        """True if it ends a run that does not go on after it; of an unknown kind none does."""
        return self.fault in KINDS and KINDS[self.fault].severity == "fatal"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The cause of the run's end: the fault that is blamed and its kind, and what followed from it.

    `what` names it and its place, `quote` is what the log says of it, cut short; `sentence` is both.
    `symptoms` are sentences, each for many lines; `victims` and `suspects` are places, the suspects those that did not
    join where the others waited. `exclude` is what a retry does without. `rivals` are other causes of which nothing
    tells whether they came before or after.
    """

    cause: FaultRecord
    kind: str
    sentence: str
    hint: str
    retry: str
    what: str = ""
    quote: str = ""
    symptoms: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()


def diagnose(faults: Sequence[FaultRecord], num_ranks: int | None = None) -> Diagnosis | None:
    """The first cause among `faults`, which come in the order of time; None if none of them can have ended the run.

    `num_ranks` is how many ranks there are, if that is known.
    """
    pending = [_refined(fault) for fault in faults if fault.survived is not True]
    fatal = _of_the_training([fault for fault in pending if fault.is_fatal])
    if not fatal or all(fault.fault == "peer_stopped" for fault in fatal):
        return None
    blamed = _placed(_naming(_first_cause(fatal), fatal), fatal)
    named = _named(blamed, fatal)
    kind = KINDS[blamed.fault]
    others = [fault for fault in pending if fault is not blamed]
    what = _what(blamed, named)
    quote = _quote(blamed, fatal)
    return Diagnosis(
        cause=blamed,
        kind=blamed.fault,
        sentence=f"{what}: {quote}".removesuffix(": ") if blamed.source else quote,
        hint=_ALL_CAME if _all_came(blamed, fatal, num_ranks) else kind.hint,
        retry="never" if _by_itself(blamed) else kind.retry,
        what=what,
        quote=quote,
        symptoms=_symptoms(blamed, [fault for fault in others if fault.is_fatal and _role(fault) == "symptom"]),
        victims=tuple(dict.fromkeys(f.where for f in others if f.where and _is_victim(f, blamed))),
        suspects=_suspects(blamed, fatal, num_ranks),
        exclude=named if kind.retry == "elsewhere" else (),
        rivals=_rivals(blamed, fatal),
    )


def _of_the_training(fatal: Sequence[FaultRecord]) -> Sequence[FaultRecord]:
    """Without those of commands beside the training, where that has a cause of its own."""
    own = [fault for fault in fatal if not fault.program]
    return own if any(_role(fault) == "cause" for fault in own) else fatal


def _naming(blamed: FaultRecord, fatal: Sequence[FaultRecord]) -> FaultRecord:
    """The same, said by a line that names what it is about: what has failed often stands on the lines after it."""
    if blamed.where or blamed.fault in {"start_barrier", "collective_error", *_ORDERED}:
        return blamed
    return next((fault for fault in fatal if fault.fault == blamed.fault and fault.where), blamed)


def _placed(blamed: FaultRecord, fatal: Sequence[FaultRecord]) -> FaultRecord:
    """A cause that names no place, at the place of the one process that its launcher calls the first to fail."""
    if blamed.where or _role(blamed) != "cause" or blamed.fault in _ORDERED or KINDS[blamed.fault].of_others:
        return blamed
    first = {fault.where: fault for fault in fatal if fault.root and fault.where}
    if len(first) != 1:
        return blamed
    (fault,) = first.values()
    return _at(fault, blamed)


def _named(blamed: FaultRecord, fatal: Sequence[FaultRecord]) -> tuple[str, ...]:
    """The places that are blamed: hosts where they are known; several where one message names several."""
    alike = [f for f in fatal if f.fault == blamed.fault] if KINDS[blamed.fault].of_others else [blamed]
    return tuple(dict.fromkeys(place for fault in alike if (place := fault.host or fault.where)))


def _by_itself(fault: FaultRecord) -> bool:
    """True if a process ended by its own decision, which it will take again."""
    return fault.fault == "process_died" and fault.exit_code not in (None, *_NOT_BY_ITSELF)


def _refined(fault: FaultRecord) -> FaultRecord:
    """The fault as the cause that its text names, if it names one."""
    found = classify(fault.text, fatal=True) if fault.fault in _REFINED else None
    return replace(fault, fault=found) if found and KINDS[found].role == "cause" and found != "exception" else fault


def _role(fault: FaultRecord) -> str:
    if fault.fault == "bad_exit" and fault.exit_code in _STOPPED_BY_SIGNAL:
        return "victim"
    return KINDS[fault.fault].role


def _first_cause(fatal: Sequence[FaultRecord]) -> FaultRecord:
    apart = _desync(fatal)
    symptoms = _Symptoms()
    for place, fault in enumerate(fatal):
        role = _role(fault)
        if role == "cause" and not symptoms.explain(fault):
            return _at_the_first_to_fail(_more_telling(fault, fatal[place + 1 :]), fatal)
        if role == "symptom":
            if apart and fault.fault == "collective_timeout":
                return apart
            symptoms.add(fault)
    stood_still = any(fault.fault in _STOOD_STILL for fault in symptoms.faults)
    killed_first = next((fault for fault in fatal if fault.root and _role(fault) == "victim"), None)
    if killed_first and not stood_still:
        return killed_first  # from outside, before any of the others went down
    best = min(symptoms.faults, key=_vagueness, default=fatal[0])
    return (_left_silently(symptoms.faults) or best) if _vagueness(best)[0] >= 0 else best


def _rivals(blamed: FaultRecord, fatal: Sequence[FaultRecord]) -> tuple[str, ...]:
    """The causes in other logs that may have come before the one that is blamed, by all that their clocks tell."""
    if _role(blamed) != "cause" or blamed.fault in _ORDERED:
        return ()
    found: dict[str, None] = {}
    symptoms = _Symptoms()
    for fault in fatal:
        role = _role(fault)
        elsewhere = fault.source != blamed.source and fault.where and fault.where != blamed.where
        if role == "symptom":
            symptoms.add(fault)
        elif role == "cause" and elsewhere and not symptoms.explain(fault) and not _is_ordered(blamed, fault):
            found[f"{fault.title} on {fault.where}"] = None
    return tuple(found)


def _is_ordered(fault: FaultRecord, other: FaultRecord) -> bool:
    """True if it is known which of two faults in different logs came first."""
    orders = {fault.order, other.order}
    if "unknown" in orders:
        return False
    if fault.after is not None and other.after is not None:
        return fault.after != other.after  # no rank gets through a step without the others
    later = fault.seconds - other.seconds
    if fault.after is not None or other.after is not None:  # that one may have come long after
        return (later if fault.after is not None else -later) > STEPS_APART
    if "own" not in orders:
        return abs(later) > STEPS_APART
    in_a_zone = (abs(later) + ZONES_APART / 2) % ZONES_APART - ZONES_APART / 2  # if the clocks are whole zones apart
    return abs(later) > CLOCKS_APART and abs(in_a_zone) > CLOCKS_APART


def _more_telling(fault: FaultRecord, others: Sequence[FaultRecord]) -> FaultRecord:
    """A fault that need not have come first gives way to one that is less likely to follow from another."""
    if why := _EXPLAINED_LATER.get(fault.fault):
        told = (other for other in others if other.fault == why and fault.host in ("", other.host or fault.host))
        return next((other if other.where else _at(fault, other) for other in told), fault)
    if fault.fault not in _AFTERMATH:
        return fault
    return next((other for other in _elsewhere(fault, others) if not _is_ordered(fault, other)), fault)


def _elsewhere(fault: FaultRecord, others: Iterable[FaultRecord]) -> Iterator[FaultRecord]:
    """The causes in other logs that follow from nothing else."""
    for other in others:
        if _role(other) == "cause" and other.fault not in (*_AFTERMATH, *_ORDERED) and other.source != fault.source:
            yield other


def _at(place: FaultRecord, fault: FaultRecord) -> FaultRecord:
    return replace(fault, where=place.where, rank=place.rank, host=place.host)


def _at_the_first_to_fail(fault: FaultRecord, fatal: Sequence[FaultRecord]) -> FaultRecord:
    """A cause gives way to that of the one rank which the launcher saw fail first, unless clocks that agree tell."""
    first = {other.rank for other in fatal if other.root and other.rank is not None}
    if len(first) != 1 or fault.rank is None or fault.rank in first:
        return fault
    theirs = (other for other in _elsewhere(fault, fatal) if other.rank in first)
    return next((other for other in theirs if fault.order or other.order or not _is_ordered(fault, other)), fault)


def _left_silently(symptoms: Sequence[FaultRecord]) -> FaultRecord | None:
    """The first exit of a process by a launcher's word, where others report what it did to them and it does not."""
    reporters = {f.reporter for f in symptoms if KINDS[f.fault].of_others and f.reporter is not None}
    reporters |= _waiting(symptoms)
    if not reporters:
        return None
    exits = (fault for fault in symptoms if fault.fault in _EXITS and (fault.rank is not None or fault.host))
    return next((fault for fault in exits if fault.rank not in reporters), None)


class _Symptoms:
    """The symptoms up to some fault: who has shown one, and the ranks that reported what happened to others."""

    def __init__(self) -> None:
        self.faults: list[FaultRecord] = []
        self._affected: set[tuple[int, str, int | None]] = set()
        self._reporters: set[int] = set()

    def add(self, fault: FaultRecord) -> None:
        self.faults.append(fault)
        self._affected.add(self._who(fault))
        if KINDS[fault.fault].of_others and fault.reporter is not None:
            self._reporters.add(fault.reporter)

    def explain(self, fault: FaultRecord) -> bool:
        """True if what may be a cause follows from these symptoms."""
        if fault.fault == "process_died" and fault.rank in self._reporters and not _by_itself(fault):
            return True
        if fault.fault in _ORDERED and any(not earlier.text.startswith(_SUMMARY) for earlier in self.faults):
            return True
        return fault.fault in _AFTERMATH and self._who(fault) in self._affected

    def _who(self, fault: FaultRecord) -> tuple[int, str, int | None]:
        return fault.process, fault.source, fault.reporter if KINDS[fault.fault].of_others else fault.rank


def _vagueness(symptom: FaultRecord) -> tuple[int, bool]:
    """Least of all, where it names what was lost; then of those that say what failed, and that were seen first."""
    if symptom.fault in _NAMING and symptom.where:
        return -1, symptom.fault in _VAGUE
    return _VAGUE.get(symptom.fault, 0), not symptom.root


def _desync(faults: Sequence[FaultRecord]) -> FaultRecord | None:
    """The ranks that waited in different collectives, which no network can bring about."""
    waiting: dict[int, FaultRecord] = {}
    for fault in faults:
        if fault.fault == "collective_timeout" and fault.rank is not None and fault.sequence is not None:
            waiting.setdefault(fault.rank, fault)
    groups: dict[str, list[FaultRecord]] = {}
    for _, fault in sorted(waiting.items()):
        groups.setdefault(_collective(fault), []).append(fault)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: len(group[1]))  # the few against the many
    text = ", ".join(f"{_ranks(f.rank for f in members)} waited in {name}" for name, members in ordered[:MAX_PLACES])
    first = ordered[0][1][0]
    where = _ranks(fault.rank for fault in ordered[0][1])
    return replace(first, fault="collective_desync", where=where, text=text)


def _collective(fault: FaultRecord) -> str:
    number = "" if fault.sequence is None else f" number {fault.sequence}"
    return (fault.operation or "a collective") + number


def _ranks(found: Iterable[int | None]) -> str:
    """Ranks for a reader, the first few of them; empty where there are none."""
    numbers = sorted({rank for rank in found if rank is not None})
    if not numbers:
        return ""
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in ranges(numbers)]
    return f"rank{'s' * (len(numbers) != 1)} {some(shown, MAX_PLACES)}"


def _waiting(faults: Iterable[FaultRecord]) -> set[int]:
    """The ranks that waited in a collective until their time was up."""
    return {fault.rank for fault in faults if fault.fault == "collective_timeout" and fault.rank is not None}


def _all_came(blamed: FaultRecord, fatal: Sequence[FaultRecord], num_ranks: int | None) -> bool:
    """True if every rank waited in the collective that is blamed."""
    if blamed.fault != "collective_timeout" or num_ranks is None:
        return False
    return len(_waiting(fatal)) >= max(2, num_ranks)


def _what(fault: FaultRecord, named: Sequence[str]) -> str:
    """A phrase for the fault, with its place unless the fault is about several."""
    if fault.fault in ("collective_timeout", "collective_desync", "process_missing"):
        return fault.title
    if KINDS[fault.fault].of_others:
        if named:
            return f"{fault.title}{' from ' if fault.fault == 'heartbeat_lost' else ': '}{_places(named)}"
        is_of_job = fault.fault in _ORDERED or fault.fault == "step_cancelled"  # whoever reports it
        return fault.title + (f", reported by {fault.reported_by}" if fault.reported_by and not is_of_job else "")
    if not fault.where:
        return fault.title
    if fault.fault in _DONE_TO and fault.rank is not None:
        return f"{fault.where} was {fault.title}"
    if fault.fault == "bad_exit" and fault.exit_code is not None:
        return f"{fault.where} ended with exit code {fault.exit_code}"
    return f"{fault.title} on {fault.where}"


def _quote(blamed: FaultRecord, fatal: Sequence[FaultRecord]) -> str:
    """The quote for the fault: the facts that its kind counts, or the line of a log without its logging prefix."""
    alike = [fault for fault in fatal if fault.fault == blamed.fault]
    if (of_kind := _QUOTES.get(blamed.fault)) and (quote := of_kind(blamed, alike)):
        return quote
    text = " ".join(blamed.text.split())
    if blamed.source:
        return _cut(_LOGGED.sub("", text[read_prefix(text).length :].strip()))
    text = text or blamed.title
    return text if not blamed.where or blamed.where in text else f"{blamed.where}: {text}"


def _cut(text: str) -> str:
    """A line of bearable length, by whole sentences if there is one."""
    if len(text) <= MAX_QUOTE:
        return text.removesuffix(".")
    end = text.rfind(". ", MAX_QUOTE // 3, MAX_QUOTE)
    return text[:end] if end > 0 else text[:MAX_QUOTE].rpartition(" ")[0] + " …"


def _quote_timeout(blamed: FaultRecord, alike: Sequence[FaultRecord]) -> str:
    return _waited([fault for fault in alike if _collective(fault) == _collective(blamed)])


def _quote_heartbeat(blamed: FaultRecord, alike: Sequence[FaultRecord]) -> str:
    if not blamed.where:
        return ""
    them = "them" if len({fault.where for fault in alike} - {""}) > 1 else "it"
    by = _ranks(fault.reporter for fault in alike)
    return f"nothing more was heard from {them}" + (f", reported by {by}" if by else "")


_QUOTES: Mapping[str, Callable[[FaultRecord, Sequence[FaultRecord]], str]] = {
    "collective_timeout": _quote_timeout,
    "collective_desync": lambda blamed, _: blamed.text,
    "process_missing": lambda _, alike: f"{_ranks(fault.rank for fault in alike)} did not join",
    "heartbeat_lost": _quote_heartbeat,
}


# Kinds of faults → the symptoms that the quote of one tells of already.
_TOLD_WITH_IT = {
    "collective_timeout": "collective_timeout",
    "collective_desync": "collective_timeout",
    "heartbeat_lost": "heartbeat_lost",
}


def _waited(faults: Sequence[FaultRecord]) -> str:
    ranks = {fault.rank for fault in faults if fault.rank is not None}
    who = f"{len(ranks)} ranks" if len(ranks) > MAX_PLACES else _ranks(ranks) if ranks else "the ranks"
    return f"{who} waited in {_collective(faults[0])}"


def _symptoms(blamed: FaultRecord, found: Sequence[FaultRecord]) -> tuple[str, ...]:
    """The symptoms folded: one sentence for all that say the same."""
    groups: dict[tuple[str, str], list[FaultRecord]] = {}
    for fault in found:
        timeout = fault.fault == "collective_timeout"
        if fault.fault != _TOLD_WITH_IT.get(blamed.fault):
            groups.setdefault((fault.fault, _collective(fault) if timeout else ""), []).append(fault)
    phrases = []
    for (kind, _), members in groups.items():
        if kind == "collective_timeout":
            phrases.append(_waited(members))
            continue
        count = max(len(members), *(fault.count for fault in members))
        shown = _places(fault.where for fault in members)
        by = "" if shown else _places(fault.reported_by for fault in members)
        where = f": {shown}" if shown else f", reported by {by}" if by else ""
        phrases.append(KINDS[kind].title + (f" ({count} times)" if count > 1 else "") + where)
    return tuple(phrases)


def _places(found: Iterable[str]) -> str:
    places = list(dict.fromkeys(place for place in found if place))
    return ", ".join(places[:MAX_PLACES]) + (" and others" if len(places) > MAX_PLACES else "")


def _is_victim(fault: FaultRecord, blamed: FaultRecord) -> bool:
    return fault.fault in KINDS and _role(fault) == "victim" and fault.where != blamed.where


def _suspects(blamed: FaultRecord, fatal: Sequence[FaultRecord], num_ranks: int | None) -> tuple[str, ...]:
    """The ranks that did not join a barrier or went silent, and those that no watchdog names where it names most.

    Where the rank of a cause is known, no other one is suspected: a process without a watchdog is silent, too.
    """
    named = ("process_missing", *_NAMING)
    missing = {fault.rank for fault in fatal if fault.fault in named and fault.rank is not None}
    waiting = _waiting(fatal)
    missing |= {fault.waits_for for fault in fatal if fault.waits_for is not None} - waiting
    if num_ranks and waiting and max(waiting) < num_ranks and num_ranks - len(waiting) <= len(waiting):
        missing |= set(range(num_ranks)) - waiting
    if blamed.rank is not None and _role(blamed) == "cause":
        missing &= {blamed.rank}
    return tuple(f"rank {rank}" for rank in sorted(missing))
