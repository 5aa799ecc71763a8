"""Which dialect reads a file: decided by its keys, never by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seatrial import dialects
from seatrial.errors import InputError
from tests.dialects.seeds import MULTI_70B, ROOT

MEGATRON = {"config": {"training_iterations": "30", "master_address": "x"}, "model_params": {"single_node": {}}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (MEGATRON, "a CVS Megatron-LM configuration"),
        ({"schema_version": 1, "framework": "jaxmaxtext"}, "a CVS configuration of 2026"),
        ({"trainer": {"devices": 8}, "exp_manager": {}, "model": {}}, "an NxDT or NeMo configuration"),
        ({"model_name": "llama2-7b", "per_device_batch_size": 1, "steps": 3}, "a MaxText configuration"),
        ({"base_config": "base.yml"}, "a MaxText configuration"),
    ],
)
def test_what_cannot_be_read_yet_is_named(data: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mi300x_singlenode_llama3_1_70b.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        dialects.load(path, (), action="run")
    (finding,) = caught.value.problems
    assert finding.code == "dialect-not-supported-yet"
    assert said in finding.why


@pytest.mark.parametrize("data", [{}, [], 3, "model", None, {"x": 1}])
def test_what_nobody_knows_is_said(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        dialects.load(path, (), action="run")
    assert [finding.code for finding in caught.value.problems] == ["unknown-dialect"]


def test_names_of_files_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"  # JSON is YAML
    path.write_text(MULTI_70B.read_text(encoding="utf-8"))
    resolved = dialects.load(path, ("config.nnodes=2",), action="rehearse")
    assert resolved.spec is not None
    assert resolved.spec.dialect == "cvs-jax"


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*/*")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_read(path: Path) -> None:
    resolved = dialects.load(path, ("config.nnodes=1",) if "cvs" in path.parts else (), action="train")
    assert resolved.spec is not None
    assert [problem for problem in resolved.problems if problem.severity == "error"] == []
