"""What a CVS configuration says beside what runs: keys that do nothing, names that mislead, and what CVS itself does.

Where CVS does something else than its file says, the file is obeyed here, and a finding tells of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.check import contradiction
from seatrial.dialects.cvs.settings import Settings
from seatrial.dialects.cvs.table import ENV, NODES
from seatrial.dialects.table import coerce
from seatrial.errors import Problem
from seatrial.spec import RunSpec

PORT = f"{ENV}.JAX_COORDINATOR_PORT"
CVS_PORT = 12345


def findings(settings: Settings, spec: RunSpec) -> Iterator[Problem]:
    """Everything that there is to say about a JAX configuration that can be read."""
    yield from _architecture(settings, spec)
    yield from without_effect(settings, spec)
    yield from done_otherwise(settings, shm_size="256G")
    yield from _jax(settings, spec)


def _architecture(settings: Settings, spec: RunSpec) -> Iterator[Problem]:
    """Where the cell's numbers are not those of the model that it is named after."""
    stated = {
        key.to.removeprefix("model."): name
        for name, key in settings.table.keys.items()
        if key.to.startswith("model.") and name in settings.values and not settings.entries[name].is_override
    }
    differing = {f: name for f, name in stated.items() if settings.values[name] != getattr(spec.model, f)}
    why = contradiction(spec.model.name, {name: (f, settings.values[name]) for f, name in differing.items()})
    if why is not None:
        yield settings.entries[next(iter(differing.values()))].problem(
            "warning", "architecture-contradicts-name",
            f"{why}; the name decides, as in CVS, where these keys reach no run",
            "correct the numbers or the name; an override (base_emb_dim=…) is obeyed",
        )  # fmt: skip


def without_effect(settings: Settings, spec: RunSpec) -> Iterator[Problem]:
    """Keys that do nothing, where that may surprise, and notes that say something else than what runs."""
    for name, value in settings.values.items():
        key, entry = settings.table.find(name), settings.entries[name]
        if key is None or key.to or key.disposition == "rejected":
            continue
        if key.needs_nodes and NODES not in settings.values:
            continue
        effective = key.effective(spec) if key.effective else None
        if effective is not None and effective != value:
            meaning = "" if entry.text.lower() == str(value).lower() else f" ({value})"
            why = (
                f"it says {entry.text}{meaning}, but what runs is {coerce.text(effective)}; it has no effect: {key.why}"
            )
            yield entry.problem("warning", "contradiction", why, "make it say what runs, or remove it")
        elif effective is None and value not in key.quiet:
            yield entry.problem("info", "no-effect", f"it has no effect: {key.why}", "nothing to do")


def done_otherwise(settings: Settings, *, shm_size: str) -> Iterator[Problem]:
    """Values that CVS sets to its own, whatever its file says."""
    size, card = settings.entries.get("config.shm_size"), settings.values.get("config.nic_type", "")
    if size and settings.values.get("config.shm_size", shm_size) != shm_size:
        why = f"CVS itself starts every container with {shm_size}, whatever stands here; here it is obeyed"
        yield size.problem("info", "cvs-differs", why, "nothing to do")
    index = settings.values.get("config.nccl_ib_gid_index", "3")
    if re.search("broadcom|thor", card, re.IGNORECASE) and index != "3":
        why = f"for Broadcom's cards (nic_type {card}) CVS itself takes 3, whatever stands here; here {index} is obeyed"
        yield settings.entries["config.nccl_ib_gid_index"].problem(
            "warning", "cvs-differs", why, "give 3, if it is meant to run as it does under CVS"
        )


def _jax(settings: Settings, spec: RunSpec) -> Iterator[Problem]:
    values, entries = settings.values, settings.entries
    if values.get(PORT, CVS_PORT) != CVS_PORT:
        why = f"CVS itself exports {CVS_PORT} after it, and that wins there; here {values[PORT]} is obeyed"
        yield entries[PORT].problem("info", "cvs-differs", why, "nothing to do, if the port is free")
    if "quantization" in values and values["quantization"] is None:
        why = (
            "empty, it means no quantization; CVS hands it on as null, which newer versions of MaxText take for no "
            f"value at all: what runs is {spec.precision.compute_dtype}"
        )
        yield entries["quantization"].problem("info", "empty-value", why, "nothing to do")
    if "dataset_type" in values and spec.data.kind == "synthetic":
        why = (
            "one random batch is learnt by heart, in every step again: its loss falls to 0 and shows that the step "
            "works, not that anything is learnt"
        )
        yield entries["dataset_type"].problem("info", "synthetic-data", why, "nothing to do")
    for name in ("hf_path", "hf_train_files", "tokenizer_path") if spec.data.kind == "synthetic" else ():
        if values.get(name):
            why = "it has no effect: synthetic data needs no files"
            yield entries[name].problem("info", "no-effect", why, "nothing to do")
    flags = next((name for name in values if name.startswith("xla_flags.")), None)
    if flags and not any(name.startswith("config.xla_flags.") for name in values):
        why = "since 2026 CVS reads config.xla_flags instead, and ignores the flags here in silence; here they hold"
        yield entries[flags].problem("info", "cvs-differs", why, "give them as config.xla_flags for a newer CVS")
