"""A collapsed mesh: fewer devices, the same batch, micro batch and model, and every difference said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.shrink.collapse import collapse
from seatrial.spec import Batch, MeshShape, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS


def make_spec(within: dict[str, int], across: dict[str, int], accumulation: int = 1, **strategy: Any) -> RunSpec:
    fast, slow = MeshShape(**within), MeshShape(**across)
    replicas = fast.data * fast.fsdp * slow.data * slow.fsdp
    return RunSpec(
        name="a run", dialect="native", model=MODELS["llama3.1-70b"], steps=10,
        topology=Topology(num_nodes=slow.product, devices_per_node=fast.product, device="h100-sxm"),
        parallelism=Parallelism(within_node=fast, across_nodes=slow, **strategy),
        batch=Batch(sequence_length=8192, micro_batch_size=2, global_batch_size=2 * replicas * accumulation),
    )  # fmt: skip


def test_two_nodes_on_one() -> None:
    """Worked out by hand: 4 × 2 × 8 devices on 8 give up the replicas, then the stages."""
    spec = make_spec({"tensor": 8}, {"pipeline": 2, "data": 4}, virtual_pipeline=2)
    result = collapse(spec, num_devices=8)
    assert {change.path: (change.original, change.rehearsed) for change in result.changes} == {
        "topology.num_nodes": (8, 1),
        "parallelism.across_nodes.pipeline": (2, 1),
        "parallelism.across_nodes.data": (4, 1),
        "parallelism.virtual_pipeline": (2, 1),
        "accumulation_steps": (1, 4),
    }
    assert result.collapsed
    assert result.num_processes == 1


def test_what_fits_already_only_moves_together() -> None:
    spec = make_spec({"fsdp": 4}, {"data": 2})
    assert collapse(spec, num_devices=8).spec.mesh == spec.mesh
    assert collapse(spec, num_devices=8).spec.topology == Topology(devices_per_node=8, device="h100-sxm")


def test_padded_tables_keep_their_size() -> None:
    spec = make_spec({"tensor": 8}, {})
    spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, vocab_multiple=128))
    small = collapse(spec, num_devices=2).spec
    assert small.model.vocab_multiple * small.mesh["tensor"] == 128 * 8


def test_on_a_cpu_the_kind_of_device_is_left_open() -> None:
    small = collapse(make_spec({"fsdp": 8}, {}), num_devices=1, virtual=True).spec
    assert small.topology == Topology()
    assert small.accumulation_steps == 8


axes = st.fixed_dictionaries({axis: st.sampled_from([1, 2, 3, 4]) for axis in ("pipeline", "data", "context")})


@given(within=axes, tensor=st.sampled_from([1, 2, 4, 8, 16, 32]), nodes=st.integers(1, 6), devices=st.integers(1, 64))
def test_it_fits_and_every_axis_divides_the_one_asked_for(
    within: dict[str, int], tensor: int, nodes: int, devices: int
) -> None:
    spec = make_spec(within | {"tensor": tensor}, {"fsdp": nodes}, accumulation=3)
    small = collapse(spec, num_devices=devices).spec
    assert small.topology.num_devices <= devices
    assert all(spec.mesh[axis] % size == 0 for axis, size in small.mesh.items())
    assert small.batch == spec.batch
    assert small.accumulation_steps * small.data_parallel_size == spec.accumulation_steps * spec.data_parallel_size


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6])
def test_key_value_heads_still_suit_the_tensor_axis(devices: int) -> None:
    """12 devices for 8 heads cannot be; 24 share them by threes, and 12, 6 and 3 of those could not."""
    spec = make_spec({"tensor": 24}, {})
    tensor = collapse(spec, num_devices=devices).spec.mesh["tensor"]
    assert 8 % tensor == 0
