"""Findings about a CVS Megatron configuration: misleading names, silent resets, CVS's own ways."""

from __future__ import annotations

import re

from seatrial.dialects import placeholders
from seatrial.dialects.cvs.findings import done_otherwise, without_effect
from seatrial.dialects.cvs.megatron_keys import DEFAULTS, SCRIPTS, SET_BY_CVS, billions
from seatrial.dialects.cvs.settings import Settings
from seatrial.dialects.cvs.table import ENV
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.spec import RunSpec
from seatrial.spec.presets import MODELS

LLAMA_3 = "train_llama3.sh"


def findings(settings: Settings, spec: RunSpec) -> None:
    """Adds everything that there is to say about a configuration that can be read."""
    without_effect(settings, spec)
    done_otherwise(settings, shm_size="128G")
    _model(settings, spec)
    _names(settings, spec)
    _resets(settings, spec)
    theirs = {f"{ENV}.{name}" for name in SET_BY_CVS}
    if variables := [name for name in settings.entries if name.startswith(f"{ENV}.") and name not in theirs]:
        why = "CVS starts Megatron's containers without env_dict; here its variables are set"
        settings.add(variables[0], "info", "cvs-differs", why, NO_CHANGE)
    for name, decides in SET_BY_CVS.items():
        if f"{ENV}.{name}" in settings.entries:
            why = f"CVS sets {name} for the script itself, from {decides}, and that wins"
            settings.add(f"{ENV}.{name}", "warning", "no-effect", why, f"remove it, and say it by {decides}")
    for name, what in (("elapsed_time_per_iteration", "a faster run"), ("mem_usage", "a run that needs less memory")):
        if f"result_dict.{name}" in settings.values:
            why = f"less is better here, and so it is judged; CVS wants at least every target, and fails {what}"
            settings.add(f"result_dict.{name}", "info", "cvs-differs", why, NO_CHANGE)


def _model(settings: Settings, spec: RunSpec) -> None:
    size = settings.entries.get("model_size")
    runs = (size and size.text) or DEFAULTS["model_size"]
    named = billions(settings.cell.model) if settings.cell else None
    if settings.cell and named != runs:
        why = (
            f"it says {runs}, and the cell is called {settings.cell.model}; MODEL_SIZE is all that train_llama3.sh "
            f"gets to know about the model, so what runs is Llama 3.1 {runs}B"
        )
        fix = f"make it {named}, or rename the cell" if named in ("8", "70") else "rename the cell to what it runs"
        settings.add("model_size", "warning", "architecture-contradicts-name", why, fix)
    preset = MODELS[spec.model.name.removesuffix("-rope-10000")]
    settings.add(
        "model_size", "info", "rope-base",
        f"train_llama3.sh gives no --rotary-base: positions turn with base {spec.model.rope_theta:g}, unscaled, not "
        f"with {preset.rope_theta:g} and Llama 3.1's scaling; the speed is the same, the losses are not Llama's",
        "no key of CVS changes it",
    )  # fmt: skip
    tokenizer = settings.entries.get("tokenizer_model")
    if tokenizer and not placeholders.is_unfilled(tokenizer.value) and (script := _script(settings, tokenizer.text)):
        why = f"CVS chooses the script by this name: here it starts {script}; what is read is {LLAMA_3}"
        settings.add("tokenizer_model", "warning", "cvs-differs", why, "name a tokenizer of Llama 3")


def _script(settings: Settings, tokenizer: str) -> str | None:
    """The script that CVS starts for a tokenizer, in words; None if it is Llama 3's."""
    given = {family: entry.text for family, entry in settings.section("config.training_scripts").items()}
    families = given or SCRIPTS
    script = next((families[family] for family in families if _is_of(family, tokenizer)), None)
    if script is None:
        return "no script at all, and fails"
    return None if script.rpartition("/")[2] == LLAMA_3 else script.rpartition("/")[2]


def _is_of(family: str, tokenizer: str) -> bool:
    """True if a family's pattern is found in a tokenizer's name, as CVS looks for it."""
    try:
        return re.search(family, tokenizer, re.IGNORECASE) is not None
    except re.error:
        return False


def _names(settings: Settings, spec: RunSpec) -> None:
    precision = settings.entries.get("precision")
    word = precision.text if precision else ""
    if precision and word in ("TE_FP16", "TE_F16"):
        known = (
            "CVS does not know the name and starts FP8 (TE_FP8=1) in its place"
            if word == "TE_FP16"
            else "CVS means the same by it"
        )
        settings.add(
            "precision", "warning", "misleading-name",
            f"{word} is not float16: AMD's runs of this kind are bfloat16 with FP8 off (TE_FP8=0), and so it is read "
            f"here; {known}",
            "write TE_BF16 for bfloat16, or TE_FP8 for FP8",
        )  # fmt: skip
    batch, replicas = spec.batch, spec.data_parallel_size
    if not batch.global_batch_size % (batch.micro_batch_size * replicas):
        settings.add(
            "batch_size", "info", "misleading-name",
            f"it is the batch of all {spec.topology.num_devices} devices together (BS), not of one: {replicas} "
            f"replicas take {spec.accumulation_steps} micro-batch{'es' if spec.accumulation_steps > 1 else ''} of "
            f"{batch.micro_batch_size} each",
            NO_CHANGE,
        )  # fmt: skip


def _resets(settings: Settings, spec: RunSpec) -> None:
    """Adds a finding about what FSDP=1 turns off in the script, without a message that CVS would read."""
    if not settings.get("fsdp"):
        return
    tensor = settings.get("tensor_parallelism")
    lost = [f"tensor parallelism ({tensor} → 1)"] if tensor > 1 else []
    if settings.values.get(f"{ENV}.SEQ_PARALLEL", True):
        lost.append("sequence parallelism")
    lost += ["the distributed optimizer", "gradient accumulation fusion"]
    settings.add(
        "fsdp", "warning" if tensor > 1 else "info", "silent-reset",
        f"with fsdp train_llama3.sh turns off {', '.join(lost[:-1])} and {lost[-1]}; what runs is FSDP over "
        f"{spec.mesh['fsdp']} devices",
        f"set tensor_parallelism to 1, or fsdp to 0 to keep {tensor}" if tensor > 1 else NO_CHANGE,
    )  # fmt: skip
