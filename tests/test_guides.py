"""The guides and the README: every command in them is executed, and what they show is what it prints.

`SEATRIAL_GOLDEN=1` rewrites what they show; what varies is then made `…` again by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.guides import ANY, Step, agrees, alike, execute, rewritten, steps
from tests.helpers.processes import processes_with

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
README = ROOT / "README.md"
QUICK = {"logs-in-ci"}  # in `make test`; all others are slow
SECONDS = 900  # on two quiet cores none takes more than 120; a busy machine must not fail a test


def environment(folder: Path) -> dict[str, str]:
    """What a page sees: the installed `seatrial` and the system's programs, an empty home, no terminal."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "seatrial"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -P -m seatrial "$@"\n')
    program.chmod(0o755)
    (folder / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}  # programs, compiled once
    return {**kept, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder / "home"), "LANG": "C.UTF-8"}


def shown_as(text: str) -> list[str]:
    """What was printed, as a page shows it: without blanks at the ends of lines, and blank lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def follow(path: Path, page: list[Step], folder: Path, environment: dict[str, str]) -> None:
    """Executes a page, and compares; or rewrites what it shows."""
    done = execute(page, folder, environment, SECONDS)
    text, wrong = path.read_text(encoding="utf-8"), list[str]()
    following = [step.command for step in page[1:]] + [""]
    for step, (output, code), after in [*zip(page, done, following, strict=True)][::-1]:
        printed = shown_as(output)
        if code and after != "echo $?":
            wrong.append(f"{path.name}:{step.line}: $ {step.command}\nended with {code}, and no `$ echo $?` says so")
        if not agrees(step.shown, printed):
            if os.environ.get("SEATRIAL_GOLDEN"):
                lines = "".join(f"{line}\n" for line in rewritten(step.shown, printed))
                text = text[: step.span[0]] + lines + text[step.span[1] :]
            else:
                lines = "\n".join(("shows", *step.shown, "--- prints", *printed))
                wrong.append(f"{path.name}:{step.line}: $ {step.command}\n--- {lines}")
    path.write_text(text, encoding="utf-8")
    assert not wrong, "\n\n".join(wrong[::-1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one page, and beside it whatever it needs; no process that was started below may be left."""
    (tmp_path / "guide").mkdir()
    yield tmp_path / "guide"
    left = processes_with(str(tmp_path))
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in GUIDES],
)
def test_a_guide_does_what_it_shows(path: Path, folder: Path) -> None:
    follow(path, list(steps(path.read_text(encoding="utf-8"))), folder, environment(folder.parent))
