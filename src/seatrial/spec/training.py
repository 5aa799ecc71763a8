"""The training itself: batch, number formats, optimizer, objective, data, logging and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples per optimizer step (`global_batch_size`) and per data-parallel replica and forward pass (micro).

    An example is a sequence; of preferences (`dpo`, `orpo`), it is a pair of them.
    """

    sequence_length: int
    global_batch_size: int
    micro_batch_size: int


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats. `params_dtype` is what the optimizer updates (float32: "master weights")."""

    compute_dtype: Dtype = "bfloat16"
    params_dtype: Dtype = "float32"
    optimizer_dtype: Dtype = "float32"
    gradient_dtype: Dtype = "float32"  # in which gradients are accumulated over micro-batches
    reduce_dtype: Dtype = "float32"  # in which they are summed over data-parallel replicas
    # In which partial results are summed over tensor parallelism; None: compute_dtype.
    tensor_reduce_dtype: Dtype | None = None
    stochastic_rounding: bool = False  # where a float32 result is stored as bfloat16
    quantization: str | None = None  # a name of QUANTIZATIONS; None: the matrix products run in compute_dtype
    # Of float16, whose gradients are those of a scaled loss.
    loss_scale: float | None = None  # None: it follows the gradients, as the others say
    initial_loss_scale: float = 2.0**32
    min_loss_scale: float = 1.0
    loss_scale_window: int = 1000  # steps with finite gradients after which it doubles
    loss_scale_hysteresis: int = 2  # steps with other gradients after which it halves


# What configurations call quantised matrix products → a row of the trainer's table of recipes. The names are MaxText's;
# `fp8` is also what Megatron's flags and Transformer Engine's default stand for.
QUANTIZATIONS: dict[str, str] = {
    "fp8": "delayed",
    "fp8_gpu": "delayed",
    "te_fp8_delayedscaling": "delayed",
    "fp8_full": "current",
    "te_fp8_currentscaling": "current",
    "fp8_e4m3": "current_e4m3",
    "nanoo_fp8": "delayed_fnuz",
    "fp8_nanoo": "delayed_fnuz",
}
_BLOCKS = "scales for blocks of a tensor need Blackwell's matrix units"
_INTEGERS = "integer products are not trained with here"
NOT_QUANTIZATIONS: dict[str, str] = {  # names that are known, and why the trainer has no recipe for them
    "te_mxfp8": _BLOCKS,
    "te_nvfp4": _BLOCKS,
    "te_nvfp4_no_rht": _BLOCKS,
    "fp4": _BLOCKS,
    "int8": _INTEGERS,
    "int4": _INTEGERS,
    "intmp": _INTEGERS,
    "fp8_e5m2": "two bits of mantissa are too few for activations and weights",
}


Algorithm = Literal[
    "adamw", "adamw_fp32", "adam", "sgd", "adadelta", "adamax", "adagrad", "rmsprop", "rprop", "novograd", "adafactor"
]  # fmt: skip
ScheduleKind = Literal[
    "cosine", "linear", "constant", "maxtext_cosine", "maxtext_linear", "nemo_cosine", "warmup", "warmup_hold",
    "square", "square_root", "noam", "noam_hold", "warmup_annealing", "inverse_square_root", "t5_inverse_square_root",
    "polynomial", "polynomial_hold", "step",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer and its schedule; by default AdamW with linear warm-up, cosine decay, and clipping by global norm.

    `cosine` and `linear` are Megatron's: the final rate is reached a step after the schedule. MaxText's reach it in the
    schedule's last step, and fall to 0 behind it. `nemo_cosine` and the others are NeMo's of these names, whose warm-up
    differs by a step. `step` is torch's StepLR, and its ExponentialLR where it falls once an epoch. `adamw_fp32` is
    NxD's AdamW, which adds epsilon before the bias correction.
    """

    algorithm: Algorithm = "adamw"
    learning_rate: float = 3e-5
    schedule: ScheduleKind = "cosine"
    warmup_steps: int = 0
    hold_steps: int = 0  # at the full rate, after the warm-up
    constant_steps: int = 0  # at the final rate, at the end
    decay_steps: int | None = None  # length of the whole schedule, warm-up included; None: the run's steps
    final_learning_rate_fraction: float = 0.1
    embedding_learning_rate: float | None = None  # of the embedding and the output head; None: as all others
    embedding_final_learning_rate: float | None = None  # theirs at the end; None: as all others
    decay_power: float = 1.0  # of the polynomial schedules; of noam_hold, its decay rate
    decay_factor: float = 0.1  # of step: what the rate is multiplied by each time
    decay_interval_steps: int | None = None  # of step: how often; None: after each epoch
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    momentum: float = 0.0  # of sgd and rmsprop
    weight_decay: float = 0.1  # rprop has none
    decay_norms: bool = False  # whether weight decay applies to norms and biases too
    clip_norm: float | None = 1.0
    # At a loss or a gradient norm that is no finite number: end the run, leave the parameters as they are, or go on.
    on_non_finite: Literal["abort", "skip", "continue"] = "abort"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The objective to minimise. `sft`: the loss on answers only; `dpo`, `orpo`: preferences between two answers."""

    kind: Literal["pretraining", "sft", "dpo", "orpo"] = "pretraining"
    beta: float = 0.1  # of dpo and orpo
    max_prompt_length: int | None = None  # tokens of a prompt that is shortened because its example does not fit
    truncation: Literal["keep_start", "keep_end"] = "keep_start"  # which part of that prompt is kept


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data that the model is trained on.

    `synthetic`: one random batch, again in every step, as MaxText's. `text`: files, tokenised. `megatron`: `.bin` and
    `.idx` files, by their common path. `arrow`: folders of `datasets.save_to_disk`. `records`: JSON lines of prompts
    and answers. `huggingface`, `grain`, `tfds`, `c4_mlperf`: MaxText's pipelines of these names.
    """

    kind: Literal[
        "synthetic", "text", "megatron", "arrow", "records", "huggingface", "grain", "tfds", "c4_mlperf"
    ] = "synthetic"  # fmt: skip
    # Files or globs; `stdlib:*.py` names files of the running Python's standard library.
    paths: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()  # how much of each path; none: each by its size, because each document comes once
    validation_paths: tuple[str, ...] = ()
    test_paths: tuple[str, ...] = ()
    split: str | None = None  # "980,10,10": the shares of training, validation and test in `paths`
    dataset: str | None = None  # the name of a data set that its pipeline knows
    tokenizer: str = "byte"  # or the path or name of a Hugging Face tokenizer
    index_dir: str | None = None  # where tokens and index files are kept; None: in the user's cache, or beside the data
    packing: bool = False  # several examples in one sequence, which do not see each other
    add_bos: bool = False  # documents begin with the tokenizer's begin-of-text token, if it has one
    max_examples: int | None = None  # the first so many, of training and validation each
    reset_positions: bool = False  # positions restart after the end of a document
    reset_attention: bool = False  # a document does not attend to the one before
    mask_document_ends: bool = False  # no loss on the end-of-document token


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When the loss on validation data is measured, and on how much; off unless one of the intervals is given."""

    interval_steps: int | None = None
    interval_fraction: float | None = None  # of an epoch
    # Only in every so many epochs, in each of which interval_steps counts from 0; None: in all, and it counts on.
    every_epochs: int | None = None
    batches: int | None = None  # None: by `fraction`
    fraction: float = 1.0  # of the validation data
    initial_batches: int = 0  # before the first step
    target_loss: float | None = None  # the run is over when an evaluation comes down to it
    patience: int | None = None  # or when so many evaluations in a row have been no better than the best before

    @property
    def is_on(self) -> bool:
        """True if there are evaluations between steps."""
        return bool(self.interval_steps or self.interval_fraction)


@dataclass(frozen=True, kw_only=True)
class Logging:
    """The settings of logging: its interval, and what is written beside the log itself."""

    interval_steps: int = 1
    tensorboard: bool = False
    gradient_norm: bool = True
    parameter_norm: bool = False
    startup_times: bool = True


# A layer's tensors that recomputation can be told to keep, beside its input.
TENSORS = ("query", "key", "value", "context", "out", "gate", "up", "down")
INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Choices that change speed and memory, never the result."""

    remat: str = "full"  # a row of the trainer's remat table
    remat_modules: tuple[str, ...] = ()  # what the row "selective" recomputes
    remat_kept: tuple[str, ...] = ()  # some of TENSORS: what the row "custom" keeps beside a layer's input
    remat_offloaded: tuple[str, ...] = ()  # what the row "custom" keeps in the host's memory; "input": that too
    scan_layers: bool = True
    attention: str = "auto"  # a row of the trainer's attention table
    xla_flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # exported to every process
    engine_keys: Mapping[str, str] = field(default_factory=dict)  # what an engine gets as it stands: no field holds it
    compile_cache: str | None = None  # a folder in which compiled programs are kept
    profile_from_step: int | None = None  # None: no profile
    profile_steps: int = 5


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When the state of training is saved, how much of it is kept, and what training begins with."""

    enabled: bool = False
    asynchronous: bool = True
    directory: str | None = None  # None: in the run directory
    interval_steps: int | None = None  # None: only at the end
    interval_minutes: float | None = None
    keep: int | None = 1  # None: all; which ones, says `keep_best`
    keep_best: str | None = None  # by this metric ("validation_loss"); None: the newest
    resume: bool = False  # from the newest checkpoint of this run, where there is one
    resume_required: bool = False  # the run stops where `resume` finds none, and `resume_from` names none
    resume_from: str | None = None  # a checkpoint that is used where `resume` finds none
    weights_only: bool = False  # of `resume_from`, take no optimizer state
