"""Native configurations: their keys and values, strictly."""

from __future__ import annotations

from typing import Any

from seatrial.dialects.schema import json_schema


def schema() -> dict[str, Any]:
    """What their reader takes."""
    return json_schema()
