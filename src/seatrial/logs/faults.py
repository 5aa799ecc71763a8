"""Lines → faults: what broke, where, and which line says so.

Almost no line shows a fault, so a line pays for the table of patterns only if its skeleton (the line in lower case
without its digits) holds one of the table's words; which words a skeleton holds is looked up once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from seatrial.events import Fault
from seatrial.logs import launches
from seatrial.logs.fault_table import BENIGN, ECHO, KINDS, FaultKind, Pattern, patterns
from seatrial.logs.lines import read_prefix
from seatrial.logs.logged import Logged, speaker_of_logged
from seatrial.logs.messages import WORDS, Message, begun

__all__ = ["KINDS", "FaultKind", "FaultScanner", "classify"]

MAX_TEXT = 500  # characters kept of a line
WINDOW, OVERLAP = 4000, 400  # of a longer line, pieces of so many characters are searched, with so many in common
MAX_SKELETONS, MAX_WORDS, MAX_GROUPS, MAX_BLOCKS = 20_000, 50_000, 4096, 1024
MAX_BLOCK_LINES = 400
MAX_MISSING = 256  # processes named by one barrier
BEFORE_TASKS = 4  # lines, at most, between a barrier and the processes that it names
SHOWN_AT_FIRST = 3  # of a fault that recurs; then the 4th, 8th, 16th and so on

_LOWER = bytes(ord(chr(code).lower()) if code < 128 else code for code in range(256))
_DIGITS = b"0123456789"
_LETTERS = re.compile(rb"[a-z]{3,}")
_BLOCK_WORDS = {
    "traceback (most recent call last)": "traceback",
    '", line ': "headless",
    "exception ignored in": "ignored",
    "error waiting on exit barrier": "ignored",  # torchrun's other agent was gone first; all workers had ended before
    "retry attempt failed": "ignored",  # wandb; the next attempt may not
    "childfailederror": "elastic",
    "above exception": "chain",
    **dict.fromkeys(launches.WORDS, "launch"),
    **dict.fromkeys(WORDS, "message"),
}
_IGNORED = tuple(word for word, kind in _BLOCK_WORDS.items() if kind == "ignored")
# What torch's logging puts before each line of a message: severity, time, process, place.
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\](?= |$)")
_EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Failure|Fault|Warning|Timeout|Found)"
    r"|(?:[A-Za-z_]\w*\.)+[A-Z]\w*)(?::|\s*$)"
)
# Of several ranks that raise at once: their names, then what each says, "KeyErrorKeyError: : 'a''a'".
_GLUED = re.compile(
    r"(?:[A-Za-z_][\w.]*?\.)??(?P<name>[A-Z]\w*?(?:Error|Exception|Interrupt))(?:[\s:]*(?P=name))+[\s:]*(?P<says>.*?)[\s:]*$"
)
# What follows on the source code in a traceback.
_ANY_EXCEPTION = re.compile(
    r"(?!(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|NOTE|Traceback)\b)(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::\s|\s*$)"
)
# Exceptions of clients of some server, many of which retry; one of the next lines says so.
_OF_CLIENTS = re.compile(
    r"(?:requests|urllib3|httpx|httpcore|aiohttp|http|socket|ssl|wandb|comet_ml|mlflow|neptune|clearml)\."
    r"|(?:\w*Timeout|\w*TimeoutError|Connection\w*Error|MlflowException|CommError)$"
)
# A server that is out of reach is no peer of the training.
_OF_HTTP = re.compile(r"(?:requests|urllib3|httpx|httpcore|aiohttp|http|huggingface_hub)\.")
# A frame of a traceback: its first line is not printed for an error of syntax, and not kept in wandb's `output.log`.
_FRAME = re.compile(r' +File "[^"]+", line \d+(?:, in \S|\s*$)')
# The first frame of a command that stands in a job's script beside the training.
_BESIDE = re.compile(
    r' +File "[^"]*/bin/'
    r'(?P<program>wandb|mlflow|comet|neptune|clearml(?:-\w+)?|aim|swanlab|trackio|huggingface-cli|hf)",'
)
_RETRIED = re.compile(r"entering retry loop|\bwill retry\b|\b[Rr]etrying\b")
OF_OTHER_RANKS = 3  # lines, at most, that they print into an error of syntax
UNTIL_RETRIED = 3  # lines, at most, between such an exception and that
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_TASK = re.compile(r"/task:(\d+)\b")
# A line of JAX's list of processes that holds nothing but a number; some loggers put the time before every line.
_NUMBER = re.compile(r"\s*(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+)?(\d{1,7})\s*")
_ELASTIC = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*:\s*(\S+)")
_INDENTED = "  "  # what that summary puts before each line of a worker's traceback
_SIGNALS = {9: "killed", 15: "terminated", 11: "segfault", 7: "bus_error", 6: "aborted"}
_TASKS_OF = {"start_barrier": "process_missing", "heartbeat_lost": "heartbeat_lost"}  # lists follow on these
_OF_EXIT = ("bad_exit", "job_failed")
# What a program that only warns of these does without; where it cannot, it says so at another level, or raises.
_OF_SETUP = {"dataset_error", "checkpoint_error", "config_error", "mesh_mismatch", "module_missing", "access_denied"}
_WARNING = re.compile(
    r"(?!.{0,160}\b(?:ERROR|CRITICAL|FATAL)\b)(?:.{0,120}?(?<![\w-])(?:WARNING|WARN|Warning)(?=[\s:\]|)])|W\d{4} \d\d:)"
)
_KINDS_OF_NAME = {"KeyboardInterrupt": "interrupted", "SystemExit": ""}

Key = tuple[int, str, int | None, str | None]  # process, source, rank, host


@dataclass(slots=True)
class _Block:
    """Several lines that belong together, as far as they have come."""

    kind: str
    first: dict[str, Any]  # where it began, as fields of a fault
    last: dict[str, Any] | None = None
    lines: int = 0
    root: bool = False
    entry: dict[str, str] = field(default_factory=dict)
    found: int = 0
    of: str = ""  # what the tasks are named for that it lists
    lists: bool = False  # a list of them has begun
    overtaken: bool = False  # a step was done since it began
    program: str = ""  # whose traceback it is, if that is a command beside the training
    held: list[Fault] = field(default_factory=list)  # exceptions of what may be retried
    chained: bool = False  # another exception is to follow on the last one
    message: Message | None = None
    is_traced: bool = False  # the lines that come are the traceback of the entry
    later: list[Fault] = field(default_factory=list)  # exceptions that came after the first observed failure
    frames: launches.Frames | None = None
    odd: int = 0  # lines that are neither indented nor an exception
    speaker: str = ""  # whose logger printed it, if that is known


@dataclass(slots=True)
class _Group:
    """A fault that recurs."""

    count: int = 0
    held: Fault | None = None  # the last one, if it was not given out


def _is_open(block: _Block | None) -> bool:
    """True if the lines that come are those of a traceback."""
    return block is not None and block.kind in ("traceback", "headless", "ignored")


def _is_over(block: _Block) -> bool:
    """True if a further traceback in the block would say nothing new."""
    return block.kind == "ignored" or bool(block.held)


def skeleton_of(line: str) -> bytes:
    """The line in lower case, without its digits."""
    return line.encode("utf-8", "replace").translate(_LOWER, _DIGITS)


class FaultScanner:
    """Reads the lines of any number of logs; give it every line in the order of its log.

    Call `progressed` before each training step (a fault that recurs after it is reported again), and `finish` at the
    end: both return what was held back. Of a fault that repeats itself, the first three come out, then the 4th, 8th,
    16th and so on, with `facts["count"]`. Memory is bounded whatever the lines hold.
    """

    def __init__(self) -> None:
        self._table: tuple[Pattern | str, ...] = (*_BLOCK_WORDS.values(), *patterns())
        self._rows = _rows_by_piece()
        self._skeletons, self._known = _looked_up()
        self._blocks: dict[Key, _Block] = {}
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._speakers: dict[str, Key] = {}  # by source, the rank that began the last message
        self._launches = launches.Launches()
        self._chains: dict[Key, tuple[int, bool]] = {}  # where the last traceback began, and if one is to follow on it
        self._logged = Logged()
        self._last: dict[str, dict[str, Any]] = {}  # by source, the last line with a fatal fault
        self._about: dict[str, Any] = {}  # the last of all

    def scan(
        self,
        line: str,
        line_number: int,
        *,
        process: int,
        source: str,
        wall_time: float,
        rank: int | None,
        host: str | None,
    ) -> list[Fault]:
        """The faults that this line shows, in almost every case none."""
        skeleton = skeleton_of(line)
        candidates = self._skeletons.get(skeleton)
        if candidates is None:
            candidates = self._candidates(skeleton)
        if self._logged.is_waiting:
            self._logged.hear(line)
        if not candidates and not self._blocks:
            return []
        key = (process, source, rank, host)
        if rank is None and self._goes_on(source, line):
            return []
        if not candidates and key not in self._blocks:
            return []
        about = {
            "process": process, "source": source, "wall_time": wall_time, "rank": rank, "host": host,
            "line": line_number, "text": line,
        }  # fmt: skip
        known = self._launches.count
        found = list(self._read(line, key, candidates, about))
        if self._launches.count > known:
            self._groups.clear()  # what the next launch has in common with the last one is news
        for fault in found:
            if KINDS[fault.fault].severity == "fatal" and KINDS[fault.fault].role != "victim":
                self._launches.fail(source, fault.line or 0)
                self._last[source] = self._about = about
        return [folded for fault in found if (folded := self._folded(fault))]

    def is_innocent(self, skeleton: bytes) -> bool:
        """True if no line of this skeleton shows a fault, as far as it is not part of one that has begun."""
        found = self._skeletons.get(skeleton)
        return not (self._candidates(skeleton) if found is None else found)

    def may_show(self, line: str) -> bool:
        """True if this line may show a fault or begin one; False for certain, and sooner than `scan` would tell."""
        if len(line) > WINDOW:
            return True
        skeleton = skeleton_of(line)
        candidates = self._skeletons.get(skeleton)
        if candidates is None:
            candidates = self._candidates(skeleton)
        return any(isinstance(row, str) or row.regex.search(line) for row in candidates)

    @property
    def is_waiting(self) -> bool:
        """True if a fault has begun whose further lines are still to come, or that may not have been one."""
        return bool(self._blocks) or self._logged.is_waiting

    def progressed(self) -> list[Fault]:
        """A step was done: whatever was said before it did not stop the run."""
        held = [key for key, block in self._blocks.items() if block.kind in ("held", "headless") or block.message]
        found = [fault for key in held for fault in self._cut_off(key, self._blocks.pop(key))]
        found = [fault for fault in map(self._folded, found) if fault]
        if self._groups:
            self._groups.clear()
        for block in self._blocks.values():
            block.overtaken = True
        return found

    def finish(self) -> list[Fault]:
        """The logs are over: what was waiting for its end, and the last of each fault that repeats itself."""
        found = [fault for key, block in list(self._blocks.items()) for fault in self._cut_off(key, block)]
        self._blocks.clear()
        held = [group.held for group in self._groups.values() if group.held]
        self._groups.clear()
        ends, self._launches = self._launches.ends, launches.Launches()
        again = [_launched_again(self._last[source], end) for source, end in ends.items() if source in self._last]
        went_on, self._logged = self._logged.went_on, Logged()
        alive = [_went_on(self._about, exception) for exception in went_on] if self._about else []
        return found + held + again + alive

    def _cut_off(self, key: Key, block: _Block) -> Iterator[Fault]:
        """What is known of a block whose end the log does not have."""
        yield from _cut_off(block) if block.message is None else self._whole(block, key)

    def _candidates(self, skeleton: bytes) -> tuple[Pattern | str, ...]:
        """Which rows of the table have a word in this skeleton."""
        found: tuple[Pattern | str, ...] = ()
        if pieces := self._pieces_in(skeleton):
            text = skeleton.decode("latin-1")
            if any(word in text for word in _IGNORED):
                found = ("ignored",)
            elif not BENIGN.search(text):
                rows = {row for piece in pieces for row, word in self._rows[piece] if word in text}
                found = tuple(self._table[row] for row in sorted(rows))
        if len(skeleton) <= WINDOW:
            if len(self._skeletons) > MAX_SKELETONS:
                self._skeletons.clear()
            self._skeletons[skeleton] = found
        return found

    def _pieces_in(self, skeleton: bytes) -> list[str]:
        """Which pieces of the table's words stand in it; a program's words that hold none are remembered."""
        fresh = {
            word.decode()
            for word in set(_LETTERS.findall(skeleton)) - self._known
            if word.strip(b"abcdef")  # what is left of a hexadecimal number is none
        }
        if not fresh:
            return []
        new = " ".join(fresh)
        found = [piece for piece in self._rows if piece in new]
        if len(self._known) > MAX_WORDS:
            self._known.clear()
        innocent = (word for word in fresh if len(word) < 50 and not any(piece in word for piece in found))
        self._known.update(word.encode() for word in innocent)
        return found

    def _read(
        self, line: str, key: Key, candidates: tuple[Pattern | str, ...], about: dict[str, Any]
    ) -> Iterator[Fault]:
        block = self._blocks.get(key)
        if block is not None and block.message is not None:
            if block.message.take(_bare(line)):
                return
            del self._blocks[key]
            yield from self._whole(block, key)
            block = self._blocks.get(key)
        if block is not None and block.kind in ("held", "over"):
            block, done = self._after_exception(block, _bare(line), key, any(candidates))
            yield from done
        if block is not None and (found := self._continue(block, _bare(line), key, about)) is not None:
            yield from found
            return
        if "message" in candidates and not _is_open(block) and self._begin(_bare(line), key, about):
            return
        for candidate in candidates:
            if isinstance(candidate, str):
                self._open_by(candidate, line, key, about, block)
        if rows := [candidate for candidate in candidates if isinstance(candidate, Pattern)]:
            yield from self._match(line, rows, key, about)

    def _open_by(self, candidate: str, line: str, key: Key, about: dict[str, Any], block: _Block | None) -> None:
        """Opens what a line may begin by one of its words: a traceback, a chain of them, another launch."""
        if candidate == "headless":
            if key not in self._blocks and _FRAME.match(text := _bare(line)):
                self._raised(self._open(key, candidate, about), text, key, about)
        elif candidate == "chain":
            self._chains[key] = (self._chains.get(key, (about["line"], False))[0], True)
        elif candidate == "launch":
            self._launches.hear(key[1], line[read_prefix(line).length :], about["line"])
        elif candidate != "message" and not (candidate == "traceback" and block and _is_over(block)):
            opened = self._open(key, candidate, about)
            opened.speaker = speaker_of_logged(line) if candidate == "traceback" else ""

    def _begin(self, text: str, key: Key, about: dict[str, Any], *, kind: str = "message") -> bool:
        """Begins the block of a message of several lines, if this is the first of them."""
        message = begun(text)
        if message is not None:
            self._open(key, kind, about).message = message
            self._speakers[key[1]] = key
        return message is not None

    def _goes_on(self, source: str, line: str) -> bool:
        """True if a line without a rank goes on the message of the rank that spoke last, whose prefix only began it."""
        block = self._blocks.get(self._speakers.get(source, (0, "", None, None)))
        return block is not None and block.message is not None and block.message.take(_bare(line))

    def _whole(self, block: _Block, key: Key) -> Iterator[Fault]:
        """What a message says that is complete; one that ends a traceback is at least an exception."""
        yield from block.held
        text = block.message.text if block.message else ""
        rows = [row for row in self._candidates(skeleton_of(text)) if isinstance(row, Pattern)]
        found = list(self._match(text, rows, key, block.first))
        if block.kind == "exception" and not any(KINDS[fault.fault].severity == "fatal" for fault in found):
            found = [_fault("exception", block.first, {}, text)]
        yield from found

    def _match(self, line: str, rows: list[Pattern], key: Key, about: dict[str, Any]) -> Iterator[Fault]:
        for text in _windows(line):
            echo = ECHO.match(text)
            for pattern in rows:
                found = pattern.regex.search(text)
                if not found or (echo and pattern.kind not in _OF_EXIT):
                    continue
                if pattern.kind in _OF_SETUP and _WARNING.match(text):
                    continue
                if pattern.kind == "worker_failed" and found.groupdict().get("exit_code", "") is None:
                    break  # the head of a block whose entries say more
                yield from _named_in(pattern.kind, about, found.groupdict(), text)
                yield from self._listed(pattern.kind, text, key, about)
                break

    def _listed(self, kind: str, text: str, key: Key, about: dict[str, Any]) -> Iterator[Fault]:
        """Begins the block of the processes that a fault names on the lines after it; those that this line names."""
        told_itself = kind == "heartbeat_lost" and "rank" in _facts_of(kind, text)
        if kind in _TASKS_OF and "ask" in text and not told_itself:
            block = self._open(key, "tasks", about)
            block.of = _TASKS_OF[kind]
            yield from _missing(block, text, about)

    def _open(self, key: Key, kind: str, about: dict[str, Any]) -> _Block:
        if len(self._blocks) >= MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        block = self._blocks[key] = _Block(kind, about)
        return block

    def _continue(self, block: _Block, text: str, key: Key, about: dict[str, Any]) -> list[Fault] | None:
        """What the next line of an open block shows, None if it is no part of it; closes the block where it ends."""
        block.lines += 1
        if block.lines > MAX_BLOCK_LINES:
            del self._blocks[key]
            return [*block.held, *block.later] or None
        if block.kind == "tasks":
            found = list(_missing(block, text, about))  # none of a line that belongs to something else
            if not found and text.strip() and (block.found or block.lines > BEFORE_TASKS):
                del self._blocks[key]
            return found or None
        if block.kind == "elastic":
            return self._elastic(block, text, key, about)
        return self._raised(block, text, key, about)

    def _raised(self, block: _Block, text: str, key: Key, about: dict[str, Any]) -> list[Fault] | None:
        """The faults of a traceback by its next line; none before the last one, None if it is no traceback."""
        frames = block.frames = block.frames or launches.Frames(self._began(key, block))
        if text[:1].isspace():
            self._launches.trace(key[1], frames, text)
            if not block.found and (beside := _BESIDE.match(text)):
                block.program = beside["program"]
            block.found += 1
            return []  # source code, or where it stands
        text = unglued(text)
        last = _EXCEPTION.match(text) or (_ANY_EXCEPTION.match(text) if block.found else None)
        if not last and not frames.names_function and block.odd < OF_OTHER_RANKS:
            block.odd += 1
            return [] if block.kind == "headless" else None
        if block.kind == "headless" and (not last or last["name"].endswith("Warning")):
            del self._blocks[key]  # a stack that was printed for another reason
            return None
        return self._ended(block, text, key, about, frames, last) if last else None

    def _ended(
        self,
        block: _Block,
        text: str,
        key: Key,
        about: dict[str, Any],
        frames: launches.Frames,
        last: re.Match[str],
    ) -> list[Fault] | None:
        """The faults of a traceback, by its last line; as `_raised`."""
        name = last["name"].rpartition(".")[2]
        self._launches.raised(key[1], frames, name)
        if block.kind == "ignored":
            block.kind, block.lines = "over", 0
            return []
        del self._blocks[key]
        if len(self._chains) > MAX_BLOCKS:
            self._chains.clear()
        self._chains[key] = frames.since, False
        if name == "ChildFailedError":
            return block.held or None
        if self._begin(text, key, about, kind="exception"):
            self._blocks[key].held = block.held
            return []
        kind = _kind_of(last["name"], text)
        if not kind:
            return block.held
        if _OF_HTTP.match(last["name"]):
            block.held = [fault for fault in block.held if fault.fault != "peer_lost"]
        groups = {**_facts_of(kind, text), "program": block.program}
        if block.speaker:
            groups["logged"] = f"{name} in {frames.last}"
            self._logged.raised(block.speaker, groups["logged"])
        faults = [*block.held, *_named_in(kind, about, groups, text)]
        if kind in _TASKS_OF or not _OF_CLIENTS.match(last["name"]):
            return [*faults, *self._listed(kind, text, key, about)]
        self._blocks[key] = _Block("held", block.first, held=faults)
        return []

    def _began(self, key: Key, block: _Block) -> int:
        """The line that a traceback begins with, or the first of those that it follows on."""
        began, is_chained = self._chains.get(key, (0, False))
        return began if is_chained else int(block.first["line"])

    def _after_exception(
        self, block: _Block, text: str, key: Key, is_more: bool
    ) -> tuple[_Block | None, Sequence[Fault]]:
        """The block of a traceback that has come to its exception, as long as it may go on; else its faults.

        It goes on with the exception that came of it, and one of a client may be retried.
        """
        if not text.strip() or text.startswith(_CHAINED):
            block.chained = block.chained or bool(text.strip())
            return None, ()
        if block.chained and (text.startswith("Traceback (most recent call last)") or _FRAME.match(text)):
            block.kind = "traceback" if block.kind == "held" else "ignored"
            block.found, block.lines, block.chained, block.frames = 0, 0, False, None
            return block, ()
        block.lines += 1
        retried = _RETRIED.search(text)
        if not retried and block.kind == "held" and not is_more and block.lines < UNTIL_RETRIED:
            return None, ()
        del self._blocks[key]
        return None, () if retried else block.held

    def _elastic(self, block: _Block, text: str, key: Key, about: dict[str, Any]) -> list[Fault] | None:
        """torchelastic's summary: an entry per failed worker, the first observed failure in a part of its own.

        A worker comes out when its entry is over: the exception of its traceback, if there is one, came before its end.
        """
        if block.is_traced and (found := self._traced(block, text, about)) is not None:
            return found
        match = _ELASTIC.match(text)
        if not match:
            block.root = block.root or text.startswith("Root Cause")
            if text.startswith("=====") and block.root and block.found:
                self._launches.end_summary(key[1], about["line"])
                del self._blocks[key]
                return [*block.held, *block.later] or None
            return None
        name, value = match.groups()
        if name == "traceback":
            block.is_traced, block.lines = value == "Traceback", 0
        done: list[Fault] = []
        if name in ("time", "exitcode") or (name == "traceback" and not block.is_traced):
            done, block.held = block.held, []
        if name == "time":
            block.entry = {}
        block.entry[name] = value
        block.last = about
        if name == "exitcode":
            worker = block.entry.get("host", ""), block.entry.get("rank", "")
            self._launches.summarise(key[1], worker, text)
            block.found += 1
            block.held = [_worker(block, about)]
        return done

    def _traced(self, block: _Block, text: str, about: dict[str, Any]) -> list[Fault] | None:
        """The faults of a traceback inside an entry of that summary, line by line; None behind its end."""
        line = text.removeprefix(_INDENTED)
        if line == text and text.strip():
            block.is_traced = False
            return None
        line = unglued(line)
        last = None if line[:1].isspace() else _EXCEPTION.match(line) or _ANY_EXCEPTION.match(line)
        if not last or line.startswith(_CHAINED):
            return []
        kind = _kind_of(last["name"], line)
        if not kind or not block.held:  # what follows on the first exception is a part of it, or came of it
            return []
        (worker,), block.held = block.held, []
        named = {name: worker.facts.get(name) for name in ("rank", "host")}
        groups = {**_facts_of(kind, line), **{name: str(fact) for name, fact in named.items() if fact is not None}}
        raised = list(_named_in(kind, about, groups, line))
        if block.root:
            return [*raised, worker]
        block.later += raised
        return [worker]

    def _folded(self, fault: Fault) -> Fault | None:
        """The fault, with its count if it came before; None if it came too often to be reported each time."""
        facts = fault.facts
        key: tuple[Any, ...] = (
            fault.fault, fault.process, facts.get("rank"), facts.get("host"), facts.get("sequence"),
            facts.get("operation"), facts.get("code"), facts.get("reporter"), facts.get("reporter_host"),
        )  # fmt: skip
        if len(self._groups) >= MAX_GROUPS and key not in self._groups:
            key = (fault.fault,)
        group = self._groups.setdefault(key, _Group())
        group.count += 1
        if group.count > 1:
            fault = _counted(fault, group.count)
        if group.count <= SHOWN_AT_FIRST or group.count & (group.count - 1) == 0:
            group.held = None
            return fault
        group.held = fault
        return None


def unglued(text: str) -> str:
    """The last line of a traceback, said once: several ranks that raise at once print into each other."""
    found = _GLUED.match(text) if len(text) <= WINDOW else None
    if found is None or found["name"] * 2 not in text:
        return text
    says = found["says"]
    size = next((n for n in range(1, len(says) // 2 + 1) if says == says[:n] * (len(says) // n)), len(says))
    return f"{found['name']}: {says[:size].strip()}"


def _kind_of(name: str, text: str) -> str:
    """The kind of fault that the last line of a traceback is, by the name of its exception; "" if it is none."""
    kind = _KINDS_OF_NAME.get(name.rpartition(".")[2], classify(text, fatal=True) or "exception")
    return "exception" if kind == "peer_lost" and _OF_HTTP.match(name) else kind


def classify(text: str, *, fatal: bool = False) -> str | None:
    """The kind of fault that a text names, None if it names none; with `fatal`, none that is only a warning."""
    lower = text.lower()
    for pattern in patterns():
        if fatal and KINDS[pattern.kind].severity != "fatal":
            continue
        if any(word in lower for word in pattern.words) and pattern.regex.search(text):
            return pattern.kind
    return None


@cache
def _looked_up() -> tuple[dict[bytes, tuple[Pattern | str, ...]], set[bytes]]:
    """The rows of the table by the skeleton of a line, and words that hold none: once for the logs of all ranks."""
    return {}, set()


@cache
def _rows_by_piece() -> dict[str, list[tuple[int, str]]]:
    """A few letters that each word of the table has somewhere → the rows and words that have them."""
    words = [(word,) for word in _BLOCK_WORDS] + [pattern.words for pattern in patterns()]
    longest = {word: max(_LETTERS.findall(word.encode()), key=len).decode() for row in words for word in row}
    pieces = [piece for piece in longest.values() if not any(o in piece for o in longest.values() if o != piece)]
    return {
        piece: [(n, word) for n, row in enumerate(words) for word in row if piece in longest[word]] for piece in pieces
    }


def _bare(line: str) -> str:
    """The line without its prefixes, and without the one blank that stands behind them."""
    length = read_prefix(line).length
    if logged := _LOGGED.match(line, length):
        length = logged.end()
    return line[length + (length > 0 and line[length - 1] != " " and line[length : length + 1] == " ") :]


def _windows(line: str) -> Iterator[str]:
    if len(line) <= WINDOW:
        yield line
    else:
        yield from (line[at : at + WINDOW] for at in range(0, len(line), WINDOW - OVERLAP))


def _facts_of(kind: str, text: str) -> dict[str, Any]:
    """What the pattern of this kind reads from the text."""
    found = (pattern.regex.search(text) for pattern in patterns() if pattern.kind == kind)
    groups = next((match.groupdict() for match in found if match), {})
    return {name.rstrip("0123456789"): value for name, value in groups.items() if value}


_NUMBERS = (
    "rank", "sequence", "exit_code", "code", "step", "came", "expected", "task", "local_rank", "device", "pid",
    "waits_for", "reporter", "until",
)  # fmt: skip


def _named_in(kind: str, about: dict[str, Any], groups: dict[str, Any], text: str) -> Iterator[Fault]:
    """The fault, or one for each rank where the line names several."""
    if ranks := groups.pop("ranks", None):
        yield from (_fault(kind, about, {**groups, "rank": rank}, text) for rank in re.findall(r"\d+", ranks))
    else:
        yield _fault(kind, about, groups, text)


def _fault(kind: str, about: dict[str, Any], groups: dict[str, Any], text: str) -> Fault:
    """The fault of `kind` on the line that `about` tells of; what the line itself names goes before its prefix.

    Of a kind that happened to others, whoever prints it is the reporter: neither its rank nor its host is the fault's.
    """
    names = {"rank": "reporter", "host": "reporter_host"} if KINDS[kind].of_others else {"rank": "rank", "host": "host"}
    names = {"source": "source", **names}
    facts: dict[str, Any] = {name: about[of] for of, name in names.items() if about[of] not in (None, "")}
    for name, value in groups.items():
        if value is not None and value != "":
            name = name.rstrip("0123456789")
            facts[name] = int(value) if name in _NUMBERS and re.fullmatch(r"-?\d{1,18}", value) else value[:MAX_TEXT]
    if facts.pop("first", None):  # the launcher's word: it ended before all others
        facts["root"] = True
    rank, host = facts.get("rank"), facts.get("host")
    where = "" if rank is None else f"rank {rank}"
    if host is not None:
        where = f"{where} on {host}" if where else str(host)
    text = text.strip()
    return Fault(
        process=about["process"],
        wall_time=about["wall_time"],
        monotonic_time=about["wall_time"],
        fault=kind,
        where=where,
        line=about["line"],
        text=text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…",
        facts=facts,
    )


def _launched_again(last: dict[str, Any], end: int) -> Fault:
    """The word that the launches before the last one end on this line of their log."""
    text = f"all up to line {end} is of earlier launches"
    return _fault("launched_again", {**last, "rank": None, "host": None, "line": end}, {"until": str(end)}, text)


def _went_on(last: dict[str, Any], exception: str) -> Fault:
    """The word that a process went on behind an exception that its logger had printed."""
    text = f"a process went on behind {exception}"
    return _fault("went_on", {**last, "rank": None, "host": None}, {"logged": exception}, text)


def _counted(fault: Fault, count: int) -> Fault:
    return Fault(**{**vars(fault), "facts": {**fault.facts, "count": count}})


def _missing(block: _Block, text: str, about: dict[str, Any]) -> Iterator[Fault]:
    """One fault for each process that a barrier waited for in vain; the first that came is named before them.

    A bare number is a process only where a list of them has begun: after a line that ends in a colon.
    """
    came, _, timed_out = text.partition("timed out task names")
    tasks = _TASK.findall(timed_out if "first task at the barrier" in came else text)
    if block.lists and (number := _NUMBER.fullmatch(text)):
        tasks = [number[1]]
    block.lists = bool(tasks) or text.rstrip().endswith(":")
    for task in tasks:
        block.found += 1
        if block.found <= MAX_MISSING:
            yield _fault(block.of, about, {"rank": task}, text)


def _worker(block: _Block, about: dict[str, Any]) -> Fault:
    """The fault of one entry of torchelastic's summary."""
    entry = block.entry
    code = int(entry["exitcode"]) if re.fullmatch(r"-?\d{1,9}", entry.get("exitcode", "")) else None
    signal = -code if code is not None and code < 0 else (code or 0) - 128
    if block.root:
        kind = _SIGNALS.get(signal, "worker_failed")
    else:
        kind = "worker_stopped" if signal in (9, 15) else "worker_failed"
    sentence = f"rank {entry.get('rank', '?')} ended" + ("" if code is None else f" with exit code {code}")
    sentence += f" at {entry['time']}" if "time" in entry else ""
    groups = {"rank": entry.get("rank"), "host": entry.get("host"), "exit_code": None if code is None else str(code)}
    fault = _fault(kind, about, {**groups, "time": entry.get("time")}, sentence)
    return Fault(**{**vars(fault), "facts": {**fault.facts, "root": True}}) if block.root else fault


def _cut_off(block: _Block) -> Iterator[Fault]:
    """What is known of a block whose end the log does not have."""
    yield from (*block.held, *block.later)
    if block.kind == "traceback" and not block.overtaken:
        yield _fault("exception", block.first, {}, block.first["text"])
    elif block.kind == "elastic" and block.entry.get("rank") and "exitcode" not in block.entry:
        yield _worker(block, block.last or block.first)
    elif block.kind == "elastic" and not block.found:
        yield _fault("worker_failed", block.first, {}, block.first["text"])
