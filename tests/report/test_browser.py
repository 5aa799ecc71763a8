"""The HTML report in a real browser: it draws, it answers to the mouse, and it is alone with its file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.history import compare_runs, list_runs
from seatrial.report import html, scaling_formats
from seatrial.report.gather import gather
from seatrial.report.scaling import measure_scaling
from tests.helpers import attacks, history_runs, page_stories, run_directory
from tests.helpers.browsing import DESKTOP, PHONE, Browser, browser_or_skip
from tests.helpers.html_pages import HOSTILE, hostile_run
from tests.helpers.run_directory import Story
from tests.helpers.scaling_runs import noisy, recipe, run
from tests.helpers.telemetry import entries, put

CHARTS = ("loss", "grad_norm", "seconds", "rate")

browser_or_skip()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()


def write_page(folder: Path, story: Story = run_directory.sound, **options: Any) -> Path:
    run = run_directory.write(folder / "run", story, **options)
    (run / "report.html").write_text(html.render(gather(run)), encoding="utf-8")
    return run / "report.html"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("sound"))


# Of a chart's canvas: its size, and how many of its pixels have the colour of the line.
INK = """
const canvas = document.querySelector(`#${arguments[0]} canvas`);
if (!canvas) return null;
const context = canvas.getContext("2d");
const probe = document.createElement("canvas").getContext("2d");
probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--line");
probe.fillRect(0, 0, 1, 1);
const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
const near = (i) => Math.abs(pixels[i] - r) + Math.abs(pixels[i + 1] - g) + Math.abs(pixels[i + 2] - b) < 30;
let ink = 0;
for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 200 && near(i)) ink += 1;
return {width: canvas.width, height: canvas.height, ink: ink};
"""
BOX = """
const box = document.querySelector(`#${arguments[0]} .u-over`).getBoundingClientRect();
return [box.x, box.y, box.width, box.height];
"""
# How far down a chart its line runs, as a part of the height: the row with most pixels of its colour.
DEPTH = INK.replace("let ink = 0;", "const rows = new Array(canvas.height).fill(0);").replace(
    "ink += 1;\nreturn",
    "rows[Math.floor(i / 4 / canvas.width)] += 1;\nreturn rows.indexOf(Math.max(...rows)) / canvas.height;\nreturn",
)
READOUT = "return document.getElementById(`${arguments[0]}-readout`).textContent"
READS = "return new RegExp(arguments[1]).test(document.getElementById(`${arguments[0]}-readout`).textContent)"
STORIES = (run_directory.sound, run_directory.killed, run_directory.diverged, run_directory.slow)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize(
    "story", [run_directory.sound, run_directory.killed, run_directory.diverged, run_directory.slow]
)
def test_every_report_is_drawn_quietly(
    browser: Browser, tmp_path: Path, story: Story, size: tuple[int, int], scheme: str
) -> None:
    page = write_page(tmp_path, story, rehearsing=story is run_directory.sound)
    browser.open(page, size, scheme)
    for chart in CHARTS:
        drawn = browser.wait(INK, chart)
        assert drawn["width"] > min(0.85 * size[0], 450)  # two side by side
        assert drawn["height"] > 150
        assert drawn["ink"] > 100, chart
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nodes_have_a_lane_each(browser: Browser, tmp_path: Path, size: tuple[int, int], scheme: str) -> None:
    run = run_directory.write(tmp_path / "run")
    for host in ("local0", "local1"):
        put(run, entries(host), host=host)
    (run / "report.html").write_text(html.render(gather(run)), encoding="utf-8")
    browser.open(run / "report.html", size, scheme)
    for node in range(2):
        for chart in range(1, 7):
            drawn = browser.wait(INK, f"node-{node} figure:nth-child({chart})")
            assert drawn["width"] > 200
            assert drawn["ink"] > 40, (node, chart)
    browser.run("document.querySelectorAll('.node details').forEach((each) => { each.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    browser.run("document.getElementById('node-1').scrollIntoView()")
    x, y, width, height = browser.wait(BOX, "node-1 figure:nth-child(1)")
    browser.mouse("mouseMoved", x + width - 2, y + height / 2)
    told = "return [...document.querySelectorAll('.lane figure:first-child output')].map((each) => each.textContent)"
    browser.wait(f"return (() => {{ {told} }})().every((each) => each === '15 s: 60 to 75')")  # of both nodes
    assert browser.complaints() == []


def test_the_first_screen_has_the_answer(browser: Browser, sound: Path) -> None:
    browser.open(sound)
    for selector in (".outcome", ".headline", ".axis:last-child", ".figures dl > div:last-child"):
        bottom = browser.run("return document.querySelector(arguments[0]).getBoundingClientRect().bottom", selector)
        assert bottom <= DESKTOP[1], selector
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.scheme("dark")
    assert browser.run(ground) != light


def test_charts_follow_the_colour_scheme(browser: Browser, sound: Path) -> None:
    browser.open(sound)
    assert browser.wait(INK, "loss")["ink"] > 100
    browser.scheme("dark")
    time.sleep(0.2)
    assert browser.wait(INK, "loss")["ink"] > 100  # measured against the dark scheme's colour


def test_hovering_reads_the_values_of_all_charts(browser: Browser, sound: Path) -> None:
    browser.open(sound)
    browser.run("document.getElementById('loss').scrollIntoView()")
    x, y, width, height = browser.wait(BOX, "loss")
    at_rest = browser.run(READOUT, "seconds")
    assert at_rest.startswith("median 0.4")
    browser.mouse("mouseMoved", x + width * 12.5 / 30, y + height / 2)
    browser.wait(READS, "loss", "^step 12: ")
    expected = 6.24 * 0.975**12
    assert float(browser.run(READOUT, "loss").split()[-1]) == pytest.approx(expected, rel=1e-4)
    assert browser.run(READOUT, "seconds").startswith("step 12: 0.4")
    assert browser.run(READOUT, "rate").startswith("step 12: ")


def test_zooming_in_and_back(browser: Browser, sound: Path) -> None:
    browser.open(sound)
    browser.run("document.getElementById('loss').scrollIntoView()")
    x, y, width, height = browser.wait(BOX, "loss")
    assert browser.run("return document.getElementById('reset').hidden")
    left, right, middle = x + width * 10 / 30, x + width * 20 / 30, y + height / 2
    browser.mouse("mouseMoved", left, middle)
    browser.mouse("mousePressed", left, middle, buttons=1, clicks=1)
    browser.mouse("mouseMoved", (left + right) / 2, middle, buttons=1)
    browser.mouse("mouseMoved", right, middle, buttons=1)
    browser.mouse("mouseReleased", right, middle, clicks=1)
    browser.wait("return !document.getElementById('reset').hidden")
    for chart in CHARTS:  # the left edge now is near step 10, in each of them
        cx, cy, _, _ = browser.run(BOX, chart)
        browser.mouse("mouseMoved", cx + 2, cy + 10)
        browser.wait(READS, chart, "^step (9|10|11): ")
    browser.run("document.getElementById('reset').click()")
    browser.wait("return document.getElementById('reset').hidden")
    x, y, width, height = browser.run(BOX, "loss")
    browser.mouse("mouseMoved", x + 2, y + 10)
    browser.wait(READS, "loss", "^step 0: ")


def test_charts_follow_the_window(browser: Browser, sound: Path) -> None:
    browser.open(sound)
    wide = browser.wait(INK, "loss")["width"]
    browser.open(sound, (800, 800))
    assert browser.wait(INK, "loss")["width"] < wide
    browser.resize((1000, 800))
    browser.wait("return document.querySelector('#loss canvas').clientWidth > 420")
    assert browser.run("return document.documentElement.scrollWidth") <= 1000


def test_it_prints_and_looks_the_same_afterwards(browser: Browser, sound: Path) -> None:
    browser.open(sound, scheme="dark")
    before = browser.wait(INK, "loss")
    assert len(browser.print()) > 10_000
    browser.wait("return !document.documentElement.classList.contains('printing')")
    assert browser.wait(INK, "loss")["width"] == before["width"]
    assert browser.complaints() == []


def test_hostile_text_does_nothing(browser: Browser, tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    (run / "report.html").write_text(html.render(gather(run)), encoding="utf-8")
    _does_nothing(browser, run / "report.html")


def test_hostile_logs_do_nothing_in_what_is_said_of_them(browser: Browser, tmp_path: Path) -> None:
    report = attacks.poisoned(" ".join((*HOSTILE, *attacks.PIECES, "y" * 20_000)))
    (tmp_path / "report.html").write_text(html.render(report), encoding="utf-8")
    _does_nothing(browser, tmp_path / "report.html")


def _does_nothing(browser: Browser, page: Path) -> None:
    for size in (DESKTOP, PHONE):
        browser.open(page, size)
        assert browser.wait(INK, "loss")["ink"] > 100
        assert browser.run("return window.owned === undefined")
        assert browser.run("return document.querySelectorAll('img, iframe, body script').length") == 2
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_how_runs_scale_is_drawn(browser: Browser, tmp_path: Path, scheme: str) -> None:
    reports = [run(tmp_path, recipe(devices), noisy(7.0, devices)) for devices in (64, 128, 256)]
    page = tmp_path / "scaling.html"
    page.write_text(scaling_formats.as_html(measure_scaling(reports)), encoding="utf-8")
    for size in (PHONE, DESKTOP):
        browser.open(page, size, scheme)
        assert browser.wait(INK, "rate")["ink"] > 100
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]
    x, y, width, height = browser.run(BOX, "rate")
    browser.mouse("mouseMoved", x + width / 2, y + height / 2)
    browser.wait(READS, "rate", "^128 devices: 1,1")


def test_the_policy_stops_a_script_that_got_in_all_the_same(browser: Browser, tmp_path: Path, sound: Path) -> None:
    broken = tmp_path / "broken.html"
    slipped = "<img src=x onerror='window.owned = 1'><script>window.owned = 2</script><h1>"
    broken.write_text(sound.read_text(encoding="utf-8").replace("<h1>", slipped), encoding="utf-8")
    browser.open(broken)
    browser.wait(INK, "loss")
    assert browser.run("return window.owned === undefined")
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_a_run_without_steps_needs_no_charts(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    page = tmp_path / "run" / "report.html"
    page.write_text(html.render(gather(tmp_path / "run")), encoding="utf-8")
    browser.open(page)
    assert browser.run("return document.querySelector('.outcome').textContent") == "NOT JUDGED"
    assert browser.complaints() == []


# --- eight kinds of run, and pages of several: looked at in both sizes and schemes ---

NARROW = (390, 740)
HALF = (760, 900)  # of a screen
# Texts that are drawn over each other, or cut by their box; what stands in another one is part of it.
OVERLAPS = """
const where = ["h1, h2, .label, .tick, figcaption span, figcaption output, .contents a, .tools label, .legend li",
  "dt, dd, .exit, .outcome, .headline, td, .scale span"];
const texts = [...document.querySelectorAll(where)]
  .filter((each) => each.textContent.trim() && each.checkVisibility())
  .map((each) => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width > 1 && box.height > 1);
const found = [];
for (let a = 0; a < texts.length; a += 1) {
  for (let b = a + 1; b < texts.length; b += 1) {
    const [[one, p], [other, q]] = [texts[a], texts[b]];
    const beside = p.right <= q.left + 0.5 || q.right <= p.left + 0.5;
    const apart = beside || p.bottom <= q.top + 0.5 || q.bottom <= p.top + 0.5;
    if (!apart && !one.contains(other) && !other.contains(one)) found.push(`${one.textContent} / ${other.textContent}`);
  }
}
return found;
"""
# The longest row (or column) of pixels of the target's colour on a chart, as a part of its width (or height).
TARGET = """
const canvas = document.querySelector(`#${arguments[0]} canvas`);
const probe = document.createElement("canvas").getContext("2d");
probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--target");
probe.fillRect(0, 0, 1, 1);
const wanted = probe.getImageData(0, 0, 1, 1).data;
const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const [rows, columns] = [new Array(height).fill(0), new Array(width).fill(0)];
for (let i = 0; i < data.length; i += 4) {
  const away = [0, 1, 2].reduce((sum, c) => sum + Math.abs(data[i + c] - wanted[c]), 0);
  if (data[i + 3] > 100 && away < 60) { rows[Math.floor(i / 4 / width)] += 1; columns[(i / 4) % width] += 1; }
}
return [Math.max(...rows) / width, Math.max(...columns) / height];
"""
CHARTS_OF = "return [...document.querySelectorAll('.charts .chart')].map((each) => each.id)"
# Kind of run → the charts on which its targets are drawn: across, or down.
ACROSS = {
    "healthy": ("seconds", "rate", "evals"), "not-finite": ("seconds", "rate"), "retries": ("seconds", "rate"),
    "fine-tuned": ("evals",), "mlperf": ("evals",), "shifted": ("seconds", "rate"),
}  # fmt: skip
DOWN = {"healthy", "shifted"}


def pages_of_several(folder: Path) -> dict[str, Path]:
    """A comparison of which a side becomes slower, and the history of its runs and two more."""
    spec = history_runs.one_node(steps=120)
    runs = folder / "runs"
    one = history_runs.make(runs / "before", spec=spec, seed=1)
    other = history_runs.make(runs / "after", spec=spec, seed=2, times=1.021, noise=0.004)
    history_runs.make(runs / "night", spec=spec, seed=3)
    history_runs.make(runs / "died", spec=spec, seed=4, last=40)
    compare_runs(str(one), str(other), limit=0.01, output="html")
    (folder / "history.html").write_text(list_runs(runs, output="html", path=folder / "index"), encoding="utf-8")
    return {"comparison": Path("comparison.html").absolute(), "history": folder / "history.html"}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.chdir(folder)
        several = pages_of_several(folder)
    return {name: make(folder / name) for name, make in page_stories.KINDS.items()} | several


@pytest.mark.parametrize("kind", [*page_stories.KINDS, "comparison", "history"])
def test_pages_have_their_targets_and_no_text_over_another(browser: Browser, kinds: dict[str, Path], kind: str) -> None:
    page = kinds[kind]
    for size, scheme in ((size, scheme) for size in (DESKTOP, HALF, NARROW) for scheme in ("light", "dark")):
        browser.open(page, size, scheme)
        charts = browser.wait(CHARTS_OF)
        for chart in charts:
            browser.wait("return document.querySelector(`#${arguments[0]} canvas`)", chart)
        for chart in ACROSS.get(kind, ()):
            assert browser.wait(TARGET, chart)[0] > 0.2, (chart, size, scheme)
        if kind in DOWN:
            assert browser.run(TARGET, "histogram")[1] > 0.2
        assert browser.run(OVERLAPS) == [], (size, scheme)
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]


def test_targets_have_their_names_on_the_chart(browser: Browser, kinds: dict[str, Path]) -> None:
    browser.open(kinds["shifted"])
    texts = "return [...document.querySelectorAll(`#${arguments[0]} .label`)].map((each) => each.textContent)"
    named = {"target ≥ 841.5 tokens/s", "target ≥ 379.2 TFLOP/s"}
    for chart in ("seconds", "rate"):
        assert set(browser.wait(texts, chart)) == named | {"slower by 8.9% from step 160"}
    assert named <= set(browser.run(texts, "histogram"))


def test_smoothing_axis_and_clipping_change_the_charts(browser: Browser, kinds: dict[str, Path]) -> None:
    browser.open(kinds["healthy"])
    pixels = "return document.querySelector(`#${arguments[0]} canvas`).toDataURL()"
    change = (
        "const control = document.getElementById(arguments[0]); control[arguments[1]] = arguments[2]; "
        "control.dispatchEvent(new Event('change'))"
    )
    assert browser.run("return document.getElementById('smoothing').value") != "0"  # of so many steps from the start
    before = browser.wait(pixels, "grad_norm")
    for control, field, value in (("smoothing", "value", "0"), ("log", "checked", True), ("clip", "checked", False)):
        browser.run(change, control, field, value)
        after = browser.run(pixels, "grad_norm")
        assert after != before, control
        before = after
    assert browser.complaints() == []


def test_outliers_leave_the_frame_until_they_are_asked_for(browser: Browser, kinds: dict[str, Path]) -> None:
    """The first step took 95 s and the others 57: with it, these run along the bottom."""
    browser.open(kinds["healthy"])
    assert 0.3 < browser.wait(DEPTH, "seconds") < 0.6
    browser.run("document.getElementById('clip').click()")
    assert browser.run(DEPTH, "seconds") > 0.6


def test_the_keyboard_reads_and_zooms(browser: Browser, kinds: dict[str, Path]) -> None:
    browser.open(kinds["shifted"])
    browser.run("document.getElementById('loss').focus()")
    browser.key("ArrowRight")
    browser.wait(READS, "loss", "^step 0: ")
    browser.key("ArrowRight")
    browser.wait(READS, "loss", "^step 1: ")
    browser.key("End")
    browser.wait(READS, "seconds", "^step 319: ")  # all charts read the same step
    browser.key("+")
    browser.wait("return !document.getElementById('reset').hidden")
    browser.key("Escape")
    browser.wait("return document.getElementById('reset').hidden")
    browser.wait(READS, "loss", "^last ")


def test_the_map_of_ranks_shows_and_reads_the_straggler(browser: Browser, kinds: dict[str, Path]) -> None:
    warmth = """
    const canvas = document.querySelector("#ranks-map canvas");
    const context = canvas.getContext("2d", {willReadFrequently: true});
    const [x, height] = [Math.round(0.3 * canvas.width), canvas.height / 64];
    return [20, 37].map((rank) => context.getImageData(x, Math.round((rank + 0.5) * height), 1, 1).data[2]);
    """
    texts = "return [...document.querySelectorAll('#ranks-map .tick')].map((each) => each.textContent)"
    for size in (DESKTOP, NARROW):
        browser.open(kinds["straggler"], size)
        usual, slow = browser.wait(warmth)
        assert usual - slow > 40
        assert {"rank 0", "rank 37", "rank 63", "step 0", "step 199"} <= set(browser.run(texts))
        assert browser.run(READOUT, "ranks") == "slowest: rank 37, +12.0%"
        browser.run("document.getElementById('ranks-map').focus()")
        browser.key("ArrowRight")
        for _ in range(37):
            browser.key("ArrowDown")
        browser.wait(READS, "ranks", "^rank 37, step 0: ")
        for _ in range(9):
            browser.key("ArrowRight")
        browser.wait(READS, "ranks", r"^rank 37, step 9: 10\.\d+ s, 1\.1\d+ × the median$")


def test_the_curves_of_a_comparison_are_read_together(browser: Browser, kinds: dict[str, Path]) -> None:
    browser.open(kinds["comparison"])
    browser.run("document.getElementById('seconds').focus()")
    browser.key("End")
    browser.wait(READS, "seconds", r"^step 119: A 2[78]\.\d\d, B 28\.\d\d s$")
    assert browser.run("return document.querySelectorAll('.interval .reach').length") == 4
    assert browser.run("return document.querySelector('.outcome').textContent") == "GATE: FAIL"
