"""NxDT's `data` and its three data modules, and what is learnt from them: pre-training, SFT, DPO, ORPO.

The block that says so has had three forms: `data.alignment_strategy` (Neuron 2.21), `model_alignment_strategy` (2.22),
and there `max_prompt_length` for `max_dpo_prompt_length` (2.23). All are read; the last is what the others become.
"""

from __future__ import annotations

from typing import Any, Literal

from seatrial.dialects.nxdt.readers import anything, boolean, choice, named, natural, optional
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected, to
from seatrial.spec import Data, Objective

ALIGNMENT = "model_alignment_strategy"
OLD_ALIGNMENT = "data.alignment_strategy"

_LOADER = "data is read in its own way here"
_TEMPLATE = "examples are taken as they are written; templates are to be applied before"
_NO_LORA = "all weights are trained: there are no adapters (LoRA) here"
_TEXT = optional(coerce.text)

Kind = Literal["pretraining", "sft", "dpo", "orpo"]


@coerce.takes("[path], or [weight, path, weight, path, …]")
def _prefix(value: Any) -> Any:
    """Megatron's data_prefix: a path, [path], [weight, path, …], or a mapping of splits to any of these."""
    if value is None:
        return None
    if isinstance(value, dict):
        unknown = [name for name in value if name not in ("train", "validation", "test")]
        if unknown or "train" not in value:
            what = f"{coerce.shown(unknown[0])} is no split" if unknown else "train is missing"
            raise ValueError(f"{what}; the splits are train, validation and test")
        return {name: _weighted(part) for name, part in value.items() if part is not None}
    return _weighted(value)


def _weighted(value: Any) -> tuple[tuple[float, str], ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{coerce.shown(value)} is neither a path nor a list")
    if len(value) == 1:
        return ((1.0, named(value[0])),)
    if not value or len(value) % 2:
        raise ValueError(f"a list of {len(value)} does not consist of pairs of weight and path")
    pairs = list(zip(value[::2], value[1::2], strict=True))
    wrong = next((w for w, _ in pairs if isinstance(w, (str, bool)) or not isinstance(w, (int, float)) or w < 0), None)
    if wrong is not None:
        raise ValueError(f"{coerce.shown(wrong)} stands where a weight belongs, before its path")
    return tuple((coerce.decimal(weight), named(path)) for weight, path in pairs)


@coerce.takes("shares of training, validation and test, for example 980,10,10")
def _split(value: Any) -> str:
    text = coerce.text(value)
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or any(coerce.decimal(part) < 0 for part in parts):
        raise ValueError(f"{coerce.shown(text)} does not consist of up to three shares")
    return text


DATA: dict[str, Key] = {
    "data.micro_batch_size": to("batch.micro_batch_size", coerce.count,
                                "Sequences per data-parallel replica and forward pass.", required=True),
    "data.global_batch_size": to("batch.global_batch_size", coerce.count, "Sequences per step.", required=True),
    "data.seq_length": to("batch.sequence_length", coerce.count, "Tokens per sequence; decides where alignment is."),
    # --- MegatronDataModule ---
    "data.data_prefix": to(
        "data.paths,data.weights,data.validation_paths,data.test_paths", _prefix,
        "Common path of .bin and .idx files, with weights, or by split.",
    ),
    "data.index_mapping_dir": to("data.index_dir", _TEXT),
    "data.splits_string": to("data.split", optional(_split)),
    "data.data_impl": rejected("only memory-mapped .bin and .idx files are read", optional(coerce.text),
                               quiet=(None, "mmap")),
    "data.dataloader_type": rejected("data is read in one shuffled order, which resuming goes on in",
                                     optional(choice("single", "cyclic")), quiet=(None, "single")),
    "data.reset_position_ids": to("data.reset_positions", boolean),
    "data.reset_attention_mask": to("data.reset_attention", boolean),
    "data.eod_mask_loss": to("data.mask_document_ends", boolean),
    "data.no_seqlen_plus_one_input_tokens": rejected("the last token of a sequence always has a next one",
                                                     boolean, quiet=(False,)),
    "data.validation_drop_last": ignored("incomplete batches of validation data are left out", boolean, quiet=(True,)),
    "data.pad_samples_to_global_batch_size": ignored("incomplete batches of validation data are left out", boolean,
                                                     quiet=(False,)),
    "data.skip_warmup": ignored(_LOADER, boolean, quiet=(True, False)),
    "data.num_workers": ignored(_LOADER, natural, quiet=(0, 1, 2)),
    "data.fine_tuning": rejected("NxDT does not support it either; use an alignment block", boolean, quiet=(False,)),
    "data.train_ds": rejected("NxDT does not support it either; use data.train_dir", anything, quiet=(None,)),
    "data.validation_ds": rejected("NxDT does not support it either; use data.val_dir", anything, quiet=(None,)),
    "data.test_ds": rejected("NxDT does not support it either", anything, quiet=(None,)),
    # --- HFDataModule and ModelAlignmentDataModule ---
    "data.train_dir": to("data.paths", _TEXT, "A folder of save_to_disk; with alignment, a .jsonl or .arrow file."),
    "data.val_dir": to("data.validation_paths", _TEXT),
    "data.test_dir": to("data.test_paths", _TEXT),
    "data.dev_choose_samples": to("data.max_examples", optional(coerce.count), "The first so many; null: all."),
    "data.dataset_name": rejected(_TEMPLATE, _TEXT, quiet=(None,)),
    "data.subset_name": rejected(_TEMPLATE, _TEXT, quiet=(None,)),
    "data.prompt_name": rejected(_TEMPLATE, _TEXT, quiet=(None,)),
    "data.use_sft_style_data_module": to("objective.kind", boolean, "Of old SFT samples; NxDT does not read it."),
    "data.packing": to("data.packing", boolean, "Of old SFT samples; NxDT does not read it."),
    # --- the tokenizer ---
    "data.tokenizer.type": to("data.tokenizer", _TEXT, "The path or name of a Hugging Face tokenizer."),
    "data.tokenizer.model": to("data.tokenizer", _TEXT, "The path of a SentencePiece model."),
    "data.tokenizer.library": ignored(
        "it only tells NxDT how to read the tokenizer",
        optional(choice("huggingface", "megatron", "sentencepiece", "byte-level", "regex", "tabular", "tiktoken")),
        quiet=("huggingface", "megatron", "sentencepiece", None),
    ),
    "data.tokenizer.vocab_file": ignored("the tokenizer's folder holds it", _TEXT, quiet=(None,)),
    "data.tokenizer.merge_file": ignored("the tokenizer's folder holds it", _TEXT, quiet=(None,)),
    "data.tokenizer.delimiter": ignored("it is for tables", _TEXT, quiet=(None,)),
    "data.tokenizer.sentencepiece_legacy": ignored("the tokenizer's folder decides", boolean, quiet=(True, False)),
    "data.tokenizer.use_fast": equivalent("both kinds of a tokenizer make the same tokens", boolean),
}  # fmt: skip

_STRATEGY: dict[str, Key] = {
    "dpo.kl_beta": to("objective.beta", coerce.positive, "How much leaving the reference model costs; 0.01."),
    "dpo.loss_type": rejected("the sigmoid is the only loss of NxDT too", coerce.text, quiet=("sigmoid",)),
    "dpo.max_prompt_length": to("objective.max_prompt_length", coerce.count, "2048 where it is not given."),
    "dpo.precompute_ref_log_probs": equivalent("the reference model's answers are the same, whenever they are made",
                                               boolean, "Whether the reference model runs once, before training."),
    "dpo.truncation_mode": to("objective.truncation", choice("keep_start", "keep_end"), "What of a prompt stays."),
    "sft.packing": to("data.packing", boolean, "Several examples in one sequence."),
    "orpo.beta": to("objective.beta", coerce.positive, "Weight of the odds ratio; 0.1."),
    "orpo.max_prompt_length": to("objective.max_prompt_length", coerce.count, "2048 where it is not given."),
    "orpo.truncation_mode": to("objective.truncation", choice("keep_start", "keep_end"), "What of a prompt stays."),
    **{
        f"peft.{name}": rejected(_NO_LORA, anything, quiet=(None,))
        for name in (
            "lora_rank", "lora_alpha", "lora_dropout", "lora_bias", "lora_verbose", "target_modules",
            "load_lora_from_ckpt", "save_lora_base", "merge_lora", "save_lora_config_adapter", "merge_sharded_lora",
        )
    },
}  # fmt: skip
_OLD_NAMES = {
    "dpo.max_dpo_prompt_length": "dpo.max_prompt_length",
    "orpo.max_dpo_prompt_length": "orpo.max_prompt_length",
}

KEYS: dict[str, Key] = {
    **DATA,
    **{
        f"{place}.{name}": key
        for place in (ALIGNMENT, OLD_ALIGNMENT)
        for name, key in {**_STRATEGY, **{old: _STRATEGY[new] for old, new in _OLD_NAMES.items()}}.items()
    },
}

DEFAULT_BETA = {"dpo": 0.01, "orpo": 0.1}
MAX_PROMPT_LENGTH = 2048


def kind(settings: Settings) -> Kind:
    """What is minimised: by the block that is there; two of them are an error."""
    kinds: tuple[Kind, ...] = ("dpo", "orpo", "sft")
    there = [name for name in kinds if settings.has(f"{ALIGNMENT}.{name}")]
    if len(there) > 1:
        why = f"{' and '.join(there)} are given, and a run has one objective"
        settings.add(f"{ALIGNMENT}.{there[1]}", "error", "contradiction", why, "keep one of the blocks")
    if there:
        return there[0]
    if settings.get("data.use_sft_style_data_module"):
        settings.add(
            "data.use_sft_style_data_module", "warning", "no-effect",
            "NxDT reads neither this nor data.packing, and fails for want of data_prefix; it is taken as SFT here",
            "write model_alignment_strategy: {sft: {packing: …}} instead",
        )  # fmt: skip
        return "sft"
    return "pretraining"


def objective(settings: Settings, kind: Kind) -> Objective:
    """The objective with its own numbers."""
    if kind in ("pretraining", "sft"):
        return Objective(kind=kind)
    block = f"{ALIGNMENT}.{kind}"
    return Objective(
        kind=kind,
        beta=settings.get(f"{block}.{'kl_beta' if kind == 'dpo' else 'beta'}", DEFAULT_BETA[kind]),
        max_prompt_length=settings.get(f"{block}.max_prompt_length", MAX_PROMPT_LENGTH),
        truncation=settings.get(f"{block}.truncation_mode", "keep_start"),
    )


def data(settings: Settings, kind: Kind) -> Data:
    """The data, by the module that NxDT would take: alignment's, else that of the model's source."""
    if kind != "pretraining":
        return _records(settings, kind)
    if settings.get("model_source", "hf") == "hf":
        return _arrow(settings)
    return _megatron(settings)


def sequence_length(settings: Settings, kind: Kind) -> int | None:
    """Tokens per sequence; where the data and the model disagree, the data decides, and NxDT would stop."""
    model: int | None = settings.get("model.encoder_seq_length")
    given: int | None = settings.get("data.seq_length")
    if model is None:
        settings.missing("model.encoder_seq_length")
    if given is None or given == model:
        return model
    if model is not None:
        uses_data = kind != "pretraining" or settings.get("model_source") == "megatron"
        settings.add(
            "data.seq_length", "warning", "sequence-length-mismatch",
            f"sequences of {given} tokens meet a model for {model} (model.encoder_seq_length): NxDT stops at the first "
            f"batch; here {given if uses_data else model} tokens are trained on",
            f"give both the same length: model.encoder_seq_length={given}, or data.seq_length={model}",
        )  # fmt: skip
        return given if uses_data else model
    return given


def _path(settings: Settings, name: str) -> tuple[str, ...]:
    value = settings.get(name)
    return (value,) if value else ()


def _tokenizer(settings: Settings) -> str | None:
    """The tokenizer's path or name, wherever it is given."""
    found: str | None = settings.get("data.tokenizer.type") or settings.get("data.tokenizer.model")
    return found


def _records(settings: Settings, kind: Kind) -> Data:
    paths = _path(settings, "data.train_dir")
    if not paths:
        settings.missing("data.train_dir", f"{kind} learns from a file of examples, and none is named")
    tokenizer = _tokenizer(settings)
    if tokenizer is None:
        settings.missing("data.tokenizer.type", f"the examples of {kind} are text, and nothing says how to tokenise it")
    return Data(
        kind="records",
        paths=paths,
        validation_paths=_path(settings, "data.val_dir"),
        test_paths=_path(settings, "data.test_dir"),
        tokenizer=tokenizer or Data().tokenizer,
        packing=kind == "sft" and bool(settings.get(f"{ALIGNMENT}.sft.packing", settings.get("data.packing", False))),
        max_examples=settings.get("data.dev_choose_samples"),
    )


def _arrow(settings: Settings) -> Data:
    paths = _path(settings, "data.train_dir")
    if not paths:
        settings.missing("data.train_dir", "a model of the source hf learns from a folder of Arrow files")
    return Data(
        kind="arrow",
        paths=paths,
        validation_paths=_path(settings, "data.val_dir"),
        test_paths=_path(settings, "data.test_dir"),
        tokenizer=_tokenizer(settings) or Data().tokenizer,
    )


def _megatron(settings: Settings) -> Data:
    prefix = settings.get("data.data_prefix")
    if prefix is None:
        settings.missing("data.data_prefix", "a model of the source megatron learns from .bin and .idx files")
    splits = prefix if isinstance(prefix, dict) else {"train": prefix or ()}
    train = splits["train"]
    weights = tuple(weight for weight, _ in train)
    return Data(
        kind="megatron",
        paths=tuple(path for _, path in train),
        weights=() if len(set(weights)) < 2 else weights,
        validation_paths=tuple(path for _, path in splits.get("validation", ())),
        test_paths=tuple(path for _, path in splits.get("test", ())),
        split=None if isinstance(prefix, dict) else settings.get("data.splits_string"),
        tokenizer=_tokenizer(settings) or Data().tokenizer,
        index_dir=settings.get("data.index_mapping_dir"),
        reset_positions=settings.get("data.reset_position_ids", False),
        reset_attention=settings.get("data.reset_attention_mask", False),
        mask_document_ends=settings.get("data.eod_mask_loss", False),
    )
