"""What an NxDT file says beside what runs: what has no effect, what cannot be, and its traps; few and grouped."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.optimizer import S
from seatrial.dialects.nxdt.precision import MANUAL, MANUAL_KEYS
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key
from seatrial.spec import RunSpec

MOST_NAMES = 12
PAGE = "docs/reference/nxdt.md"


def refused(settings: Settings, keys: Mapping[str, Key]) -> None:
    """One error for each reason why keys cannot be obeyed."""
    groups: dict[str, list[str]] = {}
    for name, value in settings.values.items():
        if keys[name].disposition == "rejected" and value not in keys[name].quiet:
            groups.setdefault(keys[name].why, []).append(name)
    for why, names in groups.items():
        also = f" (and {_listed(names[1:])})" if names[1:] else ""
        quiet = [value for value in keys[names[0]].quiet if value is not None]
        or_say = f", or give {names[0].rpartition('.')[2]}: {coerce.shown(quiet[0])}" if quiet else ""
        shown = coerce.shown(settings.entries[names[0]].value)
        settings.add(names[0], "error", "not-possible", f"{shown} cannot be obeyed{also}: {why}", f"remove it{or_say}")


def without_effect(settings: Settings, keys: Mapping[str, Key]) -> None:
    """One finding for all keys that do nothing here, where that may surprise."""
    reasons: dict[str, list[str]] = {}
    first = None
    for name, value in settings.values.items():
        key = keys[name]
        if key.disposition == "ignored" and key.effective is None and value not in key.quiet and name not in SPOKEN_OF:
            reasons.setdefault(key.why, []).append(name)
            first = first or name
    if first is None:
        return
    number = sum(map(len, reasons.values()))
    listed = "; ".join(f"{_listed(names)} ({why})" for why, names in reasons.items())
    why = f"{number} key{'s have' if number > 1 else ' has'} no effect here: {listed}"
    settings.add(first, "info", "no-effect", why, "nothing to do")


def _listed(names: list[str]) -> str:
    short = [name.rpartition(".")[2] for name in names]
    return ", ".join(short[:MOST_NAMES]) + (f" and {len(short) - MOST_NAMES} more" if len(short) > MOST_NAMES else "")


SPOKEN_OF = (f"{S}.max_steps", f"{S}.d_model")  # said elsewhere, where they differ from what runs


def traps(settings: Settings, spec: RunSpec, keys: Mapping[str, Key]) -> None:
    """What is accepted, but hardly meant."""
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
        effective = keys[name].effective
        if effective is not None and effective(spec) != value:
            settings.add(
                name, "warning", "contradiction",
                f"it says {value}, but what runs is {effective(spec)}: {keys[name].why}", "correct or remove it",
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
    given = [name for name in MANUAL_KEYS if settings.get(name)]
    if given and kind not in (None, MANUAL):
        settings.add(
            given[0], "warning", "no-effect", f"{_listed(given)} is read only where type is manual, and it is {kind}",
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


def mesh(settings: Settings, spec: RunSpec) -> None:
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


def deviations(settings: Settings, spec: RunSpec) -> None:
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
