"""Headless Chromium for the tests that look at pages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

DESKTOP, PHONE = (1280, 800), (360, 740)
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def browser_or_skip() -> None:
    """Skips the module that calls it where there is no browser, or fails where one is required."""
    if CHROMIUM and DRIVER:
        return
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

    def open(self, page: Path | str, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Loads a file or an address in a window of a size, with the reader's colour scheme."""
        self._drain()
        self.resize(size)
        self.scheme(scheme)
        self._driver.get(page if isinstance(page, str) else page.as_uri())

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

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self._driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name})

    def mouse(self, kind: str, x: float, y: float, *, buttons: int = 0, clicks: int = 0) -> None:
        event = {"type": kind, "x": x, "y": y, "buttons": buttons, "clickCount": clicks}
        if kind != "mouseMoved":
            event["button"] = "left"
        self._driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def print(self) -> str:
        return str(self._driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])

    def complaints(self) -> list[str]:
        """The console's messages since the page was opened."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every URL that the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])

    def _drain(self) -> None:
        self._driver.get_log("browser")
        self._driver.get_log("performance")

    def quit(self) -> None:
        self._driver.quit()
