"""A run in one spelling → the same run in another, with a note for each value that the other has no words for.

Whatever is written is read back at once: a value that would not come back the same has a note, or gets one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from seatrial.check import lint
from seatrial.command import MASK, Secret, guarded
from seatrial.dialects import DIALECTS
from seatrial.dialects.table import written as table_written
from seatrial.dialects.table.entries import Request, is_within
from seatrial.dialects.table.written import Note, Written, changed, shown
from seatrial.errors import InputError, Problem
from seatrial.source import Document
from seatrial.spec import Resolved, RunSpec

# Errors with which a configuration can still be converted.
HARMLESS = ("not-supported-yet",)
SUFFIXES = {".yaml": (".yaml", ".yml"), ".json": (".json",), ".sh": (".sh", ".bash", ".sbatch", ".slurm")}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A spelling to convert to: the dialect that reads and writes it, and what its writer is asked for."""

    title: str
    dialect: str
    options: Mapping[str, str] = field(default_factory=dict)

    def write(self, spec: RunSpec, kept: Mapping[str, Any] | None = None) -> Written:
        """The spec in this spelling; `kept`: what a file of the same spelling says beside it."""
        options = {**self.options, "kept": kept} if kept else self.options
        return cast(Written, self._load().write(spec, **options))

    def read(self, document: Document) -> Resolved:
        """A document, read as one in this spelling."""
        request = Request(document=document, overrides=[], action="convert", user="user", home=Path("/home/user"))
        return cast(Resolved, self._load().read(request))

    def _load(self) -> Any:
        return next(dialect for dialect in DIALECTS if dialect.name == self.dialect).load()


TARGETS: dict[str, Target] = {
    "native": Target(title="Seatrial's own configuration (YAML)", dialect="native"),
    "cvs": Target(title="a CVS configuration for JAX (JSON)", dialect="cvs-jax"),
    "cvs-megatron": Target(title="a CVS configuration for Megatron-LM (JSON)", dialect="cvs-megatron"),
    "maxtext": Target(title="a MaxText command", dialect="maxtext"),
    "megatron": Target(title="a Megatron-LM command (pretrain_gpt.py)", dialect="megatron"),
    "megatron-env": Target(
        title="the environment of train_llama3.sh", dialect="megatron", options={"style": "environment"}
    ),
    "nxdt": Target(title="an NxDT configuration (YAML)", dialect="nxdt"),
}


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The text, what it is, the suffixes that a file with it may have, and a line for each value not in it."""

    text: str
    title: str
    suffixes: tuple[str, ...]
    notes: tuple[str, ...]


def convert(resolved: Resolved, to: str) -> Converted:
    """A configuration that was read, in another spelling. Raises InputError where it has errors, or for no spelling."""
    if to not in TARGETS:
        raise InputError.single("unknown-dialect", "--to", f"there is no {to!r}", f"use one of: {', '.join(TARGETS)}")
    problems = [p for p in lint(resolved, action="convert").problems if p.code not in HARMLESS]
    if resolved.spec is None or any(map(_is_error, problems)):
        raise InputError(problems)
    spec, secrets = _without_secrets(resolved.spec)
    is_same = spec.dialect == TARGETS[to].dialect
    written = TARGETS[to].write(spec, resolved.kept if is_same else None)
    notes = [*secrets, *written.notes, *unsaid(spec, written, to), *refused(written, to)]
    lines = tuple(_line(resolved, note) for note in notes)
    title = TARGETS[to].title
    return Converted(text=written.text, title=title, suffixes=SUFFIXES[written.suffix], notes=lines)


def _without_secrets(spec: RunSpec) -> tuple[RunSpec, list[Note]]:
    """The spec without variables that are secrets by their names, or hold one by its look; and a note for each."""
    notes: list[Note] = []
    why = "a secret is not copied from file to file: export it where the run is started"
    for part in ("execution", "container"):
        whole = getattr(spec, part)
        if whole is not None:
            secrets = [name for name, value in guarded(whole.environment).items() if isinstance(value, Secret)]
            notes += [Note(path=f"{part}.environment.{name}", value=MASK, why=why) for name in secrets]
            public = {name: value for name, value in whole.environment.items() if name not in secrets}
            spec = replace(spec, **{part: replace(whole, environment=public)})
    return spec, notes


def unsaid(spec: RunSpec, written: Written, to: str) -> Iterator[Note]:
    """A note for each value that a text reads back differently although nothing was said about it."""
    again = TARGETS[to].read(parse(written))
    if again.spec is None:
        yield Note(path="", value=None, why="the text cannot be read back")
        return
    noted = [note.path for note in written.notes]
    for path, value, other in changed(spec, again.spec):
        if not any(about(note, path) for note in noted):
            yield Note(path=path, value=value, why=f"it reads back as {shown(path, other)}")


def refused(written: Written, to: str) -> Iterator[Note]:
    """A note for each error that `check` finds in a text: a run without errors may have some in another spelling."""
    for problem in filter(_is_error, lint(TARGETS[to].read(parse(written)), action="convert").problems):
        yield Note(path="", value=None, why=f"`check` refuses this text: {problem.path}: {problem.why}")


def _is_error(problem: Problem) -> bool:
    return problem.severity == "error" and problem.code not in HARMLESS


def about(note: str, path: str) -> bool:
    """True if a note's path is that of a leaf, of a part that the leaf is in, or of an item in the leaf."""
    return is_within(path, note) or is_within(note, path)


def parse(written: Written) -> Document:
    """A written text as the document that a file with it would be."""
    return table_written.parse(written.text, written.suffix)


def save(converted: Converted, path: Path) -> None:
    """Writes a new file. Raises InputError where there is one, or where its name would make the text another kind."""
    if path.suffix.lower() not in converted.suffixes:
        wanted = converted.suffixes[0]
        why = f"a file of this name would not be read as {converted.title}"
        raise InputError.single("bad-suffix", str(path), why, f"name it {path.stem or 'run'}{wanted}")
    table_written.save(path, converted.text)


def _line(resolved: Resolved, note: Note) -> str:
    """A note as a line: the user's key, the value, why it is not said; a default is called one."""
    if not note.path:
        return note.why
    origin = resolved.origin(note.path)
    name = origin.key
    if origin.kind == "default" or not name:
        name = f"{name or note.path} (default)"
    elif note.path not in resolved.origins:  # what a preset says
        name = f"{note.path} (of {name})"
    return f"{name} = {shown(note.path, note.value)}: {note.why}"
