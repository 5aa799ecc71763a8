"""Judged runs to publish, and what their readers need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from seatrial import events
from seatrial.publish.contract import Publication
from seatrial.publish.publication import publication_of
from seatrial.report.gather import gather
from seatrial.spec import RunSpec
from tests.helpers import run_directory
from tests.helpers.run_directory import Story
from tests.helpers.tiny_runs import SEATRIAL


def needed(*names: str) -> None:
    """Skips a test without these modules or programs; with SEATRIAL_REQUIRE_PUBLISH, fails it."""
    missing = [name for name in names if not shutil.which(name) and find_spec(name.partition(".")[0]) is None]
    if missing and os.environ.get("SEATRIAL_REQUIRE_PUBLISH"):
        raise RuntimeError(f"SEATRIAL_REQUIRE_PUBLISH is set, but these are not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make test-slow installs the modules, .ci/run the programs)")


def publish(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """`seatrial publish …` in a process of its own; what it printed."""
    done = subprocess.run(
        [*SEATRIAL, "publish", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def started_at(story: Story, seconds: float) -> Story:
    """The story, so many seconds later: another run."""

    def later(spec: RunSpec) -> list[list[events.Event]]:
        return [[replace(event, wall_time=event.wall_time + seconds) for event in part] for part in story(spec)]

    return later


def evaluated(spec: RunSpec) -> list[list[events.Event]]:
    """A sound run with two evaluations."""
    first, *others = run_directory.sound(spec)
    at = first[-2].wall_time
    evals = [events.Eval(step=step, loss=5.5 - step / 10, wall_time=at) for step in (10, 30)]
    return [[*first[:-1], *evals, first[-1]], *others]


def runs(folder: Path) -> list[Path]:
    """Three runs of a configuration on MI300X: one is sound, one diverges to NaN and infinity, one is killed."""
    stories = {"sound": evaluated, "diverged": run_directory.diverged, "killed": run_directory.killed}
    return [
        run_directory.write(folder / name, started_at(story, 100 * number), rehearsing=False)
        for number, (name, story) in enumerate(stories.items())
    ]


def published(run_dir: Path) -> Publication:
    return publication_of(gather(run_dir), run_dir)


def python(program: str, *arguments: str | Path) -> str:
    """The output of a Python program in a process of its own, whose warnings are nobody's."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
