"""The nodes in a report: a lane each, what stands out in every format, and nothing where nobody watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seatrial.report import html, markdown, text
from seatrial.report import json as as_json
from seatrial.report.gather import RunReport, gather
from seatrial.report.nodes import MAX_LANES, chart_data, lanes, notable
from seatrial.runs import telemetry
from tests.helpers import run_directory
from tests.helpers.html_pages import HOSTILE
from tests.helpers.telemetry import START, entries, put


def watched(folder: Path, *more: dict[str, Any], nodes: int = 2) -> RunReport:
    """The report of a sound run, on whose last node something stood out."""
    run_dir = run_directory.write(folder / "run")
    for number in range(nodes):
        calm = [entry for entry in entries() if entry["kind"] in ("begun", "source", "devices")]
        put(run_dir, [*entries(), *more] if number == nodes - 1 else calm, host=f"local{number}")
    return gather(run_dir)


def test_a_lane_per_node(tmp_path: Path) -> None:
    first, second = lanes(watched(tmp_path))
    assert (first.host, first.charts, first.changes, first.kernel) == ("local0", (), (), ())
    assert second.about == "2 × NVIDIA H100 · 64 processors, 105 GiB"
    assert [quantity for quantity, _, _ in second.charts] == [
        "celsius", "watts", "utilization", "memory_bytes", "node utilization", "node memory_bytes"
    ]  # fmt: skip
    assert second.charts[0] == ("celsius", "Temperature, °C", "mean 64, highest 75")
    assert second.changes == (
        ("mlx5_0 port 1", "link_downed", "+2", "after 11 s"), ("mlx5_0 port 1", "port_xmit_data", "+8,000", "")
    )  # fmt: skip
    assert second.kernel == (("after 11 s", "mlx5_core 0000:5e:00.0: Link down"),)
    row = dict(zip(second.columns, second.devices[1], strict=True))
    assert row["Hottest, °C"] == "75"
    assert row["Clock held down by"] == "power cap 50%"
    assert row["Memory errors"] == "1 uncorrected"
    assert second.absent == ""


def test_what_charts_draw(tmp_path: Path) -> None:
    _, drawn = chart_data(watched(tmp_path))
    assert drawn["watts"] == [[0, 5, 10, 15], [400] * 4, [500] * 4, [600] * 4]
    assert drawn["utilization"][3] == [90] * 4
    assert drawn["node memory_bytes"][2] == [100, 101, 102, 103]


def test_what_stands_out_is_told_in_every_format(tmp_path: Path) -> None:
    report = watched(tmp_path)
    found = notable(report)
    assert found
    assert found.rows == (
        ("local1", "Memory errors", "gpu1: 1 uncorrectable"),
        ("local1", "Network counters", "mlx5_0 port 1 link_downed +2"),
        ("local1", "Memory", "98% of the node's memory was in use"),
        ("local1", "Kernel", "mlx5_core 0000:5e:00.0: Link down"),
    )  # fmt: skip
    for rendered in (text.render(report, color=False), markdown.render(report), html.render(report)):
        assert "gpu1: 1 uncorrectable" in rendered
    told = json.loads(as_json.render(report))["nodes"][1]
    assert told["counters"][0] == {
        "place": "mlx5_0 port 1", "name": "link_downed", "change": 2, "since": START + 11, "is_error": True
    }  # fmt: skip
    assert told["devices"]["gpu1"]["celsius"] == {"lowest": 60, "mean": 67.5, "highest": 75}


def test_a_run_that_nobody_watched_says_nothing_of_nodes(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run"))
    assert (report.nodes, lanes(report), chart_data(report)) == ((), [], [])
    assert "<h2>Nodes</h2>" not in html.render(report)
    assert json.loads(as_json.render(report))["nodes"] == []


def test_what_a_node_does_not_offer_is_said_in_a_line(tmp_path: Path) -> None:
    run_dir = run_directory.write(tmp_path / "run")
    bare = [{"kind": "begun", "at": START, "v": 1, "interval_seconds": 5, "cores": 2, "memory_bytes": 8 << 30}]
    bare += [
        {"kind": "source", "at": START, "source": tool, "why": f"there is no {tool}"}
        for tool in ("nvidia-smi", "amd-smi")
    ]
    bare += [{"kind": "source", "at": START, "source": "kernel log", "why": "it cannot be read"}]
    put(run_dir, bare, host="local0")
    (lane,) = lanes(gather(run_dir))
    assert lane.absent == "devices: neither nvidia-smi nor amd-smi is there; kernel log: it cannot be read"


def test_of_many_nodes_those_that_stand_out_are_drawn(tmp_path: Path) -> None:
    report = watched(tmp_path, nodes=3 * MAX_LANES)
    shown = [lane.host for lane in lanes(report)]
    assert len(shown) == MAX_LANES
    assert f"local{3 * MAX_LANES - 1}" in shown
    assert f"{2 * MAX_LANES} more nodes are in" in html.render(report)


def test_what_a_node_says_is_inert(tmp_path: Path) -> None:
    counts = [
        {"kind": "counters", "at": START, "counters": {bad: {f"{bad}_error": n}}} for bad in HOSTILE for n in (1, 2)
    ]
    hostile = [
        entry
        for bad in HOSTILE
        for entry in (
            {"kind": "kernel", "at": START + 1, "level": 2, "stamp": 1, "text": bad},
            {"kind": "source", "at": START + 1, "source": bad, "why": bad},
            {"kind": "devices", "at": START + 1, "devices": {bad: {"model": bad, "memory_bytes": 1}}},
            {"kind": "sample", "at": START + 1, "devices": {bad: {"watts": 1, "throttled": [bad]}}},
        )
    ]
    report = watched(tmp_path, *hostile, *counts)
    page = html.render(report)
    assert "<script>window.owned" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page + text.render(report, color=False) + markdown.render(report)
    assert telemetry.TELEMETRY_FILE not in " ".join(report.missing)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run_dir = run_directory.write(tmp_path / "run")
    (run_dir / "nodes/local0" / telemetry.TELEMETRY_FILE).mkdir()
    assert any("observed.jsonl cannot be read" in line for line in gather(run_dir).missing)
