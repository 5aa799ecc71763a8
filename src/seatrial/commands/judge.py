"""From what is already there to a verdict: a run directory, or the logs of a run that somebody else has launched."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from seatrial import metrics, verdict
from seatrial.commands.evidence import complete_events, write_events
from seatrial.commands.parse import read_logs
from seatrial.console import Say, warn
from seatrial.errors import InputError, LaunchError, Problem
from seatrial.estimate import published
from seatrial.estimate.flops import CONVENTIONS
from seatrial.events import Event, RunStarted
from seatrial.recording import Recording, read_run
from seatrial.report.formats import FORMATS
from seatrial.report.gather import RunReport, gather
from seatrial.runs.directory import claim, copy_config, is_run, resolved_as_dict, short_path
from seatrial.runs.documents import Documents, dropped_of, reduction_of
from seatrial.runs.files import NotAFile, exists, write_text
from seatrial.runs.mirror import shortage
from seatrial.runs.status import require_over
from seatrial.spec import Resolved, RunSpec

if TYPE_CHECKING:
    from seatrial.metrics import Metrics
    from seatrial.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The options of judging; None is the default.

    `steps` is how many were planned, where nothing else says it. `policy` is a name of `metrics.POLICIES`, `convention`
    one of `flops.CONVENTIONS`; with `published`, the nearest published result is a target with this tolerance. The
    report estimates the time to train on `tokens`, and what it costs at `price_per_device_hour`.
    """

    steps: int | None = None
    policy: str | None = None
    convention: str | None = None
    published: float | None = None
    tokens: float | None = None
    price_per_device_hour: float | None = None

    def __post_init__(self) -> None:
        """Raises InputError for a value that there is not."""
        for name, known in (("policy", metrics.POLICIES), ("convention", CONVENTIONS)):
            if (given := getattr(self, name)) is not None and given not in known:
                fix = f"one of: {', '.join(known)}"
                raise InputError.single("unknown-option", f"--{name}", f"there is no {given!r}", fix)
        if self.steps is not None and self.steps < 1:
            why = f"{self.steps!r} is not a number of steps"
            raise InputError.single("not-a-number", "--steps", why, "give the planned number of steps, 1 or more")
        if self.published is not None and not 0 <= self.published < 1:
            why, fix = f"{self.published!r} is no share of a published result", "give a fraction, 0.1"
            raise InputError.single("not-a-fraction", "--published", why, fix)
        if self.tokens is not None and not 0 < self.tokens < math.inf:
            why = f"{self.tokens!r} is not a number of tokens"
            raise InputError.single("not-a-number", "--tokens", why, "give a number, such as 15e12")


DEFAULT = JudgeOptions()


def sort_arguments(arguments: Sequence[str], against: Path | None) -> tuple[list[Path], list[str]]:
    """(logs or run directory, overrides): key=value is an override, unless a file is called so.

    Raises InputError for overrides of nothing.
    """
    overrides = [text for text in arguments if "=" in text and not exists(Path(text))]
    if overrides and against is None:
        why = "it is no file, and there is no configuration that it could override"
        raise InputError.single("no-such-log", overrides[0], why, "name a log, or the configuration: --against FILE")
    return [Path(text) for text in arguments if text not in overrides], overrides


def run_directory_in(paths: Sequence[Path]) -> Path | None:
    """The run directory, where the paths are one. Raises InputError for one among others."""
    found = [path for path in paths if is_run(path)]
    if found and len(paths) > 1:
        why, fix = "a run directory is judged by its own files alone", "name one run directory, or logs"
        raise InputError.single("run-directory", str(found[0]), why, fix)
    return found[0] if found else None


def judge_run(
    run_dir: Path, options: JudgeOptions = DEFAULT, unkept: list[OSError] | None = None
) -> tuple[RunReport, Verdict]:
    """Measures and judges a run from its files, and writes metrics.json and verdict.json.

    `unkept` takes the errors of files that cannot be written, if the run was judged before: all its events are there.
    Raises InputError where `run_dir` holds no run, OSError.
    """
    documents = Documents(run_dir, unkept if (run_dir / "verdict.json").exists() else None)
    spec = documents.spec()
    try:
        with documents.if_possible():
            complete_events(documents)
        record = read_run(run_dir)
    except (NotAFile, ValueError) as error:
        why, fix = f"its events cannot be read: {error}", "check its events-*.jsonl"
        raise InputError.single("damaged-run", str(run_dir), why, fix) from error
    return _judge(documents, record, spec, _with_earlier(documents, options))


def judge_again(run_dir: Path, options: JudgeOptions = DEFAULT, say: Say | None = None) -> tuple[RunReport, Verdict]:
    """As `judge_run`, of a run that is over; where it may not be written, its verdict is not kept, with a warning."""
    unkept: list[OSError] = []
    warn(require_over(run_dir), say)
    judged = judge_run(run_dir, options, unkept)
    for error in unkept[:1]:
        why, fix = f"the verdict is not kept: {shortage(error, run_dir)}", "judge a copy of the run that you may write"
        warn((Problem(severity="warning", code="verdict-not-kept", path=str(run_dir), why=why, fix=fix),), say)
    return judged


def judge_and_report(run_dir: Path) -> tuple[RunReport, Verdict, str]:
    """Judges a run that has just ended and writes its report.html; also the text that says so.

    Raises LaunchError where the verdict cannot be written, or the run directory is gone.
    """
    try:
        if not run_dir.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(run_dir))
        report, judged = judge_run(run_dir)
    except OSError as error:
        why = shortage(error, run_dir)
        raise LaunchError(f"the run is over, but cannot be judged: {why}; then: seatrial judge {run_dir}") from error
    try:
        written = write_html(report, run_dir)
    except OSError as error:
        written = f"report: none: {shortage(error, run_dir)}; then: seatrial report {short_path(run_dir)}"
    return report, judged, f"{FORMATS['text'](report)}\n{written}"


def write_html(report: RunReport, run_dir: Path) -> str:
    """Writes report.html; a line that names it."""
    write_text(run_dir / "report.html", FORMATS["html"](report))
    return f"report: {short_path(run_dir / 'report.html')}"


def _with_earlier(documents: Documents, options: JudgeOptions) -> JudgeOptions:
    """The options, and for those that are not given, what the run was judged with."""
    earlier = documents.get("judged.json")
    given = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
    if given and earlier:
        documents.write("judged.json", {**earlier, **given})
    try:
        return JudgeOptions(**{field.name: earlier.get(field.name) for field in dataclasses.fields(options)} | given)
    except TypeError as error:
        why, fix = f"its judged.json holds no options: {error}", "judge the logs again"
        raise InputError.single("damaged-run", str(documents.directory), why, fix) from error


def judge_logs(
    paths: Sequence[Path],
    options: JudgeOptions,
    *,
    resolved: Resolved | None,
    config: Path | None,
    family: str,
    pattern: Path | None = None,
    cvs_compat: bool,
    out: Path | None,
) -> tuple[RunReport, Verdict]:
    """Judges logs from other trainers, by a configuration where there is one.

    With `out`, that becomes a run directory, for reports and comparisons. Raises InputError for logs that cannot be
    read, and where no line of them is one of training.
    """
    logs = LogsOfRun(paths=tuple(paths), family=family, events=read_logs(paths, family, pattern))
    return judge_record(logs, options, resolved=resolved, config=config, cvs_compat=cvs_compat, out=out)


@dataclass(frozen=True, kw_only=True)
class LogsOfRun:
    """The logs of one run, the family that they were read as, and what they say."""

    paths: tuple[Path, ...]
    family: str
    events: Sequence[Event]


def judge_record(
    logs: LogsOfRun,
    options: JudgeOptions,
    *,
    resolved: Resolved | None,
    config: Path | None,
    cvs_compat: bool = False,
    out: Path | None,
) -> tuple[RunReport, Verdict]:
    """As `judge_logs`, of logs that have been read."""
    spec = resolved.spec if resolved else None
    with _directory(out) as run_dir:
        documents = Documents(run_dir)
        judged_by = {
            "v": 1,
            "sources": [str(path if path.is_fifo() else short_path(path)) for path in logs.paths],  # or /proc/7/fd/pipe
            "family": ", ".join(_families(logs.events)) or logs.family,
            "against": str(short_path(config)) if config else None,
            **dataclasses.asdict(options),
        }
        documents.write("judged.json", judged_by)
        if resolved and config:
            copy_config(config, run_dir)
            documents.write("spec.json", {"v": 1, **resolved_as_dict(resolved)})
        if cvs_compat:
            documents.write("cvs.json", _cvs_answer(logs.paths, spec))
        if out:
            write_events(logs.events, run_dir)
        report, judged = _judge(documents, logs.events, spec, options)
        if out:
            write_html(report, run_dir)
        return report, judged


def _judge(
    documents: Documents, record: Sequence[Event], spec: RunSpec | None, options: JudgeOptions
) -> tuple[RunReport, Verdict]:
    if options.steps is not None and spec is not None:
        why, fix = "the configuration says how many steps were planned", "omit it, or override that"
        raise InputError.single("two-answers", "--steps", why, fix)
    policy = options.policy or metrics.DEFAULT_POLICY
    measured = metrics.measure(record, spec, planned_steps=options.steps, convention=options.convention, policy=policy)
    if options.published is not None:
        spec = _with_published_target(spec, measured, options.published)
    plan = documents.get("plan.json")
    judged = verdict.judge(measured, spec, rehearsal=reduction_of(plan), dropped=dropped_of(plan))
    documents.write("metrics.json", metrics.to_dict(measured))
    documents.write("verdict.json", verdict.to_dict(judged))
    shown = {"tokens": options.tokens, "price_per_device_hour": options.price_per_device_hour}
    return gather(documents.directory, record, documents, **shown), judged


def _with_published_target(spec: RunSpec | None, measured: Metrics, tolerance: float) -> RunSpec:
    """The spec with the nearest published result as a target. Raises InputError where none is comparable."""
    if spec is None:
        why, fix = "nothing says what was run", "name its configuration: --against FILE"
        raise InputError.single("nothing-to-compare", "--published", why, fix)
    speed = measured.performance
    found = published.nearest(spec, num_devices=speed.num_devices or 1, device=speed.device, limit=1)
    if not found:
        why = f"no result is published here for {spec.model.name} on {speed.device or 'this device'}"
        raise InputError.single("nothing-to-compare", "--published", why, "omit it")
    target = published.expectation_from(found[0], tolerance=tolerance)
    others = (expectation for expectation in spec.expectations if expectation.metric != target.metric)
    return dataclasses.replace(spec, expectations=(*others, target))


def _cvs_answer(paths: Sequence[Path], spec: RunSpec | None) -> dict[str, Any]:
    """CVS's own answer to the last node's log, which is the last one named."""
    from seatrial.logs import is_read_once, read_lines
    from seatrial.verdict import cvs_compat

    if spec is None:
        why, fix = "CVS compares with a configuration", "name it: --against FILE"
        raise InputError.single("nothing-to-compare", "--cvs-compat", why, fix)
    if is_read_once(paths[-1]):
        why, fix = "CVS's answer takes another look at the log, and a pipe has gone by", "name a file"
        raise InputError.single("nothing-to-compare", "--cvs-compat", why, fix)
    return cvs_compat.to_dict(cvs_compat.judge_like_cvs(read_lines(paths[-1]), spec))


@contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    """The run directory that is asked for, or a temporary one."""
    if out:
        claim(out)
        (out / "launch").rmdir()  # nothing is launched
        yield out.resolve()
    else:
        with TemporaryDirectory(prefix="seatrial-") as folder:
            yield Path(folder)


def _families(record: Sequence[Event]) -> list[str]:
    started = (event for event in Recording.of(record).others if isinstance(event, RunStarted))
    return sorted({str(event.facts["family"]) for event in started if "family" in event.facts})
