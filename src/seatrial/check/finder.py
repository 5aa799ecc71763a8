"""What a rule is given to look at, and to say what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seatrial.errors import Problem, Severity
from seatrial.spec import Resolved, RunSpec


class Finder:
    """What a rule is given: the spec, the action, and a way to say where in the user's file a finding belongs."""

    def __init__(self, resolved: Resolved, spec: RunSpec, action: str) -> None:
        self.spec = spec
        self.action = action
        self._resolved = resolved

    def at(self, path: str, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the value at a spec path."""
        origin = self._resolved.origin(path)
        return Problem(
            severity=severity, code=code, path=origin.key or path, why=why, fix=fix, mark=origin.mark
        )  # fmt: skip

    def key(self, path: str) -> str:
        """What the user calls a spec path."""
        return self._resolved.origin(path).key.rpartition(".")[2] or path

    def note(self, path: str) -> str:
        """How a value was made, where that is not plain: ", assumed …"."""
        note = self._resolved.origin(path).note
        return f" ({note})" if note else ""


Rule = Callable[[Finder], Iterator[Problem]]
