"""`seatrial publish`: judged runs to a tracker, a dashboard, a CI server or data frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.commands.report import judged
from seatrial.console import warn
from seatrial.errors import InputError
from seatrial.publish import Destination, publish, require
from seatrial.publish.publication import publication_of
from seatrial.runs.directory import is_run
from seatrial.runs.status import require_over


def publish_runs(run_dirs: Sequence[Path], name: str, to: Destination) -> str:
    """Publishes runs to a target, judging first what was not judged; a line that says where they are, or their text.

    Raises InputError for what is no run, a run that goes on, one named twice, and as `publish` does.
    """
    require(name, to)
    found = []
    for run_dir in (run_dir.resolve() for run_dir in run_dirs):
        if not is_run(run_dir):
            fix = "name the directory that a run printed, or keep what is judged: seatrial judge LOG… --out DIRECTORY"
            raise InputError.single("no-run", str(run_dir), "it is no run directory", fix)
        warn(require_over(run_dir))
        found.append(publication_of(judged(run_dir), run_dir))
    ids = [one.id for one in found]
    if twice := [one.title for one in found if ids.count(one.id) > 1]:
        why = f"{twice[0]} and {twice[1]} are the same run"
        raise InputError.single("same-run", "RUN_DIR", why, "name each run once")
    return publish(found, name, to)
