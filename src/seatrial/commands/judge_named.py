"""Judges what is named: a run directory, the logs of one run, or a folder with those of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.commands.check import ConfigArguments, read_targets
from seatrial.commands.judge import JudgeOptions, judge_logs, judge_run, run_directory_in
from seatrial.console import Say, warn
from seatrial.errors import InputError
from seatrial.runs.status import require_over

if TYPE_CHECKING:
    from seatrial.report.folder import FolderReport
    from seatrial.report.gather import RunReport
    from seatrial.verdict import Verdict


def judge_named(
    paths: Sequence[Path],
    options: JudgeOptions,
    *,
    against: ConfigArguments | None,
    family: str,
    pattern: Path | None = None,
    cvs_compat: bool = False,
    out: Path | None = None,
    say: Say | None = None,
) -> tuple[RunReport, Verdict] | FolderReport:
    """The verdict on one run, or on each of a folder; warnings are printed, or given to `say`.

    `against` is the configuration that was run. With `out`, the result becomes a run directory. Raises InputError for
    a run that goes on, a configuration beside a run directory, which has its own, and what cannot be read.
    """
    if run_dir := run_directory_in(paths):
        if against:
            why, fix = f"{run_dir} holds the configuration that it is judged by", "omit it, or judge the log"
            raise InputError.single("run-directory", "--against", why, fix)
        warn(require_over(run_dir), say)
        return judge_run(run_dir, options)
    resolved = read_targets(against) if against else None
    warn(resolved.problems if resolved else (), say)
    config = against.config if against else None
    if len(paths) == 1 and paths[0].is_dir():
        from seatrial.commands.judge_folder import judge_folder

        return judge_folder(
            paths[0], options, resolved=resolved, config=config, family=family, pattern=pattern,
            cvs_compat=cvs_compat, out=out,
        )  # fmt: skip
    return judge_logs(
        paths, options, resolved=resolved, config=config, family=family, pattern=pattern, cvs_compat=cvs_compat, out=out
    )
