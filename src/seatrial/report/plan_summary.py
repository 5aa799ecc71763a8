"""A planned run on one screen: model, mesh, batch, memory, expected speed, targets, and what would be started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from seatrial.console import inert, plural, short_number, table
from seatrial.engines import engine as engine_called
from seatrial.errors import some
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.flops import num_parameters
from seatrial.estimate.time_profile import Profile
from seatrial.plan import Plan
from seatrial.report.expected import MOST_OF_IT, expected_lines
from seatrial.spec import AXES, METRICS, Expectation, RunSpec
from seatrial.verdict import show

NAMED_HOSTS = 4


def summary(
    asked: RunSpec, plan: Plan | None, missing: str, engine: str,
    profile: Profile | None = None, compiled: Compiled | None = None,
) -> str:  # fmt: skip
    """The planned run in a few rows; `missing` says why there is no plan.

    `profile` is that of a measured device, `compiled` the run's step, if it was compiled.
    """
    rehearses = plan is not None and plan.rehearsal is not None
    estimates = expected_lines(asked, engine, profile, compiled=compiled, in_full=False)
    if rehearses:  # whose step has other parts
        estimates = [row for row in estimates if row[0] != MOST_OF_IT]
    rows = [*_asked(asked, estimates), *(_started(plan) if plan else [("starts", f"nothing: {missing}")])]
    return f"{inert(asked.name)}\n\n{table(rows, whole=(0,))}"


def _asked(spec: RunSpec, estimates: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Rows on the training that the configuration asks for, and the estimates of it."""
    model, batch = spec.model, spec.batch
    parameters = short_number(num_parameters(model))
    layers = f"{plural(model.num_layers, 'layer')} of {model.hidden_dim:,}"
    yield "model", f"{model.name}: {parameters} parameters in {layers}"
    where = f"{plural(spec.topology.num_nodes, 'node')} × {plural(spec.topology.devices_per_node, 'device')}"
    yield "mesh", f"{_mesh(spec)}; {where} ({spec.topology.device or 'of any kind'})"
    accumulation = f" in {spec.accumulation_steps} micro batches" if spec.accumulation_steps > 1 else ""
    sequences = f"{batch.global_batch_size:,} sequences of {batch.sequence_length:,}{accumulation}"
    yield "batch", f"{sequences}: {_length(spec)}"
    quantized = f", {spec.precision.quantization}" if spec.precision.quantization else ""
    yield "precision", f"{spec.precision.compute_dtype}{quantized}, weights in {spec.precision.params_dtype}"
    yield "data", f"{spec.data.kind}, for {spec.objective.kind}"
    for name, value, why in estimates:
        brief = re.split("[;:]|, which", why)[0]
        yield name, f"{value}; {brief}" if brief else value
    if spec.expectations:
        yield "targets", ", ".join(_target(each) for each in spec.expectations)


def _length(spec: RunSpec) -> str:
    return f"{spec.tokens_per_step:,} tokens a step, {spec.step_limit:,} steps"


def _target(expectation: Expectation) -> str:
    kind = METRICS[expectation.metric]
    return f"{kind.title} {show(expectation.value, kind.unit)}"


def _mesh(spec: RunSpec) -> str:
    split = [f"{axis} {spec.mesh[axis]}" for axis in AXES if spec.mesh[axis] > 1]
    return " × ".join(split) or "nothing is split"


def _where(plan: Plan) -> str:
    hosts = [host.name for host in plan.hosts]
    if plan.on == "local":
        return "on this machine"
    if plan.on == "slurm":  # which allots them
        return f"as a Slurm job on {plural(len(hosts), 'node')}"
    if plan.on == "kubernetes":
        return f"on Kubernetes as a JobSet of {plural(len(hosts), 'pod')}"
    return f"by SSH on {some(hosts, NAMED_HOSTS)}"


def _started(plan: Plan) -> Iterator[tuple[str, str]]:
    """Rows on what would start: a rehearsal's changes in short, the processes, and notes."""
    if plan.rehearsal:
        spec = plan.spec
        kind = "collapsed" if plan.rehearsal.collapsed else "rehearsal"
        size = f"{short_number(num_parameters(spec.model))} parameters, {_mesh(spec)}"
        values = f"{plural(len(plan.rehearsal.changes), 'value')} changed"
        yield kind, f"{size}, {_length(spec)}; {values}"
    processes = plural(len(plan.processes), "process")
    yield "starts", f"{processes} of {engine_called(plan.engine).TITLE} {_where(plan)}"
    for note in plan.notes:
        yield "note", note
