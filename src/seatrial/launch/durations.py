"""Durations as people write them: 90s, 30m, 2h, 1d."""

from __future__ import annotations

import re

from seatrial.errors import InputError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration. Raises InputError, at the place of the option, for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise InputError.single("duration", option, f"{text!r} is not a duration", "give 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
