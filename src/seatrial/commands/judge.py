"""From what is already there to a verdict: a run directory, or the logs of a run that somebody else has launched."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.engines import ENGINES, engine
from seatrial.errors import InputError, LaunchError
from seatrial.estimate import flops, published
from seatrial.events import Event, Fault, RunEnded, RunStarted, Step
from seatrial.logs import kernel
from seatrial.runs.directory import claim, copy_config, rank_logs, read_spec, resolved_as_dict, short_path
from seatrial.runs.files import NotAFile, read_object, replacing, write_json, write_text
from seatrial.runs.mirror import shortage
from seatrial.runs.status import read_status
from seatrial.spec import Resolved, RunSpec

if TYPE_CHECKING:
    from seatrial.metrics import Metrics
    from seatrial.report.gather import RunReport
    from seatrial.verdict import Verdict

_OF_CONFIGURATIONS = (".yaml", ".yml", ".json", ".sh", ".bash", ".slurm", ".sbatch")  # and of no log


ZONES_APART, MOST_AHEAD = 900.0, 14 * 3600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to judge; None is the default.

    `policy` is a name of `metrics.POLICIES`, `convention` one of `flops.CONVENTIONS`; with `published`, the nearest
    published result is a bar that may be missed by this fraction of it. The report says how long `tokens` would take.
    """

    policy: str | None = None
    convention: str | None = None
    published: float | None = None
    tokens: float | None = None


def options_of(
    *, policy: str | None, convention: str | None, published: str | None, tokens: str | None = None
) -> Options:
    """The options as a person gives them. Raises InputError for any that there is not."""
    from seatrial.metrics import POLICIES

    for option, value, known in (("--policy", policy, POLICIES), ("--convention", convention, flops.CONVENTIONS)):
        if value is not None and value not in known:
            raise InputError.single("unknown-option", option, f"there is no {value!r}", f"one of: {', '.join(known)}")
    return Options(policy=policy, convention=convention, published=_fraction(published), tokens=_tokens(tokens))


def _tokens(text: str | None) -> float | None:
    if text is None:
        return None
    from seatrial.logs.numbers import quantity

    found = re.fullmatch(r"[\d.,_]+(?:e\d+)?[KMBGT]?", text, re.IGNORECASE)
    number = quantity(text.upper().replace("E", "e")) if found else None
    if not number:
        why = f"{text!r} is no number of tokens"
        raise InputError.single("not-a-number", "--tokens", why, "give a number, such as 15T or 300B")
    return number


def _fraction(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value < 1:
        why = f"{text!r} is no part of a published result"
        raise InputError.single("not-a-fraction", "--published", why, "give a percentage, 10%, or a fraction, 0.1")
    return value


def sort_arguments(arguments: Sequence[str], against: Path | None) -> tuple[list[Path], list[str]]:
    """(logs or run directory, overrides): key=value is an override, unless a file is called so.

    Raises InputError for overrides of nothing.
    """
    overrides = [text for text in arguments if "=" in text and not Path(text).exists()]
    if overrides and against is None:
        why = "it is no file, and there is no configuration that it could override"
        raise InputError.single("no-such-log", overrides[0], why, "name a log, or the configuration: --against FILE")
    return [Path(text) for text in arguments if text not in overrides], overrides


def run_directory_in(paths: Sequence[Path]) -> Path | None:
    """The run directory, where the paths are one. Raises InputError for one among others."""
    found = [path for path in paths if any((path / name).exists() for name in ("plan.json", "judged.json"))]
    if found and len(paths) > 1:
        why, fix = "it is a run directory, and it is judged by what is in it alone", "name one run directory, or logs"
        raise InputError.single("run-directory", str(found[0]), why, fix)
    return found[0] if found else None


def judge_run(run_dir: Path, options: Options | None = None, *, as_json: bool) -> tuple[str, Verdict]:
    """Measures and judges a run from its files, writes metrics.json and verdict.json; the verdict as text, and itself.

    Raises InputError where `run_dir` holds no run.
    """
    spec, rehearsal = read_spec(run_dir)
    try:
        _read_unrecorded(run_dir)
        _read_foreign(run_dir)
        _read_kernels(run_dir)
        record = events.read_run(run_dir)
    except (NotAFile, ValueError) as error:
        why, fix = f"its events cannot be read: {error}", "look into its events-*.jsonl"
        raise InputError.single("damaged-run", str(run_dir), why, fix) from error
    wanted = _as_before(run_dir, options or Options())
    return _judge(run_dir, record, spec, wanted, rehearsal=rehearsal, as_json=as_json)


def judge_and_report(run_dir: Path) -> tuple[str, Verdict]:
    """Judges a run that has just ended and writes its report; what to say of both, and the verdict.

    Raises LaunchError where the verdict cannot be written, or the run directory is gone.
    """
    try:
        if not run_dir.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(run_dir))
        text, verdict = judge_run(run_dir, as_json=False)
    except OSError as error:
        why = shortage(error, run_dir)
        raise LaunchError(f"the run is over, but cannot be judged: {why}; then: seatrial judge {run_dir}") from error
    try:
        report = report_run(run_dir, "html")
    except OSError as error:
        report = f"report: none: {shortage(error, run_dir)}; then: seatrial report {short_path(run_dir)}"
    return f"{text}\n{report}", verdict


def _read_unrecorded(run_dir: Path) -> None:
    """Writes what the launcher saw and, on a full disk, could only note in the run's status."""
    path = run_dir / "events-launcher.jsonl"
    try:
        lines = read_status(run_dir).get("unrecorded")
    except InputError:
        return
    if not isinstance(lines, list) or (path.exists() and any(isinstance(e, RunEnded) for e in events.read(path))):
        return
    with closing(events.Writer(path)) as writer:
        for line in lines:
            writer.write(events.loads(str(line)))


def _read_foreign(run_dir: Path) -> None:
    """Writes the events of a run whose engine writes none itself, from the logs of its processes."""
    path = run_dir / "plan.json"
    name = read_object(path).get("engine") if path.exists() else "native"
    family = engine(name).FAMILY if isinstance(name, str) and name in ENGINES else None
    found = [log for _, log in rank_logs(run_dir)]
    if family and found:
        from seatrial import logs

        _write_events(_on_the_clock(logs.read(found, family), run_dir), run_dir)


def _read_kernels(run_dir: Path) -> None:
    """Writes as events what the kernels of the nodes said that can end a run."""
    launcher, path = run_dir / "events-launcher.jsonl", run_dir / "events-kernel.jsonl"
    path.unlink(missing_ok=True)
    told = events.read(launcher) if launcher.exists() else ()
    found = kernel.faults(run_dir, {event.where: event.wall_time for event in told if isinstance(event, Fault)})
    if found:
        write_text(path, "".join(events.dumps(fault) + "\n" for fault in found))


def _on_the_clock(record: Sequence[Event], run_dir: Path) -> list[Event]:
    """The events of foreign logs on the clock of the hosts, by which their processes were started and ended.

    Logs that tell no time count seconds, from the moment at which their process was started. The others tell it in a
    zone of their own, and some without the year.
    """
    lived: dict[int, tuple[float, float]] = {}
    for path in (run_dir / "status.json", *run_dir.glob("nodes/*/status.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            processes = read_object(path)["processes"]
            lived |= {each["rank"]: _lived(each) for each in processes if each["started"]}
    if not lived:
        return list(record)
    whole = min(began for began, _ in lived.values()), max(ended for _, ended in lived.values())
    told: dict[int, list[float]] = {}
    for event in record:
        if event.wall_time >= events.FIRST_CLOCK:
            told.setdefault(event.process, []).append(event.wall_time)
    moved = {process: _ahead(min(times), max(times), *lived.get(process, whole)) for process, times in told.items()}
    return [
        dataclasses.replace(
            event,
            wall_time=event.wall_time - moved[event.process]
            if event.wall_time >= events.FIRST_CLOCK
            else event.wall_time + lived.get(event.process, whole)[0],
        )
        for event in record
    ]


def _lived(process: Mapping[str, Any]) -> tuple[float, float]:
    """When a process was started and ended, or was last heard of. Raises ValueError for what is no time."""
    began, ended = float(process["started"]), float(process["ended"] or process["last_output"] or process["started"])
    if not began <= ended < math.inf:
        raise ValueError("a process cannot have lived so")
    return began, ended


def _ahead(first: float, last: float, began: float, ended: float) -> float:
    """The seconds by which a log's clock is ahead of its host's, of a process that logged and lived so long.

    Zones differ by quarters of an hour. Of several that would do, it is none, or else that with which the log ends as
    late as it can: most end with their process. Where none would do, it is another year, or another clock.
    """
    least = math.ceil((last - ended) / ZONES_APART - 0.5) * ZONES_APART
    most = math.floor((first - began) / ZONES_APART + 0.5) * ZONES_APART
    if least <= 0 <= most:
        return 0.0
    return least if least <= most and abs(least) <= MOST_AHEAD else last - ended


def _as_before(run_dir: Path, options: Options) -> Options:
    """The options, and for those that are not given, what the run was judged with."""
    path = run_dir / "judged.json"
    before = read_object(path) if path.exists() else {}
    given = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
    kept = {name: before.get(name) for name in ("policy", "convention", "published", "tokens")}
    if given and before:
        write_json(path, {**before, **given})
    return Options(**{**kept, **given})


def judge_logs(
    paths: Sequence[Path],
    options: Options,
    *,
    resolved: Resolved | None,
    config: Path | None,
    family: str,
    cvs_compat: bool,
    out: Path | None,
    as_json: bool,
) -> tuple[str, Verdict]:
    """Judges foreign logs, against a configuration where there is one; the verdict as text, and itself.

    With `out`, that becomes a run directory, for reports and comparisons. Raises InputError for logs that cannot be
    read, and where no line of them is one of training.
    """
    record = read_logs(paths, family)
    with _directory(out) as run_dir:
        spec = resolved.spec if resolved else None
        judged = {
            "v": 1,
            "sources": [str(short_path(path)) for path in paths],
            "family": ", ".join(_families(record)) or family,
            "against": str(short_path(config)) if config else None,
            **dataclasses.asdict(options),
        }
        write_json(run_dir / "judged.json", judged)
        if resolved and config:
            copy_config(config, run_dir)
            write_json(run_dir / "spec.json", {"v": 1, **resolved_as_dict(resolved)})
        if cvs_compat:
            write_json(run_dir / "cvs.json", _cvs_answer(paths, spec))
        if out:
            _write_events(record, run_dir)
        text, verdict = _judge(run_dir, record, spec, options, rehearsal="", as_json=as_json)
        if out:
            report_run(run_dir, "html")
        return text, verdict


def read_logs(paths: Sequence[Path], family: str) -> list[Event]:
    """The events of the logs of one run. Raises InputError for what cannot be read, or says nothing of training."""
    from seatrial import logs

    _check_logs(paths, family)
    try:
        record = logs.read(paths, family)
    except OSError as error:
        raise _unreadable(paths, error) from error
    if not any(isinstance(event, (Step, Fault, RunStarted)) for event in record):
        why = "no line in it was recognised as a step, a failure or the start of a training run"
        fix = f"name the log that has the training's own lines; known are those of {', '.join(logs.FAMILIES)}"
        raise InputError.single("no-training-log", _named(paths), why, fix)
    return record


def parse_logs(paths: Sequence[Path], family: str) -> Iterator[str]:
    """The events of the logs of one run as lines of JSON; a single log is not kept. Raises as `read_logs` does."""
    from seatrial import logs

    _check_logs(paths, family)
    try:
        alone = paths[0] if len(paths) == 1 and not paths[0].is_dir() else None
        found = logs.parse_file(alone, family) if alone else logs.read(paths, family)
        yield from map(events.dumps, found)
    except OSError as error:
        raise _unreadable(paths, error) from error


def _check_logs(paths: Sequence[Path], family: str) -> None:
    from seatrial import logs
    from seatrial.dialects import configuration_title

    if family not in (logs.AUTO, *logs.FAMILIES):
        why = f"no family of logs is called {family!r}"
        raise InputError.single("unknown-family", "--family", why, f"one of: {', '.join((logs.AUTO, *logs.FAMILIES))}")
    for path in paths:
        if str(path) != "-" and not path.exists():
            raise InputError.single(
                "no-such-log", str(path), "there is no such file", "name a log, or a folder of logs"
            )
        if path.suffix in _OF_CONFIGURATIONS and (title := configuration_title(path)):
            why = f"this is {title}, and no line in it is one of training"
            fix = f"name the log, and this as what it is held against: seatrial judge LOG --against {path}"
            raise InputError.single("no-log", str(path), why, fix)


def _unreadable(paths: Sequence[Path], error: OSError) -> InputError:
    why = f"it cannot be read: {error.strerror or error}"
    return InputError.single("unreadable-log", str(error.filename or _named(paths)), why, "name a log file")


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def report_run(run_dir: Path, kind: str) -> str:
    """The report of a judged run: `html` writes report.html and returns a line that names it, the others return it."""
    text = _rendered(_judged(run_dir), kind)
    if kind != "html":
        return text
    write_text(run_dir / "report.html", text)
    return f"report: {short_path(run_dir / 'report.html')}"


def report_scaling(run_dirs: Sequence[Path], kind: str) -> str:
    """How several runs of one workload scale: `html` writes scaling.html here, the other formats return the table.

    Raises InputError for runs that cannot be compared, and for a format that has no such table.
    """
    from seatrial.report.scaling import measure_scaling
    from seatrial.report.scaling_formats import FORMATS

    if kind not in FORMATS:
        why = f"{kind} is a format for one run, and {len(run_dirs)} are named"
        raise InputError.single("format", "--format", why, f"name one run directory, or one of {', '.join(FORMATS)}")
    if len({run_dir.resolve() for run_dir in run_dirs}) < len(run_dirs):
        raise InputError.single("same-run", "RUN_DIR", "a run directory is named twice", "name each of them once")
    text = FORMATS[kind](measure_scaling([_judged(run_dir) for run_dir in run_dirs]))
    if kind != "html":
        return text
    write_text(Path("scaling.html"), text)
    return "report: scaling.html"


def _judged(run_dir: Path) -> RunReport:
    """What is known about a run, which is judged first if it was not."""
    from seatrial.report.gather import gather

    if not (run_dir / "verdict.json").exists():
        judge_run(run_dir, as_json=False)
    return gather(run_dir)


def _rendered(report: RunReport, kind: str) -> str:
    from seatrial.report.formats import FORMATS

    return FORMATS[kind](report)


def _judge(
    run_dir: Path, record: Sequence[Event], spec: RunSpec | None, options: Options, *, rehearsal: str, as_json: bool
) -> tuple[str, Verdict]:
    from seatrial import metrics, verdict
    from seatrial.report.gather import gather

    policy = options.policy or metrics.DEFAULT_POLICY
    measured = metrics.measure(record, spec, convention=options.convention, policy=policy)
    if options.published is not None:
        spec = _held_to_published(spec, measured, options.published)
    judged = verdict.judge(measured, spec, rehearsal=rehearsal)
    write_json(run_dir / "metrics.json", metrics.to_dict(measured))
    write_json(run_dir / "verdict.json", verdict.to_dict(judged))
    return _rendered(gather(run_dir, record), "json" if as_json else "text"), judged


def _held_to_published(spec: RunSpec | None, measured: Metrics, allowed: float) -> RunSpec:
    """The spec with the nearest published result as a bar. Raises InputError where there is none to compare with."""
    if spec is None:
        why, fix = "nothing says what was run", "name its configuration: --against FILE"
        raise InputError.single("nothing-to-compare", "--published", why, fix)
    speed = measured.performance
    found = published.nearest(spec, num_devices=speed.num_devices or 1, device=speed.device, limit=1)
    if not found:
        why = f"no result is published here for {spec.model.name} on {speed.device or 'this device'}"
        raise InputError.single("nothing-to-compare", "--published", why, "leave it away")
    bar = published.expectation_from(found[0], tolerance=allowed)
    others = (expectation for expectation in spec.expectations if expectation.metric != bar.metric)
    return dataclasses.replace(spec, expectations=(*others, bar))


def _cvs_answer(paths: Sequence[Path], spec: RunSpec | None) -> dict[str, Any]:
    """What CVS would say of the last node's log, which is the last one named."""
    from seatrial.logs import read_lines
    from seatrial.verdict import cvs_compat

    if spec is None:
        why, fix = "CVS compares with a configuration", "name it: --against FILE"
        raise InputError.single("nothing-to-compare", "--cvs-compat", why, fix)
    return cvs_compat.to_dict(cvs_compat.judge_like_cvs(read_lines(paths[-1]), spec))


@contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    """The run directory that is asked for, or one that nobody will miss."""
    if out:
        claim(out)
        (out / "launch").rmdir()  # nothing is launched
        yield out.resolve()
    else:
        with TemporaryDirectory(prefix="seatrial-") as folder:
            yield Path(folder)


def _families(record: Sequence[Event]) -> list[str]:
    return sorted({str(e.facts["family"]) for e in record if isinstance(e, RunStarted) and "family" in e.facts})


def _write_events(record: Sequence[Event], run_dir: Path) -> None:
    by_process: dict[int, list[Event]] = {}
    for event in record:
        by_process.setdefault(event.process, []).append(event)
    for process, own in by_process.items():
        lines = (events.dumps(event) + "\n" for event in own)
        with replacing(run_dir / f"events-{process}.jsonl") as file:
            file.writelines(lines)
