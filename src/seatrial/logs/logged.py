"""Tracebacks that a logger printed: a process that goes on behind one was not ended by it.

Who goes on is known only where the lines say who prints them: Ray's actors by their name and pid, ranks by theirs. An
exception at one place in the program that one process lives on with is none that ends the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from seatrial.logs.lines import read_prefix

# The logger's level, and at most a time and names, before the traceback on the same line.
_BY_A_LOGGER = re.compile(
    r"^[^()]{0,80}?\b(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b.{0,120}?Traceback \(most recent call last\)"
)
_ACTOR = re.compile(r"\s*\(([\w.:<>-]{1,80} pid=\d+(?:, ip=[\d.]+)?)\)")
_OF_AN_END = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|wandb:|[Ee]xit|[Ss]hut|[Aa]bort|[Tt]erminat|Traceback \(most recent"
)
GOES_ON = 20  # lines that a process prints no more of once it ends
MAX_LINES = 4000  # until it has to have printed them
MAX_KEPT = 1024


@dataclass(slots=True)
class _Speaker:
    exception: str
    said: int = 0


class Logged:
    """Reads the lines behind tracebacks that loggers printed; `went_on` are the exceptions that ended nothing."""

    def __init__(self) -> None:
        self._speakers: dict[str, _Speaker] = {}
        self._lines = 0  # since the last of these tracebacks
        self.went_on: dict[str, None] = {}

    @property
    def is_waiting(self) -> bool:
        """True if the lines that come may show that a process goes on."""
        return bool(self._speakers)

    def raised(self, speaker: str, exception: str) -> None:
        """A logger of this process has printed this exception."""
        if exception in self.went_on or len(self._speakers) >= MAX_KEPT:
            return
        self._lines = 0
        before = self._speakers.get(speaker)
        if before is None or before.exception != exception:
            self._speakers[speaker] = _Speaker(exception)

    def hear(self, line: str) -> None:
        """Takes any line of the log behind it."""
        self._lines += 1
        if self._lines > MAX_LINES:
            self._speakers.clear()
            return
        found = self._speakers.get(speaker_of(line))
        if found is None:
            return
        text = line[read_prefix(line).length :].removeprefix(" ")
        found.said += bool(text.strip()) and not text[:1].isspace() and not _OF_AN_END.search(text)
        if found.said >= GOES_ON:
            self.went_on[found.exception] = None
            self._speakers = {of: each for of, each in self._speakers.items() if each.exception != found.exception}


def speaker_of(line: str) -> str:
    """Who printed a line; "" if it does not say so."""
    if actor := _ACTOR.match(line):
        return actor[1]
    rank = read_prefix(line).rank
    return "" if rank is None else f"rank {rank}"


def speaker_of_logged(line: str) -> str:
    """Who printed a line, if it begins a traceback behind the words of a logger; else ""."""
    return speaker_of(line) if _BY_A_LOGGER.search(line[read_prefix(line).length :]) else ""
