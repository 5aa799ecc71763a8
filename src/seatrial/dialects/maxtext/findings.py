"""What MaxText would refuse or do otherwise, and what has no effect: found when everything has been read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from seatrial.dialects.maxtext.build import SOURCES
from seatrial.dialects.maxtext.keys import DEFAULTS, KEYS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import NO_ACCUMULATION, nothing
from seatrial.dialects.table import coerce

Rule = Callable[[Settings], Iterator[tuple[str, Any, str, str, str]]]  # key, severity, code, why, fix

_DATA_KEYS = (
    "dataset_path", "dataset_name", "hf_path", "hf_train_files", "hf_eval_files", "grain_train_files",
    "grain_eval_files", "grain_file_type", "tokenizer_path", "packing", "num_epoch", "eod_mask_loss",
)  # fmt: skip
_NEAREST = {
    "minimal_with_quantization": "minimal", "minimal_with_context_and_quantization": "minimal_with_context",
}  # fmt: skip


def find(settings: Settings) -> None:
    """Adds all findings of this kind to the settings' problems."""
    for rule in (_refused_by_maxtext, _remat, _attention, _data, _schedule, _model):
        for key, severity, code, why, fix in rule(settings):
            settings.find(key, severity, code, why, fix)
    _without_effect(settings)


def _refused_by_maxtext(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    """Pairs of values that MaxText does not start with."""
    get = settings.get
    steps = get("gradient_accumulation_steps")
    if get("quantization") in NO_ACCUMULATION and steps > 1:
        why = f"MaxText refuses {get('quantization')} with gradient_accumulation_steps={steps}"
        fix = "use te_fp8_currentscaling, or one micro-batch a step"
        yield "quantization", "error", "refused-by-maxtext", why, fix
    if get("load_parameters_path") and get("load_full_state_path"):
        why = "MaxText refuses it together with load_full_state_path: one says weights alone, the other everything"
        yield "load_parameters_path", "error", "refused-by-maxtext", why, "keep one of the two"
    if get("load_full_state_path") and not get("enable_checkpointing"):
        why = "MaxText refuses it without enable_checkpointing=true"
        yield "load_full_state_path", "error", "refused-by-maxtext", why, "turn checkpoints on, or remove it"
    if get("attention_type") == "local_sliding" and not get("sliding_window_size"):
        why = "MaxText refuses local_sliding without a sliding_window_size above 0"
        yield "attention_type", "error", "refused-by-maxtext", why, "add sliding_window_size=…, or remove it"
    if get("use_dpo") and get("use_sft"):
        why = "MaxText refuses it together with use_sft: one objective at a time"
        yield "use_dpo", "error", "refused-by-maxtext", why, "keep one of the two"
    if get("use_dpo") and get("packing") and get("dataset_type") != "synthetic":
        why = "MaxText refuses it with packing, which is on unless packing=false says otherwise"
        yield "use_dpo", "error", "refused-by-maxtext", why, "add packing=false"


def _remat(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    entry = settings.entries.get("remat_policy")
    if entry is None or "remat_policy" not in settings.values:
        return
    if entry.text == "custom":
        why = "which tensors are kept is chosen by one key for each of them there, and by the policy's name here"
        yield "remat_policy", "error", "not-supported-yet", why, "name a policy, for example minimal_with_context"
    elif entry.text in _NEAREST:
        why = f"what it keeps cannot be kept so here; {_NEAREST[entry.text]} is done instead, with the same result"
        yield "remat_policy", "warning", "nearest-remat", why, f"write {_NEAREST[entry.text]}, or leave it"
    elif settings.values["remat_policy"] == "none":
        why = (
            "here nothing is recomputed, as it says; every version of MaxText up to 0.2.5 recomputes everything for it"
        )
        yield "remat_policy", "warning", "maxtext-differs", why, "write full for what MaxText does"
    elif entry.text == "minimal_flash":
        why = "MaxText calls it minimal_with_context now, and warns of the old name"
        yield "remat_policy", "info", "renamed-value", why, "write minimal_with_context"


def _attention(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    if settings.get("attention_type") == "local_sliding":
        why = "here every layer reads the window alone; MaxText's Llama decoder reads the whole sequence all the same"
        yield "attention_type", "warning", "maxtext-differs", why, "remove it for what MaxText does"
    elif settings.get("sliding_window_size"):
        why = "it has no effect: only attention_type=local_sliding reads it"
        yield "sliding_window_size", "info", "no-effect", why, "nothing to do"
    entry = settings.entries.get("context_parallel_strategy")
    if entry is not None and entry.text in ("ulysses", "usp"):
        why = f"attention is split up as by {settings.get('context_parallel_strategy')} here, with the same result"
        yield "context_parallel_strategy", "info", "nearest-strategy", why, "nothing to do"
    if settings.values.get("attention") != "cudnn_flash_te":
        return
    fused = settings.variables.rest.get("NVTE_FUSED_ATTN")
    if fused is None or str(fused.value) != "1":
        why = "Transformer Engine takes its fused attention only where the variable NVTE_FUSED_ATTN is 1"
        yield "attention", "info", "fused-attention-off", why, "export NVTE_FUSED_ATTN=1"
    is_set = settings.values.get("max_segments_per_seq", -1) > 0
    if settings.get("packing") and not is_set and str(settings.values.get("hardware", "tpu")).startswith("gpu"):
        why = (
            "MaxText since 0.2.0 refuses it on GPUs while packing is on, its default, and max_segments_per_seq is not "
            "given, even for synthetic data"
        )
        yield "attention", "warning", "maxtext-differs", why, "add max_segments_per_seq=32, or packing=false"


def _data(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    kind = settings.get("dataset_type")
    if kind == "synthetic":
        named = [name for name in _DATA_KEYS if name in settings.values]
        for name in named:
            value = settings.values[name]
            if value not in (None, "", (), False, True, DEFAULTS.get(name)) and name != "num_epoch":
                why = "it has no effect: synthetic data needs no files, no tokenizer and no packing"
                yield name, "info", "no-effect", why, "nothing to do, unless dataset_type is wrong"
        if "dataset_type" not in settings.entries:
            why = "MaxText 0.2.5 takes synthetic data where it is not given; earlier versions took tfds"
            yield "dataset_type", "info", "default-changed", why, "say which: dataset_type=synthetic"
        return
    needed = {"huggingface": "hf_path", "grain": "grain_train_files"}.get(kind)
    if needed and not settings.values.get(needed) and needed not in settings.entries:
        entry = settings.entries["dataset_type"]
        why = f"MaxText refuses dataset_type={entry.text} without it"
        problem = entry.problem("error", "missing-key", why, f"add {needed}=…")
        settings.problems.append(replace(problem, path=needed))
    for name in _DATA_KEYS:
        others = {other for source in SOURCES.values() for other in source.values()} - set(SOURCES[kind].values())
        if name in others and settings.values.get(name):
            why = f"it has no effect: dataset_type={settings.entries['dataset_type'].text} does not read it"
            yield name, "info", "no-effect", why, "nothing to do, unless dataset_type is wrong"


def _schedule(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    length, steps = settings.get("learning_rate_schedule_steps"), settings.get("steps")
    if length and steps and length < steps:
        why = f"MaxText trains the last {steps - length} steps at a learning rate of 0; here they keep the final rate"
        yield "learning_rate_schedule_steps", "warning", "maxtext-differs", why, "make it the number of steps, or -1"
    mask = settings.get("adamw_mask")
    if mask and not any(word in pattern for pattern in mask for word in ("norm", "scale", "bias")):
        why = "it is taken for the usual one, which spares norms and biases; here nothing else can be spared"
        yield "adamw_mask", "warning", "nearest-mask", why, "name norm in it, or remove it"
    if settings.get("abort_on_nan_loss") != settings.get("abort_on_inf_loss"):
        why = "a run ends here at either, a loss that is no number or an infinite one; MaxText at one of them"
        name = "abort_on_inf_loss" if settings.get("abort_on_nan_loss") else "abort_on_nan_loss"
        yield name, "warning", "maxtext-differs", why, "give both the same value"
    entry = settings.entries.get("opt_type")
    if entry is not None and entry.text == "adam_pax":
        why = "adam_pax is AdamW by other means; AdamW is what runs here"
        yield "opt_type", "info", "nearest-optimizer", why, "nothing to do"
    if settings.get("use_sft") and not settings.values.get("sft_train_on_completion_only", False):
        why = "MaxText learns prompts, too, unless sft_train_on_completion_only is true; here answers alone are learnt"
        yield "use_sft", "warning", "maxtext-differs", why, "add sft_train_on_completion_only=true"
    seed, shuffle = settings.get("init_weights_seed"), settings.values.get("data_shuffle_seed")
    if shuffle is not None and shuffle != seed:
        why = f"one seed makes everything here, and init_weights_seed is {seed}"
        yield "data_shuffle_seed", "warning", "contradiction", why, "give both the same value"


def _model(settings: Settings) -> Iterator[tuple[str, Any, str, str, str]]:
    if settings.get("logits_via_embedding") and settings.values.get("normalize_embedding_logits", True):
        why = "MaxText then divides logits by √base_emb_dim, unless normalize_embedding_logits is false"
        yield "logits_via_embedding", "warning", "maxtext-differs", why, "add normalize_embedding_logits=false"
    if settings.values.get("hf_access_token"):
        why = "a token on a command line or in a file is seen by others; it is not read here"
        yield "hf_access_token", "warning", "secret", why, "remove it, and export HF_TOKEN where the run is started"


def _without_effect(settings: Settings) -> None:
    """Keys that do nothing, where that may surprise."""
    told = {problem.path for problem in settings.problems}
    for name, value in settings.values.items():
        key, entry = KEYS[name], settings.entries[name]
        if key.disposition != "ignored" or entry.key in told or _is_quiet(value, key.quiet):
            continue
        if name == "data_shuffle_seed" and value == settings.get("init_weights_seed"):
            continue
        why = f"{coerce.shown(entry.value)} has no effect: {key.why}"
        settings.problems.append(entry.problem("info", "no-effect", why, "nothing to do"))


def _is_quiet(value: Any, quiet: tuple[Any, ...]) -> bool:
    if nothing(value) or value == "":
        return None in quiet or "" in quiet
    return any(value == each or str(value).lower() == str(each).lower() for each in quiet)
