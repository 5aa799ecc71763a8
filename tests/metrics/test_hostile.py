"""Numbers of any size, anywhere, in any order: measured and judged without a warning, and through the file."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from seatrial import events, metrics, verdict
from seatrial.spec import Expectation
from tests.helpers.streams import START, make_spec

WEIRD = (0.0, 1.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf, 3.0, 1e12)
USUAL = (0.5, 0.51, 0.52)


def stream(rng: random.Random, num_steps: int) -> list[events.Event]:
    weird, made = rng.random(), []

    def number() -> float:
        return rng.choice(WEIRD if rng.random() < weird else USUAL)

    for process in range(rng.choice([1, 1, 3])):
        facts: dict[str, Any] = rng.choice([{}, {"clock": "log", "family": "x"}, {"memory": {}}])
        if rng.random() < 0.5:
            made.append(
                events.RunStarted(
                    process=process, wall_time=START, num_devices=rng.choice([None, 4]), facts=facts,
                    tokens_per_step=rng.choice([None, 2048, 0]), device_kind=rng.choice(["", "cpu", "h100"]),
                )
            )  # fmt: skip
        step = 0
        for place in range(num_steps):
            step += rng.choice([1, 1, 1, 1, 10, -3 if step > 3 else 1])
            made.append(
                events.Step(
                    process=process, step=step, wall_time=START + place, seconds=rng.choice([None, number()]),
                    loss=rng.choice([None, number()]), grad_norm=rng.choice([None, number()]),
                    tokens=rng.choice([None, 0, 2048, 10**9]), phase=rng.choice(["", "", "profiler"]),
                    reported={name: number() for name in rng.sample(list(events.REPORTED), rng.choice([0, 3, 8]))},
                )
            )  # fmt: skip
    return made


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5, 6, 9, 11, 30])
def test_any_numbers(num_steps: int) -> None:
    rng = random.Random(num_steps)
    bars = [Expectation(metric=metric, value=1.0) for metric in ("mfu", "step_seconds", "memory_fraction")]
    for _ in range(2):
        run = stream(rng, num_steps)
        for spec in (None, make_spec(steps=max(1, num_steps), expectations=bars)):
            for policy in metrics.POLICIES:
                measured = metrics.measure(run, spec, policy=policy)
                text = json.dumps(metrics.to_dict(measured), allow_nan=False)
                assert json.dumps(metrics.to_dict(metrics.from_dict(json.loads(text))), allow_nan=False) == text
                assert verdict.judge(measured, spec, rehearsal=False).exit_code in verdict.EXIT_CODES.values()
