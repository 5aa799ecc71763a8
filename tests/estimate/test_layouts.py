"""The layouts that are tried: only such as the engine can be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.engines import fit
from seatrial.estimate import hardware, layer_memory, memory, time_profile
from seatrial.estimate.layouts import OF_ENGINES, ROWS, fastest, layouts, rows, show, show_row, with_row
from seatrial.estimate.levers import levers
from seatrial.estimate.time_model import predict
from seatrial.spec import Batch, Execution, MeshShape, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.checked_specs import SOUND

RECIPE = Path(__file__).parents[2] / "configs" / "native" / "recipe-llama2-70b-h100.yaml"
PROFILE = time_profile.published(hardware.DEVICES["h100-sxm"])


@pytest.fixture(name="spec", scope="module")
def made_spec() -> RunSpec:
    spec = dialects.load(RECIPE, (), action="plan").spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("engine", OF_ENGINES)
def test_an_engine_can_be_told_its_rows_of_recomputation(engine: str, spec: RunSpec) -> None:
    told = {row: fit.told_layout(replace(spec, execution=with_row(spec.execution, row)), engine)[1] for row in ROWS}
    for row in rows(engine):
        assert fit.told_layout(replace(spec, execution=with_row(spec.execution, row)), engine)[1] == []
    assert any("execution.remat" in paths for row, paths in told.items() if row not in rows(engine))


def test_our_own_trainer_can_be_told_everything(spec: RunSpec) -> None:
    assert fit.told_layout(replace(spec, execution=Execution(remat="save_qkv_proj")), memory.OWN)[1] == []
    assert {row for row, _ in ROWS} <= {"none", *layer_memory.KEPT}


def test_what_megatron_recomputes_saves_memory_or_time(spec: RunSpec) -> None:
    assert PROFILE is not None
    each = [replace(spec, execution=with_row(spec.execution, row)) for row in rows("megatron")]
    needed = [memory.per_device(one, "megatron").total_bytes for one in each]
    assert needed == sorted(needed, reverse=True)
    found = layouts(spec, "megatron", PROFILE)
    kinds = {show_row(candidate.spec.execution) for candidate in (*found.fitting, *found.too_large)}
    assert kinds == {"none", "selective: core_attn", "selective: mlp", "full"}


def test_a_lever_is_a_row_that_the_engine_has(spec: RunSpec) -> None:
    assert PROFILE is not None
    changes = {
        name: [each.change for each in levers(spec, name, PROFILE)] for name in ("native", "maxtext", "megatron")
    }
    assert "remat minimal_with_context instead of full" in changes["native"]
    assert not [change for change in changes["maxtext"] if change.startswith("remat none")]
    assert not [change for change in changes["megatron"] if "minimal_with_context" in change]
    assert "remat selective: mlp instead of full" in changes["megatron"]


SHORT = replace(
    SOUND, model=MODELS["llama3.2-1b"], batch=Batch(sequence_length=512, global_batch_size=256, micro_batch_size=32),
    topology=Topology(num_nodes=1, devices_per_node=8, device="h200"), execution=Execution(remat="none"),
    parallelism=Parallelism(within_node=MeshShape(fsdp=-1)),
)  # fmt: skip
# Layers that divide over the stages only with the ends of the model, in chunks.
WITH_ENDS = replace(
    SOUND, model=MODELS["llama3.1-405b"], batch=Batch(sequence_length=8192, global_batch_size=64, micro_batch_size=1),
    topology=Topology(num_nodes=16, devices_per_node=8, device="h100-sxm"),
    parallelism=Parallelism(
        within_node=MeshShape(tensor=8), across_nodes=MeshShape(pipeline=16), virtual_pipeline=8,
        counts_embedding=True, counts_head=True, sequence_parallel=True, zero1=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("spec", [SHORT, WITH_ENDS], ids=["large micro-batches", "stages with ends"])
@pytest.mark.parametrize("engine", [memory.OWN, "megatron"])
def test_no_layout_is_called_the_fastest_that_is_slower_than_the_runs_own(engine: str, spec: RunSpec) -> None:
    profile = time_profile.published(hardware.find(spec.topology.device))
    assert profile is not None
    own, found = predict(spec, engine, profile), layouts(spec, engine, profile)
    best = fastest(spec, engine, profile)
    assert own is not None
    (mine,) = [each for each in (*found.fitting, *found.too_large) if each.is_own]
    assert mine.time.step_seconds == pytest.approx(own.step_seconds)
    assert mine.spec.batch == spec.batch
    assert not mine.fits or (best is not None and best.step_seconds <= own.step_seconds)


def test_stages_take_their_layers_in_chunks_and_count_the_ends_where_the_run_does() -> None:
    assert PROFILE is not None
    found = layouts(WITH_ENDS, "megatron", PROFILE)
    tried = [each.spec for each in (*found.fitting, *found.too_large)]
    with_ends = {(one.mesh["pipeline"], one.parallelism.virtual_pipeline) for one in tried
                 if one.parallelism.counts_embedding and one.parallelism.counts_head}  # fmt: skip
    assert {(16, 1), (16, 2), (16, 4), (16, 8), (8, 8)} <= with_ends
    without = {(one.mesh["pipeline"], one.parallelism.virtual_pipeline) for one in tried
               if not one.parallelism.counts_embedding}  # fmt: skip
    assert {(2, 1), (2, 3), (2, 7)} <= without
    assert not {stages for stages, _ in without} & {8, 16}
    for one in tried:  # micro-batches of interleaved stages come in groups of them
        assert one.parallelism.virtual_pipeline == 1 or one.accumulation_steps % one.mesh["pipeline"] == 0
    shown = next(show(one) for one in tried if one.parallelism.virtual_pipeline == 7 and one.mesh["pipeline"] == 2)
    assert shown.startswith("pipeline 2 (7 chunks)")
