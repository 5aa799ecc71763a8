"""Comparisons and the history as HTML: complete, inert, and written where one stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seatrial.history import compare, list_runs, load, overlays
from seatrial.history.comparison_page import render
from seatrial.history.gate import judge_slowdown
from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import make, one_node
from tests.helpers.html_pages import Page

EVIL = "run<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    spec = one_node(steps=120)
    return make(folder / "before", spec=spec, seed=1), make(folder / EVIL, spec=spec, seed=2, times=1.03)


def words(page: Page) -> str:
    return " ".join("".join(part for parts in page.texts.values() for part in parts).split())


def test_a_comparison_as_html(pair: tuple[Path, Path]) -> None:
    found = compare(*map(load, pair))
    page = Page(render(found, None))
    assert found.sentence in words(page)
    assert "B IS SLOWER" in words(page)
    assert "img" not in {tag for tag, _ in page.elements}
    assert EVIL in words(page)
    data = json.loads(page.texts["script"][0], parse_constant=lambda constant: 1 / 0)["overlays"]
    assert [run["name"] for run in data["runs"]] == ["A", "B"]
    assert set(data["charts"]) == {"loss", "seconds", "rate", "grad_norm"}
    assert len(data["runs"][1]["steps"]) == 120


def test_intervals_lie_on_the_side_of_the_change(pair: tuple[Path, Path]) -> None:
    """The middle is no change: step time rises to the right of it, rates fall to the left."""
    page = Page(render(compare(*map(load, pair)), None))
    lines = [attributes for tag, attributes in page.elements if tag == "line" and attributes.get("class") == "reach"]
    places = [(float(line["x1"] or 0), float(line["x2"] or 0)) for line in lines]
    assert len(places) == 4
    assert sum(low > 50 for low, _ in places) == 1
    assert sum(high < 50 for _, high in places) == 3
    assert all(0 < low < high < 100 for low, high in places)


def test_a_gate_is_the_answer(pair: tuple[Path, Path]) -> None:
    found = compare(*map(load, pair))
    assert "GATE: FAIL" in words(Page(render(found, judge_slowdown(found, 0.01))))
    assert "exit code 1" in words(Page(render(found, judge_slowdown(found, 0.01))))
    assert "GATE: PASS" in words(Page(render(found, judge_slowdown(found, 0.1))))


def test_shifts_of_each_run_are_named(tmp_path: Path) -> None:
    spec = one_node(steps=200)
    run = make(tmp_path / "late", spec=spec, seed=3)
    events = run / "events-0.jsonl"
    slower = re.sub(
        r'"step": (\d+), "seconds": ([\d.]+)',
        lambda m: f'"step": {m[1]}, "seconds": {float(m[2]) * (1.1 if int(m[1]) >= 120 else 1)}',
        events.read_text(encoding="utf-8"),
    )
    events.write_text(slower, encoding="utf-8")
    assert seatrial("judge", str(run), cwd=tmp_path).returncode == 0
    one, other = load(make(tmp_path / "even", spec=spec, seed=4)), load(run)
    rows = overlays.shifts([overlays.Drawn("A", one, "run-a"), overlays.Drawn("B", other, "run-b")]).rows
    assert [(row[0], row[1], row[2]) for row in rows] == [("B", "120", "slower by 10.0%")]
    data = overlays.overlays([overlays.Drawn("A", one, "run-a"), overlays.Drawn("B", other, "run-b")])
    assert [(mark["step"], mark["tone"]) for mark in data["marks"]] == [(120, "run-b")]


def test_the_history_as_html(pair: tuple[Path, Path], tmp_path: Path) -> None:
    root = pair[0].parent
    page = Page(list_runs(root, output="html", path=tmp_path / "index"))
    shown = words(page)
    assert all(cell in shown for cell in ("tokens/s/dev", "llama3.1-70b", "before", EVIL))
    assert shown.count(str(root)) == 2  # in the titles: the rows have their places below it
    assert "img" not in {tag for tag, _ in page.elements}
    data = json.loads(page.texts["script"][0])
    assert len(data["speeds"]) == 2
    assert all(speed["low"] <= speed["rate"] <= speed["high"] for speed in data["speeds"])
    assert len(data["overlays"]["runs"]) == 2


def test_a_history_without_a_run_has_a_page(tmp_path: Path) -> None:
    assert "no runs below" in list_runs(tmp_path, output="html", path=tmp_path / "index")


def test_pages_are_written_where_one_stands(pair: tuple[Path, Path], tmp_path: Path) -> None:
    done = seatrial("compare", *map(str, pair), "--format", "html", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "report: comparison.html")
    assert (tmp_path / "comparison.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    done = seatrial("history", "--root", str(pair[0].parent), "--format", "html", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "report: history.html")
    assert (tmp_path / "history.html").is_file()
