"""Trees with places: values as independent readers give them, marks at the very token, and no text that breaks it."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import source
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node, parse, walk

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(ROOT.glob("configs/*/*"))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4),
    max_leaves=20,
)


def offset(text: str, mark: Mark) -> int:
    return sum(len(line) + 1 for line in text.split("\n")[: mark.line - 1]) + mark.column - 1


def problem(text: str, *, is_json: bool) -> tuple[str, str, str]:
    """The code of the one finding that a text ends in, its reason, and the text from its place on."""
    with pytest.raises(InputError) as caught:
        parse(text, file="config", is_json=is_json)
    (finding,) = caught.value.problems
    assert finding.mark is not None
    return finding.code, finding.why, text[offset(text, finding.mark) :]


# --- JSON -------------------------------------------------------------------------------------------------------------


@given(tree=trees, indent=st.sampled_from([None, 0, 2, "\t"]), ascii_only=st.booleans())
def test_json_values_are_those_of_the_standard_library_and_marks_point_at_their_tokens(
    tree: Any, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    root = parse(text, file="config", is_json=True).root
    assert root.plain() == json.loads(text)
    decoder = json.JSONDecoder()
    for path, node in walk(root):
        value, _ = decoder.raw_decode(text, offset(text, node.mark))
        assert value == node.plain()
        if node.key_mark is not None:
            assert decoder.raw_decode(text, offset(text, node.key_mark))[0] == path[-1]


@pytest.mark.parametrize(
    ("text", "reason", "rest"),
    [
        ('{"a": 1,}', "comma stands before a closing bracket", ",}"),
        ('{"a": [1, 2, ]}', "comma stands before a closing bracket", ", ]}"),
        ('{"a": 1 // one\n}', "no comments", "// one\n}"),
        ('{\n# one\n"a": 1}', "no comments", '# one\n"a": 1}'),
        ('{"a": /* one */ 1}', "no comments", "/* one */ 1}"),
        ('\ufeff{"a": 1}', "byte order mark", '\ufeff{"a": 1}'),
        ('{"a": "x\ty"}', "a tab stands inside a string", '\ty"}'),
        ('{"a": "x\ny"}', "a line break stands inside a string", '\ny"}'),
        ("{'a': 1}", "double quotes", "'a': 1}"),
        ('{"a": \'x\'}', "double quotes", "'x'}"),
        ('{"a": 1\n"b": 2}', "a comma or a closing bracket is missing", '"b": 2}'),
        ('{"a" 1}', "a colon is missing", "1}"),
        ('{a: 1}', "a key in double quotes", "a: 1}"),
        (r'{"a": "C:\temp\q"}', "begins an escape", r'\q"}'),
        ('{"a": "x', "never ends", '"x'),
        ('{"a": [1, 2', "ends too early", ""),
        ('{"a":', "ends too early", ""),
        ('{"a": 1}}', "complete before this", "}"),
        ('{"a": True}', "True is Python's", "True}"),
        ('{"a": NaN}', "NaN is not JSON", "NaN}"),
        ('{"a": -Infinity}', "-Infinity is not JSON", "-Infinity}"),
        ('{"a": 01}', "a comma or a closing bracket is missing", "1}"),
        ('{"a": "\\ud800"}', "surrogate", '"\\ud800"}'),
        ("  \n", "the file is empty", "  \n"),
    ],
)  # fmt: skip
def test_a_json_mistake_is_named_at_its_place(text: str, reason: str, rest: str) -> None:
    code, why, at = problem(text, is_json=True)
    assert (reason in why, at) == (True, rest), why
    assert code in ("bad-json", "not-utf-8", "empty")


# --- YAML -------------------------------------------------------------------------------------------------------------

# What PyYAML, which reads YAML 1.1, does not quote, although 1.2 sees a number there.
ONLY_IN_1_2 = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+|0o[0-7]+|[-+]?[0-9]+")
yaml_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).filter(
    lambda text: not ONLY_IN_1_2.fullmatch(text)
)
yaml_trees = st.recursive(
    st.none() | st.booleans() | numbers | yaml_texts,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(yaml_texts, below, max_size=4),
    max_leaves=20,
)


@given(tree=yaml_trees, flow=st.booleans())
def test_yaml_values_are_those_of_its_reference_reader(tree: Any, flow: bool) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    root = parse(text, file="config", is_json=False).root
    assert root.plain() == tree == yaml.safe_load(text)


@given(tree=yaml_trees)
def test_yaml_marks_are_those_of_its_reference_reader(tree: Any) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    composed = [yaml.compose(text, Loader=yaml.SafeLoader)]
    marks = []
    while composed:
        node = composed.pop(0)
        marks.append((node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            composed[:0] = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            composed[:0] = node.value
    assert [(node.mark.line, node.mark.column) for _, node in walk(parse(text, file="c", is_json=False).root)] == marks


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # YAML 1.2.2, section 10.3.2, and what YAML 1.1 made of the rest
        ("null", None), ("~", None), ("", None), ("true", True), ("FALSE", False),
        ("0", 0), ("-19", -19), ("+7", 7), ("0o14", 12), ("0x3A", 58), ("019", 19),
        ("3e-4", 3e-4), ("-2E+05", -2e5), ("12e03", 12e3), (".5", 0.5), ("5.", 5.0), ("-.inf", -math.inf),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("1_000", "1_000"), ("1:30", "1:30"), ("0b11", "0b11"),
        ("2026-01-01", "2026-01-01"), ('"3"', "3"), ("'true'", "true"), ("!!str 3", "3"), ("! 3", "3"),
        ("!!float 3", 3.0), ("!!int 3", 3), ("nul", "nul"), ("=", "="),
    ],
)  # fmt: skip
def test_yaml_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    got = parse(f"key: {text}\n", file="config", is_json=False).root.members["key"].value
    assert (got, type(got)) == (value, type(value))


def test_yaml_not_a_number_is_read() -> None:
    got = parse("key: .nan", file="config", is_json=False).root.members["key"].value
    assert isinstance(got, float)
    assert math.isnan(got)


@pytest.mark.parametrize(
    ("text", "reason", "rest"),
    [
        ("a: 1\n\tb: 2\n", "a tab stands", "\tb: 2\n"),
        ("a: 'x", "the quote that begins here never ends", "'x"),
        ('a: "x" y\n', "the value before this was complete", "y\n"),
        ("a:\n  b: 1\n c: 2\n", "indented like none of the keys", "c: 2\n"),
        ("a: 1\n- b\n", "an item of a list", "- b\n"),
        ("- a\nb: 1\n", "a list goes on here without -", "b: 1\n"),
        ("a: 1\nb:2\nc: 3\n", "no colon with a blank", "b:2\nc: 3\n"),
        ("a: 010\n", "YAML 1.2 reads 010 as 10, and PyYAML as 8", "010\n"),
        ("a: @b\n", "no plain value begins", "@b\n"),
        ("a: {{ b }}\n", "is a template's", "{ b }}\n"),
        ("[a]\nb = 1\n", "the document was complete", "b = 1\n"),
        ('a: "\\d"\n', "begins an escape", '\\d"\n'),
        ("a: [1, 2\n", "the [ that begins here is not closed", "[1, 2\n"),
        ("a: {b: 1\nc: 2\n", "the { that begins here is not closed", "{b: 1\nc: 2\n"),
        ("a: b: c\n", "no key can stand here", ": c\n"),
        ("a: \x07\n", "a control character", "\x07\n"),
        ("--- {a: 1}\n--- {b: 2}\n", "a second document", "--- {b: 2}\n"),
        ("? [a]\n: 1\n", "a key must be a word", "[a]\n: 1\n"),
        ("a: &x 1\n*x : 2\n", "a key must be a word", "*x : 2\n"),
        ("a: *x\n", "no &x stands before this", "*x\n"),
        ("a: &x [*x]\n", "would hold itself", "*x]\n"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            "not one of plain data",
            "!!python/object/apply:os.system [id]\n",
        ),
        ("a: !!int x\n", "marked as int", "!!int x\n"),
        ("a: &x [1]\nc: {<<: *x}\n", "<< merges mappings only", "*x}\n"),
        ("# nothing\n", "the file is empty", "# nothing\n"),
    ],
)
def test_a_yaml_mistake_is_named_at_its_place(text: str, reason: str, rest: str) -> None:
    _, why, at = problem(text, is_json=False)
    assert (reason in why, at) == (True, rest), why


def test_merged_mappings_are_those_of_pyyaml() -> None:
    text = """
a: &a {x: 1, y: 2}
b: &b {y: 3, z: 4}
c: {<<: *a, y: 5}
d: {y: 6, <<: [*a, *b]}
e: &e {<<: [*b, *a], w: 7}
f: {<<: *e, "<<": 8}
"""
    root = parse(text, file="config", is_json=False).root
    expected = yaml.safe_load(text)
    assert root.members["f"].plain() == {**root.members["e"].plain(), "<<": 8}  # in quotes it is a key as any other
    del expected["f"]
    assert {name: node.plain() for name, node in root.members.items() if name != "f"} == expected
    assert root.members["c"].members["x"].mark.line == 2


def test_an_alias_is_its_anchor_s_value_at_its_own_place() -> None:
    root = parse("a: &x {b: [1]}\nc: *x\n", file="config", is_json=False).root
    assert root.plain() == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert str(root.members["c"].mark) == "config:2:4"


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_json", "first", "second"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', True, "config:1:16", "config:1:24"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", False, "config:3:3", "config:4:3"),
    ],
)
def test_a_key_that_comes_twice_is_reported_with_both_places(text: str, is_json: bool, first: str, second: str) -> None:
    (finding,) = parse(text, file="config", is_json=is_json).problems
    assert (finding.severity, finding.code, finding.path) == ("error", "duplicate-key", "b.c")
    assert str(finding.mark) == second
    assert f"at {first}," in finding.why


def _aliases_of_aliases(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "deep json": ("[" * 100_000, True),
    "deep json objects": ('{"a":' * 100_000, True),
    "wide json": ("[" + "1," * 1_000_000 + "1]", True),
    "quotes": ("'" + '\\"' * 1_000_000, True),
    "open quotes": ('"' * 5_000_000, True),
    "one long word": ("x" * 10_000_000, True),
    "many digits": ("9" * 5_000, True),
    "deep yaml": ("[" * 100_000, False),
    "deep yaml blocks": ("- " * 100_000, False),
    "wide yaml": ("- x\n" * 500_000, False),
    "yaml digits": ("a: " + "9" * 5_000, False),
    "keys of keys": ("? " * 100_000, False),
    "billion laughs": (_aliases_of_aliases(12, 10), False),
    "aliases as a tower": (_aliases_of_aliases(200, 1), False),
    "colons": ("a: " * 300_000, False),
    "line breaks": ("\n" * 10_000_000, False),
    "nothing but a comment": ("#" * 10_000_000, False),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_is_slow_or_breaks_anything(name: str) -> None:
    text, is_json = HOSTILE[name]
    start = time.process_time()
    problem(text, is_json=is_json)
    assert time.process_time() - start < 10


@settings(max_examples=300)
@given(data=st.data())
def test_broken_text_ends_in_a_tree_or_in_one_finding(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(CONFIGS)).read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    broken = text[:start] + data.draw(st.text(max_size=5) | st.sampled_from('{}[]",:\\\t&*!')) + text[end:]
    findings: tuple[Problem, ...] = ()
    try:
        findings = parse(broken, file="config", is_json=data.draw(st.booleans())).problems
    except InputError as error:
        findings = error.problems
    assert {finding.severity for finding in findings} <= {"error"}
    assert all(finding.mark is not None for finding in findings)


def test_walk_goes_in_the_order_of_the_text() -> None:
    root = parse('{"a": [1, {"b": 2}], "c": 3}', file="config", is_json=True).root
    assert [".".join(path) for path, _ in walk(root)] == ["", "a", "a.0", "a.1", "a.1.b", "c"]
    assert isinstance(root, Node)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.suffix != ".sh"], ids=lambda path: path.name)
def test_every_shipped_configuration_is_read(path: Path) -> None:
    reference = json.loads if path.suffix == ".json" else yaml.safe_load
    assert source.read(path).problems == ()
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"(?<= )(\d+)\.?(e-\d)", r"\1.0\2", text)  # PyYAML takes 3e-4 for text,
    text = re.sub(r"(?<=\d)_(?=\d{3}\b)", "", text)  # and 1_000 for a number
    assert parse(text, file="config", is_json=path.suffix == ".json").root.plain() == reference(text)


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        ("empty.json", b"", "empty", (1, 1)),
        ("latin1.json", b'{\n"a": "\xe9"}', "not-utf-8", (2, 7)),
        ("zip.yaml", b"PK\x03\x04\x00", "bad-yaml", (1, 3)),
        ("large.json", b" " * (source.MAX_BYTES + 1), "too-large", None),
    ],
)
def test_a_file_that_holds_no_configuration(
    tmp_path: Path, name: str, content: bytes, code: str, place: tuple[int, int] | None
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        source.read(path)
    (finding,) = caught.value.problems
    assert (finding.code, finding.path) == (code, str(path))
    assert (finding.mark and (finding.mark.line, finding.mark.column)) == place


def test_paths_that_name_no_readable_file(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / ("x" * 300), Path("/dev/zero"), loop, Path("a\0b")):
        with pytest.raises(InputError) as caught:
            source.read(path)
        assert [finding.code for finding in caught.value.problems] == ["unreadable"]


def test_a_name_without_a_known_ending_is_read_by_its_first_character(tmp_path: Path) -> None:
    path = tmp_path / "config.txt"
    path.write_text(' {"a": 1}')
    assert source.read(path).root.plain() == {"a": 1}
    path.write_text("a: yes\n")
    assert source.read(path).root.plain() == {"a": "yes"}
