"""The runs of a folder, each with its verdict, and the table of how they scale: for a terminal, and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from seatrial.console import Cell, Paint, table, wrapped
from seatrial.errors import some
from seatrial.metrics.score import FEWEST_RUNS, olympic_mean
from seatrial.report import github, scaling_formats
from seatrial.report import json as json_report
from seatrial.report import text as text_report
from seatrial.report.figures import SECONDS_PER_MINUTE, TITLES, figures
from seatrial.report.gather import RunReport, clean
from seatrial.report.scaling import Scaling
from seatrial.verdict import EXIT_CODES, WORST_OUTCOME_FIRST, Verdict

VERSION = 1
MOST_NAMED = 5
ALWAYS_SHOWN = 2  # columns; of the others those that say something of any run
_FIGURES = ("Steps", "Loss", "Step time", "Tokens/s per device", "MFU")


class JudgedRun(NamedTuple):
    """A run of the folder: `name` is its place there, or what its files share of their names."""

    name: str
    report: RunReport
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class TimeToTrain:
    """The times to train of several runs of one training: seconds by name, None if no evaluation reached the target.

    `name` is what their names begin with, "" for the folder itself; `mean_seconds` is the mean without the fastest and
    the slowest, None where a second run did not reach its target.
    """

    name: str
    seconds: Mapping[str, float | None]
    mean_seconds: float | None


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
    def times_to_train(self) -> tuple[TimeToTrain, ...]:
        """Of the trainings of which there are at least three runs, and a time of any."""
        found = []
        for group in _trainings(self.runs):
            times = {run.name: _seconds_to_train(run) for run in group}
            if len(times) >= FEWEST_RUNS and any(time is not None for time in times.values()):
                name, mean = group[0].name.rpartition("/")[0], olympic_mean([*times.values()])
                found.append(TimeToTrain(name=name, seconds=times, mean_seconds=mean))
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """That of the worst verdict; what cannot be read leaves it open."""
        outcomes = [run.verdict.outcome for run in self.runs]
        if self.unread:
            outcomes.append("inconclusive")
        return EXIT_CODES[min(outcomes, key=WORST_OUTCOME_FIRST.index)]


def _trainings(runs: Sequence[JudgedRun]) -> list[list[JudgedRun]]:
    """The runs of each training: of one folder, model and batch, and of one number of devices where several are known.

    What a log says of its devices depends on what failed in it: one that says nothing is of the only known number.
    """
    alike: dict[tuple[object, ...], dict[int | None, list[JudgedRun]]] = {}
    for run in runs:
        started = run.report.started[0] if run.report.started else None
        said = (str(started.facts.get("model", "")), started.tokens_per_step) if started else ()
        sizes = alike.setdefault((run.name.rpartition("/")[0], *said), {})
        sizes.setdefault(started.num_devices if started else None, []).append(run)
    groups: list[list[JudgedRun]] = []
    for sizes in alike.values():
        groups += sizes.values() if len(sizes.keys() - {None}) > 1 else [list(chain.from_iterable(sizes.values()))]
    return groups


def _seconds_to_train(run: JudgedRun) -> float | None:
    return run.report.metrics.completion.time_to_train_seconds if run.report.metrics else None


def text(report: FolderReport) -> str:
    """Of one run, its report; of several, a row each, the verdicts in a sentence, and the scaling table."""
    if len(report.runs) == 1:
        return "\n\n".join([text_report.render(report.runs[0].report), *_remarks(report)])
    paint = Paint()
    blocks = [_table(report.runs, paint)]
    if times := report.times_to_train:
        blocks.append("\n".join(wrapped(_mean_told(each), paint) for each in times))
    headlines = _together((clean(run.name), run.verdict.headline) for run in report.runs)
    blocks.append("\n".join(wrapped(f"{names}: {headline}", paint) for names, headline in headlines))
    if report.scaling:
        blocks.append(scaling_formats.text(report.scaling))
    else:
        blocks.append(wrapped(f"no scaling table: {clean(report.no_scaling)}", paint))
    return "\n\n".join([*blocks, *_remarks(report)])


def _remarks(report: FolderReport) -> Iterator[str]:
    """Remarks on the files: those not read, how runs were told apart, those that do not count."""
    paint = Paint()
    for names, why in _together((_inside(report, path), clean(why)) for path, why in report.unread.items()):
        yield wrapped(f"not judged: {names}: {why}", paint, style="bold")
    for sentence in report.told_apart:
        yield wrapped(clean(sentence), paint, style="dim")
    for names, why in _together((_inside(report, path), clean(why)) for path, why in report.passed_over.items()):
        yield wrapped(f"passed over: {names}: {why}", paint, style="dim")
    if report.others and len(report.runs) > 1:
        names = some([_inside(report, path) for path in report.others], MOST_NAMED)
        yield wrapped(f"no training in: {names}", paint, style="dim")


def _together(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names and what is said of them, those of which the same is said together."""
    names: dict[str, list[str]] = {}
    for name, said in pairs:
        names.setdefault(said, []).append(name)
    return ((some(of, MOST_NAMED), said) for said, of in names.items())


def _inside(report: FolderReport, path: Path) -> str:
    return clean(str(path.relative_to(report.folder)))


def _table(runs: Sequence[JudgedRun], paint: Paint) -> str:
    """A row for each run, without the columns that say nothing of any."""
    rows: list[list[Cell]] = []
    for run in runs:
        found = {figure.label: figure.value for figure in figures(run.report) if figure.known}
        verdict: Cell = (TITLES[run.verdict.outcome], text_report.outcome_style(run.verdict.outcome))
        devices = run.report.performance.num_devices if run.report.performance else None
        cells = [f"{devices:,}" if devices else "", *(found.get(label, "") for label in _FIGURES)]
        seconds = _seconds_to_train(run)
        rows.append([clean(run.name), verdict, *cells, "" if seconds is None else f"{_minutes(seconds)} min"])
    heads = ("Run", "Verdict", "Devices", *_FIGURES, "Time to train")
    known = [place for place in range(len(heads)) if place < ALWAYS_SHOWN or any(row[place] for row in rows)]
    shown = [[row[place] for place in known] for row in rows]
    right = range(ALWAYS_SHOWN, len(known))
    return table(shown, head=[heads[place] for place in known], right=right, whole=(0, 1), color=paint.enabled)


def _minutes(seconds: float) -> str:
    return f"{seconds / SECONDS_PER_MINUTE:,.3f}"


def _mean_told(times: TimeToTrain) -> str:
    known = [seconds for seconds in times.seconds.values() if seconds is not None]
    of = f"{clean(times.name)}: t" if times.name else "T"
    what = f"{of}ime to train, of {len(times.seconds)} runs"
    if times.mean_seconds is None:
        return f"{what}: no mean, because {len(times.seconds) - len(known)} did not reach their target."
    slowest = _minutes(max(known)) if len(known) == len(times.seconds) else "one did not reach its target"
    mean = f"{_minutes(times.mean_seconds)} minutes, the mean without the fastest and the slowest"
    return f"{what}: {mean} ({_minutes(min(known))}; {slowest})."


def as_json(report: FolderReport) -> str:
    """One object: of one run, its report; else those of all by name, and the scaling table or why there is none."""
    if len(report.runs) == 1:
        found = {**json_report.as_dict(report.runs[0].report), "folder": _files(report)}
    else:
        found = {
            "v": VERSION,
            "runs": {clean(run.name): json_report.as_dict(run.report) for run in report.runs},
            "times_to_train": [
                {
                    "name": clean(each.name),
                    "seconds": {clean(name): seconds for name, seconds in each.seconds.items()},
                    "mean_seconds": each.mean_seconds,
                }
                for each in report.times_to_train
            ],
            "scaling": scaling_formats.as_dict(report.scaling) if report.scaling else None,
            "no_scaling": clean(report.no_scaling),
            **_files(report),
        }
    return json.dumps(found, indent=1, ensure_ascii=False)


def _files(report: FolderReport) -> dict[str, object]:
    return {
        "others": [clean(str(path)) for path in report.others],
        "passed_over": {clean(str(path)): clean(why) for path, why in report.passed_over.items()},
        "not_judged": {clean(str(path)): clean(why) for path, why in report.unread.items()},
        "told_apart": [clean(sentence) for sentence in report.told_apart],
    }


def as_annotations(report: FolderReport) -> str:
    """GitHub's workflow commands for each run, and for what could not be read."""
    lines = [github.of_run(run.name, run.verdict) for run in report.runs]
    lines += [github.command("error", why, title=f"not judged: {path}") for path, why in report.unread.items()]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[FolderReport], str]] = {"text": text, "json": as_json, "github": as_annotations}
