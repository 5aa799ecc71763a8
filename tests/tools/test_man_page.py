"""The man page is the one that the help makes, and man renders it without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tools.man_page import PAGE, as_roff, man_page

from seatrial.cli import app


def test_golden_man_page() -> None:
    if os.environ.get("SEATRIAL_GOLDEN"):
        PAGE.write_text(man_page(), encoding="ascii")
    assert man_page() == PAGE.read_text(encoding="ascii")


def rendered() -> str:
    """The page as a reader in a terminal of 100 columns sees it; fails for whatever man says of it."""
    if shutil.which("man") is None:
        pytest.skip("needs man")
    environment = {
        **os.environ,
        "MANWIDTH": "100",
        "LC_ALL": "C.UTF-8",
        "MANROFFOPT": "-wall",
        "MAN_KEEP_FORMATTING": "",
    }
    done = subprocess.run(
        ["man", "--warnings", "--local-file", str(PAGE)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_a_reader_finds_every_command_argument_and_option() -> None:
    text = rendered()
    words = " ".join(text.split())
    assert "seatrial - runs an LLM training configuration" in words
    for verb, command in app.commands.items():
        assert re.search(rf"^ +seatrial {verb}$", text, re.MULTILINE), verb
        for parameter in command.params:
            names = parameter.opts if isinstance(parameter, click.Option) else []
            assert [name for name in names if name not in text] == []
            assert parameter.help
            assert re.sub(r"\W", "", parameter.help) in re.sub(r"\W", "", text), parameter.help
    for code in (0, 1, 2, 3, 4, 5, 6, 130):
        assert re.search(rf"^ +{code} ", text, re.MULTILINE)


def test_the_text_is_what_was_meant() -> None:
    """Backslashes, hyphens, quotes and letters beyond ASCII come through."""
    words = " ".join(rendered().split())
    assert 'eval "$(seatrial completion bash)"; also zsh, fish.' in words
    assert "Every command has -h and --help; --version prints the version." in words
    assert "The run directory (default: runs/<name>-<time>)." in words
    assert "partition=…, account=…, time=…" in words


@pytest.mark.parametrize("text", ["a \\fB b \\", ".SH no request", "'no request", "--no-such -h a-b - 1-2", "“…” × é"])
def test_no_text_is_a_request(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.1"
    page.write_text(f".TH X 1\n.nh\n.SH Y\n{as_roff(text)}\n", encoding="ascii")
    done = subprocess.run(
        ["man", "--warnings", "--local-file", str(page)],
        env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stderr, done.stdout.splitlines()[3].strip()) == ("", text)
