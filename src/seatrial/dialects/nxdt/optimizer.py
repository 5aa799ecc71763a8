"""NxDT's `model.optim`: the optimizers of torch, NxD and NeMo, and NeMo's schedules, by their names and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.spec import Algorithm, Optimizer, ScheduleKind, gather_part

OPTIM, SCHED = "model.optim", "model.optim.sched"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer: its name in the spec, its own defaults, and the arguments that its class takes beside them."""

    algorithm: Algorithm
    epsilon: float | None = 1e-8
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    more: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Every argument of its class, `name` and `sched` aside."""
        eps = ("eps",) if self.epsilon is not None else ()
        return ("lr", "weight_decay", *eps, *(("betas",) if self.betas else ()), *self.more)


_ADAM = (0.9, 0.999)
_TORCH = ("foreach", "maximize", "differentiable", "capturable")
# Defaults: torch.optim, neuronx_distributed's AdamW_FP32OptimParams, NeMo 2.1's Novograd and Adafactor.
OPTIMIZERS: dict[str, Rule] = {
    "adamw": Rule(algorithm="adamw", weight_decay=0.01, betas=_ADAM, more=("amsgrad", "fused", *_TORCH)),
    "adamw_fp32OptState": Rule(
        algorithm="adamw_fp32", epsilon=1e-6, betas=_ADAM, more=("correct_bias", "capturable")
    ),
    "adam": Rule(algorithm="adam", betas=_ADAM, more=("amsgrad", "fused", *_TORCH)),
    "sgd": Rule(algorithm="sgd", epsilon=None, more=("momentum", "dampening", "nesterov", "fused", *_TORCH[:3])),
    "adadelta": Rule(algorithm="adadelta", epsilon=1e-6, more=("rho", *_TORCH)),
    "adamax": Rule(algorithm="adamax", betas=_ADAM, more=_TORCH),
    "adagrad": Rule(
        algorithm="adagrad", epsilon=1e-10, more=("lr_decay", "initial_accumulator_value", "fused", *_TORCH[:3])
    ),
    "rmsprop": Rule(algorithm="rmsprop", more=("alpha", "momentum", "centered", *_TORCH)),
    "rprop": Rule(algorithm="rprop", epsilon=None, more=("etas", "step_sizes", *_TORCH)),
    "novograd": Rule(
        algorithm="novograd", betas=(0.95, 0.98),
        more=("amsgrad", "grad_averaging", "luc", "luc_trust", "luc_eps"),
    ),
    "adafactor": Rule(
        algorithm="adafactor", epsilon=None,
        more=("clip_threshold", "decay_rate", "beta1", "scale_parameter", "relative_step", "warmup_init", "min_step"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule: its name in the spec, its default for min_lr (None: it takes none), and its other arguments."""

    kind: ScheduleKind
    min_lr: float | None = 0.0
    more: tuple[str, ...] = ()
    power: float = 1.0
    warms: bool = True  # whether it begins with a warm-up
    required: tuple[str, ...] = ()  # arguments without a default

    @property
    def arguments(self) -> tuple[str, ...]:
        """Every argument beside those of ALWAYS."""
        lowest = ("min_lr",) if self.min_lr is not None else ()
        return (*(_WARMUP if self.warms else ()), *lowest, *self.more)


_WARMUP = ("warmup_steps", "warmup_ratio")


_HOLD = ("hold_steps", "hold_ratio")
_CONSTANT = ("constant_steps", "constant_ratio")
SCHEDULES: dict[str, Schedule] = {
    "LinearAnnealingWithWarmUp": Schedule(kind="linear", min_lr=None),
    "CosineAnnealing": Schedule(kind="nemo_cosine", more=_CONSTANT),
    "WarmupPolicy": Schedule(kind="warmup"),
    "WarmupHoldPolicy": Schedule(kind="warmup_hold", more=_HOLD),
    "SquareAnnealing": Schedule(kind="square", min_lr=1e-5),
    "SquareRootAnnealing": Schedule(kind="square_root"),
    "NoamAnnealing": Schedule(kind="noam", more=("d_model",)),
    "NoamHoldAnnealing": Schedule(kind="noam_hold", more=("decay_rate", *_HOLD), power=0.5),
    "WarmupAnnealing": Schedule(kind="warmup_annealing"),
    "InverseSquareRootAnnealing": Schedule(kind="inverse_square_root"),
    "T5InverseSquareRootAnnealing": Schedule(kind="t5_inverse_square_root", more=_CONSTANT),
    "PolynomialDecayAnnealing": Schedule(kind="polynomial", more=("power", "cycle")),
    "PolynomialHoldDecayAnnealing": Schedule(kind="polynomial_hold", more=("power", "cycle", *_HOLD)),
    # torch's own: the first falls every so many steps, the second once an epoch.
    "StepLR": Schedule(kind="step", min_lr=None, more=("step_size", "gamma"), warms=False, required=("step_size",)),
    "ExponentialLR": Schedule(kind="step", min_lr=None, more=("gamma",), warms=False, required=("gamma",)),
}
REFUSED = {
    "rprop": "rprop is an optimizer (model.optim.name); NxDT's documentation lists it among the schedules by mistake",
    "CyclicLR": "a rate that rises again is not supported",
    "ReduceLROnPlateau": "it depends on the validation loss, and a rate here on the step alone",
}

# Arguments of every schedule.
ALWAYS = ("name", "max_steps", "last_epoch", "monitor", "reduce_on_plateau")
ALGORITHMS = {rule.algorithm: name for name, rule in OPTIMIZERS.items()}
_KINDS: dict[str, str] = {
    "cosine": "CosineAnnealing", "maxtext_cosine": "CosineAnnealing", "maxtext_linear": "LinearAnnealingWithWarmUp",
    **{schedule.kind: name for name, schedule in SCHEDULES.items()},
}  # fmt: skip


def schedule_name(optimizer: Optimizer) -> str | None:
    """NeMo's name of a run's schedule; None where it has none, which is a constant rate."""
    falls_by_steps = optimizer.schedule == "step" and optimizer.decay_interval_steps is not None
    return "StepLR" if falls_by_steps else _KINDS.get(optimizer.schedule)


def optimizer(settings: Settings, placed: Mapping[str, Any], steps: int | None, hidden_dim: int) -> Optimizer | None:
    """The optimizer and its schedule over so many steps (None: the data decide); None where there is none to be had."""
    rate = settings.get(f"{OPTIM}.lr")
    rule = _rule(settings)
    if rule is None or rate is None:
        return None
    beta1, beta2 = settings.get(f"{OPTIM}.betas", rule.betas or _ADAM)
    second = {"rmsprop": ("alpha", 0.99), "adadelta": ("rho", 0.9)}.get(rule.algorithm)
    schedule = _schedule(settings)
    if schedule is not None and schedule.kind == "noam" and settings.get(f"{SCHED}.d_model", hidden_dim) != hidden_dim:
        settings.add(
            f"{SCHED}.d_model", "error", "contradiction",
            f"the rate is scaled by the model's width, {hidden_dim}, and by no other number",
            "remove it, and scale lr by the square root of the width over it",
        )  # fmt: skip
    power = schedule.power if schedule else 1.0
    return gather_part(
        Optimizer, "optimizer", placed,
        algorithm=rule.algorithm,
        schedule=schedule.kind if schedule else "constant",
        **{f"{part}_steps": _steps(settings, part, steps) for part in ("warmup", "hold", "constant")},
        final_learning_rate_fraction=_final(settings, schedule, rate),
        decay_power=settings.get(f"{SCHED}.power", settings.get(f"{SCHED}.decay_rate", power)),
        decay_factor=settings.get(f"{SCHED}.gamma", Optimizer().decay_factor),
        decay_interval_steps=settings.get(f"{SCHED}.step_size"),
        beta1=beta1,
        beta2=settings.get(f"{OPTIM}.{second[0]}", second[1]) if second else beta2,
        epsilon=rule.epsilon or 1e-8,
        weight_decay=rule.weight_decay,
    )  # fmt: skip


def _rule(settings: Settings) -> Rule | None:
    """The optimizer by its name; arguments that its class does not take are errors, as they are in torch."""
    name = settings.get(f"{OPTIM}.name")
    if not name:
        return None
    rule = OPTIMIZERS.get(name)
    if rule is None:
        why = f"{coerce.shown(name)} is no optimizer here; there is {', '.join(OPTIMIZERS)}"
        settings.add(f"{OPTIM}.name", "error", "unknown-optimizer", why, did_you_mean(name, OPTIMIZERS))
        return None
    _refuse(settings, OPTIM, (*rule.arguments, "name"), f"the optimizer {name} has no such argument")
    return rule


def _schedule(settings: Settings) -> Schedule | None:
    """The schedule by its name; without one, the rate is constant."""
    name = settings.get(f"{SCHED}.name")
    if name is None:
        if any(settings.has(f"{SCHED}.{argument}") for argument in ("warmup_steps", "min_lr", "max_steps", "gamma")):
            settings.missing(f"{SCHED}.name", "a schedule has to have a name")
        return None
    schedule = SCHEDULES.get(name)
    if schedule is None:
        known = f"give one of {', '.join(SCHEDULES)}"
        why = REFUSED.get(name, f"{coerce.shown(name)} is no schedule here")
        fix = known if name in REFUSED else did_you_mean(name, SCHEDULES, otherwise=known)
        settings.add(f"{SCHED}.name", "error", "unknown-schedule", why, fix)
        return None
    _refuse(settings, SCHED, (*ALWAYS, *schedule.arguments), f"the schedule {name} has no such argument")
    for argument in schedule.required:
        settings.missing(f"{SCHED}.{argument}", f"the schedule {name} needs it")
    return schedule


def _refuse(settings: Settings, section: str, arguments: tuple[str, ...], why: str) -> None:
    for name in settings.entries:
        parent, _, argument = name.rpartition(".")
        if parent == section and argument not in arguments:
            fix = did_you_mean(argument, arguments, otherwise=f"remove it; there is {', '.join(arguments)}")
            settings.problems.append(settings.entries[name].key_problem("error", "unknown-argument", why, fix))


def _steps(settings: Settings, part: str, steps: int | None) -> int:
    """A part of a schedule in steps, given as such or as a share of the run."""
    share = f"{SCHED}.{part}_ratio"
    number, ratio = settings.get(f"{SCHED}.{part}_steps"), settings.get(share)
    if number is not None and ratio is not None:
        why = f"{part}_steps and {part}_ratio say the same thing twice, which NeMo refuses"
        settings.add(share, "error", "contradiction", why, "keep one of the two")
    if ratio and steps is None and not settings.wrong("trainer.max_steps"):
        why = "it is a share of trainer.max_steps, which is not given"
        settings.add(share, "error", "steps-unknown", why, f"give {part}_steps, or trainer.max_steps=…")
    return number if number is not None else int((ratio or 0.0) * (steps or 1))


def _final(settings: Settings, schedule: Schedule | None, rate: float) -> float:
    """The lowest rate as a fraction of the highest."""
    if schedule is None:
        return Optimizer().final_learning_rate_fraction
    lowest = settings.get(f"{SCHED}.min_lr")
    lowest = (schedule.min_lr or 0.0) if lowest is None else lowest
    if lowest > rate:
        why = f"the lowest rate, {lowest:g}, is above the highest, {rate:g}"
        settings.add(f"{SCHED}.min_lr", "error", "contradiction", why, f"give min_lr: a number up to {rate:g}")
        return 1.0
    return coerce.fraction_of(lowest, rate)
