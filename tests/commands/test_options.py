"""The values that options accept, and the command line's help in a terminal of 80 columns."""

from __future__ import annotations

import math

import pytest
from click.testing import CliRunner

from seatrial import __version__
from seatrial.cli import app
from seatrial.commands.options import share
from seatrial.errors import InputError


@pytest.mark.parametrize(
    ("text", "fraction"), [("3%", 0.03), ("0.03", 0.03), (" 2.5 % ", 0.025), ("0", 0), (".1", 0.1)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, fraction: float) -> None:
    assert math.isclose(share(text, of="the speed", path="--fail-if-slower", code="limit"), fraction)


@pytest.mark.parametrize("text", ["", "3", "100%", "-1%", "nan", "inf", "3 percent", "1e-2", "3%%", "٣%", "0.03x"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        share(text, of="the speed", path="--fail-if-slower", code="limit")


def test_the_summary_of_every_verb_fits_80_columns() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    assert "…" not in shown
    assert "..." not in shown.partition("Commands:")[2]
    assert len(shown.partition("Commands:")[2].split("\n")) == len(app.commands) + 2  # a line each


@pytest.mark.parametrize("verb", app.commands)
def test_every_verb_has_a_short_help(verb: str) -> None:
    short, long = (CliRunner().invoke(app, [verb, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout


def test_the_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"seatrial {__version__}\n"
    assert CliRunner().invoke(app, ["version"]).stdout == f"{__version__}\n"
