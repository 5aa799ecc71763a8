"""The telemetry of the nodes: read from files that may be damaged, and compared with what the processes did."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import events
from seatrial.commands.judge import judge_run
from seatrial.logs.kernel import kernel_faults
from seatrial.node.agent import PEER_LOST
from seatrial.runs import telemetry
from seatrial.runs.telemetry import KernelLine, Observed
from tests.helpers import run_directory
from tests.helpers.telemetry import START, entries, put


def test_a_node_as_it_was_seen(tmp_path: Path) -> None:
    put(tmp_path, entries())
    (seen,) = telemetry.read(tmp_path)
    (kernel,) = telemetry.read(tmp_path, only="kernel")
    assert (kernel.kernel, kernel.devices) == (seen.kernel, {})
    assert (seen.host, seen.cores, seen.interval_seconds, seen.unreadable) == ("local1", 64, 5, 0)
    assert seen.lacks == {"amd-smi": "there is no amd-smi"}
    assert seen.left_out == {"kernel": 7}
    gpu0, gpu1 = seen.devices["gpu0"], seen.devices["gpu1"]
    assert gpu0.model == "NVIDIA H100"
    heat = gpu1.figures["celsius"]
    assert (heat.lowest, heat.mean, heat.highest, heat.first, heat.last) == (60, 67.5, 75, 60, 75)
    assert (gpu1.throttled, gpu1.samples) == ({"power cap": 2}, 4)
    assert seen.series["watts"].points == [(START + 5 * n, 400, 500, 600) for n in range(4)]
    assert seen.series["node utilization"].points[3] == pytest.approx((START + 15, 0.3, 0.3, 0.3))
    assert [(c.place, c.name, c.change, c.since, c.is_error) for c in seen.changes] == [
        ("mlx5_0 port 1", "link_downed", 2, START + 11, True),
        ("mlx5_0 port 1", "port_xmit_data", 8000, START + 20, False),
    ]


def test_a_long_series_keeps_its_extremes() -> None:
    series, values = telemetry.Series(), [float(n % 977) for n in range(20_000)]
    values[12_345] = 5000.0
    for at, value in enumerate(values):
        series.take(float(at), [value])
    assert telemetry.MAX_POINTS <= len(series.points) < 2 * telemetry.MAX_POINTS
    assert (min(p[1] for p in series.points), max(p[3] for p in series.points)) == (0, 5000)
    assert [p[0] for p in series.points] == sorted(p[0] for p in series.points)


def test_a_node_that_nobody_watched_is_none(tmp_path: Path) -> None:
    assert list(telemetry.read(tmp_path)) == []


def test_a_counter_that_begins_anew_does_not_fall(tmp_path: Path) -> None:
    counts = [{"kind": "counters", "at": START, "counters": {"eth0": {"rx_errors": n}}} for n in (9, 2, 4)]
    put(tmp_path, counts)
    assert [change.change for seen in telemetry.read(tmp_path) for change in seen.changes] == [2]


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_damaged_line_costs_itself_only(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(entries()))
    field = data.draw(st.sampled_from(sorted(entry)))
    damaged = {**entry, field: data.draw(anything)}
    seen = Observed(host="local1")
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
        seen.take(json.loads(json.dumps(damaged)))
    for whole in entries():
        seen.take(whole)
    assert seen.changes
    assert seen.devices["gpu1"].figures["celsius"].highest >= 75


@given(st.binary(max_size=400))
def test_a_file_of_anything_is_read(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), entries())
        path = Path(folder) / "nodes/local1" / telemetry.TELEMETRY_FILE
        path.write_bytes(path.read_bytes() + content)
        (seen,) = telemetry.read(Path(folder))
        assert seen.devices["gpu0"].figures["watts"].count == 4


# --- what kernels say -------------------------------------------------------------------------------------------------

OOM = "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9000000kB, anon-rss:8000000kB, UID:0"


def said(*lines: tuple[float, str]) -> Observed:
    return Observed(
        host="node2", kernel=[KernelLine(at=START + at, level=3, stamp=800 + at, text=text) for at, text in lines]
    )


def process(rank: int = 1, *, pid: int = 100, at: float | None = None, **changes: Any) -> dict[str, Any]:
    ended = None if at is None else START + at
    return {"rank": rank, "pid": pid, "ended": ended, "stopped": False, "exit_code": None, "signal": 9, **changes}


def told(seen: Observed, *processes: dict[str, Any]) -> list[tuple[str, str]]:
    return [(fault.fault, fault.where) for fault in kernel_faults(seen, processes)]


KILLED = [
    *((-90.0, f"python3[{n}]: segfault at 0 ip 0 sp 0 error 4") for n in range(9)),
    (10.0, "python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0"),
    (10.0, "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/job,task=python3,pid=4242,uid=0"),
    (10.05, "Call Trace:"),
    (10.1, OOM),
    (10.2, "oom_reaper: reaped process 4242 (python3), now anon-rss:0kB"),
]


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ([process(0, pid=7), process(1, pid=4242, at=40)], [("host_oom", "rank 1 on node2")]),
        ([process(0, pid=7), process(1, pid=9, at=10.4)], [("host_oom", "rank 1 on node2")]),  # in a container
        ([process(1, pid=9, at=13, signal=None, exit_code=1)], [("host_oom", "rank 1 on node2")]),  # a worker of it
        ([process(0, pid=7), process(1, pid=9)], []),  # somebody else's
        ([process(1, pid=9, at=200)], []),
        ([process(1, pid=9, at=10.4, stopped=True)], []),
        ([process(1, pid=9, at=10.4, signal=None, exit_code=PEER_LOST)], []),
        ([], []),
    ],
)
def test_the_kernel_names_what_it_killed(processes: list[dict[str, Any]], found: list[tuple[str, str]]) -> None:
    assert told(said(*KILLED), *processes) == found


def test_what_befalls_the_node_is_of_the_node() -> None:
    seen = said(
        (1, "NVRM: Xid (PCI:0000:3b:00): 79, pid=999, GPU has fallen off the bus."),
        (2, "mlx5_core 0000:5e:00.0 ib0: Link down"),
        (3, "seatrial0: port 1(seatrial0n1) entered disabled state"),
    )
    assert told(seen, process(3)) == [("gpu_lost", "node2"), ("link_down", "node2")]
    (first, _) = kernel_faults(seen, [process(3)])
    assert (first.process, first.line, first.text) == (3, None, seen.kernel[0].text)
    assert first.facts == {
        "source": "kernel log of node2", "host": "node2", "device": "0000:3b:00", "code": 79, "kernel": True
    }  # fmt: skip


def test_an_error_that_was_corrected_is_no_broken_machine() -> None:
    seen = said(
        (1.0, "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0"),
        (1.0, "{1}[Hardware Error]: It has been corrected by h/w and requires no further action"),
        (9.0, "{2}[Hardware Error]: event severity: fatal"),
    )
    assert [kind for kind, _ in told(seen)] == ["hardware_corrected", "hardware_corrected", "hardware_error"]


def test_a_kernel_s_trace_is_a_warning_where_nothing_explains_it() -> None:
    assert told(said((1, "Call Trace:"), (1, "RIP: 0033:0x7f6f6a6b6109"))) == [("kernel_warning", "node2")] * 2


Story = Callable[[Any], Iterable[Iterable[events.Event]]]


def judged(folder: Path, story: Story, *lines: tuple[float, str], processes: list[dict[str, Any]]) -> dict[str, Any]:
    """The diagnosis of a run of two nodes, on the second of which the kernel said something."""
    run_dir = run_directory.write(folder / "run", story)
    kernel = [{"kind": "kernel", "at": START + at, "level": 3, "stamp": at, "text": text} for at, text in lines]
    put(run_dir, [*entries(), *kernel])
    (run_dir / "nodes/local1/status.json").write_text(json.dumps({"processes": processes}))
    for _ in range(2):  # judged again, it is the same
        judge_run(run_dir)
    completion = json.loads((run_dir / "metrics.json").read_text())["completion"]
    verdict = json.loads((run_dir / "verdict.json").read_text())
    faults = [(fault["fault"], fault["where"]) for fault in completion["faults"]]
    return {"diagnosis": completion["diagnosis"], "faults": faults, **verdict}


@pytest.mark.parametrize("at", [21.2, 25.0])  # the node's clock may be ahead
def test_the_kernel_s_word_explains_a_kill(tmp_path: Path, at: float) -> None:
    found = judged(tmp_path, run_directory.killed, (at, OOM), processes=[process(1, pid=7, at=at + 0.1)])
    assert found["outcome"] == "died"
    assert found["diagnosis"]["kind"] == "host_oom"
    assert found["diagnosis"]["cause"]["where"] == "rank 1 on local1"
    assert "Killed process 4242" in found["headline"]
    assert "rank 1 on local1" in found["headline"]
    assert ("process_died", "rank 1 on local1") in found["faults"]


def test_a_lost_gpu_is_blamed_and_its_node_left_out(tmp_path: Path) -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=999, GPU has fallen off the bus."
    found = judged(tmp_path, run_directory.killed, (20.9, xid), processes=[process(1, at=21.3)])
    assert found["diagnosis"]["kind"] == "gpu_lost"
    assert found["diagnosis"]["retry"] == "elsewhere"
    assert found["diagnosis"]["exclude"] == ["local1"]


def test_what_the_kernel_says_of_a_run_that_went_well_does_not_fail_it(tmp_path: Path) -> None:
    late = (100.5, "mlx5_core 0000:5e:00.0 ib1: Link down")
    found = judged(tmp_path, run_directory.sound, late, processes=[process(1, signal=None, exit_code=0, at=100.2)])
    assert found["diagnosis"] is None
    assert found["faults"] == [("link_down", "local1"), ("link_down", "local1")]
    assert found["outcome"] == "pass"
