"""Findings about an NxDT file: keys that are not supported, contradictions, and NxDT's own deviations."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.optimizer import SCHED
from seatrial.dialects.nxdt.precision import MANUAL, SWITCHES
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.dialects.table.settings import Finding, listed
from seatrial.errors import Severity
from seatrial.spec import RunSpec

PAGE = "docs/reference/nxdt.md"
CHECKED = (f"{SCHED}.max_steps", f"{SCHED}.d_model")  # keys without effect that are compared with what runs


def refused(settings: Settings) -> None:
    """One error for each reason why keys are not supported."""
    for why, names in settings.by_reason("rejected").items():
        also = f" (and {listed(names[1:])})" if names[1:] else ""
        quiet = [value for value in settings.keys[names[0]].quiet if value is not None]
        or_say = f", or give {names[0].rpartition('.')[2]}: {coerce.shown(quiet[0])}" if quiet else ""
        shown = coerce.shown(settings.entries[names[0]].value)
        settings.add(names[0], "error", "not-possible", f"{shown} is not supported{also}: {why}", f"remove it{or_say}")


def own(settings: Settings) -> None:
    """One note on the keys that are the user's own."""
    if settings.own:
        first, *_ = settings.own.values()
        which, it = ("a key", "it") if len(settings.own) == 1 else (f"{len(settings.own)} keys", "them")
        why = f"{which} of your own ({listed(settings.own)}): NxDT hands {it} to your code, and nothing here reads {it}"
        settings.problems.append(first.key_problem("info", "own-key", why, NO_CHANGE))


def about(settings: Settings, spec: RunSpec) -> None:
    """Adds findings: what is accepted but hardly meant, what NxDT does otherwise, what the file's sizes come to."""
    for rule in (_constant_steps, _contradictions, _copies, _deviations, _mesh):
        for finding in rule(settings, spec):
            settings.add(*finding)


def _constant_steps(settings: Settings, spec: RunSpec) -> Iterator[Finding]:
    """NeMo's cosine has no room left where the constant end is longer than what follows the warm-up."""
    optimizer = spec.optimizer
    rest = spec.step_limit - optimizer.warmup_steps
    if optimizer.schedule == "nemo_cosine" and optimizer.constant_steps >= rest > 0:
        lowest = optimizer.learning_rate * optimizer.final_learning_rate_fraction
        key = f"{SCHED}.constant_steps" if f"{SCHED}.constant_steps" in settings.values else f"{SCHED}.constant_ratio"
        why = (
            f"{optimizer.constant_steps} steps at the lowest rate leave none for the decay: of {spec.steps} steps, "
            f"{optimizer.warmup_steps} are warm-up, so the rate drops from {optimizer.learning_rate:g} to {lowest:g} "
            "right after it and stays there"
        )
        yield key, "warning", "no-decay", why, f"give fewer than {rest}, or 0 for a decay over the whole run"


def _contradictions(settings: Settings, spec: RunSpec) -> Iterator[Finding]:
    """Keys that say something else than what runs."""
    given, kind = settings.get(f"{SCHED}.max_steps"), settings.get("precision.type")
    if given not in (None, -1, spec.steps) and spec.steps is not None:
        why = f"the schedule is to have {given} steps, but trainer.max_steps decides, as in NxDT: {spec.steps}"
        yield f"{SCHED}.max_steps", "warning", "contradiction", why, "write ${trainer.max_steps}, or remove it"
    switches = [f"precision.{name}" for name in SWITCHES if settings.get(f"precision.{name}")]
    if switches and kind not in (None, MANUAL):
        why = f"{listed(switches)} is read only where type is manual, and it is {kind}"
        yield switches[0], "warning", "no-effect", why, "give precision.type: manual, or remove it"
    for name, value in settings.values.items():
        row = settings.keys[name]
        if row.effective is not None and row.effective(spec) != value:
            why = f"it says {value}, but what runs is {row.effective(spec)}: {row.why}"
            yield name, "warning", "contradiction", why, "correct or remove it"
    if "mixtral" in settings.get("name", "").lower() and settings.get("model_source") == "hf":
        why = "to NxDT, a name with mixtral in it means a Mixtral model; here the model decides, which is a Llama"
        yield "name", "warning", "contradiction", why, "rename it"


def _copies(settings: Settings, spec: RunSpec) -> Iterator[Finding]:
    """NxDT's own condition on copies of key/value heads."""
    key = "distributed_strategy.kv_replicator"
    copies, tensor, heads = settings.get(key), spec.mesh["tensor"], spec.model.num_kv_heads
    if copies is not None and heads * copies % tensor:
        why = (
            f"{heads} key/value heads × {copies} copies cannot be split over tensor_model_parallel_size {tensor}, so "
            "NxDT would not start; here each device gets the heads that it needs"
        )
        fix = "choose another tensor_model_parallel_size" if tensor % heads else f"give {tensor // heads}"
        yield key, "warning", "not-divisible", why, fix


def _deviations(settings: Settings, spec: RunSpec) -> Iterator[Finding]:
    """Findings about NxDT doing something other than documented: one for numbers, one for the rest."""
    kinds: tuple[tuple[bool, Severity, str], ...] = (
        (True, "warning", "computes something else than documented, and than here"),
        (False, "info", "differs from its documentation"),
    )
    for numbers, severity, what in kinds:
        found = [d for d in DEVIATIONS if d.touches and d.numbers is numbers and d.touches(settings, spec)]
        if found:
            why = f"NxDT {what}: " + "; ".join(f"{d.key.rpartition('.')[2]}: {d.actual}" for d in found)
            key = next((d.key for d in found if d.key in settings.entries), found[0].key)
            yield key, severity, "documented-otherwise", why, f"no change is needed; {PAGE} says what happens here"


def _mesh(settings: Settings, spec: RunSpec) -> Iterator[Finding]:
    """A finding about what the sizes in the file come to: replicas and micro-batches, which the file never gives."""
    topology, batch, sizes, replicas = spec.topology, spec.batch, spec.mesh, spec.data_parallel_size
    if topology.num_devices % replicas or batch.global_batch_size % (batch.micro_batch_size * replicas):
        return  # an error of its own
    axes = f"tensor {sizes['tensor']} × pipeline {sizes['pipeline']} × context {sizes['context']} × data {replicas}"
    why = (
        f"{topology.num_nodes} × {topology.devices_per_node} devices make {axes}; {batch.global_batch_size} sequences "
        f"a step are {replicas} replica{'s' * (replicas > 1)} × {spec.accumulation_steps} micro-batches of "
        f"{batch.micro_batch_size}"
    )
    yield "trainer.devices", "info", "derived", why, NO_CHANGE
