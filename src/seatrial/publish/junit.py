"""JUnit XML for CI servers: the report's suites of every run, with the run's tags and parameters as properties.

`--out` is replaced as a whole; without it, the text is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from seatrial.publish.contract import Destination, Publication, as_text
from seatrial.report import junit
from seatrial.runs.files import write_named


def publish(publications: Sequence[Publication], to: Destination) -> str:
    suites = []
    for one in publications:
        own = junit.suites(one.report)
        own[0].insert(0, _properties(one))
        suites += own
    names = ", ".join(one.title for one in publications)
    text = junit.document(f"seatrial: {names}", suites)
    if to.out is None:
        return text
    write_named(to.out, text + "\n")
    return f"test results: {to.out}"


def _properties(one: Publication) -> ElementTree.Element:
    """Of the run, on the first of its suites."""
    found = ElementTree.Element("properties")
    for name, value in {"run": one.title, "run_id": one.id, **one.tags, **one.parameters}.items():
        ElementTree.SubElement(found, "property", name=junit.legal(name), value=junit.legal(as_text(value)))
    return found
