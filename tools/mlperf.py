"""Judges the results of MLPerf Training rounds, and compares each with what its log says of itself.

    python -m tools.mlperf FOLDER… [--only llama] [--published tests/upstream/mlperf.toml] [--changed] [--json OUT]

A FOLDER is a checkout of the results of a round, `training_results_v5.1`; a submission's are in
SUBMITTER/results/SYSTEM/BENCHMARK/result_*.txt. The status and the time to train of each log are read here as plain
text, independently of the reader. A run that claims success should pass, and any other should not; with `--changed`,
each success is also judged as an aborted run and without its end, and should then not pass. The score of a submission
is the mean without the fastest and the slowest run, times the factor in its scaling.json; it is compared with the
published one. Exit code 1 where a run passes that should not, or a time is off by more than 0.1%; successes that do not
pass are listed with the checks that they fail.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from seatrial import __version__
from seatrial.commands.judge import DEFAULT, judge_logs
from seatrial.console import table
from seatrial.errors import InputError
from seatrial.metrics.score import olympic_mean

SUCCESS, NONE = "success", "none"  # what a log claims, where it claims nothing
REFUSED, PASS = "refused", "pass"
WORKERS = 2
SAME_TIME = 1e-3  # relative
SECONDS_PER_MINUTE = 60

_RESULT = re.compile(r"([^/]+)/results/([^/]+)/([^/]+)/result_[^/]*\.txt")
_EDGE = re.compile(r'"key": *"run_(start|stop)"')
_TIME, _STATUS = re.compile(r'"time_ms": *(\d+)'), re.compile(r'"status": *"(\w+)"')
_CHANGES = ("aborted", "without an end")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A log with its verdict: times in seconds, None for a run without one; `failing` are the checks that did not pass.

    `claimed` and `own_seconds` are what the text says, `seconds` is what was measured. `passed_changed` names the
    changes of the log after which it still passed.
    """

    path: str
    round: str
    submitter: str
    system: str
    benchmark: str
    claimed: str
    own_seconds: float | None
    outcome: str
    seconds: float | None = None
    failing: tuple[str, ...] = ()
    passed_changed: tuple[str, ...] = ()

    @property
    def is_as_claimed(self) -> bool:
        """True if a success passed, or anything else did not."""
        return (self.outcome == PASS) == (self.claimed == SUCCESS)

    @property
    def time_off(self) -> float | None:
        """The relative difference of the two times to train of a success; infinite where one was not found."""
        if self.claimed != SUCCESS:
            return None
        return abs(self.seconds / self.own_seconds - 1) if self.seconds and self.own_seconds else float("inf")


def results(folder: Path, only: str) -> Iterator[tuple[Path, re.Match[str]]]:
    """The result files of a round whose benchmark has `only` in its name, each with its parts."""
    for path in sorted(folder.glob("*/results/*/*/result_*.txt")):
        found = _RESULT.fullmatch(path.relative_to(folder).as_posix())
        if found and only in found[3]:
            yield path, found


def claims(lines: Sequence[str]) -> tuple[str, float | None]:
    """(status of the first `run_stop`, seconds from the last `run_start` before it), by the text alone."""
    began: int | None = None
    for line in lines:
        edge, at = _EDGE.search(line), _TIME.search(line)
        if edge and at and edge[1] == "start":
            began = int(at[1])
        elif edge and at:
            status = _STATUS.search(line)
            return status[1] if status else NONE, None if began is None else (int(at[1]) - began) / 1000
    return NONE, None


def judge(path: Path) -> tuple[str, float | None, tuple[str, ...]]:
    """(outcome, time to train, checks that failed or are inconclusive) of a log."""
    try:
        report, verdict = judge_logs(
            [path], DEFAULT, resolved=None, config=None, family="auto", cvs_compat=False, out=None
        )
    except InputError as error:
        return REFUSED, None, (error.problems[0].code,)
    failing = [c.name for axis in verdict.axes.values() for c in axis.checks if c.status in ("fail", "inconclusive")]
    seconds = report.metrics.completion.time_to_train_seconds if report.metrics else None
    return verdict.outcome, seconds, tuple(failing)


def _one(task: tuple[Path, Path, bool]) -> Judged:
    folder, path, changed = task
    parts = _RESULT.fullmatch(path.relative_to(folder).as_posix())
    assert parts is not None  # `results` found it
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    claimed, own_seconds = claims(lines)
    outcome, seconds, failing = judge(path)
    return Judged(
        path=f"{folder.name}/{parts[0]}", round=folder.name, submitter=parts[1], system=parts[2], benchmark=parts[3],
        claimed=claimed, own_seconds=own_seconds, outcome=outcome, seconds=seconds, failing=failing,
        passed_changed=tuple(_passed_changed(lines)) if changed and claimed == SUCCESS else (),
    )  # fmt: skip


def _passed_changed(lines: Sequence[str]) -> Iterator[str]:
    """The changes after which a success would still pass."""
    stops = [number for number, line in enumerate(lines) if (edge := _EDGE.search(line)) and edge[1] == "stop"]
    aborted = [_STATUS.sub('"status": "aborted"', line) if n in stops else line for n, line in enumerate(lines)]
    with tempfile.TemporaryDirectory() as place:
        for change, text in zip(_CHANGES, (aborted, lines[: stops[0]]), strict=True):
            path = Path(place) / "result_0.txt"
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
            if judge(path)[0] == PASS:
                yield change


# --- the scores of submissions ----------------------------------------------------------------------------------------

Submission = tuple[str, str, str, str]  # round, submitter, system, benchmark


def scores(found: Sequence[Judged], folders: Mapping[str, Path]) -> dict[Submission, float | None]:
    """Minutes by submission, as MLPerf scores them; None where it would not."""
    runs: dict[Submission, list[float | None]] = {}
    for each in found:
        runs.setdefault((each.round, each.submitter, each.system, each.benchmark), []).append(each.seconds)
    minutes: dict[Submission, float | None] = {}
    for submission, seconds in runs.items():
        name, submitter, system, benchmark = submission
        factor = folders[name] / submitter / "results" / system / benchmark / "scaling.json"
        scale = json.loads(factor.read_text(encoding="utf-8"))["scaling_factor"] if factor.exists() else 1.0
        mean = olympic_mean(seconds)
        minutes[submission] = None if mean is None else mean * scale / SECONDS_PER_MINUTE
    return minutes


def compared(path: Path, minutes: Mapping[Submission, float | None]) -> Iterator[dict[str, Any]]:
    """The published times to train of the submissions that were judged, each beside the measured one."""
    with path.open("rb") as file:
        rows = tomllib.load(file)["published"]
    for row in rows:
        submission = (row["round"], row["submitter"], row["system"], row["benchmark"])
        if submission in minutes:
            own = minutes[submission]
            off = abs(own / row["minutes"] - 1) if own else float("inf")
            yield {**row, "measured": None if own is None else round(own, 4), "off": round(off, 6)}


# --- what is printed and written --------------------------------------------------------------------------------------

_COUNTED = ("round", "submitter", "benchmark", "claimed", "outcome")


def counts(found: Sequence[Judged], names: Sequence[str] = _COUNTED) -> list[tuple[str, ...]]:
    """A row for each combination of these fields, with how many logs have it."""
    counter = Counter(tuple(getattr(each, name) for name in names) for each in found)
    return [(*key, str(count)) for key, count in sorted(counter.items())]


def as_text(found: Sequence[Judged], published: Sequence[Mapping[str, Any]], absent: Mapping[str, int]) -> str:
    """The counts, the logs that are not as they claim, and the published times."""
    lines = [table(counts(found), head=(*_COUNTED, "logs"), right=(5,)), ""]
    for each in found:
        if not each.is_as_claimed:
            lines.append(f"{each.path}: claims {each.claimed}, {each.outcome}: {', '.join(each.failing)}")
        lines += [f"{each.path}: passes when {change}" for change in each.passed_changed]
    for row in published:
        what = f"{row['round']} {row['submitter']} {row['system']} {row['benchmark']}"
        lines.append(f"{what}: published {row['minutes']} minutes, measured {row['measured']} ({row['off']:.4%} off)")
    claimed = [each for each in found if each.claimed == SUCCESS]
    passed = sum(each.is_as_claimed for each in claimed)
    others = sum(each.is_as_claimed for each in found) - passed
    off = max((each.time_off or 0.0 for each in claimed), default=0.0)
    lines += [
        "",
        f"{passed} of {len(claimed)} that claim success pass; {others} of {len(found) - len(claimed)} others do not; "
        f"times to train are at most {off:.4%} off; absent: {sum(absent.values())}",
    ]
    return "\n".join(lines)


def as_document(
    found: Sequence[Judged], published: Sequence[Mapping[str, Any]], folders: Mapping[str, Path],
    absent: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """The counts and whatever is not as it should be, with the versions of everything, as plain data."""
    claimed = [each for each in found if each.claimed == SUCCESS]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": len(os.sched_getaffinity(0))},
        "versions": {"python": platform.python_version(), "seatrial": __version__},
        "commits": {name: commit for name, folder in folders.items() if (commit := _git(folder, "rev-parse", "HEAD"))},
        "absent": dict(absent),
        "benchmarks": [_named(row, ("round", "benchmark", "claimed", "outcome", "logs")) for row in
                       counts(found, ("round", "benchmark", "claimed", "outcome"))],
        "submitters": [_named(row, (*_COUNTED, "logs")) for row in counts(found)],
        "largest_time_off": max((each.time_off or 0.0 for each in claimed), default=0.0),
        "passed_changed": [_named((each.path, *each.passed_changed), ("path", "change"))
                           for each in found if each.passed_changed],
        "not_as_claimed": [
            {"path": each.path, "claimed": each.claimed, "outcome": each.outcome, "failing": list(each.failing)}
            for each in found if not each.is_as_claimed
        ],
        "published": list(published),
    }  # fmt: skip


def _named(row: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    return {name: int(text) if name == "logs" else text for name, text in zip(names, row, strict=False)}


def _git(folder: Path, *arguments: str) -> str:
    """Git's answer about a checkout; "" where it is none."""
    if not (folder / ".git").exists():
        return ""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _absent(folder: Path, only: str) -> int:
    """The number of results that the commit has and the checkout lacks."""
    names = _git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    found = (match for name in names if (match := _RESULT.fullmatch(name)) and only in match[3])
    return sum(not (folder / match[0]).exists() for match in found)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only the benchmarks with this in their name.")
@click.option("--published", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Published times to train, to compare with.")  # fmt: skip
@click.option("--changed", is_flag=True, help="Judge each success also as aborted, and without its end.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where the counts go.")
def main(folders: tuple[Path, ...], only: str, source: Path | None, changed: bool, out: Path | None) -> None:
    """Judge the results in FOLDERS, checkouts of MLPerf Training rounds."""
    began = time.monotonic()
    rounds = {folder.resolve().name: folder.resolve() for folder in folders}
    tasks = [(folder, path, changed) for folder in rounds.values() for path, _ in results(folder, only)]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        found = list(pool.map(_one, tasks, chunksize=8))
    absent = {name: _absent(folder, only) for name, folder in rounds.items()}
    published = list(compared(source, scores(found, rounds))) if source else []
    click.echo(as_text(found, published, absent))
    if out is not None:
        document = {**as_document(found, published, rounds, absent), "seconds": round(time.monotonic() - began, 1)}
        out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    wrong = any(each.passed_changed or (each.claimed != SUCCESS and not each.is_as_claimed) for each in found)
    off = max((*(each.time_off or 0.0 for each in found), *(row["off"] for row in published)), default=0.0)
    sys.exit(wrong or off > SAME_TIME)


if __name__ == "__main__":
    main()
