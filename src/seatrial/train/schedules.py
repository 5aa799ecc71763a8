"""The learning rate of every step: rows of one table.

The formulas are written so that float32 is enough: differences of steps are taken between integers, and half of
1 + cos(πx) is sin²(π(1 − x)/2), which does not cancel where the rate is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seatrial.spec import RunSpec


class Plan(NamedTuple):
    """The parameters of the schedules: two rates, the lengths of the phases in steps, and those of single rows."""

    peak: float
    final: float
    warmup: int
    hold: int  # at the peak, behind the warm-up
    constant: int  # at the final rate, at the end
    end: int  # of the schedule, counted from the first step
    power: float
    width: int  # of the model
    factor: float  # by which the rate falls at a time
    interval: int  # between two such falls

    @property
    def fall(self) -> int:
        """The step from which the rate falls."""
        return self.warmup + self.hold


Rate = jax.Array
Schedule = Callable[[jax.Array, Plan], Rate]  # (step from 0, plan) → rate


def _left(t: jax.Array, begin: int, end: int) -> jax.Array:
    """1 up to step `begin`, then falling evenly to 0 at `end`."""
    return jnp.clip((end - t) / max(1, end - begin), 0.0, 1.0)


def _between(plan: Plan, share: jax.Array) -> Rate:
    return plan.final + (plan.peak - plan.final) * share


def _half_cosine(t: jax.Array, plan: Plan) -> Rate:
    left = _left(t, plan.fall, plan.end - plan.constant)
    return _between(plan, jnp.square(jnp.sin(0.5 * math.pi * left)))


def _straight(t: jax.Array, plan: Plan) -> Rate:
    return _between(plan, _left(t, plan.fall, plan.end - plan.constant))


def _from_zero(then: Schedule) -> Schedule:
    """The warm-up of Megatron-LM and Hugging Face: 0 in the first step, the peak in step `warmup`."""

    def schedule(t: jax.Array, plan: Plan) -> Rate:
        rising = plan.peak * (t / plan.warmup) if plan.warmup else plan.peak
        return jnp.where(t <= plan.warmup, rising, then(t, plan))

    return schedule


def _maxtext(then: Schedule) -> Schedule:
    """MaxText's phases since January 2026 (maxtext_utils.py, create_learning_rate_schedule).

    The final rate is that of the schedule's last step, and what is trained behind the schedule has a rate of 0.
    """

    def schedule(t: jax.Array, plan: Plan) -> Rate:
        falling = then(t, plan._replace(end=plan.end - 1))
        rate = jnp.where(t < plan.warmup, plan.peak * (t / max(1, plan.warmup)), falling)
        return jnp.where(t < plan.end, rate, 0.0)

    return schedule


def _maxtext_straight(t: jax.Array, plan: Plan) -> Rate:
    """A decay of one step does not fall: optax.linear_schedule keeps its first value over no steps."""
    return (_straight if plan.fall < plan.end else _peak)(t, plan)


def _nemo(then: Schedule) -> Schedule:
    """The phases of NeMo's policies: the peak is one step later than elsewhere, and no step has a rate of 0."""

    def schedule(t: jax.Array, plan: Plan) -> Rate:
        falling = jnp.where(t > plan.end, plan.final, then(t, plan))
        rate = jnp.where(t < plan.fall, plan.peak, falling)
        return jnp.where(t <= plan.warmup, plan.peak * ((t + 1) / (plan.warmup + 1)), rate)

    return schedule


def _nemo_cosine(t: jax.Array, plan: Plan) -> Rate:
    """With constant steps at the end NeMo takes Megatron's formula, and its warm-up with it."""
    return (_from_zero if plan.constant else _nemo)(_half_cosine)(t, plan)


def _noam(t: jax.Array, plan: Plan) -> Rate:
    """arXiv 1706.03762, section 5.3; the final rate is a floor behind the warm-up."""
    t = jnp.maximum(t, 1)
    falling = plan.peak * plan.width**-0.5 / jnp.sqrt(t)
    rising = plan.peak * plan.width**-0.5 * max(1, plan.warmup) ** -1.5 * t
    return jnp.where(t > plan.warmup, jnp.maximum(falling, plan.final), jnp.minimum(falling, rising))


def _t5(t: jax.Array, plan: Plan) -> Rate:
    """1 / √t, constant in the first steps; it knows no peak."""
    return jnp.where(t > plan.end, plan.final, 1.0 / jnp.sqrt(jnp.maximum(t, max(1, plan.constant))))


def _noam_hold(t: jax.Array, plan: Plan) -> Rate:
    falling = plan.peak * (max(1, plan.warmup) / jnp.maximum(t - plan.hold, 1)) ** plan.power
    return jnp.maximum(falling, plan.final)


def _steps_down(t: jax.Array, plan: Plan) -> Rate:
    """Every interval the rate is multiplied by the factor; the final rate is a floor."""
    falls = jnp.maximum(t - plan.fall, 0) // plan.interval
    return jnp.maximum(plan.peak * _power(plan.factor, falls), plan.final)


def _power(base: float, exponent: jax.Array) -> jax.Array:
    """base ** exponent for whole numbers below 2³⁰, of which float32's own power loses most digits.

    The product of three powers that were rounded once each: one for each 10 bits of the exponent.
    """
    product = jnp.ones(jnp.shape(exponent), jnp.float32)
    for shift in (0, 10, 20):
        with np.errstate(over="ignore", under="ignore"):
            powers = (np.float64(base) ** (np.arange(1024.0) * 2**shift)).astype(np.float32)
        product *= jnp.asarray(powers)[(exponent >> shift) & 1023]
    return product


def _peak(t: jax.Array, plan: Plan) -> Rate:
    return jnp.full(jnp.shape(t), plan.peak, jnp.float32)


_polynomial = _nemo(lambda t, plan: _between(plan, _left(t, plan.fall, plan.end) ** plan.power))

# NeMo's, by their names there (NeMo 2.1, nemo/core/optim/lr_scheduler.py): from `nemo_cosine` on, `linear` apart.
SCHEDULES: dict[str, Schedule] = {
    "cosine": _from_zero(_half_cosine),
    "linear": _from_zero(_straight),
    "maxtext_cosine": _maxtext(_half_cosine),
    "maxtext_linear": _maxtext(_maxtext_straight),
    "constant": _from_zero(_peak),
    "nemo_cosine": _nemo_cosine,
    "warmup": _nemo(_peak),
    "warmup_hold": _nemo(_peak),
    "square": _nemo(lambda t, p: jnp.maximum(p.peak * jnp.square(_left(t, p.warmup, p.end)), p.final)),
    "square_root": _nemo(lambda t, p: jnp.maximum(p.peak * jnp.sqrt(_left(t, 0, p.end)), p.final)),
    "noam": _noam,
    "noam_hold": _nemo(_noam_hold),
    "warmup_annealing": _nemo(lambda t, p: _between(p, _left(t, p.warmup, p.end))),
    "inverse_square_root": _nemo(lambda t, p: p.peak * jnp.sqrt((p.warmup + 1) / (t + 1))),
    "t5_inverse_square_root": _t5,
    "polynomial": _polynomial,
    "polynomial_hold": _polynomial,
    "step": _from_zero(_steps_down),  # torch's StepLR and ExponentialLR, which have no warm-up
}


def learning_rate(step: jax.Array, spec: RunSpec) -> Rate:
    """The rate of step 0, 1, … of a run."""
    optimizer = spec.optimizer
    return _rate(step, spec, optimizer.learning_rate, optimizer.learning_rate * optimizer.final_learning_rate_fraction)


def embedding_rate(step: jax.Array, spec: RunSpec) -> Rate:
    """The rate of the embedding and the output head: another peak and another end, by the same schedule."""
    optimizer = spec.optimizer
    peak, final = optimizer.embedding_learning_rate, optimizer.embedding_final_learning_rate
    others_final = optimizer.learning_rate * optimizer.final_learning_rate_fraction
    return _rate(
        step, spec, optimizer.learning_rate if peak is None else peak, others_final if final is None else final
    )


def _rate(step: jax.Array, spec: RunSpec, peak: float, final: float) -> Rate:
    optimizer = spec.optimizer
    end = optimizer.decay_steps or spec.step_limit
    plan = Plan(
        peak=peak,
        final=final,
        warmup=optimizer.warmup_steps,
        hold=optimizer.hold_steps,
        constant=optimizer.constant_steps,
        end=end,
        power=optimizer.decay_power,
        width=spec.model.hidden_dim,
        factor=optimizer.decay_factor,
        interval=optimizer.decay_interval_steps or end,
    )
    return SCHEDULES[optimizer.schedule](step, plan)
