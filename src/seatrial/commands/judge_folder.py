"""`seatrial judge FOLDER`: every run of which the folder holds logs or files, each judged, and how they scale."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import logs
from seatrial.commands.judge import JudgeOptions, LogsOfRun, judge_again, judge_record
from seatrial.commands.parse import check_logs, is_of_training, no_training, readable
from seatrial.console import Say
from seatrial.errors import InputError, Problem, some
from seatrial.events import RunStarted
from seatrial.history.index import folders_below
from seatrial.recording import Recording
from seatrial.report.folder import FolderReport, JudgedRun
from seatrial.report.gather import clean
from seatrial.report.scaling import Scaling, measure_scaling
from seatrial.runs.copies import FIRST_STEPS
from seatrial.spec import Origin, Resolved, RunSpec

LEVELS = 99  # of folders
MOST_NAMED = 4
_UNREADABLE = ("no-run", "damaged-run", "run-goes-on", "run-uncopied")  # the codes of the errors of run directories


def judge_folder(
    folder: Path,
    options: JudgeOptions,
    *,
    resolved: Resolved | None,
    config: Path | None,
    family: str,
    cvs_compat: bool,
    out: Path | None,
    pattern: Path | None = None,
    say: Say | None = None,
) -> FolderReport:
    """Judges each run of a folder; with `out`, each becomes a run directory in it, by its name.

    A configuration is that of all of them, at the size that each log says. Raises InputError where there is no run.
    """
    directories = sorted(Path(path) for path, has_run in folders_below(str(folder), LEVELS) if has_run)
    how = check_logs([folder], family, pattern)
    with readable([folder]):
        found = logs.read_runs(folder, how, without=directories)
    trained = [run for run in found.runs if is_of_training(run.events)]
    unread = dict(found.unread)
    problems: list[Problem] = []
    runs = list(_judged_again(folder, directories, options, problems, say))
    unread |= {Path(problem.path): problem.why for problem in problems}
    alone = len(trained) == 1 and not directories
    for run in trained:
        record = LogsOfRun(paths=(folder,) if len(found.runs) == 1 else run.paths, family=family, events=run.events)
        spec = resolved if alone or resolved is None else at_size_of(resolved, run.events)
        place = out if alone or out is None else out / run.name
        judged = judge_record(record, options, resolved=spec, config=config, cvs_compat=cvs_compat, out=place)
        runs.append(JudgedRun(run.name, *judged))
    if not runs:
        raise InputError(problems) if problems else _nothing(folder, unread)
    runs.sort(key=lambda run: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", run.name)])
    once, copies = _without_copies(runs)
    scaling, why = _scaling(once)
    return FolderReport(
        folder=folder,
        runs=tuple(runs),
        others=tuple(path for run in found.runs if run not in trained for path in run.paths),
        passed_over=found.passed_over,
        unread=unread,
        told_apart=(*found.told_apart, *copies),
        scaling=scaling,
        no_scaling=why,
    )


def _judged_again(
    folder: Path, directories: Sequence[Path], options: JudgeOptions, problems: list[Problem], say: Say | None
) -> Iterator[JudgedRun]:
    """The run directories of the folder; of one that is damaged, or goes on, `problems` get the reason."""
    for path in directories:
        try:
            yield JudgedRun(str(path.relative_to(folder)), *judge_again(path, options, say))
        except InputError as error:
            if error.problems[0].code not in _UNREADABLE:
                raise
            problems.append(replace(error.problems[0], path=str(path)))


def _nothing(folder: Path, unread: Mapping[Path, str]) -> InputError:
    if not unread:
        return no_training([folder])
    path, why = next(iter(unread.items()))
    more = f", and {len(unread) - 1} more cannot be read either" if len(unread) > 1 else ""
    return InputError.single("unreadable-log", str(path), f"it cannot be read: {why}{more}", "name a log file")


def _without_copies(runs: Sequence[JudgedRun]) -> tuple[list[JudgedRun], list[str]]:
    """(the runs, of those that are copies of each other the first; a sentence on each such run).

    The first steps of two runs may have the same losses, and never the same times.
    """
    found: dict[Any, list[JudgedRun]] = {}
    for run in runs:
        first = [(step.step, step.seconds, step.loss) for step in run.report.steps[:FIRST_STEPS]]
        is_timed = bool(first) and all(seconds is not None for _, seconds, _ in first)
        devices = run.report.performance.num_devices if run.report.performance else None
        found.setdefault((devices, *first) if is_timed else run.name, []).append(run)
    copied = [some([run.name for run in same], MOST_NAMED) for same in found.values() if len(same) > 1]
    return [same[0] for same in found.values()], [f"{names} are copies of one run, and count once" for names in copied]


def _scaling(runs: Sequence[JudgedRun]) -> tuple[Scaling | None, str]:
    """The scaling table of the runs that passed what it needs, or why there is none."""
    named = [replace(run.report, directory=clean(run.name)) for run in runs]
    try:
        return measure_scaling(named), ""
    except InputError as error:
        first, more = error.problems[0], len(error.problems) - 1
        return None, f"{first.path}: {first.why}" + (f" (and {more} more)" if more else "")


# --- a configuration at another size ---


def at_size_of(resolved: Resolved, record: Recording) -> Resolved:
    """The configuration on as many devices, and with the batch, that a log says; as it is where that cannot be."""
    started = next((event for event in record.others if isinstance(event, RunStarted)), None)
    spec = resolved.spec
    if spec is None or started is None:
        return resolved
    changes = dict(_changes(spec, started.num_devices, started.tokens_per_step))
    if not changes:
        return resolved
    made = spec
    for path, value in changes.items():
        made = _with(made, path.split("."), value)
    origin = Origin(kind="derived", note="the size that the log says")
    return replace(resolved, spec=made, origins={**resolved.origins, **dict.fromkeys(changes, origin)})


def _changes(spec: RunSpec, devices: int | None, tokens: int | None) -> Iterator[tuple[str, int]]:
    """The values that another number of devices changes: nodes, the axis that spans them, and the batch."""
    if not devices or devices == spec.topology.num_devices:
        return
    nodes, rest = divmod(devices, spec.topology.devices_per_node)
    across = spec.parallelism.across_nodes
    axis = next((axis for axis in ("fsdp", "data") if getattr(across, axis) != 1), "data")
    size, part = divmod(getattr(across, axis) * devices, spec.topology.num_devices)
    if rest or part:
        return
    batch = spec.batch.global_batch_size * devices / spec.topology.num_devices
    if tokens:
        batch = tokens / spec.batch.sequence_length
    yield "topology.num_nodes", nodes
    if getattr(across, axis) != -1:
        yield f"parallelism.across_nodes.{axis}", size
    if batch.is_integer():
        yield "batch.global_batch_size", int(batch)


def _with(part: Any, path: Sequence[str], value: int) -> Any:
    name, *inner = path
    return replace(part, **{name: _with(getattr(part, name), inner, value) if inner else value})
