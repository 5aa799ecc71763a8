"""Commands as data: argv, environment, files. Quoting lives here and nowhere else.

Nothing in this module runs anything. A `Secret` is a value that may travel, but never be shown: it prints as `***`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

_SECRET_NAME = re.compile(r"TOKEN(?!I)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


class Secret:
    """A value that shows itself only to whoever asks with `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody's business."""
    return _SECRET_NAME.search(name) is not None


@dataclass(frozen=True, kw_only=True)
class Command:
    """What one process is started with: argument vector, the variables added to its environment, and text files.

    `files` maps a path, relative to the working directory of the run, to the content that must stand there first.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str | Secret] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """The command as one line that can be pasted into a POSIX shell; secrets stay masked."""
        assignments = [f"{name}={shlex.quote(str(value))}" for name, value in self.environment.items()]
        prefix = ["env", *assignments] if assignments else []
        return " ".join([*prefix, shlex.join(self.argv)])
