"""Findings about a CVS configuration that can be read: keys without effect, misleading names, and CVS's own ways.

Where CVS does something else than its file says, the file holds here, and a finding says so.
"""

from __future__ import annotations

import re

from seatrial.check import contradiction
from seatrial.dialects.cvs.settings import Settings
from seatrial.dialects.cvs.table import ENV, NODES
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.spec import RunSpec

PORT = f"{ENV}.JAX_COORDINATOR_PORT"
CVS_PORT = 12345  # of CVS until 2025; since 2026 it exports the file's
EXPORTS = "config.env_vars"


def findings(settings: Settings, spec: RunSpec) -> None:
    """Adds everything that there is to say about a JAX configuration that can be read."""
    _architecture(settings, spec)
    without_effect(settings, spec)
    done_otherwise(settings, shm_size="256G")
    _jax(settings, spec)


def _architecture(settings: Settings, spec: RunSpec) -> None:
    """Adds a finding if the cell's numbers are not those of the model that it is named after."""
    stated = {
        key.to.removeprefix("model."): name
        for name, key in settings.keys.items()
        if key.to.startswith("model.") and name in settings.values and not settings.entries[name].is_override
    }
    differing = {f: name for f, name in stated.items() if settings.values[name] != getattr(spec.model, f)}
    why = contradiction(spec.model.name, {name: (f, settings.values[name]) for f, name in differing.items()})
    if why is not None:
        settings.add(
            next(iter(differing.values())), "warning", "architecture-contradicts-name",
            f"{why}; the name decides, as in CVS: MaxText's own file of the model overrides these keys",
            "correct the numbers or the name; an override (base_emb_dim=…) counts",
        )  # fmt: skip


def without_effect(settings: Settings, spec: RunSpec) -> None:
    """Adds keys that do nothing, where that may surprise, and notes that say something else than what runs."""
    for name, value in settings.values.items():
        key, entry = settings.row(name), settings.entries[name]
        if key is None or key.to or key.disposition == "rejected" or (key.needs_nodes and NODES not in settings.values):
            continue
        effective = key.effective(spec) if key.effective else None
        if effective is not None and effective != value:
            meaning = "" if entry.text.lower() == str(value).lower() else f" ({value})"
            why = f"it says {entry.text}{meaning}, but what runs is {coerce.text(effective)}: {key.why}"
            settings.add(name, "warning", "contradiction", why, "make it say what runs, or remove it")
        elif effective is None and not settings.is_quiet(key, value):
            settings.add(name, "info", "no-effect", f"it has no effect: {key.why}", NO_CHANGE)


def done_otherwise(settings: Settings, *, shm_size: str) -> None:
    """Adds values that CVS sets to its own, whatever its file says."""
    if settings.get("config.shm_size", shm_size) != shm_size:
        why = f"CVS itself starts every container with {shm_size}, whatever stands here; here this value counts"
        settings.add("config.shm_size", "info", "cvs-differs", why, NO_CHANGE)
    card, index = settings.get("config.nic_type", ""), settings.get("config.nccl_ib_gid_index", "3")
    if re.search("broadcom|thor", card, re.IGNORECASE) and index != "3":
        why = f"for Broadcom's cards (nic_type {card}) CVS itself uses 3, whatever stands here; here {index} counts"
        fix = "give 3, if it is meant to run as it does under CVS"
        settings.add("config.nccl_ib_gid_index", "warning", "cvs-differs", why, fix)


def _jax(settings: Settings, spec: RunSpec) -> None:
    values = settings.values
    is_new = settings.has("config.xla_flags") or settings.has(EXPORTS)
    if values.get(PORT, CVS_PORT) != CVS_PORT and not is_new:
        why = f"CVS of 2025 exports {CVS_PORT} after it, and that wins there; here {values[PORT]} counts"
        settings.add(PORT, "info", "cvs-differs", why, "no change is needed if the port is free")
    if "quantization" in values and values["quantization"] is None:
        why = (
            "empty, it means no quantization; CVS hands it on as null, which newer versions of MaxText read as no "
            f"value at all: what runs is {spec.precision.compute_dtype}"
        )
        settings.add("quantization", "info", "empty-value", why, NO_CHANGE)
    is_synthetic = spec.data.kind == "synthetic"
    if "dataset_type" in values and is_synthetic:
        why = (
            "the random data repeat one batch, which the model memorises: its loss falls to 0 and shows that the step "
            "works, not that anything is learnt"
        )
        settings.add("dataset_type", "info", "synthetic-data", why, NO_CHANGE)
    for name in ("hf_path", "hf_train_files", "tokenizer_path") if is_synthetic else ():
        if values.get(name):
            settings.add(name, "info", "no-effect", "it has no effect: synthetic data needs no files", NO_CHANGE)
    flags = next((name for name in values if name.startswith("xla_flags.")), None)
    _exported_twice(settings)
    if flags and not any(name.startswith("config.xla_flags.") for name in values):
        why = (
            "since 2026 CVS reads config.xla_flags and config.env_vars instead, takes its own values where they are "
            "missing, and silently ignores these flags and the keys that are exported; here they hold"
        )
        fix = "give them as config.xla_flags and config.env_vars for a newer CVS"
        settings.add(flags, "info", "cvs-differs", why, fix)


def _exported_twice(settings: Settings) -> None:
    """Variables that a key of `config` and its `env_vars` give differently."""
    for name, value in settings.values.items():
        key = settings.keys.get(name)
        if key is None or not key.to.startswith("execution.environment.") or settings.is_override(name):
            continue
        variable = key.to.rpartition(".")[2]
        counts = settings.get(f"{EXPORTS}.{variable}", value)
        if counts != value:
            why = f"{EXPORTS} exports {variable}={counts} after it, and that counts"
            settings.add(name, "warning", "contradiction", why, "make them equal, or remove one")
