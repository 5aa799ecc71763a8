"""Prometheus: the last figures of runs that are over, as a file for node exporter's textfile collector.

Name it `--out …/NAME.prom` in the collector's folder; it is replaced in one step. Without `--out`, the text is printed.
Label values are escaped; NaN, +Inf and -Inf stay what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from seatrial.publish.contract import Destination, Publication
from seatrial.publish.gauges import of_a_judged, text
from seatrial.runs.files import write_named


def publish(publications: Sequence[Publication], to: Destination) -> str:
    times = Counter(one.title for one in publications)
    names = [one.title if times[one.title] == 1 else f"{one.title} ({one.id[:4]})" for one in publications]
    found = text(
        sample for name, one in zip(names, publications, strict=True) for sample in of_a_judged(one.report, name)
    )
    if to.out is None:
        return found.removesuffix("\n")
    write_named(to.out, found)
    return f"metrics: {to.out}"
