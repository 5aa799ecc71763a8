"""Findings and verdicts as GitHub's workflow commands, which it shows at the line of the file, or on the run's page.

A command is `::error file=…,line=…,col=…,title=…::message`
(https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands). Texts come from configurations
and logs of other people: what could end a command or begin another is escaped as `@actions/core` does it.
"""

from __future__ import annotations

from collections.abc import Iterable

from seatrial.console import inert
from seatrial.errors import Problem, Severity
from seatrial.report.figures import TITLES
from seatrial.report.gather import RunReport
from seatrial.verdict import Status, Verdict

_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
_OF_CHECKS: dict[Status, str] = {"fail": "error", "inconclusive": "warning"}
_OLD_COMMAND = "##["  # of the runner's first version, read anywhere in a line and never unescaped


def of_findings(problems: Iterable[Problem]) -> list[str]:
    """A command for each finding, at its place where it has one."""
    lines = []
    for problem in problems:
        mark = problem.mark
        place = {"file": mark.file, "line": str(mark.line), "col": str(mark.column)} if mark else {}
        text = f"{problem.path}: {problem.why}" + (f"\nfix: {problem.fix}" if problem.fix else "")
        lines.append(command(_LEVELS[problem.severity], text, **place, title=problem.code))
    return lines


def render(report: RunReport) -> str:
    """A command for each check that failed or could not be decided, and one for the outcome."""
    return of_run(report.name, report.verdict)


def of_run(name: str, verdict: Verdict | None) -> str:
    """As `render`, for a run with this name; without a verdict, that it was not judged."""
    if verdict is None:
        return command("error", "This run has no verdict.", title=f"NOT JUDGED {name}")
    lines = [
        command(_OF_CHECKS[check.status], check.sentence, title=f"{axis}: {check.title}")
        for axis, found in verdict.axes.items()
        for check in found.checks
        if check.status in _OF_CHECKS
    ]
    level = "notice" if verdict.exit_code == 0 else "warning" if verdict.outcome == "inconclusive" else "error"
    return "\n".join([*lines, command(level, verdict.headline, title=f"{TITLES[verdict.outcome]} {name}")])


def command(level: str, message: str, **properties: str) -> str:
    """One workflow command."""
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level}{' ' * bool(shown)}{shown}::{_data(message)}"


def _data(text: str) -> str:
    text = "\n".join(inert(line) for line in text.split("\n")).replace(_OLD_COMMAND, "# #[")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
