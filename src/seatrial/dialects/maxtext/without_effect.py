"""The keys of MaxText 0.2.5 that make no value of a run, each with why: some have a row, most are in groups."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.values import anything, choice, nothing, or_none, same, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.keys import Disposition, Key, equivalent, ignored, rejected

_ONE_PROCESS = "every process takes the devices that its launcher gives it"
_SYNTHETIC_NAMES = "nothing is read from this set here: MaxText reads it in evaluations, by tfds"
_SECRET = "tokens are never read into a configuration here"

_MACHINES: dict[str, Key] = {
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
        f"{part}_{axis}_parallelism": rejected(why, coerce.axis_size, quiet=(1,))
        for part in ("ici", "dcn")
        for axis, why in {
            "sequence": f"MaxText ignores it since 0.2.2: its mesh has no such axis; use {part}_context_parallelism",
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
    "override_logical_axis_rules": equivalent("placement is fixed here", switch),
    "decoder_block": equivalent(
        "every model here is a Llama decoder",
        choice(same(("default", "llama2", "mistral")), refused=values.OTHER_DECODERS,
               because="only Llama's decoder is supported here"),
    ),
    "dense_init_scale": ignored(
        "weights begin here with a normal distribution of one width, in MaxText with one by fan-in", coerce.decimal,
        quiet=(1.0,),
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
    "dpo.dpo_label_smoothing": rejected("preferences are taken as they are here", coerce.share, quiet=(0.0,)),
    "lora.enable_lora": rejected("all parameters are trained here, no adapters", switch, quiet=(False,)),
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

# Why → the keys, as `name=default`; without `=`, any value is as good as the default.
_EQUIVALENT: Mapping[str, str] = {
    "it tunes kernels of TPUs and GPUs, and changes no result": """
        vocab_tiling_ag_once=false use_ragged_attention=false ragged_block_size=256 enable_padding_causal_mask=true
        use_tokamax_splash=false use_jax_splash=false force_q_layout=false mla_qk_head_chunk_size=0
        csa_qk_head_chunk_size=0 sa_block_q=512 sa_block_kv=512 sa_block_kv_compute=512 eval_sa_block_q=512
        eval_sa_block_kv=512 eval_sa_block_kv_compute=512 sa_block_q_dkv=512 sa_block_kv_dkv=512
        sa_block_kv_dkv_compute=512 sa_block_q_dq=512 sa_block_kv_dq=512 sa_use_fused_bwd_kernel=false
        sa_bwd_dkv_megacore=false sa_q_layout=HEAD_DIM_MINOR sa_k_layout=HEAD_DIM_MINOR sa_v_layout=HEAD_DIM_MINOR
        eval_sa_q_layout=HEAD_DIM_MINOR eval_sa_k_layout=HEAD_DIM_MINOR eval_sa_v_layout=HEAD_DIM_MINOR
        use_splash_scheduler=false ring_scan_unroll=1 sa_fuse_reciprocal=true sa_use_base2_exp=true
        local_sa_block_q=None local_sa_block_kv=None local_sa_block_kv_compute=None eval_local_sa_block_q=None
        eval_local_sa_block_kv=None eval_local_sa_block_kv_compute=None local_sa_block_q_dkv=None
        local_sa_block_kv_dkv=None local_sa_block_kv_dkv_compute=None local_sa_block_q_dq=None local_sa_block_kv_dq=None
        local_sa_use_fused_bwd_kernel=None local_sa_q_layout=None local_sa_k_layout=None local_sa_v_layout=None
        eval_local_sa_q_layout=None eval_local_sa_k_layout=None eval_local_sa_v_layout=None
        local_use_splash_scheduler=None local_sa_fuse_reciprocal=None local_sa_use_base2_exp=None
        experimental_sa_quant_q_fp8=false experimental_sa_quant_k_fp8=false use_max_logit_estimate=-1
        cost_estimate_flops_fwd=-1 cost_estimate_flops_bwd=-1 dq_reduction_steps=0""",
    "it concerns how things are placed on devices, which is fixed here": """
        inhomogeneous_layer_cycle_interval=1 context_parallel_reorder_strategy=auto custom_mesh_and_rule_for_eval=
        optimize_mesh_for_tpu_v6e=false remove_size_one_mesh_axis_from_type=true logical_axis_rules_for_eval=[]
        context_sharding=context ulysses_context_sharding=context_usp_ulysses input_data_sharding_logical_axes
        sharding_tolerance=0.02 check_vma=false dense_fsdp_use_two_stage_all_gather=false internal_compile=false
        internal_compile_num_devices=-1 compile_xla_flags=""",
    "it changes how a pipeline is filled, not what it computes": """
        pipeline_fsdp_ag_per_repeat=false pipeline_parallel_layers=-1 pipeline_delay_activation_forwarding=false
        pipeline_fsdp_ag_once=false scan_pipeline_iterations=true scan_pipeline_repeats=false
        scan_layers_per_stage=false set_remat_policy_on_pipeline_iterations=true
        set_remat_policy_on_layers_per_stage=false""",
}
_IGNORED: Mapping[str, str] = {
    "the run directory holds what is reported, and nothing is sent anywhere": """
        log_config=true debug_sharding=false enable_mllog=false mllog_file= save_config_to_gcs=false
        record_internal_nn_metrics=0 prometheus_port=0 enable_checkpoint_cloud_logger=false wandb_project_name=maxtext
        wandb_run_name= managed_mldiagnostics=false managed_mldiagnostics_on_demand_profiling=true
        managed_mldiagnostics_run_group= managed_mldiagnostics_region= managed_mldiagnostics_storage_path=
        goodput_job_name= goodput_upload_interval_seconds=30 enable_pathways_goodput=false
        monitor_step_time_deviation=true step_deviation_interval_seconds=30 enable_gcp_goodput_metrics=true
        enable_gcp_step_deviation_metrics=true report_heartbeat_metric_for_gcp_monitoring=false
        heartbeat_reporting_interval_in_seconds=5 report_performance_metric_for_gcp_monitoring=false
        use_vertex_tensorboard=false vertex_tensorboard_project= vertex_tensorboard_region=""",
    "it concerns how MaxText stores checkpoints, and they are stored otherwise here": """
        convert_checkpoint_if_possible=false load_checkpoint_only_once=false enable_single_replica_ckpt_restoring=false
        checkpoint_todelete_subdir=None checkpoint_todelete_full_path=None standalone_checkpointer_per_step_interval=0.0
        standalone_checkpointer_drop_page_cache_before_restore=false standalone_checkpointer_enable_restore_in_loop=true
        standalone_checkpointer_start_from_checkpoint=false force_unroll=false checkpoint_is_quantized=false
        save_quantized_params_path= enable_orbax_v1=false checkpoint_conversion_fn=none source_checkpoint_layout=orbax
        colocated_python_checkpointing=false enable_autocheckpoint=false
        checkpoint_storage_target_data_file_size_bytes=2147483648 checkpoint_storage_use_ocdbt=true
        checkpoint_storage_use_zarr3=true checkpoint_storage_concurrent_gb=96
        checkpoint_storage_device_host_concurrent_gb=8 enable_multi_tier_checkpointing=false local_checkpoint_directory=
        local_checkpoint_period=0 multi_tier_checkpointing_backup_interval_minutes=none
        multi_tier_checkpointing_backup_interval_steps=none mtc_data_parallelism=0 enable_emergency_checkpoint=false
        use_replicator_service=false replicator_backup_interval_minutes=0 elastic_enabled=false
        elastic_backup_kind=snapshot elastic_timeout_seconds=300 elastic_max_retries=10 elastic_min_slice_count=-1""",
    "it changes how MaxText quantizes; here quantization alone decides": """
        unquantized_modules=[] weight_block_size=none replicate_quant_scale=false quant_cfg_path= quantize_kvcache=false
        quantize_mtp=false quantize_router_proj=true quantize_logits_proj=false logits_proj_quant_calibration_method=
        kv_quant_axis=heads_and_dkv kv_quant_dtype=int8 quantization_local_shard_count=-1 use_manual_quantization=false
        weight_quantization_calibration_method=absmax act_quantization_calibration_method=absmax
        bwd_quantization_calibration_method=absmax drhs_grad_quantization_calibration_method=none
        weight_sparsity_update_step=10 weight_sparsity_start_step=50 te_comm_gemm_overlap=disabled""",
    "it concerns profiles of TPUs, or on demand": """
        enable_jax_profiler=false jax_profiler_port=9999 enable_tpu_profiling_options=false
        tpu_num_chips_to_profile_per_task=1 tpu_num_sparse_cores_to_trace=2 tpu_num_sparse_core_tiles_to_trace=1
        xprof_tpu_power_trace_level=0 xprof_e2e_enable_fw_throttle_event=false
        xprof_e2e_enable_fw_power_level_event=false xprof_e2e_enable_fw_thermal_event=false
        profile_power_events=false""",
    "it is for MaxText's own development": """
        compiled_trainstep_file= write_estimator_result=false constant_bound_config= jax_debug_log_modules=
        subslice_shape= max_checkify=false dump_hlo=false dump_step=-1 dump_hlo_local_dir=/tmp/xla_dump/
        dump_hlo_delete_local_after=true dump_hlo_gcs_dir= dump_hlo_module_name=jit_train_step
        dump_hlo_local_module_name=jit_train_step dump_hlo_xla_flags= dump_hlo_upload_all=false dump_jaxpr=false
        dump_jaxpr_local_dir=/tmp/jaxpr_dump/ dump_jaxpr_delete_local_after=true dump_jaxpr_gcs_dir=""",
    "it concerns MaxText's input pipeline, which is another one here": """
        use_chat_template=false chat_template_path= chat_template= data_template_path= tokenize_train_data=true
        tokenize_eval_data=true add_bos=true add_eos=true use_truncation=true max_corpus_chars=10000000
        train_data_columns=["text"] eval_data_columns=["text"] default_prompt= grain_packing_type=first_fit
        use_stream_chunking=none generate_padding_batch_train=false generate_padding_batch_eval=false
        per_device_batch_size_start=4.0 per_device_batch_size_increment=2.0 global_rampup_samples=500
        colocated_python_data_input=false train_split=train eval_split=validation hf_name= hf_data_dir= hf_eval_split=
        grain_train_mixture_config_path= grain_use_elastic_iterator=false grain_worker_count=1
        grain_per_worker_buffer_size=1 grain_worker_count_eval=1 grain_per_worker_buffer_size_eval=1
        grain_ram_budget_mb=1024 grain_num_threads=16 grain_prefetch_buffer_size=500 grain_num_threads_eval=16
        grain_prefetch_buffer_size_eval=500 grain_data_source_max_workers=16 grain_index_storage_option=none
        grain_shuffle_buffer_size=100 mmap_eod_id=0 blend_cache_dir= blend_index_dir= packing_max_segments_per_sample=25
        mmap_split_sentences=false mmap_npy_split= olmo_index_path= olmo_path_remap_from= olmo_path_remap_to=
        olmo_apply_ngram_filter=true""",
    "it concerns the inside of MaxText's loop, or another objective": """
        block_diffusion_mask_id=-1 block_diffusion_min_noise=0.001 block_diffusion_logit_alignment=same_position
        block_diffusion_canvas_policy=all_masked max_inflight_computations=2 block_state_before_run_start=false
        warm_input_reshard_before_run_start=false train_shard_in_read=false train_interleave_cycle_length=-1""",
    "only remat_policy=custom reads it, which is refused here": """
        decoder_layer_input=device indexer_cutoff_threshold=remat context=remat mlpwi=remat mlpwi_0=remat mlpwi_1=remat
        moe_x_sorted=remat moe_routing_maps=remat mlpwo=remat moe_mlpwi_0=remat moe_mlpwi_1=remat moe_mlpwo=remat
        query_proj=remat key_proj=remat value_proj=remat kv_proj=remat query_wa_proj=remat kv_wa_proj=remat
        qkv_proj=remat out_proj=remat mla_q=remat mla_kv=remat attention_out=remat engram=remat""",
    "it belongs to an option that is off here": """
        skip_step_interval=128 skip_step_scaling_factor=6.0 use_tunix_gradient_accumulation=false""",
    "it concerns opt_type=muon only": """
        muon_type=optax_muon muon_beta=0.95 muon_weight_decay=0 muon_consistent_rms=None muon_include_routers=true
        muon_use_all_to_all=false""",
    "it concerns enable_diloco=true only": """
        diloco_sync_period=36 diloco_outer_lr=0.3 diloco_outer_momentum=0.9 dcn_bandwidth_limit=
        dcn_bandwidth_burst=10mb dcn_bandwidth_latency=50ms dcn_bandwidth_interface=eth0 enable_streaming_diloco=false
        num_diloco_fragments=none use_sequential_layers=false num_communication_overlapping_steps=0
        communication_overlapping_alpha=0.0""",
    "it concerns models that mix local and global attention": """
        local_rope_max_timescale=-1 global_rope_max_timescale=-1 global_rope_proportion=0.25
        local_rope_proportion=1.0""",
    "it concerns rope_type=yarn only, or another decoder": """
        max_position_embeddings=163840 original_max_position_embeddings=4096 rope_factor=40 beta_fast=32 beta_slow=1
        mscale=1.0 rope_interleave=true rope_truncate=true rope_attention_scaling=false rope_pairwise=false""",
    "it concerns decoders other than Llama's": """
        global_head_dim=0 qk_norm_with_scale=true v_norm_with_scale=true global_num_kv_heads=0
        vocab_size_per_layer_input=0 use_double_wide_mlp=false chunk_attn_window_size=0 causal_block_size=32
        qk_clip_threshold=100.0 gdn_conv_kernel_dim=4 gdn_key_head_dim=128 gdn_value_head_dim=128 gdn_num_key_heads=16
        gdn_num_value_heads=32 gdn_chunk_size=64 use_qk_norm_in_gdn=true gdn_mamba_block_size=0
        partial_rotary_factor=1.0""",
    "it concerns mixtures of experts only": """
        num_experts_per_tok=1 capacity_factor=-1.0 ragged_buffer_factor=-1.0 eval_ragged_buffer_factor=-1.0
        moe_dropless_fallback=None retry_dropless_first_steps=0 first_phase_ragged_buffer_factor=0.0
        log_required_ragged_buffer_factor=false warmup_programs_in_init=false num_moe_token_chunks=1
        moe_chunk_barrier=false moe_log_max_load_ratio=false moe_expert_input_dim=-1 base_moe_mlp_dim=-1
        padded_base_moe_mlp_dim=none load_balance_loss_weight=0.0 moe_use_megatron_seq_aux_loss=false
        use_custom_sort_vjp=true router_topk_matmul_vjp=false moe_topk_before_ep_all_gather=false
        use_ring_of_experts=false te_moe_block=false te_ep_overflow_check_every_n_steps=20 te_gmm_quantization=
        moe_quantize_token_all_gather=false moe_dispatch_no_expert_sharding=false use_ragged_sort=false
        moe_quantize_combine_bwd_method= ragged_sort_use_single_sparsecore=false moe_use_direct_token_gather=false
        use_gather_mosaic_kernel=false ragged_gather_fallback=false ragged_gather_reduce_fallback=false
        ragged_gather_cost_estimate_flops=-1 ragged_gather_reduce_cost_estimate_flops=-1
        ragged_gather_cost_estimate_bytes_accessed=-1 ragged_gather_reduce_cost_estimate_bytes_accessed=-1
        moe_pin_sparse_core_all_gathers=false moe_pin_sparse_core_ep_all_gathers=false
        moe_pin_sparse_core_fsdp_all_gathers=false moe_pin_sparse_core_fsdp_all_gathers_fwd_only=false
        moe_fsdp_all_gather_sparse_core_id=0 moe_ep_all_gather_sparse_core_id=1 use_random_routing=false
        interleave_moe_layer_step=1 moe_fsdp_use_two_stage_all_gather=false shard_exp_on_fsdp=false
        shard_embed_moe_on_fsdp=false use_2d_fsdp_sharding=false norm_topk_prob=false return_routed_experts=false
        float32_weight_sum=true float32_gate_logits=false prefuse_moe_weights=false fuse_expert_scales=false
        megablox=true sparse_matmul=true wi_tile_fwd_batch_seq=512 wi_tile_fwd_embed_dim=1024 wi_tile_fwd_mlp_dim=1024
        eval_wi_tile_fwd_batch_seq=512 eval_wi_tile_fwd_embed_dim=1024 eval_wi_tile_fwd_mlp_dim=1024
        wi_tile_dlhs_batch_seq=512 wi_tile_dlhs_embed_dim=1024 wi_tile_dlhs_mlp_dim=1024 wi_tile_drhs_batch_seq=512
        wi_tile_drhs_embed_dim=1024 wi_tile_drhs_mlp_dim=1024 wo_tile_fwd_batch_seq=512 wo_tile_fwd_embed_dim=1024
        wo_tile_fwd_mlp_dim=1024 eval_wo_tile_fwd_batch_seq=512 eval_wo_tile_fwd_embed_dim=1024
        eval_wo_tile_fwd_mlp_dim=1024 wo_tile_dlhs_batch_seq=512 wo_tile_dlhs_embed_dim=1024 wo_tile_dlhs_mlp_dim=1024
        wo_tile_drhs_batch_seq=512 wo_tile_drhs_embed_dim=1024 wo_tile_drhs_mlp_dim=1024 merge_gating_gmm=false
        num_moe_emb_chunks=0 use_tokamax_gmm=false use_gmm_v2=false use_gmm_v2_heuristic_tiling=false
        first_num_dense_layers=0 shared_experts=0 routed_scaling_factor=1.0 routed_score_func= routed_bias=false
        routed_bias_update_rate=0.0 defer_small_all_reduces=false log_moe_bias_norms=false log_step_diagnostics=false
        n_routing_groups=-1 first_num_hash_layers=0 topk_routing_group=-1 use_batch_split_schedule=false
        batch_split_factor=1 use_lineage=false""",
    "it concerns mtp_num_layers only": """
        mtp_loss_scaling_factor=0.1 mtp_eval_target_module=0 mtp_reuse_input_embedding=false""",
    "it concerns attention_type=mla only": """
        mla_naive_kvcache=true q_lora_rank=0 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128
        use_sliced_mla_proj=false use_mla_absorbed_mqa=false""",
    "it concerns attention_type=compressed only": """
        o_lora_rank=0 o_groups=0 compress_ratios=[] compressed_rope_max_timescale=160000
        use_csa_streamindex_kernel=false""",
    "it concerns use_indexer=true only": """
        indexer_head_dim=128 indexer_n_heads=64 indexer_topk=2048 indexer_sparse_training=false
        indexer_loss_scaling_factor=0.0 indexer_use_approx_top_k=false indexer_approx_top_k_recall=0.95
        indexer_mask_exact_topk=true""",
    "it concerns moba=true only": """
        moba_chunk_size=1024 moba_topk=8""",
    "it concerns mhc_expansion_rate only": """
        sinkhorn_iterations=20 enable_mhc_lite=false use_mhc_pallas_kernel=false mhc_pallas_kernel_fwd_block_size=256
        mhc_pallas_kernel_bwd_block_size=128 mhc_pallas_kernel_bwd_feature_block_size=1024""",
    "it concerns engram_layers only": """
        engram_num_heads=8 engram_head_dim=1280 engram_vocab_bases=[] engram_max_ngram_size=3 engram_kernel_size=4
        engram_seed=0""",
    "it concerns images and sound only": """
        dtype_mm=float32 remat_policy_for_vit=minimal train_image_column=image eval_image_column=image
        attention_for_vit=dot_product vision_encoder_block freeze_vision_encoder_params=true
        freeze_audio_encoder_params=true use_audio=false image_size_for_vit=896 image_path= image_placeholder=<|image|>
        posemb_type_for_vit=learn max_num_images_per_example=-1 video_path= audio_path= video_placeholder=<|video|>
        audio_placeholder=<|audio|> use_audio_in_video=false use_mrope=false mrope_section=[24,20,20]
        position_id_per_seconds=25 video_max_grid_t=none video_max_grid_h=none video_max_grid_w=none
        hidden_size_for_vit=1408 intermediate_size_for_vit=5632 num_attention_heads_for_vit=16 num_channels_for_vit=3
        tile_size_for_vit=336 patch_size_for_vit=14 conv_stride_for_vit=14 num_hidden_layers_for_vit=34
        rope_theta_for_vit=10000 vision_output_dim_for_vit=4096 spatial_merge_size_for_vit=2 out_hidden_size_for_vit=512
        temporal_patch_size_for_vit=2 num_position_embeddings_for_vit=1024 deepstack_visual_indexes_for_vit=[]
        vision_output_length=-1 projector_input_dim_for_vit=4096 projector_output_dim_for_vit=4096
        pixel_shuffle_ratio_for_vit=0.5 projector_dropout_for_vit=0.0 vision_projector_type=default
        vision_connector_num_layers=2 vision_connector_hidden_size=0 vision_connector_activation=gelu
        vision_connector_use_bias=true d_model_for_audio=256 encoder_attention_heads_for_audio=4
        encoder_ffn_dim_for_audio=512 encoder_layers_for_audio=2 attention_dropout_for_audio=0.0
        activation_dropout_for_audio=0.0 activation_function_for_audio=gelu num_mel_bins_for_audio=128
        max_source_positions_for_audio=1500 scale_embedding_for_audio=true n_window_for_audio=50
        n_window_infer_for_audio=800 conv_chunksize_for_audio=500 downsample_hidden_size_for_audio=256
        output_dim_for_audio=512 num_conv_layers_for_audio=3 max_timescale_for_audio=10000.0
        max_sample_len_for_audio=10000""",
    "fine-tuning data is formatted otherwise here": """
        formatting_func_path= formatting_func_kwargs={}""",
    "it concerns adapters only": """
        lora.lora_rank=0 lora.lora_alpha=0.0 lora.lora_module_path lora.lora_weight_qtype=none lora.lora_tile_size=none
        lora.lora_restore_path= lora_input_adapters_path= hf_lora_adapter_path=""",
    "it concerns distillation only": """
        student_overrides={} teacher_overrides={} offline_data_dir=none distill_alpha=0.5 distill_temperature=1.0
        distill_beta=0.0 distill_feature_loss_type=cosine distill_layer_indices=None distill_alpha_end=None
        distill_alpha_schedule=constant distill_temperature_end=None distill_temperature_schedule=constant
        distill_beta_end=None distill_beta_schedule=constant learn_to_init_mode=false lti_use_general_linear_map=false
        distill_weights_copy_map={} distill_student_weights_share_map={} attn_module_name=none lti_layer_indices=none
        student_params_to_update=none""",
    "it concerns inference only": """
        max_prefill_predict_length=64 system_prompt= load_from_prefill_dir=false prefill_cache_dir=
        autoregressive_decode_assert= model_call_mode= use_chunked_prefill=false prefill_chunk_size=256
        enable_model_warmup=false enable_llm_inference_pool=false multi_sampling=false return_log_prob=false
        decode_sampling_strategy=greedy decode_sampling_nucleus_p=-1 decode_sampling_top_k=0
        decode_sampling_temperature=1.0 stack_prefill_result_cache=false prefill_cache_axis_order=1,2,0,3
        ar_cache_axis_order=1,2,0,3 compute_axis_order=0,1,2,3 reshape_q=false inference_server=MaxtextInterleavedServer
        prefill_slice=v5e-16 generate_slice=v5e-16 inference_microbenchmark_prefill_lengths=64,128,256,512,1024
        inference_microbenchmark_stages=prefill,generate inference_microbenchmark_loop_iters=10
        inference_microbenchmark_log_file_path= inference_microbenchmark_num_samples=[1,2,3,4,5]
        inference_metadata_file= inference_benchmark_test=false enable_prefix_caching=false
        prefix_caching_hbm_byte=10000000000 prefix_caching_dram_byte=100000000000""",
    "it concerns inference by vLLM only": """
        kv_cache_buffer=256 hbm_utilization_vllm=0.72 swap_space_vllm_gb=2 free_kv_cache_during_weight_sync=true
        enable_dp_attention=false enable_expert_parallel=false async_scheduling=false max_num_batched_tokens=none
        max_num_seqs=none vllm_block_size=none stop_strings=none vllm_additional_config={} vllm_hf_overrides={}
        vllm_hf_config_path= use_standalone_converter=false use_weight_converter=true use_raiden_ffi=none
        rollout_tensor_parallelism=-1 rollout_backend=maxtext weight_sync_debug=false log_weight_sync_time=false
        kv_tp_size=1 moe_mlp_tp_size=1 vllm_load_format=dummy debug_converter=false gcs_debug_path=""",
}


def _default(text: str) -> Any:
    if nothing(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _like(default: Any) -> Reader:
    """A reader for values of a default's kind."""
    if isinstance(default, bool):
        return switch
    return or_none(coerce.decimal) if isinstance(default, (int, float)) else anything


def _rows(groups: Mapping[str, str], disposition: Disposition) -> Iterator[tuple[str, Key]]:
    for why, names in groups.items():
        for name, equals, text in (item.partition("=") for item in names.split()):
            default = _default(text)
            quiet = (default, tuple(default)) if isinstance(default, list) else (default,)
            read = _like(default) if equals else anything
            yield name, Key(read=read, why=why, disposition=disposition, quiet=quiet if equals else ())


IN_GROUPS: dict[str, Key] = {**dict(_rows(_EQUIVALENT, "equivalent")), **dict(_rows(_IGNORED, "ignored"))}
KEYS: dict[str, Key] = {**_MACHINES, **_MODEL, **_TRAINING, **IN_GROUPS}
