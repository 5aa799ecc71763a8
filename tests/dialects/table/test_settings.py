"""The engine by a small table of its own: rows that read, write, are refused or have no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.keys import as_is, ignored, rejected, to, written_values
from seatrial.dialects.table.layouts import lay_out
from seatrial.dialects.table.settings import Settings
from seatrial.dialects.table.written import nested, notes
from seatrial.spec import Batch, MeshShape, RunSpec
from seatrial.spec.presets import MODELS

KEYS = {
    "steps": as_is("steps", coerce.count, required=True),
    "rate": as_is("optimizer.learning_rate", coerce.positive, default=1e-3),
    "batch": to("batch.global_batch_size", coerce.count, write=lambda spec: 2 * spec.batch.global_batch_size),
    "seed": as_is("seed", coerce.count, default=1),
    "color": ignored("nothing is painted", coerce.text, quiet=("white",)),
    "shape": ignored("nothing is painted", coerce.text),
    "experts": rejected("there are none", coerce.count, quiet=(1,)),
}
SPEC = RunSpec(
    name="run", dialect="small", model=MODELS["llama3-8b"], steps=10,
    batch=Batch(sequence_length=8, global_batch_size=4, micro_batch_size=1),
)  # fmt: skip


def read(**values: object) -> Settings:
    settings = Settings(keys=KEYS)
    for name, value in values.items():
        settings.take(name, Entry(key=name, value=value, text=str(value)))
    return settings


def found(settings: Settings) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.code, problem.path) for problem in settings.problems]


def test_a_value_is_read_placed_and_has_an_origin() -> None:
    settings = read(steps="1_000")
    assert settings.get("steps") == 1000
    assert settings.get("rate") == 1e-3
    assert settings.get("rate", 2.0) == 2.0
    assert settings.placed() == {"steps": 1000, "optimizer.learning_rate": 1e-3, "seed": 1}
    origins = settings.origins()
    assert (origins["steps"].kind, origins["optimizer.learning_rate"].kind) == ("override", "default")
    assert not found(settings)


def test_what_is_wrong_is_found() -> None:
    settings = read(stesp=1, rate=0, experts=4)
    settings.missing("steps")
    assert found(settings) == [
        ("error", "unknown-key", "stesp"), ("error", "bad-value", "rate"), ("error", "not-supported", "experts"),
        ("error", "missing-key", "steps"),
    ]  # fmt: skip
    assert "steps" in settings.problems[0].fix
    assert settings.wrong("rate")
    assert settings.has_errors
    assert not found(read(experts=1))


@pytest.mark.parametrize(("together", "number"), [(True, 1), (False, 2)])
def test_keys_without_effect_are_grouped(together: bool, number: int) -> None:
    settings = read(color="red", shape="round")
    settings.without_effect(together=together)
    assert [each[1] for each in found(settings)] == ["no-effect"] * number
    quiet = read(color="white")
    quiet.without_effect()
    assert not found(quiet)


def test_rows_write_themselves_and_what_they_cannot_hold_is_noted() -> None:
    values = dict(written_values(SPEC, KEYS))
    assert values == {"steps": 10, "rate": SPEC.optimizer.learning_rate, "batch": 8}  # a seed of 0 is refused
    (note,) = notes(SPEC, replace(SPEC, seed=1), {"": "no key", "seed": "seeds begin at 1"}, shows_other=True)
    assert (note.path, note.value, note.why) == ("seed", 0, "seeds begin at 1; here: 1")
    (note,) = notes(SPEC, replace(SPEC, batch=replace(SPEC.batch, micro_batch_size=2)), {}, whole=["batch"])
    assert (note.path, note.value) == ("batch", SPEC.batch)


def test_a_tree_is_made_of_dotted_keys() -> None:
    assert nested({"a.b": 1, "c": 2, "a.d.e": 3}) == {"a": {"b": 1, "d": {"e": 3}}, "c": 2}


def test_the_first_axis_stays_within_a_node() -> None:
    within, across = lay_out({"tensor": 4, "data": 4, "pipeline": 2}, 8)
    assert within == MeshShape(tensor=4, data=2)
    assert across == MeshShape(data=2, pipeline=2)
