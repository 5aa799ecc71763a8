"""The explanation of a key: where its value came from, and what the other dialects call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seatrial.dialects.typed import schema
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import ROOT

CVS = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
TINY = ROOT / "configs" / "native" / "tiny-text.json"


def _explained(path: Path, key: str, *overrides: str) -> list[dict[str, Any]]:
    done = seatrial("plan", path, *overrides, "--explain", key, "--format", "json", cwd=ROOT)
    assert done.returncode == 0, done.stdout
    values: list[dict[str, Any]] = json.loads(done.stdout)["values"]
    return values


@pytest.mark.parametrize("key", ["dtype", "precision.compute_dtype", "compute_dtype"])
def test_a_key_is_found_by_every_name(key: str) -> None:
    (value,) = _explained(CVS, key, "nnodes=1")
    assert (value["path"], value["value"]) == ("precision.compute_dtype", "bfloat16")
    lines = CVS.read_text(encoding="utf-8").splitlines()
    origin = value["origin"]
    assert origin["kind"] == "file"
    assert lines[origin["line"] - 1][origin["column"] - 1 :].startswith('"bfloat16"')
    there = value["elsewhere"]
    assert there["native"]["key"] == "as is its default"
    assert (there["maxtext"]["key"], there["maxtext"]["text"]) == ("dtype", "bfloat16")
    assert there["cvs"]["key"].endswith(".dtype")


def test_the_kinds_of_origin() -> None:
    kinds = {
        key: _explained(CVS, key, "nnodes=1")[0]["origin"]["kind"]
        for key in ("nnodes", "max_target_length", "global_batch_size", "beta2")
    }
    assert kinds == {
        "nnodes": "override", "max_target_length": "file", "global_batch_size": "derived", "beta2": "default",
    }  # fmt: skip


def test_another_dialect_s_name_finds_the_value_too() -> None:
    (value,) = _explained(TINY, "max_target_length")
    assert (value["path"], value["value"], value["unit"]) == ("batch.sequence_length", 256, "tokens")


def test_a_part_is_explained_value_by_value() -> None:
    assert [value["path"] for value in _explained(TINY, "batch")] == [
        path for path, _ in schema() if path.startswith("batch.")
    ]


def test_a_key_without_effect_says_why() -> None:
    (value,) = _explained(CVS, "hardware", "nnodes=1")
    assert (value["disposition"], value["why"]) == ("ignored", "the devices that are there decide")


def test_for_people_it_is_a_few_lines(tmp_path: Path) -> None:
    text = seatrial("plan", TINY, "steps=7", "--explain", "steps", cwd=tmp_path).stdout.splitlines()
    assert text[0] == "steps = 7 (steps)"
    assert text[2] == "  from: override steps = 7"
    assert "  cvs           config.training_steps = 7" in text
    assert "  maxtext       steps = 7" in text


@pytest.mark.parametrize(
    ("key", "said"),
    [("learning_rat", "learning_rate?"), ("container.image", "this run does not have"), ("", "")],
)
def test_what_nobody_knows_is_said(key: str, said: str) -> None:
    done = seatrial("plan", TINY, "--explain", key, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_secret_stays_one(tmp_path: Path) -> None:
    done = seatrial("plan", TINY, "execution.environment.HF_TOKEN=hunter2", "--explain", "environment", cwd=tmp_path)
    assert (done.returncode, "hunter2" in done.stdout + done.stderr) == (0, False)
    for key in ("HF_TOKEN", "environment", "execution"):
        shown = _explained(TINY, key, "execution.environment.HF_TOKEN=hunter2")
        assert "***" in json.dumps(shown)
        assert "hunter2" not in json.dumps(shown)


def test_the_docs_show_what_is_really_printed() -> None:
    """Each line of an example of --explain is in the output of the command above it."""
    text = (ROOT / "docs/howto/convert.md").read_text(encoding="utf-8")
    found = re.findall(r"\$ seatrial (plan [^\n]+ --explain [^\n]+)\n```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(found) == 1
    for command, shown in found:
        printed = seatrial(*command.split(), cwd=ROOT).stdout.splitlines()
        assert [line for line in shown.splitlines() if line not in (*printed, "  …")] == []


def test_a_spelling_that_cannot_express_the_run_shows_its_keys() -> None:
    path = ROOT / "configs" / "native" / "recipe-llama2-70b-h100.yaml"
    (value,) = _explained(path, "steps", "batch.sequence_length=65536")
    assert value["elsewhere"]["megatron-env"]["text"] is None
    assert "TOTAL_ITERS" in value["elsewhere"]["megatron-env"]["key"]
    assert value["elsewhere"]["megatron"]["text"] == "50"
