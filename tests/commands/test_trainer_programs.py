"""`seatrial data` and `seatrial export` where jax is not installed; what they do is tested with the trainer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seatrial.errors import LaunchError

WITHOUT_JAX = "import sys; sys.modules['jax'] = None; from seatrial.cli import main; main()"


def without_jax(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_JAX, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("verb", "options"), [("data", ("TEXT", "--tokenizer", "--out")), ("export", ("CHECKPOINT", "--to", "--dtype"))]
)
def test_help_needs_no_jax(verb: str, options: tuple[str, ...]) -> None:
    done = without_jax(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert [option for option in options if option not in done.stdout] == []


@pytest.mark.parametrize("arguments", ["data a.txt", "export run", "export run --to a --dtype x"])
def test_a_wrong_command_line_is_found_before_jax_is_needed(arguments: str) -> None:
    done = without_jax(*arguments.split())
    assert done.returncode == 2
    assert "jax" not in done.stderr


@pytest.mark.parametrize("arguments", ["data a.txt --out b", "export run --to a"])
def test_a_missing_jax_is_named(arguments: str) -> None:
    done = without_jax(*arguments.split())
    assert done.returncode == LaunchError.exit_code
    assert "needs jax, which is not installed" in done.stderr
