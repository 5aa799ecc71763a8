"""Runs that failed on several ranks: their logs in one text, and who is at fault by the report that each is made after.

A case begins with its label (`report`, `says`, `kind`, `culprit`, `steps`); `==> rank0.log <==` begins a log of it, in
which `@megatron 1-9 10:00:00` stands for these steps, two seconds apart, the first at that time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from seatrial import logs
from seatrial.metrics import Diagnosis, Metrics, measure
from seatrial.verdict import Verdict, judge

FOLDER = Path(__file__).parents[1] / "verdict" / "blame"
PLANNED = 20
_STEPS = re.compile(r"@(?P<family>[\w-]+) (?P<first>\d+)-(?P<last>\d+) (?P<time>[\d:]+)$")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A failed run: its logs by their names, the kinds that its fault may be called, and whoever may be blamed."""

    name: str
    label: Mapping[str, str]
    logs: Mapping[str, str]

    @property
    def kinds(self) -> set[str]:
        return set(self.label["kind"].split("|"))

    @property
    def culprits(self) -> set[str]:
        """As places: "rank 3", "node7"; none where nobody is at fault, or nothing shows who is."""
        found = (place.strip().removeprefix("host ") for place in self.label["culprit"].split(","))
        return {place for place in found if place != "nobody"}


def read_case(path: Path) -> Case:
    head, *parts = re.split(r"^==> (\S+) <==\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    label = dict(line.split(": ", 1) for line in head.splitlines())
    texts = ("".join(f"{line}\n" for line in _lines(part)) for part in parts[1::2])
    return Case(name=path.stem, label=label, logs=dict(zip(parts[::2], texts, strict=True)))


def cases() -> list[Case]:
    return [read_case(path) for path in sorted(FOLDER.glob("*.txt"))]


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := _STEPS.match(line):
            begin = datetime.fromisoformat(f"2026-03-01T{found['time']}")
            steps = range(int(found["first"]), int(found["last"]) + 1)
            yield from (
                step_line(found["family"], step, begin + number * timedelta(seconds=2))
                for number, step in enumerate(steps)
            )
        else:
            yield line


def step_line(family: str, step: int, at: datetime) -> str:
    """A step of a run of `PLANNED` steps, two seconds long."""
    if family == "megatron":
        return (
            f" [{at:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{PLANNED:8d} | consumed samples: {step * 64:12d} | "
            f"elapsed time per iteration (ms): 2000.0 | learning rate: 3.000000E-04 | global batch size:    64 | "
            f"lm loss: {9 - step / 16:.6E} | loss scale: 1.0 | grad norm: 1.250 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    text = (
        f"completed step: {step}, seconds: 2.000, TFLOP/s/device: 410.125, Tokens/s/device: 8192.000, "
        f"total_weights: 32768, loss: {9 - step / 16:.3f}"
    )
    return text if family == "print" else f"I{at:%m%d %H:%M:%S.%f} 139900000000000 metric_logger.py:196] {text}"


def write(case: Case, folder: Path) -> list[Path]:
    """The logs of a case as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in case.logs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in case.logs]


def judged(folder: Path) -> tuple[Metrics, Verdict]:
    """The logs of a folder, read and judged as `seatrial judge FOLDER` does."""
    metrics = measure(logs.read([folder]), None)
    return metrics, judge(metrics, None, rehearsal=False)


def named(diagnosis: Diagnosis | None) -> set[str]:
    """Whoever a diagnosis blames, suspects or excludes, as places: "rank 3", "node7"."""
    if diagnosis is None:
        return set()
    where = "" if diagnosis.kind == "collective_timeout" else diagnosis.cause.where  # of one that waits, and not said
    told = (where, *diagnosis.suspects, *diagnosis.exclude)
    found = {place for text in told for place in text.split(" on ") if place}
    return {place for text in found for place in _each(text)}


def _each(place: str) -> Iterator[str]:
    """ "ranks 0–2, 5" is four places."""
    if not place.startswith("ranks "):
        yield place
        return
    for part in place.removeprefix("ranks ").split(", "):
        first, _, last = part.partition("–")
        yield from (f"rank {rank}" for rank in range(int(first), int(last or first) + 1))
