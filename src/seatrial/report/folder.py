"""The runs of a folder, each with its verdict, and the table of how they scale: for a terminal, and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seatrial.console import Cell, Paint, table, wrapped
from seatrial.report import json as json_report
from seatrial.report import scaling_formats
from seatrial.report import text as text_report
from seatrial.report.figures import TITLES, figures
from seatrial.report.gather import RunReport, clean
from seatrial.report.scaling import Scaling
from seatrial.verdict import EXIT_CODES, WORST_OUTCOME_FIRST, Verdict

VERSION = 1
MOST_NAMED = 5
_FIGURES = ("Steps", "Loss", "Step time", "Tokens/s per device", "MFU")


class JudgedRun(NamedTuple):
    """A run of the folder: `name` is its place there, or what its files share of their names."""

    name: str
    report: RunReport
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """The runs of a folder; `scaling` where they are one workload at several sizes, else `no_scaling` says why not.

    `others` are files of the folder that say nothing of training, `passed_over` those that were not read, or do not
    count, each with the reason, and `unread` files and run directories that cannot be read. `told_apart` says how runs
    were told apart.
    """

    folder: Path
    runs: tuple[JudgedRun, ...]
    others: tuple[Path, ...]
    passed_over: Mapping[Path, str]
    unread: Mapping[Path, str]
    told_apart: tuple[str, ...]
    scaling: Scaling | None
    no_scaling: str

    @property
    def exit_code(self) -> int:
        """That of the worst verdict; what cannot be read leaves it open."""
        outcomes = [run.verdict.outcome for run in self.runs]
        if self.unread:
            outcomes.append("inconclusive")
        return EXIT_CODES[min(outcomes, key=WORST_OUTCOME_FIRST.index)]


def text(report: FolderReport) -> str:
    """Of one run, its report; of several, a row each, the verdicts in a sentence, and the scaling table."""
    if len(report.runs) == 1:
        return "\n\n".join([text_report.render(report.runs[0].report), *_remarks(report)])
    paint = Paint()
    rows: list[list[Cell]] = []
    names: dict[str, list[str]] = {}
    for run in report.runs:
        found = {figure.label: figure.value for figure in figures(run.report) if figure.known}
        title = TITLES[run.verdict.outcome]
        devices = run.report.metrics.performance.num_devices if run.report.metrics else None
        cells = [f"{devices:,}" if devices else "", *(found.get(label, "") for label in _FIGURES)]
        rows.append([clean(run.name), (title, text_report.outcome_style(run.verdict.outcome)), *cells])
        names.setdefault(run.verdict.headline, []).append(clean(run.name))
    head = ("Run", "Verdict", "Devices", *_FIGURES)
    blocks = [table(rows, head=head, right=range(2, len(head)), whole=(0, 1), color=paint.enabled)]
    blocks.append("\n".join(wrapped(f"{_named(of)}: {headline}", paint) for headline, of in names.items()))
    if report.scaling:
        blocks.append(scaling_formats.text(report.scaling))
    else:
        blocks.append(wrapped(f"no scaling table: {clean(report.no_scaling)}", paint))
    return "\n\n".join([*blocks, *_remarks(report)])


def _remarks(report: FolderReport) -> Iterator[str]:
    """What to know of the files: which could not be read, how runs were told apart, which do not count."""
    paint = Paint()
    for name, why in _by_reason(report, report.unread):
        yield wrapped(f"not judged: {name}: {why}", paint, style="bold")
    for sentence in report.told_apart:
        yield wrapped(clean(sentence), paint, style="dim")
    for name, why in _by_reason(report, report.passed_over):
        yield wrapped(f"passed over: {name}: {why}", paint, style="dim")
    if report.others and len(report.runs) > 1:
        yield wrapped(
            f"no training in: {_named([_inside(report, path) for path in report.others])}", paint, style="dim"
        )


def _by_reason(report: FolderReport, files: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    """(files, reason), the files with one reason together."""
    names: dict[str, list[str]] = {}
    for path, why in files.items():
        names.setdefault(clean(why), []).append(_inside(report, path))
    return ((_named(of), why) for why, of in names.items())


def _inside(report: FolderReport, path: Path) -> str:
    return clean(str(path.relative_to(report.folder)))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def as_json(report: FolderReport) -> str:
    """One object: of one run, its report; else those of all by name, and the scaling table or why there is none."""
    if len(report.runs) == 1:
        alone = json.loads(json_report.render(report.runs[0].report))
        return json.dumps({**alone, "folder": _files(report)}, indent=1, ensure_ascii=False)
    runs = {clean(run.name): json.loads(json_report.render(run.report)) for run in report.runs}
    scaling = json.loads(scaling_formats.as_json(report.scaling)) if report.scaling else None
    found = {"v": VERSION, "runs": runs, "scaling": scaling, "no_scaling": clean(report.no_scaling), **_files(report)}
    return json.dumps(found, indent=1, ensure_ascii=False)


def _files(report: FolderReport) -> dict[str, object]:
    return {
        "others": [clean(str(path)) for path in report.others],
        "passed_over": {clean(str(path)): clean(why) for path, why in report.passed_over.items()},
        "not_judged": {clean(str(path)): clean(why) for path, why in report.unread.items()},
        "told_apart": [clean(sentence) for sentence in report.told_apart],
    }


FORMATS: dict[str, Callable[[FolderReport], str]] = {"text": text, "json": as_json}
