"""The Python API: what `check`, `plan`, `run`, `judge`, `compare` and `history` do, as functions with typed results.

    import seatrial

    verdict = seatrial.judge("train.log", against="config.yaml")
    verdict.outcome, verdict.headline

Every name here is one of `seatrial` too. The functions print nothing, ask nothing and never end the process. What is
wrong with a configuration, a log or an argument is an InputError, which holds every finding with its place and fix;
what keeps a run from starting is a LaunchError. A file that cannot be written is an OSError. Results are frozen
dataclasses: units stand in the names (`step_seconds`), fractions are fractions, and None means not known.
Paths may be texts or `pathlib.Path`; overrides are texts `key=value`, as on the command line. `model` and `gpu` choose
a cell of a file of ROCm CVS that has several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from seatrial.commands.check import ConfigArguments, findings
from seatrial.commands.judge import JudgeOptions
from seatrial.commands.judge_named import judge_named
from seatrial.engines import known
from seatrial.errors import InputError, LaunchError, Mark, Problem, SeatrialError
from seatrial.history import Comparison, compare_named, load
from seatrial.history.past import History, PastRun, past_runs
from seatrial.launch.where import HERE, Where
from seatrial.metrics import Metrics
from seatrial.report.columns import Table
from seatrial.report.folder import FolderReport
from seatrial.report.steps import step_table
from seatrial.runs.directory import is_run
from seatrial.spec import RunSpec
from seatrial.verdict import AxisVerdict, Check, Verdict

if TYPE_CHECKING:
    from seatrial.commands.planned import PlannedRun

__all__ = [
    "AxisVerdict", "Check", "Comparison", "Findings", "History", "InputError", "LaunchError", "Mark", "Metrics",
    "PastRun", "PlannedRun", "Problem", "Run", "RunSpec", "SeatrialError", "Table", "Verdict", "Where", "check",
    "compare", "history", "judge", "load_run", "plan", "run",
]  # fmt: skip

Place: TypeAlias = str | PathLike[str]
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings on one configuration or cluster file, in the order in which they were found."""

    path: Path
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Those that keep the configuration from being run."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def ok(self) -> bool:
        """True if none of them is an error."""
        return not self.errors

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A judged run, of a run directory.

    `spec` is what was run (after a rehearsal's changes), or what a log was judged against; None where no configuration
    is known. `steps` has a row per step of every attempt, with the columns step, attempt, seconds,
    tokens_per_second_total, tokens_per_second_per_device, tflops_per_second_per_device, mfu (fraction), loss,
    grad_norm, learning_rate, phase, and in_window: whether the run's speed is taken from that step, too.
    """

    directory: Path
    spec: RunSpec | None = field(repr=False)
    steps: Table
    metrics: Metrics = field(repr=False)
    verdict: Verdict = field(repr=False)


def check(
    path: Place,
    overrides: Iterable[str] = (),
    *,
    rehearse: bool = False,
    model: str | None = None,
    gpu: str | None = None,
) -> Findings:
    """Every problem of a configuration or a cluster file; nothing is run.

    `rehearse`: of a rehearsal, for which much is a warning that is an error of a run. A file that is not there
    or cannot be read is a finding as well; nothing is raised for it.
    """
    given = _config(path, overrides, model, gpu)
    return Findings(path=given.config, problems=findings(given, action="rehearse" if rehearse else "check"))


def plan(
    path: Place,
    overrides: Iterable[str] = (),
    *,
    where: Where = HERE,
    engine: str = "native",
    rehearse: bool = False,
    collapse: bool = False,
    model: str | None = None,
    gpu: str | None = None,
) -> PlannedRun:
    """The run that `run` would start with the same arguments: spec, estimates, commands, files. Nothing is written.

    Where this machine lacks what the run asks for, the plan is None and `missing` says why. Raises InputError where the
    configuration has errors, for an unknown engine, and for options that do not go together.
    """
    from seatrial.commands.planned import planned
    from seatrial.commands.run import RunRequest

    config = _config(path, overrides, model, gpu)
    return planned(
        RunRequest(config=config, where=where, engine=known(engine), rehearse=rehearse, collapse=collapse, say=_ignore)
    )


def run(
    path: Place,
    overrides: Iterable[str] = (),
    *,
    where: Where = HERE,
    engine: str = "native",
    rehearse: bool = False,
    collapse: bool = False,
    out: Place | None = None,
    retries: int = 0,
    model: str | None = None,
    gpu: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Runs a configuration to its verdict, and returns when no process of it is left.

    `rehearse` shrinks model and batch to fit this machine, `collapse` only the mesh. `out` is the run directory
    (default: runs/<name>-<time>), `retries` the number of further attempts after infrastructure failures. `say` takes
    each line of the progress as the command line would print it. A run that failed, or died, is no error but
    a verdict. On the main thread, SIGINT and SIGTERM stop the run as Ctrl-C does on the command line, and the verdict
    is "interrupted". Raises InputError where the configuration has errors, or the run directory is in use; LaunchError
    where nothing can be started, or the verdict cannot be written.
    """
    from seatrial.commands.run import RunRequest, run_to_end

    request = RunRequest(
        config=_config(path, overrides, model, gpu),
        where=where,
        engine=known(engine),
        rehearse=rehearse,
        collapse=collapse,
        out=None if out is None else Path(out),
        retries=retries,
        say=say or _ignore,
    )
    return load_run(run_to_end(request).directory)


def judge(
    logs: Place | Iterable[Place],
    against: Place | None = None,
    *,
    overrides: Iterable[str] = (),
    model: str | None = None,
    gpu: str | None = None,
    steps: int | None = None,
    policy: str | None = None,
    convention: str | None = None,
    published: float | None = None,
    family: str = "auto",
    pattern: Place | None = None,
    out: Place | None = None,
) -> Verdict:
    """The verdict on the logs of one run: a file, several, or their folder; of a run directory, once more.

    `against` is the configuration that was run, whose targets are checked, `overrides` are its. `steps` is how many
    were planned, if neither it nor the log says so. `policy` says which steps count for speed, `convention` how FLOPs
    are counted. With `published` (fraction, 0.1), the nearest published result is a target with this tolerance.
    `family` is the logs' trainer, `pattern` a file that says how the step lines of another trainer look. With `out`,
    the result becomes a run directory for `load_run` and `compare`; of a run directory, metrics.json and verdict.json
    are written again. Raises InputError for logs that cannot be read or say nothing of training, a folder with several
    runs, a run that goes on, and arguments that are wrong.
    """
    paths = [Path(logs)] if isinstance(logs, (str, PathLike)) else [Path(each) for each in logs]
    if not paths:
        raise InputError.single("no-such-log", "logs", "no log is named", "name one")
    if against is None and tuple(overrides):
        why = "there is no configuration that they could override"
        raise InputError.single("overrides", "overrides", why, "name the configuration: against=…")
    found = judge_named(
        paths,
        JudgeOptions(steps=steps, policy=policy, convention=convention, published=published),
        against=None if against is None else _config(against, overrides, model, gpu),
        family=family,
        pattern=None if pattern is None else Path(pattern),
        out=None if out is None else Path(out),
        say=_ignore,
    )
    return _only(found) if isinstance(found, FolderReport) else found[1]


def load_run(directory: Place) -> Run:
    """A judged run, from its directory; nothing is measured again.

    Raises InputError where there is no run, it was not judged yet, or a file of it is damaged.
    """
    path = Path(directory).absolute()  # the current folder may change
    if not is_run(path):
        fix = "name the directory that a run printed, or keep what is judged: judge(log, out=DIRECTORY)"
        raise InputError.single("no-run", str(path), "it is no run directory", fix)
    loaded = load(path)
    return Run(
        directory=path,
        spec=loaded.spec,
        steps=step_table(loaded.attempts, loaded.metrics.performance),
        metrics=loaded.metrics,
        verdict=loaded.verdict,
    )


def compare(
    a: Run | Place | Iterable[Run | Place], b: Run | Place | Iterable[Run | Place], *, anyway: bool = False
) -> Comparison:
    """Run b compared with the baseline a, or several a side: speed with its 98% interval, losses, settings.

    A run is a `Run`, its directory, or its name or id in the history; with an empty `a`, the baseline is all earlier
    runs of b's configuration. Raises InputError where a run cannot be found or read, where one is named twice, and,
    unless `anyway`, where one is a copy of another or they do different work.
    """
    return compare_named(_names(a), _names(b), anyway=anyway)


def history(
    root: Place = "runs",
    *,
    model: str | None = None,
    device: str | None = None,
    outcome: str | None = None,
    rebuild: bool = False,
) -> History:
    """The runs below a folder, the newest first.

    `model` and `device` are parts of their names; `outcome` is one of a verdict's, or running, not_finished,
    not_judged, unreadable. The index in the user's data directory is brought up to date before, or with `rebuild` made
    again. Raises InputError for a folder that is not there, an unknown outcome, and an index that cannot be used.
    """
    return past_runs(Path(root), model=model, device=device, outcome=outcome, rebuild=rebuild)


def __getattr__(name: str) -> type[PlannedRun]:
    """PlannedRun, late: judging needs no launcher."""
    if name != "PlannedRun":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seatrial.commands.planned import PlannedRun

    return PlannedRun


def _config(path: Place, overrides: Iterable[str], model: str | None, gpu: str | None) -> ConfigArguments:
    words = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    return ConfigArguments(config=Path(path), overrides=words, model=model, gpu=gpu)


def _ignore(line: str) -> None:
    """Takes a line that the command line would print."""


def _names(runs: Run | Place | Iterable[Run | Place]) -> list[str]:
    each = [runs] if isinstance(runs, (Run, str, PathLike)) else runs
    return [str(one.directory if isinstance(one, Run) else one) for one in each]


def _only(found: FolderReport) -> Verdict:
    """The verdict on the only run of a folder. Raises InputError where there are several."""
    if len(found.runs) > 1:
        names = [run.name for run in found.runs[:MOST_NAMED]]
        why = f"it holds {len(found.runs)} runs: {', '.join(names)}{', …' if len(found.runs) > MOST_NAMED else ''}"
        raise InputError.single("several-runs", str(found.folder), why, "name the logs of one of them")
    return found.runs[0].verdict
