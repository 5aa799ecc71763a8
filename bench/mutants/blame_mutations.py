"""Runs of several ranks that break: one is at fault, the others report it, and each writes by a clock of its own.

Every rank has a file, and so may the launcher. What is printed is in the grammar of NCCL, RCCL, HCCL, JAX's
coordination service, torchelastic, Slurm and MPI.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from mutants import made_logs as made
from mutants.made_logs import Course, Family, Line
from mutants.mutation import Mutant, Mutation, log_of, middle

RANKS = 4
SKEWS = (0.0, 0.0, 40.0, -75.0, 260.0, 3600.0, -7200.0)  # seconds that a rank's clock is ahead
_BEGIN = 33_000.0  # of a made log, in seconds of its day


@dataclass(frozen=True, kw_only=True)
class Break:
    """Who broke, of how many, and how much each clock is ahead; `at` is when, in seconds of the day of the log."""

    culprit: int
    at: float
    skews: tuple[float, ...]

    def torch(self, rank: int, after: float) -> str:
        """The time of a line as torch's C++ prints it, by the clock of its rank."""
        date, clock = made.clock_text(self.at + after + self.skews[rank], micro=True).split(" ")
        return f"[rank{rank}]:[E{int(date[5:7])}{date[8:10]} {clock}000"

    def iso(self, rank: int, after: float) -> str:
        return made.clock_text(self.at + after + self.skews[rank], micro=True)


Says = Callable[[Break, int], list[str]]

# --- what the culprit prints, by its rank -----------------------------------------------------------------------------


def _terminated(broken: Break, rank: int, after: float, what: str) -> str:
    return (
        f"{broken.torch(rank, after)} ProcessGroupNCCL.cpp:1515] [PG 0 Rank {rank}] Process group watchdog "
        f"thread terminated with exception: CUDA error: {what} encountered"
    )


def _ecc(broken: Break, rank: int) -> list[str]:
    return [_terminated(broken, rank, 3, "uncorrectable ECC error")]


def _oom(broken: Break, rank: int) -> list[str]:
    return [
        "Traceback (most recent call last):", '  File "/app/train.py", line 88, in step',
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.5 GiB. GPU {rank} has a capacity of 79 GiB.",
    ]  # fmt: skip


def _hip(broken: Break, rank: int) -> list[str]:
    return [f"Memory access fault by GPU node-{rank + 2} (Agent handle: 0x5a5c00) on address 0x7098. Reason: Unknown."]


def _ascend(broken: Break, rank: int) -> list[str]:
    return ["RuntimeError: NPU out of memory. Tried to allocate 1.96 GiB (NPU 3; 60.97 GiB total capacity)"]


def _exception(broken: Break, rank: int) -> list[str]:
    return ["Traceback (most recent call last):", '  File "/app/data.py", line 12, in read', "KeyError: 'input_ids'"]


def _nothing(broken: Break, rank: int) -> list[str]:
    return []


# --- what another rank reports of it ----------------------------------------------------------------------------------


def _watchdog(broken: Break, rank: int) -> list[str]:
    return [
        f"{broken.torch(rank, 600 + rank / 10)} ProcessGroupNCCL.cpp:655] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=771, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) "
        "ran for 600021 milliseconds before timing out.",
        f"{broken.torch(rank, 601)} ProcessGroupNCCL.cpp:684] [Rank {rank}] Some NCCL operations have failed or timed "
        "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on incomplete data.",
        f"{broken.torch(rank, 601)} ProcessGroupNCCL.cpp:698] [Rank {rank}] To avoid data inconsistency, we are taking "
        "the entire process down.",
    ]


def _remote_error(broken: Break, rank: int) -> list[str]:
    return [
        "Traceback (most recent call last):", '  File "/app/train.py", line 90, in step',
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, remote "
        "process exited or there was a network error, NCCL version 2.21.5",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:", f"socketProgress: Connection closed by remote peer node{broken.culprit}<33759>",
    ]  # fmt: skip


def _heartbeat(broken: Break, rank: int) -> list[str]:
    date, clock = broken.iso(rank, 100).split(" ")
    return [
        f"E{date[5:].replace('-', '')} {clock}  4187 coordination_service.cc:741] UNAVAILABLE: The following tasks are "
        "unhealthy (stopped sending heartbeats):",
        f"/job:jax_worker/replica:0/task:{broken.culprit}",
        "The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption).",
    ]


def _notify(broken: Break, rank: int) -> list[str]:
    waited_for = broken.culprit if rank == (broken.culprit + 1) % RANKS else (rank - 1) % RANKS
    stamp = broken.iso(rank, 1800 + rank / 10)
    return [
        f"EI0002: [PID: 29{rank}] {stamp.replace(' ', '-')} The wait execution of the Notify register times out. "
        f"Reason: The Notify register has not received the Notify record from remote rank: [{waited_for}].",
        "        Solution: 1. If this error is reported on part of these ranks, check other ranks.",
        "        TraceBack (most recent call last):", "        The 0 stuck notify wait context info:(context_id=1).",
    ]  # fmt: skip


def _another_fault(broken: Break, rank: int) -> list[str]:
    """A fault of its own in one of the other ranks, half a minute later; the rest have none."""
    if rank != (broken.culprit + 2) % RANKS:
        return _watchdog(broken, rank)
    return [_terminated(broken, rank, 33, "an illegal memory access was")]


def _out_of_order(broken: Break, rank: int) -> list[str]:
    """A rank whose peer is gone fails in its own code, after it has said so."""
    return [*_remote_error(broken, rank), *_exception(broken, rank)]


_ABORT = ["Fatal Python error: Aborted", "", "Current thread 0x00007f01 (most recent call first):"]

# --- what the launcher prints -----------------------------------------------------------------------------------------


def _srun(broken: Break, code: int) -> Iterator[str]:
    yield f"srun: error: node{broken.culprit}: task {broken.culprit}: Exited with exit code {code}"
    yield "srun: Terminating StepId=4711.0"
    for rank in range(RANKS):
        if rank != broken.culprit:
            yield f"srun: error: node{rank}: task {rank}: {('Exited with exit code 1', 'Terminated')[rank % 2]}"


def _mpirun(broken: Break, _: int) -> Iterator[str]:
    yield "-" * 74
    yield "mpirun detected that one or more processes exited with non-zero status, thus causing"
    yield from ("the job to be terminated. The first process to do so was:", "")
    yield from (f"  Process name: [[29973,1],{broken.culprit}]", "  Exit code:    1", "-" * 74)


def _hydra(broken: Break, _: int) -> Iterator[str]:
    yield from ("=" * 83, "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
    yield f"=   RANK {broken.culprit} PID 2447372 RUNNING AT node{broken.culprit}"
    yield from ("=   KILLED BY SIGNAL: 9 (Killed)", "=" * 83)


def _torchelastic(broken: Break, _: int) -> Iterator[str]:
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    yield from ("=" * 60, "train.py FAILED", "-" * 60, "Failures:")
    for number, rank in enumerate((r for r in range(RANKS) if r != broken.culprit), 1):
        yield from (f"[{number}]:", f"  time      : {broken.iso(rank, 90)[:19].replace(' ', '_')}")
        yield from (f"  host      : node{rank}", f"  rank      : {rank} (local_rank: 0)")
        yield from (f"  exitcode  : {(1, -15)[rank % 2]} (pid: 41{rank})", "  error_file: <N/A>")
    yield from ("-" * 60, "Root Cause (first observed failure):", "[0]:")
    yield f"  time      : {broken.iso(broken.culprit, 5)[:19].replace(' ', '_')}"
    yield from (f"  host      : node{broken.culprit}", f"  rank      : {broken.culprit} (local_rank: 0)")
    yield from ("  exitcode  : 1 (pid: 4188)", "  error_file: <N/A>", "=" * 60)


_LAUNCHERS = (_srun, _mpirun, _hydra, _torchelastic, None)


def blamed(name: str, cause: Says, report: Says) -> Mutation:
    """One of four ranks breaks with `cause`, and the others `report` it."""

    def mutation(family: Family, course: Course, rng: random.Random) -> Mutant:
        last = middle(course, rng)
        broken = Break(
            culprit=rng.randrange(RANKS),
            at=_BEGIN + list(accumulate(course.seconds[:last]))[-1],
            skews=tuple(rng.choice(SKEWS) for _ in range(RANKS)),
        )
        files: dict[str, list[Line]] = {}
        for rank in range(RANKS):
            own = replace(made.part(course, 0, last, ends=False), clock=broken.skews[rank])
            lines = [replace(line, text=_of_rank(line.text, rank)) for line in log_of(family, own)]
            said = cause(broken, rank) if rank == broken.culprit else report(broken, rank)
            if rank != broken.culprit and rng.random() < 0.3:
                said += _ABORT
            files[f"rank{rank}.log"] = [*lines, *(Line(text=text) for text in said)]
        if launcher := rng.choice(_LAUNCHERS):
            files["slurm-4711.out"] = [Line(text=text) for text in launcher(broken, 1)]
        first, *others = files
        return Mutant(
            lines=files[first], names=(first, ""), more={other: files[other] for other in others}, truth="bad",
            named=r".", culprits=frozenset({f"rank {broken.culprit}", f"node{broken.culprit}"}),
        )  # fmt: skip

    mutation.__name__ = f"blame: {name}"
    return mutation


def _of_rank(text: str, rank: int) -> str:
    """The same line as another rank prints it."""
    return text.replace("[rank-15/", f"[rank-{rank}/").replace("[rank0]", f"[rank{rank}]")


BLAME_MUTATIONS: tuple[Mutation, ...] = (
    blamed("ECC, watchdogs", _ecc, _watchdog), blamed("out of memory, watchdogs", _oom, _watchdog),
    blamed("out of memory, remote errors", _oom, _remote_error),
    blamed("HIP fault, remote errors", _hip, _remote_error),
    blamed("NPU out of memory, notify", _ascend, _notify), blamed("exception, watchdogs", _exception, _watchdog),
    blamed("exception, heartbeats", _exception, _heartbeat), blamed("silent, heartbeats", _nothing, _heartbeat),
    blamed("silent, notify", _nothing, _notify), blamed("silent, watchdogs", _nothing, _watchdog),
    blamed("silent, remote errors", _nothing, _remote_error), blamed("ECC, another fault", _ecc, _another_fault),
    blamed("exception, exceptions", _exception, _out_of_order), blamed("ECC, exceptions", _ecc, _out_of_order),
)  # fmt: skip
