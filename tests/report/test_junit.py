"""The verdict for CI servers: well-formed whatever the run said, and green exactly where the exit code is 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from seatrial.report import junit
from seatrial.report.gather import RunReport, gather
from seatrial.verdict import EXIT_CODES, Outcome
from tests.helpers import attacks, run_directory
from tests.helpers.run_directory import Story

STORIES: tuple[Story, ...] = (
    run_directory.sound,
    run_directory.killed,
    run_directory.diverged,
    run_directory.slow,
)
# What Jenkins' and GitLab's readers know; anything else is ignored or refused.
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}
NEEDS = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message", "type"},
    "system-out": set(),
}
RESULTS = ("failure", "error", "skipped")


def parsed(report: RunReport) -> ElementTree.Element:
    """The document, held against the shape that CI servers read; the counts are counted again."""
    text = junit.render(report)
    root = ElementTree.fromstring(text.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
        assert NEEDS[element.tag] <= set(element.attrib)
    for suite in (root, *root):
        cases = list(suite.iter("testcase"))
        assert int(suite.attrib["tests"]) == len(cases)
        for tag, attribute in zip(RESULTS, ("failures", "errors", "skipped"), strict=True):
            assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
        assert float(suite.attrib["time"]) >= 0
    assert all(sum(case.find(tag) is not None for tag in RESULTS) <= 1 for case in root.iter("testcase"))
    return root


def is_green(root: ElementTree.Element) -> bool:
    return root.attrib["failures"] == root.attrib["errors"] == "0"


@pytest.mark.parametrize("rehearsing", [True, False])
@pytest.mark.parametrize("story", STORIES)
def test_a_suite_an_axis_and_a_case_a_check(tmp_path: Path, story: Story, rehearsing: bool) -> None:
    report = gather(run_directory.write(tmp_path / "run", story, rehearsing=rehearsing))
    assert report.verdict is not None
    root = parsed(report)
    tags = {"fail": "failure", "inconclusive": "error", "not_applicable": "skipped", "pass": "system-out"}
    for (axis, verdict), suite in zip(report.verdict.axes.items(), root, strict=True):
        assert suite.attrib["name"] == axis
        for check, case in zip(verdict.checks, suite, strict=True):
            assert case.attrib["name"] == check.title
            (result,) = case
            assert result.tag == tags[check.status]
            assert check.sentence in (result.get("message"), (result.text or "").splitlines()[0])
            assert all(line in (result.text or "") for line in check.evidence)
    assert is_green(root) == (report.verdict.exit_code == 0)


@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_no_outcome_but_a_pass_is_green(tmp_path: Path, outcome: Outcome) -> None:
    """Even where every check passed: then the outcome itself is the case that did not."""
    report = gather(run_directory.write(tmp_path / "run"))
    assert report.verdict is not None
    root = parsed(replace(report, verdict=replace(report.verdict, outcome=outcome)))
    assert is_green(root) == (outcome == "pass")


def test_what_was_not_judged_is_not_green(tmp_path: Path) -> None:
    root = parsed(gather(tmp_path))
    assert not is_green(root)
    assert "no verdict" in root[0][0][0].attrib["message"]


@settings(max_examples=150)
@given(raw=attacks.text)
def test_hostile_text_stays_text(raw: str) -> None:
    report = attacks.poisoned(raw)
    assert report.verdict is not None
    root = parsed(report)
    assert len(list(root.iter("testcase"))) == sum(len(axis.checks) for axis in report.verdict.axes.values())
    for case in root.iter("testcase"):
        assert case.attrib["name"] == report.name


def test_what_xml_cannot_hold_is_replaced() -> None:
    """`gather` lets no such character through; this format does not rely on it."""
    killed = attacks.killed()
    root = parsed(replace(killed, name="a\x00b\x0b\ufffe\ud800c"))
    assert root.attrib["name"] == "seatrial: a\ufffdb\ufffd\ufffd\ufffdc"
