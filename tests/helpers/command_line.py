"""The command line in this process: starting a new one takes far longer than most of what is asked of it."""

from __future__ import annotations

import io
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from seatrial.cli import main


def seatrial(*arguments: str | Path, cwd: Path) -> CompletedProcess[str]:
    """The output of `seatrial …` in that folder, as a person would see it, and its exit code."""
    command, code = ["seatrial", *map(str, arguments)], 0
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", command), chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return CompletedProcess(command, code, out.getvalue(), err.getvalue())
