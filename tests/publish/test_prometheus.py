"""The textfile for Prometheus: valid OpenMetrics to two parsers, and every label value comes back."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as older_format

from seatrial.publish import Destination, publish
from seatrial.publish.contract import Publication
from seatrial.publish.gauges import GAUGES, Sample, text
from seatrial.publish.publication import publication_of
from tests.helpers import attacks, publishing


def samples(shown: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(shown):
        for sample in family.samples:
            yield sample.name, dict(sample.labels), sample.value


@pytest.fixture(scope="module")
def publications(tmp_path_factory: pytest.TempPathFactory) -> list[Publication]:
    return [publishing.published(run_dir) for run_dir in publishing.runs(tmp_path_factory.mktemp("runs"))]


def promtool(shown: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", "check", "metrics"], input=shown, capture_output=True, text=True, timeout=60)


def test_each_run_has_its_figures(publications: list[Publication], tmp_path: Path) -> None:
    out = tmp_path / "seatrial.prom"
    assert publish(publications, "prometheus", Destination(out=out)) == f"metrics: {out}"
    found = list(samples(out.read_text()))
    for one in publications:
        own = {name: value for name, labels, value in found if labels["run"] == one.title}
        assert own["seatrial_step"] == one.figures["num_steps"]
        assert own.get("seatrial_mfu_ratio") == one.figures.get("mfu")
        assert own["seatrial_exit_code"] == int(one.tags["exit_code"])
        outcomes = [labels["outcome"] for name, labels, _ in found
                    if name == "seatrial_outcome" and labels["run"] == one.title]  # fmt: skip
        assert outcomes == [one.tags["outcome"]]
        checks = [labels for name, labels, _ in found if name == "seatrial_check" and labels["run"] == one.title]
        assert one.report.verdict is not None
        assert len(checks) == sum(len(axis.checks) for axis in one.report.verdict.axes.values())
    (lost,) = (value for name, labels, value in found if name == "seatrial_loss" and labels["run"] == "diverged")
    assert math.isnan(lost)
    assert {name for name, _, _ in found} <= set(GAUGES)


def test_promtool_and_the_older_parser_agree(publications: list[Publication]) -> None:
    shown = publish(publications, "prometheus", Destination()) + "\n"
    older = [(s.name, s.labels) for family in older_format(shown) for s in family.samples]
    assert older == [(name, labels) for name, labels, _ in samples(shown)]
    publishing.needed("promtool")
    checked = promtool(shown)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    assert promtool(shown.replace("} ", "} x", 1)).returncode != 0


def test_runs_of_one_name_are_told_apart(publications: list[Publication]) -> None:
    twins = [replace(one, title="run") for one in publications[:2]]
    runs = {labels["run"] for _, labels, _ in samples(publish(twins, "prometheus", Destination()) + "\n")}
    assert runs == {f"run ({one.id[:4]})" for one in twins}


@settings(max_examples=100)
@given(raw=attacks.text)
def test_hostile_labels_come_back(raw: str) -> None:
    one = publication_of(attacks.poisoned(raw), Path("nowhere"))
    checks = [labels["check"] for name, labels, _ in samples(publish([one], "prometheus", Destination()) + "\n")
              if name == "seatrial_check"]  # fmt: skip
    assert set(checks) == {one.title}  # of one name now; a series that is there twice would be refused
    found = list(samples(publish([one], "prometheus", Destination()) + "\n"))
    assert {labels["run"] for _, labels, _ in found} == {one.title}
    assert {labels["device"] for _, labels, _ in found} == {one.tags.get("device", "")}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0, 2**63])
def test_any_number_comes_back(value: float) -> None:
    labels = {"run": 'a="b",c\n\\"}', "model": "", "device": ""}
    shown = text([Sample("seatrial_loss", labels, value)])
    ((_, back, number),) = samples(shown)
    assert back == labels
    assert math.isnan(number) if math.isnan(value) else number == value
    publishing.needed("promtool")
    assert promtool(shown).returncode == 0
