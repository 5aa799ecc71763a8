"""TensorBoard: a folder per run below `--out`, with scalars, the verdict and the parameters as text, and report.html.

Publishing once more replaces what was published of the run. TensorBoard keeps single precision: a figure beyond it is
infinite there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from seatrial.publish.contract import Destination, Parameter, Publication, as_text
from seatrial.report import html, markdown
from seatrial.runs.files import write_text

MOST_BYTES = 200  # of a folder's name, before the id


def publish(publications: Sequence[Publication], to: Destination) -> str:
    assert to.out is not None  # the table says so
    logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it warns of every NaN
    for one in publications:
        title = one.title.encode()[:MOST_BYTES].decode(errors="ignore")
        _write(one, to.out / f"{title}.{one.id[:8]}")
    return f"tensorboard --logdir {to.out}"


def _write(one: Publication, folder: Path) -> None:
    from tensorboardX import SummaryWriter

    suffix = f".seatrial-{one.id}"
    folder.mkdir(parents=True, exist_ok=True)
    earlier = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    writer = SummaryWriter(logdir=str(folder), filename_suffix=f".{time.time_ns()}{suffix}")
    at = max((point.at for point in one.points), default=one.report.started_at or 0.0)
    for point in one.points:
        for name, value in point.values.items():
            writer.add_scalar(name, value, point.step, walltime=point.at)
    for name, value in one.figures.items():
        writer.add_scalar(f"run/{name}", value, 0, walltime=at)
    writer.add_text("verdict", markdown.render(one.report), 0, walltime=at)
    writer.add_text("parameters", _listing({"run_id": one.id, **one.tags, **one.parameters}), 0, walltime=at)
    writer.close()
    for path in earlier:
        path.unlink(missing_ok=True)
    write_text(folder / "report.html", html.render(one.report))


def _listing(values: dict[str, Parameter]) -> str:
    """One value a line, as an indented block, in which Markdown means nothing."""
    return "\n".join(f"    {name} = {as_text(value)}" for name, value in values.items())
