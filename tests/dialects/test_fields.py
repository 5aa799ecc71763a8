"""Every field of a run is described."""

from __future__ import annotations

from dataclasses import fields

import pytest

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.spec_fields import fields_of, schema
from seatrial.spec import Expectation, RunSpec


def _parts(kind: type, path: str = "") -> list[str]:
    found = []
    for name, field in fields_of(kind).items():
        below = f"{path}.{name}" if path else name
        if field.part and not field.is_list:
            found += [below, *_parts(field.part, below)]
    return found


def test_every_path_has_a_description_and_nothing_else_has() -> None:
    expected = {path for path, _ in schema()} | set(_parts(RunSpec))
    expected |= {f"expectations.{f.name}" for f in fields(Expectation)}
    assert set(FIELDS) == expected


@pytest.mark.parametrize("path", FIELDS)
def test_a_description_is_one_short_sentence(path: str) -> None:
    meaning = FIELDS[path].meaning
    assert meaning.endswith(".")
    assert len(meaning) <= 160
    assert ". " not in meaning
