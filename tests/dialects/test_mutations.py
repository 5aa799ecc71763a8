"""Whatever becomes of a configuration's bytes, lines, words and values: it ends in an answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.seeds import ROOT


@pytest.mark.slow
def test_five_hundred_changed_configurations_end_in_an_answer() -> None:
    argv = [sys.executable, "bench/mutate_configs.py", "500", "--seed", "2", "--no-record"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
