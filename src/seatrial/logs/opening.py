"""The lines with which a log begins, to know when they come once more: the program was started again.

Every program prints other lines at its start, but the same ones each time. What a complete run prints behind its last
step (summaries, checkpoints, evaluations, its parting) are others, or at least some of them are.
"""

from __future__ import annotations

import re

MAX_KEPT = 20_000  # lines of the opening
FEWEST = 3  # different lines of it, one soon after the other, that tell of another start
MOST, OTHER = 9, 3  # how many count at most, and how many of them a line takes away that is none of the opening
SHORTEST = 4  # characters of a line's skeleton that say anything
# What scripts show before and after a training: tables of nvidia-smi and rocm-smi, variables, rules.
_OF_SCRIPTS = re.compile(
    rb"\||\+[-=]|=|(?:export )?(?:slurm|pbs|lsb|cuda|nccl|rocr|hip|gloo|omp|ompi|master)_\w*=|[\W_]*$"
)


class Opening:
    """Hears the lines of one log that are no steps, by their skeletons; `step` says that a step has come.

    The opening is what stands before the first step, without what comes again between steps.
    """

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}  # the hash of each, for there may be many, and its place
        self._size = 0
        self._recurring: set[int] = set()  # that stood there, and between steps too
        self._again: set[int] = set()  # those that have come since the last step
        self._counted: set[int] = set()  # those of them that the score is of
        self._score = 0
        self._has_steps = False
        self.num_told = 0  # steps that were told of

    @property
    def comes_again(self) -> bool:
        """True if the log ends with lines of its opening, behind its last step.

        Some are of its first half: what an evaluation before the first step prints, one behind the last does, too.
        """
        return self._score >= FEWEST and any(2 * self._lines[line] < self._size for line in self._counted)

    @property
    def waits(self) -> bool:
        """True if the next step has to be told of: the first one, and one behind lines of the opening."""
        return bool(self._again) or not self._has_steps

    def has(self, skeleton: bytes) -> bool:
        """True if a line behind the first step looks like one of the opening."""
        return self._has_steps and hash(skeleton) in self._lines

    def hear(self, skeleton: bytes) -> None:
        """Takes a line that is no step; one that is drawn over another, as a progress bar is, says nothing."""
        if len(skeleton) < SHORTEST or skeleton[:1] == b"\r" or _OF_SCRIPTS.match(skeleton):
            return
        line = hash(skeleton)
        if not self._has_steps:
            if len(self._lines) < MAX_KEPT:
                self._lines.setdefault(line, len(self._lines))
        elif line in self._lines:
            self._again.add(line)
            if line not in self._counted:
                self._counted.add(line)
                self._score = min(MOST, self._score + 1)
        elif self._score and line not in self._recurring:
            self._score = max(0, self._score - OTHER)
            if not self._score:
                self._counted = set()

    def step(self) -> None:
        """A step has come. Lines of the opening that came before it, and were no other start, tell nothing."""
        if self._again and not self.comes_again:
            for line in self._again:
                del self._lines[line]
            self._recurring |= self._again
        if not self._has_steps:
            self._has_steps, self._size = True, len(self._lines)
        self.num_told += 1
        self.end()

    def end(self) -> None:
        """The program says that it ends in order: what it printed at its start was no start in vain."""
        self._again, self._counted, self._score = set(), set(), 0
