"""A MaxText log as CVS's JAX tests read it."""

from __future__ import annotations

import math
import re
from array import array
from statistics import median
from typing import Any

from seatrial.spec import METRICS, Expectation, RunSpec
from seatrial.verdict.check import show
from seatrial.verdict.cvs_compat.findings import (
    GPU_WORDS,
    MISTAKES,
    Answer,
    CvsAnswer,
    Finding,
    Words,
    allowed,
    shown,
    verdict_of,
)

_WORDS = {
    "data cache": ("Unable to save MockGPTDataset indexes because path_to_cache is None",),
    "NCCL": ("NCCL ERROR", "NCCL timeout", "local work queue catastrophic error"),
    "GPU hardware": GPU_WORDS,
    "exception": (
        "AssertionError", "ValueError:", "JaxStackTrace", "During handling of the above exception",
        "triggered the following exception",
    ),
    "ROCm": (
        "FAILED_PRECONDITION: No visible GPU devices", "failed call to hipInit: HIP_ERROR_NoDevice",
        "librocm reported version is: NOT_FOUND",
    ),
    "Python": ("ModuleNotFoundError: No module named", "Fatal Python error:"),
    "coordination service": ("tensorflow.BarrierError", "CoordinationServiceError"),
    "out of memory": ("RESOURCE_EXHAUSTED: Out of memory", "failed: RESOURCE_EXHAUSTED"),
}  # fmt: skip
_STEP = re.compile(
    r"completed (profiler activation/deactivation )?step:\s+(\d+),"
    r"(?:\s+seconds:\s+[0-9.]+,\s+TFLOP/s/device:\s+([0-9.]+),\s+Tokens/s/device:\s+([0-9.]+),"
    r"\s+total_weights:\s+[0-9\\.]+,\s+loss:\s([0-9.]+))?",
    re.IGNORECASE,
)
_BAD_TOKENS = re.compile(r"Tokens/s/device:\s+(?:nan|inf)", re.IGNORECASE)
_SHUTDOWN = "distributed task shutdown result: ok"
MAXTEXT_KEYS = ("tflops_per_second_per_device", "tokens_per_second_per_device")
_TAIL = 2000  # lines in which the last step is looked for
_WARMUP = 5  # the last step that is not compared
_DEVIATION = 11  # times the median; 9 times it below 0 is the other end, which nothing reaches
_NOT_FINITE = re.compile(r":\s*-?(?:nan|inf)\b", re.IGNORECASE)


class MaxTextReading:
    """Of every step the first line in CVS's one spelling."""

    def __init__(self, spec: RunSpec, tolerance: float) -> None:
        self._spec, self._tolerance = spec, tolerance
        self._words = Words(_WORDS)
        self._numbers, self._lines = array("q"), array("q")
        self._values = {name: array("d") for name in MAXTEXT_KEYS}
        self._next, self._ahead = 0, set[int]()  # steps below `_next` have been read, and those in `_ahead`
        self._unread: dict[str, list[Any]] = {}  # row of MISTAKES → [count, line, text]
        self._broken: tuple[int, str] | None = None
        self._final_line = self._bad_tokens_line = -_TAIL
        self._shut_down = self.is_meant = False

    def feed(self, number: int, line: str) -> None:
        self._words.feed(number, line)
        if not self._shut_down and "hutdown result" in line:
            self._shut_down = _SHUTDOWN in line.lower()
        if "completed " not in line:
            return
        for found in _STEP.finditer(line):
            self.is_meant = True
            profiler, step = found.group(1), int(found.group(2)[:18])
            if step == self._spec.steps - 1 and not profiler:
                self._final_line = number
            if step >= self._spec.steps or step < self._next or step in self._ahead:
                continue
            if profiler or found.group(3) is None:
                row = "malformed" if _NOT_FINITE.search(line) else "spelling"
                self._unread.setdefault(row, [0, number, shown(line)])[0] += 1
            else:
                self._keep(step, number, found.group(3), found.group(4), line)
        if _BAD_TOKENS.search(line):
            self._bad_tokens_line = number

    def _keep(self, step: int, number: int, tflops: str, tokens: str, line: str) -> None:
        try:
            values = float(tflops), float(tokens)
        except ValueError:  # "1.2.3" passes its pattern
            self._broken = self._broken or (number, shown(line))
            values = math.nan, math.nan
        self._numbers.append(step)
        self._lines.append(number)
        for name, value in zip(MAXTEXT_KEYS, values, strict=True):
            self._values[name].append(value)
        self._ahead.add(step)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1

    def answer(self, num_lines: int) -> CvsAnswer:
        """Scan for words, wait for the last step, read, compare with the median, verify: each may be the last."""
        steps = self._spec.steps
        completed = self._final_line > num_lines - _TAIL
        complaints = self._words.complaints(completed=completed)
        crashed = False
        read = completed and not complaints
        if read and self._bad_tokens_line > num_lines - _TAIL:
            says = "tokens/s are NaN or infinite"
            complaints.append(Finding(about="", says=says, right=True, why="so they are", line=self._bad_tokens_line))
            read = False
        if read:
            missing = steps - len(self._numbers)
            complaints += self._missing(missing)
            gap = missing > sum(1 for step in (0, 1) if step >= self._next and step not in self._ahead)
            crashed = gap or steps <= 2 or self._broken is not None
            complaints += self._crash(gap) if crashed else self._deviations()
        if not crashed:
            if not self._shut_down:
                complaints.append(self._no_marker(completed))
            if read and steps > _WARMUP + 1:
                compared = self._compared()
                crashed = compared is None
                complaints += self._no_target() if compared is None else compared
        verdict = verdict_of(complaints, crashed=crashed)
        return CvsAnswer(
            flavour="jax", verdict=verdict, complaints=tuple(complaints), silences=self._silences(verdict, completed)
        )

    def _missing(self, missing: int) -> list[Finding]:
        findings = []
        for row, (count, line, text) in self._unread.items():
            count = min(count, missing)
            missing -= count
            if count:
                right = row == "malformed"
                why = "the run is broken, but not by its lines" if right else "nothing is wrong with these lines"
                says = "a step's line is missing or malformed"
                why = f"{why}: {MISTAKES[row]}"
                findings.append(
                    Finding(about=row, says=says, right=right, why=why, count=count, line=line, text=text)
                )  # fmt: skip
        if missing:
            says = "a step's line is missing"
            why = "these steps are not in the log"
            findings.append(Finding(about="", says=says, right=True, why=why, count=missing))
        return findings

    def _crash(self, gap: bool) -> list[Finding]:
        line, text = self._broken or (None, "")
        if gap:
            says, why = "KeyError", "it computes a median over steps that it could not read, instead of saying so"
        elif self._broken:
            says, why = "ValueError", "its pattern accepts anything of digits and dots as a number"
        else:
            says, why = "StatisticsError", "it takes a median of steps 2 and later, and there is none"
        return [
            Finding(about="", says=says, right=False, why=why, line=None if gap else line, text="" if gap else text)
        ]

    def _deviations(self) -> list[Finding]:
        findings = []
        for name, values in self._values.items():
            late = [(v, ln) for v, s, ln in zip(values, self._numbers, self._lines, strict=True) if s >= 2]
            middle = median(v for v, _ in late)
            far = [(v, ln) for v, ln in late if v > _DEVIATION * middle]
            if far:
                says = f"{METRICS[name].title} {show(far[0][0])} is too far from the median {show(middle)}"
                why = f"no step is that fast; but {MISTAKES['spread']}, so a tenth of it passes"
                findings.append(
                    Finding(about="spread", says=says, right=True, why=why, count=len(far), line=far[0][1])
                )  # fmt: skip
        return findings

    def _no_marker(self, completed: bool) -> Finding:
        says = "the job did not shut down properly"
        if completed:
            return Finding(about="marker", says=says, right=False, why=f"{MISTAKES['marker']}; all steps were done")
        why = f"the last step never came; but {MISTAKES['no cause']}"
        return Finding(about="no cause", says=says, right=True, why=why)

    def _targets(self) -> dict[str, Expectation]:
        return {e.metric: e for e in self._spec.expectations if e.metric in MAXTEXT_KEYS}

    def _no_target(self) -> list[Finding]:
        missing = [name for name in MAXTEXT_KEYS if name not in self._targets()]
        why = f"CVS needs both of its targets; the configuration has none for {' and '.join(missing)}"
        return [Finding(about="", says="KeyError", right=False, why=why)]

    def _compared(self) -> list[Finding] | None:
        """What is below its target; None if a target is missing, on which CVS breaks."""
        targets, findings = self._targets(), []
        if len(targets) < len(MAXTEXT_KEYS):
            return None
        for name in MAXTEXT_KEYS:
            target, kind = targets[name], METRICS[name]
            rows = zip(self._values[name], self._numbers, self._lines, strict=True)
            late = [(value, line) for value, step, line in rows if step > _WARMUP]
            low = [(value, line) for value, line in late if value < target.value]
            if not low:
                continue
            middle, bound = median(value for value, _ in late), target.value * (1 - allowed(target, self._tolerance))
            right = middle < bound
            row = "" if right else "no tolerance" if middle < target.value else "every step"
            told = f"the median of these steps is {show(middle, kind.unit)}"
            says = f"{kind.title} {show(low[0][0])} is below the expected {show(target.value)}"
            why = f"{told}, below it too" if right else f"{told}; {MISTAKES[row]}"
            findings.append(Finding(about=row, says=says, right=right, why=why, count=len(low), line=low[0][1]))
        return findings

    def _silences(self, verdict: Answer, completed: bool) -> tuple[Finding, ...]:
        if completed or verdict != "pass":
            return ()
        says = f"nothing of the steps that were not done ({self._next} of {self._spec.steps} were)"
        return (Finding(about="early end", says=says, right=False, why=MISTAKES["early end"]),)
