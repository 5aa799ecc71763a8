"""First cause against victims, over random interleavings of what the ranks say."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.logs.faults import KINDS
from seatrial.metrics.causes import FaultRecord, diagnose

SPECIFIC = sorted(
    kind.name
    for kind in KINDS.values()
    if kind.role == "cause" and kind.severity == "fatal" and kind.cuts == "died" and kind.name != "exception"
)


def fault(kind: str, rank: int | None = None, *, at: float = 0.0, text: str = "", **fields: Any) -> FaultRecord:
    where = "" if rank is None else f"rank {rank}"
    return FaultRecord(
        seconds=at, process=0, fault=kind, where=where, text=text, source="log", rank=rank, survived=False, **fields
    )


def told(kind: str, reporter: int, of: int | None = None, **fields: Any) -> FaultRecord:
    """A fault that a rank reports of others: of one by its number, or of none."""
    return replace(fault(kind, of, **fields), reporter=reporter)


def timeout(rank: int, sequence: int = 5, operation: str = "ALLREDUCE", *, at: float = 600.0) -> FaultRecord:
    return fault("collective_timeout", rank, at=at, sequence=sequence, operation=operation)


@settings(max_examples=200)
@given(st.randoms(use_true_random=False), st.sampled_from(SPECIFIC), st.integers(2, 64))
def test_the_first_cause_is_blamed_whatever_follows(rng: random.Random, kind: str, ranks: int) -> None:
    dead = rng.randrange(ranks)
    others = [rank for rank in range(ranks) if rank != dead]
    after = [timeout(rank) for rank in others]
    after += [fault(rng.choice(["aborted", "exception"]), rank) for rank in others if rng.random() < 0.5]
    after += [told(rng.choice(["peer_lost", "heartbeat_lost"]), rank) for rank in others if rng.random() < 0.5]
    after += [told("heartbeat_lost", rank, dead) for rank in others if rng.random() < 0.5]
    after += [fault(rng.choice(["terminated", "killed", "worker_stopped"]), rank) for rank in others]
    after += [fault("bad_exit", rank, exit_code=rng.choice([1, 134, 143])) for rank in range(ranks)]
    after.append(fault("step_cancelled"))
    rng.shuffle(after)
    survived = [replace(fault(rng.choice(SPECIFIC), 0), survived=True) for _ in range(rng.randrange(3))]
    warnings = [fault("suspicious_line", rng.choice(others)) for _ in range(rng.randrange(3))]
    found = diagnose([*survived, *warnings, fault(kind, dead), *after], ranks)
    assert found is not None
    assert (found.kind, found.cause.where) == (kind, f"rank {dead}")
    assert set(found.victims) >= {f"rank {rank}" for rank in others}
    assert f"rank {dead}" not in found.victims
    waited = [symptom for symptom in found.symptoms if "waited in" in symptom]
    assert len(waited) == 1
    assert "ALLREDUCE number 5" in waited[0]
    assert waited[0].startswith(f"{len(others)} ranks") == (len(others) > 4)
    assert found.suspects == (f"rank {dead}",)
    assert found.exclude == ((f"rank {dead}",) if KINDS[kind].retry == "elsewhere" else ())


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(3, 40))
def test_who_is_missing_from_the_watchdogs_list_is_a_suspect(rng: random.Random, ranks: int) -> None:
    absent = sorted(rng.sample(range(ranks), rng.randrange(1, (ranks + 1) // 2)))
    waiting = [timeout(rank) for rank in range(ranks) if rank not in absent]
    rng.shuffle(waiting)
    found = diagnose(waiting, ranks)
    assert found is not None
    assert found.kind == "collective_timeout"
    assert found.suspects == tuple(f"rank {rank}" for rank in absent)
    unknown = diagnose(waiting)
    assert unknown is not None
    assert unknown.suspects == ()


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(2, 40))
def test_different_collectives_are_a_divergence(rng: random.Random, ranks: int) -> None:
    ahead = set(rng.sample(range(ranks), rng.randrange(1, ranks)))
    waiting = [timeout(rank, *((702, "ALLGATHER") if rank in ahead else (700, "BROADCAST"))) for rank in range(ranks)]
    rng.shuffle(waiting)
    found = diagnose(waiting, ranks)
    assert found is not None
    assert found.kind == "collective_desync"
    assert "ALLGATHER number 702" in found.sentence
    assert "BROADCAST number 700" in found.sentence
    broken = diagnose([fault("gpu_ecc", 0), *waiting], ranks)
    assert broken is not None
    assert broken.kind == "gpu_ecc"


@pytest.mark.parametrize(
    ("faults", "kind", "where"),
    [
        ([fault("bad_exit", 3, exit_code=1), fault("step_cancelled")], "bad_exit", "rank 3"),
        ([fault("step_cancelled"), fault("bad_exit", 3, exit_code=1)], "bad_exit", "rank 3"),
        ([fault("terminated", 0), fault("bad_exit", 3, exit_code=143)], "terminated", "rank 0"),
        ([fault("cancelled"), fault("exception", 1), fault("bad_exit", 1, exit_code=1)], "cancelled", ""),
        ([timeout(0), fault("cancelled")], "collective_timeout", "rank 0"),
        ([fault("heartbeat_lost"), fault("time_limit")], "heartbeat_lost", ""),
        ([fault("time_limit"), fault("terminated", 0)], "time_limit", ""),
        ([fault("worker_failed", 3), fault("worker_failed", 1, root=True)], "worker_failed", "rank 1"),
        ([fault("worker_failed", 1, root=True), fault("exception", 2)], "exception", "rank 2"),
        ([told("peer_lost", 2), fault("exception", 2), fault("host_oom", 5)], "host_oom", "rank 5"),
        ([fault("dataloader_died", 3), fault("bad_exit", 3), fault("host_oom")], "host_oom", "rank 3"),  # kernel's word
        ([fault("dataloader_died", 3, host="a"), fault("host_oom", 5, host="b")], "dataloader_died", "rank 3"),
        ([fault("killed", 4)], "killed", "rank 4"),
        ([fault("worker_stopped", 9), fault("killed", 8, root=True)], "killed", "rank 8"),
        ([told("peer_lost", 2), fault("worker_stopped", 9), fault("killed", 8, root=True)], "killed", "rank 8"),
        ([timeout(3), fault("killed", 8, root=True)], "collective_timeout", "rank 3"),
        ([fault("step_failed", 0, text="CUDA out of memory"), fault("process_died", 0)], "device_oom", "rank 0"),
        ([fault("step_failed", 0, text="peer closed"), fault("process_died", 1)], "process_died", "rank 1"),
        ([fault("start_barrier"), fault("process_missing", 4), fault("process_missing", 5)], "start_barrier", ""),
    ],
)  # fmt: skip
def test_who_is_blamed(faults: list[FaultRecord], kind: str, where: str) -> None:
    found = diagnose(faults)
    assert found is not None
    assert (found.kind, found.cause.where) == (kind, where)


def test_a_fault_is_told_by_name_place_and_the_words_of_the_log() -> None:
    text = (
        "[rank8]:[E921 09:40:11.123456789 Allocator.cpp:607] CUDA out of memory. Tried to allocate 2.00 GiB. "
        + 9 * "x y"
    )
    oom = diagnose([fault("device_oom", 8, text=text)])
    assert oom is not None
    assert (oom.what, oom.quote) == (
        "GPU out of memory on rank 8",
        "CUDA out of memory. Tried to allocate 2.00 GiB. " + 9 * "x y",
    )
    killed = diagnose([fault("killed", 4, text="x" * 200)])
    assert killed is not None
    assert killed.what == "rank 4 was killed"
    assert len(killed.quote) < 170


def test_where_every_rank_came_nobody_is_looked_for() -> None:
    some, all_came = diagnose([timeout(0), timeout(1)], 4), diagnose([timeout(rank) for rank in range(4)], 4)
    assert some is not None
    assert all_came is not None
    assert "not in the list" in some.hint
    assert "network" in all_came.hint
    assert all_came.suspects == ()


def test_nothing_is_blamed_for_what_cannot_have_ended_a_run() -> None:
    assert diagnose([]) is None
    assert diagnose([fault("suspicious_line", 1), fault("gpu_throttled", 2), fault("of_another_version", 3)]) is None
    assert diagnose([fault("peer_stopped", 1)]) is None
    assert diagnose([replace(fault("device_oom", 1), survived=True)]) is None


def test_missing_processes_are_suspects() -> None:
    found = diagnose([fault("start_barrier"), *(fault("process_missing", rank) for rank in (4, 1, 2))])
    assert found is not None
    assert found.suspects == ("rank 1", "rank 2", "rank 4")


@pytest.mark.parametrize(
    ("faults", "kind", "where", "suspects", "exclude"),
    [
        ([told("heartbeat_lost", 0), told("heartbeat_lost", 0, 2)], "heartbeat_lost", "rank 2", ["rank 2"], ["rank 2"]),
        (
            [told("heartbeat_lost", 0, 2), told("heartbeat_lost", 0, 5), told("heartbeat_lost", 1, 2)],
            "heartbeat_lost", "rank 2", ["rank 2", "rank 5"], ["rank 2", "rank 5"],
        ),
        ([told("heartbeat_lost", 0)], "heartbeat_lost", "", [], []),
        (
            [told("peer_lost", 1), told("coordination_lost", 0), told("heartbeat_lost", 3, 2), fault("aborted", 0)],
            "heartbeat_lost", "rank 2", ["rank 2"], ["rank 2"],
        ),
        ([told("heartbeat_lost", 0, 2), fault("exception", 0)], "heartbeat_lost", "rank 2", ["rank 2"], ["rank 2"]),
        ([told("heartbeat_lost", 0, 2), fault("exception", 2)], "exception", "rank 2", ["rank 2"], []),
        ([told("heartbeat_lost", 0, 2), fault("device_oom", 2)], "device_oom", "rank 2", ["rank 2"], []),
        ([told("heartbeat_lost", 0, 2), fault("device_oom", 3)], "device_oom", "rank 3", [], []),
        (
            [told("heartbeat_lost", 0, 2), replace(fault("process_died", 0, exit_code=134), source="")],
            "heartbeat_lost", "rank 2", ["rank 2"], ["rank 2"],
        ),
        (
            [told("heartbeat_lost", 0, 2), replace(fault("process_died", 1, exit_code=137), source="")],
            "process_died", "rank 1", [], [],
        ),
        ([told("peer_lost", 3), told("coordination_lost", 1, 0)], "coordination_lost", "rank 0", ["rank 0"], []),
        ([told("rdma_error", 3)], "rdma_error", "", [], []),
        (
            [told("node_lost", 0), replace(fault("node_lost", host="gpu-07"), where="gpu-07")],
            "node_lost", "gpu-07", [], ["gpu-07"],
        ),
    ],
)  # fmt: skip
def test_the_reporter_is_never_blamed_for_what_befell_others(
    faults: list[FaultRecord], kind: str, where: str, suspects: list[str], exclude: list[str]
) -> None:
    found = diagnose(faults)
    assert found is not None
    assert (found.kind, found.cause.where) == (kind, where)
    assert (list(found.suspects), list(found.exclude)) == (suspects, exclude)


def test_a_lost_heartbeat_is_told_by_whose_it_was_and_who_missed_it() -> None:
    reporters = (0, 1, 3)
    found = diagnose([told("heartbeat_lost", by, of) for by in reporters for of in (2, 5)])
    assert found is not None
    assert found.what == "no heartbeat from rank 2, rank 5"
    assert found.quote == "nothing more was heard from them, reported by ranks 0–1, 3"
    assert found.symptoms == ()
    oom = diagnose([fault("device_oom", 2, text="no memory"), told("heartbeat_lost", 0, 2), told("peer_lost", 1)])
    assert oom is not None
    assert oom.symptoms == ("no heartbeat: rank 2", "connection to a peer lost, reported by rank 1")
