"""The bench of a GPU, on a CPU: its tables, its rows without figures, its limits. Nothing of it is a measurement."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_train.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))  # where its neighbour `record` is
    try:
        spec = spec_from_file_location("gpu_train", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules["gpu_train"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


def given(**changes: Any) -> argparse.Namespace:
    usual = {
        "cpu": True,
        "maxtext": None,
        "budget": 600.0,
        "rounds": 1,
        "rows": "",
        "formats": "",
        "keep": None,
        "out": None,
    }
    return argparse.Namespace(**{**usual, **changes})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_cpu_it_comes_to_the_tables_that_a_gpu_will_fill(tmp_path: Path) -> None:
    out, wheels = tmp_path / "found.json", tmp_path / "wheels"
    wheels.mkdir()
    rows = "(seatrial .*|MaxText bf16), 8B, cut"
    argv = [sys.executable, str(SCRIPT), "--cpu", "--rounds", "1", "--budget", "800", "--rows", rows]
    done = subprocess.run([*argv, "--maxtext", str(wheels), "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [(each["format"], each["same"]) for each in found["compared"]] == [("bfloat16", True), ("fp8 current", True)]
    assert found["device"]["flops_per_second"]["bfloat16"] > 0
    bf16, fp8, maxtext = found["rows"]
    for row in (bf16, fp8):
        (start,) = row["starts"]
        assert len(start["seconds"]) == 5
        assert start["losses"][-1] < start["losses"][0]
        assert row["median_seconds"] == start["median_seconds"]
        assert row["tokens_per_second"] == pytest.approx(256 / row["median_seconds"])
        assert row["estimated_bytes"] > 0
        assert row["compiled_bytes"] > 0
        assert row["by_kind"]["matrix products"] > 0
    assert maxtext["error"] == f"no wheels in {wheels}"
    (ratio,) = found["ratios"]
    assert ratio["ratio"] == pytest.approx(bf16["median_seconds"] / fp8["median_seconds"])
    assert f"MaxText bf16, 8B, cut: no wheels in {wheels}" in done.stdout
    assert "fp8 current" in done.stdout
    assert found["command"].endswith(f"--maxtext DIR --budget 800 --rounds 1 --rows '{rows}'")


def test_what_the_budget_has_no_time_for_is_left_out(bench: ModuleType, tmp_path: Path) -> None:
    asked = given(budget=1.0)
    rows = bench.steps_of(asked, bench.Bench(asked, tmp_path), None)
    assert len(rows) == len(bench.ROWS)
    left_out = {row["trainer"]: row["left_out"] for row in rows}
    assert left_out[bench.BF16] == left_out[bench.TORCH] == "the budget of 1 s was spent"
    assert left_out[bench.MAXTEXT].endswith("(--maxtext)")
    assert all(
        "left_out" in row | bench.summary(bench.shapes_for(None)[row["shape"]], row["starts"], {}) for row in rows
    )


def test_a_start_has_a_limit_and_a_reason(bench: ModuleType, tmp_path: Path) -> None:
    starts = bench.Bench(given(), tmp_path)
    sleep = "import subprocess, sys; print('{}', flush=True); subprocess.run(['sleep', '600'])"
    out, why = starts.lines([sys.executable, "-c", sleep], 3.0)
    assert why == "stopped after 3 s"
    assert out in ("{}\n", "")
    _, why = starts.lines([sys.executable, "-c", "raise SystemExit('no room')"], 60.0)
    assert why == "no room (1)"


def test_the_cut_has_as_many_layers_as_fit(bench: ModuleType) -> None:
    layers = {device: bench.shapes_for(device)[bench.CUT].model.num_layers for device in ("h200", "h100-sxm", "b200")}
    assert layers == {"h200": 16, "h100-sxm": 8, "b200": 16}
    whole = bench.shapes_for("h200")[bench.WHOLE].spec(bench.BF16, "h200")
    assert bench.does_fit(whole)
    assert not bench.does_fit(bench.shapes_for("h100-sxm")[bench.WHOLE].spec(bench.BF16, "h100-sxm"))
    row = bench.expected(whole, "h200")
    assert row["predicted_seconds"] == pytest.approx(sum(row["predicted_by_kind"].values()))


def test_ratios_and_shares_are_of_tokens_per_second(bench: ModuleType) -> None:
    shape = bench.shapes_for(None)[bench.CUT]
    starts = [{"median_seconds": 2.0, "peak_bytes": 7}, {"error": "x"}, {"median_seconds": 4.0, "sequences": 1}]
    row = bench.summary(shape, starts, {"bfloat16": 1e9})
    assert (row["median_seconds"], row["sequences"], row["peak_bytes"]) == (3.0, 1, 7)
    assert row["tokens_per_second"] == pytest.approx(128 / 3)
    assert row["share_of_bf16_peak"] == pytest.approx(row["causal_flops_per_second"] / 1e9)
    rows = [
        {"shape": "s", "trainer": trainer, "tokens_per_second": speed}
        for trainer, speed in ((bench.BF16, 100.0), (bench.FP8, 150.0), (bench.TORCH, 80.0))
    ]
    assert {(each["faster"], each["slower"]): each["ratio"] for each in bench.ratios(rows)} == {
        (bench.FP8, bench.BF16): 1.5, (bench.BF16, bench.TORCH): 1.25,
    }  # fmt: skip
