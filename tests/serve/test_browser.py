"""The page over all runs in a real browser: it fits, filters, follows runs that go on, and opens reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import many_runs
from tests.helpers.browsing import DESKTOP, Browser, browser_or_skip
from tests.helpers.html_pages import hostile_run
from tests.helpers.many_runs import LiveRun
from tests.helpers.serving import Server, serving

browser_or_skip()

NARROW = (390, 844)
HALF = (760, 900)  # of a screen
WIDE = (1920, 1080)
WIDTH = "return document.documentElement.scrollWidth"
INK = """
const canvas = document.querySelector("#trend canvas");
if (!canvas) return 0;
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
let ink = 0;
for (let i = 3; i < pixels.length; i += 4) ink += pixels[i] > 200;
return ink;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()


def own_requests(browser: Browser, server: Server) -> bool:
    return all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in browser.requests() if url != "about:blank")


def check_pages(browser: Browser, server: Server, runs: int, live: LiveRun) -> None:
    """Everything that a person does with the page, from the first look to a comparison."""
    server.wait("/", f"<b>{runs:,}</b> runs", 120)
    for size, scheme in ((size, scheme) for size in (WIDE, DESKTOP, NARROW) for scheme in ("light", "dark")):
        for path in ("/", "/configurations"):
            browser.open(server.address + path[1:], size, scheme)
            assert browser.wait("return document.querySelectorAll('tbody tr').length", seconds=20) > 3
            assert browser.run(WIDTH) <= size[0], (path, size)
            browser.wait("return document.getElementById('linked').textContent === 'live'", seconds=20)
            assert browser.complaints() == []
            assert own_requests(browser, server)
    _filter(browser, server)
    _follow(browser, server, live)
    _look_into(browser, server)


def _filter(browser: Browser, server: Server) -> None:
    browser.open(server.address)
    browser.run(
        "const model = document.querySelector('select[name=model]'); model.value = 'llama3.1-8b';"
        "model.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.wait("return location.search === '?model=llama3.1-8b'", seconds=20)
    models = "return [...document.querySelectorAll('.over .work a')].map((each) => each.textContent)"
    assert set(browser.wait(models, seconds=20)) == {"llama3.1-8b"}
    browser.run("document.querySelector('.outcomes a.fail').click()")
    browser.wait("return location.search.includes('model=llama3.1-8b') && location.search.includes('outcome=')")
    outcomes = "return [...document.querySelectorAll('.over td.status')].map((each) => each.textContent)"
    assert len(set(browser.wait(outcomes, seconds=20))) == 1


def _follow(browser: Browser, server: Server, live: LiveRun) -> None:
    """A step is on the page soon after it was written; no other page is loaded for it."""
    browser.open(server.address)
    browser.wait("return document.getElementById('linked').textContent === 'live'", seconds=20)
    step = live.step(seconds=28.0) + 1
    shown = "return document.querySelector('[data-cell=steps]').textContent === arguments[0]"
    browser.wait(shown, f"{step} of 1,000", seconds=20)
    browser.wait("return Number(document.querySelector('.live progress').value) === arguments[0]", step, seconds=20)
    other = LiveRun(live.directory.with_name("new-run"), 1)
    browser.wait("return document.body.textContent.includes('new-run')", seconds=20)
    many_runs.put_status(other.directory, state="ended")
    browser.wait("return document.getElementById('said').textContent === 'new-run: not judged'", seconds=20)


def _look_into(browser: Browser, server: Server) -> None:
    browser.open(server.address + "?outcome=pass&model=llama3.1-8b&device=NVIDIA+H100+80GB+HBM3&q=1n")
    browser.run("[...document.querySelectorAll('.over input[name=run]')].slice(0, 2).forEach((each) => each.click())")
    assert browser.run("return document.querySelector('#picked button').disabled") is False
    report = browser.run("return document.querySelector('.over tbody th a').href")
    browser.run("document.querySelector('#picked button').click()")
    browser.wait("return document.querySelector('h1')?.textContent === 'B compared with A'", seconds=60)
    browser.wait("return document.querySelectorAll('canvas').length > 1", seconds=20)
    assert browser.complaints() == []
    browser.open(report)
    assert browser.wait("return document.querySelector('.outcome').textContent", seconds=60) == "PASS"
    browser.wait("return document.querySelectorAll('canvas').length > 3", seconds=20)
    assert browser.complaints() == []
    browser.open(server.address + "configurations")
    drawn = "[...document.querySelectorAll('.configurations tr')].find((each) => each.querySelector('svg'))"
    group = browser.run(f"return {drawn}.querySelector('th a').href")
    for size, scheme in ((DESKTOP, "light"), (DESKTOP, "dark"), (NARROW, "light")):
        browser.open(group, size, scheme)
        assert browser.wait(INK, seconds=20) > 100
        assert browser.run(WIDTH) <= size[0]
        assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [5000])
def test_the_page_from_the_first_look_to_a_comparison(browser: Browser, tmp_path: Path, count: int) -> None:
    runs = many_runs.write(tmp_path / "runs", count, seed=2)
    live = LiveRun(runs / "live", 0, nodes=("node00", "node01"))
    live.step(seconds=60.0)
    with serving(runs, data=tmp_path / "data") as server:
        check_pages(browser, server, count + 1, live)


def test_hostile_runs_do_nothing(browser: Browser, tmp_path: Path) -> None:
    for name in ("<img src=x onerror='window.owned = 1'>", "\" autofocus onfocus='window.owned = 2"):
        hostile_run(tmp_path / "runs" / name)
    evil = tmp_path / "runs" / "<svg onload=alert(1)>"
    live = LiveRun(evil, 0, nodes=("<img src=x onerror='window.owned = 3'>",))
    live.step()
    with serving(tmp_path / "runs", data=tmp_path / "data") as server:
        server.wait("/", "<b>3</b> runs")
        for path in ("", "configurations"):
            browser.open(server.address + path, NARROW)
            browser.wait(
                "return document.querySelectorAll('tbody tr').length === arguments[0]", 3 if not path else 2, seconds=20
            )
            browser.wait("return document.getElementById('linked').textContent === 'live'", seconds=20)
            live.write(many_runs.streams.fault("x", "y", "<img src=x onerror='window.owned = 4'>"))
            live.step()
            if not path:
                browser.wait(
                    "return document.querySelector('[data-cell=event]').textContent.includes('<img')", seconds=20
                )
            time.sleep(0.2)
            assert browser.run(
                "return window.owned === undefined && !document.querySelector('img, main svg[onload], iframe')"
            )
            assert browser.run(WIDTH) <= NARROW[0]
            assert browser.complaints() == []
        for size in (HALF, DESKTOP):  # however long a device's name is
            for path, rows in (("", 3), ("configurations", 2)):
                browser.open(server.address + path, size)
                browser.wait("return document.querySelectorAll('tbody tr').length === arguments[0]", rows, seconds=20)
                assert browser.run(WIDTH) <= size[0], (path, size)
        report = "return [...document.querySelectorAll('tbody th a')].map((each) => each.href)"
        browser.open(server.address)
        for address in browser.run(report):
            browser.open(address)
            browser.wait("return document.querySelector('.outcome')", seconds=60)
            assert browser.run("return window.owned === undefined")
            assert own_requests(browser, server)


def test_what_got_into_a_report_all_the_same_has_no_rights(browser: Browser, tmp_path: Path) -> None:
    run = many_runs.write(tmp_path / "runs", 1)
    with serving(run, data=tmp_path / "data") as server:
        server.wait("/", "<b>1</b> runs")
        browser.open(server.address)
        browser.open(browser.run("return document.querySelector('tbody th a').href"))
        browser.wait("return document.querySelector('.outcome')", seconds=60)
        assert browser.run("return window.origin") == "null"
