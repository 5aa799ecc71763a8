"""The HTML report in a real browser: it draws, it answers to the mouse, and it is alone with its file."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.report import html, scaling_formats
from seatrial.report.gather import gather
from seatrial.report.scaling import measure_scaling
from tests.helpers import attacks, run_directory
from tests.helpers.html_pages import HOSTILE, hostile_run
from tests.helpers.run_directory import Story
from tests.helpers.scaling_runs import noisy, recipe, run
from tests.helpers.telemetry import entries, put

DESKTOP, PHONE = (1280, 800), (360, 740)
CHARTS = ("loss", "grad_norm", "seconds", "rate")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    if os.environ.get("SEATRIAL_REQUIRE_BROWSER"):
        raise RuntimeError("SEATRIAL_REQUIRE_BROWSER is set, but chromium or chromedriver is not installed")
    pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)", allow_module_level=True)


class Browser:
    """Headless Chromium with what a test asks of it."""

    def __init__(self, profile: Path) -> None:
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService

        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
            f"--user-data-dir={profile}",
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self._driver = Chrome(options=options, service=ChromeService(DRIVER))
        self._driver.get("about:blank")  # the page that the browser itself begins with may still be loading

    def open(self, page: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Loads a page in a window of a size, with the reader's colour scheme."""
        self._drain()
        self.resize(size)
        self.scheme(scheme)
        self._driver.get(page.as_uri())

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any, seconds: float = 5) -> Any:
        """The script's value as soon as there is one."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < deadline, f"still not: {script}"
            time.sleep(0.02)
        return value

    def mouse(self, kind: str, x: float, y: float, *, buttons: int = 0, clicks: int = 0) -> None:
        event = {"type": kind, "x": x, "y": y, "buttons": buttons, "clickCount": clicks}
        if kind != "mouseMoved":
            event["button"] = "left"
        self._driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def print(self) -> str:
        return str(self._driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])

    def complaints(self) -> list[str]:
        """What the console said since the page was opened."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every URL that the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def _drain(self) -> None:
        self._driver.get_log("browser")
        self._driver.get_log("performance")

    def quit(self) -> None:
        self._driver.quit()


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
