"""A line that was cut says less than the whole one, and nothing else: of every family with lines of pairs or blocks."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from seatrial import logs
from tests.helpers.log_cases import steps, values

HERE = Path(__file__).parent
CASES = (
    "nanogpt/2023", "nanogpt/before_mfu_and_forks", "nanochat/2026_05", "llmc/2024_06", "llmc/older",
    "modded_nanogpt/2024_12", "litgpt/pretrain_2026", "litgpt/lit_gpt_2023", "torchtune/lines",
    "torchtune/progress_bar", "composer/batches", "composer/epochs_and_tokens", "olmo/olmo_2024", "olmo/core_2026",
    "verl/grpo_2025", "verl/numpy_numbers", "verl_sft/2025", "verl_sft/2026", "deepspeed/pipeline",
    "deepspeed/zero_without_loss", "lightning/own_progress_bar",
)  # fmt: skip
CUTS = 60
# The last number of these lines counts with three decimals or more, so that what a cut takes away is less than this.
LEAST = 0.001
# 4,194 of 4,194,304, 0.0 of 0.0942, and the optimizer's count, which is that since the last line.
UNCLEAR = {"consumed_tokens", "steps_per_second", "skipped_steps"}


def _is_said(name: str, value: float, whole: Mapping[str, float]) -> bool:
    if name in UNCLEAR:
        return True
    known = whole.get(name, math.inf)
    return (math.isnan(value) and math.isnan(known)) or math.isclose(value, known, rel_tol=1e-12, abs_tol=LEAST)


@pytest.mark.parametrize("case", CASES)
def test_a_cut_line_says_less_and_nothing_else(case: str) -> None:
    lines = (HERE / case / "log.txt").read_text(encoding="utf-8").split("\n")
    told: dict[int, list[dict[str, float]]] = {}
    for step in steps(logs.parse(lines)):
        told.setdefault(step.step, []).append(values(step))
    rng = random.Random(case)
    for _ in range(CUTS):
        line = rng.randrange(len(lines))
        cut = rng.randrange(len(lines[line]) + 1)
        for found in steps(logs.parse([*lines[:line], lines[line][:cut], *lines[line + 1 :]])):
            said = values(found)
            assert any(all(_is_said(*each, whole) for each in said.items()) for whole in told.get(found.step, [])), (
                f"line {line + 1} cut after {lines[line][:cut][-40:]!r}: {said}"
            )


@pytest.mark.parametrize("name", ["log.txt", "-"])
@pytest.mark.parametrize(
    "line", ["{step},20,{loss}", "{step}/20 loss {loss}"], ids=["a table", "a log that is guessed"]
)
def test_a_file_that_ends_in_half_a_number_lacks_that_step(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "step,total_steps,loss" if "," in line else "starting"
    line = line if "," in line else f"step {line}"
    text = "\n".join([head, *(line.format(step=n, loss=f"{30 - n}.512") for n in range(1, 21))])[:-2]
    (tmp_path / "log.txt").write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    path = Path("-") if name == "-" else tmp_path / name
    assert [step.step for step in steps(logs.parse_file(path))] == list(range(1, 20))
