"""What can happen to a run, or to the log of one: each change says whether the run is still good, and else by which
words an answer names what is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import made_logs as made
from made_logs import Course, Family, Line

Truth = Literal["bad", "good", "either"]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed log: whether its run may pass, and by which words an answer names what is wrong."""

    lines: Sequence[Line]
    truth: Truth
    named: str = ""
    family: str = ""
    steps: int = 0
    tail: bytes | None = None  # instead of a last line
    glue: str = "\n"


Mutation = Callable[[Family, Course, random.Random], Mutant]


def _log(family: Family, course: Course) -> list[Line]:
    return made.lines_of(family, course)


def _bad(family: Family, course: Course, named: str) -> Mutant:
    return Mutant(lines=_log(family, course), truth="bad", named=named)


def _good(lines: Sequence[Line]) -> Mutant:
    return Mutant(lines=lines, truth="good")


def _middle(course: Course, rng: random.Random) -> int:
    return rng.randrange(course.steps // 3, 2 * course.steps // 3)


def _with(values: Sequence[float | None], changes: Mapping[int, float | None]) -> list[Any]:
    return [changes.get(index, value) for index, value in enumerate(values)]


def _reported(family: Family, step: int, course: Course) -> int:
    """The next step that the family prints."""
    return min(course.steps - 1, -(-(step + 1) // family.every) * family.every - 1) if family.every > 1 else step


# --- the record of a run: what was printed ----------------------------------------------------------------------------


def truncated(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = _log(family, course)
    steps = [index for index, line in enumerate(lines) if line.kind == "step"]
    cut = rng.randrange(steps[0], steps[-1])
    text = lines[cut].text.encode()
    return Mutant(
        lines=lines[:cut], tail=text[: rng.randrange(len(text))], truth="bad",
        named=r"breaks off|last step was|None of the",
    )  # fmt: skip


def truncated_early(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = _log(family, course)
    first = next(index for index, line in enumerate(lines) if line.kind == "step")
    return Mutant(lines=lines[: rng.randrange(1, first)], truth="bad", named=r"[Nn]o(ne| step)|before the first step")


def steps_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    numbers = sorted({line.step for line in _log(family, course) if line.kind == "step"})
    gone = set(rng.sample(numbers[1:-1], max(2, len(numbers) // 8)))
    lines = [line for line in _log(family, course) if line.kind != "step" or line.step not in gone]
    return Mutant(lines=lines, truth="bad", named=r"Not in the record|are missing|not in the log")


def last_step_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    last = max(line.step for line in _log(family, course))
    lines = [line for line in _log(family, course) if line.kind != "end" and (line.kind != "step" or line.step < last)]
    return Mutant(lines=lines, truth="bad", named=r"breaks off|last step was")


def unchanged(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good(_log(family, course))


def last_steps_lost(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The lines of the last steps are gone, those of the end are there."""
    last = course.steps - 2 * family.every
    lines = [line for line in _log(family, course) if line.kind != "step" or line.step < last]
    return Mutant(lines=lines, truth="bad", named=r"breaks off|last step was")


def first_steps_lost(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The log was rotated: it begins in the middle."""
    lines = _log(family, course)
    first = next(index for index, line in enumerate(lines) if line.step >= course.steps // 4)
    return Mutant(lines=lines[first:], truth="bad", named=r"Not in the record|are missing|not in the log")


def noise_dropped(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good([line for line in _log(family, course) if line.kind != "noise" or "checkpoint" in line.text])


def noise_added(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines: list[Line] = []
    for line in _log(family, course):
        lines += [Line(text=made.noise_line(rng)) for _ in range(rng.randrange(12))]
        lines.append(line)
    return _good(lines)


def doubled(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good([line for line in _log(family, course) for _ in range(2)])


def interleaved(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Two ranks that print the same steps into one file, each with its prefix; one lags behind by some lines."""
    return _good(_interleave(_log(family, course), _log(family, course), rng))


def _interleave(first: Sequence[Line], second: Sequence[Line], rng: random.Random) -> list[Line]:
    mixed: list[Line] = []
    queues = [list(reversed(first)), list(reversed(second))]
    while any(queues):
        rank = rng.randrange(2)
        if abs(len(queues[0]) - len(queues[1])) > 3:
            rank = int(len(queues[1]) > len(queues[0]))
        if queues[rank]:
            line = queues[rank].pop()
            mixed.append(replace(line, text=f"{rank}: {line.text}"))
    return mixed


def interleaved_with_nan(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    ill = replace(course, loss=_with(course.loss, dict.fromkeys(range(step, course.steps), math.nan)))
    return Mutant(
        lines=_interleave(_log(family, course), _log(family, ill), rng), truth="bad",
        named=r"nan|inf|report a loss|disagree|can be compared",
    )  # fmt: skip


def two_ranks(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Two ranks print the same steps into one file, and nothing says who."""
    first, second = _log(family, course), [line for line in _log(family, course) if line.kind == "step"]
    late = {line.step: line for line in second}
    lines = [copy for line in first for copy in ((line, late[line.step]) if line.kind == "step" else (line,))]
    return _good(lines)


def two_ranks_with_nan(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    ill = replace(course, loss=_with(course.loss, {step: math.nan}))
    late = {line.step: line for line in _log(family, ill) if line.kind == "step"}
    lines = [copy for line in _log(family, course) for copy in ((line, late[step]) if line.step == step else (line,))]
    if family.omits_nan_loss:  # a line without its loss beside one that has it says nothing
        return Mutant(lines=lines, truth="either")
    return Mutant(lines=lines, truth="bad", named=r"\bnan\b")


def garbage(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines: list[Line] = []
    for line in _log(family, course):
        if rng.random() < 0.2:
            lines.append(Line(text=rng.randbytes(rng.randrange(1, 80)).replace(b"\n", b"").decode("latin-1")))
        lines.append(line)
    return _good(lines)


def carriage_returns(family: Family, course: Course, rng: random.Random) -> Mutant:
    return Mutant(lines=_log(family, course), truth="good", glue="\r\n")


def progress_bar(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A bar that redraws itself in the same line, in front of what is printed next."""
    lines = [
        replace(line, text="".join(f"{n}%|{'#' * (n // 10):10}| ?it/s\r" for n in (7, 31, 74)) + line.text)
        if rng.random() < 0.3
        else line
        for line in _log(family, course)
    ]
    return _good(lines)


def coloured(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good([replace(line, text=f"\x1b[32m\x1b[1m{line.text}\x1b[0m") for line in _log(family, course)])


def prefixed(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good([replace(line, text=f"3: [default3]:[rank3]:{line.text}") for line in _log(family, course)])


def with_time(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _good([replace(line, text=f"2026-09-21T09:10:11.123456789Z {line.text}") for line in _log(family, course)])


def no_marker(family: Family, course: Course, rng: random.Random) -> Mutant:
    """All steps are there, and nothing says more."""
    return _good([line for line in _log(family, course) if line.kind != "end"])


def benign_words(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = _log(family, course)
    for text in _BENIGN:
        lines.insert(rng.randrange(1, len(lines) - 4), Line(text=text))
    return _good(lines)


_BENIGN = (
    "ValueError: no cached index was found, it is built anew",
    "node1:4242:4242 [0] NCCL INFO NET/Plugin: could not find libnccl-net.so, an error is not fatal",
    "WARNING: flash attention is not installed; Error while importing it was ignored",
    "During handling of the above exception the fallback was used",
    "metrics: loss_scale never became inf or nan in the last 100 steps, out of memory retries: 0",
)


# --- the run itself ---------------------------------------------------------------------------------------------------


def slowed(factor: float) -> Mutation:
    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        seconds = [value * factor if step >= 5 else value for step, value in enumerate(course.seconds)]
        return _bad(family, replace(course, seconds=seconds), r"expected is at most")

    mutation.__name__ = f"slowed by {factor - 1:.0%}"
    return mutation


def nan_from(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    ill = dict.fromkeys(range(step, course.steps), math.nan)
    return _bad(family, replace(course, loss=_with(course.loss, ill)), r"\bnan\b|report a loss|not reported")


def nan_once(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    return _bad(family, replace(course, loss=_with(course.loss, {step: math.nan})), r"\bnan\b|report a loss")


def inf_once(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    return _bad(family, replace(course, loss=_with(course.loss, {step: math.inf})), r"\binf\b")


def bad_gradient(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = _reported(family, _middle(course, rng), course)
    if not family.has_grad_norm:
        return nan_once(family, course, rng)
    norms = _with(course.grad_norm, {step: rng.choice((math.nan, math.inf))})
    return _bad(family, replace(course, grad_norm=norms), r"gradient norm")


def rising(family: Family, course: Course, rng: random.Random) -> Mutant:
    loss: list[float | None] = [6.0 * 1.01**step + rng.gauss(0, 0.02) for step in range(course.steps)]
    return _bad(family, replace(course, loss=loss), r"rises")


def diverging(family: Family, course: Course, rng: random.Random) -> Mutant:
    start = 4 * course.steps // 5
    loss = _with(course.loss, {s: 6.0 + 1.5 * (s - start) for s in range(start, course.steps)})
    return _bad(family, replace(course, loss=loss), r"rises|jumps")


def stuck(family: Family, course: Course, rng: random.Random) -> Mutant:
    loss = _with(course.loss, dict.fromkeys(range(course.steps // 4, course.steps), 6.93147))
    return _bad(family, replace(course, loss=loss), r"nothing is learnt|are all")


def zero(family: Family, course: Course, rng: random.Random) -> Mutant:
    return _bad(family, replace(course, loss=[0.0] * course.steps), r"exactly 0|all 0\b")


def skipping(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The loss scale collapses: from the middle on the optimizer skips every step."""
    lines, start = _log(family, course), _middle(course, rng)
    if not any("number of skipped iterations:" in line.text for line in lines):
        return stuck(family, course, rng)
    lines = [
        replace(line, text=line.text.replace("skipped iterations:   0", "skipped iterations:   1"))
        if line.kind == "step" and line.step >= start
        else line
        for line in lines
    ]
    return Mutant(lines=lines, truth="bad", named=r"skipp?ed")


def half_as_long(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Complete by its own account, but half of what the configuration asks for."""
    half = course.steps // 2 // family.every * family.every
    short = replace(made.part(course, 0, half, ends=True), planned=half)
    return _bad(family, short, r"asked for|last step was")


def other_batch(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.has_batch:
        return half_as_long(family, course, rng)
    return _bad(family, replace(course, batch=128), r"asked for|batch")


# --- several attempts -------------------------------------------------------------------------------------------------


def restarted(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Killed in the middle, taken up again from the checkpoint before, and brought to its end."""
    saved, killed = course.steps // 3 + 1, _middle(course, rng)
    first = made.part(course, 0, max(killed, saved + 2), ends=False)
    return Mutant(
        lines=[*_log(family, first), *_log(family, made.part(course, saved, course.steps, ends=True))], truth="either"
    )


def restarted_unfinished(family: Family, course: Course, rng: random.Random) -> Mutant:
    saved = course.steps // 3 + 1
    first = made.part(course, 0, 2 * course.steps // 3, ends=False)
    second = made.part(course, saved, course.steps - 1 - rng.randrange(course.steps // 6), ends=False)
    named = r"breaks off|last step was"
    return Mutant(lines=[*_log(family, first), *_log(family, second)], truth="bad", named=named)


def profile_run_first(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A short run to collect a profile, and then the one that counts, in the same log."""
    short = replace(made.part(course, 0, 15, ends=True), planned=15, seed=course.seed + 1)
    return Mutant(lines=[*_log(family, short), *_log(family, replace(course, clock=4000.0))], truth="either")


def second_run_unfinished(family: Family, course: Course, rng: random.Random) -> Mutant:
    second = replace(made.part(course, 0, _middle(course, rng), ends=False), clock=4000.0)
    named = r"breaks off|last step was|attempt"
    return Mutant(lines=[*_log(family, course), *_log(family, second)], truth="bad", named=named)


def second_run_slow(family: Family, course: Course, rng: random.Random) -> Mutant:
    slow = replace(course, seconds=[value * 1.1 for value in course.seconds], clock=4000.0)
    named = r"expected is at most"
    return Mutant(lines=[*_log(family, course), *_log(family, slow)], truth="bad", named=named)


# --- faults: what is printed, and by which words it is named ----------------------------------------------------------

_FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "GPU out of memory": (
        (
            "[rank5]: Traceback (most recent call last):",
            '[rank5]:   File "/work/train.py", line 88, in step',
            "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. "
            "GPU 5 has a total capacity of 79.11 GiB of which 0.40 GiB is free.",
        ),
        r"out of memory",
    ),
    "JAX out of memory": (
        (
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 51539607552 bytes.",
        ),
        r"[Oo]ut of memory",
    ),
    "watchdog": (
        (
            "[rank9]:[E921 09:41:21.160918398 ProcessGroupNCCL.cpp:655] [Rank 9] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=771, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for "
            "600021 milliseconds before timing out.",
        ),
        r"[Ww]atchdog|collective",
    ),
    "Xid": (
        ("[ 9277.975559] NVRM: Xid (PCI:0000:4b:00): 79, pid=4711, GPU has fallen off the bus.",),
        r"Xid|fallen off the bus",
    ),
    "ECC": (
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
        r"ECC",
    ),
    "AMD memory fault": (
        ("Memory access fault by GPU node-3 (Agent handle: 0x5a5c00) on address 0x7098436. Reason: Unknown.",),
        r"[Mm]emory (access )?fault|illegal GPU memory",
    ),
    "host out of memory": (
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the tasks have been OOM Killed.",),
        r"oom|OOM|out of memory",
    ),
    "time limit": (
        ("slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-09-21T10:00:00 DUE TO TIME LIMIT ***",),
        r"TIME LIMIT|time limit",
    ),
    "node failure": (
        ("srun: error: Node failure on node7", "srun: Job step aborted: Waiting up to 32 seconds for it."),
        r"[Nn]ode fail|node7|lost",
    ),
    "peer reset": (
        ("node3:91:402 [2] NCCL WARN Call to recv from 10.0.3.4<41233> failed : Connection reset by peer",),
        r"reset by peer|peer",
    ),
    "segmentation fault": (
        ("Fatal Python error: Segmentation fault", "Current thread 0x00007f01 (most recent call first):"),
        r"[Ss]egmentation|segfault|crash",
    ),
    "disk full": (
        ("OSError: [Errno 28] No space left on device: '/ckpt/run/iter_0000040'",),
        r"[Nn]o space left|[Dd]isk",
    ),
    "plain exception": (
        (
            "Traceback (most recent call last):", '  File "/work/train.py", line 12, in <module>',
            "RuntimeError: shape '[4, 8]' is invalid for input of size 30",
        ),
        r"RuntimeError|shape|exception|Traceback",
    ),
}  # fmt: skip


def fault(name: str) -> Mutation:
    """The run breaks with this in the middle."""
    texts, named = _FAULTS[name]

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        lines = _log(family, made.part(course, 0, _middle(course, rng), ends=False))
        return Mutant(lines=[*lines, *(Line(text=text) for text in texts)], truth="bad", named=named)

    mutation.__name__ = f"fault: {name}"
    return mutation


def fault_at_the_end(family: Family, course: Course, rng: random.Random) -> Mutant:
    """All steps are done, and then the process crashes."""
    texts = ("Fatal Python error: Segmentation fault", "srun: error: node7: task 3: Segmentation fault (core dumped)")
    lines = [*_log(family, course), *(Line(text=text) for text in texts)]
    return Mutant(lines=lines, truth="bad", named=r"[Ss]egmentation")


MUTATORS: tuple[Mutation, ...] = (
    truncated, truncated_early, steps_dropped, last_step_dropped, last_steps_lost, first_steps_lost, noise_dropped,
    noise_added, doubled, interleaved, interleaved_with_nan, two_ranks, two_ranks_with_nan, garbage, carriage_returns,
    progress_bar, coloured, prefixed, with_time, no_marker, benign_words, slowed(1.03), slowed(1.05), slowed(1.10),
    nan_from, nan_once, inf_once, bad_gradient, rising, diverging, stuck, zero, skipping, half_as_long, other_batch,
    restarted, restarted_unfinished, profile_run_first, second_run_unfinished, second_run_slow, fault_at_the_end,
    *(fault(name) for name in _FAULTS),
)  # fmt: skip
