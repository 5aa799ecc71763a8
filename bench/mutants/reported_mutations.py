"""Changes that users' logs had and that were once judged wrongly: each of them has to stay right."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mutants import made_logs as made
from mutants.made_logs import Course, Family, Line
from mutants.mutation import Mutant, Mutation, bad, changed, good, log_of, middle, next_printed

RANKS = 4

# --- numbers beside the loss ------------------------------------------------------------------------------------------

# How a family spells another loss behind its own: what stands before it in a line, and the line with it.
_LOSS = re.compile(
    r"(\|\s*lm[ _-]loss: +[-+.\dEeNAInaf]+|(?<=, )loss: [-+.\dinfa]+(?=$|,)"
    r"|loss: +[-+.\dinfa]+(?= +(?:\x1b\S*)?grad_norm)"
    r"|'loss': '[-+.\de]+'|\"learning/loss\": [-+.\de]+)"
)


def auxiliary(name: str) -> Mutation:
    """A loss beside the one that is trained becomes NaN once; the run itself goes on well."""

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        ill, lines = next_printed(family, middle(course, rng), course), log_of(family, course)
        found = [index for index, line in enumerate(lines) if line.kind == "step" and _LOSS.search(line.text)]
        if family.name not in _HAS_OTHERS or not found:
            return bad(family, replace(course, loss=changed(course.loss, {ill: math.nan})), r"\bnan\b|report a loss")
        for index in found:
            value = "nan" if lines[index].step == ill else f"{rng.uniform(0.01, 0.02):.4f}"
            lines[index] = replace(
                lines[index], text=_LOSS.sub(lambda m, value=value: _with(m[0], name, value), lines[index].text, 1)
            )
        return Mutant(lines=lines, truth="bad", named=r"\b[Nn]a[Nn]\b")

    mutation.__name__ = f"NaN in {name}"
    return mutation


_HAS_OTHERS = ("maxtext", "maxtext-print", "megatron", "megatron-plain", "rocm", "primus", "bridge", "transformers")


def _with(loss: str, name: str, value: str) -> str:
    if loss.startswith("|"):
        return f"{loss} | {name}: {value}"
    return f"{loss}, '{name}': '{value}'" if loss.startswith("'") else f"{loss}, {name}: {value}"


def decimal_commas(family: Family, course: Course, rng: random.Random) -> Mutant:
    """A tenth too slow, printed by a program with another locale: whatever is read of it must not meet the target."""
    slow = replace(course, seconds=[value * 1.1 for value in course.seconds])
    lines = [
        replace(line, text=re.sub(r"(?<=\d)\.(?=\d)", ",", line.text)) if line.kind == "step" else line
        for line in log_of(family, slow)
    ]
    return Mutant(lines=lines, truth="bad", named=r".")


# --- several ranks or runs, without a word of who prints --------------------------------------------------------------


def two_jobs(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Two runs write to one file, line by line in turn."""
    other = made.good_course(course.steps, random.Random(rng.randrange(1 << 30)))
    other = replace(other, loss=[value and value + 0.7 for value in other.loss])
    lines = list(_in_turn(log_of(family, course), log_of(family, other)))
    return Mutant(lines=lines, truth="either" if family.is_sampled or _has_blocks(family) else "bad", named=r".")


def two_jobs_one_breaks(family: Family, course: Course, rng: random.Random) -> Mutant:
    """The same, and one of the two is out of memory in the middle; the other comes to its end."""
    other = made.part(
        made.good_course(course.steps, random.Random(rng.randrange(1 << 30))), 0, middle(course, rng), ends=False
    )
    broken = [
        *log_of(family, replace(other, loss=[value and value + 0.7 for value in other.loss])),
        Line(text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 79.11 GiB."),
    ]
    lines = list(_in_turn(log_of(family, course), broken))
    return Mutant(lines=lines, truth="either" if family.is_sampled else "bad", named=r".")


def _in_turn(first: Sequence[Line], second: Sequence[Line]) -> Iterator[Line]:
    """Lines of two logs, a step of each in turn."""
    for step in range(-1, max(line.step for line in (*first, *second)) + 1):
        for log in (first, second):
            yield from (line for line, at in zip(log, _steps_so_far(log), strict=True) if at == step)


def _steps_so_far(log: Sequence[Line]) -> Iterator[int]:
    step = -1
    for line in log:
        step = max(step, line.step)
        yield step


def _has_blocks(family: Family) -> bool:
    """Whether a step takes several lines."""
    return family.name in ("olmo", "olmo-core", "composer", "deepspeed", "bridge")


def slow_rank(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Each rank has a log; one is a tenth slower by its own word."""
    slow = rng.randrange(1, RANKS)
    files = {}
    for rank in range(RANKS):
        seconds = [value * (1.1 if rank == slow else 1.0) for value in course.seconds]
        own = log_of(family, replace(course, seconds=seconds, seed=course.seed + rank))
        files[f"rank{rank}.log"] = [replace(line, text=_of_rank(line.text, rank)) for line in own]
    return _of_files(files, truth="bad", named=rf"rank {slow}\b|slower|seconds|tokens")


def empty_rank(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Each rank has a log, and that of one is empty."""
    empty = rng.randrange(1, RANKS)
    files = {
        f"rank{rank}.log": [] if rank == empty else [
            replace(line, text=_of_rank(line.text, rank))
            for line in log_of(family, replace(course, seed=course.seed + rank))
        ]
        for rank in range(RANKS)
    }  # fmt: skip
    return _of_files(files, truth="bad", named=r"empty")


def _of_rank(text: str, rank: int) -> str:
    return text.replace("[rank-15/", f"[rank-{rank}/").replace("[rank0]", f"[rank{rank}]")


def _of_files(files: dict[str, list[Line]], **what: str) -> Mutant:
    first, *others = files
    more = {other: files[other] for other in others}
    return Mutant(lines=files[first], names=(first, ""), more=more, **what)  # type: ignore[arg-type]


# --- healthy, and long enough -----------------------------------------------------------------------------------------


def fine_tuning(steps: int) -> Mutation:
    """A few steps of a model that was trained before: the loss falls by a quarter, each batch has its own."""

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        if not family.is_cross_entropy or family.is_sampled or family.every > 1:
            return good(log_of(family, course))
        seconds = [made.STEP_SECONDS * rng.lognormvariate(0, made.JITTER) for _ in range(steps)]
        short = replace(made.good_course(steps, rng), seconds=seconds, saves=frozenset())  # fast from the start
        loss: list[float | None] = [
            1.4 + 0.6 * math.exp(-step / (steps / 3)) + rng.gauss(0, 0.04) for step in range(steps)
        ]
        return replace(good(log_of(family, replace(short, loss=loss))), steps=steps)

    mutation.__name__ = f"fine-tuning of {steps} steps"
    return mutation


# --- what broke, and how it is told -----------------------------------------------------------------------------------

_BREAKS: dict[str, tuple[tuple[str, ...], str]] = {
    "the entire process down": (
        (
            "[rank6]:[E921 09:41:21.160918398 ProcessGroupNCCL.cpp:684] [Rank 6] Some NCCL operations have failed or "
            "timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
            "incomplete data.",
            "[rank6]:[E921 09:41:21.160930112 ProcessGroupNCCL.cpp:690] [Rank 6] To avoid data inconsistency, we are "
            "taking the entire process down.",
        ),
        r"NCCL|collective",
    ),
    "HCCL EI0006": (
        (
            "EI0006: 2026-09-21-09:41:21.270.506 Getting socket times out. Reason: Remote Rank did not send the "
            "data in time.",
            "        Solution: 1. Check the rank service processes with other errors or no errors in the cluster.",
        ),
        r"[Ss]ocket|collective|time",
    ),
    "Ray's dead actor": (
        (
            "(TaskRunner pid=4711) The actor is dead because its worker process has died. Worker exit type: "
            "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
            "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high "
            "memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or "
            "other unexpected errors.",
        ),
        r"[Ww]orker",
    ),
    "JAX's leader gone": (
        (
            "F0921 09:41:21.594200 4711 client.h:77] Terminating process because the JAX distributed service detected "
            "fatal errors. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader "
            "task was preempted/died/restarted unexpectedly or this task is experiencing network issues.",
            "Additional GRPC error information from remote target coordination_service while calling "
            "/tensorflow.CoordinationService/PollForError:",
            ':UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}',
        ),
        r"[Cc]oordination",
    ),
}  # fmt: skip


def breaks(name: str) -> Mutation:
    """The run breaks with this in the middle."""
    texts, named = _BREAKS[name]

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        lines = log_of(family, made.part(course, 0, middle(course, rng), ends=False))
        return Mutant(lines=[*lines, *(Line(text=text) for text in texts)], truth="bad", named=named)

    mutation.__name__ = f"breaks: {name}"
    return mutation


def unreadable_steps(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Steps that nothing can read, and then a fault: it came at no known step."""
    first = log_of(family, made.part(course, 0, middle(course, rng), ends=False))
    lines = [
        replace(line, text=f"~ {rng.randrange(1 << 30):x} ~ quux {rng.choice('abc')}") if line.kind == "step" else line
        for line in first
        if line.kind != "setup"
    ]
    oom = Line(text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 5 has 79.11 GiB.")
    return Mutant(lines=[*lines, oom], truth="bad", named=r"no step was recognised")


HARMLESS = (
    "[1760000000.631864] [node1:811:f]        vfs_fuse.c:440  UCX  DIAG  failed to watch on '/run/ucx': Input/output "
    "error",
    "[1760000000.111700] [node1:58364:f]      vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left "
    "on device",
    "node1:27:579 [6] NCCL INFO [Service thread] Connection closed by localRank 2",
)


def harmless_libraries(family: Family, course: Course, rng: random.Random) -> Mutant:
    """What libraries say that go on without."""
    lines = log_of(family, course)
    for text in HARMLESS:
        lines.insert(rng.randrange(1, max(2, len(lines) - 4)), Line(text=text))
    return good(lines)


# --- speed ------------------------------------------------------------------------------------------------------------


def shifted(factor: float) -> Mutation:
    """From 60% of the steps on it is slower, and stays so."""

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        start = 3 * course.steps // 5
        seconds = [value * (factor if step >= start else 1.0) for step, value in enumerate(course.seconds)]
        return bad(family, replace(course, seconds=seconds), r"target ≤|slower")

    mutation.__name__ = f"slower by {factor - 1:.0%} from 60% on"
    return mutation


def slow_at_first(family: Family, course: Course, rng: random.Random) -> Mutant:
    """Nearly half of the steps are a quarter slower, which is no warm-up."""
    late = 9 * course.steps // 20
    seconds = [value * (1.25 if step < late else 1.0) for step, value in enumerate(course.seconds)]
    return bad(family, replace(course, seconds=seconds), r"target ≤|slower|faster")


def drifting(family: Family, course: Course, rng: random.Random) -> Mutant:
    """It becomes slower step by step, until it misses its target by far."""
    seconds = [value * (1 + 0.08 * step / course.steps) for step, value in enumerate(course.seconds)]
    return bad(family, replace(course, seconds=seconds), r"target ≤|slower|drift")


REPORTED_MUTATIONS: tuple[Mutation, ...] = (
    *(auxiliary(name) for name in ("load_balancing_loss", "z_loss", "mtp_1 loss", "moe_lb_loss")), decimal_commas,
    two_jobs, two_jobs_one_breaks, slow_rank, empty_rank, fine_tuning(20), fine_tuning(30),
    *(breaks(name) for name in _BREAKS), unreadable_steps, harmless_libraries, shifted(1.1), slow_at_first, drifting,
)  # fmt: skip
