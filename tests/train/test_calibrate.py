"""Measuring devices: by the trainer's own functions, on small shapes, and what the figures mean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.calibration import MeasuredStep
from seatrial.estimate.memory import OWN
from seatrial.estimate.time_model import predict
from seatrial.estimate.time_profile import Link, Profile, Rate
from seatrial.spec import Execution, from_dict, to_dict, uneven_splits
from seatrial.train import calibrate
from seatrial.train import mesh as train_mesh


def test_the_faster_half_counts() -> None:
    assert calibrate.undisturbed([3.0, 1.0, 9.0, 1.2, 50.0]) == pytest.approx((1.0 + 1.2 + 3.0) / 3)
    assert calibrate.undisturbed([2.0]) == 2.0


def test_a_call_takes_as_long_as_its_work() -> None:
    """Sixteen times the product takes several times as long, however busy the machine is."""
    x = jnp.ones((256, 256)), jnp.ones((1024, 1024))
    small, large = (calibrate.seconds_of(lambda x: x @ x, each) for each in x)
    assert 0 < small < large


# Of 64 hidden states of 32 and weights [32, 128].
OF_ONE_MAP = {("forward", 64, 32, 128), ("input_gradient", 64, 128, 32), ("weight_gradient", 32, 64, 128)}


def test_products_of_every_format_and_kind_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CPU_SHAPES", ())
    monkeypatch.setattr(calibrate, "CPU_HEADS", ())
    monkeypatch.setattr(calibrate, "CPU_SHAPES_TOGETHER", ((64, 32, 128),))
    found = list(calibrate.measure_products("cpu", on_cpu=True))
    assert {(each["number_format"], each["kind"]) for each in found} == {
        (name, kind) for name in ("bfloat16", "float32") for kind in ("forward", "input_gradient", "weight_gradient")
    }
    assert {(each["kind"], each["m"], each["k"], each["n"]) for each in found} == OF_ONE_MAP
    assert all(each["seconds"] > 0 for each in found)


def test_on_a_gpu_fp8_is_a_format_of_products_where_it_has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "GPU_SHAPES", ((64, 32, 128),))
    for has_units in (True, False):
        monkeypatch.setattr(train_mesh, "has_fp8_units", lambda device, found=has_units: found)
        found = list(calibrate.measure_products("cuda", on_cpu=False))
        assert {each["number_format"] for each in found} == {"bfloat16", *(["fp8"] if has_units else [])}
        assert {(each["kind"], each["m"], each["k"], each["n"]) for each in found} == OF_ONE_MAP
        assert all(each["seconds"] > 0 for each in found)


def test_steps_of_a_gpu_have_its_formats_and_sizes() -> None:
    """The model of time knows a rate for each, on a device without fp8 for those without."""
    for device, quantized in (("h200", True), ("a100-sxm-80gb", False)):
        profile = time_profile.published(hardware.find(device))
        for small in calibrate.GPU_STEPS:
            if quantized or not small.quantization:
                time = predict(small.spec(), OWN, profile)
                assert time is not None
                assert time.step_seconds > 0.01  # of many kernels' launches


def test_steps_on_a_processor_scan_their_layers_as_runs_do() -> None:
    """The bytes that a loop over layers copies are counted, and have their rate from these."""
    smalls = [*calibrate.CPU_STEPS, *(small for pairs in calibrate.STEPS_TOGETHER.values() for small, _ in pairs)]
    assert {small.spec().execution.scan_layers for small in smalls} == {Execution().scan_layers}


def test_attention_counts_what_its_blocks_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 128 queries: three quarters of all pairs."""
    monkeypatch.setattr(calibrate, "CPU_ATTENTION", ())
    monkeypatch.setattr(calibrate, "CPU_ATTENTION_TOGETHER", ((2, 256, 4, 2, 16),))
    forward = [each for each in calibrate.measure_attention("cpu", on_cpu=True) if each["kind"] == "forward"]
    assert [each["flops"] for each in forward] == [4 * 2 * 256 * 256 * 0.75 * 4 * 16] * 2


def test_the_loops_of_memory_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "UPDATED", {"cpu": 1 << 16, "gpu": 1})
    found = calibrate.measure_memory(on_cpu=True)
    assert all(1e6 < value < 1e13 for value in found.values())


def test_all_steps_divide_evenly_over_their_meshes() -> None:
    specs = [small.spec(mesh) for pairs in calibrate.STEPS_TOGETHER.values() for small, mesh in pairs]
    specs += [small.spec(across={axis: 2}) for small, axis in calibrate.STEPS_APART]
    specs += [small.spec(mesh, {"data": 2}) for small, mesh in calibrate.STEPS_OF_TWO_EACH]
    assert [split for spec in specs for split in uneven_splits(spec)] == []
    assert {spec.topology.num_devices for spec in specs} == {2, 4}


def test_a_step_of_a_mesh_is_timed_and_can_be_predicted() -> None:
    small = calibrate.Small(1, 64, 128, 256, 32, 1)
    for mesh in ({}, {"fsdp": 2}):
        spec = small.spec(mesh)
        seconds = calibrate.step_seconds(spec, runs=2)
        step = MeasuredStep(spec=from_dict(json.loads(json.dumps(to_dict(spec)))),
                            seconds=seconds)  # fmt: skip
        rate, link = Rate(flops_per_second=1e9), Link(bytes_per_second=1e9, latency_seconds=0)
        profile = Profile(
            device="cpu", origin="here", products={"bfloat16": rate}, attention={"bfloat16": rate}, fast=link,
            slow=link, memory_bytes_per_second=1e9, optimizer_bytes_per_second=1e9, domain=8,
        )  # fmt: skip
        assert step.spec == spec
        assert 0 < step.seconds < 60
        assert predict(step.spec, "native", profile) is not None


def test_collectives_of_all_devices_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * 1024 * jax.device_count()
    monkeypatch.setattr(calibrate, "CPU_COLLECTIVES", (size,))
    found = list(calibrate.measure_collectives(on_cpu=True))
    assert [each["kind"] for each in found] == ["all-reduce", "all-gather", "reduce-scatter"]
    assert all(each["devices"] == jax.device_count() and each["seconds"] > 0 for each in found)


def test_a_wrong_command_line_does_not_measure(tmp_path: Path) -> None:
    out = tmp_path / "measured.json"
    done = subprocess.run(
        [sys.executable, "-m", "seatrial.train.calibrate", "--cpu-devices", "x", "--out", str(out)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert not out.exists()
