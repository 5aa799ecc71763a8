"""Every schedule against NeMo's own classes, optax, or a formula in double precision."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from seatrial.dialects.nxdt.optimizer import SCHEDULES as NEMO
from seatrial.spec import Optimizer, ScheduleKind
from seatrial.train.schedules import SCHEDULES, learning_rate
from tests.helpers.trainer import TINY, make_spec

# What NeMo 2.1's classes gave, by name, arguments and step.
CASES = json.loads((Path(__file__).parent / "reference" / "schedules_nemo210.json").read_text())


def rates(steps, optimizer: Optimizer, total: int, width: int = 64) -> np.ndarray:
    spec = replace(make_spec(), optimizer=optimizer, steps=total, model=replace(TINY, hidden_dim=width))
    return np.asarray(jax.jit(jax.vmap(lambda step: learning_rate(step, spec)))(jnp.asarray(steps, jnp.int32)))


def test_every_kind_of_the_spec_has_a_row():
    assert set(SCHEDULES) == set(get_args(ScheduleKind))
    of_torch = {"step"}
    assert {schedule.kind for schedule in NEMO.values()} == {NEMO[case["name"]].kind for case in CASES} | of_torch


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"] + str(c["args"].get("constant_steps", "")))
def test_nemos_schedules_are_nemos(case):
    arguments, peak, rule = case["args"], case["base_lr"], NEMO[case["name"]]
    total = arguments["max_steps"]
    lowest = arguments.get("min_lr", rule.min_lr or 0.0)
    optimizer = Optimizer(
        learning_rate=peak,
        schedule=rule.kind,
        warmup_steps=arguments.get("warmup_steps", int(arguments.get("warmup_ratio", 0) * total)),
        hold_steps=arguments.get("hold_steps", 0),
        constant_steps=arguments.get("constant_steps") or 0,
        final_learning_rate_fraction=lowest / peak,
        decay_power=arguments.get("power", arguments.get("decay_rate", 1.0)),
    )
    steps = sorted(int(step) for step in case["lr_at_step"])
    ours = rates(steps, optimizer, total, arguments.get("d_model", 64))
    expected = [case["lr_at_step"][str(step)] for step in steps]
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-12 * peak)


def of_torch(make, peak: float, steps: int, per_call: int = 1) -> list[float]:
    """The rates of torch's own scheduler, which is called after every so many steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    scheduler, found = make(optimizer), []
    for step in range(steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        if (step + 1) % per_call == 0:
            scheduler.step()
    return found


@pytest.mark.parametrize(("interval", "gamma"), [(1, 0.999), (7, 0.1), (30, 0.5), (1000, 0.1), (3, 1.01)])
def test_steps_down_are_torchs_step_lr(interval, gamma):
    optimizer = Optimizer(
        learning_rate=3e-4, schedule="step", decay_interval_steps=interval, decay_factor=gamma,
        final_learning_rate_fraction=0.0,
    )  # fmt: skip
    expected = of_torch(lambda o: torch.optim.lr_scheduler.StepLR(o, interval, gamma), 3e-4, 3000)
    np.testing.assert_allclose(rates(np.arange(3000), optimizer, 3000), expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(("epoch", "gamma"), [(1, 0.9999), (13, 0.9), (250, 0.5)])
def test_a_step_down_an_epoch_is_torchs_exponential_lr(epoch, gamma):
    optimizer = Optimizer(
        learning_rate=1e-3, schedule="step", decay_interval_steps=epoch, decay_factor=gamma,
        final_learning_rate_fraction=0.0,
    )  # fmt: skip
    expected = of_torch(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma), 1e-3, 2000, per_call=epoch)
    np.testing.assert_allclose(rates(np.arange(2000), optimizer, 2000), expected, rtol=1e-6, atol=1e-37)


def test_steps_down_end_at_the_final_rate_and_begin_after_the_warm_up():
    optimizer = Optimizer(
        learning_rate=1.0, schedule="step", warmup_steps=2, hold_steps=3, decay_interval_steps=2, decay_factor=0.5,
        final_learning_rate_fraction=0.2,
    )  # fmt: skip
    expected = [0, 0.5, 1, 1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2]
    np.testing.assert_allclose(rates(np.arange(13), optimizer, 13), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("warmup", "decay_steps", "total"), [(0, None, 50), (5, None, 50), (10, 30, 50), (50, None, 50)]
)
def test_cosine_equals_optax(warmup, decay_steps, total):
    optimizer = Optimizer(
        learning_rate=2e-4, warmup_steps=warmup, decay_steps=decay_steps, final_learning_rate_fraction=0.1
    )
    length = max(decay_steps or total, warmup + 1)
    reference = optax.warmup_cosine_decay_schedule(
        init_value=0.0, peak_value=2e-4, warmup_steps=warmup, decay_steps=length, end_value=2e-5
    )
    steps = np.arange(total + 5)
    np.testing.assert_allclose(
        rates(steps, optimizer, total), [float(reference(step)) for step in steps], rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_rates_are_exact_in_float32_over_a_million_steps(kind):
    W, H, C, T = 2000, 1000, 500, 1_000_000
    optimizer = Optimizer(
        learning_rate=3e-4, schedule=kind, warmup_steps=W, hold_steps=H, constant_steps=C,
        final_learning_rate_fraction=0.0,
    )  # fmt: skip
    steps = [0, 1, W - 1, W, W + H, W + H + 1, 500_000, T - C - 100, T - C - 1, T - C, T - 1, T + 10]

    def expected(t: int) -> float:
        if t < W:
            return 3e-4 * t / W
        left = min(1.0, max(0.0, (T - C - t) / (T - C - W - H)))
        return 3e-4 * {"cosine": math.sin(math.pi / 2 * left) ** 2, "linear": left, "constant": 1.0}[kind]

    np.testing.assert_allclose(rates(steps, optimizer, T), [expected(t) for t in steps], rtol=1e-6)


def of_maxtext(t: int, warmup: int, hold: int, length: int, style: str) -> float:
    """MaxText's pieces one after another, of a rate of 1 that ends at 0.1; in double precision."""
    if t < warmup:
        return t / warmup
    if t < warmup + hold:
        return 1.0
    last, passed = length - warmup - hold - 1, t - warmup - hold
    if passed > last:
        return 0.0
    if style == "linear":
        return 1 - 0.9 * passed / last if last else 1.0
    share = 0.5 * (math.cos(math.pi * passed / last) + 1) if last else 0.0
    return share + 0.1 * (1 - share)


@pytest.mark.parametrize("style", ["cosine", "linear"])
@pytest.mark.parametrize(
    ("warmup", "hold", "length", "total"),
    [(2, 0, 20, 20), (0, 0, 20, 20), (3, 0, 30, 50), (5, 40, 50, 50), (5, 44, 50, 50), (20, 0, 20, 20), (9, 0, 10, 15)],
)
def test_maxtexts_schedules_end_in_their_last_step(style, warmup, hold, length, total):
    optimizer = Optimizer(
        learning_rate=1.0, schedule=f"maxtext_{style}", warmup_steps=warmup, hold_steps=hold,
        decay_steps=length if length < total else None, final_learning_rate_fraction=0.1,
    )  # fmt: skip
    expected = [of_maxtext(t, warmup, hold, length, style) for t in range(total)]
    np.testing.assert_allclose(rates(np.arange(total), optimizer, total), expected, rtol=1e-6, atol=1e-7)
