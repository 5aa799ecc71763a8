"""The figures of a run in words: what it costs, and digits that fit each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.report import html, text
from seatrial.report.figures import amount, figures
from seatrial.report.gather import RunReport, gather
from seatrial.verdict import show_beside
from tests.helpers import run_directory


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return gather(run_directory.write(tmp_path_factory.mktemp("sound") / "run", rehearsing=False))


def test_what_it_costs(sound: RunReport) -> None:
    assert sound.metrics is not None
    seconds, rate = (
        sound.metrics.completion.wall_seconds,
        sound.metrics.performance.estimates["tokens_per_second_per_device"].value,
    )
    priced = replace(sound, price_per_device_hour=2.5)
    found = {figure.label: figure for figure in figures(priced)}
    assert found["Cost of this run"].value == amount(16 * 2.5 * seconds / 3600)
    assert found["Cost of this run"].detail == "16 devices at 2.5 an hour each"
    million = 2.5 / 3600 / rate * 1e6  # a device makes so many tokens for its price
    assert found["Cost per million tokens"].value == amount(million)
    planned = 30 * 48 * 8192
    assert found["Cost to train 11.8M tokens"].value == amount(million * planned / 1e6)
    wanted = {figure.label: figure for figure in figures(replace(priced, tokens=15e12))}
    assert wanted["Cost to train 15T tokens"].value == amount(million * 15e6)
    for render in (html.render, text.render):
        assert "Cost per million tokens" in render(priced)
        assert "Cost" not in render(sound).replace("Costs", "")


def test_days_between_two_attempts_cost_nothing(sound: RunReport) -> None:
    assert sound.metrics is not None
    days, minutes = 4 * 86_400.0, 300.0
    first, second, third = sound.steps[:10], sound.steps[10:20], sound.steps[20:]
    later = [
        tuple(replace(step, wall_time=step.wall_time + pause) for step in steps)
        for steps, pause in ((first, 0.0), (second, days), (third, days + minutes))
    ]
    completion = sound.metrics.completion
    wall = replace(completion, wall_seconds=completion.wall_seconds + days + minutes)
    resumed = replace(
        sound, attempts=tuple(later), metrics=replace(sound.metrics, completion=wall), price_per_device_hour=2.5
    )
    found = {figure.label: figure for figure in figures(resumed)}["Cost of this run"]
    assert found.value == amount(16 * 2.5 * (completion.wall_seconds + minutes) / 3600)
    assert found.detail == "16 devices at 2.5 an hour each, without 345,600 s between its attempts"


def test_a_rehearsal_and_a_run_without_devices_have_no_cost(sound: RunReport, tmp_path: Path) -> None:
    rehearsed = gather(run_directory.write(tmp_path / "run"), price_per_device_hour=2.5)
    assert not any(figure.label.startswith("Cost") for figure in figures(rehearsed))
    assert sound.metrics is not None
    unknown = replace(sound.metrics, performance=replace(sound.metrics.performance, num_devices=None))
    assert not any(
        figure.label.startswith("Cost")
        for figure in figures(replace(sound, metrics=unknown, price_per_device_hour=1.0))
    )


def test_sums_have_the_digits_that_they_need() -> None:
    assert [amount(value) for value in (0.000123, 0.805, 4.5, 999.999, 11111.1)] == [
        "0.000123", "0.805", "4.50", "1,000", "11,111",
    ]  # fmt: skip


def test_values_beside_each_other_have_digits_that_fit() -> None:
    assert show_beside(7.0, 6.998, unit="s") == ("7.000 s", "6.998 s")
    assert show_beside(7.0, 9.0, unit="s") == ("7 s", "9 s")
    assert show_beside(361.0, 431.25) == ("361.0", "431.2")
    assert show_beside(0, 0.0001) == ("0", "0.0001")
    assert show_beside(None, "completed", 3.0, float("nan")) == ("not reported", "completed", "3", "nan")
    assert show_beside(0.5, 1.0, unit="fraction") == ("50.00%", "100.00%")
