"""Keys of MaxText's that have other names: former ones, removed ones, and what CVS and other trainers call them."""

from __future__ import annotations

# Keys of former versions under the names that they have now; each is read as its successor.
RENAMED = {
    "cosine_learning_rate_final_fraction": "learning_rate_final_fraction",
    "save_period": "checkpoint_period",
    "base_num_heads": "base_num_query_heads",
    "vocab_relative_path": "tokenizer_path",
    "dpo_beta": "dpo.dpo_beta",
    "dpo_label_smoothing": "dpo.dpo_label_smoothing",
}

# Keys that MaxText no longer has, each with what to do.
REMOVED = {
    name: fix
    for fix, names in {
        "MaxText 0.2.4 removed it; remove it": "expert_shard_attention_option collect_stack_trace stack_trace_to_cloud"
        " stack_trace_interval_seconds pure_nnx_decoder enable_nnx",
        "Linen's path, which false chose, is gone since 0.2.5; remove it": "pure_nnx",
        "paged attention, which was for inference, is gone; remove it": "pagedattn_num_pages pagedattn_tokens_per_page"
        " pagedattn_pages_per_compute_block pagedattn_max_pages_per_group pagedattn_head_dim_alignment",
        "it was for mixtures of experts; remove it": "wi_tile_fwd_buffer_count wi_tile_dlhs_buffer_count"
        " wi_tile_drhs_buffer_count wi_combine_scopes wo_tile_fwd_buffer_count wo_tile_dlhs_buffer_count"
        " wo_tile_drhs_buffer_count wo_combine_scopes",
        "it became wi_tile_… and wo_tile_…": "tile_batch_seq tile_activation_dim tile_weight_dim",
        "it is called pipeline_fsdp_ag_once now": "model_fsdp_ag_once",
        "use weight_quantization_calibration_method and act_quantization_…": "quantization_calibration_method",
        "use attention=flash or attention=dot_product": "enable_flash_attention",
        "use profiler=xplane": "enable_profiler",
        "use quantization=int8": "int8_training",
        "give tokenizer_path in full": "assets_path",
    }.items()
    for name in names.split()
}

_OURS = "on Seatrial's own command line: MaxText uses"
# Names that MaxText refuses, as CVS and other trainers use them, and what to give instead where that takes more words
# than a synonym's (table/synonyms.txt).
OF_OTHERS = {
    "batch_size": "per_device_batch_size (a device's share: batch_size ÷ devices ÷ gradient_accumulation_steps)",
    "global_batch_size": "per_device_batch_size (a device's share: it ÷ devices ÷ gradient_accumulation_steps)",
    "micro_batch_size": "per_device_batch_size",
    "precision": "dtype, weight_dtype and quantization",
    **{
        f"{axis}_parallelism": f"ici_{axis}_parallelism (within a node) or dcn_{axis}_parallelism (over nodes)"
        for axis in ("tensor", "pipeline", "context", "data")
    },
    "fsdp": "ici_fsdp_parallelism and dcn_fsdp_parallelism",
    "tokenizer_model": "tokenizer_path",
    "warmup_steps": "warmup_steps_fraction (a share of learning_rate_schedule_steps)",
    "dpo.beta": "dpo.dpo_beta, or dpo.orpo_lambda for orpo",
    "num_nodes": f"topology.num_nodes, {_OURS} the nodes that it finds",
    "nnodes": "topology.num_nodes, on Seatrial's own command line: MaxText reads the variable NNODES",
    "devices_per_node": f"topology.devices_per_node, {_OURS} what it finds",
    "device": f"topology.device, {_OURS} what it finds",
    "gpu": f"topology.device, {_OURS} what it finds",
    **{
        name: f"base_{name}; MaxText makes this one of it and global_parameter_scale"
        for name in ("emb_dim", "mlp_dim", "num_decoder_layers", "num_kv_heads", "num_query_heads")
    },
    "global_batch_size_to_train_on": "per_device_batch_size; MaxText makes this one of it",
}  # fmt: skip
