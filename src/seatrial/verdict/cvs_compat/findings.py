"""The answer of CVS to a log, and the words and mistakes that are the same for all of its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Flavour = Literal["jax", "megatron"]
Answer = Literal["pass", "fail", "crash", "not_applicable"]

MAX_TEXT = 200  # characters of a line that are shown

# Its mistakes → what is wrong with it. Findings refer to the rows by name.
MISTAKES: dict[str, str] = {
    "direction": "CVS asks of every key that it is not below what is expected; of this one, less is better: a faster "
    "run fails and a slower one passes",
    "no tolerance": "CVS allows for no noise: a value that misses its target by a hair fails",
    "every step": "CVS compares every single step with the target, so that one pause for a checkpoint fails the run",
    "not compared": "a target whose key is not found in the log is skipped without a word",
    "marker": "CVS accepts only the line of an orderly shutdown as proof that a run was completed",
    "words": "CVS treats a scary word as a failure wherever it stands, even if the run goes on and ends well",
    "malformed": "CVS cannot read a number that is not finite, calls the line malformed, and then breaks on the gap",
    "spelling": "CVS knows one spelling of the line; steps of the profiler or of a growing batch have another",
    "spread": "the allowed deviation from the median, meant as 10 %, is ten times the median",
    "cut off": "CVS cuts the decimals of tokens/s off before it compares",
    "character class": "meant to find NaN, the pattern looks for a single letter of it",
    "no cause": "CVS waits for a result until its time is up, and then only says that there is none",
    "early end": "CVS compares what it has read, which is nothing if the last step never came, and does not mind",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that CVS says of a log, or fails to say, and whether it is `right` to.

    `about` is a row of MISTAKES, or "" where there is none; `line` is the first of the `count` lines it concerns.
    """

    about: str
    says: str
    right: bool
    why: str
    count: int = 1
    line: int | None = None
    text: str = ""


def found(says: str, why: str, *, right: bool, about: str = "", **where: Any) -> Finding:
    """A finding; `where`: count, line and text."""
    return Finding(about=about, says=says, right=right, why=why, **where)


@dataclass(frozen=True, kw_only=True)
class CvsAnswer:
    """CVS's own verdict: `complaints` make it one, `silences` are what it should have complained about."""

    flavour: Flavour | None
    verdict: Answer
    complaints: tuple[Finding, ...] = ()
    silences: tuple[Finding, ...] = ()

    @property
    def num_complaints(self) -> int:
        """The number of failures that CVS reports."""
        return sum(finding.count for finding in self.complaints)


NOT_A_NUMBER = "its pattern accepts anything of digits and dots as a number"
# A dot of its patterns, which stands for any character, stands for itself here.
GPU_WORDS = ("HW Exception by GPU", "GPU Hang", "Uncorrectable error", "GPU Reset")


class Words:
    """Its list of words that end the polling: name → the words; any of them, anywhere in the log."""

    def __init__(self, table: Mapping[str, Sequence[str]]) -> None:
        self._words = [(word, name) for name, words in table.items() for word in words]
        self.found: dict[str, tuple[int, str]] = {}

    def feed(self, number: int, line: str) -> None:
        for word, name in self._words:
            if word in line:
                self.found.setdefault(name, (number, shown(line)))

    def complaints(self, *, completed: bool) -> list[Finding]:
        about = "words" if completed else ""
        why = f"{MISTAKES['words']}; this one did" if completed else "the run was not completed either"
        return [
            found(f"an error in the log: {name}", why, right=not completed, about=about, line=number, text=text)
            for name, (number, text) in self.found.items()
        ]


def shown(line: str) -> str:
    """A line as evidence."""
    return line.strip()[:MAX_TEXT]


def verdict_of(complaints: Sequence[Finding], *, crashed: bool) -> Answer:
    """The verdict that follows from the complaints; "crash" if CVS crashed."""
    return "crash" if crashed else "fail" if complaints else "pass"
