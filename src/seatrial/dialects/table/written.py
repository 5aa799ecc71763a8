"""A configuration as text in one of the dialects, and what of the spec that dialect has no words for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.command import MASK, is_secret, without_looks
from seatrial.dialects.table.entries import Request, is_within
from seatrial.errors import InputError, Problem
from seatrial.source import Document
from seatrial.spec import Expectation, Resolved, RunSpec, flatten


@dataclass(frozen=True, kw_only=True)
class Note:
    """A value of the spec that is not in the text, or not as it is: its path, itself, and why."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """The text, the suffix of a file with such a text, and a note for each value that it does not say."""

    text: str
    suffix: str
    notes: tuple[Note, ...] = ()


def parse(text: str, suffix: str) -> Document:
    """A text as the document that a file with it would be."""
    if suffix == ".sh":
        return source.parse_shell(text, file="run.sh")
    return source.parse(text, file=f"run{suffix}", is_json=suffix == ".json")


def read_back(text: str, suffix: str, read: Callable[[Request], Resolved], engine: str = "") -> Resolved:
    """The result of reading a text in a dialect; `engine` is what will train, where that is said."""
    request = Request(
        document=parse(text, suffix), overrides=(), action="plan", user="user", home=Path("/"), engine=engine
    )
    return read(request)


def save(path: Path, text: str) -> None:
    """Writes a new file. Raises InputError where there is one already, and where it cannot be."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        why, fix = "this file is there, and is not overwritten", "remove it, or write to another place"
        raise InputError.single("file-exists", str(path), why, fix) from None
    except (OSError, ValueError) as error:
        why = f"it cannot be written: {getattr(error, 'strerror', None) or error}"
        raise InputError.single("unwritable", str(path), why, "name a place that can be written to") from None


def with_steps(spec: RunSpec, title: str) -> RunSpec:
    """A spec for a dialect that has no epochs. Raises InputError where it has no number of steps."""
    if spec.steps is None:
        why = f"{title} trains for a number of steps, and this run for {spec.epochs} epochs of its data"
        raise InputError.single("steps-unknown", "steps", why, "give the number of steps")
    return spec


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as a tree of mappings, in their order."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        parent = tree
        for part in parents:
            parent = parent.setdefault(part, {})
        parent[last] = value
    return tree


def write(
    spec: RunSpec, text: str, suffix: str, read: Callable[[Request], Resolved], why: Mapping[str, str],
    *, whole: Collection[str] = (), shows_other: bool = False, engine: str = "",
) -> Written:  # fmt: skip
    """The text with its notes, found by reading it back, for an `engine` if only that takes all of it; see `notes`.

    Raises InputError where the text would be refused, as one with sequences longer than a script can have.
    """
    again = read_back(text, suffix, read, engine)
    if again.spec is None:
        raise InputError(_refused(again.problems))
    found = notes(spec, again.spec, why, whole=whole, shows_other=shows_other)
    return Written(text=text, suffix=suffix, notes=found)


def _refused(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The errors of a text that was written and is not kept, each by the key of the target that is blamed."""
    for problem in problems:
        if problem.severity == "error":
            why, fix = f"the target cannot express this run: {problem.why}", "choose another target, or change the run"
            yield replace(problem, code="cannot-express", why=why, fix=fix, mark=None)


def notes(
    spec: RunSpec, again: RunSpec, why: Mapping[str, str], *, whole: Collection[str] = (), shows_other: bool = False
) -> tuple[Note, ...]:
    """A note for each value that came back otherwise, or one for a part in `whole` of which any value did.

    `why` has the reasons by path: the longest path counts that the value is at or under, and "" is for the rest.
    `shows_other` adds what the text says instead.
    """
    found: dict[str, Note] = {}
    for path, value, other in changed(spec, again):
        part = next((each for each in whole if is_within(path, each)), path)
        begins = (path[:end] for end in range(len(path), -1, -1) if end in (0, len(path)) or path[end] == ".")
        reason = next((why[begin] for begin in begins if begin in why), "it has no key for it")
        reason += f"; here: {shown(path, other)}" if shows_other else ""
        found.setdefault(part, Note(path=part, value=attrgetter(part)(spec) if part != path else value, why=reason))
    return tuple(found.values())


class _Absent:
    """Stands for a value that is not there, because the part that it would be in is not."""


ABSENT = _Absent()
_NOT_COMPARED = ("name", "dialect")


def changed(spec: RunSpec, again: RunSpec) -> Iterator[tuple[str, Any, Any]]:
    """(path, value, what it is in the other spec) of each leaf of a spec that another one has otherwise.

    `name` and `dialect` aside. Of a part that only the other one has, the leaf that is None in its place.
    """
    after = flatten(again)
    for path, value in flatten(spec).items():
        other = after.get(path, ABSENT)
        if path not in _NOT_COMPARED and (other != value or type(other) is not type(value)):
            yield path, value, other


def shown(path: str, value: Any) -> str:
    """A value of the spec as people are shown it; secrets stay masked."""
    if is_secret(path.partition(".environment.")[2]):
        return MASK
    if value is ABSENT or value in ("", (), {}):
        return "nothing"
    if isinstance(value, Expectation):
        return f"{value.metric} {value.value}" + (f" ± {value.tolerance}" if value.tolerance is not None else "")
    if is_dataclass(value):
        given = {f.name: part for f in fields(value) if (part := getattr(value, f.name)) not in (None, (), {})}
        return shown(path, given)
    if isinstance(value, dict):
        items = (f"{key}: {shown(f'{path}.{key}', item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(shown(path, item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return without_looks(str(value))
