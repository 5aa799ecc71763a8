"""The JSON files of a run directory for whoever judges, reports or lists a run: each is read once, and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, reason_of
from seatrial.runs.directory import MARKS, is_run
from seatrial.runs.files import NotAFile, read_object, write_json
from seatrial.spec import RunSpec, from_dict


class Documents:
    """The files by their names: `documents["plan.json"]`; what was written through it is not read again.

    `unkept` takes the errors of files that cannot be written; without it, they are raised.
    """

    def __init__(self, run_dir: Path, unkept: list[OSError] | None = None) -> None:
        self.directory, self._unkept = run_dir, unkept
        self._kept: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        """A file's object. Raises FileNotFoundError, OSError; ValueError for anything else than an object."""
        if name not in self._kept:
            self._kept[name] = read_object(self.directory / name)
        return self._kept[name]

    def get(self, name: str) -> dict[str, Any]:
        """A file's object, empty where there is no such file. Raises as `[]`."""
        with suppress(FileNotFoundError):
            return self[name]
        return {}

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Writes a file, and keeps its object. Raises OSError."""
        self._kept[name] = data
        with self.if_possible():
            write_json(self.directory / name, data)

    @contextmanager
    def if_possible(self) -> Iterator[None]:
        """A place where files are written: it ends at the first that cannot be, where such errors are taken."""
        try:
            yield
        except OSError as error:
            if self._unkept is None or isinstance(error, NotAFile):
                raise
            self._unkept.append(error)

    def has(self, name: str) -> bool:
        """True if there is such a file."""
        return name in self._kept or (self.directory / name).exists()

    @property
    def is_of_logs(self) -> bool:
        """True if the run was read from logs; then it has no plan."""
        return self.has("judged.json")

    def spec_data(self) -> Mapping[str, Any]:
        """The spec that was run, or that logs were judged against, as plain data; empty where none is known."""
        asked = self.get("spec.json")
        return self.get("plan.json").get("spec") or asked.get("spec") or asked

    def spec(self) -> RunSpec | None:
        """The spec that was run; None for logs judged without a configuration. Raises InputError without a run."""
        try:
            if not self.is_of_logs:
                return from_dict(self["plan.json"]["spec"])
            return None if self["judged.json"]["against"] is None else from_dict(self["spec.json"]["spec"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's is a ValueError
            raise self._no_run(error) from error

    def _no_run(self, error: Exception) -> InputError:
        run_dir, fix = self.directory, "name the directory that a run printed"
        if not run_dir.exists():
            why = "there is no such directory"
        elif not is_run(run_dir):
            why = "it is no run directory" if run_dir.is_dir() else "it is a file, and no run directory"
            fix = f"{fix}, or judge the logs first: seatrial judge {run_dir} --out DIRECTORY"
        else:
            name = MARKS[1] if self.is_of_logs else MARKS[0]
            why = f"no {name} of a run can be read there ({reason_of(error)})"
            fix = f"put its {name} back, or {fix}"
        return InputError.single("no-run", str(run_dir), why, fix)


def dropped_of(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a plan.json that bear on speed or memory, and that the engine did not get."""
    names = plan.get("dropped")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def reduction_of(plan: Mapping[str, Any]) -> str:
    """The way in which the run of a plan.json differs from the configuration: "rehearsal", "collapsed run" or ""."""
    rehearsal = plan.get("rehearsal")
    if not isinstance(rehearsal, Mapping):
        return ""
    return "collapsed run" if rehearsal.get("collapsed") else "rehearsal"
