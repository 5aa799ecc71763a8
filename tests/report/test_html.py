"""The HTML report as text: self-contained, complete, and deaf to whatever a run or its user wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings

from seatrial import events, recording
from seatrial.report import charts, html
from seatrial.report.gather import RunReport, clean, gather
from seatrial.spec import RunSpec
from tests.helpers import attacks, run_directory, streams
from tests.helpers.html_pages import Page, hostile_run


def page(report: RunReport) -> Page:
    return Page(html.render(report))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return gather(run_directory.write(tmp_path_factory.mktemp("sound") / "run"))


def test_it_shows_everything(sound: RunReport) -> None:
    text = html.render(sound)
    shown = " ".join(word for parts in Page(text).texts.values() for part in parts for word in part.split())
    assert sound.verdict is not None
    assert sound.metrics is not None
    assert sound.metrics.performance.step_times is not None
    wanted = [
        "PASS", sound.verdict.headline, sound.metrics.performance.step_times.rule,
        *(check.sentence for axis in sound.verdict.axes.values() for check in axis.checks),
        *(word for c in sound.changes for word in (c.path, c.original, c.rehearsed, c.why)),
        *(word for v in sound.values for word in (v.path, v.value, v.place.rpartition("/")[2], v.note)),
        *(process.command for process in sound.processes),
        "no peak is known for 'cpu'", "0.10.2", "causal_blocks", "data 2",
    ]  # fmt: skip
    assert [word for word in wanted if " ".join(word.split()) not in shown] == []


def test_it_asks_for_nothing_and_runs_only_its_own(sound: RunReport) -> None:
    elements = page(sound).elements
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in elements}
    names = {name for _, attributes in elements for name in attributes}
    assert not {"src", "srcset", "style", "background", "action"} & names
    assert not [name for name in names if name.startswith("on")]
    assert all(a["href"].startswith("#") for tag, a in elements if tag == "a" and a["href"])


def test_the_policy_names_the_only_script_and_style(sound: RunReport) -> None:
    text = html.render(sound)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy


def test_hostile_text_stays_text(tmp_path: Path, sound: RunReport) -> None:
    found, ordinary = page(gather(hostile_run(tmp_path / "run"))), page(sound)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in ordinary.elements} | {"pre", "ul", "li"}
    scripts = [attributes for tag, attributes in found.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    shown = "".join(part for parts in found.texts.values() for part in parts)
    assert "<img src=x onerror='window.owned = 2'>" in shown
    assert "1337" not in shown  # 7 * 191: no template ran
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) < 60_000  # of which our own script is the longest


def test_the_data_is_plain_json(tmp_path: Path) -> None:
    found = page(gather(run_directory.write(tmp_path / "run", run_directory.diverged)))
    data: dict[str, Any] = json.loads(found.texts["script"][0], parse_constant=lambda constant: 1 / 0)
    assert data["steps"] == list(range(18))
    assert data["curves"]["loss"]["values"][-1] is None
    assert [mark["step"] for mark in data["marks"] if "loss" in mark["curves"]] == [17]
    assert data["left_out"] == [[0, 2]]
    low, high = data["curves"]["seconds"]["frame"]
    assert low < data["curves"]["seconds"]["median"] < high < 1  # the first step took 5.9 s


@pytest.mark.parametrize("story", [run_directory.killed, run_directory.diverged, run_directory.slow])
def test_what_went_wrong_is_told(tmp_path: Path, story: run_directory.Story) -> None:
    report = gather(run_directory.write(tmp_path / "run", story, rehearsing=False))
    found = page(report)
    assert report.verdict is not None
    assert report.metrics is not None
    shown = [part.strip() for parts in found.texts.values() for part in parts]
    assert report.verdict.headline in shown
    assert {fault.text for fault in report.metrics.completion.faults} <= set(shown)
    assert all(any(tail.lines[-1] in part for part in shown) for tail in report.tails)


def test_a_run_that_wrote_nothing_has_a_report_too(tmp_path: Path) -> None:
    shown = [part.strip() for parts in page(gather(tmp_path)).texts.values() for part in parts]
    assert "NOT JUDGED" in shown
    assert "verdict.json is not there" in shown


@pytest.mark.slow
def test_of_a_long_run_every_extreme_is_drawn(tmp_path: Path) -> None:
    """Forty thousand steps, with a checkpoint at every tenth: the page stays small, and hides no spike or gap."""
    count = 40_000
    odd = {12_345: 9.0, 34_321: 0.01}
    losses = {3_333: 77.0, 26_666: 0.001, 30_001: math.nan}
    norms = {14_444: 500.0, 38_888: 1e-9}

    def story(spec: RunSpec) -> list[list[events.Event]]:
        made = streams.steps(
            spec,
            seconds=lambda n: odd.get(n, 0.5 + n % 7 / 100),
            loss=lambda n: losses.get(n, 6 - n / count + n % 11 / 100),
            grad_norm=lambda n: norms.get(n, 1 + n % 13 / 10),
        )
        saved = [events.Checkpoint(action="save", step=n, wall_time=made[n].wall_time) for n in range(0, count, 10)]
        return [recording.merge([[streams.started(spec), *made], saved])]

    asked = run_directory.asked_for(steps=count, topology=streams.make_spec().topology)
    report = gather(run_directory.write(tmp_path / "run", story, asked=asked, rehearsing=False))
    text = html.render(report)
    assert len(text.encode()) < 2_000_000
    assert "The run has more steps than can be drawn" in text
    data = json.loads(Page(text).texts["script"][0])
    drawn = {step: index for index, step in enumerate(data["steps"])}
    assert len(drawn) <= charts.MAX_POINTS + 1
    assert (data["steps"][0], data["steps"][-1]) == (0, count - 1)
    for series, extremes in (("seconds", odd), ("loss", losses), ("grad_norm", norms)):
        for step, value in extremes.items():
            assert data["curves"][series]["values"][drawn[step]] == (None if math.isnan(value) else value)
    assert max(after - before for before, after in pairwise(data["steps"])) < 200


@cache
def ordinary_page() -> Page:
    return Page(html.render(attacks.poisoned("x")))


@settings(max_examples=60)
@given(raw=attacks.text)
@example(raw="0/")  # a place that is but the folder of all logs
def test_no_text_becomes_markup(raw: str) -> None:
    evil = clean(raw)
    found, ordinary = Page(html.render(attacks.poisoned(raw))), ordinary_page()
    assert found.elements.count(("script", {})) == 1
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "style")]
    if evil.strip():
        assert [tag for tag, _ in found.elements] == [tag for tag, _ in ordinary.elements]
        shown = " ".join("".join(part for parts in found.texts.values() for part in parts).split())
        assert " ".join(evil.split()) in shown


def test_it_is_small(tmp_path: Path) -> None:
    text = html.render(gather(run_directory.write(tmp_path / "run")))
    assert len(text.encode()) < 200_000


def test_the_chart_library_has_its_licence_beside_it() -> None:
    assets = resources.files("seatrial.report") / "assets"
    script = (assets / "uplot-1.6.32.iife.min.js").read_text(encoding="utf-8")
    assert "(v1.6.32)" in script.splitlines()[0]
    assert (assets / "uplot-1.6.32.LICENSE").read_text(encoding="utf-8").startswith("The MIT License")
