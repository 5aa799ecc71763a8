"""The scaling of several runs in every format: the columns of the published recipes, a row per size."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from seatrial.console import Paint, plural, table, wrapped
from seatrial.events import encode
from seatrial.report import csv, html, markdown
from seatrial.report.scaling import Scaling, Size
from seatrial.report.section import Rows, without_empty_columns

VERSION = 1

_TITLES = {
    "weak": "Weak scaling",
    "strong": "Strong scaling",
    "mixed": "Scaling, neither weak nor strong",
    "one size": "Several runs of one size",
}


def _spread(size: Size) -> str:
    if len(size.runs) == 1:
        return ""
    return f"{size.fastest_seconds:.3f} to {size.slowest_seconds:.3f} s"


def _efficiency(size: Size) -> str:
    if size.efficiency_low is None or size.efficiency_high is None:
        return f"{size.efficiency:.1%}"
    return f"{size.efficiency:.1%} ({100 * size.efficiency_low:.1f}–{100 * size.efficiency_high:.1f})"


# Title → what stands under it; a column in which nothing stands is left out.
_COLUMNS: dict[str, Callable[[Scaling, Size], str]] = {
    "Devices": lambda _, size: f"{size.num_devices:,}",
    "Batch": lambda _, size: f"{size.global_batch_size:,}" if size.global_batch_size else "",
    "Step, s": lambda _, size: f"{size.step_seconds:.3f}",
    "Tokens/s": lambda _, size: f"{size.tokens_per_second_total:,.0f}",
    "/device": lambda _, size: f"{size.tokens_per_second_per_device:,.1f}",
    "MFU": lambda _, size: f"{size.mfu:.2%}" if size.mfu else "",
    "1T, days": lambda _, size: f"{size.days_to_1t_tokens:,.2f}",
    "Speed-up": lambda scaling, size: (
        f"{size.speed_up:.2f} of {size.speed_up_ideal:g}" if scaling.kind in ("strong", "mixed") else ""
    ),
    "Efficiency": lambda scaling, size: "" if scaling.kind == "one size" else _efficiency(size),
}
# What tells the runs of a size apart from those of another, below the table.
_DETAILS: dict[str, Callable[[Size], str]] = {
    "nodes": lambda size: f"{size.num_nodes:,}" if size.num_nodes else "",
    "mesh": lambda size: size.mesh,
    "runs": lambda size: ", ".join(size.runs),
    "step times": _spread,
}


def columns(scaling: Scaling) -> tuple[tuple[str, ...], Rows]:
    """The titles of the columns that hold anything, and the rows under them."""
    rows = [[show(scaling, size) for show in _COLUMNS.values()] for size in scaling.sizes]
    return without_empty_columns(list(_COLUMNS), rows)


def details(scaling: Scaling) -> list[str]:
    """A line per size: which runs, nodes and mesh are behind its row."""
    lines = []
    for size in scaling.sizes:
        said = [f"{name} {text}" for name, show in _DETAILS.items() if (text := show(size))]
        lines.append(f"{plural(size.num_devices, 'device')}: {'; '.join(said)}")
    return lines


def notes(scaling: Scaling) -> list[str]:
    """The notes without which the figures mean nothing."""
    found = [scaling.reason, "Tokens/s of all devices, and of each; 1T: a trillion tokens, uninterrupted."]
    if scaling.kind != "one size":
        found.append(
            "Efficiency: tokens/s per device over that of the smallest size, with its 95% interval, in which the "
            "relative errors of both are added in squares."
        )
    if any(len(size.runs) > 1 for size in scaling.sizes):
        found.append("Several runs of a size: their median, and the fastest and slowest of their step times.")
    found.append(f"The same in all runs: {'; '.join(f'{field} {value}' for field, value in scaling.same)}.")
    if scaling.unknown:
        found.append(f"Reported by none of them, and so not compared: {', '.join(scaling.unknown)}.")
    return found


def text(scaling: Scaling, *, width: int | None = None) -> str:
    """The table in the terminal's width, or in `width` columns; under it, what it means nothing without."""
    titles, rows = columns(scaling)
    shown = table(rows, head=titles, right=range(len(titles)), indent=0, columns=width)
    plain = Paint(color=False)
    lines = (*details(scaling), "", *notes(scaling))
    return "\n".join([_TITLES[scaling.kind], "", shown, "", *(wrapped(line, plain, columns=width) for line in lines)])


def as_markdown(scaling: Scaling) -> str:
    """A table for a comment or a page."""
    titles, rows = columns(scaling)
    shown = [[markdown.inert(cell) for cell in row] for row in rows]
    blocks = [f"## {_TITLES[scaling.kind]}", markdown.table(titles, shown, numbers=range(len(titles)))]
    lists = (details(scaling), notes(scaling))
    return "\n\n".join([*blocks, *("\n".join(f"- {markdown.inert(line)}" for line in lines) for lines in lists)])


def as_csv(scaling: Scaling) -> str:
    """A row per size, every field of `Size` with its full precision; runs are separated by spaces."""
    names = [field.name for field in dataclasses.fields(Size)]
    rows = [vars(size) | {"runs": " ".join(size.runs)} for size in scaling.sizes]
    return csv.write(("scaling", *names), [[scaling.kind, *(row[name] for name in names)] for row in rows])


def as_dict(scaling: Scaling) -> dict[str, Any]:
    """The scaling as plain data: kind, reason, what is the same, and the sizes."""
    return {"v": VERSION, **encode(dataclasses.asdict(scaling) | {"same": dict(scaling.same)})}


def as_json(scaling: Scaling) -> str:
    """The same as one object."""
    return json.dumps(as_dict(scaling), indent=1, ensure_ascii=False)


def as_html(scaling: Scaling) -> str:
    """A page of its own, as self-contained as a run's."""
    titles, rows = columns(scaling)
    data = {
        "labels": [f"{size.num_devices:,}" for size in scaling.sizes],
        "rate": [size.tokens_per_second_per_device for size in scaling.sizes],
        "low": [size.tokens_per_step / size.num_devices / size.high_seconds for size in scaling.sizes],
        "high": [size.tokens_per_step / size.num_devices / size.low_seconds for size in scaling.sizes],
    }
    return html.page(
        "scaling.html",
        ("scaling.js",),
        title=_TITLES[scaling.kind],
        same=scaling.same,
        columns=titles,
        rows=rows,
        details=details(scaling),
        notes=notes(scaling),
        data=data,
    )


FORMATS: dict[str, Callable[[Scaling], str]] = {
    "html": as_html,
    "text": text,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
}
