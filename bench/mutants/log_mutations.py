"""Changes to the log of a run: what was printed, and how it came into the file."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from mutants import made_logs as made
from mutants.made_logs import Course, Family, Line
from mutants.mutation import Mutant, Mutation, Truth, changed, good, log_of, middle, next_printed


def truncated(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = log_of(family, course)
    steps = [index for index, line in enumerate(lines) if line.kind == "step"]
    cut = rng.randrange(steps[0], steps[-1])
    text = lines[cut].text.encode()
    return Mutant(
        lines=lines[:cut], tail=text[: rng.randrange(len(text))], truth="bad",
        named=r"breaks off|last step was|None of the",
    )  # fmt: skip


def truncated_early(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = log_of(family, course)
    first = next(index for index, line in enumerate(lines) if line.kind == "step")
    return Mutant(
        lines=lines[: rng.randrange(1, max(2, first))], truth="bad", named=r"[Nn]o(ne| step)|before the first step"
    )


def steps_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    numbers = sorted({line.step for line in log_of(family, course) if line.kind == "step"})
    gone = set(rng.sample(numbers[1:-1], max(2, len(numbers) // 8)))
    lines = [line for line in log_of(family, course) if line.kind != "step" or line.step not in gone]
    truth: Truth = "either" if family.is_sampled else "bad"
    return Mutant(lines=lines, truth=truth, named=r"Missing from the record|are missing|not in the log")


def last_step_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    last = max(line.step for line in log_of(family, course))
    lines = [
        line for line in log_of(family, course) if line.kind != "end" and (line.kind != "step" or line.step < last)
    ]
    return Mutant(lines=lines, truth="bad", named=r"breaks off|last step was")


def unchanged(family: Family, course: Course, rng: random.Random) -> Mutant:
    return good(log_of(family, course))


def last_steps_lost(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The lines of the last steps are gone, those of the end are there."""
    last = course.steps - 2 * family.every
    lines = [line for line in log_of(family, course) if line.kind != "step" or line.step < last]
    return Mutant(lines=lines, truth="bad", named=r"breaks off|last step was")


def first_steps_lost(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The log was rotated: it begins in the middle."""
    lines = log_of(family, course)
    first = next(index for index, line in enumerate(lines) if line.step >= course.steps // 4)
    truth: Truth = "either" if family.is_sampled else "bad"
    return Mutant(lines=lines[first:], truth=truth, named=r"Missing from the record|are missing|not in the log")


def noise_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    return good([line for line in log_of(family, course) if line.kind != "noise" or "checkpoint" in line.text])


def noise_added(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines: list[Line] = []
    for line in log_of(family, course):
        lines += [Line(text=made.noise_line(rng)) for _ in range(rng.randrange(12))]
        lines.append(line)
    return good(lines)


def doubled(family: Family, course: Course, rng: random.Random) -> Mutant:
    return good([line for line in log_of(family, course) for _ in range(2)])


def interleaved(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Two ranks that print the same steps into one file, each with its prefix; one lags behind by some lines."""
    return good(_interleave(log_of(family, course), log_of(family, course), rng))


def _interleave(first: Sequence[Line], second: Sequence[Line], rng: random.Random) -> list[Line]:
    mixed: list[Line] = []
    queues = [list(reversed(first)), list(reversed(_of_other_node(second)))]
    while any(queues):
        rank = rng.randrange(2)
        if abs(len(queues[0]) - len(queues[1])) > 3:
            rank = int(len(queues[1]) > len(queues[0]))
        if queues[rank]:
            line = queues[rank].pop()
            mixed.append(replace(line, text=f"{rank}: {line.text}"))
    return mixed


def interleaved_with_nan(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    ill = replace(course, loss=changed(course.loss, dict.fromkeys(range(step, course.steps), math.nan)))
    return Mutant(
        lines=_interleave(log_of(family, course), log_of(family, ill), rng), truth="bad",
        named=r"nan|inf|report a loss|disagree|can be compared",
    )  # fmt: skip


def two_ranks(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Two ranks print the same steps into one file, and nothing says who."""
    return good(_with_copies(log_of(family, course), log_of(family, course)))


def _with_copies(first: Sequence[Line], second: Sequence[Line]) -> list[Line]:
    """A log with the lines of another's steps, those of each behind its own."""
    late: dict[int, list[Line]] = {}
    for line in second:
        if line.kind == "step":
            late.setdefault(line.step, []).append(line)
    last = {line.step: index for index, line in enumerate(first) if line.kind == "step"}
    return [
        copy
        for index, line in enumerate(first)
        for copy in (line, *(late.get(line.step, ()) if last.get(line.step) == index else ()))
    ]


def two_ranks_with_nan(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    ill = replace(course, loss=changed(course.loss, {step: math.nan}))
    lines = _with_copies(log_of(family, course), [line for line in log_of(family, ill) if line.step == step])
    if family.omits_nan_loss:  # a line without its loss beside one that has it says nothing
        return Mutant(lines=lines, truth="either")
    return Mutant(lines=lines, truth="bad", named=r"\bnan\b")


def garbage(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines: list[Line] = []
    for line in log_of(family, course):
        if rng.random() < 0.2:
            lines.append(Line(text=rng.randbytes(rng.randrange(1, 80)).replace(b"\n", b"").decode("latin-1")))
        lines.append(line)
    return good(lines)


def carriage_returns(family: Family, course: Course, rng: random.Random) -> Mutant:
    return Mutant(lines=log_of(family, course), truth="good", glue="\r\n")


def progress_bar(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A bar that redraws itself in the same line, in front of what is printed next."""
    lines = [
        replace(line, text="".join(f"{n}%|{'#' * (n // 10):10}| ?it/s\r" for n in (7, 31, 74)) + line.text)
        if rng.random() < 0.3
        else line
        for line in log_of(family, course)
    ]
    return good(lines)


def coloured(family: Family, course: Course, rng: random.Random) -> Mutant:
    return good([replace(line, text=f"\x1b[32m\x1b[1m{line.text}\x1b[0m") for line in log_of(family, course)])


def prefixed(family: Family, course: Course, rng: random.Random) -> Mutant:
    return good([replace(line, text=f"3: [default3]:[rank3]:{line.text}") for line in log_of(family, course)])


def with_time(family: Family, course: Course, rng: random.Random) -> Mutant:
    start, clock = datetime(2026, 9, 21, 9, 10), 0.0
    lines = []
    for line in log_of(family, course):
        if line.kind == "step":
            clock = sum(course.seconds[: line.step + 1])
        stamp = (start + timedelta(seconds=clock)).isoformat(timespec="microseconds")
        lines.append(replace(line, text=f"{stamp}Z {line.text}"))
    return good(lines)


def no_marker(family: Family, course: Course, rng: random.Random) -> Mutant:
    """All steps are there, and nothing says more."""
    return good([line for line in log_of(family, course) if line.kind != "end"])


def benign_words(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = log_of(family, course)
    for text in _BENIGN:
        lines.insert(rng.randrange(1, max(2, len(lines) - 4)), Line(text=text))
    return good(lines)


_BENIGN = (
    "ValueError: no cached index was found, it is built anew",
    "node1:4242:4242 [0] NCCL INFO NET/Plugin: could not find libnccl-net.so, an error is not fatal",
    "WARNING: flash attention is not installed; Error while importing it was ignored",
    "During handling of the above exception the fallback was used",
    "metrics: loss_scale never became inf or nan in the last 100 steps, out of memory retries: 0",
)


def torn_line(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Another process writes into the middle of a step's line."""
    lines = log_of(family, course)
    torn = rng.choice(
        [index for index, line in enumerate(lines) if line.kind == "step" and 0 < line.step < course.steps - 1]
    )
    text = lines[torn].text
    cut = rng.randrange(len(text) // 4, len(text) // 2)
    lines[torn : torn + 1] = [replace(lines[torn], text=text[:cut] + made.noise_line(rng)), Line(text=text[cut:])]
    return Mutant(lines=lines, truth="either")


_LOSS = re.compile(r"((?:loss|CrossEntropyLoss)(?:/train/total)?(?:=|:| ) *(?:train: )?)[-+.\dE]+(?!\w)")


def odd_nan(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A NaN as C and other printers spell it."""
    step = next_printed(family, middle(course, rng), course)
    spelt = rng.choice(("-nan", "NaN", "-inf", "Infinity"))
    lines = [
        replace(line, text=_LOSS.sub(rf"\g<1>{spelt}", line.text, count=1)) if line.step == step else line
        for line in log_of(family, course)
    ]
    return Mutant(lines=lines, truth="bad", named=r"\b(nan|-?inf)\b|report a loss|disagree")


def cut_with_end(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The run broke, and the script around it prints its last lines all the same."""
    lines, last = log_of(family, course), middle(course, rng)
    lines = [line for line in lines if line.kind in ("setup", "end") or line.step in range(last)]
    return Mutant(lines=lines, truth="bad", named=r"breaks off|last step was")


def compressed(family: Family, course: Course, rng: random.Random) -> Mutant:
    return replace(good(log_of(family, course)), names=("train.log.gz", ""))


def endless_lines(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Lines of a megabyte, and a byte-order mark at the beginning."""
    lines = log_of(family, course)
    for _ in range(3):
        lines.insert(rng.randrange(len(lines)), Line(text="[1, 2, 3] " * 100_000))
    lines[0] = replace(lines[0], text="\xef\xbb\xbf" + lines[0].text)
    return good(lines)


def several_files(family: Family, course: Course, rng: random.Random) -> Mutant:
    """One node prints the steps, the other only noise."""
    return replace(good(log_of(family, course)), second=[Line(text=made.noise_line(rng)) for _ in range(200)])


def _of_other_node(lines: Sequence[Line]) -> list[Line]:
    """The same lines as a rank of the first node prints them, where lines say who prints them."""
    return [
        replace(line, text=line.text.replace("[rank-15/", "[rank-7/").replace("[rank0]", "[rank8]")) for line in lines
    ]


def both_nodes_print(family: Family, course: Course, rng: random.Random) -> Mutant:
    return replace(
        good(log_of(family, course)), second=_of_other_node(log_of(family, replace(course, seed=course.seed + 1)))
    )


def second_node_stops(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Both nodes print steps, and one of them falls silent."""
    lines = log_of(family, made.part(course, 0, middle(course, rng), ends=False))
    return Mutant(
        lines=log_of(family, course),
        second=_of_other_node(lines),
        truth="bad",
        named=r"same step|reached step|breaks off|last step|rank 1",
    )


# Changes that leave every line's meaning, and so can be made to the log of any run.
DECORATIONS: tuple[Mutation, ...] = (
    noise_added, doubled, interleaved, garbage, carriage_returns, progress_bar, coloured, prefixed, benign_words,
    endless_lines,
)  # fmt: skip


def decorated(mutation: Mutation, decoration: Mutation) -> Mutation:
    """First something happens to the run or to its log, and then the log is decorated."""

    if decoration is prefixed and "interleaved" in mutation.__name__:  # its lines say already who prints them
        decoration = coloured

    def both(family: Family, course: Course, rng: random.Random) -> Mutant:
        first = mutation(family, course, rng)
        # Lines of rank 1 in the log of the first node would say that the second goes on.
        fitting = coloured if decoration is interleaved and first.second is not None else decoration
        second = fitting(replace(family, write=lambda _, __: iter(first.lines)), course, rng)
        return replace(first, lines=second.lines, glue=second.glue)

    both.__name__ = f"{mutation.__name__} + {decoration.__name__}"
    return both


LOG_MUTATIONS: tuple[Mutation, ...] = (
    truncated, truncated_early, steps_dropped, last_step_dropped, last_steps_lost, first_steps_lost, noise_dropped,
    noise_added, doubled, interleaved, interleaved_with_nan, two_ranks, two_ranks_with_nan, garbage, carriage_returns,
    progress_bar, coloured, prefixed, with_time, no_marker, benign_words, torn_line, odd_nan, cut_with_end, compressed,
    endless_lines, several_files,
    both_nodes_print, second_node_stops,
)  # fmt: skip
