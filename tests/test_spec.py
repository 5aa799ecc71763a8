"""The spec: derived values, plain-data round trip, presets that are what they say."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from seatrial.estimate.flops import num_parameters
from seatrial.spec import (
    AXES,
    Batch,
    Container,
    Expectation,
    MeshShape,
    Origin,
    Parallelism,
    Resolved,
    RunSpec,
    Topology,
    flatten,
    from_dict,
    presets,
    to_dict,
)

SPEC = RunSpec(
    name="x",
    dialect="native",
    model=presets.MODELS["llama3.1-70b"],
    batch=Batch(sequence_length=8192, global_batch_size=64, micro_batch_size=2),
    steps=30,
    topology=Topology(num_nodes=2, devices_per_node=8, device="mi300x"),
    parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(fsdp=-1)),
    container=Container(image="i", volumes=(("/a", "/b"),), environment={"K": "v"}),
    expectations=(Expectation(metric="mfu", value=0.5),),
)


def test_derived_values():
    assert SPEC.mesh == {"pipeline": 1, "data": 1, "fsdp": 16, "context": 1, "tensor": 1}
    assert SPEC.data_parallel_size == 16
    assert SPEC.accumulation_steps == 2
    assert SPEC.tokens_per_step == 64 * 8192


def test_plain_data_and_back_is_the_identity():
    assert from_dict(json.loads(json.dumps(to_dict(SPEC)))) == SPEC


def test_plain_data_of_the_wrong_type_is_refused():
    with pytest.raises(ValidationError):
        from_dict(to_dict(SPEC) | {"steps": "many"})


@given(st.lists(st.integers(1, 6), min_size=5, max_size=5), st.integers(0, 4), st.integers(1, 8))
def test_minus_one_takes_what_is_left(sizes, hole, rest):
    fixed = dict(zip(AXES, sizes, strict=True)) | {AXES[hole]: -1}
    shape = MeshShape(**fixed)
    resolved = shape.resolve(shape.product * rest)
    assert resolved.is_resolved
    assert resolved.product == shape.product * rest
    assert resolved.sizes == fixed | {AXES[hole]: rest}


def test_a_mesh_that_does_not_divide_stays_unresolved():
    assert not MeshShape(fsdp=-1, tensor=3).resolve(8).is_resolved


def test_flatten_names_every_leaf():
    leaves = flatten(SPEC)
    assert leaves["model.rope_scaling.factor"] == 8.0
    assert leaves["parallelism.across_nodes.fsdp"] == -1
    assert leaves["expectations"] == SPEC.expectations
    assert "model" not in leaves


def test_an_origin_is_the_nearest_parents():
    resolved = Resolved(spec=SPEC, origins={"model": Origin(kind="file", key="model")}, problems=())
    assert resolved.origin("model.hidden_dim").key == "model"
    assert resolved.origin("steps").kind == "default"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2-7b", 6.738), ("llama2-13b", 13.016), ("llama2-70b", 68.977), ("llama3-8b", 8.030),
        ("llama3.1-8b", 8.030), ("llama3.1-70b", 70.554), ("llama3.1-405b", 405.853), ("llama3.2-1b", 1.236),
        ("llama3.2-3b", 3.213), ("llama3.3-70b", 70.554), ("llama3-70b", 70.554),
    ],
)  # fmt: skip
def test_presets_have_their_published_size(name, billions):
    assert num_parameters(presets.MODELS[name]) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_a_wrong_name_does_not_hide_an_architecture():
    wrong = replace(presets.MODELS["llama3.1-405b"], name="llama3.1-70b")
    assert presets.same_architecture(wrong) == "llama3.1-405b"
    assert presets.same_architecture(replace(wrong, num_layers=7)) is None


def test_specs_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.steps = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        MeshShape(1)  # type: ignore[misc]
