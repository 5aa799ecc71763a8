"""Interpolation in NxDT files: what OmegaConf makes of it, worked out by hand, and everything that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import source
from seatrial.dialects.nxdt.interpolation import Interpolation, escape
from seatrial.errors import Problem


def resolved(text: str, **environment: str | None) -> tuple[Any, list[Problem]]:
    interpolation = Interpolation(source.parse(text, file="x.yaml", is_json=False).root, environment)
    return interpolation.resolve().plain(), interpolation.problems


def value(text: str, **environment: str | None) -> Any:
    """The value of `x` in a file with a few keys beside it."""
    rest = (
        "\nn: 3\nf: 2.5\nt: true\nnothing: null\nword: abc\nlist: [1, 2]\nm: {a: 4, b: {c: 5, d: '${..a}', e: '${.c}'}}"
    )
    found, problems = resolved(f"x: {text}{rest}", **environment)
    assert problems == []
    return found["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${n}", 3), ("${f}", 2.5), ("${t}", True), ("${nothing}", None), ("${word}", "abc"), ("${list}", [1, 2]),
        ("${m.a}", 4), ("${.n}", 3), ("${m.b.c}", 5), ("${m[b][c]}", 5), ("${list[1]}", 2), ("${list.0}", 1),
        ("${ n }", 3), ("a${n}b", "a3b"), ("${n}${n}", "33"), ("${word}-${f}", "abc-2.5"),
        ("${multiply:2,3}", 6), ("${sum:2, 3}", 5), ("${multiply:${n}, ${m.a}}", 12),
        ("${multiply:${sum:1,2},${f}}", 7.5), ("'${multiply:${m.b.${word2}},2}'", None), ("'\\${n}'", "${n}"),
        ("'a\\\\${n}'", "a\\3"), ("'$n {n} $'", "$n {n} $"),
    ],
)  # fmt: skip
def test_values(text: str, expected: Any) -> None:
    if expected is None and "word2" in text:
        found, problems = resolved(f"x: {text}\nword2: c\nm: {{b: {{c: 7}}}}")
        assert (found["x"], problems) == (14, [])
        return
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_dots_lead_up_from_the_mapping_that_holds_the_value() -> None:
    found, problems = resolved("a: {b: 1, c: '${.b}', d: {e: '${..b}', f: '${...g}'}, h: ['${..b}']}\ng: 2")
    assert problems == []
    assert found["a"] == {"b": 1, "c": 1, "d": {"e": 1, "f": 2}, "h": [1]}


def test_the_environment_is_read_only_where_it_is_allowed() -> None:
    assert value("${oc.env:A}", A="1") == "1"
    assert value("${oc.env:A,fallback}", A=None) == "fallback"
    assert value("${oc.env:A}/x", A="/data") == "/data/x"
    _, problems = resolved("x: ${oc.env:PATH}\ny: ${oc.env:PATH,z}")
    assert [(p.code, p.path) for p in problems] == [("environment-refused", "x"), ("environment-refused", "y")]
    assert "allow_env=PATH" in problems[0].fix
    _, problems = resolved("x: ${oc.env:A}", A=None)
    assert [p.code for p in problems] == ["unknown-variable"]


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ("x: ${x}", "interpolation-cycle", "x"),
        ("a: ${b}\nb: ${c}\nc: 1${a}", "interpolation-cycle", "a"),
        ("x: ${nowhere}", "unknown-reference", "x"),
        ("x: ${...y}", "unknown-reference", "x"),
        ("x: ${l[7]}\nl: [1]", "unknown-reference", "x"),
        ("x: ${gpu_name:0}", "unknown-resolver", "x"),
        ("x: ${oc.decode:'1'}", "unknown-resolver", "x"),
        ("x: ${__import__:os}", "unknown-resolver", "x"),
        ("x: ${multiply:2}", "bad-interpolation", "x"),
        ("x: ${multiply:2,a}", "bad-interpolation", "x"),
        ("x: ${sum:true,1}", "bad-interpolation", "x"),
        ("x: ${multiply:1e300,1e300}", "bad-interpolation", "x"),
        ("x: '${a'", "bad-interpolation", "x"),
        ("x: ${m}\nm: {a: 1}", "bad-interpolation", "x"),
        ("x: ${l}\nl: ['${y}']\ny: 1", "bad-interpolation", "x"),
        ("x: a${l}\nl: [1]", "bad-interpolation", "x"),
        ("x: ${oc.env}", "unknown-reference", "x"),
        ("x: ${oc.env:}", "bad-interpolation", "x"),
    ],
)
def test_what_is_wrong_is_said_once_and_where_it_is_wrong(text: str, code: str, path: str) -> None:
    _, problems = resolved(text)
    (problem,) = problems
    assert (problem.code, problem.path) == (code, path)
    assert problem.mark is not None
    assert problem.fix


def test_who_refers_to_something_wrong_is_not_blamed_too() -> None:
    _, problems = resolved("a: ${b}\nb: ${nowhere}\nc: ${a}")
    assert [problem.path for problem in problems] == ["b"]


def chain(length: int) -> str:
    return "".join(f"k{n}: ${{k{n + 1}}}\n" for n in range(length)) + f"k{length}: 1"


@pytest.mark.parametrize(
    "text",
    [
        chain(2000),
        "".join(f"k{n}: ${{k{n + 1}}}${{k{n + 1}}}\n" for n in range(60)) + "k60: x",
        "".join(f"k{n}: [" + ",".join(f"'${{k{n + 1}}}'" for _ in range(9)) + "]\n" for n in range(200)) + "k200: [1]",
        "l: [" + "1," * 1400 + "]\n" + "".join(f"k{n}: ${{l}}\n" for n in range(1400)),
        "x: '" + "${" * 2000 + "'",
        "x: '" + "${multiply:" * 300 + "1" + ",1}" * 300 + "'",
        "x: '" + "${a}" * 100_000 + "'\na: b",
        "".join(f"k{n}: ${{nowhere{n}}}\n" for n in range(2400)),
        "".join(f"k{n}: ${{k{(n + 1) % 2400}}}\n" for n in range(2400)),
    ],
    ids=["chain", "doubling", "lists of lists", "copies", "unclosed", "nested", "long", "unknown", "circle"],
)
def test_hostile_texts_end_in_problems(text: str) -> None:
    _, problems = resolved(text)
    assert problems
    assert {problem.code.partition("-")[0] for problem in problems} <= {"interpolation", "bad", "unknown"}


@given(st.text(max_size=30) | st.text(alphabet="\\${}:.a,", max_size=30))
def test_an_escaped_text_is_itself(text: str) -> None:
    root = source.Node(value={"x": source.Node(value=escape(text), mark=MARK)}, mark=MARK)
    interpolation = Interpolation(root, {})
    assert interpolation.resolve().plain() == {"x": text}
    assert interpolation.problems == []


@given(st.text(alphabet="\\${}:.ab,[]0", max_size=40))
def test_any_text_has_a_value_or_one_problem(text: str) -> None:
    root = source.Node(value={"a": source.Node(value=1, mark=MARK), "x": source.Node(value=text, mark=MARK)}, mark=MARK)
    interpolation = Interpolation(root, {})
    interpolation.resolve()
    assert len(interpolation.problems) <= 1


MARK = source.parse("x", file="x", is_json=False).root.mark
