"""The values of a step line: pairs of a key and a text → numbers, by the table of the family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from seatrial.logs.grammar import Field
from seatrial.logs.numbers import commas_for, commas_of, quantity

# "z_loss", "mtp_1 loss", "loss/policy": a part of the loss or one beside it, but not "loss scale".
_LOSS = re.compile(r"(?<![a-z])loss(?:es)?(?![a-z]|[ _-]?scal)", re.IGNORECASE)
LONGEST_KEY = 60  # characters


class LineValues(NamedTuple):
    """`values` by `Field.name`; `places` says which of the pairs each of these is from.

    A loss that no field is for is among the values, by its own key, where it is not finite though the loss itself is:
    that much has to be known of it. `alike`: the numbers of a line that looks the same can be read one by one.
    """

    values: dict[str, float]
    places: dict[str, int]
    alike: bool


def read_values(pairs: Sequence[tuple[str, str]], fields: Mapping[str, Field]) -> LineValues:
    """What the pairs of one line say."""
    known = [(place, field, text) for place, (key, text) in enumerate(pairs) if (field := fields.get(key))]
    with_commas = any("," in text for _, _, text in known)
    commas = commas_of((field.name, text) for _, field, text in known) if with_commas else "thousands"
    values: dict[str, float] = {}
    places: dict[str, int] = {}
    for place, field, text in known:
        if field.name in values and not field.preferred:
            continue
        value = quantity(text, field.part, commas_for(field.name, commas))
        if value is not None and value != field.missing:
            values[field.name], places[field.name] = value / field.per, place
    others = _not_finite(pairs, places.get("loss"), values.keys())
    alike = commas == "thousands" and not others
    return LineValues({**values, **(others if math.isfinite(values.get("loss", 0.0)) else {})}, places, alike=alike)


def _not_finite(pairs: Sequence[tuple[str, str]], loss: int | None, taken: Set[str]) -> dict[str, float]:
    """The losses that are not finite, besides `loss`, which is the place of the one that counts."""
    found = {}
    for place, (key, text) in enumerate(pairs):
        if place != loss and _LOSS.search(key):
            value = quantity(text)
            if value is not None and not math.isfinite(value):
                found[_name(key, taken)] = value
    return found


def _name(key: str, taken: Set[str]) -> str:
    """What such a loss is called: its key, as far as it can be printed, unless that is a name of the table."""
    name = "".join(letter for letter in key if letter.isprintable())[-LONGEST_KEY:]
    return f"other {name}" if name in taken else name
