"""The formats of a comparison: a row each of what makes it from the comparison and the gate's answer."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.history import comparison_page, rendering
from seatrial.history.compare import Comparison
from seatrial.history.gate import Gate

FORMATS: dict[str, Callable[[Comparison, Gate | None], str]] = {
    "text": rendering.as_text,
    "json": rendering.as_json,
    "markdown": rendering.as_markdown,
    "html": comparison_page.render,
}
