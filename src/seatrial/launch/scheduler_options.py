"""The options of a scheduler as a closed table, `--slurm` and `--kubernetes`: each value must look as its row says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError


@dataclass(frozen=True)
class Option:
    """The form of a value, as a pattern and in words."""

    pattern: str
    says: str

    def fits(self, value: str) -> bool:
        """True if a value has this form."""
        return re.fullmatch(self.pattern, value) is not None


def read_words(given: Sequence[str], table: Mapping[str, Option], scheduler: str) -> Iterator[tuple[str, str]]:
    """KEY=VALUE words as keys of the table and values. Raises InputError for an unknown key or a wrong value."""
    for word in given:
        key, equals, value = word.partition("=")
        key = key.lstrip("-").replace("_", "-")
        if key not in table:
            why, fix = f"there is no option {key!r}", did_you_mean(key, table)
            raise InputError.single(f"unknown-{scheduler}", f"--{scheduler}", why, fix)
        if not equals or not table[key].fits(value):
            why = f"{key} cannot be {value!r}" if equals else f"{key} has no value"
            raise InputError.single(f"{scheduler}-value", f"--{scheduler}", why, f"give {key}={table[key].says}")
        yield key, value


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration: 90s, 30m, 2h, 1d. Raises InputError, at the place of the option, for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise InputError.single("duration", option, f"{text!r} is not a duration", "give 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
