"""Writes the man page from the help of the command line, and the exit codes' page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from seatrial import __version__
from seatrial.cli import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "man" / "seatrial.1"
_EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"

_ENVIRONMENT = {
    "MLFLOW_TRACKING_URI": "MLflow's tracking server, where publish has no --url.",
    "NO_COLOR": "Where it is set, no text has a colour.",
    "XDG_DATA_HOME": "Where the history and measured profiles of devices are kept (default: ~/.local/share).",
}
_FILES = {
    "runs/NAME-TIME": "A run directory: all that is known of a run, and its report.html.",
}


def man_page() -> str:
    """The page, in the man macros of roff."""
    about, _, rest = inspect.cleandoc(app.help or "").partition("\n")
    lines = [
        r".\" Made from the help of the command line by `make golden`; edit that instead.",
        f'.TH SEATRIAL 1 "" "Seatrial {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        rf"seatrial \- {as_roff(about[0].lower() + about[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        r".B seatrial",
        r"\fICOMMAND\fR [\fIARGUMENT\fR]...",
        ".SH DESCRIPTION",
        *_paragraphs(rest),
        ".PP",
        as_roff("Every command has -h and --help; --version prints the version."),
        ".SH COMMANDS",
    ]
    for verb, command in app.commands.items():
        lines += _command(verb, command)
    lines += [".SH EXIT STATUS", *_exit_codes()]
    for title, rows in (("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        lines.append(f".SH {title}")
        for name, meaning in rows.items():
            lines += _item(name, meaning)
    lines += [".SH SEE ALSO", as_roff("The documentation: https://seatrial.readthedocs.io")]
    return "\n".join(lines) + "\n"


def _command(verb: str, command: click.Command) -> Iterator[str]:
    """A subsection: how it is called, what it does, its arguments and options."""
    context = click.Context(command, info_name=verb, show_default=True)
    yield f".SS {as_roff(f'seatrial {verb}')}"
    yield ".B " + as_roff(" ".join(["seatrial", verb, *command.collect_usage_pieces(context)]))
    yield ".PP"
    yield from _paragraphs(command.help or "")
    for parameter in command.params:
        if record := parameter.get_help_record(context):
            yield from _item(*record)


def _item(name: str, meaning: str) -> list[str]:
    return [".TP", f".B {as_roff(name)}", as_roff(" ".join(meaning.split()))]


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text).strip())):
        if number:
            yield ".PP"
        yield as_roff(" ".join(paragraph.split()))


def _exit_codes() -> Iterator[str]:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", _EXIT_CODES.read_text(encoding="utf-8"), re.MULTILINE)
    for code, meaning in rows:
        yield from _item(code, meaning.strip())


def as_roff(text: str) -> str:
    """A line of text that roff shows as it is, also where it cannot read UTF-8; what stands in backticks is bold."""
    text = re.sub(r"(?<![\w-])--?\w[\w-]*|--", lambda option: option[0].replace("-", r"\-"), text.replace("\\", r"\e"))
    text = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text)
