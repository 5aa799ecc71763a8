"""metrics.json."""

from __future__ import annotations

from seatrial.contracts.types import Json, schema_of, versioned
from seatrial.metrics import VERSION, Metrics


def schema() -> Json:
    """The metrics of a run, as they are written."""
    return versioned(schema_of(Metrics), VERSION)
