"""The view of a configuration that every rule is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seatrial.errors import Problem, Severity
from seatrial.estimate import memory
from seatrial.estimate.compiled import Compiled
from seatrial.spec import NEEDS, Action, Resolved, RunSpec


class Finder:
    """A spec, what the action needs of it, what trains, and where in the user's file each value stands.

    `engine` None: the configuration's usual one. `compiled`: the step as our own trainer's was compiled, if it was.
    """

    def __init__(
        self, resolved: Resolved, spec: RunSpec, action: Action, engine: str | None, compiled: Compiled | None = None
    ) -> None:
        self.compiled = compiled
        self.spec = spec
        self.needs = NEEDS[action]
        self.engine = engine or usual_engine(spec, action)
        self._resolved = resolved

    def at(self, path: str, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the value at a spec path."""
        origin = self._resolved.origin(path)
        return Problem(severity=severity, code=code, path=origin.key or path, why=why, fix=fix, mark=origin.mark)

    @property
    def blocking(self) -> Severity:
        """The severity where the run itself could not work: a plan, a rehearsal and a verdict still can."""
        return "error" if self.needs.device else "warning"

    def is_given(self, path: str) -> bool:
        """True if the user wrote the value at a spec path, or what it is made of."""
        return self._resolved.origin(path).kind != "default"

    def is_assumed(self, path: str) -> bool:
        """True if the value at a spec path stands in for one that the user has still to give."""
        origin = self._resolved.origin(path)
        return origin.kind == "default" and origin.note.startswith("assumed")

    def key(self, path: str) -> str:
        """The last part of the user's key for a spec path, else the path."""
        return self._resolved.origin(path).key.rpartition(".")[2] or path

    def name(self, path: str) -> str:
        """The user's own word for a spec path where there is one, else the path."""
        origin = self._resolved.origin(path)
        return origin.key if origin.key and path in self._resolved.origins else path

    def note(self, path: str) -> str:
        """The note of a value's origin, as " (assumed …)"; "" where there is none."""
        note = self._resolved.origin(path).note
        return f" ({note})" if note else ""

    def is_switched_on(self, path: str, value: object) -> bool:
        """True if the user has asked for something there, other than by writing what holds anyway."""
        idle = value in (None, "", ()) or value is False or (value in (0, 1) and value is not True)
        return self.is_given(path) and not idle

    def variable(self, name: str) -> str:
        """The spec path of an exported variable."""
        container = self.spec.container
        part = "container" if container and name in container.environment else "execution"
        return f"{part}.environment.{name}"

    def is_default(self, path: str) -> bool:
        """True if nobody has given the value at a spec path: it is the default of the dialect's own system."""
        origin = self._resolved.origin(path)
        return origin.kind == "default" and bool(origin.key)


def usual_engine(spec: RunSpec, action: Action) -> str:
    """The engine that trains where the command line names none."""
    return memory.OWN if NEEDS[action].trainer else memory.usual_engine(spec)


Rule = Callable[[Finder], Iterator[Problem]]
