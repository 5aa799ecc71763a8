"""Steps of several lines: what the first line says is held until another step comes, or a fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from seatrial.logs.grammar import UNKNOWN_STEP, Family, Reading, read_values
from seatrial.logs.step_lines import Line

MOST_PAIRS = 1000
LARGEST_STEP = 1e15


@dataclass(slots=True)
class HeldStep:
    """A step that the next lines may go on with: what its own line says, and the pairs of those lines.

    `is_whole`: a key came again with another value, so that the line before was lost that began the next step.
    """

    family: Family
    reading: Reading
    line: Line
    pairs: dict[str, str] = field(default_factory=dict)
    is_whole: bool = False

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Takes the pairs of one more line."""
        for key, value in pairs:
            self.is_whole |= self.pairs.get(key, value) != value
            if not self.is_whole and len(self.pairs) < MOST_PAIRS:
                self.pairs[key] = value

    def take(self, family: Family, reading: Reading) -> bool:
        """Takes what a second line says of the same step, if it is one and no other lines have gone on with it."""
        said = self.reading.values
        is_same = self.family is family and reading.values["step"] == said["step"] and not self.pairs
        if not is_same or ("loss" in said and reading.values.get("loss", said["loss"]) != said["loss"]):
            return False  # another loss is that of a second rank or run
        self.reading = replace(self.reading, values={**said, **reading.values})
        return True

    def whole(self) -> Reading | None:
        """The reading of all the lines; None where no line with a known pair followed, or nothing says which step."""
        said = read_values(list(self.pairs.items()), self.family.fields).values
        if self.family.continued and not (said or self.family.fallback):
            return None
        values = {**self.reading.values, **said}
        if "step" in said:
            is_number = 0 <= said["step"] < LARGEST_STEP and "total" not in self.reading.values
            values["step"] = int(said["step"]) if is_number else self.reading.values["step"]
        return None if values["step"] == UNKNOWN_STEP else replace(self.reading, values=values)
