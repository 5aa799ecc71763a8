"""Steps: learning rate, evaluations and checkpoints fit into the length of the run."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem

MOST_LEARNING_RATE = 0.1  # of the Adam family, whose steps are as long as the rate: weights begin at 0.02
JUDGED_STEPS = 10  # that a target for speed needs at least, after the warm-up


def length_is_known(finder: Finder) -> Iterator[Problem]:
    """The run has a length: a number of steps, or of epochs of data that has them."""
    spec = finder.spec
    if spec.steps is not None:
        return
    why = ""
    if spec.epochs is None:
        why = "neither steps nor epochs say how long the run is"
    elif spec.data.kind == "megatron":
        why = "the samples of .bin and .idx files are counted out for a number of steps, and none is given"
    elif spec.data.weights:
        why = "data in shares are counted out for a number of steps, and none is given"
    if why:
        yield finder.at("steps", "error", "steps-unknown", why, f"give the number of steps ({finder.key('steps')})")


def warmup_ends(finder: Finder) -> Iterator[Problem]:
    """The warm-up ends before the run does."""
    spec = finder.spec
    if spec.optimizer.warmup_steps >= spec.step_limit > 1:
        yield finder.at(
            "optimizer.warmup_steps", "warning", "endless-warm-up",
            f"the learning rate is still rising when the run ends after {spec.steps} steps",
            "warm up for fewer steps, or train for more",
        )  # fmt: skip


def schedule_has_room(finder: Finder) -> Iterator[Problem]:
    """The schedule's parts fit into its length."""
    optimizer, steps = finder.spec.optimizer, finder.spec.step_limit
    length = optimizer.decay_steps or steps
    rest = length - optimizer.warmup_steps
    if optimizer.decay_steps and optimizer.decay_steps <= optimizer.warmup_steps:
        yield finder.at(
            "optimizer.decay_steps", "warning", "no-decay",
            f"the schedule ends after {optimizer.decay_steps} steps, within the warm-up of {optimizer.warmup_steps}",
            "make it longer than the warm-up",
        )  # fmt: skip
    elif optimizer.constant_steps >= rest > 0 and optimizer.constant_steps:
        yield finder.at(
            "optimizer.constant_steps", "warning", "no-decay",
            f"{optimizer.constant_steps} steps at the final rate leave none for the decay: after the warm-up there "
            f"are {rest}, so the rate drops at once and stays there",
            f"give fewer than {rest}, or 0 for a decay over the whole run",
        )  # fmt: skip
    elif optimizer.hold_steps >= rest > 0 and optimizer.hold_steps and optimizer.schedule != "warmup_hold":
        yield finder.at(
            "optimizer.hold_steps", "warning", "no-decay",
            f"{optimizer.hold_steps} steps at the full rate leave none of the {rest} after the warm-up for the decay",
            f"give fewer than {rest}",
        )  # fmt: skip


def rate_falls(finder: Finder) -> Iterator[Problem]:
    """A learning rate that is to fall in steps has time to."""
    optimizer, steps = finder.spec.optimizer, finder.spec.step_limit
    if optimizer.schedule != "step":
        return
    interval = optimizer.decay_interval_steps
    if interval and interval >= steps:
        yield finder.at(
            "optimizer.decay_interval_steps", "warning", "no-decay",
            f"the learning rate falls every {interval} steps, and the run ends after {steps}: it never does",
            f"give fewer than {steps}",
        )  # fmt: skip
    elif interval is None and finder.spec.data.kind == "synthetic":
        yield finder.at(
            "optimizer.schedule", "warning", "no-decay",
            "the learning rate falls after each epoch, and random data has no end: it never does",
            "give optimizer.decay_interval_steps",
        )  # fmt: skip


def optimizer_is_stable(finder: Finder) -> Iterator[Problem]:
    """The optimizer's numbers let it converge."""
    optimizer = finder.spec.optimizer
    adam = optimizer.algorithm.startswith("adam")
    if adam and optimizer.learning_rate > MOST_LEARNING_RATE:
        yield finder.at(
            "optimizer.learning_rate", "warning", "learning-rate",
            f"each step of {optimizer.algorithm} changes a weight by about {optimizer.learning_rate:g}, and weights "
            "begin at about 0.02: the loss will diverge", "use 1e-5 to 1e-3",
        )  # fmt: skip
    for name in ("beta1", "beta2"):
        if adam and getattr(optimizer, name) >= 1:
            why = "with 1, Adam's bias correction divides by 0"
            yield finder.at(f"optimizer.{name}", "error", "bad-value", why, "use less than 1: 0.9, 0.95 or 0.999")
    if optimizer.clip_norm is not None and optimizer.clip_norm < 1e-3:
        why = f"gradients clipped to a norm of {optimizer.clip_norm:g} hardly train anything"
        yield finder.at("optimizer.clip_norm", "warning", "clip-norm", why, "use 1.0, or null for no clipping")


def intervals_are_reached(finder: Finder) -> Iterator[Problem]:
    """Every interval ends within the run."""
    spec = finder.spec
    for path, interval, what in (
        ("evaluation.interval_steps", spec.evaluation.interval_steps, "the validation loss is never measured"),
        ("checkpoint.interval_steps", spec.checkpoint.enabled and spec.checkpoint.interval_steps,
         "there is no checkpoint before the end"),
        ("logging.interval_steps", spec.logging.interval_steps, "no step is logged"),
        ("execution.profile_from_step", spec.execution.profile_from_step, "the profile is never taken"),
    ):  # fmt: skip
        if interval and interval > spec.step_limit:
            why = f"{what}: the run ends after {spec.steps} steps, before {interval}"
            yield finder.at(path, "warning", "never-reached", why, f"give {spec.steps} or fewer, or train for longer")
    best = spec.checkpoint.keep_best
    if spec.checkpoint.enabled and best and best.startswith("val") and not spec.evaluation.is_on:
        why = f"checkpoints are kept by {best}, which is never measured: no interval of evaluation is given"
        fix = "give an interval of evaluation, or keep the newest"
        yield finder.at("checkpoint.keep_best", "warning", "never-reached", why, fix)


def something_to_resume(finder: Finder) -> Iterator[Problem]:
    """A run that must go on from a checkpoint can find one: each run directory is a new one."""
    asked = finder.spec.checkpoint
    if asked.resume and asked.resume_required and asked.directory is None and asked.resume_from is None:
        is_new = finder.needs.cluster and finder.needs.trainer  # `run` begins a directory; `train` may go on in one
        yield finder.at(
            "checkpoint.resume_required", "error" if is_new else "warning", "nothing-to-resume",
            "the run will stop: it has to go on from a checkpoint, and a new run directory holds none",
            f"say where the checkpoints are ({finder.key('checkpoint.directory')}), or let the run start from scratch "
            f"({finder.key('checkpoint.resume_required')})",
        )  # fmt: skip


def enough_steps_to_judge(finder: Finder) -> Iterator[Problem]:
    """A run with targets for its speed has enough steps to be judged by them."""
    spec = finder.spec
    if spec.expectations and spec.step_limit < JUDGED_STEPS:
        yield finder.at(
            "steps", "warning", "too-few-steps",
            f"{spec.steps} steps are too few to judge the speed: at least {JUDGED_STEPS} must count after the warm-up, "
            "so the verdict will be inconclusive", f"train for {2 * JUDGED_STEPS} steps or more",
        )  # fmt: skip
