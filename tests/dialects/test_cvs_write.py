"""What is written as a CVS configuration reads back the same, and what cannot be said is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from seatrial import dialects
from seatrial.dialects.cvs import jax as cvs
from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.spec import AXES, RunSpec
from tests.helpers.seeds import COMPLETE, MEGATRON_CELLS, MEGATRON_COMPLETE, SEEDS
from tests.helpers.specs import assert_round_trip, specs

# What every CVS configuration has words for.
ALWAYS_SAID = {
    "steps", "batch.sequence_length", "batch.global_batch_size", "topology.num_nodes", "topology.devices_per_node",
    "precision.compute_dtype", "precision.params_dtype", "checkpoint.enabled", "nic_type",
    "distributed.coordinator_host", "distributed.coordinator_port", "execution.xla_flags", "container.image",
    *(f"parallelism.{part}.{axis}" for part in ("within_node", "across_nodes") for axis in AXES),
}  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_any_run_as_a_jax_configuration(spec: RunSpec) -> None:
    written = assert_round_trip(cvs.write, cvs.read, spec)
    sizes = spec.parallelism.within_node.sizes
    left_open = {f"parallelism.within_node.{axis}" for axis, size in sizes.items() if size == -1}  # CVS needs a number
    assert not {note.path for note in written.notes} & ALWAYS_SAID - left_open


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_what_was_read_from_a_jax_configuration_is_written_without_loss(path: Path) -> None:
    spec = dialects.load(path, COMPLETE[path], action="plan").spec
    assert spec is not None
    written = assert_round_trip(cvs.write, cvs.read, spec)
    assert written.notes == ()
    assert list(json.loads(written.text)) == ["config", "model_params"]


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_any_run_as_a_megatron_configuration(spec: RunSpec) -> None:
    written = assert_round_trip(cvs_megatron.write, cvs_megatron.read, spec)
    always = {path for path in ALWAYS_SAID if not path.startswith(("parallelism", "precision", "execution"))}
    rest = {"checkpoint.enabled", "distributed.coordinator_port"}
    said = always - rest | {"batch.micro_batch_size"}
    assert not {note.path for note in written.notes} & said


@pytest.mark.parametrize(("path", "model", "gpu"), MEGATRON_CELLS)
def test_what_was_read_from_a_megatron_cell_is_written_without_loss(path: Path, model: str, gpu: str) -> None:
    spec = dialects.load(path, MEGATRON_COMPLETE[path], action="plan", model=model, gpu=gpu).spec
    assert spec is not None
    assert assert_round_trip(cvs_megatron.write, cvs_megatron.read, spec).notes == ()
