"""Faults: every class in several spellings, lines that only look like faults, blocks, repetition, hostile lines."""

from __future__ import annotations

import json
import os
import random
import re
import string
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.events import Fault, dumps, loads
from seatrial.logs.fault_table import Cuts, Retry, Role, Severity, patterns
from seatrial.logs.faults import KINDS, FaultScanner, classify
from seatrial.logs.lines import read_prefix

CASES = Path(__file__).parent / "faults"
REPEATING = {
    "heartbeat_loop",
    "exception_cut_off",
    "exception_of_a_client",
    "exception_of_a_server",
    "exception_in_summary",
    "exception_of_a_spawned_process",
    "exception_of_pinning",
    "exception_without_head",
    "beside_the_training",
    "llmc_errors",
    "benign_trackers",
    "benign_numpy",
    "glued_ranks",
    "launched_again",
    "went_on",
}  # of which the order of the lines counts


def scan(
    lines: list[str], *, apart: bool = False, finish: bool = True, scanner: FaultScanner | None = None
) -> list[Fault]:
    """The faults of a log; with `apart`, each line is told as if a step had come before it."""
    scanner = scanner or FaultScanner()
    found: list[Fault] = []
    for number, line in enumerate(lines, 1):
        prefix = read_prefix(line)
        if apart:
            found += scanner.progressed()
        found += scanner.scan(
            line, number, process=0, source="log.txt", wall_time=float(number), rank=prefix.rank, host=prefix.host
        )
    return found + (scanner.finish() if finish else [])


def shown(fault: Fault) -> dict[str, Any]:
    facts = {name: value for name, value in fault.facts.items() if name != "source"}
    return {"line": fault.line, "fault": fault.fault, "where": fault.where, **({"facts": facts} if facts else {})}


def lines_of(case: str) -> list[str]:
    return (CASES / case / "log.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_golden_case(case: str) -> None:
    found = [shown(fault) for fault in scan(lines_of(case), apart=case not in REPEATING)]
    path = CASES / case / "expected.json"
    text = "[\n" + ",\n".join(" " + json.dumps(entry, ensure_ascii=False) for entry in found) + "\n]\n"
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# What our launcher and trainer say of themselves; it stands in no log.
OWN = {
    "process_died", "start_failed", "monitor_lost", "no_progress", "step_failed", "peer_stopped", "worker_stopped",
    "evicted",
}  # fmt: skip


def test_every_kind_has_a_case_in_which_every_line_counts() -> None:
    blocks = {
        "exception", "worker_failed", "process_missing", "interrupted", "collective_desync", "launched_again",
        "went_on",
    }  # fmt: skip
    assert {path.name for path in CASES.iterdir()} >= set(KINDS) - OWN
    for kind in set(KINDS) - OWN:
        found = {fault.line for fault in scan(lines_of(kind), apart=True) if fault.fault == kind}
        missed = [line for number, line in enumerate(lines_of(kind), 1) if number not in found and line.strip()]
        assert found
        assert kind in blocks or missed == []


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.glob("benign_*")))
def test_scary_words_are_no_faults(case: str) -> None:
    assert [fault for fault in scan(lines_of(case)) if KINDS[fault.fault].severity == "fatal"] == []


def test_the_tables_fit_together() -> None:
    assert {pattern.kind for pattern in patterns()} <= set(KINDS)
    for pattern in patterns():
        for word in pattern.words:
            assert re.search("[a-z]{3}", word), word
            assert not re.search(r"[A-Z\d]", word), word
    for kind in KINDS.values():
        assert kind.severity in get_args(Severity)
        assert kind.role in get_args(Role)
        assert kind.cuts in get_args(Cuts)
        assert kind.retry in get_args(Retry)
        assert kind.title
        assert kind.hint == "" or kind.hint[-1] in ".)"


def test_a_word_of_the_table_stands_in_every_line_that_a_row_matches() -> None:
    for case in CASES.iterdir():
        for line in lines_of(case.name):
            for pattern in patterns():
                if pattern.regex.search(line):
                    assert any(word in re.sub(r"\d", "", line.lower()) for word in pattern.words), (pattern.kind, line)


def test_innocent_text_in_between_changes_nothing() -> None:
    """No fault is hidden by what a scanner has learnt of other lines."""
    rng = random.Random(3)
    cases = [line for path in sorted(CASES.iterdir()) for line in lines_of(path.name) if "Traceback" not in line]
    alone = [[fault.fault for fault in scan([line], finish=False)] for line in cases]
    scanner = FaultScanner()
    for _ in range(3):
        order = list(range(len(cases)))
        rng.shuffle(order)
        for index in order:
            scanner.progressed()
            noise = "".join(rng.choices(string.ascii_letters + "   ", k=60))
            assert [
                f.fault for f in scan([noise], finish=False, scanner=scanner) if KINDS[f.fault].role == "cause"
            ] == []
            found = [fault.fault for fault in scan([cases[index]], finish=False, scanner=scanner)]
            scanner.finish()
            assert found == alone[index], cases[index]


def test_repetition_is_folded_and_the_last_one_kept() -> None:
    line = "[rank3]: gpu-01:1:2 NCCL WARN Call to recv from 10.0.0.1 failed : Connection reset by peer"
    found = scan([line] * 1000)
    assert [fault.facts.get("count", 1) for fault in found] == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
    assert [fault.line for fault in found][-2:] == [512, 1000]
    scanner = FaultScanner()
    for _ in range(5):
        scanner.progressed()
        assert [fault.facts.get("count", 1) for fault in scan([line], finish=False, scanner=scanner)] == [1]
    assert len(scan([line.replace("rank3", f"rank{n}") for n in range(3000)])) == 3000


def test_memory_is_bounded() -> None:
    scanner = FaultScanner()
    rng = random.Random(1)
    for number in range(25_000):
        word = "".join(rng.choices("ghijklmno", k=9))
        line = (
            f"[rank{number}]: Traceback (most recent call last): {word}" if number % 2 else f"error in {word} {word}x"
        )
        scan([line], finish=False, scanner=scanner)
    assert len(scanner._skeletons) <= 20_001
    assert len(scanner._known) <= 60_000
    assert len(scanner._blocks) <= 1024
    assert len(scanner._groups) <= 4097


def test_long_and_odd_lines() -> None:
    hidden = "x" * 50_000 + " CUDA out of memory. " + "y" * 10_000
    (fault,) = scan([hidden])
    assert fault.fault == "device_oom"
    assert len(fault.text) <= 500
    for line in ("\udcff\udcfe error:", "é" * 3000 + " RuntimeError: x", "uncorrectable " * 400, "\x00", ""):
        for fault in scan([line]):
            assert loads(dumps(fault)) == fault
    began = time.process_time()
    scan([("NCCL WARN Call to failed Call to " * 2000), "UMC uncorrectabl" * 4000, "[Rank 1] " * 7000 + "ran for"])
    assert time.process_time() - began < 10  # a pattern that backtracks takes hours


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    for fault in scan(text.split("\n")):
        assert fault.fault in KINDS
        assert loads(dumps(fault)) == fault


def test_classify_names_the_cause_in_a_message() -> None:
    assert classify("step 3: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes") == "device_oom"
    assert classify("ValueError: x is odd") == "suspicious_line"
    assert classify("ValueError: x is odd", fatal=True) is None
    assert classify("all is well") is None


def test_the_reference_lists_every_kind() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text(encoding="utf-8")
    for kind in KINDS.values():
        assert f"| `{kind.name}` | {kind.title} | {kind.severity} | {kind.role} |" in text
        assert f"| {kind.retry} | {kind.hint} |" in text
