"""Scaling: several runs of one workload on 1…N devices, and what each device of the larger ones is worth.

*Weak* scaling keeps the batch per device, *strong* scaling the global batch; anything else is *mixed*. Efficiency is
tokens/s per device over that of the smallest size. It means something only between runs that differ in nothing else, so
others are refused, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Literal, NamedTuple

from seatrial.errors import InputError, Problem
from seatrial.estimate import hardware
from seatrial.estimate.hardware import TERA
from seatrial.metrics import Estimate, Performance, days_to_train
from seatrial.metrics.interval import ratio_of_intervals
from seatrial.report.figures import spelled, summary
from seatrial.report.gather import RunReport
from seatrial.spec import presets

Kind = Literal["weak", "strong", "mixed", "one size"]

SAME_BATCH = 1e-9  # relative


@dataclass(frozen=True, kw_only=True)
class Size:
    """The runs of one size: their median, and `low` to `high` of it, over all of their 95% intervals.

    `fastest_seconds` and `slowest_seconds` are the runs' own medians. `efficiency` and `speed_up` are against the
    smallest size, for which there is no `efficiency_low` and `efficiency_high`: it is 1 by definition.
    """

    runs: tuple[str, ...]
    num_devices: int
    num_nodes: int | None
    mesh: str
    tokens_per_step: int
    global_batch_size: int | None
    step_seconds: float
    low_seconds: float
    high_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    tokens_per_second_total: float
    tokens_per_second_per_device: float
    tflops_per_second_per_device: float | None
    mfu: float | None
    days_to_1t_tokens: float
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    speed_up: float
    speed_up_ideal: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The table of sizes, the smallest first; `same` names what all runs share, `unknown` what none of them reports."""

    kind: Kind
    reason: str
    same: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    sizes: tuple[Size, ...]


def measure_scaling(reports: Sequence[RunReport]) -> Scaling:
    """The scaling table of at least two judged runs.

    Raises InputError, naming runs and fields, for runs that cannot be compared or that prove nothing.
    """
    problems = [problem for report in reports for problem in _unfit(report)]
    if len(reports) < 2:
        problems.append(_problem("one-run", "runs", "scaling needs several runs", "name at least two run directories"))
    if problems:
        raise InputError(problems)
    names = _names(reports)
    answers = {field: [ask(report) for report in reports] for field, ask in _SAME.items()}
    if different := [_different(field, names, values) for field, values in answers.items() if len(set(values)) > 1]:
        raise InputError(different)
    found = (_run(report, name) for report, name in zip(reports, names, strict=True))
    runs = sorted(found, key=lambda run: (run.size, run.name))
    groups = [list(group) for _, group in groupby(runs, key=lambda run: run.size)]
    kind, reason = _kind(groups)
    return Scaling(
        kind=kind,
        reason=reason,
        same=tuple((field, values[0]) for field, values in answers.items() if values[0]),
        unknown=tuple(field for field, values in answers.items() if not values[0]),
        sizes=tuple(_size(group, groups[0]) for group in groups),
    )


# --- what makes runs comparable ---------------------------------------------------------------------------------------


def _unfit(report: RunReport) -> list[Problem]:
    """The reasons that a run proves nothing about speed, as findings."""
    reasons = [*_unfit_verdict(report), *_unfit_speed(report)]
    if report.verdict is None or report.metrics is None:
        reasons = [("it has no verdict", "judge it first: seatrial judge")]
    if report.rehearsal:
        why = f"it was a {report.rehearsal}, whose speed says nothing"
        reasons.append((why, "name runs on the devices themselves"))
    return [_problem("not-comparable", report.directory, why, fix) for why, fix in reasons]


def _unfit_verdict(report: RunReport) -> list[tuple[str, str]]:
    axes = [report.verdict.axes[axis] for axis in ("completion", "numerics")] if report.verdict else []
    reasons = []
    if report.spec is None and report.metrics and report.metrics.completion.planned_steps is None:
        axes = [axis for axis in axes if axis.status != "inconclusive"]  # nothing says how long it should have been
    for axis in axes:
        if axis.status not in ("pass", "not_applicable"):
            worst = summary(axis)
            words = "failed" if axis.status == "fail" else "is inconclusive"
            reasons.append((f"its {worst.axis} {words}: {worst.sentence}", "omit it, or run it again"))
    return reasons


def _unfit_speed(report: RunReport) -> list[tuple[str, str]]:
    performance = report.performance
    if performance is None:
        return []
    if not {"step_seconds", "tokens_per_second_per_device"} <= set(performance.estimates):
        missing = performance.unavailable.get("tokens_per_second_per_device", "the record does not give it")
        why = f"it has no throughput: {missing}"
    elif not performance.num_devices or not _tokens_per_step(report):
        why = "the log does not say on how many devices it was, or how many tokens a step has"
    else:
        return []
    return [(why, "judge it by its configuration, or omit it")]


def _tokens_per_step(report: RunReport) -> int | None:
    """The tokens of a step, as configured or as the log counts them in every step."""
    counted = {step.tokens for step in report.steps} if report.spec is None else set()
    return _performance(report).tokens_per_step or (counted.pop() if len(counted) == 1 else None)


def _model(report: RunReport) -> str:
    """Its dimensions under the preset's name, whatever it is called; without a configuration, its size."""
    if report.spec is None:
        count = next((start.num_parameters for start in report.started if start.num_parameters), None)
        return f"{count:,} parameters" if count else ""
    shape = presets.architecture(report.spec.model)
    for name in (report.spec.model.name, *presets.MODELS):
        if name in presets.MODELS and presets.architecture(presets.MODELS[name]) == shape:
            return name
    return ", ".join(f"{field} {value}" for field, value in shape.items() if value is not None)


def _precision(report: RunReport) -> str:
    if report.spec is None:
        return ""
    formats = dataclasses.asdict(report.spec.precision)
    if report.spec.precision.compute_dtype != "float16":  # nothing else scales its loss
        formats = {name: value for name, value in formats.items() if "loss_scale" not in name}
    return ", ".join(f"{name.removesuffix('_dtype')} {value}" for name, value in formats.items() if value)


def _performance(report: RunReport) -> Performance:
    assert report.performance is not None  # _unfit refuses a run without
    return report.performance


def _device(report: RunReport) -> str:
    device = _performance(report).device
    known = hardware.find(device)
    return known.name if known else device


def _policy(report: RunReport) -> str:
    times = _performance(report).step_times
    return times.policy if times else ""


def _trainer(report: RunReport) -> str:
    of_log = str(report.started[0].facts.get("family") or "") if report.started else ""
    return of_log or report.family or report.engine


# What has to be the same in all runs; "" means that a run does not say.
_SAME: dict[str, Callable[[RunReport], str]] = {
    "trainer": _trainer,
    "model": _model,
    "sequence length": lambda report: f"{report.spec.batch.sequence_length:,}" if report.spec else "",
    "precision": _precision,
    "FLOPs convention": lambda report: spelled(_performance(report).convention),
    "device": _device,
    "policy": _policy,
}


def _different(field: str, names: Sequence[str], values: Sequence[str]) -> Problem:
    said = {value: [n for n, v in zip(names, values, strict=True) if v == value] for value in dict.fromkeys(values)}
    each = "; ".join(f"{value or 'not reported'} in {', '.join(runs)}" for value, runs in said.items())
    why = f"the runs differ in it: {each}"
    return _problem("not-comparable", field, why, "compare only runs that differ in nothing but their size")


def _problem(code: str, path: str, why: str, fix: str) -> Problem:
    return Problem(severity="error", code=code, path=path, why=why, fix=fix)


# --- figures ----------------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    name: str
    size: tuple[int, int]  # devices, tokens per step
    step: Estimate
    report: RunReport


def _names(reports: Sequence[RunReport]) -> list[str]:
    """The directories' names; numbered where several are called the same."""
    names = [report.directory for report in reports]
    return [name if names.count(name) == 1 else f"{name} ({n})" for n, name in enumerate(names, 1)]


def _run(report: RunReport, name: str) -> _Run:
    performance, tokens = _performance(report), _tokens_per_step(report)
    assert performance.num_devices is not None  # _unfit refuses a run without
    assert tokens is not None
    return _Run(name, (performance.num_devices, tokens), performance.estimates["step_seconds"], report)


def _kind(groups: Sequence[Sequence[_Run]]) -> tuple[Kind, str]:
    sizes = [group[0].size for group in groups]
    per_device = [tokens / devices for devices, tokens in sizes]
    if len({devices for devices, _ in sizes}) == 1:
        return "one size", "All runs have the same number of devices."
    if max(per_device) - min(per_device) <= SAME_BATCH * per_device[0]:
        return "weak", f"Every run has {per_device[0]:,.6g} tokens per device and step."
    if len({tokens for _, tokens in sizes}) == 1:
        return "strong", f"Every run has {sizes[0][1]:,} tokens per step."
    shown = ", ".join(f"{tokens:,} on {devices:,}" for devices, tokens in sizes)
    return "mixed", f"Neither the batch nor the batch per device is constant (tokens per step on devices): {shown}."


def _size(group: Sequence[_Run], smallest: Sequence[_Run]) -> Size:
    """The figures of one size; all rates are those of the median step time."""
    report, (num_devices, tokens_per_step) = group[0].report, group[0].size
    performance = _performance(report)
    seconds = median(run.step.value for run in group)
    total = tokens_per_step / seconds
    flops = performance.flops_per_token * total / num_devices if performance.flops_per_token else None
    efficiency, low, high = _efficiency(group, smallest)
    first_devices, first_tokens = smallest[0].size
    return Size(
        runs=tuple(run.name for run in group),
        num_devices=num_devices,
        num_nodes=report.spec.topology.num_nodes if report.spec else None,
        mesh=_mesh(group),
        tokens_per_step=tokens_per_step,
        global_batch_size=report.spec.batch.global_batch_size if report.spec else None,
        step_seconds=seconds,
        low_seconds=min(run.step.low for run in group),
        high_seconds=max(run.step.high for run in group),
        fastest_seconds=min(run.step.value for run in group),
        slowest_seconds=max(run.step.value for run in group),
        tokens_per_second_total=total,
        tokens_per_second_per_device=total / num_devices,
        tflops_per_second_per_device=flops / TERA if flops else None,
        mfu=flops / performance.peak.flops_per_second if flops and performance.peak else None,
        days_to_1t_tokens=days_to_train(tokens=1e12, tokens_per_second=total),
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        speed_up=total / (first_tokens / median(run.step.value for run in smallest)),
        speed_up_ideal=num_devices / first_devices,
    )


def _efficiency(group: Sequence[_Run], smallest: Sequence[_Run]) -> tuple[float, float | None, float | None]:
    """(tokens/s per device over the smallest size's, its 95% interval).

    Of several runs of a size, the interval reaches from the lowest to the highest bound of any of them.
    """

    def per_device(runs: Sequence[_Run]) -> tuple[float, float, float]:
        work = runs[0].size[1] / runs[0].size[0]
        slow, fast = max(run.step.high for run in runs), min(run.step.low for run in runs)
        return work / median(run.step.value for run in runs), work / slow, work / fast

    if group[0].size == smallest[0].size:
        return 1.0, None, None
    ratio = ratio_of_intervals(per_device(smallest), per_device(group))
    return ratio.value, ratio.low, ratio.high


def _mesh(group: Sequence[_Run]) -> str:
    """The mesh axes that are not 1, as the recipe's tables name them; "" where runs of one size differ, or say none."""
    meshes = (run.report.spec.mesh if run.report.spec else {} for run in group)
    found = {", ".join(f"{axis} {size}" for axis, size in mesh.items() if size != 1) for mesh in meshes}
    return found.pop() if len(found) == 1 else ""
