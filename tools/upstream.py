"""Tries launch scripts and configuration files of other repositories, beside what is expected of each.

    tools/upstream.py tests/upstream/corpus.toml FOLDER… [--json OUT]

A FOLDER holds a checkout for each repository, as <owner>+<name> or <name>. A script is read as it stands; where that
finds errors, or the list has arguments or variables for it, it is captured. Configuration files are only read. Exit
code 1 where an outcome is not the expected one.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from seatrial import __version__
from seatrial.commands.capture import CaptureRequest, capture
from seatrial.commands.check import ConfigArguments, read
from seatrial.console import table
from seatrial.errors import InputError, Problem
from seatrial.report.problems import has_errors

KINDS = ("script", "configuration")
RESOLVED, REFUSED, ABSENT = "resolved", "refused", "absent"
WORKERS = 2
SECONDS = 20.0  # for a script in the sandbox, on a machine that has other things to do


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of a repository, how it is used, and the code of the error that is expected: "" for none.

    `folder` is where it is used: by default at the top of the repository.
    """

    repository: str
    kind: str
    path: str
    refused: str = ""
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    exists: Sequence[str] = ()
    folder: str = ""
    pick: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of an entry: `by` says how it was resolved, the rest is of the first error."""

    outcome: str
    by: str = ""
    code: str = ""
    message: str = ""
    warnings: int = 0


def entries(path: Path) -> list[Entry]:
    """The entries of a corpus. Raises ClickException where it is not well-formed."""
    with path.open("rb") as file:
        repositories = tomllib.load(file)
    found = []
    for name, repository in repositories.items():
        for kind in KINDS:
            for number, row in enumerate(repository.get(f"{kind}s", ()), start=1):
                try:
                    found.append(Entry(repository=name, kind=kind, **row))
                except TypeError as error:
                    raise click.ClickException(f"{path}: {name}, {kind} {number}: {error}") from None
    return found


def commits(path: Path) -> dict[str, str]:
    """The commit of each repository."""
    with path.open("rb") as file:
        return {name: repository["commit"] for name, repository in tomllib.load(file).items()}


# --- what becomes of an entry -----------------------------------------------------------------------------------------


def outcome(entry: Entry, folders: Sequence[Path]) -> Outcome:
    """The outcome of an entry, from the first folder that has its repository."""
    names = (entry.repository.replace("/", "+"), entry.repository.rpartition("/")[2])
    checkout = next((folder / name for folder in folders for name in names if (folder / name).is_dir()), None)
    if checkout is None or not (checkout / entry.path).is_file():
        what = f"no checkout of {entry.repository}" if checkout is None else f"the checkout has no {entry.path}"
        return Outcome(outcome=ABSENT, message=what)
    with chdir(checkout / entry.folder):
        found = _tried(entry, checkout / entry.path)
    return replace(found, message=found.message.replace(f"{checkout}/", ""))  # the same on every machine


def _tried(entry: Entry, path: Path) -> Outcome:
    """The outcome of reading a file or, where that does not resolve it, of capturing it."""
    if entry.kind == "configuration" or not (entry.arguments or entry.variables or entry.exists or entry.pick):
        found = _read(path, "read", entry.arguments)
        if entry.kind == "configuration" or found.outcome == RESOLVED:
            return found
    with tempfile.TemporaryDirectory() as folder:
        try:
            document = capture(
                CaptureRequest(
                    script=path, variables=[f"{name}={value}" for name, value in entry.variables.items()],
                    arguments=entry.arguments, existing=entry.exists, pick=entry.pick, yes=True, as_json=True,
                    seconds=SECONDS,
                )
            )  # fmt: skip
        except InputError as error:
            return _outcome(error.problems, "captured")
        written = Path(folder) / "captured.json"
        written.write_text(document, encoding="utf-8")
        found = _read(written, "captured")
        return replace(found, message=found.message.replace(str(written), entry.path))


def _read(path: Path, by: str, overrides: Sequence[str] = ()) -> Outcome:
    """The outcome of a file for Seatrial's own trainer or, where that has errors, for the engine with the fewest."""
    given = ConfigArguments(config=path, overrides=tuple(overrides))
    tried: list[tuple[int, Outcome]] = []
    for engine in (None, "maxtext", "megatron"):
        try:
            problems = read(given, action="check", engine=engine).problems
        except InputError as error:
            return _outcome(error.problems, by)
        errors = sum(problem.severity == "error" for problem in problems)
        tried.append((errors, _outcome(problems, f"{by}, {engine}" if engine else by)))
        if not errors:
            break
    return min(reversed(tried), key=lambda each: each[0])[1]


def _outcome(problems: Sequence[Problem], by: str) -> Outcome:
    warnings = sum(problem.severity == "warning" for problem in problems)
    if not has_errors(problems):
        return Outcome(outcome=RESOLVED, by=by, warnings=warnings)
    errors = [problem for problem in problems if problem.severity == "error"]
    others = f"; also {', '.join(f'{each.code} {each.path}' for each in errors[1:9])}" if len(errors) > 1 else ""
    message = f"{errors[0].path}: {errors[0].why}{others}"
    return Outcome(outcome=REFUSED, by=by, code=errors[0].code, message=message, warnings=warnings)


def is_expected(entry: Entry, found: Outcome) -> bool:
    """True if an entry is resolved, or refused for the reason that its row names."""
    return (found.outcome, found.code) == ((REFUSED, entry.refused) if entry.refused else (RESOLVED, ""))


# --- what is printed and written --------------------------------------------------------------------------------------

Results = Sequence[tuple[Entry, Outcome]]


def rates(results: Results) -> Iterator[tuple[str, ...]]:
    """A row for each repository and kind, and for all of a kind: how many are resolved, and as expected."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry, found in results:
        for name in (entry.repository, "all"):
            counts[name, entry.kind, "all"] += 1
            counts[name, entry.kind, "resolved"] += found.outcome == RESOLVED
            counts[name, entry.kind, "expected"] += is_expected(entry, found)
    for name, kind in sorted({key[:2] for key in counts}, key=lambda key: (key[0] == "all", key)):
        total, resolved, expected = (counts[name, kind, what] for what in ("all", "resolved", "expected"))
        yield name, kind, str(resolved), str(total), f"{resolved / total:.0%}", str(expected)


def as_text(results: Results) -> str:
    """The rates, and every entry that is refused or not as expected."""
    head = ("repository", "kind", "resolved", "of", "rate", "as expected")
    lines = [table(list(rates(results)), head=head, right=(2, 3, 4, 5))]
    for entry, found in results:
        if found.outcome != RESOLVED or not is_expected(entry, found):
            mark = "" if is_expected(entry, found) else f"  ← expected: {entry.refused or RESOLVED}"
            lines += [
                "",
                f"{entry.repository} {entry.path}: {found.code or found.outcome}{mark}",
                f"    {found.message}",
            ]
    return "\n".join(lines)


def as_document(results: Results, corpus: Path) -> dict[str, Any]:
    """The rates and every outcome, with the versions of everything, as plain data."""
    names = ("repository", "kind", "resolved", "of", "rate", "as_expected")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "seatrial": __version__, **_sandbox()},
        "commits": commits(corpus),
        "rates": [dict(zip(names, row, strict=True)) for row in rates(results)],
        "entries": [
            {"repository": entry.repository, "kind": entry.kind, "path": entry.path, **_said(found)}
            for entry, found in results
        ],
    }


def _said(found: Outcome) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if value not in ("", 0)}


def _sandbox() -> dict[str, str]:
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)
    return {"bubblewrap": done.stdout.split()[-1]} if done.stdout else {}


def _one(task: tuple[Entry, Sequence[Path]]) -> Outcome:
    return outcome(*task)


@click.command()
@click.argument("corpus", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where the result goes.")
@click.option("--only", default="", help="Only the entries with this in repository/path.")
def main(corpus: Path, folders: tuple[Path, ...], out: Path | None, only: str) -> None:
    """Try the entries of a CORPUS on the checkouts in FOLDERS, and compare each outcome with the expected one."""
    chosen = [each for each in entries(corpus) if only in f"{each.repository}/{each.path}"]
    places = [folder.absolute() for folder in folders]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        results = list(zip(chosen, pool.map(_one, [(each, places) for each in chosen]), strict=True))
    click.echo(as_text(results))
    if out is not None:
        out.write_text(json.dumps(as_document(results, corpus), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(not all(is_expected(*each) for each in results))


if __name__ == "__main__":
    main()
