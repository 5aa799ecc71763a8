"""Keys of MaxText that a pre-training user sets, and that go nowhere in a RunSpec, each with its reason.

Also what MaxText called keys before, and what it never called so.
"""

from __future__ import annotations

from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.values import anything, choice, or_minus_one, or_none, same, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected, to

_ONE_PROCESS = "every process takes the devices that its launcher gives it"
_SYNTHETIC_NAMES = "nothing is read from this set here: MaxText reads it in evaluations, by tfds"
_SECRET = "tokens are never read into a configuration here"

_MACHINES: dict[str, Key] = {
    "hardware": equivalent(
        "the devices that are there decide", choice(same(("tpu", "gpu", "gpu_multiprocess", "cpu"))),
        "what MaxText starts for: gpu is one process a node, gpu_multiprocess one a device",
    ),
    "compile_topology": to(
        "topology.device, topology.devices_per_node", or_none(coerce.text), "what is compiled for: v5e-256"
    ),
    "compile_topology_num_slices": to("topology.num_nodes", or_minus_one(coerce.count)),
    "num_slices": to("topology.num_nodes", or_minus_one(coerce.count), "MaxText finds it itself; -1"),
    "skip_jax_distributed_system": equivalent(_ONE_PROCESS, switch),
    "enable_single_controller": rejected("Pathways is not supported here", switch, quiet=(False,)),
    "allow_split_physical_axes": equivalent("the order of devices changes speed only", switch),
    "mesh_axes": equivalent("the mesh here has the axes of ici_* and dcn_*", anything),
    "logical_axis_rules": equivalent("how dimensions map to mesh axes is fixed here, and changes no result", anything),
    "data_sharding": equivalent("the input is split over data and fsdp here, which changes no result", anything),
    "custom_mesh": ignored("the mesh is that of ici_* and dcn_*", coerce.text, quiet=("",)),
    "custom_mesh_and_rule": ignored("the mesh is that of ici_* and dcn_*", coerce.text, quiet=("",)),
    "shard_mode": equivalent("the trainer here places everything explicitly", choice(same(("auto", "explicit")))),
    "shardy": equivalent("the trainer here places everything explicitly", switch),
    "context_parallel_load_balance": equivalent("it changes which device has which tokens, nothing else", switch),
    "num_pipeline_microbatches": equivalent("it changes how a pipeline is filled, not what it computes", coerce.whole),
    **{
        f"{part}_sequence_parallelism": rejected(
            "MaxText ignores it since 0.2.2: its mesh has no such axis; use "
            f"{part}_context_parallelism", coerce.axis_size, quiet=(1,),
        )
        for part in ("ici", "dcn")
    },
    **{
        f"{part}_{axis}_parallelism": rejected(why, coerce.axis_size, quiet=(1,))
        for part in ("ici", "dcn")
        for axis, why in {
            "expert": "it is for mixtures of experts",
            "autoregressive": "it is for inference",
            "context_autoregressive": "it is for inference",
            "context_usp_ulysses": f"context parallelism has one axis here; use {part}_context_parallelism",
            "fsdp_transpose": f"parameters are sharded along one dimension here; use {part}_fsdp_parallelism",
            "diloco": "DiLoCo, in which replicas drift apart between exchanges, is not supported here",
            "tensor_transpose": f"MaxText 0.2.4 removed it; use {part}_tensor_parallelism",
        }.items()
    },
}  # fmt: skip

_MODEL: dict[str, Key] = {
    "base_config": equivalent("the file is read before this one", coerce.text, "a YAML file that this one changes"),
    "override_model_config": equivalent("it allows what stands here to change the named model", switch),
    "override_logical_axis_rules": equivalent("placement is fixed here", switch),
    "decoder_block": equivalent(
        "every model here is a Llama decoder",
        choice(same(values.LLAMA), refused=values.OTHER_DECODERS, because="only Llama's decoder is supported here"),
    ),
    "enable_dropout": to("dropout.hidden, dropout.attention, dropout.ffn", switch, "false: dropout_rate has no effect"),
    "dense_init_scale": ignored(
        "weights begin here with a normal distribution of one width, in MaxText with one by fan-in", coerce.decimal,
        quiet=(1.0,),
    ),
    "normalize_embedding_logits": ignored(
        "logits of tied embeddings are not divided by √base_emb_dim here", switch, quiet=(True, False)
    ),
    "rope_min_timescale": rejected("rotary positions begin at 1 here", coerce.decimal, quiet=(1.0,)),
    "rope_linear_scaling_factor": rejected("linear stretching is not supported here", coerce.decimal, quiet=(1.0,)),
    "rope_use_scale": ignored("only rope_type=llama3.1 reads it, and means true", switch, quiet=(True,)),
    "trainable_position_size": rejected("MaxText's Llama has rotary positions", coerce.whole, quiet=(-1,)),
    "use_untrainable_positional_embedding": rejected("MaxText's Llama has rotary positions", switch, quiet=(False,)),
    "nope_layer_interval": rejected("every layer has positions here", coerce.whole, quiet=(-1,)),
    "use_iota_embed": equivalent("it chooses how an embedding is looked up, not what is found", switch),
    "fused_qkv": equivalent("it chooses how products are computed, not what they are", switch),
    "fused_mlp": equivalent("it chooses how products are computed, not what they are", switch),
    "logits_dot_in_fp32": equivalent("logits are always accumulated in float32 here", switch),
    "cast_logits_to_fp32": equivalent("logits are always in float32 here", switch),
    "float32_qk_product": equivalent("attention scores are always accumulated in float32 here", switch),
    "float32_logits": equivalent("the softmax of attention is always in float32 here", switch),
    "activations_in_float32": ignored("activations are in dtype here", switch, quiet=(False,)),
    "matmul_precision": ignored(
        "products of float32 are exact here, and of bfloat16 as they are",
        choice(same(("default", "high", "highest", "bfloat16", "float32"))), quiet=("default",),
    ),
    "attention_bias": rejected("Llama's attention has no biases", switch, quiet=(False,)),
    "mlp_bias": rejected("Llama's MLP has no biases", switch, quiet=(False,)),
    "attention_sink": rejected("Llama's attention has no sinks", switch, quiet=(False,)),
    "use_qk_norm": rejected("Llama does not normalise queries and keys", switch, quiet=(False,)),
    "use_qk_clip": rejected("queries and keys are not clipped here", switch, quiet=(False,)),
    "temperature_tuning": rejected("Llama does not tune attention's temperature", switch, quiet=(False,)),
    "share_kv_projections": rejected("Llama's keys and values have projections of their own", switch, quiet=(False,)),
    "use_post_attn_norm": rejected("Llama has no norm there", switch, quiet=(False,)),
    "use_post_ffw_norm": rejected("Llama has no norm there", switch, quiet=(False,)),
    "attn_logits_soft_cap": rejected("attention is not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "final_logits_soft_cap": rejected("logits are not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "z_loss_multiplier": rejected("the loss here is cross-entropy alone", coerce.decimal, quiet=(0.0,)),
    "attention_output_dim": rejected("Llama's attention ends in base_emb_dim", coerce.whole, quiet=(-1,)),
    "mlp_activations_limit": rejected("Llama's activations are not limited", coerce.decimal, quiet=(-1.0,)),
    "num_experts": rejected("mixtures of experts are not supported here", coerce.whole, quiet=(1,)),
    "mtp_num_layers": rejected("one token is predicted at a time here", coerce.whole, quiet=(0,)),
    "mhc_expansion_rate": rejected("hyper-connections are not supported here", coerce.whole, quiet=(1,)),
    "moba": rejected("mixtures of block attention are not supported here", switch, quiet=(False,)),
    "use_indexer": rejected("sparse attention is not supported here", switch, quiet=(False,)),
    "use_multimodal": rejected("only text is trained on here", switch, quiet=(False,)),
    "engram_layers": rejected("engrams are not supported here", values.texts, quiet=((),)),
    "hidden_size_per_layer_input": rejected("Llama's layers have no input of their own", coerce.whole, quiet=(0,)),
    "num_kv_shared_layers": rejected("every layer has keys and values of its own here", coerce.whole, quiet=(0,)),
    "use_m3_model": rejected("only MaxText's own models are supported", switch, quiet=(False,)),
}  # fmt: skip

_TRAINING: dict[str, Key] = {
    "adam_eps_root": rejected("nothing is added inside the square root here", coerce.decimal, quiet=(0.0,)),
    "skip_step_on_spikes": rejected("only steps without a finite loss can be left out here", switch, quiet=(False,)),
    "trainable_parameters_mask": rejected("every parameter is trained here", values.texts, quiet=((),)),
    "training_objective": rejected("only the next token is predicted here", coerce.text, quiet=("causal_lm",)),
    "enable_diloco": rejected("DiLoCo is not supported here", switch, quiet=(False,)),
    "enable_rampup_batch_size": rejected("the batch has one size here", switch, quiet=(False,)),
    "expansion_factor_real_data": rejected("every host reads its own data here", coerce.decimal, quiet=(-1.0,)),
    "weight_sparsity_n": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "weight_sparsity_m": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "use_grpo": rejected("reinforcement learning is not supported here", or_none(switch), quiet=(None, False)),
    "sft_train_on_completion_only": ignored("fine-tuning here is on answers only", switch, quiet=(True, False)),
    "dpo.dpo_label_smoothing": rejected("preferences are taken as they are here", values.fraction, quiet=(0.0,)),
    "lora.enable_lora": rejected("all parameters are trained here, no adapters", switch, quiet=(False,)),
    "data_shuffle_seed": ignored(
        "one seed makes everything here: init_weights_seed", values.no_less_than(0, coerce.whole)
    ),
    "enable_data_shuffling": ignored("what is trained on is always shuffled here", switch, quiet=(True,)),
    "num_vocab_tiling": equivalent("the loss is computed in pieces here anyway", coerce.count),
    "optimizer_memory_host_offload": equivalent("it changes where states are kept, not what they are", switch),
    "parameter_memory_host_offload": equivalent("it changes where parameters are kept, not what they are", switch),
    "max_segments_per_seq": equivalent("attention here needs no such bound", coerce.whole),
    "param_scan_axis": equivalent("it changes the layout of stacked parameters only", coerce.whole),
    "use_qwix_quantization": equivalent("it chooses the library that quantizes", switch),
    "prompt": ignored("it concerns inference only", coerce.text, quiet=("I love to",)),
    "sharding_strategy": equivalent("placement is fixed here", or_none(coerce.text)),
    "log_period": equivalent("every step is logged here, as in MaxText; there it is how often TensorBoard is flushed",
                             coerce.count),
    "eval_per_device_batch_size": ignored("evaluations use the batch of training", coerce.decimal, quiet=(0.0,)),
    "eval_start_step": ignored("evaluations begin with eval_interval", coerce.whole, quiet=(0,)),
    "reuse_example_batch": ignored("it is a test of speed; dataset_type=synthetic is one", coerce.whole, quiet=(0,)),
    "save_checkpoint_on_start": ignored("nothing is saved before the first step", switch, quiet=(True, False)),
    "save_checkpoint_on_completion": ignored("the last step is always saved", switch, quiet=(True,)),
    "enable_continuous_checkpointing": ignored("checkpoint_period decides", switch, quiet=(False,)),
    "upload_all_profiler_results": ignored("profiles stay in the run directory", switch, quiet=(True, False)),
    "profile_cleanly": equivalent("a profile always begins and ends between two steps here", switch),
    "profile_periodically_period": ignored("one profile is made here", coerce.whole, quiet=(-1,)),
    "hide_profiler_step_metric": ignored("all steps are shown here", switch, quiet=(False,)),
    "hf_access_token": ignored(_SECRET, anything, quiet=("", None)),
    "eval_dataset_name": ignored(_SYNTHETIC_NAMES, coerce.text, quiet=("c4/en:3.1.0", "c4/en:3.0.1")),
    "enable_goodput_recording": ignored("goodput is recorded here by the verdict", switch, quiet=(False,)),
    "monitor_goodput": ignored("goodput is recorded here by the verdict", switch, quiet=(False,)),
    "metrics_file": ignored("metrics stand in the run directory", or_none(coerce.text), quiet=(None,)),
    "gcs_metrics": ignored("metrics stand in the run directory", switch, quiet=(False,)),
    "enable_wandb": ignored("nothing is sent anywhere", switch, quiet=(False,)),
    "tokenizer_type": ignored(
        "the tokenizer's files say what they are", choice(same(("sentencepiece", "huggingface", "tiktoken"))),
        quiet=("sentencepiece", "huggingface", "tiktoken"),
    ),
    "reset_attention_mask": ignored("it concerns grain_file_type=mmap_npy only", switch, quiet=(True,)),
}  # fmt: skip

KEYS: dict[str, Key] = {**_MACHINES, **_MODEL, **_TRAINING}

# Keys of former versions under the names that they have now; each is read as its successor.
RENAMED = {
    "cosine_learning_rate_final_fraction": "learning_rate_final_fraction",
    "save_period": "checkpoint_period",
    "base_num_heads": "base_num_query_heads",
    "vocab_relative_path": "tokenizer_path",
    "dpo_beta": "dpo.dpo_beta",
    "dpo_label_smoothing": "dpo.dpo_label_smoothing",
}

# Keys that MaxText has no more, each with what to do.
_GONE = "MaxText 0.2.4 removed it; remove it"
REMOVED = {
    "expert_shard_attention_option": _GONE,
    "collect_stack_trace": _GONE,
    "stack_trace_to_cloud": _GONE,
    "stack_trace_interval_seconds": _GONE,
    "pure_nnx": "Linen's path, which false chose, is gone since 0.2.5; remove it",
    "pure_nnx_decoder": _GONE,
    "enable_nnx": _GONE,
    "model_fsdp_ag_once": "it is called pipeline_fsdp_ag_once now",
    "quantization_calibration_method": "use weight_quantization_calibration_method and act_quantization_…",
    **dict.fromkeys(("tile_batch_seq", "tile_activation_dim", "tile_weight_dim"), "it became wi_tile_… and wo_tile_…"),
    **dict.fromkeys(
        (f"pagedattn_{name}" for name in ("num_pages", "tokens_per_page", "pages_per_compute_block",
                                          "max_pages_per_group", "head_dim_alignment")),
        "paged attention, which was for inference, is gone; remove it",
    ),
    **dict.fromkeys(
        (f"{branch}_{name}" for branch in ("wi", "wo")
         for name in ("tile_fwd_buffer_count", "tile_dlhs_buffer_count", "tile_drhs_buffer_count", "combine_scopes")),
        "it was for mixtures of experts; remove it",
    ),
    "enable_flash_attention": "use attention=flash or attention=dot_product",
    "enable_profiler": "use profiler=xplane",
    "int8_training": "use quantization=int8",
    "assets_path": "give tokenizer_path in full",
}  # fmt: skip

# Names that MaxText refuses, as CVS and other trainers use them, and what MaxText calls the same thing.
FOREIGN = {
    "batch_size": "per_device_batch_size (a device's share: batch_size ÷ devices ÷ gradient_accumulation_steps)",
    "global_batch_size": "per_device_batch_size (a device's share: it ÷ devices ÷ gradient_accumulation_steps)",
    "micro_batch_size": "per_device_batch_size",
    "precision": "dtype, weight_dtype and quantization",
    "sequence_length": "max_target_length",
    "seq_length": "max_target_length",
    "tensor_parallelism": "ici_tensor_parallelism (within a node) or dcn_tensor_parallelism (over nodes)",
    "pipeline_parallelism": "ici_pipeline_parallelism or dcn_pipeline_parallelism",
    "context_parallelism": "ici_context_parallelism or dcn_context_parallelism",
    "data_parallelism": "ici_data_parallelism or dcn_data_parallelism",
    "fsdp": "ici_fsdp_parallelism and dcn_fsdp_parallelism",
    "recompute": "remat_policy",
    "model_size": "model_name",
    "tokenizer_model": "tokenizer_path",
    "warmup_steps": "warmup_steps_fraction (a share of learning_rate_schedule_steps)",
    "weight_decay": "adam_weight_decay",
    "seed": "init_weights_seed and data_shuffle_seed",
    "dpo.beta": "dpo.dpo_beta, or dpo.orpo_lambda for orpo",
    "num_nodes": "topology.num_nodes, on Seatrial's own command line: MaxText takes the nodes that are there",
    "nnodes": "topology.num_nodes, on Seatrial's own command line: MaxText reads the variable NNODES",
    "devices_per_node": "topology.devices_per_node, on Seatrial's own command line: MaxText takes what is there",
    "device": "topology.device, on Seatrial's own command line: MaxText takes what is there",
    "gpu": "topology.device, on Seatrial's own command line: MaxText takes what is there",
    **{
        name: f"{name.replace('num_', 'base_num_') if name.startswith('num_') else 'base_' + name}; MaxText makes this "
        "one of it and global_parameter_scale"
        for name in ("emb_dim", "mlp_dim", "num_decoder_layers", "num_kv_heads", "num_query_heads")
    },
    "global_batch_size_to_train_on": "per_device_batch_size; MaxText makes this one of it",
}  # fmt: skip
