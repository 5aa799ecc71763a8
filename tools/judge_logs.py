"""Judges logs that other people published, beside the label that each was given before.

    python -m tools.judge_logs tests/upstream/logs.toml FOLDER [--json OUT] [--show]

The FOLDER has the text of each log, or a folder of them, under the `id` of its entry: ID, ID.log, ID.txt. The list says
where they are from and what its labels mean. Exit code 1 if an answer is not that of its label.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import click

from seatrial import __version__, logs
from seatrial.commands.parse import is_of_training, no_training
from seatrial.console import inert, table
from seatrial.logs import guess
from seatrial.logs.faults import KINDS
from seatrial.metrics import Diagnosis, measure
from seatrial.verdict import Verdict, judge

Label = Literal["sound", "unsound", "failed", "open"]
# What an answer may get wrong, worst first.
FALSE_PASS, WRONG_BLAME, FALSE_ALARM = "false PASS", "wrong blame", "false alarm"
NUMBERS_MISSED, CAUSE_MISSED, NOT_NAMED = "numbers not doubted", "cause not found", "not named"
CAUSE_ADDED = "cause not in the label"
ABSENT = "absent"
# Of a log in which nothing of a training is found.
_REFUSED = {"sound": FALSE_ALARM, "unsound": NUMBERS_MISSED, "failed": CAUSE_MISSED, "open": ""}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A log by its source and label. `cause` are fault kinds of which one is right, `where` who may be blamed.

    `steps`: how many were planned, by the script or the settings beside the log, where the log itself does not say it.
    `review`: why the answer and the label differ, written after a run; the label stays as it was.
    """

    source: str
    id: str
    family: str
    label: Label
    by: Literal["them", "us"]
    words: str
    commit: str = ""
    at: str = ""
    lines: tuple[int, int] | None = None
    steps: int | None = None
    cause: Sequence[str] = ()
    where: Sequence[str] | None = None
    named: str = ""
    seen: bool = False
    review: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The judge's answer to a log; `wrong` says how it differs from the label, "" if it does not."""

    outcome: str
    cause: str = ""
    where: str = ""
    wrong: str = ""
    headline: str = ""


def entries(path: Path) -> list[Entry]:
    """The entries of a list. Raises ClickException where it is not well-formed."""
    with path.open("rb") as file:
        sources = tomllib.load(file)
    found = []
    for source, held in sources.items():
        for row in held.get("logs", ()):
            try:
                entry = Entry(source=source, commit=held.get("commit", ""), **row)
            except TypeError as error:
                raise click.ClickException(f"{path}: {source}, {row.get('id')}: {error}") from None
            unknown = [kind for kind in entry.cause if kind not in KINDS]
            if entry.label not in get_args(Label) or unknown:
                raise click.ClickException(f"{path}: {entry.id}: no label {entry.label!r}, or no kinds {unknown}")
            found.append(entry)
    return found


def text_of(entry: Entry, folder: Path) -> Path | None:
    """The file or folder with the text of an entry."""
    names = (entry.id, f"{entry.id}.log", f"{entry.id}.txt")
    return next((folder / name for name in names if (folder / name).exists()), None)


def answer(entry: Entry, path: Path) -> Answer:
    """The judge's answer to an entry's text, without a configuration.

    Where the spelling was guessed, the guess is confirmed, as the first answer asks for.
    """
    files = list(path.iterdir()) if path.is_dir() else []
    paths = files if len(files) == 1 else [path]  # a metrics file keeps its name
    record = logs.read(paths)
    if not is_of_training(record):
        return Answer(outcome="refused", wrong=_REFUSED[entry.label], headline=no_training(paths).problems[0].why)
    metrics = measure(record, None, planned_steps=entry.steps)
    if metrics.completion.guessed:
        metrics = measure(logs.read(paths, guess.NAME), None, planned_steps=entry.steps)
    verdict = judge(metrics, None, rehearsal="")
    diagnosis = metrics.completion.diagnosis
    return Answer(
        outcome=verdict.outcome,
        cause=diagnosis.kind if diagnosis else "",
        where=diagnosis.cause.where if diagnosis else "",
        wrong=wrong(entry, verdict, diagnosis),
        headline=inert(verdict.headline),
    )


def wrong(entry: Entry, verdict: Verdict, diagnosis: Diagnosis | None) -> str:
    """The difference of an answer from its label; "" if there is none."""
    passed = verdict.outcome == "pass"
    numerics = verdict.axes["numerics"].status if "numerics" in verdict.axes else ""
    if entry.label == "sound":
        return "" if passed else FALSE_ALARM
    if passed:
        return FALSE_PASS
    if entry.label == "open":
        if blamed(diagnosis):
            return WRONG_BLAME
        return CAUSE_ADDED if diagnosis is not None else FALSE_ALARM if numerics == "fail" else ""
    if entry.label == "unsound" and numerics == "pass":
        return NUMBERS_MISSED
    if entry.label == "failed":
        if entry.where is not None and not all(_is_right(place, entry.where) for place in blamed(diagnosis)):
            return WRONG_BLAME
        if diagnosis is None or diagnosis.kind not in entry.cause:
            return CAUSE_MISSED
    return "" if re.search(entry.named, said(verdict)) else NOT_NAMED


def _is_right(place: str, where: Sequence[str]) -> bool:
    """True if a blamed place may be blamed: by its rank or its host, if it names both."""
    return any(part in where for part in (place, *place.split(" on ")))


def blamed(found: Diagnosis | None) -> set[str]:
    """The ranks and hosts that a diagnosis blames, suspects or excludes; one that only waits is not blamed."""
    if found is None:
        return set()
    where = "" if found.kind == "collective_timeout" else found.cause.where
    return {place for place in (where, *found.suspects, *found.exclude) if place}


def said(verdict: Verdict) -> str:
    """The sentences of an answer about failures."""
    checks = [
        check for axis in verdict.axes.values() for check in axis.checks if check.status in ("fail", "inconclusive")
    ]
    return "\n".join([verdict.headline, *(text for check in checks for text in (check.sentence, *check.evidence))])


# --- what is printed and written --------------------------------------------------------------------------------------

Results = Sequence[tuple[Entry, Answer]]


def rates(results: Results) -> Iterator[tuple[str, ...]]:
    """A row for each label, for each family and for all: how many logs, by whose words, and how many agree."""
    groups: dict[str, list[tuple[Entry, Answer]]] = {}
    for entry, found in results:
        for name in (f"label {entry.label}", f"family {entry.family}", "seen" if entry.seen else "not seen", "~all"):
            groups.setdefault(name, []).append((entry, found))
    for name, rows in sorted(groups.items()):
        agree = sum(not found.wrong for _, found in rows)
        them = sum(entry.by == "them" for entry, _ in rows)
        yield name.removeprefix("~"), str(len(rows)), str(them), str(agree), f"{agree / len(rows):.1%}"


def as_text(results: Results, *, show: bool) -> str:
    """The rates, then every disagreement; with `show` the others, too."""
    lines = [table(list(rates(results)), head=("", "logs", "their words", "agree", "rate"), right=(1, 2, 3, 4))]
    for entry, found in results:
        if found.wrong or show:
            lines += [
                "",
                f"{found.wrong or 'agrees'}: {entry.id} ({entry.label}, {entry.words})",
                f"    {found.outcome}",
            ]
            lines[-1] += f": {found.headline}"
            lines += [f"    {entry.review}"] if entry.review else []
    counts = Counter(found.wrong for _, found in results if found.wrong)
    return "\n".join([*lines, "", ", ".join(f"{count} {what}" for what, count in counts.items()) or "all agree"])


def as_document(results: Results) -> Mapping[str, Any]:
    """The rates and every answer, without the text of any log, as plain data."""
    names = ("what", "logs", "their_words", "agree", "rate")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "seatrial": __version__},
        "rates": [dict(zip(names, row, strict=True)) for row in rates(results)],
        "logs": [
            {"id": entry.id, "label": entry.label, "outcome": found.outcome}
            | {name: text for name in ("cause", "where", "wrong") if (text := getattr(found, name))}
            for entry, found in results
        ],
    }


@click.command()
@click.argument("listed", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where the result goes.")
@click.option("--only", default="", help="Only the entries with this in their id.")
@click.option("--show", is_flag=True, help="Print the answers that agree, too.")
def main(listed: Path, folder: Path, out: Path | None, only: str, show: bool) -> None:
    """Judge the texts in FOLDER, and compare each answer with the label that the list has for it."""
    results, absent = [], []
    for entry in entries(listed):
        if only in entry.id:
            path = text_of(entry, folder)
            if path is None:
                absent.append(entry.id)
            else:
                results.append((entry, answer(entry, path)))
    if not results:
        raise click.UsageError(f"{folder} has no text of a log: name the folder of ID, ID.log or ID.txt")
    click.echo(as_text(results, show=show))
    if absent:
        click.echo(f"{len(absent)} have no text in {folder}: {', '.join(absent[:9])}{' …' if absent[9:] else ''}")
    if out is not None:
        out.write_text(json.dumps(as_document(results), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(any(found.wrong for _, found in results))


if __name__ == "__main__":
    main()
