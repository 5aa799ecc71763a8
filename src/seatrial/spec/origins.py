"""The origins of a spec's values, and the findings about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.errors import Mark, Problem
from seatrial.spec.run import RunSpec


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a value of the spec.

    `key` is the user's key (dotted path from the root of the file, or the override's), `text` the value as written,
    `note` says how the value was made from it where that is not plain.
    """

    kind: Literal["file", "override", "default", "derived"]
    key: str = ""
    text: str = ""
    note: str = ""
    mark: Mark | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The result of reading a configuration: the spec (None where errors left none), origins by spec path, findings."""

    spec: RunSpec | None
    origins: Mapping[str, Origin]
    problems: tuple[Problem, ...]
    # Keys of the file that the spec does not hold, as they are written: for a copy of it in the same dialect.
    kept: Mapping[str, Any] = field(default_factory=dict)

    def origin(self, path: str) -> Origin:
        """The origin of a spec path; the nearest parent's where the path itself has none, else the default."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return Origin(kind="default")
