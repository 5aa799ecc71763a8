"""The schema of native configurations: it says what their reader says, as far as a schema can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from seatrial import source
from seatrial.dialects import native
from seatrial.dialects.schema import json_schema
from seatrial.dialects.spec_fields import schema
from seatrial.dialects.table.entries import Request
from seatrial.dialects.yaml_writer import dump
from seatrial.spec import RunSpec
from tests.helpers.seeds import ROOT
from tests.helpers.specs import specs

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def _plain(text: str) -> Any:
    return source.parse(text, file="run.yaml", is_json=False).root.plain()


def _reader_accepts(data: Any) -> bool:
    document = source.parse(dump(data), file="run.yaml", is_json=False)
    return (
        native.read(Request(document=document, overrides=[], action="plan", user="", home=Path("/"))).spec is not None
    )


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "native").iterdir()), ids=lambda path: path.name)
def test_every_shipped_example_keeps_to_it(path: Path) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(source.read(path).root.plain())] == []


@settings(max_examples=60)
@given(spec=specs())
def test_whatever_is_written_keeps_to_it(spec: RunSpec) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(_plain(native.write(spec).text))] == []


_VALUES = st.sampled_from((
    None, True, -2, -1, 0, 1, 2, 0.5, 0.0, 1.0, -0.5, 1.5, 70_000, 10**13, "", "x", "1", "full", "-x", "a b", "mfu",
    "sft", "llama2-7b", "arrow", [], ["a"], [1], [["a", "b"]], [["a"]], [0.5], {}, {"a": "b"}, {"a": []},
    {"preset": "llama2-7b"}, {"factor": 2},
))  # fmt: skip
# What a schema cannot say: which words of a free text name a device.
FREE = ("topology.device",)


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [place for key in keys for place in ((*path, key), *_places(node[key], (*path, key)))]


def _full(spec: RunSpec) -> dict[str, Any]:
    """The spec's configuration, with some of the fields that were left out."""
    data: dict[str, Any] = _plain(native.write(spec).text)
    for part, properties in SCHEMA["properties"].items():
        if "null" in properties.get("type", ()) and part not in data:  # what is not there has no fields
            continue
        for name in properties.get("properties", {}):
            default = properties["properties"][name].get("default")
            if default is not None:
                data.setdefault(part, {}).setdefault(name, default)
    return data


@settings(max_examples=200)
@given(spec=specs(), data=st.data())
def test_what_the_reader_refuses_the_schema_refuses_and_nothing_else(spec: RunSpec, data: st.DataObject) -> None:
    config = _full(spec)
    assert VALIDATOR.is_valid(config)
    places = [place for place in _places(config) if ".".join(map(str, place)) not in FREE]
    place = data.draw(st.sampled_from(places))
    parent = config
    for key in place[:-1]:
        parent = parent[key]
    match data.draw(st.sampled_from(("change", "remove", "rename", "add"))):
        case "change":
            parent[place[-1]] = data.draw(_VALUES)
        case "remove":
            del parent[place[-1]]
        case "rename" if isinstance(parent, dict):
            parent[f"{place[-1]}s"] = parent.pop(place[-1])
        case _:
            config[data.draw(st.sampled_from(("_note", "$schema", "dialect", "x")))] = 1
    assert VALIDATOR.is_valid(config) == _reader_accepts(config), (place, config)


def test_ranges_words_units_and_presets_are_in_it() -> None:
    properties = SCHEMA["properties"]
    assert properties["steps"]["description"].endswith("Unit: steps.")
    assert properties["optimizer"]["properties"]["beta1"]["exclusiveMaximum"] == 1
    for path, words in [(path, field.words) for path, field in schema() if field.words]:
        assert f'"{path.rpartition(".")[2]}": {{' in str(SCHEMA).replace("'", '"')
        assert str(list(words))[:-1] in str(SCHEMA)  # of one that may be null, null comes after them
    assert "llama3.1-405b" in properties["model"]["anyOf"][0]["enum"]
