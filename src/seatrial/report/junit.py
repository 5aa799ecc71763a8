"""A verdict as JUnit XML, in the shape that Jenkins, GitLab and GitHub's actions read.

A suite per axis, a case per check. What failed is a `failure`; what could not be decided is an `error`, which all of
them count as not passed and show apart; what does not apply is `skipped`. So the file is green exactly where the exit
code is 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from seatrial.report.figures import TITLES, WORDS, compared
from seatrial.report.gather import RunReport
from seatrial.verdict import Check, Status

_TAGS: dict[Status, str] = {"fail": "failure", "inconclusive": "error", "not_applicable": "skipped"}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0, even as a reference


def render(report: RunReport) -> str:
    """The verdict as XML; a run that was not judged, or an outcome that no check explains, is an error of its own."""
    return document(f"seatrial: {report.name}", suites(report))


def suites(report: RunReport) -> list[ElementTree.Element]:
    """A suite per axis, and one more where they do not explain the outcome."""
    verdict = report.verdict
    axes = verdict.axes.items() if verdict else ()
    found = [_suite(report, name, [_case(report, check) for check in axis.checks]) for name, axis in axes]
    if verdict is None:
        found.append(_suite(report, "verdict", [_unexplained(report, "NOT JUDGED", "This run has no verdict.")]))
    elif verdict.outcome != "pass" and not any(_count(found, tag) for tag in ("failures", "errors")):
        found.append(_suite(report, "verdict", [_unexplained(report, TITLES[verdict.outcome], verdict.headline)]))
    return found


def document(name: str, suites: Sequence[ElementTree.Element]) -> str:
    """The suites as one XML document, with their counts; its time is that of the first."""
    root = ElementTree.Element("testsuites", name=legal(name))
    root.extend(suites)
    root.attrib |= {key: str(_count(suites, key)) for key in ("tests", "failures", "errors", "skipped")}
    root.set("time", suites[0].get("time", "0"))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _suite(report: RunReport, name: str, cases: Sequence[ElementTree.Element]) -> ElementTree.Element:
    seconds = report.metrics.completion.wall_seconds if report.metrics else 0.0
    found = Counter(result.tag for case in cases for result in case)
    counts = {"tests": len(cases), "failures": found["failure"], "errors": found["error"], "skipped": found["skipped"]}
    suite = ElementTree.Element("testsuite", name=name)
    suite.attrib |= {key: str(count) for key, count in counts.items()}
    suite.set("time", f"{seconds:.3f}")
    if report.started_at is not None:
        suite.set("timestamp", datetime.fromtimestamp(report.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    suite.extend(cases)
    return suite


def _case(report: RunReport, check: Check) -> ElementTree.Element:
    """`classname` is run and axis, by which CI servers group and compare; a check takes no time of its own."""
    case = ElementTree.Element(
        "testcase", classname=legal(f"seatrial.{report.name}.{check.axis}"), name=legal(check.title), time="0"
    )
    tag = _TAGS.get(check.status)
    if tag:
        result = ElementTree.SubElement(case, tag, message=legal(check.sentence), type=check.status)
        result.text = legal("\n".join(_details(check)))
    else:
        ElementTree.SubElement(case, "system-out").text = legal("\n".join([check.sentence, *_details(check)]))
    return case


def _unexplained(report: RunReport, title: str, sentence: str) -> ElementTree.Element:
    owner = legal(f"seatrial.{report.name}.verdict")
    case = ElementTree.Element("testcase", classname=owner, name="outcome", time="0")
    ElementTree.SubElement(case, "error", message=legal(f"{title}: {sentence}"), type=title)
    return case


def _details(check: Check) -> list[str]:
    figures = [f"{name}: {text}" for name, text in zip(("measured", "bound"), compared(check), strict=True) if text]
    unit = f" ({check.unit})" if check.unit not in ("", "fraction") else ""
    status = WORDS[check.status] + (f"; {', '.join(figures)}{unit}" if figures else "")
    return [status, *([f"over: {check.window}"] if check.window else []), *check.evidence]


def _count(suites: Sequence[ElementTree.Element], attribute: str) -> int:
    return sum(int(suite.get(attribute, "0")) for suite in suites)


def legal(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _ILLEGAL.sub("\ufffd", text)
