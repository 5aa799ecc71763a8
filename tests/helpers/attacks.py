"""Text that attacks whatever shows it, for the tests of every format."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies

from seatrial.estimate import hardware
from seatrial.report.gather import RunReport, Tail, clean, gather
from seatrial.verdict import Check
from tests.helpers import run_directory

PIECES = (
    "<script>", "</script>", "<img src=x onerror=alert(1)>", "<!--", "-->", "]]>", "<![CDATA[", "&lt;", "&amp;",
    "&#64;", "</details>", "[a](http://x.test)", "![i](http://x.test/i.png)", "http://x.test/a", "www.x.test",
    "<http://x.test>", "a@x.test", "@someone", "@org/team", "#123", "GH-12", "!45", "org/repo#7", "/close", "/merge",
    "deadbeef", "0123456789abcdef0123456789abcdef01234567", "```", "~~~", "`", "``", "|", "\\|", "\\", "---", "***",
    "**b**", "__i__", "_i_", "~~s~~", "# h", "- l", "1. l", "> q", "[x]: http://x.test", "[^1]", "$x$", "$$", "=1+1",
    "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", ",", ";", '"', "'", "%", "\r\n", "\n", "\n\n", "\t", " ",
    "text", "ü", "値", "\x1b[31m", "\x1b]8;;http://x.test\x07", "\x00", "\x0b", "\x9b", "\u2028", "\u2029", "\u202e",
    "\u2066", "\ufeff", "\ufffe", "\uffff", "\ud800", "\U000e0041", "{{ 7*191 }}", "{% raw %}",
)  # fmt: skip

# Any of these, side by side and in any order, and any other characters between them.
text = (
    strategies.lists(strategies.sampled_from(PIECES) | strategies.text(max_size=3), max_size=8)
    .map("".join)
    .filter(lambda made: hardware.find(made) is None)  # "v5p" is a device, and brings figures of its own
)


def _poisoned(value: Any, evil: str) -> Any:
    """A dataclass with every text in it replaced."""
    if isinstance(value, str):
        return evil
    if isinstance(value, tuple):
        return tuple(_poisoned(item, evil) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _poisoned(getattr(value, f.name), evil) for f in dataclasses.fields(value)})
    return value


@cache
def killed() -> RunReport:
    """A report with something of everything: a run that was killed, with logs and faults."""
    with TemporaryDirectory() as folder:
        return gather(run_directory.write(Path(folder) / "run", run_directory.killed, rehearsing=False))


def poisoned(raw: str) -> RunReport:
    """The report as `gather` would give it if every text of the run were this one, which it makes inert first."""
    report, evil = killed(), clean(raw)
    assert report.metrics is not None
    assert report.verdict is not None

    def check(good: Check) -> Check:
        return replace(good, name=evil, sentence=evil, window=evil, unit=evil, evidence=(evil, evil), measured=evil)

    axes = {
        axis: replace(verdict, checks=tuple(check(good) for good in verdict.checks))
        for axis, verdict in report.verdict.axes.items()
    }
    completion = report.metrics.completion
    faults = _poisoned(completion.faults, evil)
    steps = tuple(replace(step, phase=evil) for step in report.steps)
    return replace(
        report,
        directory=evil,
        name=evil,
        sources=(evil, evil),
        family=evil,
        against=evil,
        steps=steps,
        attempts=(steps,),
        tails=(Tail(log=evil, lines=(evil, evil)),),
        missing=(evil,),
        verdict=replace(report.verdict, headline=evil, axes=axes),
        metrics=replace(
            report.metrics,
            completion=replace(completion, faults=faults, processes=_poisoned(completion.processes, evil)),
            performance=replace(report.metrics.performance, device=evil),
        ),
    )
