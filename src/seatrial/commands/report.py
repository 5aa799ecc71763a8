"""`seatrial report`: a run's report in any format, and of several runs the scaling table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.commands.judge import JudgeOptions, judge_run, write_html
from seatrial.errors import InputError, reason_of
from seatrial.report import html
from seatrial.report.formats import FORMATS
from seatrial.report.gather import RunReport, gather
from seatrial.runs.copies import record_id
from seatrial.runs.documents import Documents


def report_run(
    run_dir: Path, kind: str, *, tokens: float | None = None, price_per_device_hour: float | None = None
) -> str:
    """The report of a judged run: `html` writes report.html and returns a line that names it, the others return it.

    It tells the time to train on `tokens`, and the cost at a price per device and hour.
    """
    report = judged(run_dir, tokens=tokens, price_per_device_hour=price_per_device_hour)
    return write_html(report, run_dir) if kind == "html" else FORMATS[kind](report)


def report_scaling(run_dirs: Sequence[Path], kind: str) -> str:
    """The scaling of several runs of one workload: `html` writes scaling.html here, the other formats return the table.

    Raises InputError for runs that cannot be compared, and for a format that has no such table.
    """
    from seatrial.report.scaling import measure_scaling
    from seatrial.report.scaling_formats import FORMATS

    if kind not in FORMATS:
        why = f"{kind} is a format for one run, and {len(run_dirs)} are named"
        raise InputError.single("format", "--format", why, f"name one run directory, or one of {', '.join(FORMATS)}")
    if len({run_dir.resolve() for run_dir in run_dirs}) < len(run_dirs):
        raise InputError.single("same-run", "RUN_DIR", "a run directory is named twice", "name each of them once")
    reports = [judged(run_dir) for run_dir in run_dirs]
    records = [record_id(run_dir) for run_dir in run_dirs]
    if copies := [str(run) for run, own in zip(run_dirs, records, strict=True) if own and records.count(own) > 1]:
        why = f"{copies[0]} and {copies[1]} are copies of one run, or of one log"
        raise InputError.single("same-run", "RUN_DIR", why, "name each run once")
    text = FORMATS[kind](measure_scaling(reports))
    return html.saved("scaling.html", text) if kind == "html" else text


def judged(run_dir: Path, tokens: float | None = None, price_per_device_hour: float | None = None) -> RunReport:
    """The report of a run, which is judged first if it was not."""
    documents = Documents(run_dir)
    if documents.has("verdict.json"):
        return gather(run_dir, documents=documents, tokens=tokens, price_per_device_hour=price_per_device_hour)
    try:
        return judge_run(run_dir, JudgeOptions(tokens=tokens, price_per_device_hour=price_per_device_hour))[0]
    except PermissionError as error:  # somebody else's
        why = f"it was not judged yet, and nothing can be written there: {reason_of(error)}"
        fix = f"copy it to a place of your own first: cp -r {run_dir} ."
        raise InputError.single("not-judged", str(run_dir), why, fix) from error
