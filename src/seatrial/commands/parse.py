"""`seatrial parse`, and the logs that `judge` reads: text of any trainer → events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from seatrial import events, logs
from seatrial.dialects import configuration_title
from seatrial.errors import InputError
from seatrial.events import Event, Fault, RunEnded, RunStarted, Step
from seatrial.recording import Recording
from seatrial.runs.files import exists

_OF_CONFIGURATIONS = (".yaml", ".yml", ".json", ".sh", ".bash", ".slurm", ".sbatch")  # and of no log


def _is_of_training(event: Event) -> bool:
    """A step, a start, a failure, or an end that gives figures of the whole run."""
    return isinstance(event, (Step, RunStarted, Fault)) or (isinstance(event, RunEnded) and bool(event.totals))


def parse_logs(paths: Sequence[Path], family: str, pattern: Path | None = None) -> Iterator[str]:
    """The events of the logs of one run as lines of JSON; a single log is not kept. Raises as `read_logs` does."""
    how, is_training = check_logs(paths, family, pattern), False
    with readable(paths):
        alone = paths[0] if len(paths) == 1 and not paths[0].is_dir() else None
        found = logs.parse_file(alone, how) if alone else logs.read(paths, how)
        for event in found:
            is_training = is_training or _is_of_training(event)
            yield events.dumps(event)
    if not is_training:
        raise no_training(paths)


def read_logs(paths: Sequence[Path], family: str, pattern: Path | None = None) -> Recording:
    """The events of the logs of one run. Raises InputError for what cannot be read, or says nothing of training."""
    how = check_logs(paths, family, pattern)
    with readable(paths):
        record = logs.read(paths, how)
    if not is_of_training(record):
        raise no_training(paths)
    return record


def no_training(paths: Sequence[Path]) -> InputError:
    """The error for logs that say nothing of training."""
    why = "no line in it was recognised as a step, a failure or the start of a training run"
    fix = (
        f"name the log that has the training's own lines; known are those of {', '.join(logs.FAMILIES)}, "
        "and metrics files; for another trainer, say how its lines look: --pattern FILE"
    )
    return InputError.single("no-training-log", _named(paths), why, fix)


def is_of_training(record: Recording) -> bool:
    """True if logs say anything of a training: that it began, did a step, failed, or what all of it took."""
    return bool(record.steps) or any(_is_of_training(event) for event in record.others)


def check_logs(paths: Sequence[Path], family: str, pattern: Path | None) -> str | logs.Spellings:
    """The family or pattern by which to read the logs. Raises InputError for logs or options that cannot be used."""
    if family not in logs.NAMES:
        why = f"no family of logs is called {family!r}"
        raise InputError.single("unknown-family", "--family", why, f"one of: {', '.join(logs.NAMES)}")
    if pattern and family != logs.AUTO:
        why, fix = f"the pattern is a family of its own, and {family} is another one", "omit --family or --pattern"
        raise InputError.single("two-families", "--pattern", why, fix)
    for path in paths:
        if str(path) != "-" and not exists(path):
            fix = "name a log, or a folder of logs"
            raise InputError.single("no-such-log", str(path), "there is no such file", fix)
        if path.suffix in _OF_CONFIGURATIONS and (title := configuration_title(path)):
            why = f"this is {title}, and no line in it is one of training"
            fix = f"name the log, and this as the configuration to judge it by: seatrial judge LOG --against {path}"
            raise InputError.single("no-log", str(path), why, fix)
        if str(path) != "-" and (why := logs.why_not_read(path)):
            fix = "name a log as it was written, or compressed with gzip, or a metrics file: JSON lines or CSV"
            raise InputError.single("no-log", str(path), why, fix)
    return logs.read_pattern(pattern) if pattern else family


@contextmanager
def readable(paths: Sequence[Path]) -> Iterator[None]:
    """Inside, logs are read. Raises InputError for one that cannot be."""
    try:
        yield
    except OSError as error:
        why, path = f"it cannot be read: {error.strerror or error}", str(error.filename or _named(paths))
        raise InputError.single("unreadable-log", path, why, "name a log file") from error


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
