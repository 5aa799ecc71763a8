"""Pairs of runs to compare: the same configuration, and one thing changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from seatrial import events
from seatrial.history import LoadedRun, load
from seatrial.spec import RunSpec
from tests.helpers import streams
from tests.helpers.run_directory import asked_for, write

SECONDS = 28.0


def steady(
    *,
    times: float = 1.0,
    noise: float = 0.002,
    seed: int = 0,
    loss: Callable[[int], float | None] = lambda step: 6.24 * 0.975**step,
    last: int | None = None,
    **facts: object,
) -> Callable[[RunSpec], Iterable[Iterable[events.Event]]]:
    """A sound run of one process whose steps take `times` as long as usual, after two slow ones."""

    def story(spec: RunSpec) -> list[list[events.Event]]:
        rng = random.Random(seed)
        seconds = [times * SECONDS * (3 if n < 2 else 1) * (1 + rng.gauss(0, noise)) for n in range(spec.steps)]
        return [
            [
                streams.started(spec, device_kind="AMD Instinct MI300X", **facts),
                *streams.steps(spec, seconds=lambda n: seconds[n], loss=loss, last=last),
                *([] if last else [streams.ended(at=5000)]),
            ],
            [streams.ended("completed" if not last else "died", -1, exit_code=0 if not last else 137, at=5001)],
        ]

    return story


def make(folder: Path, *, spec: RunSpec | None = None, **of_story: object) -> Path:
    """A judged run directory of Llama-3.1-70B on one node of eight MI300X, without bars."""
    asked = spec or one_node()
    return write(folder, steady(**of_story), asked=asked, rehearsing=False)


def one_node(**changes: object) -> RunSpec:
    spec = asked_for(expectations=(), **changes)
    return replace(spec, topology=replace(spec.topology, num_nodes=1))


def loaded(folder: Path, **given: object) -> LoadedRun:
    return load(make(folder, **given))
