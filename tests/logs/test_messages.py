"""Messages of several lines: read as one, bounded, and in the way of nobody else's lines."""

from __future__ import annotations

import random

import pytest

from seatrial.events import Fault
from seatrial.logs.faults import FaultScanner
from seatrial.logs.lines import read_prefix
from seatrial.logs.messages import GRAMMARS, MAX_CHARACTERS, begun

RULE = "-" * 74
FIRST_TO_EXIT = [
    RULE, "mpirun detected that one or more processes exited with non-zero status, thus causing",
    "the job to be terminated. The first process to do so was:", "", "  Process name: [[29973,1],5]",
    "  Exit code:    3", RULE,
]  # fmt: skip
REMOTE_ERROR = [
    "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:317, remote process exited or there was a "
    "network error, NCCL version 2.21.5",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:", "socketProgress: Connection closed by remote peer node3<47861>",
]  # fmt: skip
NOTIFY = [
    "EI0002: [PID: 2969] 2026-03-01-10:30:34.713.335 The wait execution of the Notify register times out. Reason: "
    "The Notify register has not received the Notify record from remote rank: [4].",
    "        Solution: 1. If this error is reported on part of these ranks, check whether others ran out of memory.",
    "        TraceBack (most recent call last):", "        Transport init error. Reason: Connection refused.",
]  # fmt: skip


def scan(lines: list[str]) -> list[Fault]:
    scanner = FaultScanner()
    found: list[Fault] = []
    for number, line in enumerate(lines, 1):
        found += scanner.scan(
            line, number, process=0, source="log", wall_time=0.0, rank=read_prefix(line).rank, host=None
        )
    return found + scanner.finish()


def shown(faults: list[Fault]) -> list[tuple[str, int | None]]:
    return [(fault.fault, fault.line) for fault in faults]


def test_what_names_the_process_may_stand_on_another_line() -> None:
    (fault,) = scan(FIRST_TO_EXIT)
    assert (fault.fault, fault.where, fault.facts["exit_code"], fault.line) == ("bad_exit", "rank 5", 3, 2)
    (fault,) = scan(REMOTE_ERROR)
    assert (fault.fault, fault.line) == ("peer_lost", 1)
    (fault,) = scan(NOTIFY)
    assert (fault.fault, fault.facts["waits_for"]) == ("collective_timeout", 4)


@pytest.mark.parametrize("seed", range(8))
def test_the_lines_of_other_ranks_may_stand_in_between(seed: int) -> None:
    rng = random.Random(seed)
    waiting = {rank: [f"[rank{rank}]: {line}" for line in rng.choice([REMOTE_ERROR, NOTIFY])] for rank in range(6)}
    expected = {rank: "peer_lost" if "NCCL" in lines[0] else "collective_timeout" for rank, lines in waiting.items()}
    mixed: list[str] = []
    while waiting:
        rank = rng.choice(list(waiting))
        mixed.append(waiting[rank].pop(0))
        if not waiting[rank]:
            del waiting[rank]
    found = scan(mixed)
    assert {fault.facts.get("reporter", fault.facts.get("rank")): fault.fault for fault in found} == expected
    assert len(found) == 6


def test_only_the_first_line_may_have_the_rank() -> None:
    head, *rest = REMOTE_ERROR
    (fault,) = scan([f"[rank4]: {head}", *rest])
    assert (fault.fault, fault.facts["reporter"]) == ("peer_lost", 4)


def test_what_comes_after_a_message_that_was_cut_is_read() -> None:
    after = ["Traceback (most recent call last):", '  File "/app/t.py", line 3, in f', "KeyError: 'loss'"]
    for message in (FIRST_TO_EXIT, REMOTE_ERROR, NOTIFY):
        for length in range(1, len(message)):
            assert scan([*message[:length], *after])[-1].fault == "exception", message[:length]
    assert shown(scan([*NOTIFY, "RuntimeError: CUDA error: uncorrectable ECC error encountered"]))[-1] == ("gpu_ecc", 5)


def test_a_message_is_bounded() -> None:
    lines = [NOTIFY[0], *["        and so on, without an end " + "x" * 300] * 500]
    found = scan([*lines, "RuntimeError: CUDA error: uncorrectable ECC error encountered"])
    assert [fault.fault for fault in found] == ["collective_timeout", "gpu_ecc"]
    for grammar in GRAMMARS:
        assert grammar.most <= 60
    message = begun(REMOTE_ERROR[0])
    assert message is not None
    while message.take("ncclRemoteError: " + "y" * 3000):
        pass
    assert len(message.text) < 3 * MAX_CHARACTERS
    assert begun("x" * (MAX_CHARACTERS + 1)) is None


def test_a_step_ends_the_message_before_it() -> None:
    scanner = FaultScanner()
    for number, line in enumerate(NOTIFY[:2], 1):
        assert scanner.scan(line, number, process=0, source="log", wall_time=0.0, rank=None, host=None) == []
    assert [fault.fault for fault in scanner.progressed()] == ["collective_timeout"]
    assert not scanner.is_waiting


def test_what_grpc_says_behind_a_lost_coordinator_is_no_fault_of_its_own() -> None:
    lines = [
        "F0301 10:00:00.000000 9 client.h:80] Terminating process because the JAX distributed service detected fatal "
        "errors. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was "
        "preempted/died/restarted unexpectedly or this task is experiencing network issues.",
        "Additional GRPC error information from remote target coordination_service while calling "
        "/tensorflow.CoordinationService/PollForError:",
        ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}',
        "RPC: /tensorflow.CoordinationService/PollForError",
    ]
    assert shown(scan(lines)) == [("coordination_lost", 1)]
