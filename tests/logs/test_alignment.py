"""Folders of logs whose ranks have clocks of their own: ahead, behind, in other zones, drifting, without a year."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from seatrial.events import Fault, Step
from seatrial.logs import read
from seatrial.logs.alignment import Shift, StepClock, clocked, shifts, zone_apart
from seatrial.logs.numbers import stated_time
from seatrial.recording import Recording
from tests.helpers.blame_cases import judged, step_line

START = datetime(2026, 3, 1, 10)
QUARTER = timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A rank's clock: `ahead` of the true time, and by `drift` more with every second since START."""

    ahead: timedelta = timedelta(0)
    drift: float = 0.0

    def read(self, true: datetime) -> datetime:
        return true + self.ahead + self.drift * (true - START)


def crash(rank: int, kind: str, at: datetime) -> str:
    """A cause as torch's watchdog prints it, by a clock without a year."""
    what = {
        "gpu_ecc": "CUDA error: uncorrectable ECC error encountered",
        "gpu_memory_fault": "CUDA error: an illegal memory access was encountered",
    }[kind]
    return (
        f"[rank{rank}]:[E{at.month}{at:%d %H:%M:%S.%f}000 ProcessGroupNCCL.cpp:1515] [PG 0 Rank {rank}] "
        f"Process group watchdog thread terminated with exception: {what}"
    )


def write(folder: Path, rank: int, lines: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.log"
    path.write_text("\n".join(lines) + "\n")
    stamp = (START + timedelta(days=1)).replace(tzinfo=UTC).timestamp()
    os.utime(path, (stamp, stamp))


def run(folder: Path, clocks: list[Clock], families: list[str], failures: dict[int, tuple[str, datetime]]) -> None:
    """A run that breaks after step 15, whose ranks print all of their steps."""
    for rank, (clock, family) in enumerate(zip(clocks, families, strict=True)):
        jitter = random.Random(rank)
        ends = [START + timedelta(seconds=2 * step + jitter.random() / 10) for step in range(16)]
        lines = [step_line(family, step, clock.read(end)) for step, end in enumerate(ends)]
        if failure := failures.get(rank):
            lines.append(crash(rank, failure[0], clock.read(failure[1])))
        write(folder, rank, lines)


@pytest.mark.parametrize("seed", range(25))
def test_the_first_failure_is_the_first_by_one_clock(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    ranks = rng.randrange(3, 8)
    clocks = [
        Clock(
            ahead=rng.choice(
                [timedelta(0), timedelta(seconds=rng.uniform(-900, 900)), rng.randrange(-40, 41) * QUARTER]
            ),
            drift=rng.choice([0.0, 0.0, rng.uniform(-0.2, 0.2)]),
        )
        for _ in range(ranks)
    ]
    families = [rng.choice(["megatron", "maxtext"]) for _ in range(ranks)]
    first, second = rng.sample(range(ranks), 2)
    kinds = rng.sample(["gpu_ecc", "gpu_memory_fault"], 2)
    at = START + timedelta(seconds=rng.uniform(31, 34))
    failures = {first: (kinds[0], at), second: (kinds[1], at + timedelta(seconds=rng.uniform(6, 60)))}
    run(tmp_path, clocks, families, failures)
    metrics, verdict = judged(tmp_path)
    found = metrics.completion.diagnosis
    assert found is not None
    assert (found.kind, found.cause.rank) == (kinds[0], first), verdict.headline
    assert found.rivals == ()
    faults = metrics.completion.faults
    assert [fault.rank for fault in faults] == [first, second]
    assert faults[1].seconds - faults[0].seconds == pytest.approx(
        (failures[second][1] - at).total_seconds(),
        rel=0.3,
        abs=2,  # nobody knows which of the clocks drifts
    )


@pytest.mark.parametrize("seed", range(10))
def test_without_a_clock_the_order_is_that_of_the_steps_or_unknown(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    first, second = rng.sample(range(4), 2)
    fewer = rng.random() < 0.5
    for rank in range(4):
        steps = 15 if rank == first and fewer else 16
        lines = [step_line("print", step, START) for step in range(steps)]
        if rank in (first, second):
            kind = "uncorrectable ECC error" if rank == first else "an illegal memory access was"
            lines.append(f"RuntimeError: CUDA error: {kind} encountered")
        write(tmp_path, rank, lines)
    metrics, verdict = judged(tmp_path)
    found = metrics.completion.diagnosis
    assert found is not None
    if fewer:
        assert (found.cause.rank, found.rivals) == (first, ())
    else:
        blamed = {first: second, second: first}
        assert found.cause.rank in blamed
        assert found.rivals[0].endswith(f" on rank {blamed[found.cause.rank]}")
        assert "Which came first is not known" in verdict.headline


def test_clocks_that_nobody_compared_are_believed_only_where_they_are_far_apart(tmp_path: Path) -> None:
    def failing(*seconds: float) -> tuple[int | None, tuple[str, ...]]:
        folder = tmp_path / str(seconds)
        ecc, fault = (START + timedelta(seconds=each) for each in seconds)
        write_with = {1: ("gpu_ecc", ecc), 2: ("gpu_memory_fault", fault)}
        write(folder, 0, [step_line("megatron", step, START - timedelta(seconds=40 - step)) for step in range(1, 6)])
        for rank, (kind, at) in write_with.items():
            write(folder, rank, [crash(rank, kind, at)])
        found = judged(folder)[0].completion.diagnosis
        assert found is not None
        return found.cause.rank, found.rivals

    assert failing(0, 600) == (1, ())
    assert failing(600, 0) == (2, ())
    assert failing(0, 20) == (1, ("illegal GPU memory access on rank 2",))
    assert failing(20, 0) == (2, ("uncorrectable GPU memory error on rank 1",))
    half_an_hour = 1800  # as far apart as two zones may be
    assert failing(0, half_an_hour + 20) == (1, ("illegal GPU memory access on rank 2",))
    assert failing(half_an_hour - 20, 0) == (2, ("uncorrectable GPU memory error on rank 1",))


def test_a_log_that_tells_no_time_does_not_pretend_to_have_come_first(tmp_path: Path) -> None:
    write(tmp_path, 0, [step_line("megatron", step, START + timedelta(seconds=2 * step)) for step in range(1, 6)])
    write(tmp_path, 1, ["Traceback (most recent call last):", '  File "/app/t.py", line 3, in f', "KeyError: 'loss'"])
    write(tmp_path, 2, [crash(2, "gpu_ecc", START + timedelta(seconds=12))])
    metrics, verdict = judged(tmp_path)
    found = metrics.completion.diagnosis
    assert found is not None
    assert (found.kind, found.cause.rank, found.rivals) == ("gpu_ecc", 2, ("exception on rank 1",))
    assert "Which came first is not known" in verdict.headline


def test_zones_that_a_log_states_are_taken_off(tmp_path: Path) -> None:
    for rank, hours in enumerate((0, 2, -7)):
        zone = f"{hours:+03d}:00"
        at = START + timedelta(hours=hours)
        lines = [f"{at:%Y-%m-%d %H:%M:%S}{zone} start"]
        lines += [f"{at + timedelta(seconds=9 - rank):%Y-%m-%d %H:%M:%S}{zone} RuntimeError: CUDA error: unknown error"]
        write(tmp_path, rank, lines)
    faults = [event for event in read([tmp_path]) if isinstance(event, Fault)]
    assert [fault.facts["rank"] for fault in faults] == [2, 1, 0]
    assert faults[-1].wall_time - faults[0].wall_time == pytest.approx(2)


def test_steps_are_moved_to_the_clock_of_most(tmp_path: Path) -> None:
    clocks = [Clock(ahead=timedelta(seconds=40)), *[Clock()] * 4]
    run(tmp_path, clocks, ["megatron"] * 5, {})
    times: dict[int, list[float]] = {}
    for event in read([tmp_path]):
        if isinstance(event, Step):
            times.setdefault(event.step, []).append(event.wall_time)
    assert all(max(found) - min(found) < 2 for found in times.values())
    assert min(times[0]) == pytest.approx(START.replace(tzinfo=UTC).timestamp(), abs=2)


def test_shifts() -> None:
    base = 1.77e9
    one, two = StepClock(np.array([1.0, 2.0]), np.array([base, base + 2])), np.array([base + 40, base + 42])
    assert shifts({0: one, 1: StepClock(one.steps, two)}) == {
        0: Shift(0.0, 0.0, base + 1), 1: Shift(40.0, 0.0, base + 41)
    }  # fmt: skip
    assert shifts({0: StepClock(one.steps[:1], two[:1]), 1: StepClock(one.steps[1:], two[1:])}) == {}
    assert zone_apart(base + 3600 + 5, [base]) == 3600
    assert zone_apart(base + 3600 + 400, [base]) is None
    assert zone_apart(None, [base]) is None


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        ("[rank3]:[E921 09:41:21.160918398 ProcessGroupNCCL.cpp:607] x", datetime(1972, 9, 21, 9, 41, 21, 160918)),
        ("[rank3]:[E1105 09:41:21.5 ProcessGroupNCCL.cpp:607] x", datetime(1972, 11, 5, 9, 41, 21, 500000)),
        ("E0301 10:03:40.551260  4187 coordination_service.cc:741] x", datetime(1972, 3, 1, 10, 3, 40, 551260)),
        ("[ERROR] 2026-03-01-10:02:20 (PID:12, Device:1, RankID:1) ERR01100", datetime(2026, 3, 1, 10, 2, 20)),
        ("EI0006: [PID: 12] 2026-03-01-10:02:20.444.436 Getting", datetime(2026, 3, 1, 10, 2, 20, 444000)),
        ("slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-03-01T10:00:57 ***", datetime(2026, 3, 1, 10, 0, 57)),
        ("Nov 21 03:04:05 node7 kernel: Out of memory", datetime(1972, 11, 21, 3, 4, 5)),
        ("[Sat Nov 21 03:04:05 2026] NVRM: Xid", datetime(2026, 11, 21, 3, 4, 5)),
        ("2026-03-01T09:00:00.5Z [rank0]:[E301 10:00:00.25 a.cpp:1] x", datetime(1972, 3, 1, 10, 0, 0, 250000)),
        ("no time 12:00:00 at all", None),
        ("[E1399 09:41:21.5 a.cpp:1] no such day", None),
    ],
)
def test_what_a_line_states(line: str, moment: datetime | None) -> None:
    found = stated_time(line)
    assert (None if found is None else datetime.fromtimestamp(found, UTC).replace(tzinfo=None)) == moment


@pytest.mark.parametrize(("fewer", "known"), [(0, False), (1, True)])
def test_failures_without_a_time_are_ordered_by_their_steps_and_not_by_when_a_line_was_written(
    fewer: int, known: bool, tmp_path: Path
) -> None:
    for rank in range(4):
        steps = 9 - fewer if rank == 2 else 9
        ends = [START + timedelta(seconds=2 * step + rank / 50) for step in range(steps)]
        lines = [step_line("megatron", step, end) for step, end in enumerate(ends, 1)]
        if rank in (1, 2):
            lines.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {rank} GiB.")
        write(tmp_path, rank, lines)
    found = judged(tmp_path)[0].completion.diagnosis
    assert found is not None
    assert (found.kind, found.rivals == ()) == ("device_oom", known)
    assert not known or found.cause.rank == 2


def test_steps_without_a_time_put_no_clock_right() -> None:
    """Their seconds can be added up, but say nothing of the clock of a failure that has one."""
    at = START.replace(tzinfo=UTC).timestamp()
    failure = Fault(process=0, wall_time=at, fault="gpu_ecc", where="rank 1", facts={"rank": 1})
    added_up = [Step(process=0, wall_time=2.0 * step, step=step) for step in range(1, 4)]
    by_clock = [Step(process=0, wall_time=at - 9 + step, step=step) for step in range(1, 4)]
    assert clocked(Recording.of([*added_up, failure]))[-1] == replace(failure, facts={"rank": 1, "order": "own"})
    assert list(clocked(Recording.of([*by_clock, failure]))) == [*by_clock, failure]
    undated = replace(failure, wall_time=8.0)
    assert clocked(Recording.of([*added_up, undated]))[-1] == undated


def test_the_rank_that_the_launcher_saw_fail_first_is_blamed_where_no_clock_tells(tmp_path: Path) -> None:
    for rank, seconds in {1: 4, 2: 900}.items():
        kind = {1: "gpu_memory_fault", 2: "gpu_ecc"}[rank]
        write(tmp_path, rank, [crash(rank, kind, START + timedelta(seconds=seconds))])
    root = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED", "-" * 60,
        "Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-01_10:00:01", "  host      : gpu-01",
        "  rank      : 2 (local_rank: 2)", "  exitcode  : 1 (pid: 302)", "  error_file: <N/A>",
        "  traceback : To enable traceback see: the manual", "=" * 60,
    ]  # fmt: skip
    (tmp_path / "launcher.log").write_text("\n".join(root) + "\n")
    found = judged(tmp_path)[0].completion.diagnosis
    assert found is not None
    assert (found.cause.rank, found.kind) == (2, "gpu_ecc")
