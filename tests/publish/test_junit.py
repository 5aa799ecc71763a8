"""JUnit XML of several runs, held against what the schema of Jenkins' xUnit plugin allows (junit-10.xsd)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from seatrial.publish import Destination, publish
from seatrial.publish.publication import publication_of
from tests.helpers import attacks, publishing

_STRING, _NUMBER = re.compile(r"(?s).*"), re.compile(r"\d+")
_TIME, _DATE = re.compile(r"(\d+,)*\d+(\.\d+)?"), re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?")


class Kind(NamedTuple):
    """An element: the attributes that it must have and may have, and its children in order, with how many of each."""

    must: Mapping[str, re.Pattern[str]]
    may: Mapping[str, re.Pattern[str]]
    children: tuple[tuple[str, int], ...] = ()  # name, most
    text: bool = False


MANY = 10**6
_COUNTS = {"tests": _NUMBER, "failures": _NUMBER, "errors": _NUMBER}
_RESULT = Kind({}, {"message": _STRING, "type": _STRING}, text=True)
SCHEMA = {
    "testsuites": Kind({}, {"name": _STRING, "time": _TIME, "disabled": _NUMBER, "skipped": _NUMBER, **_COUNTS},
                       (("testsuite", MANY),)),
    "testsuite": Kind(
        {"name": _STRING, "tests": _NUMBER},
        {"failures": _NUMBER, "errors": _NUMBER, "skipped": _NUMBER, "time": _TIME, "timestamp": _DATE,
         "hostname": _STRING, "id": _STRING, "package": _STRING, "disabled": _NUMBER},
        (("properties", 1), ("testcase", MANY), ("system-out", 1), ("system-err", 1)),
    ),
    "properties": Kind({}, {}, (("property", MANY),)),
    "property": Kind({"name": _STRING, "value": _STRING}, {}),
    "testcase": Kind({"name": _STRING}, {"classname": _STRING, "time": _TIME, "status": _STRING, "group": _STRING},
                     (("skipped", 1), ("error", MANY), ("failure", MANY), ("system-out", MANY), ("system-err", MANY))),
    "skipped": _RESULT, "error": _RESULT, "failure": _RESULT,
    "system-out": Kind({}, {}, text=True), "system-err": Kind({}, {}, text=True),
}  # fmt: skip


def wrong(element: ElementTree.Element) -> list[str]:
    """The violations of the schema, in the element and below it."""
    kind = SCHEMA.get(element.tag)
    if kind is None:
        return [f"no element <{element.tag}>"]
    found = [f"<{element.tag}> lacks {name}" for name in kind.must if name not in element.attrib]
    allowed = {**kind.must, **kind.may}
    for name, value in element.attrib.items():
        if name not in allowed or not allowed[name].fullmatch(value):
            found.append(f"<{element.tag} {name}={value!r}>")
    order, most = [name for name, _ in kind.children], dict(kind.children)
    tags = [child.tag for child in element]
    if any(tag not in most for tag in tags) or [order.index(tag) for tag in tags] != sorted(map(order.index, tags)):
        found.append(f"<{element.tag}> holds {tags}")
    found += [f"{tags.count(name)} <{name}> in <{element.tag}>" for name in most if tags.count(name) > most[name]]
    if not kind.text and (element.text or "").strip():
        found.append(f"<{element.tag}> has text")
    return [*found, *(problem for child in element for problem in wrong(child))]


def test_the_validation_finds_what_is_wrong() -> None:
    for text in ("<testsuite name='a' tests='1'/>", "<testsuites><testsuite name='a' tests='0'/></testsuites>"):
        assert wrong(ElementTree.fromstring(text)) == []
    for text in (
        "<testsuite tests='1'/>", "<testsuite name='a' tests='x'/>", "<testsuites extra='1'/>",
        "<testsuite name='a' tests='1'><testcase name='b'/><properties/></testsuite>",
        "<testsuite name='a' tests='1'><properties/><properties/></testsuite>", "<testsuites>text</testsuites>",
        "<testsuite name='a' tests='1' time='nan'/>", "<testsuites><testcase name='a'/></testsuites>",
    ):  # fmt: skip
        assert wrong(ElementTree.fromstring(text)), text


def test_several_runs_are_one_valid_file(tmp_path: Path) -> None:
    publications = [publishing.published(run_dir) for run_dir in publishing.runs(tmp_path)]
    out = tmp_path / "ci" / "junit.xml"
    assert publish(publications, "junit", Destination(out=out)) == f"test results: {out}"
    root = ElementTree.fromstring(out.read_bytes())
    assert out.read_text().rstrip() == publish(publications, "junit", Destination())
    assert wrong(root) == []
    cases = [
        (one.report.name, check.title)
        for one in publications
        if one.report.verdict
        for axis in one.report.verdict.axes.values()
        for check in axis.checks
    ]
    assert [case.attrib["name"] for case in root.iter("testcase")] == [title for _, title in cases]
    assert int(root.attrib["tests"]) == len(cases)
    for one, listed in zip(publications, root.iter("properties"), strict=True):
        properties = {each.attrib["name"]: each.attrib["value"] for each in listed}
        assert properties["run_id"] == one.id
        assert properties["outcome"] == one.tags["outcome"]
        assert {
            name: json.loads(properties[name]) for name, value in one.parameters.items() if not isinstance(value, str)
        } == {name: value for name, value in one.parameters.items() if not isinstance(value, str)}


@settings(max_examples=60)
@given(raw=attacks.text)
def test_hostile_text_comes_back(raw: str) -> None:
    one = publication_of(attacks.poisoned(raw), Path("nowhere"))
    root = ElementTree.fromstring(publish([one], "junit", Destination()))
    assert wrong(root) == []
    properties = {each.attrib["name"]: each.attrib["value"] for each in root.iter("property")}
    assert properties["run"] == one.title
    assert properties.get("headline", "") == one.tags.get("headline", "")


@pytest.mark.parametrize("story", range(3))
def test_the_report_of_one_run_is_as_valid(tmp_path: Path, story: int) -> None:
    from seatrial.report import junit

    report = publishing.published(publishing.runs(tmp_path)[story]).report
    assert wrong(ElementTree.fromstring(junit.render(report))) == []
