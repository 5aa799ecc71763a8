"""The live display in a terminal: one progress bar at any width; a resize, Ctrl-C or an end leaves nothing behind."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from seatrial.launch.live import Live, clock, gauge
from tests.helpers.terminal import WITH_TERMINAL, Terminal
from tests.helpers.tiny_runs import FOREVER, SEATRIAL, TINY, write_config

ROWS = 40
BAR = re.compile("[━─]{4}")
PATIENCE = 120.0
# Of the tests' variables: a terminal has its own, and a program from the cache is there before its phase is seen.
WITHOUT = ("COLUMNS", "LINES", "NO_COLOR", "JAX_COMPILATION_CACHE_DIR")


class Run:
    """`seatrial …` with a terminal of its own, whose size can be changed and whose keys can be pressed."""

    def __init__(self, *arguments: str, columns: int, cwd: Path) -> None:
        self.terminal = Terminal(columns)
        self.master, other = pty.openpty()
        self._set_size(columns)
        environment = {name: value for name, value in os.environ.items() if name not in WITHOUT}
        self.program = subprocess.Popen(
            [sys.executable, "-c", WITH_TERMINAL, *SEATRIAL, *arguments], cwd=cwd, start_new_session=True,
            stdin=other, stdout=other, stderr=other,
            env={**environment, "TERM": "xterm-256color", "XDG_DATA_HOME": str(cwd / "data")},
        )  # fmt: skip
        os.close(other)
        self.before = termios.tcgetattr(self.master)
        self.decoder, self.left = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def _set_size(self, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))  # sends SIGWINCH too

    def resize(self, columns: int) -> None:
        """Another width, and what is drawn in it. What was drawn for the old one has arrived before."""
        self.program.send_signal(signal.SIGSTOP)
        self.wait(lambda: psutil.Process(self.program.pid).status() == psutil.STATUS_STOPPED)
        self.read(0.0)
        self.terminal.resize(columns)
        self._set_size(columns)
        self.program.send_signal(signal.SIGCONT)
        drawn = self.terminal.erased + 2  # the first may have been begun before
        self.wait(lambda: self.terminal.erased >= drawn)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def read(self, seconds: float) -> bool:
        """Takes what is printed for so long; False when the program has ended."""
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self.master], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return True
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                return False
            text = self.decoder.decode(data)
            text, begun = _split(self.left + text)
            self.terminal.write(text)
            self.left = begun

    def wait(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.terminal.lines()
            if not self.read(0.05):
                assert condition(), self.terminal.lines()
                return

    def end(self) -> int:
        until = time.monotonic() + PATIENCE
        while self.read(0.1):
            assert time.monotonic() < until
        return self.program.wait(PATIENCE)

    def stop(self) -> None:
        """Ends the run of a test that failed before its end."""
        if self.program.poll() is None:
            self.program.terminate()
            self.end()

    def bars(self) -> list[str]:
        return [line for line in self.terminal.lines() if BAR.search(line)]


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `seatrial …` in a terminal."""
    runs: list[Run] = []

    def started(*arguments: str, columns: int) -> Run:
        runs.append(Run(*arguments, columns=columns, cwd=tmp_path))
        return runs[-1]

    yield started
    for run in runs:
        run.stop()


def _split(text: str) -> tuple[str, str]:
    """The text, and the beginning of a control sequence at its end."""
    begun = re.search(r"\x1b(\[[0-9;?]*)?$", text)
    return (text[: begun.start()], begun[0]) if begun else (text, "")


@pytest.mark.parametrize(
    ("columns", "then"), [(60, 120), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((80, 44), (120, 60)))]
)
def test_a_run_in_a_terminal_that_is_resized_and_interrupted(
    start: Start, columns: int, then: int, tmp_path: Path
) -> None:
    # Four layers compiled one by one take seconds, so that the display sees it on a machine of any speed.
    slow_to_compile = {"model": TINY["model"] | {"num_layers": 4}, "execution": {"scan_layers": False}}
    write_config(tmp_path, **slow_to_compile)
    run = start("run", "tiny.json", "--out", "run", columns=columns)
    phases: set[str] = set()

    def steps_done() -> bool:
        phases.update(re.findall(r"^(reading the data|making the model|compiling the step)  0:0\d:\d\d$",
                                 "\n".join(run.terminal.lines()), re.MULTILINE))  # fmt: skip
        return bool(run.bars()) and any("tokens/s" in line for line in run.terminal.lines())

    run.wait(steps_done)
    assert "compiling the step" in phases  # the short ones may begin and end between two looks
    for width in (columns, then, columns, then):
        if width != run.terminal.columns:
            run.resize(width)
        (shown,) = run.bars()
        assert re.fullmatch(r"[━─]+  step [\d,]+/1,000,000 +0%  0:\d\d:\d\d", shown), run.terminal.lines()
        assert len(shown) < width
        assert sum(line.startswith("tiny: ") for line in run.terminal.lines()) == 1
        figures = next(line for line in run.terminal.lines() if line.startswith("loss "))
        assert re.search(r"tokens/s  [\d.]+ s/step  ", figures) or width < 60
    run.press(b"\x03")
    assert run.end() == 130
    told = run.terminal.whole_lines()
    assert [line for line in told if BAR.search(line)] == []
    assert sum(line.startswith("step ") for line in told) == 1  # how far it came
    assert sum(line.startswith("run directory: ") for line in told) == 1
    assert sum(line.startswith("INTERRUPTED") for line in told) == 1
    assert not any("compiling the step  " in line or line.startswith("stopping") for line in told)
    assert "Traceback" not in "\n".join(told)
    assert_as_before(run)


def test_a_run_that_ends_by_itself_leaves_one_line_of_progress(start: Start, tmp_path: Path) -> None:
    write_config(tmp_path, steps=20)
    run = start("run", "tiny.json", "--out", "run", columns=100)
    run.end()
    told = run.terminal.whole_lines()
    assert next(line for line in told if line.startswith("step ")).startswith("step 20/20  loss ")
    assert [line for line in told if BAR.search(line)] == []
    assert_as_before(run)


@pytest.mark.slow
def test_a_killed_launcher_leaves_the_terminal_as_it_was(start: Start, tmp_path: Path) -> None:
    write_config(tmp_path, steps=FOREVER)
    run = start("run", "tiny.json", "--out", "run", columns=80)
    run.wait(run.bars)
    run.program.kill()
    run.read(0.5)
    assert run.program.wait(PATIENCE) == -signal.SIGKILL
    assert_as_before(run)


def assert_as_before(run: Run) -> None:
    """The cursor is visible, the other screen off, the echo on; and nothing was used that this terminal cannot do."""
    terminal = run.terminal
    assert terminal.modes.get("25") is True
    assert not any(terminal.modes.get(mode) for mode in ("47", "1047", "1049", "1000", "1002", "2004"))
    assert terminal.unknown == []
    after = termios.tcgetattr(run.master)
    assert after[:6] == run.before[:6]
    assert after[3] & termios.ECHO
    assert after[3] & termios.ICANON
    assert after[3] & termios.ISIG
    os.close(run.master)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_drawn_said_and_resized_the_screen_has_the_last_lines_alone(seed: int) -> None:
    randoms = random.Random(seed)
    columns = randoms.randint(20, 140)
    terminal, output, said = Terminal(columns), io.StringIO(), list[str]()
    console = Console(file=output, force_terminal=True, width=columns, height=ROWS)
    live, drawn = Live(console), list[str]()

    def words(most: int) -> str:
        return "".join(randoms.choice("abc défgh━") for _ in range(randoms.randint(1, most))).strip() or "x"

    for _ in range(60):
        action = randoms.choice(["draw", "draw", "say", "resize", "end"])
        if action == "draw":
            lines = [(words(200), randoms.choice(["", "bold", "green"])) for _ in range(randoms.randint(1, 9))]
            live.draw(lines)
            drawn = [text if len(text) < columns else f"{text[: columns - 2]}…" for text, _ in lines]
        elif action == "say":
            said.append(words(200))
            live.say(said[-1])
        elif action == "end":
            last = words(20) if randoms.random() < 0.5 else ""
            live.end(last)
            said, drawn = [*said, *([last] if last else [])], []
        else:
            columns = randoms.randint(20, 140)
            terminal.resize(columns)
            console.width = columns
            continue  # what stands there is as wide as it was until it is drawn again
        terminal.write(output.getvalue().replace("\n", "\r\n"))
        output.seek(0)
        output.truncate()
        if action == "say":
            drawn = [text if len(text) < columns else f"{text[: columns - 2]}…" for text in drawn]
        expected = [line.rstrip() for line in (*said, *drawn)]
        assert terminal.whole_lines() == expected


def test_a_short_window_keeps_what_fits() -> None:
    output = io.StringIO()
    live = Live(Console(file=output, force_terminal=True, width=40, height=6))
    live.draw([(f"line {number}", "") for number in range(30)])
    assert output.getvalue().count("\n") == 4


def test_a_gauge_and_a_clock() -> None:
    assert gauge(0.5, 20) == "━" * 10 + "─" * 10
    assert gauge(7.0, 20) == "━" * 20
    assert len(gauge(0.1, 4)) == 4
    assert gauge(0.1, 3) == gauge(0.1, -5) == ""
    assert clock(3725.4) == "1:02:05"
    assert clock(-3) == "0:00:00"
