"""The meaning of every field of a run, in one line and the field's standard terms, with its unit.

The JSON Schema, the reference pages and `plan --explain` show them.
"""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.spec import AXES


@dataclass(frozen=True, kw_only=True)
class Field:
    """One sentence, and the unit of the value where it has one."""

    meaning: str
    unit: str = ""


def _field(meaning: str, unit: str = "") -> Field:
    return Field(meaning=meaning, unit=unit)


_AXES = {
    "pipeline": "Pipeline stages: layers are split into groups that pass activations on",
    "data": "Data-parallel replicas, each with all parameters",
    "fsdp": "Replicas that shard parameters and optimizer state among themselves (FSDP, ZeRO-3)",
    "context": "Parts that the sequence is split into for attention (context parallelism)",
    "tensor": "Parts that heads, MLP and vocabulary are split into (Megatron's tensor parallelism)",
}
_PARTS = {"within_node": "over the fast links of a node", "across_nodes": "over the network between nodes"}
_MESH = {
    f"parallelism.{part}.{axis}": _field(f"{_AXES[axis]}, {where}; -1: all that the other axes leave.", "devices")
    for part, where in _PARTS.items()
    for axis in AXES
}

FIELDS: dict[str, Field] = {
    "name": _field("What the run is called; its run directory is named after it."),
    "model": _field("The model: the name of a preset, or its fields, with or without a preset to start from."),
    "model.preset": _field("The published architecture to start from; other fields change it."),
    "model.name": _field("What the model is called."),
    "model.vocab_size": _field("Rows of the embedding table, before padding.", "tokens"),
    "model.hidden_dim": _field("Width of the residual stream."),
    "model.num_layers": _field("Decoder blocks.", "layers"),
    "model.num_heads": _field("Query heads of an attention layer.", "heads"),
    "model.num_kv_heads": _field("Key and value heads; fewer than query heads is grouped-query attention.", "heads"),
    "model.head_dim": _field("Width of a head."),
    "model.ffn_dim": _field("Inner width of the MLP; of SwiGLU, of each of its two projections."),
    "model.rope_theta": _field("Base of the rotary frequencies."),
    "model.rope_scaling": _field("Llama 3.1's frequency-dependent scaling of rotary positions; null: none."),
    "model.rope_scaling.factor": _field("Factor by which low frequencies are scaled."),
    "model.rope_scaling.low_freq_factor": _field("Wavelengths above original_max_positions ÷ this are scaled."),
    "model.rope_scaling.high_freq_factor": _field("Wavelengths below original_max_positions ÷ this are not."),
    "model.rope_scaling.original_max_positions": _field("Sequence length before the scaling.", "tokens"),
    "model.norm_epsilon": _field("Added to the variance in every norm."),
    "model.tied_embeddings": _field("Whether the output head is the transposed embedding table."),
    "model.norm": _field("Kind of normalisation."),
    "model.activation": _field("Nonlinearity of the MLP."),
    "model.positions": _field("Position embedding: rotary (rope) or a learned table."),
    "model.max_positions": _field("Rows of the table of learned positions; null: the sequence length.", "tokens"),
    "model.rotary_fraction": _field("Part of head_dim with rotary positions.", "fraction"),
    "model.biases": _field("Whether linear maps have biases; the output head never has."),
    "model.sliding_window": _field("Keys that a query reads, its own the last; null: all before it.", "tokens"),
    "model.vocab_multiple": _field("Embedding tables are padded to a multiple of this × tensor.", "tokens"),
    "batch": _field("How many tokens a step processes."),
    "batch.sequence_length": _field("Length of a training example.", "tokens"),
    "batch.global_batch_size": _field("Sequences per optimizer step, over all devices.", "sequences"),
    "batch.micro_batch_size": _field("Sequences per forward pass of a data-parallel replica.", "sequences"),
    "steps": _field("Optimizer steps after which the run ends.", "steps"),
    "epochs": _field(
        "Passes over the data after which the run ends, if sooner than steps, or where these are null; null: no limit.",
        "epochs",
    ),
    "topology": _field("The machines that the run needs."),
    "topology.num_nodes": _field("Nodes.", "nodes"),
    "topology.devices_per_node": _field("Accelerators of a node.", "devices"),
    "topology.device": _field("Kind of accelerator, by which peaks are known; null: whatever is found."),
    "parallelism": _field("How the work is split over the devices."),
    **{f"parallelism.{part}": _field(f"Sizes of the mesh axes {where}.") for part, where in _PARTS.items()},
    **_MESH,
    "parallelism.virtual_pipeline": _field("Model chunks per pipeline stage (interleaved schedule).", "chunks"),
    "parallelism.counts_embedding": _field("Whether the embedding counts as a layer of the first pipeline stage."),
    "parallelism.counts_head": _field("Whether the output head counts as a layer of the last pipeline stage."),
    "parallelism.zero1": _field("Whether optimizer state is sharded over data-parallel replicas (ZeRO-1)."),
    "parallelism.sequence_parallel": _field(
        "Whether activations between tensor-parallel regions are sharded along the sequence (Megatron)."
    ),
    "parallelism.context_strategy": _field("How keys and values are gathered over the context axis."),
    "precision": _field("Number formats."),
    "precision.compute_dtype": _field("Format of activations and matrix products."),
    "precision.params_dtype": _field('Format of the parameters that are updated (float32: "master weights").'),
    "precision.optimizer_dtype": _field("Format of the optimizer's moments."),
    "precision.gradient_dtype": _field("Format in which gradients are accumulated over micro-batches."),
    "precision.reduce_dtype": _field("Format in which gradients are summed over replicas."),
    "precision.tensor_reduce_dtype": _field(
        "Format in which partial results are summed over tensor parallelism; null: compute_dtype."
    ),
    "precision.stochastic_rounding": _field("Whether results are rounded at random where they are stored as bfloat16."),
    "precision.quantization": _field("Quantised matrix products, such as fp8; null: in compute_dtype."),
    "precision.loss_scale": _field("Scale of float16's loss; null: it follows the gradients."),
    "precision.initial_loss_scale": _field("The scale with which it begins."),
    "precision.min_loss_scale": _field("The least scale."),
    "precision.loss_scale_window": _field("Steps with finite gradients after which the scale doubles.", "steps"),
    "precision.loss_scale_hysteresis": _field("Steps with other gradients after which the scale halves.", "steps"),
    "initialization": _field("How parameters are initialised."),
    "initialization.std": _field("Standard deviation of the normal distribution that weights are drawn from."),
    "initialization.scaled": _field("Whether projections into the residual stream use std ÷ √(2 × layers)."),
    "dropout": _field("Probabilities of dropout."),
    "dropout.hidden": _field("On the embedding and the residual branches.", "probability"),
    "dropout.attention": _field("On attention weights.", "probability"),
    "dropout.ffn": _field("Inside the MLP.", "probability"),
    "optimizer": _field("How parameters are updated."),
    "optimizer.algorithm": _field("Update rule; adamw_fp32 is NxD's, which adds epsilon before the bias correction."),
    "optimizer.learning_rate": _field("Peak learning rate."),
    "optimizer.schedule": _field("Learning-rate schedule after the warm-up."),
    "optimizer.warmup_steps": _field("Steps over which the rate rises linearly.", "steps"),
    "optimizer.hold_steps": _field("Steps at the full rate after the warm-up.", "steps"),
    "optimizer.constant_steps": _field("Steps at the final rate, at the end.", "steps"),
    "optimizer.decay_steps": _field("Length of the whole schedule, warm-up included; null: the run's steps.", "steps"),
    "optimizer.final_learning_rate_fraction": _field("Final learning rate as a part of the peak.", "fraction"),
    "optimizer.embedding_learning_rate": _field(
        "Peak learning rate of the embedding and the output head; null: as all others."
    ),
    "optimizer.embedding_final_learning_rate": _field("Their final learning rate; null: as all others."),
    "optimizer.decay_power": _field("Power of the polynomial schedules; of noam_hold, its decay rate."),
    "optimizer.decay_factor": _field("Of the schedule step: what the rate is multiplied by at each interval."),
    "optimizer.decay_interval_steps": _field("Of the schedule step: its interval; null: an epoch.", "steps"),
    "optimizer.beta1": _field("Decay of Adam's first moment."),
    "optimizer.beta2": _field("Decay of Adam's second moment."),
    "optimizer.epsilon": _field("Added to the denominator of the update."),
    "optimizer.momentum": _field("Momentum of sgd and rmsprop."),
    "optimizer.weight_decay": _field("Decoupled weight decay."),
    "optimizer.decay_norms": _field("Whether weight decay applies to norms and biases too."),
    "optimizer.clip_norm": _field("Global norm to which gradients are clipped; null: no clipping."),
    "optimizer.on_non_finite": _field(
        "At a loss or gradient norm that is not finite: end the run (abort), skip the update (skip), or continue."
    ),
    "objective": _field("What is minimised."),
    "objective.kind": _field("Loss on all tokens (pretraining), on answers only (sft), or on preferences (dpo, orpo)."),
    "objective.beta": _field("Weight of the preference term of dpo and orpo."),
    "objective.max_prompt_length": _field("Longest prompt kept of an example that does not fit; null: any.", "tokens"),
    "objective.truncation": _field("Which part of a prompt that is too long is kept."),
    "data": _field("Training data."),
    "data.kind": _field("Where examples come from: one random batch (synthetic), text files, or a pipeline's format."),
    "data.paths": _field("Files, globs or prefixes of the training data."),
    "data.weights": _field("How much of each path; empty: equal shares."),
    "data.validation_paths": _field("The same for validation."),
    "data.test_paths": _field("The same for the final test."),
    "data.split": _field("Shares of training, validation and test in paths, such as 980,10,10; null: all is training."),
    "data.dataset": _field("Name of a data set that its pipeline knows."),
    "data.tokenizer": _field("byte, or the path or name of a Hugging Face tokenizer."),
    "data.index_dir": _field("Folder for index files; null: beside the data."),
    "data.packing": _field("Whether several examples share a sequence."),
    "data.max_examples": _field("Largest number of examples, of training and validation each; null: all.", "examples"),
    "data.reset_positions": _field("Whether positions restart after the end of a document."),
    "data.reset_attention": _field("Whether attention stops at the end of a document."),
    "data.mask_document_ends": _field("Whether the end-of-document token is left out of the loss."),
    "evaluation": _field("When the loss on validation data is measured; off unless an interval is given."),
    "evaluation.interval_steps": _field("Steps between evaluations.", "steps"),
    "evaluation.interval_fraction": _field("Part of an epoch between evaluations.", "fraction"),
    "evaluation.every_epochs": _field(
        "Evaluations only in every so many epochs, in each of which interval_steps counts from 0; null: in all, and it "
        "counts on.", "epochs",
    ),
    "evaluation.batches": _field("Batches of an evaluation; null: as fraction says.", "batches"),
    "evaluation.fraction": _field("Part of the validation data that an evaluation uses.", "fraction"),
    "evaluation.initial_batches": _field("Batches evaluated before the first step; -1: all, 0: none.", "batches"),
    "evaluation.target_loss": _field("Validation loss at which the run ends; null: never.", "nats"),
    "evaluation.patience": _field("Evaluations without improvement after which the run ends; null: never."),
    "logging": _field("What is logged."),
    "logging.interval_steps": _field("Steps between lines of the log.", "steps"),
    "logging.tensorboard": _field("Whether metrics are written for TensorBoard."),
    "logging.gradient_norm": _field("Whether the global norm of the gradient is logged."),
    "logging.parameter_norm": _field("Whether the global norm of the parameters is logged."),
    "logging.startup_times": _field("Whether times of start-up phases are logged."),
    "execution": _field("Choices that change speed and memory, never the result."),
    "execution.remat": _field("Which activations are kept for the backward pass, and which are recomputed."),
    "execution.remat_modules": _field('What "selective" recomputes.'),
    "execution.remat_kept": _field('What "custom" keeps of a layer beside its input.'),
    "execution.remat_offloaded": _field('What "custom" keeps in the host\'s memory.'),
    "execution.scan_layers": _field("Whether layers are compiled as a loop rather than unrolled."),
    "execution.attention": _field("Implementation of attention; auto: the best one for the device."),
    "execution.xla_flags": _field("Flags for XLA's compiler, by name without dashes."),
    "execution.environment": _field("Environment variables of every process."),
    "execution.engine_keys": _field("Keys of MaxText or arguments of Megatron-LM that it gets as they stand."),
    "execution.compile_cache": _field("Folder in which compiled programs are kept; null: none."),
    "execution.profile_from_step": _field("Step at which a profile begins; null: no profile.", "steps"),
    "execution.profile_steps": _field("Length of the profile.", "steps"),
    "checkpoint": _field("When the state of training is saved, how much is kept, and what training starts from."),
    "checkpoint.enabled": _field("Whether checkpoints are saved."),
    "checkpoint.asynchronous": _field("Whether training continues while a checkpoint is written."),
    "checkpoint.directory": _field("Folder of the checkpoints; null: in the run directory."),
    "checkpoint.interval_steps": _field("Steps between checkpoints; null: only at the end.", "steps"),
    "checkpoint.interval_minutes": _field("Time between checkpoints; null: by steps alone.", "minutes"),
    "checkpoint.keep": _field("How many checkpoints are kept; null: all.", "checkpoints"),
    "checkpoint.keep_best": _field("Metric by which the best are kept; null: the newest are."),
    "checkpoint.resume": _field("Whether to resume from this run's newest checkpoint, if there is one."),
    "checkpoint.resume_required": _field("Whether the run stops where there is no checkpoint to resume from."),
    "checkpoint.resume_from": _field("Checkpoint to start from where resume finds none."),
    "checkpoint.weights_only": _field("Whether only parameters are loaded from resume_from, without optimizer state."),
    "distributed": _field("How the processes find each other."),
    "distributed.coordinator_host": _field("Host of the coordinator; null: the first node."),
    "distributed.coordinator_port": _field("TCP port of the coordinator; null: a free one, chosen at launch."),
    "distributed.initialization_timeout_seconds": _field("How long processes wait for each other at the start.", "s"),
    "distributed.slurm": _field("What a job requests of Slurm, by option; used with --on slurm, where --slurm wins."),
    "distributed.heartbeat_timeout_seconds": _field("Silence after which a process counts as dead.", "s"),
    "container": _field("The container that each node runs in; null: none."),
    "container.image": _field("Image of the container."),
    "container.name": _field("Name of the container; null: a generated one."),
    "container.devices": _field("Device files that the container sees."),
    "container.volumes": _field("Pairs of a path on the host and a path in the container."),
    "container.environment": _field("Environment variables of the container."),
    "container.shm_size": _field("Size of /dev/shm, such as 64G; null: the runtime's default."),
    "container.pull": _field("When docker and podman fetch the image; null: it must already be on the host."),
    "container.privileged": _field("Whether the container may do to its host what root may do there."),
    "container.cap_add": _field("Capabilities that the container has beyond the usual ones."),
    "container.security_opt": _field("Security options of docker and podman, such as seccomp=unconfined."),
    "container.group_add": _field("Groups of the host that the container's user is in, such as video and render."),
    "nic_type": _field("Kind of network card between the nodes."),
    "hf_token_file": _field("File that holds a Hugging Face token; the token itself is never read into a run."),
    "log_dir": _field("Folder for logs on the nodes."),
    "expectations": _field("Targets that the run must reach."),
    "expectations.metric": _field("What is measured."),
    "expectations.value": _field("The target, in the metric's unit; the metric says whether more or less is better."),
    "expectations.tolerance": _field("Part by which it may be missed; null: the verdict's default.", "fraction"),
    "seed": _field("Seed of every random number."),
}  # fmt: skip
