"""What an NxDT file says beside what runs: what has no effect, what cannot be, and its traps; few and grouped."""

from __future__ import annotations

from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.optimizer import S
from seatrial.dialects.nxdt.precision import MANUAL, SWITCHES
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.settings import listed
from seatrial.spec import RunSpec

PAGE = "docs/reference/nxdt.md"


def refused(settings: Settings) -> None:
    """One error for each reason why keys are not supported."""
    for why, names in settings.by_reason("rejected").items():
        also = f" (and {listed(names[1:])})" if names[1:] else ""
        quiet = [value for value in settings.keys[names[0]].quiet if value is not None]
        or_say = f", or give {names[0].rpartition('.')[2]}: {coerce.shown(quiet[0])}" if quiet else ""
        shown = coerce.shown(settings.entries[names[0]].value)
        settings.add(names[0], "error", "not-possible", f"{shown} is not supported{also}: {why}", f"remove it{or_say}")


SPOKEN_OF = (f"{S}.max_steps", f"{S}.d_model")  # said elsewhere, where they differ from what runs


def about(settings: Settings, spec: RunSpec) -> None:
    """What is accepted, but hardly meant; what NxDT does otherwise; and what the sizes in the file come to."""
    _traps(settings, spec)
    _deviations(settings, spec)
    _mesh(settings, spec)


def _traps(settings: Settings, spec: RunSpec) -> None:
    _constant_steps(settings, spec)
    given = settings.get(f"{S}.max_steps")
    if given is not None and given != spec.steps:
        settings.add(
            f"{S}.max_steps", "warning", "contradiction",
            f"the schedule is to have {given} steps, but trainer.max_steps decides, as in NxDT: {spec.steps}",
            "write ${trainer.max_steps}, or remove it",
        )  # fmt: skip
    _manual_precision(settings)
    _copies(settings, spec)
    for name, value in settings.values.items():
        row = settings.keys[name]
        effective = row.effective
        if effective is not None and effective(spec) != value:
            settings.add(
                name, "warning", "contradiction",
                f"it says {value}, but what runs is {effective(spec)}: {row.why}", "correct or remove it",
            )  # fmt: skip
    if "mixtral" in settings.get("name", "").lower() and settings.get("model_source") == "hf":
        settings.add(
            "name", "warning", "contradiction", "NxDT takes a name with mixtral in it for a Mixtral model; here the "
            "model decides, which is a Llama", "give it another name",
        )  # fmt: skip


def _constant_steps(settings: Settings, spec: RunSpec) -> None:
    """NeMo's cosine has no room left where the constant end is longer than what follows the warm-up."""
    optimizer = spec.optimizer
    rest = spec.steps - optimizer.warmup_steps
    if optimizer.schedule == "nemo_cosine" and optimizer.constant_steps >= rest > 0:
        lowest = optimizer.learning_rate * optimizer.final_learning_rate_fraction
        key = f"{S}.constant_steps" if f"{S}.constant_steps" in settings.values else f"{S}.constant_ratio"
        settings.add(
            key, "warning", "no-decay",
            f"{optimizer.constant_steps} steps at the lowest rate leave none for the decay: of {spec.steps} steps, "
            f"{optimizer.warmup_steps} are warm-up, so the rate drops from {optimizer.learning_rate:g} to {lowest:g} "
            "right behind it and stays there",
            f"give fewer than {rest}, or 0 for a decay over the whole run",
        )  # fmt: skip


def _manual_precision(settings: Settings) -> None:
    """The five switches, where type is not manual and they say that something is on."""
    kind = settings.get("precision.type")
    given = [name for name in (f"precision.{each}" for each in SWITCHES) if settings.get(name)]
    if given and kind not in (None, MANUAL):
        settings.add(
            given[0], "warning", "no-effect", f"{listed(given)} is read only where type is manual, and it is {kind}",
            "give precision.type: manual, or remove it",
        )  # fmt: skip


def _copies(settings: Settings, spec: RunSpec) -> None:
    """NxDT's own condition on copies of key/value heads."""
    copies = settings.get("distributed_strategy.kv_replicator")
    tensor, heads = spec.mesh["tensor"], spec.model.num_kv_heads
    if copies is not None and heads * copies % tensor:
        need = tensor // heads if tensor % heads == 0 else 0
        settings.add(
            "distributed_strategy.kv_replicator", "warning", "not-divisible",
            f"{heads} key/value heads × {copies} copies cannot be split over tensor_model_parallel_size {tensor}, so "
            "NxDT would not start; here each device gets the heads that it needs",
            f"give {need}" if need else "choose another tensor_model_parallel_size",
        )  # fmt: skip


def _mesh(settings: Settings, spec: RunSpec) -> None:
    """What the sizes in the file come to: replicas and micro-batches, which it never says."""
    topology, batch, sizes = spec.topology, spec.batch, spec.mesh
    replicas = spec.data_parallel_size
    if topology.num_devices % replicas or batch.global_batch_size % (batch.micro_batch_size * replicas):
        return  # an error of its own
    many = "replica" if replicas == 1 else "replicas"
    axes = f"tensor {sizes['tensor']} × pipeline {sizes['pipeline']} × context {sizes['context']} × data {replicas}"
    settings.add(
        "trainer.devices", "info", "derived",
        f"{topology.num_nodes} × {topology.devices_per_node} devices make {axes}; {batch.global_batch_size} sequences "
        f"a step are {replicas} {many} × {spec.accumulation_steps} micro-batches of {batch.micro_batch_size}",
        "nothing to do",
    )  # fmt: skip


def _deviations(settings: Settings, spec: RunSpec) -> None:
    """Where the file touches what NxDT does otherwise than documented: one finding for numbers, one for the rest."""
    for numbers in (True, False):
        found = [d for d in DEVIATIONS if d.touches and d.numbers is numbers and d.touches(settings, spec)]
        if not found:
            continue
        listed = "; ".join(f"{d.key.rpartition('.')[2]}: {d.actual}" for d in found)
        what = "computes something else than documented, and than here" if numbers else "differs from its documentation"
        key = next((d.key for d in found if d.key in settings.entries), found[0].key)
        settings.add(key, "warning" if numbers else "info", "documented-otherwise", f"NxDT {what}: {listed}",
                     f"nothing to do; {PAGE} tells what is done here")  # fmt: skip
