"""Lines → faults: what broke, where, and which line says so.

Almost no line shows a fault, so a line pays for the table of patterns only if its skeleton (the line in lower case
without its digits) holds one of the table's words; which words a skeleton holds is looked up once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from seatrial.events import Fault
from seatrial.logs import launches
from seatrial.logs.exceptions import CHAINED, OF_CLIENTS, OF_HTTP, exception_in, kind_of, unglued
from seatrial.logs.fault_events import Place, Printer, fault_of, faults_of
from seatrial.logs.fault_table import BENIGN, ECHO, KINDS, WINDOW, Pattern, classify, facts_of, named_in, patterns
from seatrial.logs.lines import read_prefix
from seatrial.logs.logged import Logged, speaker_of_logged
from seatrial.logs.messages import WORDS, Message, begun
from seatrial.logs.torchelastic import Summary

__all__ = ["KINDS", "FaultScanner", "classify"]

OVERLAP = 400  # characters that two pieces of a long line have in common, each of `WINDOW`
MAX_SKELETONS, MAX_WORDS, MAX_GROUPS, MAX_BLOCKS = 20_000, 50_000, 4096, 1024
MAX_BLOCK_LINES = 400
MAX_MISSING = 256  # processes named by one barrier
BEFORE_TASKS = 4  # lines, at most, between a barrier and the processes that it names
SHOWN_AT_FIRST = 3  # of a fault that recurs; then the 4th, 8th, 16th and so on
OF_OTHER_RANKS = 3  # lines, at most, that they print into an error of syntax
UNTIL_RETRIED = 3  # lines, at most, between an exception of a client and the word that it tries once more

_LOWER = bytes(ord(chr(code).lower()) if code < 128 else code for code in range(256))
_DIGITS = b"0123456789"
_LETTERS = re.compile(rb"[a-z]{3,}")
_BLOCK_WORDS = {
    "traceback (most recent call last)": "traceback",
    '", line ': "headless",
    "exception ignored in": "ignored",
    "error waiting on exit barrier": "ignored",  # torchrun's other agent was gone first; all workers had ended before
    "retry attempt failed": "ignored",  # wandb; the next attempt may not
    "message_loop has been closed": "ignored",  # wandb, whose service ended at the end of the run
    "childfailederror": "elastic",
    "above exception": "chain",
    **dict.fromkeys(launches.WORDS, "launch"),
    **dict.fromkeys(WORDS, "message"),
}
_IGNORED = tuple(word for word, kind in _BLOCK_WORDS.items() if kind == "ignored")
# What torch's logging puts before each line of a message: severity, time, process, place.
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\](?= |$)")
# A frame of a traceback: its first line is not printed for an error of syntax, and not kept in wandb's `output.log`.
_FRAME = re.compile(r' +File "[^"]+", line \d+(?:, in \S|\s*$)')
# The first frame of a command that stands in a job's script beside the training.
_BESIDE = re.compile(
    r' +File "[^"]*/bin/'
    r'(?P<program>wandb|mlflow|comet|neptune|clearml(?:-\w+)?|aim|swanlab|trackio|huggingface-cli|hf)",'
)
# The thread that pins batches, which loses its data workers where the process ends; else that says itself what failed.
_PINS = re.compile(r' +File "[^"]*/torch/utils/data/_utils/pin_memory\.py", line \d+, in _pin_memory_loop\s*$')
_WORKER_GONE = {"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"}
# What torch.multiprocessing.spawn raises, and prints before the traceback of the process that failed.
_SPAWNING = "ProcessRaisedException"
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error:\s*$")
_RETRIED = re.compile(r"entering retry loop|\bwill retry\b|\b[Rr]etrying\b")
_TASK = re.compile(r"/task:(\d+)\b")
# A line of JAX's list of processes that holds nothing but a number; some loggers put the time before every line.
_NUMBER = re.compile(r"\s*(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+)?(\d{1,7})\s*")
_TASKS_OF = {"start_barrier": "process_missing", "heartbeat_lost": "heartbeat_lost"}  # lists follow on these
_OF_EXIT = ("bad_exit", "job_failed")
# What a program that only warns of these does without; where it cannot, it says so at another level, or raises.
_OF_SETUP = {"dataset_error", "checkpoint_error", "config_error", "mesh_mismatch", "module_missing", "access_denied"}
_WARNING = re.compile(
    r"(?!.{0,160}\b(?:ERROR|CRITICAL|FATAL)\b)(?:.{0,120}?(?<![\w-])(?:WARNING|WARN|Warning)(?=[\s:\]|)])|W\d{4} \d\d:)"
)

Row = Pattern | str  # of the table, or the kind of the block that a word may begin


@dataclass(slots=True)
class _Block:
    """Several lines that belong together, as far as they have come."""

    kind: str
    first: Place  # where it began
    lines: int = 0
    found: int = 0
    of: str = ""  # what the tasks are named for that it lists
    lists: bool = False  # a list of them has begun
    overtaken: bool = False  # a step was done since it began
    program: str = ""  # whose traceback it is, if that is a command beside the training
    held: list[Fault] = field(default_factory=list)  # exceptions of what may be retried
    chained: bool = False  # another exception is to follow on the last one
    spawned: str = ""  # the number of the process whose traceback it is, of those that one process started
    pins: bool = False  # the traceback is of the thread that pins batches
    message: Message | None = None
    summary: Summary | None = None
    frames: launches.Frames | None = None
    odd: int = 0  # lines that are neither indented nor an exception
    speaker: str = ""  # whose logger printed it, if that is known

    @property
    def says_all(self) -> bool:
        """True if a further traceback in the block would say nothing new."""
        return self.kind == "ignored" or bool(self.held) or (self.summary is not None and self.summary.holds_worker)


@dataclass(slots=True)
class _Group:
    """A fault that recurs."""

    count: int = 0
    held: Fault | None = None  # the last one, if it was not given out


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
        self._table: tuple[Row, ...] = (*_BLOCK_WORDS.values(), *patterns())
        self._rows = _rows_by_piece()
        self._skeletons, self._known = _looked_up()
        self._blocks: dict[Printer, _Block] = {}
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._speakers: dict[str, Printer] = {}  # by source, the rank that began the last message
        self._launches = launches.Launches()
        # Where the last traceback began, and if one is to follow on it.
        self._chains: dict[Printer, tuple[int, bool]] = {}
        self._logged = Logged()
        self._last: dict[str, Place] = {}  # by source, the last line with a fatal fault
        self._last_of_all: Place | None = None

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
        candidates = self._candidates(skeleton_of(line))
        if self._logged.is_waiting:
            self._logged.hear(line)
        if not candidates and not self._blocks:
            return []
        if rank is None and self._goes_on(source, line):
            return []
        at = Place(process, source, rank, host, wall_time, line_number, line)
        if not candidates and at.printer not in self._blocks:
            return []
        known = self._launches.count
        found = list(self._read(candidates, at))
        if self._launches.count > known:
            self._groups.clear()  # what the next launch has in common with the last one is news
        for fault in found:
            if KINDS[fault.fault].severity == "fatal" and KINDS[fault.fault].role != "victim":
                self._launches.fail(source, fault.line or 0)
                self._last[source] = self._last_of_all = at
        return [folded for fault in found if (folded := self._folded(fault))]

    def is_innocent(self, skeleton: bytes) -> bool:
        """True if no line of this skeleton shows a fault, as far as it is not part of one that has begun."""
        return not self._candidates(skeleton)

    def may_show(self, line: str) -> bool:
        """True if this line may show a fault or begin one; False for certain, and sooner than `scan` would tell."""
        if len(line) > WINDOW:
            return True
        return any(isinstance(row, str) or row.regex.search(line) for row in self._candidates(skeleton_of(line)))

    @property
    def is_waiting(self) -> bool:
        """True if a fault has begun whose further lines are still to come, or that may not have been one."""
        return bool(self._blocks) or self._logged.is_waiting

    def progressed(self) -> list[Fault]:
        """A step was done: whatever was said before it did not stop the run."""
        held = [key for key, block in self._blocks.items() if block.kind in ("held", "headless") or block.message]
        found = [fault for key in held for fault in self._cut_off(self._blocks.pop(key))]
        found = [fault for fault in map(self._folded, found) if fault]
        self._groups.clear()
        for block in self._blocks.values():
            block.overtaken = True
        return found

    def finish(self) -> list[Fault]:
        """The logs are over: what was waiting for its end, and the last of each fault that repeats itself."""
        found = [fault for block in list(self._blocks.values()) for fault in self._cut_off(block)]
        self._blocks.clear()
        held = [group.held for group in self._groups.values() if group.held]
        self._groups.clear()
        ends, self._launches = self._launches.ends, launches.Launches()
        again = [_launched_again(self._last[source], end) for source, end in ends.items() if source in self._last]
        went_on, self._logged = self._logged.went_on, Logged()
        last = self._last_of_all
        return [*found, *held, *again, *(_went_on(last, exception) for exception in went_on if last)]

    def _cut_off(self, block: _Block) -> Iterator[Fault]:
        """The faults of a block whose end the log does not have."""
        if block.message:
            yield from self._whole(block)
        elif block.summary:
            yield from block.summary.cut_off()
        else:
            yield from block.held
            if block.kind == "traceback" and not block.overtaken:
                yield fault_of("exception", block.first, {}, block.first.text)

    def _candidates(self, skeleton: bytes) -> tuple[Row, ...]:
        """The rows of the table with a word in this skeleton."""
        found = self._skeletons.get(skeleton)
        if found is None:
            found = self._look_up(skeleton)
            if len(skeleton) <= WINDOW:
                if len(self._skeletons) > MAX_SKELETONS:
                    self._skeletons.clear()
                self._skeletons[skeleton] = found
        return found

    def _look_up(self, skeleton: bytes) -> tuple[Row, ...]:
        pieces = self._pieces_in(skeleton)
        if not pieces:
            return ()
        text = skeleton.decode("latin-1")
        if any(word in text for word in _IGNORED):
            return ("ignored",)
        if BENIGN.search(text):
            return ()
        rows = {row for piece in pieces for row, word in self._rows[piece] if word in text}
        return tuple(self._table[row] for row in sorted(rows))

    def _pieces_in(self, skeleton: bytes) -> list[str]:
        """The pieces of the table's words that stand in a skeleton; a program's words that hold none are remembered."""
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

    def _read(self, candidates: tuple[Row, ...], at: Place) -> Iterator[Fault]:
        block, text = self._blocks.get(at.printer), _bare(at.text)
        if block is not None and block.message is not None:
            if block.message.take(text):
                return
            del self._blocks[at.printer]
            yield from self._whole(block)
            block = self._blocks.get(at.printer)
        if block is not None and block.kind in ("held", "over"):
            block, done = self._after_exception(block, text, any(candidates))
            yield from done
        if block is not None and (found := self._continue(block, text, at)) is not None:
            yield from found
            return
        in_traceback = block is not None and block.kind in ("traceback", "headless", "ignored")
        if "message" in candidates and not in_traceback and self._begin(text, at):
            return
        for candidate in candidates:
            if isinstance(candidate, str):
                self._open_by(candidate, text, at, block)
        if rows := [candidate for candidate in candidates if isinstance(candidate, Pattern)]:
            yield from self._match(at.text, rows, at)

    def _open_by(self, candidate: str, text: str, at: Place, block: _Block | None) -> None:
        """Opens what a line may begin by one of its words: a traceback, a chain of them, another launch."""
        if candidate == "headless":
            if at.printer not in self._blocks and _FRAME.match(text):
                self._raised(self._open(candidate, at), text, at)
        elif candidate == "chain":
            began, _ = self._chains.get(at.printer, (at.line, False))
            self._chains[at.printer] = began, True
        elif candidate == "launch":
            self._launches.hear(at.source, at.text[read_prefix(at.text).length :], at.line)
        elif candidate != "message" and not (candidate == "traceback" and block and block.says_all):
            opened = self._open(candidate, at)
            opened.speaker = speaker_of_logged(at.text) if candidate == "traceback" else ""
            opened.summary = Summary(at, self._launches) if candidate == "elastic" else None

    def _begin(self, text: str, at: Place, *, kind: str = "message") -> bool:
        """Begins the block of a message of several lines, if this is the first of them."""
        message = begun(text)
        if message is not None:
            self._open(kind, at).message = message
            self._speakers[at.source] = at.printer
        return message is not None

    def _goes_on(self, source: str, line: str) -> bool:
        """True if a line without a rank goes on the message of the rank that spoke last, whose prefix only began it."""
        speaker = self._speakers.get(source)
        block = self._blocks.get(speaker) if speaker else None
        return block is not None and block.message is not None and block.message.take(_bare(line))

    def _whole(self, block: _Block) -> Iterator[Fault]:
        """The faults in a complete message; one that ends a traceback is at least an exception."""
        yield from block.held
        text = block.message.text if block.message else ""
        rows = [row for row in self._candidates(skeleton_of(text)) if isinstance(row, Pattern)]
        found = list(self._match(text, rows, block.first))
        if block.kind == "exception" and not any(KINDS[fault.fault].severity == "fatal" for fault in found):
            found = [fault_of("exception", block.first, {}, text)]
        yield from found

    def _match(self, line: str, rows: list[Pattern], at: Place) -> Iterator[Fault]:
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
                yield from faults_of(pattern.kind, at, named_in(found), text)
                yield from self._listed(pattern.kind, text, at)
                break

    def _listed(self, kind: str, text: str, at: Place) -> Iterator[Fault]:
        """Begins the block of the processes that a fault names on the lines after it; those that this line names."""
        told_itself = kind == "heartbeat_lost" and "rank" in facts_of(kind, text)
        if kind in _TASKS_OF and "ask" in text and not told_itself:
            block = self._open("tasks", at)
            block.of = _TASKS_OF[kind]
            yield from _missing(block, text, at)

    def _open(self, kind: str, at: Place) -> _Block:
        if len(self._blocks) >= MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        block = self._blocks[at.printer] = _Block(kind, at)
        return block

    def _continue(self, block: _Block, text: str, at: Place) -> list[Fault] | None:
        """The faults that the next line of a block shows, None if it is no part of it; closes a block that it ends."""
        if block.summary:
            found = block.summary.take(text, at)
            if block.summary.is_over:
                del self._blocks[at.printer]
            return found
        block.lines += 1
        if block.lines > MAX_BLOCK_LINES:
            del self._blocks[at.printer]
            return block.held or None
        if block.kind == "tasks":
            found = list(_missing(block, text, at))  # none of a line that belongs to something else
            if not found and text.strip() and (block.found or block.lines > BEFORE_TASKS):
                del self._blocks[at.printer]
            return found or None
        return self._raised(block, text, at)

    def _raised(self, block: _Block, text: str, at: Place) -> list[Fault] | None:
        """The faults of a traceback by its next line; none before the last one, None if it is no traceback."""
        if block.frames is None:
            began, is_chained = self._chains.get(at.printer, (0, False))  # the traceback that this one follows on
            block.frames = launches.Frames(began if is_chained else block.first.line)
        frames = block.frames
        if text[:1].isspace():
            self._launches.trace(at.source, frames, text)
            if not block.found and (beside := _BESIDE.match(text)):
                block.program = beside["program"]
            block.pins = block.pins or _PINS.match(text) is not None
            block.found += 1
            return []  # source code, or where it stands
        text = unglued(text)
        name = exception_in(text, after_code=block.found > 0)
        if not name and not frames.names_function and block.odd < OF_OTHER_RANKS:
            block.odd += 1
            return [] if block.kind == "headless" else None
        if block.kind == "headless" and (not name or name.endswith("Warning")):
            del self._blocks[at.printer]  # a stack that was printed for another reason
            return None
        return self._ended(block, frames, name, text, at) if name else None

    def _ended(
        self, block: _Block, frames: launches.Frames, exception: str, text: str, at: Place
    ) -> list[Fault] | None:
        """The faults of a traceback, by its last line; as `_raised`."""
        name = exception.rpartition(".")[2]
        self._launches.raised(at.source, frames, name)
        if block.kind == "ignored":
            block.kind, block.lines = "over", 0
            return []
        del self._blocks[at.printer]
        if len(self._chains) > MAX_BLOCKS:
            self._chains.clear()
        self._chains[at.printer] = frames.since, False
        if name == "ChildFailedError":
            return block.held or None
        if self._begin(text, at, kind="exception"):
            self._blocks[at.printer].held = block.held
            return []
        if block.spawned:
            block.held.pop()  # of the process that started it, which says no more
        kind = "suspicious_line" if block.pins and name in _WORKER_GONE else kind_of(exception, text)
        if not kind:
            return block.held
        if OF_HTTP.match(exception):
            block.held = [fault for fault in block.held if fault.fault != "peer_lost"]
        groups = {"local_rank": block.spawned, **facts_of(kind, text), "program": block.program}
        if block.speaker:
            groups["logged"] = f"{name} in {frames.last}"
            self._logged.raised(block.speaker, groups["logged"])
        faults = [*block.held, *faults_of(kind, at, groups, text)]
        goes_on = name == _SPAWNING or OF_CLIENTS.match(exception)
        if kind in _TASKS_OF or not goes_on:
            return [*faults, *self._listed(kind, text, at)]
        self._blocks[at.printer] = _Block("held", block.first, held=faults)
        return []

    def _after_exception(self, block: _Block, text: str, is_more: bool) -> tuple[_Block | None, Sequence[Fault]]:
        """The block of a traceback that has come to its exception, as long as it may go on; else its faults.

        It goes on with the exception that came of it, or that it came of in a process that was spawned, and one of a
        client may be retried.
        """
        if spawned := _SPAWNED.match(text):
            block.spawned, block.chained = spawned[1], True
            return None, ()
        if not text.strip() or text.startswith(CHAINED):
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
        del self._blocks[block.first.printer]
        return None, () if retried else block.held

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
            fault = replace(fault, facts={**facts, "count": group.count})
        if group.count <= SHOWN_AT_FIRST or group.count & (group.count - 1) == 0:
            group.held = None
            return fault
        group.held = fault
        return None


@cache
def _looked_up() -> tuple[dict[bytes, tuple[Row, ...]], set[bytes]]:
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


def _launched_again(last: Place, end: int) -> Fault:
    """The word that the launches before the last one end on this line of their log."""
    text = f"all up to line {end} is of earlier launches"
    return fault_of("launched_again", last._replace(rank=None, host=None, line=end), {"until": str(end)}, text)


def _went_on(last: Place, exception: str) -> Fault:
    """The word that a process went on behind an exception that its logger had printed."""
    text = f"a process went on behind {exception}"
    return fault_of("went_on", last._replace(rank=None, host=None), {"logged": exception}, text)


def _missing(block: _Block, text: str, at: Place) -> Iterator[Fault]:
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
            yield fault_of(block.of, at, {"rank": task}, text)
