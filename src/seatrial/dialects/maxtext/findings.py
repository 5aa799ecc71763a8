"""Findings about what MaxText would refuse or do otherwise, and about keys without effect, when all keys are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from seatrial.dialects.maxtext.build import SOURCES, tensors_of
from seatrial.dialects.maxtext.keys import KEYS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import ALL_TENSORS, NEAREST_REMAT, NO_ACCUMULATION
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.dialects.table.settings import Finding

_DATA_KEYS = (
    "dataset_path", "dataset_name", "hf_path", "hf_train_files", "hf_eval_files", "grain_train_files",
    "grain_eval_files", "grain_file_type", "tokenizer_path", "packing", "add_bos", "num_epoch", "eod_mask_loss",
)  # fmt: skip
_NO_CHANGE_OF_DATA = f"{NO_CHANGE}, unless dataset_type is wrong"


def find(settings: Settings) -> None:
    """Adds all findings of this kind to the settings' problems."""
    for name, is_refused, why, fix in _refused_by_maxtext(settings.get):
        if is_refused:
            settings.add(name, "error", "refused-by-maxtext", f"MaxText refuses {why}", fix)
    data = _synthetic_data if settings.get("dataset_type") == "synthetic" else _data_of_files
    for rule in (_remat, _tensors, _attention, data, _schedule, _others):
        for finding in rule(settings):
            settings.add(*finding)
    reported = {problem.path for problem in settings.problems}
    aside = {name for name, entry in settings.entries.items() if entry.key in reported}
    if settings.values.get("data_shuffle_seed") == settings.get("init_weights_seed"):
        aside.add("data_shuffle_seed")
    settings.without_effect(together=False, aside=aside)


def _refused_by_maxtext(get: Callable[[str], Any]) -> tuple[tuple[str, Any, str, str], ...]:
    """(key, whether it is so, why, fix) of values that MaxText does not start with."""
    steps = get("gradient_accumulation_steps")
    return (
        ("quantization", get("quantization") in NO_ACCUMULATION and steps > 1,
         f"{get('quantization')} with gradient_accumulation_steps={steps}",
         "use te_fp8_currentscaling, or one micro-batch a step"),
        ("load_parameters_path", get("load_parameters_path") and get("load_full_state_path"),
         "it together with load_full_state_path: one loads weights only, the other everything", "keep one of the two"),
        ("load_full_state_path", get("load_full_state_path") and not get("enable_checkpointing"),
         "it without enable_checkpointing=true", "turn checkpoints on, or remove it"),
        ("attention_type", get("attention_type") == "local_sliding" and not get("sliding_window_size"),
         "local_sliding without a sliding_window_size above 0", "add sliding_window_size=…, or remove it"),
        ("use_dpo", get("use_dpo") and get("use_sft"), "it together with use_sft: one objective at a time",
         "keep one of the two"),
        ("use_dpo", get("use_dpo") and get("packing") and get("dataset_type") != "synthetic",
         "it with packing, which is on unless packing=false says otherwise", "add packing=false"),
    )  # fmt: skip


def _remat(settings: Settings) -> Iterator[Finding]:
    name = "remat_policy"
    if name not in settings.values:
        return
    text = settings.entries[name].text
    if text in NEAREST_REMAT:
        why = f"there is no such policy here; {NEAREST_REMAT[text]} is used instead, with the same result"
        yield name, "warning", "nearest-remat", why, f"write {NEAREST_REMAT[text]}, or keep it"
    elif settings.values[name] == "none":
        why = "nothing is recomputed here, as the name says; MaxText up to 0.2.5 recomputes everything"
        yield name, "warning", "maxtext-differs", why, "write full for what MaxText does"
    elif text == "minimal_flash":
        why = "MaxText calls it minimal_with_context now, and warns of the old name"
        yield name, "info", "renamed-value", why, "write minimal_with_context"


def _tensors(settings: Settings) -> Iterator[Finding]:
    """Keys of remat_policy=custom that are given where nothing reads them."""
    is_custom, there = settings.get("remat_policy") == "custom", tensors_of(settings)
    for name in ALL_TENSORS:
        if name not in settings.values or settings.values[name] == KEYS[name].default:
            continue
        if not is_custom:
            why = "it has no effect: only remat_policy=custom reads it"
            yield name, "info", "no-effect", why, "add remat_policy=custom, if it is meant"
        elif name not in there:
            why = "it has no effect: with these fused_qkv, fused_mlp and mlp_activations, no tensor has this name"
            yield name, "info", "no-effect", why, NO_CHANGE


def _attention(settings: Settings) -> Iterator[Finding]:
    if settings.get("attention_type") == "local_sliding":
        why = "every layer attends within the window here; MaxText's Llama decoder still attends to the whole sequence"
        yield "attention_type", "warning", "maxtext-differs", why, "remove it for what MaxText does"
    elif settings.get("sliding_window_size"):
        why = "it has no effect: only attention_type=local_sliding reads it"
        yield "sliding_window_size", "info", "no-effect", why, NO_CHANGE
    entry = settings.entries.get("context_parallel_strategy")
    if entry is not None and entry.text in ("ulysses", "usp"):
        why = f"attention is distributed as with {settings.get('context_parallel_strategy')} here, with the same result"
        yield "context_parallel_strategy", "info", "nearest-strategy", why, NO_CHANGE
    if settings.values.get("attention") != "cudnn_flash_te":
        return
    fused = settings.variables.rest.get("NVTE_FUSED_ATTN")
    if fused is None or str(fused.value) != "1":
        why = "Transformer Engine uses its fused attention only where the variable NVTE_FUSED_ATTN is 1"
        yield "attention", "info", "fused-attention-off", why, "export NVTE_FUSED_ATTN=1"
    is_set = settings.values.get("max_segments_per_seq", -1) > 0
    if settings.get("packing") and not is_set and settings.get("hardware", "tpu").startswith("gpu"):
        why = (
            "MaxText since 0.2.0 refuses it on GPUs while packing is on, its default, and max_segments_per_seq is not "
            "given, even for synthetic data"
        )
        yield "attention", "warning", "maxtext-differs", why, "add max_segments_per_seq=32, or packing=false"


def _synthetic_data(settings: Settings) -> Iterator[Finding]:
    """Keys about data although none is read, and that none is read where dataset_type is not given."""
    for name in _DATA_KEYS:
        default = settings.keys[name].default
        if name != "num_epoch" and settings.get(name) not in (None, "", (), False, True, default):
            why = "it has no effect: synthetic data needs no files, no tokenizer and no packing"
            yield name, "info", "no-effect", why, _NO_CHANGE_OF_DATA
    if "dataset_type" not in settings.entries:
        why = "MaxText 0.2.5 uses synthetic data where it is not given; earlier versions used tfds"
        yield "dataset_type", "info", "default-changed", why, "give dataset_type=synthetic"


def _data_of_files(settings: Settings) -> Iterator[Finding]:
    """Keys that the pipeline needs and that are not given, and keys of other pipelines."""
    kind, entry = settings.get("dataset_type"), settings.entries["dataset_type"]
    needed = {"huggingface": "hf_path", "grain": "grain_train_files"}.get(kind)
    if needed and needed not in settings.entries:
        why = f"MaxText refuses dataset_type={entry.text} without it"
        problem = entry.problem("error", "missing-key", why, f"add {needed}=…")
        settings.problems.append(replace(problem, path=needed))
    others = {name for source in SOURCES.values() for name in source.values()} - set(SOURCES[kind].values())
    for name in _DATA_KEYS:
        if name in others and settings.values.get(name):
            why = f"it has no effect: dataset_type={entry.text} does not read it"
            yield name, "info", "no-effect", why, _NO_CHANGE_OF_DATA


def _schedule(settings: Settings) -> Iterator[Finding]:
    length, steps = settings.get("learning_rate_schedule_steps"), settings.get("steps")
    if length and steps and length < steps:
        why = f"the schedule ends after {length} steps: the last {steps - length} have a learning rate of 0"
        yield "learning_rate_schedule_steps", "warning", "rate-of-zero", why, "make it the number of steps, or -1"
    mask = settings.get("adamw_mask")
    if mask and not any(word in pattern for pattern in mask for word in ("norm", "scale", "bias")):
        why = "it is read as the usual mask, which exempts norms and biases; nothing else can be exempt here"
        yield "adamw_mask", "warning", "nearest-mask", why, "name norm in it, or remove it"
    if settings.get("abort_on_nan_loss") != settings.get("abort_on_inf_loss"):
        why = "a run ends at a NaN and at an infinite loss here, in MaxText at one of them only"
        name = "abort_on_inf_loss" if settings.get("abort_on_nan_loss") else "abort_on_nan_loss"
        yield name, "warning", "maxtext-differs", why, "give both the same value"
    entry = settings.entries.get("opt_type")
    if entry is not None and entry.text == "adam_pax":
        yield "opt_type", "info", "nearest-optimizer", "adam_pax is another AdamW; AdamW is what runs here", NO_CHANGE


def _others(settings: Settings) -> Iterator[Finding]:
    get, values = settings.get, settings.values
    if get("use_sft") and not get("sft_train_on_completion_only"):
        why = "MaxText trains on prompts as well unless sft_train_on_completion_only is true; here only on answers"
        yield "use_sft", "warning", "maxtext-differs", why, "add sft_train_on_completion_only=true"
    if values.get("data_shuffle_seed", get("init_weights_seed")) != get("init_weights_seed"):
        why = f"there is one seed for everything here, and init_weights_seed is {get('init_weights_seed')}"
        yield "data_shuffle_seed", "warning", "contradiction", why, "give both the same value"
    if get("logits_via_embedding") and values.get("normalize_embedding_logits", True):
        why = "MaxText then divides logits by √base_emb_dim, unless normalize_embedding_logits is false"
        yield "logits_via_embedding", "warning", "maxtext-differs", why, "add normalize_embedding_logits=false"
    if get("hf_access_token"):
        why = "a token on a command line or in a file is visible to others; it is not read here"
        yield "hf_access_token", "warning", "secret", why, "remove it, and export HF_TOKEN where the run is started"
