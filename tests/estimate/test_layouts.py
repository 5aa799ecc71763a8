"""The layouts that are tried: only such as the engine can be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.engines import fit
from seatrial.estimate import hardware, layer_memory, memory, time_profile
from seatrial.estimate.layouts import OF_ENGINES, ROWS, layouts, rows, show_row, with_row
from seatrial.estimate.levers import levers
from seatrial.spec import Execution, RunSpec

RECIPE = Path(__file__).parents[2] / "configs" / "native" / "recipe-llama2-70b-h100.yaml"
PROFILE = time_profile.published(hardware.DEVICES["h100-sxm"])


@pytest.fixture(name="spec", scope="module")
def made_spec() -> RunSpec:
    spec = dialects.load(RECIPE, (), action="plan").spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("engine", OF_ENGINES)
def test_an_engine_can_be_told_its_rows_of_recomputation(engine: str, spec: RunSpec) -> None:
    told = {row: fit.unsaid_layout(replace(spec, execution=with_row(spec.execution, row)), engine) for row in ROWS}
    for row in rows(engine):
        assert fit.unsaid_layout(replace(spec, execution=with_row(spec.execution, row)), engine) == []
    assert any("execution.remat" in paths for row, paths in told.items() if row not in rows(engine))


def test_our_own_trainer_can_be_told_everything(spec: RunSpec) -> None:
    assert fit.unsaid_layout(replace(spec, execution=Execution(remat="save_qkv_proj")), memory.OWN) == []
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
