"""The fix of a wrong command line, for the message of the parser, which only names the place."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import click

from seatrial.errors import InputError, reason_of
from seatrial.runs.mirror import FIXES, NO_ROOM

_KINDS = (
    (click.types.IntParamType, "a whole number"), (click.types.FloatParamType, "a number"),
)  # fmt: skip
# Of names that no file can have, or no file that is written.
_WRONG_NAMES = {
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "name a file or folder that is there"),
    errno.EISDIR: "name a file: this is a folder",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "name a place in a folder: this is in, or is, a file"),
}
_FIXES = {
    **FIXES,
    errno.ENOENT: "",  # of what was to be read, mostly
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give yourself the right to it, or use another place"),
}


def fix_of(error: click.UsageError, app: click.Group, words: Sequence[str]) -> str:
    """The fix for the words of a command line; "" where the message itself has it."""
    message = error.format_message()
    if "Did you mean" in message or "is not one of" in message:
        return ""
    verb = next((word for word in words if word in app.commands), "")
    helps = f"`{f'seatrial {verb}'.rstrip()} --help`"
    parameter = error.param if isinstance(error, click.BadParameter) else _named(error, app.commands.get(verb))
    meaning = getattr(parameter, "help", None) or f"{helps} says what it is"
    if "does not take a value" in message:
        return f"write {getattr(error, 'option_name', 'it')} alone"
    if isinstance(error, click.MissingParameter) and parameter is not None:
        return f"give {_shown(parameter)}: {meaning}"
    if isinstance(error, click.BadOptionUsage):
        return f"give its value behind it: {meaning}"
    if isinstance(error, click.BadParameter) and parameter is not None:
        kind = next((words for kind, words in _KINDS if isinstance(parameter.type, kind)), "another value")
        return f"give {kind}{_limits(parameter.type)}: {meaning}"
    if "extra argument" in message:
        return f"remove it, or quote what belongs together; {helps} says what belongs here"
    return f"{helps} lists what there is"


def as_input_error(error: OSError) -> InputError | None:
    """The error of a name that no file can have; None where it is the machine's and not the name's."""
    fix = _WRONG_NAMES.get(error.errno or 0)
    if fix is None or not isinstance(error.filename, (str, bytes)):
        return None
    return InputError.single("unreadable", str(error.filename), reason_of(error), fix)


def said_of(error: OSError) -> str:
    """The place, the reason and the fix of an error of the machine, in one line."""
    if isinstance(error, FileNotFoundError) and error.filename is None:  # which os.getcwd says
        return "the current folder has been removed: go to another one"
    place = f"{error.filename}: " if isinstance(error.filename, str) else ""
    fix = _FIXES.get(error.errno or 0, "") if place or error.errno in NO_ROOM else ""
    return f"{place}{reason_of(error)}{': ' if fix else ''}{fix}"


def _named(error: click.UsageError, command: click.Command | None) -> click.Parameter | None:
    """The option that a message is about, where the parser gives only its name."""
    name = getattr(error, "option_name", None)
    return next((each for each in (command.params if command else ()) if name in each.opts), None)


def _shown(parameter: click.Parameter) -> str:
    return (
        parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.metavar or parameter.name).upper()
    )


def _limits(kind: click.ParamType[Any]) -> str:
    return f" from {kind.min} to {kind.max}" if isinstance(kind, click.IntRange) else ""
