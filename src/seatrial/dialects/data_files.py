"""Checks that the data and the tokenizer of a run are on this machine; nothing else that it names is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seatrial.errors import Problem
from seatrial.records.paths import named, why_no_file
from seatrial.spec import NEEDS, Action, Resolved, RunSpec

Missing = tuple[str, str, str]  # spec path, why, how to fix it


def missing(resolved: Resolved, action: Action) -> Iterator[Problem]:
    """An error for everything that is not on this machine, by the rules of the trainer."""
    for path, why, fix in _missing(resolved.spec, action) if resolved.spec else ():
        origin = resolved.origin(path)
        yield Problem(
            severity="error", code="no-such-file", path=origin.key or path, why=why, fix=fix, mark=origin.mark
        )


def has_data(spec: RunSpec) -> bool:
    """True if all that the trainer would read is on this machine; what is in it, the trainer says."""
    return not any(_missing(spec, "run"))


def _missing(spec: RunSpec, action: Action) -> Iterator[Missing]:
    """The paths that name no file; where the action needs all data, also its folder and its tokenizer."""
    data, needs_all = spec.data, NEEDS[action].data
    if data.kind == "text" or (data.kind != "synthetic" and needs_all):
        is_there, fix = _LOOK.get(data.kind, (names_a_file_or_folder, "correct the path or glob"))
        for index, pattern in enumerate(data.paths):
            if not is_there(pattern):
                yield f"data.paths.{index}", f"no file on this machine matches {pattern!r}", fix
    if data.kind == "synthetic" or not needs_all:
        return
    if data.kind not in ("text", "megatron", "arrow", "records") and not data.paths:
        named = f"{data.dataset!r} is not a folder on this machine" if data.dataset else "no data are named"
        if not (data.dataset and Path(data.dataset).is_dir()):
            fix = "give files of this machine: Parquet, Arrow or JSON lines"
            yield "data.dataset", f"{named}, and nothing is downloaded", fix
    reads_text = data.kind not in ("megatron", "arrow")
    if reads_text and data.tokenizer != "byte" and tokenizer_file(data.tokenizer) is None:
        why = f"{data.tokenizer!r} is not a tokenizer.json on this machine, and nothing is downloaded"
        yield "data.tokenizer", why, "give the path of a tokenizer.json, or byte"


def tokenizer_file(name: str) -> Path | None:
    """The tokenizer.json on this machine that a path names, itself or by its folder."""
    try:
        path = Path(name).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        return path if path.suffix == ".json" and path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def names_an_index(prefix: str) -> bool:
    """True if Megatron's .bin and .idx files of a prefix, or of either's name, are there."""
    name = prefix.removesuffix(".bin").removesuffix(".idx")
    try:
        return all(Path(f"{name}{suffix}").expanduser().is_file() for suffix in (".bin", ".idx"))
    except (OSError, RuntimeError, ValueError):
        return False


def names_a_file(pattern: str) -> bool:
    """True if a path or glob names at least one file; `stdlib:` is the standard library's folder, ~ the home."""
    return any(why_no_file(path) == "" for path in named(pattern))


def names_a_file_or_folder(pattern: str) -> bool:
    """The same, where the files in a folder are read."""
    return any(True for _ in named(pattern))


_LOOK: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "text": (names_a_file, "correct the path or glob; stdlib:*.py names files that every machine with Python has"),
    "megatron": (names_an_index, "correct the path that .bin and .idx have in common"),
}
