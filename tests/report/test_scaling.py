"""Several runs at several sizes: the published tables, what is refused, and how far the figures can be trusted."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from seatrial.errors import InputError
from seatrial.estimate import flops
from seatrial.report import scaling_formats
from seatrial.report.gather import RunReport
from seatrial.report.scaling import Scaling, measure_scaling
from seatrial.spec import Batch, Precision
from seatrial.spec.presets import MODELS
from tests.helpers import attacks
from tests.helpers.html_pages import Page
from tests.helpers.scaling_runs import noisy, recipe, run
from tests.helpers.shown_markdown import LIVE, Shown

# NVIDIA's DGXC recipe (MaxText, Llama 2 70B, bfloat16, H100): GPUs → seconds a step, tokens/s, MFU in %, days to 1T.
PUBLISHED = {
    64: (6.999, 74908.99, 52.59, 154.51),
    128: (7.072, 148271.49, 52.04, 78.06),
    256: (7.153, 293184.96, 51.45, 39.48),
    512: (7.091, 591496.83, 51.90, 19.57),
    1024: (7.084, 1184162.62, 51.95, 9.77),
    2048: (7.066, 2374358.34, 52.09, 4.87),
}
PUBLISHED_MODEL_FLOPS = 1.82e15  # of a sequence, as the recipe rounds it


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Scaling:
    folder = tmp_path_factory.mktemp("published")
    reports = [run(folder, recipe(devices), row[0]) for devices, row in PUBLISHED.items()]
    return measure_scaling(list(reversed(reports)))


def refused(reports: Sequence[RunReport]) -> str:
    with pytest.raises(InputError) as caught:
        measure_scaling(reports)
    return str(caught.value)


def test_the_published_table(published: Scaling) -> None:
    assert (published.kind, published.unknown) == ("weak", ())
    assert dict(published.same)["model"] == "llama2-70b"
    assert [size.num_devices for size in published.sizes] == list(PUBLISHED)
    exact = flops.flops_per_sequence(MODELS["llama2-70b"], 4096, "non_causal")
    for size, (seconds, rate, mfu, days) in zip(published.sizes, PUBLISHED.values(), strict=True):
        assert size.mfu is not None
        assert size.step_seconds == seconds
        assert round(size.tokens_per_second_total, 2) == rate
        assert round(100 * size.mfu * PUBLISHED_MODEL_FLOPS / exact, 2) == mfu
        assert 100 * size.mfu == pytest.approx(mfu, abs=0.03)
        assert round(size.days_to_1t_tokens, 2) == days
        assert size.global_batch_size == 2 * size.num_devices
        assert size.mesh == f"fsdp {size.num_devices}"
        assert size.efficiency == pytest.approx(6.999 / seconds)
    assert published.sizes[0].efficiency_low is None


def test_strong_scaling_has_a_speed_up(tmp_path: Path) -> None:
    reports = [run(tmp_path, recipe(devices, 256), 500 / devices + 1) for devices in (64, 128, 256)]
    found = measure_scaling(reports)
    assert found.kind == "strong"
    assert [size.speed_up_ideal for size in found.sizes] == [1, 2, 4]
    first = 500 / 64 + 1
    for size in found.sizes:
        assert size.speed_up == pytest.approx(first / (500 / size.num_devices + 1))
        assert size.efficiency == pytest.approx(size.speed_up / size.speed_up_ideal)
    assert "Speed-up" in scaling_formats.text(found)


def test_anything_else_is_mixed_and_said_so(tmp_path: Path) -> None:
    sizes = ((64, 128), (128, 256), (256, 256))
    found = measure_scaling([run(tmp_path, recipe(devices, batch), 7.0) for devices, batch in sizes])
    assert found.kind == "mixed"
    assert "1,048,576 on 256" in found.reason
    assert "neither weak nor strong" in scaling_formats.text(found)


def test_several_runs_of_a_size_give_their_median_and_spread(tmp_path: Path) -> None:
    small = [run(tmp_path, recipe(64), seconds, name=f"small-{seconds}") for seconds in (7.0, 7.4, 7.1)]
    large = [run(tmp_path, recipe(128), seconds, name=f"large-{seconds}") for seconds in (8.0, 7.8)]
    first, second = measure_scaling([*small, *large]).sizes
    assert (first.step_seconds, first.fastest_seconds, first.slowest_seconds) == (7.1, 7.0, 7.4)
    assert second.step_seconds == pytest.approx(7.9)
    assert first.runs == ("small-7.0", "small-7.1", "small-7.4")
    assert second.efficiency == pytest.approx(7.1 / 7.9)
    assert second.efficiency_low is not None
    assert second.efficiency_high is not None
    # As far as the runs of either size lie apart, at least.
    assert second.efficiency_low < 7.1 / 8.0
    assert second.efficiency_high > 7.4 / 7.9


def test_runs_of_one_size_have_no_efficiency(tmp_path: Path) -> None:
    found = measure_scaling([run(tmp_path, recipe(64), 7.0 + n / 10, name=f"run-{n}") for n in range(3)])
    assert (found.kind, len(found.sizes)) == ("one size", 1)
    assert "Efficiency" not in scaling_formats.text(found)


@pytest.mark.slow
def test_the_interval_covers_the_truth(tmp_path: Path) -> None:
    """Of many pairs of noisy runs, about 95% of the intervals hold the true efficiency: here, at least 90%."""
    hits, pairs = 0, 20
    for seed in range(pairs):
        folder = tmp_path / str(seed)
        small = run(folder, recipe(64), noisy(7.0, 2 * seed))
        large = run(folder, recipe(128), noisy(7.7, 2 * seed + 1))
        _, size = measure_scaling([small, large]).sizes
        assert size.efficiency_low is not None
        assert size.efficiency_high is not None
        hits += size.efficiency_low <= 7.0 / 7.7 <= size.efficiency_high
    assert hits >= 0.9 * pairs


# --- what is refused --------------------------------------------------------------------------------------------------


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str]]] = {
    "model": ({"model": MODELS["llama2-13b"]}, {}, ("llama2-70b", "llama2-13b")),
    "sequence length": (
        {"batch": Batch(sequence_length=8192, global_batch_size=256, micro_batch_size=2)},
        {},
        ("4,096", "8,192"),
    ),
    "precision": ({"precision": Precision(quantization="fp8")}, {}, ("compute bfloat16", "quantization fp8")),
    "FLOPs convention": ({}, {"convention": "causal"}, ("non-causal in", "; causal in")),
    "trainer": ({}, {"family": "megatron"}, ("maxtext", "megatron")),
    "device": ({}, {"device_kind": "AMD Instinct MI300X"}, ("h100-sxm", "mi300x")),
    "policy": ({}, {"policy": "last-10"}, ("steady", "last-10")),
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_runs_that_differ_are_not_mixed(tmp_path: Path, field: str) -> None:
    changes, options, words = DIFFERENT[field]
    small = run(tmp_path, recipe(64), 7.0)
    large = run(tmp_path, recipe(128, **changes), 30.0, **options)
    said = refused([small, large])
    assert said.startswith(f"{field}: the runs differ in it: ")
    assert all(word in said for word in (*words, "run-64", "run-128"))


def test_every_difference_is_named_at_once(tmp_path: Path) -> None:
    small = run(tmp_path, recipe(64), 7.0)
    large = run(tmp_path, recipe(128, precision=Precision(quantization="fp8")), 7.0, convention="causal")
    with pytest.raises(InputError) as caught:
        measure_scaling([small, large])
    assert [problem.path for problem in caught.value.problems] == ["precision", "FLOPs convention"]


def test_a_model_by_another_name_is_the_same_one(tmp_path: Path) -> None:
    mine = replace(MODELS["llama2-70b"], name="our-70b")
    found = measure_scaling([run(tmp_path, recipe(64), 7.0), run(tmp_path, recipe(128, model=mine), 7.0)])
    assert dict(found.same)["model"] == "llama2-70b"


def test_a_run_that_broke_proves_nothing(tmp_path: Path) -> None:
    sound = run(tmp_path, recipe(64), 7.0)
    unended = run(tmp_path, recipe(128), 7.0, complete=False)
    diverged = run(tmp_path, recipe(256), 7.0, loss=lambda step: math.nan if step > 30 else 2.0)
    said = refused([sound, unended, diverged])
    assert "run-128: its completion is inconclusive: " in said
    assert "run-256: its numerics failed: " in said
    assert "run-64" not in said


def test_rehearsals_single_runs_and_unjudged_ones_are_refused(tmp_path: Path) -> None:
    sound = run(tmp_path, recipe(64), 7.0)
    assert "scaling needs several runs" in refused([sound])
    assert "it was a rehearsal" in refused([sound, replace(sound, directory="other", rehearsal="rehearsal")])
    assert "it has no verdict" in refused([sound, replace(sound, directory="other", verdict=None)])


def test_what_only_one_run_says_is_not_taken_for_granted(tmp_path: Path) -> None:
    sound = run(tmp_path, recipe(64), 7.0)
    silent = replace(run(tmp_path, recipe(128), 7.0), spec=None)
    said = refused([sound, silent])
    assert "precision: the runs differ in it: " in said
    assert "not reported in run-128" in said
    both = measure_scaling([replace(sound, spec=None), silent])
    assert both.unknown == ("sequence length", "precision")
    assert "Reported by none of them" in " ".join(scaling_formats.notes(both))


# --- how it is shown --------------------------------------------------------------------------------------------------


def test_text_fits_a_terminal(published: Scaling) -> None:
    lines = scaling_formats.text(published, width=100).splitlines()
    assert lines[0] == "Weak scaling"
    assert max(map(len, lines)) <= 100
    assert max(map(len, scaling_formats.text(published, width=80).splitlines())) <= 80
    (row,) = [line for line in lines if line.lstrip().startswith("2,048  ")]
    assert row.split()[:4] == ["2,048", "4,096", "7.066", "2,374,358"]


def test_csv_and_json_have_every_figure_in_full(published: Scaling) -> None:
    rows = list(csv.DictReader(io.StringIO(scaling_formats.as_csv(published))))
    sizes = json.loads(scaling_formats.as_json(published))["sizes"]
    for size, row, data in zip(published.sizes, rows, sizes, strict=True):
        assert row["scaling"] == "weak"
        assert float(row["step_seconds"]) == data["step_seconds"] == size.step_seconds
        assert float(row["mfu"]) == data["mfu"] == size.mfu
        assert row["efficiency_low"] == ("" if size.efficiency_low is None else repr(size.efficiency_low))


@settings(max_examples=60)
@given(raw=attacks.text)
def test_names_of_runs_do_nothing(published: Scaling, raw: str) -> None:
    evil = attacks.clean(raw)
    bad, good = (
        replace(
            published,
            sizes=tuple(replace(size, runs=(text, text), mesh=text) for size in published.sizes),
            same=(("model", text),),
            reason=text,
        )
        for text in (evil, "text")
    )
    shown = Shown(scaling_formats.as_markdown(bad))
    assert set(shown.tags) <= {"h2", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert LIVE.search("\n".join(shown.text)) is None
    page, ordinary = Page(scaling_formats.as_html(bad)), Page(scaling_formats.as_html(good))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in ordinary.elements]
    assert all(
        not row["runs"].startswith(("=", "+", "-", "@"))
        for row in csv.DictReader(io.StringIO(scaling_formats.as_csv(bad)))
    )
    said = scaling_formats.text(bad)
    assert [character for character in said if ord(character) < 32 and character != "\n"] == []
