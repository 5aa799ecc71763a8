"""NxDT's deviations from its own documentation, and what Seatrial does there.

Found in aws-neuron/neuronx-distributed-training at 9169aa0 (Neuron 2.26). `touches` says whether a file meets one, and
`numbers` whether it then computed something else than what is documented, or only stopped or did nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seatrial.dialects.nxdt.keys import ALIGNMENT
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import deviations
from seatrial.spec import RunSpec

Touches = Callable[[Settings, RunSpec], bool]


@dataclass(frozen=True, kw_only=True)
class Deviation(deviations.Deviation):
    """One of NxDT's, with the files that meet it."""

    touches: Touches | None = None
    numbers: bool = False


def _is_hf(settings: Settings) -> bool:
    return bool(settings.get("model_source") == "hf")


def _mixed_without_zero1(settings: Settings, spec: RunSpec) -> bool:
    mixed = settings.get("precision.type") in ("mixed_precision", "mixed_precisionSR", "mixed_precision_SR", "autocast")
    return _is_hf(settings) and mixed and not spec.parallelism.zero1


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        key="precision.type", documented="mixed_precisionSR is mixed precision with stochastic rounding",
        actual="it stops with an error; mixed_precision_SR, which no document names, keeps no master weights",
        here="as documented, by either name",
        touches=lambda settings, spec: settings.get("precision.type") in ("mixed_precisionSR", "mixed_precision_SR"),
    ),
    Deviation(
        key="trainer.max_epochs", documented="without max_steps, the epochs are the run's length",
        actual="then it makes no schedule: the rate is constant",
        here="the schedule ends with the last epoch",
        touches=lambda settings, spec: spec.steps is None and spec.optimizer.schedule != "constant", numbers=True,
    ),
    Deviation(
        key="trainer.num_nodes", documented="required, as are max_epochs, log_every_n_steps, val_check_interval, "
        "check_val_every_n_epoch, num_sanity_val_steps, limit_val_batches, gradient_clip_val and most of the model's",
        actual="PyTorch Lightning and NxDT have defaults for them", here="the defaults that their rows name",
    ),
    Deviation(
        key="trainer.log_every_n_steps", documented="1 where it is not given", actual="50, PyTorch Lightning's default",
    ),
    Deviation(
        key="trainer.gradient_clip_val", documented="gradients are clipped at this norm",
        actual="with zero1 they are clipped at 1.0, whatever it says",
        touches=lambda settings, spec: spec.parallelism.zero1 and spec.optimizer.clip_norm != 1.0, numbers=True,
    ),
    Deviation(
        key="model.do_layer_norm_weight_decay", documented="true: weight decay applies to norms too",
        actual="in hf models the other way round: true exempts them, false does not",
        touches=lambda settings, spec: _is_hf(settings) and spec.optimizer.weight_decay > 0
        and "model.do_layer_norm_weight_decay" in settings.entries, numbers=True,
    ),
    Deviation(
        key="model.optim.weight_decay", documented="the weight decay",
        actual="in hf models it is 0.01, whatever it says",
        touches=lambda settings, spec: _is_hf(settings) and spec.optimizer.weight_decay != 0.01
        and "model.optim.weight_decay" in settings.entries, numbers=True,
    ),
    Deviation(
        key="exp_manager.enable_recovery_time_instrumentation",
        documented="it does what its name says; so do dpo.loss_type, dpo.precompute_ref_log_probs, save_bf16, "
        "fp32_grads_cc, data.use_sft_style_data_module, data.packing, tokenizer.use_fast",
        actual="none of them is read",
        here="startup times are logged; the others have no effect here either, and loss_type may only be sigmoid",
        touches=lambda settings, spec: spec.logging.startup_times
        or settings.get(f"{ALIGNMENT}.dpo.precompute_ref_log_probs") is False,
    ),
    Deviation(
        key=f"{ALIGNMENT}.sft.packing", documented="packed examples are trained on like others",
        actual="packed, the prompts are trained on too, and the attention mask is made of token ids",
        touches=lambda settings, spec: spec.objective.kind == "sft" and spec.data.packing, numbers=True,
    ),
    Deviation(
        key=f"{ALIGNMENT}.sft", documented="the loss is that of the answers",
        actual="in hf models the mean goes over every position, and those to be left out add to loss and gradient",
        touches=lambda settings, spec: spec.objective.kind == "sft" and _is_hf(settings), numbers=True,
    ),
    Deviation(
        key=f"{ALIGNMENT}.dpo", documented="each pair is compared with the reference model's answer to it",
        actual="the reference's log probabilities are made in shuffled order and attached to other pairs",
        touches=lambda settings, spec: spec.objective.kind == "dpo", numbers=True,
    ),
    Deviation(
        key=f"{ALIGNMENT}.dpo.kl_beta", documented="0.01 where it is not given, and so is orpo.beta",
        actual="without them, it stops with an error",
    ),
    Deviation(
        key=f"{ALIGNMENT}.sft.packing", documented="false: examples are padded to seq_length",
        actual="an example of just that length is padded to twice of it, and training stops",
        touches=lambda settings, spec: spec.objective.kind == "sft" and not spec.data.packing,
    ),
    Deviation(
        key="trainer.devices", documented="the devices of all nodes",
        actual="those of each node", here="those of each node, as every sample means it",
    ),
    Deviation(
        key="distributed_strategy.kv_replicator", documented="a bool", actual="the number of copies",
        here="the number of copies",
    ),
    Deviation(
        key="data.train_dir", documented=".jsonl or .arrow files", actual="an .arrow file stops with an error",
        touches=lambda settings, spec: spec.data.kind == "records"
        and any(path.endswith(".arrow") for path in spec.data.paths),
    ),
    Deviation(
        key="model.activations_checkpoint_granularity", documented="null: nothing is recomputed",
        actual="hf Llama models without flash attention recompute attention all the same",
        touches=lambda settings, spec: _is_hf(settings) and spec.execution.remat == "none"
        and spec.execution.attention != "flash",
    ),
    Deviation(
        key="model.activations_checkpoint_recompute", documented="may be left out with granularity selective",
        actual="it stops with an error", here="then attention (CoreAttention) is recomputed",
        touches=lambda settings, spec: spec.execution.remat == "selective"
        and not settings.get("model.activations_checkpoint_recompute"),
    ),
    Deviation(
        key="model.fusions.flash_attention", documented="required",
        actual="hf models stop without it, and megatron models do not read it",
        here="where it is null, or not given, what is fastest",
    ),
    Deviation(
        key="model.fusions.ring_attention", documented="must be true where context_parallel_size is above 1",
        actual="false where it is not given, so that such a model stops",
        here="where it is not given, true if there are parts of a sequence",
    ),
    Deviation(
        key="exp_manager.create_tensorboard_logger", documented="false where it is not given",
        actual="true; log_parameter_norm and log_gradient_norm are false, though the schema says true",
        touches=lambda settings, spec: "exp_manager.create_tensorboard_logger" not in settings.entries,
    ),
    Deviation(
        key="exp_manager.resume_if_exists", documented="a failed run goes on from its newest checkpoint",
        actual="resume_from_checkpoint overrides it, incomplete checkpoints count, and hf data starts over",
        touches=lambda settings, spec: spec.checkpoint.resume and spec.checkpoint.resume_from is not None, numbers=True,
    ),
    Deviation(
        key="exp_manager.checkpoint_callback_params.use_master_weights_in_ckpt",
        documented="mixed precision keeps master weights",
        actual="checkpoints do not hold them unless this is true, so resuming is not exact",
        here="checkpoints always hold what the optimizer updates",
    ),
    Deviation(
        key="model_source", documented="megatron models can be fine-tuned (SFT)",
        actual="the sample fails for want of data_prefix, and labels are not shifted by a token",
        here="as hf models are",
        touches=lambda settings, spec: spec.objective.kind == "sft" and not _is_hf(settings), numbers=True,
    ),
    Deviation(
        key="model.sliding_window_size", documented="attention to the last so many tokens",
        actual="no mask is made where it is not the sequence's length, so that tokens see those behind them",
        touches=lambda settings, spec: spec.model.sliding_window not in (None, spec.batch.sequence_length)
        and not _is_hf(settings), numbers=True,
    ),
    Deviation(
        key="model.optim.sched.name", documented="rprop is one of the schedules", actual="it is an optimizer",
        here="rejected",
    ),
    Deviation(
        key="precision.parallel_layers_reduce_dtype", documented="sums over tensor parallelism are in this format",
        actual="megatron models do not read it",
        touches=lambda settings, spec: not _is_hf(settings) and spec.mesh["tensor"] > 1
        and spec.precision.tensor_reduce_dtype is not None
        and "precision.parallel_layers_reduce_dtype" in settings.entries, numbers=True,
    ),
    Deviation(
        key="model.apply_query_key_layer_scaling", documented="scores are scaled by 1 / layer",
        actual="and multiplied by it again in the softmax, so that nothing changes",
        here="nothing changes: it is a matter of float16's range",
    ),
    Deviation(
        key="model.make_vocab_size_divisible_by", documented="the vocabulary is padded to a multiple of it",
        actual="to a multiple of it × tensor_model_parallel_size",
        here="to a multiple of it × tensor_model_parallel_size, which each device's part asks for",
    ),
    Deviation(
        key="distributed_strategy.zero1", documented="mixed_precision keeps master weights and sums in float32",
        actual="without zero1, hf models have neither",
        touches=_mixed_without_zero1, numbers=True,
    ),
)  # fmt: skip
