"""A rehearsal keeps what makes a run work or fail, shrinks the rest, never grows anything, and tells every change."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.errors import InputError
from seatrial.shrink.rehearsal import MAX_DEVICES, MAX_PROCESSES, RULES, rehearse
from seatrial.spec import (
    AXES,
    Batch,
    Checkpoint,
    Data,
    Evaluation,
    Execution,
    MeshShape,
    Objective,
    Optimizer,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
    flatten,
)
from seatrial.spec.presets import MODELS
from seatrial.train.params import declare, placements
from seatrial.train.sharding import make_rules

GIB = 1 << 30


def make_spec(within: dict[str, int], across: dict[str, int], model: str = "llama3.1-70b", **parts: Any) -> RunSpec:
    """A spec whose batch fits its mesh: micro batch 4, accumulation 4."""
    fast, slow = MeshShape(**within), MeshShape(**across)
    replicas = fast.data * fast.fsdp * slow.data * slow.fsdp
    given = {
        "name": "a run",
        "dialect": "native",
        "model": MODELS[model],
        "steps": 1000,
        "topology": Topology(num_nodes=slow.product, devices_per_node=fast.product, device="h100-sxm"),
        "parallelism": Parallelism(within_node=fast, across_nodes=slow),
        "batch": Batch(sequence_length=8192, micro_batch_size=4, global_batch_size=4 * 4 * replicas),
    }
    return RunSpec(**(given | parts))


def rehearsed(spec: RunSpec) -> RunSpec:
    return rehearse(spec, cores=2, memory_bytes=8 * GIB).spec


def test_the_405b_model_on_256_nodes() -> None:
    """The whole table for one real case, worked out by hand from the stated rules."""
    spec = make_spec({"fsdp": 8}, {"fsdp": 256}, model="llama3.1-405b", optimizer=Optimizer(warmup_steps=100))
    result = rehearse(spec, cores=2, memory_bytes=8 * GIB)
    assert {change.path: (change.original, change.rehearsed) for change in result.changes} == {
        "model.vocab_size": (128_256, 512),
        "model.hidden_dim": (16_384, 128),
        "model.num_layers": (126, 2),
        "model.num_heads": (128, 8),
        "model.num_kv_heads": (8, 2),
        "model.head_dim": (128, 16),
        "model.ffn_dim": (53_248, 416),
        "model.rope_scaling.original_max_positions": (8192, 128),
        "batch.sequence_length": (8192, 128),
        "batch.global_batch_size": (4 * 4 * 2048, 2 * 2 * 8),
        "batch.micro_batch_size": (4, 2),
        "steps": (1000, 50),
        "topology.num_nodes": (256, 2),
        "topology.devices_per_node": (8, 4),
        "topology.device": ("h100-sxm", None),
        "parallelism.across_nodes.fsdp": (256, 2),
        "parallelism.within_node.fsdp": (8, 4),
        "optimizer.warmup_steps": (100, 5),
    }
    assert result.num_processes == 2


def test_what_makes_a_run_what_it_is_stays() -> None:
    kept: dict[str, Any] = {
        "precision": Precision(compute_dtype="bfloat16", params_dtype="bfloat16", quantization="fp8"),
        "execution": Execution(remat="dots", scan_layers=False, attention="blocks", environment={"A": "b"}),
        "data": Data(kind="text", paths=("stdlib:*.py",)),
        "checkpoint": Checkpoint(enabled=True),
        "seed": 7,
        "name": "kept",
    }
    spec = make_spec({"fsdp": 4, "tensor": 2}, {"data": 2}, **kept)
    spec = dataclasses.replace(
        spec, parallelism=dataclasses.replace(spec.parallelism, zero1=True, sequence_parallel=True)
    )
    small = rehearsed(spec)
    assert {name: getattr(small, name) for name in kept} == kept
    assert small.parallelism.zero1
    assert small.parallelism.sequence_parallel
    assert small.accumulation_steps == 2
    assert small.model.vocab_size >= 256


def test_the_schedule_keeps_its_shape() -> None:
    small = rehearsed(make_spec({}, {}, optimizer=Optimizer(warmup_steps=200, decay_steps=800)))
    assert (small.steps, small.optimizer.warmup_steps, small.optimizer.decay_steps) == (50, 10, 40)
    short = rehearsed(make_spec({}, {}, steps=30, optimizer=Optimizer(warmup_steps=7, decay_steps=None)))
    assert (short.steps, short.optimizer.warmup_steps, short.optimizer.decay_steps) == (30, 7, None)


def test_virtual_stages_get_layers_each() -> None:
    spec = make_spec({"pipeline": 4}, {"pipeline": 2})
    spec = dataclasses.replace(spec, parallelism=dataclasses.replace(spec.parallelism, virtual_pipeline=5))
    small = rehearsed(spec)
    assert small.model.num_layers == small.mesh["pipeline"] * 5


def test_devices_that_share_a_key_value_head_go_on_sharing_one() -> None:
    small = rehearsed(make_spec({"tensor": 8}, {"tensor": 2}))
    assert (small.mesh["tensor"], small.model.num_kv_heads, small.model.num_heads) == (8, 2, 8)


def test_an_open_axis_stays_open() -> None:
    spec = make_spec({"fsdp": 8}, {"fsdp": 64})
    spec = dataclasses.replace(
        spec,
        parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(fsdp=-1)),
    )
    small = rehearsed(spec)
    assert small.parallelism.across_nodes.fsdp == -1
    assert small.mesh["fsdp"] == 8


def test_a_small_run_is_not_touched_but_for_its_device() -> None:
    tiny = dataclasses.replace(
        MODELS["llama2-7b"], vocab_size=300, hidden_dim=64, num_layers=1, num_heads=4, num_kv_heads=4, head_dim=16,
        ffn_dim=96,
    )  # fmt: skip
    spec = make_spec({"fsdp": 2}, {}, steps=5, batch=Batch(sequence_length=32, micro_batch_size=1, global_batch_size=2))
    result = rehearse(dataclasses.replace(spec, model=tiny), cores=2, memory_bytes=8 * GIB)
    assert [change.path for change in result.changes] == ["topology.device"]


@pytest.mark.parametrize(
    ("cores", "memory_bytes", "devices"), [(1, 8 * GIB, 4), (2, GIB, 4), (2, 8 * GIB, 8), (64, 512 * GIB, 8)]
)
def test_the_machine_limits_the_devices(cores: int, memory_bytes: int, devices: int) -> None:
    small = rehearse(make_spec({"fsdp": 8}, {"fsdp": 8}), cores=cores, memory_bytes=memory_bytes).spec
    assert small.topology.num_devices == devices
    assert small.topology.num_nodes == 2  # an axis across nodes stays across processes


SIZES = st.sampled_from([1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
MESHES = st.fixed_dictionaries({"data": SIZES, "fsdp": SIZES, "tensor": st.sampled_from([1, 1, 2, 4, 8])})


@settings(max_examples=300)
@given(
    within=MESHES,
    across=st.fixed_dictionaries({"data": SIZES, "fsdp": SIZES}),
    model=st.sampled_from(sorted(MODELS)),
    zero1=st.booleans(),
    sequence_length=st.sampled_from([64, 512, 2048, 4096, 131_072]),
    steps=st.integers(1, 100_000),
)
def test_any_run(
    within: dict[str, int], across: dict[str, int], model: str, zero1: bool, sequence_length: int, steps: int
) -> None:
    spec = make_spec(within, across, model, steps=steps)
    spec = dataclasses.replace(
        spec,
        parallelism=dataclasses.replace(spec.parallelism, zero1=zero1),
        batch=dataclasses.replace(spec.batch, sequence_length=sequence_length),
    )
    result = rehearse(spec, cores=2, memory_bytes=8 * GIB)
    small = result.spec

    before, after = flatten(spec), flatten(small)
    assert {change.path for change in result.changes} == {path for path in before if before[path] != after[path]}
    assert all(change.why in RULES.values() for change in result.changes)
    assert all(
        change.rehearsed <= change.original for change in result.changes if isinstance(change.original, int | float)
    )

    for shape, original in (
        (small.parallelism.within_node, spec.parallelism.within_node),
        (small.parallelism.across_nodes, spec.parallelism.across_nodes),
    ):
        assert [size > 1 for size in shape.sizes.values()] == [size > 1 for size in original.sizes.values()]
    split = [sum(size > 1 for size in part.values()) for part in (within, across)]
    assert small.topology.num_nodes <= max(MAX_PROCESSES, 2 ** split[1])
    assert small.topology.num_devices <= max(MAX_DEVICES, 2 ** sum(split))

    assert small.batch.global_batch_size == small.batch.micro_batch_size * small.data_parallel_size * 2
    assert small.accumulation_steps == 2
    assert math.prod(small.mesh[axis] for axis in AXES) == small.topology.num_devices
    assert small.model.num_heads % small.model.num_kv_heads == 0
    assert (small.model.num_heads > small.model.num_kv_heads) == (spec.model.num_heads > spec.model.num_kv_heads)
    assert small.model.head_dim % 2 == 0
    assert small.batch.sequence_length % (small.mesh["tensor"] * small.mesh["context"]) == 0
    placements(declare(small), make_rules(small))  # raises where the trainer could not split a parameter


@pytest.mark.parametrize("sequence_length", [1024, 8192, 131_072])
def test_position_scaling_still_acts(sequence_length: int) -> None:
    """Of the rotary frequencies, the share that is stretched stays between none and all (Llama 3.1's rule)."""
    spec = make_spec({}, {}, batch=Batch(sequence_length=sequence_length, micro_batch_size=1, global_batch_size=1))
    model = rehearsed(spec).model
    scaling = model.rope_scaling
    assert scaling is not None
    wavelengths = [2 * math.pi * model.rope_theta ** (i / model.head_dim) for i in range(0, model.head_dim, 2)]
    stretched = [w > scaling.original_max_positions / scaling.high_freq_factor for w in wavelengths]
    assert any(stretched)
    assert not all(stretched)


def test_a_rehearsal_keeps_out_of_other_runs_checkpoints() -> None:
    asked = Checkpoint(enabled=True, resume=True, directory="/checkpoints/ours", resume_from="/models/llama")
    result = rehearse(make_spec({"fsdp": 2}, {}, checkpoint=asked), cores=2, memory_bytes=8 << 30)
    assert result.spec.checkpoint == Checkpoint(enabled=True, resume=True)
    changed = {change.path for change in result.changes if change.path.startswith("checkpoint.")}
    assert changed == {"checkpoint.directory", "checkpoint.resume_from"}


def test_data_that_are_not_here_are_replaced_and_this_is_said():
    data = Data(kind="records", paths=("/nowhere/train.jsonl",), tokenizer="/nowhere/tokenizer.json", packing=True)
    spec = dataclasses.replace(make_spec({"fsdp": 2}, {}), data=data)
    here, elsewhere = (rehearse(spec, cores=2, memory_bytes=8 * GIB, has_data=has_data) for has_data in (True, False))
    assert here.spec.data == data
    assert here.spec.model.vocab_size == spec.model.vocab_size  # whatever the tokenizer gives has a row
    assert elsewhere.spec.data == Data(kind="synthetic", reset_positions=True, reset_attention=True)
    assert {c.why for c in elsewhere.changes if c.path.startswith("data.")} == {RULES["data"]}


def test_evaluations_and_checkpoints_come_in_proportion():
    spec = dataclasses.replace(
        make_spec({"fsdp": 2}, {}), steps=5000, evaluation=Evaluation(interval_steps=500, batches=40),
        checkpoint=Checkpoint(enabled=True, interval_steps=1000),
    )  # fmt: skip
    small = rehearse(spec, cores=2, memory_bytes=8 * GIB).spec
    assert (small.steps, small.evaluation.interval_steps, small.evaluation.batches) == (50, 5, 2)
    assert small.checkpoint.interval_steps == 10


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Evaluation(), Evaluation()),
        (Evaluation(interval_fraction=0.5), Evaluation(interval_steps=50, batches=2)),
        (
            Evaluation(interval_steps=500, fraction=0.1, initial_batches=-1),
            Evaluation(interval_steps=5, batches=2, fraction=0.1, initial_batches=2),
        ),
    ],
)
def test_random_tokens_have_neither_epochs_nor_an_end(asked: Evaluation, expected: Evaluation):
    data = Data(kind="huggingface", dataset="nobody/nothing")
    spec = dataclasses.replace(make_spec({"fsdp": 2}, {}), steps=5000, epochs=3, data=data, evaluation=asked)
    here, elsewhere = (rehearse(spec, cores=2, memory_bytes=8 * GIB, has_data=has_data) for has_data in (True, False))
    assert (here.spec.epochs, elsewhere.spec.epochs) == (3, None)
    assert elsewhere.spec.evaluation == expected


def test_a_window_stays_shorter_than_the_sequence():
    spec = make_spec({}, {}, batch=Batch(sequence_length=8192, micro_batch_size=1, global_batch_size=1))
    spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, sliding_window=2048))
    small = rehearsed(spec)
    assert small.model.sliding_window == small.batch.sequence_length // 4


def test_with_text_only_data_and_learning_rate_are_others() -> None:
    """And what is shown as changed is measured against the configuration as it was."""
    spec = make_spec({"fsdp": 8}, {"fsdp": 4}, evaluation=Evaluation(interval_steps=100))
    usual, text = (rehearse(spec, cores=2, memory_bytes=8 * GIB, has_data=False, on_text=on) for on in (False, True))
    assert (text.spec.data.kind, text.spec.data.paths) == ("text", ("stdlib:*.py",))
    assert text.spec.optimizer.learning_rate == 3e-3
    assert text.spec.data.validation_paths
    assert dataclasses.replace(text.spec, data=usual.spec.data, optimizer=usual.spec.optimizer) == usual.spec
    changed = {change.path: change.original for change in text.changes}
    assert changed["data.kind"] == "synthetic"
    assert changed["optimizer.learning_rate"] == spec.optimizer.learning_rate
    fast = dataclasses.replace(spec, optimizer=Optimizer(learning_rate=0.02))
    assert rehearse(fast, cores=2, memory_bytes=8 * GIB, on_text=True).spec.optimizer.learning_rate == 0.02


def test_preferences_are_not_learnt_from_text() -> None:
    spec = make_spec({"fsdp": 8}, {}, objective=Objective(kind="dpo"))
    with pytest.raises(InputError, match="not from text"):
        rehearse(spec, cores=2, memory_bytes=8 * GIB, on_text=True)
