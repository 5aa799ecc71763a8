"""A Megatron-LM log as CVS's Megatron tests read it."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from seatrial.spec import METRICS, Expectation, RunSpec
from seatrial.verdict.check import allowed, show
from seatrial.verdict.cvs_compat.findings import (
    GPU_WORDS,
    MISTAKES,
    NOT_A_NUMBER,
    CvsAnswer,
    Finding,
    Words,
    found,
    shown,
    verdict_of,
)

_WORDS = {
    "NCCL": (
        "NCCL ERROR", "NCCL timeout", "ncclRemoteError: A call failed possibly due to a network error", "NCCL error:",
    ),
    "GPU hardware": GPU_WORDS,
    "torch elastic": ("torch.distributed.elastic.multiprocessing.errors",),
}  # fmt: skip
_TAIL = 15  # lines that are read
_POLL_SECONDS, _EXTRA_POLLS = 120, 9
_DONE = re.compile(r"throughput per GPU:|tokens/GPU/s\s+[0-9]+", re.IGNORECASE)
_NAN = re.compile(r"(?:throughput per GPU|tokens/GPU/s|mem usages):\s+[NaN|Inf]", re.IGNORECASE)
_LINE = re.compile(r"iteration\s+\d+/\s*\d+\s*\|")


class _Read(NamedTuple):
    """One of CVS's keys, its pattern in upper and lower case, and how many of its units make one of ours."""

    key: str
    pattern: str
    scale: float = 1.0


_KEYS = {
    "tflops_per_second_per_device": _Read("throughput_per_gpu", r"throughput per GPU:\s+([0-9.]+)"),
    "tokens_per_second_per_device": _Read("tokens_per_gpu", r"tokens/GPU/s:\s+([0-9]+)"),
    "memory_fraction": _Read("mem_usage", r"mem usages:\s+([0-9.]+)"),
    "step_seconds": _Read("elapsed_time_per_iteration", r"elapsed time per iteration \(ms\):\s+([0-9.]+)", 1000.0),
}


class MegatronReading:
    """The last 15 lines, once a summary has been printed."""

    def __init__(self, spec: RunSpec, tolerance: float) -> None:
        self._spec, self._tolerance = spec, tolerance
        self._words = Words(_WORDS)
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._done = self.is_meant = False
        self._nan: tuple[int, str] | None = None

    def feed(self, number: int, line: str) -> None:
        self._words.feed(number, line)
        self._tail.append(line)
        if self._nan is None and ("PU" in line or "mem" in line) and _NAN.search(line):
            self._nan = number, shown(line)
        if not self._done and _DONE.search(line):
            self._done = self.is_meant = True
        elif not self.is_meant and _LINE.search(line):
            self.is_meant = True

    def answer(self, num_lines: int) -> CvsAnswer:
        """Scan for words, wait for the summary, look for NaN, compare: each may be the last."""
        complaints = self._words.complaints(completed=self._done)
        if self._nan and self._done and not complaints:
            line, text = self._nan
            says, why = "the results are NaN or infinite", f"so they are; found by luck: {MISTAKES['character class']}"
            complaints.append(found(says, why, right=True, about="character class", line=line, text=text))
        if complaints or not self._done:
            return CvsAnswer(flavour="megatron", verdict="fail", complaints=(*complaints, self._empty(complaints)))
        silences: list[Finding] = []
        first_line, crashed = num_lines - len(self._tail) + 1, False
        for target in self._spec.expectations:
            if target.metric in _KEYS and not crashed:
                read = _KEYS[target.metric]
                lines = enumerate(self._tail, first_line)
                texts = [(text, n) for n, line in lines for text in re.findall(read.pattern, line, re.IGNORECASE)]
                try:
                    values = [(float(text), number) for text, number in texts]
                except ValueError:
                    complaints.append(found("ValueError", NOT_A_NUMBER, right=False, line=texts[0][1]))
                    crashed = True
                else:
                    self._compare(target, read, values, complaints, silences)
        return CvsAnswer(
            flavour="megatron",
            verdict=verdict_of(complaints, crashed=crashed),
            complaints=tuple(complaints),
            silences=() if crashed else tuple(silences),
        )

    def _empty(self, before: Sequence[Finding]) -> Finding:
        says = "there are no results"
        if before:
            right = any(finding.right for finding in before)
            return found(says, "a consequence of the above: CVS read no further", right=right)
        minutes = (self._spec.step_limit + _EXTRA_POLLS) * _POLL_SECONDS / 60
        why = f"no summary was printed; but {MISTAKES['no cause']}, here {minutes:.0f} minutes"
        return found(says, why, right=True, about="no cause")

    def _compare(
        self, expectation: Expectation, read: _Read, values: Sequence[tuple[float, int]],
        complaints: list[Finding], silences: list[Finding],
    ) -> None:  # fmt: skip
        """One key: every value of it that is below its target is a complaint."""
        kind, target = METRICS[expectation.metric], expectation.value * read.scale
        margin = allowed(expectation, self._tolerance)
        if not values:
            says = f"nothing of {read.key}, of which {show(target)} is expected"
            silences.append(found(says, MISTAKES["not compared"], right=False, about="not compared"))
            return
        if low := [(value, line) for value, line in values if value < target]:
            value, line = low[0]
            right = kind.better == "higher" and value < target * (1 - margin)
            row = "" if right else _mistake(expectation.metric, value, target)
            says = f"{read.key} {show(value)} is below the expected {show(target)}"
            why = "so it is" if right else MISTAKES[row]
            complaints.append(found(says, why, right=right, about=row, count=len(low), line=line))
        high = [(value, line) for value, line in values if value > target * (1 + margin)]
        if kind.better == "lower" and high:
            value, line = high[0]
            says = f"nothing of {read.key} {show(value)}, above the expected {show(target)}"
            silences.append(
                found(says, MISTAKES["direction"], right=False, about="direction", count=len(high), line=line)
            )


def _mistake(metric: str, value: float, target: float) -> str:
    """The reason why a value below its target is no failure: a row of MISTAKES."""
    if METRICS[metric].better == "lower":
        return "direction"
    cut = metric == "tokens_per_second_per_device" and math.ceil(target) > value >= math.floor(target)
    return "cut off" if cut else "no tolerance"
