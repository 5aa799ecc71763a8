"""Launch scripts of our own, run in the sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from seatrial import capture as sandboxed
from seatrial.capture import Captured, sandbox, training
from seatrial.capture.training import Training
from seatrial.errors import InputError


def sandboxed_or_skip() -> None:
    """Skips where no sandbox can be had; where it is required, the test fails."""
    if os.environ.get("SEATRIAL_REQUIRE_CLUSTER"):
        return
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    try:
        sandbox.require()
    except InputError as error:
        pytest.skip(str(error))


def captured(
    folder: Path, script: str, *arguments: str, variables: Mapping[str, str] | None = None,
    existing: Sequence[str] = (), seconds: float = 8.0, name: str = "launch.sh",
) -> Captured:  # fmt: skip
    """The capture of a script that is alone in a folder."""
    sandboxed_or_skip()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    request = sandboxed.Request(
        script=path, arguments=arguments, variables=variables or {}, existing=existing, seconds=seconds
    )
    return sandboxed.capture(request)


def trainings(folder: Path, script: str, *arguments: str, **how: object) -> list[Training]:
    """The trainings that a script starts."""
    return training.trainings(captured(folder, script, *arguments, **how))  # type: ignore[arg-type]


def repository(folder: Path) -> None:
    """Makes a git repository of a folder."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
