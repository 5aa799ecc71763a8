"""Changes to what happened in a run."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from mutants import made_logs as made
from mutants.made_logs import Course, Family, Line
from mutants.mutation import Mutant, Mutation, bad, changed, log_of, middle, next_printed


def slowed(factor: float) -> Mutation:
    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        seconds = [value * factor if step >= 5 else value for step, value in enumerate(course.seconds)]
        return bad(family, replace(course, seconds=seconds), r"target ≤")

    mutation.__name__ = f"slowed by {factor - 1:.0%}"
    return mutation


def nan_from(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    ill = dict.fromkeys(range(step, course.steps), math.nan)
    return bad(family, replace(course, loss=changed(course.loss, ill)), r"\bnan\b|report a loss|not reported")


def nan_once(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    return bad(family, replace(course, loss=changed(course.loss, {step: math.nan})), r"\bnan\b|report a loss")


def inf_once(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    return bad(family, replace(course, loss=changed(course.loss, {step: math.inf})), r"\binf\b")


def bad_gradient(family: Family, course: Course, rng: random.Random) -> Mutant:
    step = next_printed(family, middle(course, rng), course)
    if not family.has_grad_norm:
        return nan_once(family, course, rng)
    norms = changed(course.grad_norm, {step: rng.choice((math.nan, math.inf))})
    return bad(family, replace(course, grad_norm=norms), r"gradient norm")


def rising(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.is_cross_entropy:  # it may do all of this
        return nan_once(family, course, rng)
    loss: list[float | None] = [6.0 * 1.01**step + rng.gauss(0, 0.02) for step in range(course.steps)]
    return bad(family, replace(course, loss=loss), r"rises")


def diverging(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.is_cross_entropy:
        return nan_once(family, course, rng)
    start = 4 * course.steps // 5
    loss = changed(course.loss, {s: 6.0 + 1.5 * (s - start) for s in range(start, course.steps)})
    return bad(family, replace(course, loss=loss), r"rises|jumps")


def stuck(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.is_cross_entropy:
        return nan_once(family, course, rng)
    loss = changed(course.loss, dict.fromkeys(range(course.steps // 4, course.steps), 6.93147))
    return bad(family, replace(course, loss=loss), r"nothing is learnt|are all")


def zero(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.is_cross_entropy:
        return nan_once(family, course, rng)
    return bad(family, replace(course, loss=[0.0] * course.steps), r"exactly 0|all 0\b")


def skipping(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The loss scale collapses: from the middle on the optimizer skips every step."""
    lines, start = log_of(family, course), middle(course, rng)
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
    return bad(family, short, r"configured|last step was")


def other_batch(family: Family, course: Course, rng: random.Random) -> Mutant:
    if not family.says_batch:
        return half_as_long(family, course, rng)
    return bad(family, replace(course, batch=128), r"configur|batch|tokens per step")


def fewer_devices(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Half of the devices, where the log says how many there are."""
    lines = log_of(family, course)
    told = [f"Num_devices: {made.DEVICES}", f"using world size: {made.DEVICES}"]
    if not any(word in line.text for line in lines for word in told):
        return other_batch(family, course, rng)
    lines = [
        replace(line, text=line.text.replace(told[0], "Num_devices: 8").replace(told[1], "using world size: 8"))
        for line in lines
    ]
    return Mutant(lines=lines, truth="bad", named=r"devices")


def longer_than_asked(family: Family, course: Course, rng: random.Random) -> Mutant:
    asked = course.steps // 2 // family.every * family.every
    return Mutant(lines=log_of(family, course), truth="bad", steps=asked, named=r"continued to|configured")


def died_before_the_next_line(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Stops, without a word, after the last line that there is to print, but before its last step."""
    if family.every == 1:
        return half_as_long(family, course, rng)
    planned = course.steps - 2
    short = replace(made.part(course, 0, planned, ends=False), planned=planned)
    return Mutant(
        lines=log_of(family, short), truth="bad", steps=planned, named=r"breaks off|last step was|how the run ended"
    )


def no_loss(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The log of a rank that never sees the loss: without one, or with -1 in its place."""
    nothing = -1.0 if family.name == "torchtitan" else math.nan
    return bad(
        family,
        replace(course, loss=[nothing] * course.steps),
        r"\bnan\b|[Nn]o step reports a loss|report a loss|negative",
    )


def nan_counted(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The loss is there, but the line says that it was NaN in between."""
    step, lines = middle(course, rng), log_of(family, course)
    if not any("number of nan iterations:" in line.text for line in lines):
        return nan_once(family, course, rng)
    for index, line in enumerate(lines):
        if line.step == step:
            lines[index] = replace(line, text=line.text.replace("nan iterations:   0", "nan iterations:   1"))
    return Mutant(lines=lines, truth="bad", named=r"\b[Nn]a[Nn]\b|finite")


def resumed_in_another_file(family: Family, course: Course, rng: random.Random) -> Mutant:
    saved = course.steps // 3 + 1
    first = log_of(family, made.part(course, 0, saved + 2, ends=False))
    second = log_of(family, made.part(course, saved, course.steps, ends=True))
    return Mutant(lines=first, second=second, names=("train-4711.out", "train-4712.out"), truth="either")


def unfinished_in_another_file(family: Family, course: Course, rng: random.Random) -> Mutant:
    saved = course.steps // 3 + 1
    first = log_of(family, made.part(course, 0, saved + 2, ends=False))
    second = log_of(family, made.part(course, saved, course.steps - 1 - family.every, ends=False))
    named = r"breaks off|last step was"
    return Mutant(lines=first, second=second, names=("train-4711.out", "train-4712.out"), truth="bad", named=named)


# --- several attempts -------------------------------------------------------------------------------------------------


def restarted(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Killed in the middle, taken up again from the checkpoint before, and brought to its end."""
    saved, killed = course.steps // 3 + 1, middle(course, rng)
    first = made.part(course, 0, max(killed, saved + 2), ends=False)
    return Mutant(
        lines=[*log_of(family, first), *log_of(family, made.part(course, saved, course.steps, ends=True))],
        truth="either",
    )


def restarted_unfinished(family: Family, course: Course, rng: random.Random) -> Mutant:
    saved = course.steps // 3 + 1
    first = made.part(course, 0, 2 * course.steps // 3, ends=False)
    second = made.part(course, saved, course.steps - 1 - rng.randrange(course.steps // 6), ends=False)
    named = r"breaks off|last step was"
    return Mutant(lines=[*log_of(family, first), *log_of(family, second)], truth="bad", named=named)


def profile_run_first(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A short run to collect a profile, and then the one that counts, in the same log."""
    short = replace(made.part(course, 0, 15, ends=True), planned=15, seed=course.seed + 1)
    return Mutant(lines=[*log_of(family, short), *log_of(family, replace(course, clock=4000.0))], truth="either")


def second_run_unfinished(family: Family, course: Course, rng: random.Random) -> Mutant:
    second = replace(made.part(course, 0, middle(course, rng), ends=False), clock=4000.0)
    named = r"breaks off|last step was|attempt"
    return Mutant(lines=[*log_of(family, course), *log_of(family, second)], truth="bad", named=named)


def second_run_slow(family: Family, course: Course, rng: random.Random) -> Mutant:
    slow = replace(course, seconds=[value * 1.1 for value in course.seconds], clock=4000.0)
    named = r"target ≤"
    return Mutant(lines=[*log_of(family, course), *log_of(family, slow)], truth="bad", named=named)


def restarted_slow(family: Family, course: Course, rng: random.Random) -> Mutant:
    """After the restart, which the most of the steps come from, it is slower."""
    saved = course.steps // 3 + 1
    first = made.part(course, 0, saved + 2, ends=False)
    slow = replace(course, seconds=[value * 1.1 for value in course.seconds])
    lines = [*log_of(family, first), *log_of(family, made.part(slow, saved, course.steps, ends=True))]
    return Mutant(lines=lines, truth="bad", named=r"target ≤")


def impossible_speed(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Nobody waited for the device: every time is a thousandth."""
    return bad(
        family, replace(course, seconds=[value / 1000 for value in course.seconds]), r"peak|[Nn]ot measured|impossible"
    )


# --- faults: what is printed, and by which words it is named ----------------------------------------------------------

_FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "GPU out of memory": (
        (
            "[rank5]: Traceback (most recent call last):",
            '[rank5]:   File "/app/train.py", line 88, in step',
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
            "Traceback (most recent call last):", '  File "/app/train.py", line 12, in <module>',
            "RuntimeError: shape '[4, 8]' is invalid for input of size 30",
        ),
        r"RuntimeError|shape|exception|Traceback",
    ),
}  # fmt: skip


def breaks_with(name: str, texts: Sequence[str], named: str) -> Mutation:
    """The run breaks with these lines in the middle."""

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        lines = log_of(family, made.part(course, 0, middle(course, rng), ends=False))
        return Mutant(lines=[*lines, *(Line(text=text) for text in texts)], truth="bad", named=named)

    mutation.__name__ = name
    return mutation


def fault_at_the_end(family: Family, course: Course, rng: random.Random) -> Mutant:
    """All steps are done, and then the process crashes."""
    texts = ("Fatal Python error: Segmentation fault", "srun: error: node7: task 3: Segmentation fault (core dumped)")
    lines = [*log_of(family, course), *(Line(text=text) for text in texts)]
    return Mutant(lines=lines, truth="bad", named=r"[Ss]egmentation")


def exit_code_at_the_end(family: Family, course: Course, rng: random.Random) -> Mutant:
    lines = [*log_of(family, course), Line(text="srun: error: node7: task 3: Exited with exit code 1")]
    return Mutant(lines=lines, truth="bad", named=r"exit code 1|task 3")


def fault_on_the_other_node(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The node that prints the steps just stops; why stands in the log of the other."""
    lines = log_of(family, made.part(course, 0, middle(course, rng), ends=False))
    texts, named = _FAULTS["GPU out of memory"]
    second = [*(Line(text=made.noise_line(rng)) for _ in range(100)), *(Line(text=text) for text in texts)]
    return Mutant(lines=lines, second=second, truth="bad", named=named)


RUN_MUTATIONS: tuple[Mutation, ...] = (
    slowed(1.03), slowed(1.05), slowed(1.10), nan_from, nan_once, inf_once, bad_gradient, rising, diverging, stuck,
    zero, skipping, no_loss, nan_counted, half_as_long, longer_than_asked, died_before_the_next_line, other_batch,
    fewer_devices, impossible_speed, restarted, restarted_unfinished, restarted_slow, profile_run_first,
    second_run_unfinished, second_run_slow, resumed_in_another_file, unfinished_in_another_file, fault_at_the_end,
    exit_code_at_the_end, fault_on_the_other_node,
    *(breaks_with(f"fault: {name}", *case) for name, case in _FAULTS.items()),
)  # fmt: skip
# Those that can be seen in rows of numbers alone.
ROW_MUTATIONS: tuple[Mutation, ...] = (
    slowed(1.03), slowed(1.05), slowed(1.10), nan_from, nan_once, inf_once, bad_gradient, rising, diverging, stuck,
    zero, no_loss, half_as_long, longer_than_asked,
)  # fmt: skip
