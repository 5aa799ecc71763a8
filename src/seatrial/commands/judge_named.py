"""Judges what is named: a run directory, the logs of one run, or a folder with those of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.commands.check import ConfigArguments, read_targets
from seatrial.commands.judge import JudgeOptions, judge_again, judge_logs, run_directory_in
from seatrial.console import Say, warn
from seatrial.errors import InputError

if TYPE_CHECKING:
    from seatrial.report.folder import FolderReport
    from seatrial.report.gather import RunReport
    from seatrial.verdict import Verdict

_READ = ("holds the record of a run, not logs that could be read otherwise", "omit it, or name the logs in there")
_OF_LOGS_ALONE = {
    "against": ("holds the configuration that it is judged by", "omit it, or judge the log"),
    "out": ("is a run directory itself, and keeps its verdict", "omit it, or judge a copy of it"),
    **dict.fromkeys(("cvs-compat", "pattern", "family"), _READ),
}  # the options that a run directory has no use for: why, fix


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
    a run that goes on, options beside a run directory that are for logs, and what cannot be read.
    """
    if run_dir := run_directory_in(paths):
        how = family if family != "auto" else None
        given = {"against": against, "out": out, "cvs-compat": cvs_compat, "pattern": pattern, "family": how}
        if name := next(filter(given.get, given), None):
            why, fix = _OF_LOGS_ALONE[name]
            raise InputError.single("run-directory", f"--{name}", f"{run_dir} {why}", fix)
        return judge_again(run_dir, options, say)
    resolved = read_targets(against) if against else None
    warn(resolved.problems if resolved else (), say)
    config = against.config if against else None
    if len(paths) == 1 and paths[0].is_dir():
        from seatrial.commands.judge_folder import judge_folder

        return judge_folder(
            paths[0], options, resolved=resolved, config=config, family=family, pattern=pattern,
            cvs_compat=cvs_compat, out=out, say=say,
        )  # fmt: skip
    return judge_logs(
        paths, options, resolved=resolved, config=config, family=family, pattern=pattern, cvs_compat=cvs_compat, out=out
    )
