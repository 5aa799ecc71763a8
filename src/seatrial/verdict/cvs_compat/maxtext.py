"""A MaxText log as CVS's JAX tests read it."""

from __future__ import annotations

import math
import re
from array import array
from statistics import median
from typing import Any

from seatrial.spec import METRICS, RunSpec
from seatrial.verdict.check import allowed, show
from seatrial.verdict.cvs_compat.findings import (
    GPU_WORDS,
    MISTAKES,
    NOT_A_NUMBER,
    Answer,
    CvsAnswer,
    Finding,
    Words,
    found,
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
        for match in _STEP.finditer(line):
            self.is_meant = True
            profiler, step = match[1], int(match[2][:18])
            if step == self._spec.step_limit - 1 and not profiler:
                self._final_line = number
            if step >= self._spec.step_limit or step < self._next or step in self._ahead:
                continue
            if profiler or match[3] is None:
                row = "malformed" if _NOT_FINITE.search(line) else "spelling"
                self._unread.setdefault(row, [0, number, shown(line)])[0] += 1
            else:
                self._keep(step, number, match[3], match[4], line)
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
        completed = self._final_line > num_lines - _TAIL
        complaints = self._words.complaints(completed=completed)
        read, crashed = completed and not complaints, False
        if read and self._bad_tokens_line > num_lines - _TAIL:
            complaints.append(
                found("tokens/s are NaN or infinite", "so they are", right=True, line=self._bad_tokens_line)
            )
            read = False
        if read:
            crashed = self._read_steps(complaints)
        if not crashed:
            if not self._shut_down:
                complaints.append(self._no_marker(completed))
            if read and self._spec.step_limit > _WARMUP + 1:
                crashed = self._compare(complaints)
        verdict = verdict_of(complaints, crashed=crashed)
        silences = self._silences(verdict, completed)
        return CvsAnswer(flavour="jax", verdict=verdict, complaints=tuple(complaints), silences=silences)

    def _read_steps(self, complaints: list[Finding]) -> bool:
        """The steps that it misses and those that are too fast; whether CVS breaks on what it has read."""
        steps = self._spec.step_limit
        missing = steps - len(self._numbers)
        complaints += self._missing(missing)
        gap = missing > sum(1 for step in (0, 1) if step >= self._next and step not in self._ahead)
        if gap:
            why = "it computes a median over steps that it could not read, instead of saying so"
            complaints.append(found("KeyError", why, right=False))
        elif self._broken:
            line, text = self._broken
            complaints.append(found("ValueError", NOT_A_NUMBER, right=False, line=line, text=text))
        elif steps <= 2:
            why = "it takes a median of steps 2 and later, and there is none"
            complaints.append(found("StatisticsError", why, right=False))
        else:
            complaints += self._deviations()
            return False
        return True

    def _missing(self, missing: int) -> list[Finding]:
        findings = []
        for row, (count, line, text) in self._unread.items():
            count = min(count, missing)
            missing -= count
            if count:
                right = row == "malformed"
                why = "the run is broken, but not by its lines" if right else "nothing is wrong with these lines"
                says, why = "a step's line is missing or malformed", f"{why}: {MISTAKES[row]}"
                findings.append(found(says, why, right=right, about=row, count=count, line=line, text=text))
        if missing:
            findings.append(
                found("a step's line is missing", "these steps are not in the log", right=True, count=missing)
            )
        return findings

    def _rows(self, name: str, first: int) -> list[tuple[float, int]]:
        """(value, line) of a key at the steps from this one on."""
        rows = zip(self._values[name], self._numbers, self._lines, strict=True)
        return [(value, line) for value, step, line in rows if step >= first]

    def _deviations(self) -> list[Finding]:
        findings = []
        for name in MAXTEXT_KEYS:
            late = self._rows(name, 2)
            middle = median(value for value, _ in late)
            if far := [(value, line) for value, line in late if value > _DEVIATION * middle]:
                says = f"{METRICS[name].title} {show(far[0][0])} is too far from the median {show(middle)}"
                why = f"no step is that fast; but {MISTAKES['spread']}, so a tenth of it passes"
                findings.append(found(says, why, right=True, about="spread", count=len(far), line=far[0][1]))
        return findings

    def _no_marker(self, completed: bool) -> Finding:
        says = "the job did not shut down properly"
        if completed:
            return found(says, f"{MISTAKES['marker']}; all steps were done", right=False, about="marker")
        return found(says, f"the last step never came; but {MISTAKES['no cause']}", right=True, about="no cause")

    def _compare(self, complaints: list[Finding]) -> bool:
        """Adds the metrics below their targets to the complaints; True if a target is missing, on which CVS breaks."""
        targets = {e.metric: e for e in self._spec.expectations if e.metric in MAXTEXT_KEYS}
        if missing := [name for name in MAXTEXT_KEYS if name not in targets]:
            why = f"CVS needs both of its targets; the configuration has none for {' and '.join(missing)}"
            complaints.append(found("KeyError", why, right=False))
            return True
        for name in MAXTEXT_KEYS:
            target, kind, late = targets[name], METRICS[name], self._rows(name, _WARMUP + 1)
            low = [(value, line) for value, line in late if value < target.value]
            if not low:
                continue
            middle, bound = median(value for value, _ in late), target.value * (1 - allowed(target, self._tolerance))
            right = middle < bound
            row = "" if right else "no tolerance" if middle < target.value else "every step"
            measured = f"the median of these steps is {show(middle, kind.unit)}"
            says = f"{kind.title} {show(low[0][0])} is below the expected {show(target.value)}"
            why = f"{measured}, below it too" if right else f"{measured}; {MISTAKES[row]}"
            complaints.append(found(says, why, right=right, about=row, count=len(low), line=low[0][1]))
        return False

    def _silences(self, verdict: Answer, completed: bool) -> tuple[Finding, ...]:
        if completed or verdict != "pass":
            return ()
        says = f"nothing of the steps that were not done ({self._next} of {self._spec.step_limit} were)"
        return (found(says, MISTAKES["early end"], right=False, about="early end"),)
