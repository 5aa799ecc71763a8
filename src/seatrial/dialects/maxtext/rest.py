"""The keys of MaxText 0.2.5 that have no other row: each with its default, and in groups with why they do nothing here.

Written as `name=default`; without `=`, any value is as good as the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from seatrial.dialects.maxtext.values import anything, like, nothing
from seatrial.dialects.table.keys import Disposition, Key

# (what becomes of them, why, names with defaults)
_GROUPS: tuple[tuple[Disposition, str, str], ...] = (
    (
        "ignored", "the run directory holds what is reported, and nothing is sent anywhere",
        "log_config=true debug_sharding=false enable_mllog=false mllog_file= "
        "save_config_to_gcs=false record_internal_nn_metrics=0 prometheus_port=0 "
        "enable_checkpoint_cloud_logger=false wandb_project_name=maxtext wandb_run_name= "
        "managed_mldiagnostics=false managed_mldiagnostics_on_demand_profiling=true "
        "managed_mldiagnostics_run_group= managed_mldiagnostics_region= managed_mldiagnostics_storage_path= "
        "goodput_job_name= goodput_upload_interval_seconds=30 enable_pathways_goodput=false "
        "monitor_step_time_deviation=true step_deviation_interval_seconds=30 enable_gcp_goodput_metrics=true "
        "enable_gcp_step_deviation_metrics=true report_heartbeat_metric_for_gcp_monitoring=false "
        "heartbeat_reporting_interval_in_seconds=5 report_performance_metric_for_gcp_monitoring=false "
        "use_vertex_tensorboard=false vertex_tensorboard_project= vertex_tensorboard_region=",
    ),
    (
        "ignored", "it concerns how MaxText stores checkpoints, and they are stored otherwise here",
        "convert_checkpoint_if_possible=false load_checkpoint_only_once=false "
        "enable_single_replica_ckpt_restoring=false checkpoint_todelete_subdir=None "
        "checkpoint_todelete_full_path=None standalone_checkpointer_per_step_interval=0.0 "
        "standalone_checkpointer_drop_page_cache_before_restore=false "
        "standalone_checkpointer_enable_restore_in_loop=true standalone_checkpointer_start_from_checkpoint=false "
        "force_unroll=false checkpoint_is_quantized=false save_quantized_params_path= enable_orbax_v1=false "
        "checkpoint_conversion_fn=none source_checkpoint_layout=orbax colocated_python_checkpointing=false "
        "enable_autocheckpoint=false checkpoint_storage_target_data_file_size_bytes=2147483648 "
        "checkpoint_storage_use_ocdbt=true checkpoint_storage_use_zarr3=true checkpoint_storage_concurrent_gb=96 "
        "checkpoint_storage_device_host_concurrent_gb=8 enable_multi_tier_checkpointing=false "
        "local_checkpoint_directory= local_checkpoint_period=0 "
        "multi_tier_checkpointing_backup_interval_minutes=none multi_tier_checkpointing_backup_interval_steps=none "
        "mtc_data_parallelism=0 enable_emergency_checkpoint=false use_replicator_service=false "
        "replicator_backup_interval_minutes=0 elastic_enabled=false elastic_backup_kind=snapshot "
        "elastic_timeout_seconds=300 elastic_max_retries=10 elastic_min_slice_count=-1",
    ),
    (
        "ignored", "it changes how MaxText quantizes; here quantization alone decides",
        "unquantized_modules=[] weight_block_size=none replicate_quant_scale=false quant_cfg_path= "
        "quantize_kvcache=false quantize_mtp=false quantize_router_proj=true quantize_logits_proj=false "
        "logits_proj_quant_calibration_method= kv_quant_axis=heads_and_dkv kv_quant_dtype=int8 "
        "quantization_local_shard_count=-1 use_manual_quantization=false "
        "weight_quantization_calibration_method=absmax act_quantization_calibration_method=absmax "
        "bwd_quantization_calibration_method=absmax drhs_grad_quantization_calibration_method=none "
        "weight_sparsity_update_step=10 weight_sparsity_start_step=50 te_comm_gemm_overlap=disabled",
    ),
    (
        "ignored", "it concerns profiles of TPUs, or on demand",
        "enable_jax_profiler=false jax_profiler_port=9999 enable_tpu_profiling_options=false "
        "tpu_num_chips_to_profile_per_task=1 tpu_num_sparse_cores_to_trace=2 tpu_num_sparse_core_tiles_to_trace=1 "
        "xprof_tpu_power_trace_level=0 xprof_e2e_enable_fw_throttle_event=false "
        "xprof_e2e_enable_fw_power_level_event=false xprof_e2e_enable_fw_thermal_event=false "
        "profile_power_events=false",
    ),
    (
        "ignored", "it is for MaxText's own development",
        "compiled_trainstep_file= write_estimator_result=false constant_bound_config= jax_debug_log_modules= "
        "subslice_shape= max_checkify=false dump_hlo=false dump_step=-1 dump_hlo_local_dir=/tmp/xla_dump/ "
        "dump_hlo_delete_local_after=true dump_hlo_gcs_dir= dump_hlo_module_name=jit_train_step "
        "dump_hlo_local_module_name=jit_train_step dump_hlo_xla_flags= dump_hlo_upload_all=false dump_jaxpr=false "
        "dump_jaxpr_local_dir=/tmp/jaxpr_dump/ dump_jaxpr_delete_local_after=true dump_jaxpr_gcs_dir=",
    ),
    (
        "ignored", "it concerns MaxText's input pipeline, which is another one here",
        "use_chat_template=false chat_template_path= chat_template= data_template_path= tokenize_train_data=true "
        "tokenize_eval_data=true add_bos=true add_eos=true use_truncation=true max_corpus_chars=10000000 "
        'train_data_columns=["text"] eval_data_columns=["text"] default_prompt= grain_packing_type=first_fit '
        "use_stream_chunking=none generate_padding_batch_train=false generate_padding_batch_eval=false "
        "per_device_batch_size_start=4.0 per_device_batch_size_increment=2.0 global_rampup_samples=500 "
        "colocated_python_data_input=false train_split=train eval_split=validation hf_name= hf_data_dir= "
        "hf_eval_split= grain_train_mixture_config_path= grain_use_elastic_iterator=false grain_worker_count=1 "
        "grain_per_worker_buffer_size=1 grain_worker_count_eval=1 grain_per_worker_buffer_size_eval=1 "
        "grain_ram_budget_mb=1024 grain_num_threads=16 grain_prefetch_buffer_size=500 grain_num_threads_eval=16 "
        "grain_prefetch_buffer_size_eval=500 grain_data_source_max_workers=16 grain_index_storage_option=none "
        "grain_shuffle_buffer_size=100 mmap_eod_id=0 blend_cache_dir= blend_index_dir= "
        "packing_max_segments_per_sample=25 mmap_split_sentences=false mmap_npy_split= olmo_index_path= "
        "olmo_path_remap_from= olmo_path_remap_to= olmo_apply_ngram_filter=true",
    ),
    (
        "equivalent", "it tunes kernels of TPUs and GPUs, and changes no result",
        "vocab_tiling_ag_once=false use_ragged_attention=false ragged_block_size=256 "
        "enable_padding_causal_mask=true use_tokamax_splash=false use_jax_splash=false force_q_layout=false "
        "mla_qk_head_chunk_size=0 csa_qk_head_chunk_size=0 sa_block_q=512 sa_block_kv=512 sa_block_kv_compute=512 "
        "eval_sa_block_q=512 eval_sa_block_kv=512 eval_sa_block_kv_compute=512 sa_block_q_dkv=512 "
        "sa_block_kv_dkv=512 sa_block_kv_dkv_compute=512 sa_block_q_dq=512 sa_block_kv_dq=512 "
        "sa_use_fused_bwd_kernel=false sa_bwd_dkv_megacore=false sa_q_layout=HEAD_DIM_MINOR "
        "sa_k_layout=HEAD_DIM_MINOR sa_v_layout=HEAD_DIM_MINOR eval_sa_q_layout=HEAD_DIM_MINOR "
        "eval_sa_k_layout=HEAD_DIM_MINOR eval_sa_v_layout=HEAD_DIM_MINOR use_splash_scheduler=false "
        "ring_scan_unroll=1 sa_fuse_reciprocal=true sa_use_base2_exp=true local_sa_block_q=None "
        "local_sa_block_kv=None local_sa_block_kv_compute=None eval_local_sa_block_q=None "
        "eval_local_sa_block_kv=None eval_local_sa_block_kv_compute=None local_sa_block_q_dkv=None "
        "local_sa_block_kv_dkv=None local_sa_block_kv_dkv_compute=None local_sa_block_q_dq=None "
        "local_sa_block_kv_dq=None local_sa_use_fused_bwd_kernel=None local_sa_q_layout=None "
        "local_sa_k_layout=None local_sa_v_layout=None eval_local_sa_q_layout=None eval_local_sa_k_layout=None "
        "eval_local_sa_v_layout=None local_use_splash_scheduler=None local_sa_fuse_reciprocal=None "
        "local_sa_use_base2_exp=None experimental_sa_quant_q_fp8=false experimental_sa_quant_k_fp8=false "
        "use_max_logit_estimate=-1 cost_estimate_flops_fwd=-1 cost_estimate_flops_bwd=-1 dq_reduction_steps=0",
    ),
    (
        "equivalent", "it concerns how things are placed on devices, which is fixed here",
        "inhomogeneous_layer_cycle_interval=1 context_parallel_reorder_strategy=auto "
        "custom_mesh_and_rule_for_eval= optimize_mesh_for_tpu_v6e=false remove_size_one_mesh_axis_from_type=true "
        "logical_axis_rules_for_eval=[] context_sharding=context ulysses_context_sharding=context_usp_ulysses "
        "input_data_sharding_logical_axes sharding_tolerance=0.02 check_vma=false "
        "dense_fsdp_use_two_stage_all_gather=false internal_compile=false internal_compile_num_devices=-1 "
        "compile_xla_flags=",
    ),
    (
        "equivalent", "it changes how a pipeline is filled, not what it computes",
        "pipeline_fsdp_ag_per_repeat=false pipeline_parallel_layers=-1 pipeline_delay_activation_forwarding=false "
        "pipeline_fsdp_ag_once=false scan_pipeline_iterations=true scan_pipeline_repeats=false "
        "scan_layers_per_stage=false set_remat_policy_on_pipeline_iterations=true "
        "set_remat_policy_on_layers_per_stage=false",
    ),
    (
        "ignored", "it concerns the inside of MaxText's loop, or another objective",
        "block_diffusion_mask_id=-1 block_diffusion_min_noise=0.001 block_diffusion_logit_alignment=same_position "
        "block_diffusion_canvas_policy=all_masked max_inflight_computations=2 block_state_before_run_start=false "
        "warm_input_reshard_before_run_start=false train_shard_in_read=false train_interleave_cycle_length=-1",
    ),
    (
        "ignored", "only remat_policy=custom reads it, which is refused here",
        "decoder_layer_input=device indexer_cutoff_threshold=remat context=remat mlpwi=remat mlpwi_0=remat "
        "mlpwi_1=remat moe_x_sorted=remat moe_routing_maps=remat mlpwo=remat moe_mlpwi_0=remat moe_mlpwi_1=remat "
        "moe_mlpwo=remat query_proj=remat key_proj=remat value_proj=remat kv_proj=remat query_wa_proj=remat "
        "kv_wa_proj=remat qkv_proj=remat out_proj=remat mla_q=remat mla_kv=remat attention_out=remat engram=remat",
    ),
    (
        "ignored", "it belongs to an option that is off here",
        "skip_step_interval=128 skip_step_scaling_factor=6.0 use_tunix_gradient_accumulation=false",
    ),
    (
        "ignored", "it concerns opt_type=muon only",
        "muon_type=optax_muon muon_beta=0.95 muon_weight_decay=0 muon_consistent_rms=None "
        "muon_include_routers=true muon_use_all_to_all=false",
    ),
    (
        "ignored", "it concerns enable_diloco=true only",
        "diloco_sync_period=36 diloco_outer_lr=0.3 diloco_outer_momentum=0.9 dcn_bandwidth_limit= "
        "dcn_bandwidth_burst=10mb dcn_bandwidth_latency=50ms dcn_bandwidth_interface=eth0 "
        "enable_streaming_diloco=false num_diloco_fragments=none use_sequential_layers=false "
        "num_communication_overlapping_steps=0 communication_overlapping_alpha=0.0",
    ),
    (
        "ignored", "it concerns models that mix local and global attention",
        "local_rope_max_timescale=-1 global_rope_max_timescale=-1 global_rope_proportion=0.25 "
        "local_rope_proportion=1.0",
    ),
    (
        "ignored", "it concerns rope_type=yarn only, or another decoder",
        "max_position_embeddings=163840 original_max_position_embeddings=4096 rope_factor=40 beta_fast=32 "
        "beta_slow=1 mscale=1.0 rope_interleave=true rope_truncate=true rope_attention_scaling=false "
        "rope_pairwise=false",
    ),
    (
        "ignored", "it concerns decoders other than Llama's",
        "global_head_dim=0 qk_norm_with_scale=true v_norm_with_scale=true global_num_kv_heads=0 "
        "vocab_size_per_layer_input=0 use_double_wide_mlp=false chunk_attn_window_size=0 "
        "causal_block_size=32 qk_clip_threshold=100.0 gdn_conv_kernel_dim=4 gdn_key_head_dim=128 "
        "gdn_value_head_dim=128 gdn_num_key_heads=16 gdn_num_value_heads=32 gdn_chunk_size=64 "
        "use_qk_norm_in_gdn=true gdn_mamba_block_size=0 partial_rotary_factor=1.0",
    ),
    (
        "ignored", "it concerns mixtures of experts only",
        "num_experts_per_tok=1 capacity_factor=-1.0 ragged_buffer_factor=-1.0 eval_ragged_buffer_factor=-1.0 "
        "moe_dropless_fallback=None retry_dropless_first_steps=0 first_phase_ragged_buffer_factor=0.0 "
        "log_required_ragged_buffer_factor=false warmup_programs_in_init=false num_moe_token_chunks=1 "
        "moe_chunk_barrier=false moe_log_max_load_ratio=false moe_expert_input_dim=-1 base_moe_mlp_dim=-1 "
        "padded_base_moe_mlp_dim=none load_balance_loss_weight=0.0 moe_use_megatron_seq_aux_loss=false "
        "use_custom_sort_vjp=true router_topk_matmul_vjp=false moe_topk_before_ep_all_gather=false "
        "use_ring_of_experts=false te_moe_block=false te_ep_overflow_check_every_n_steps=20 te_gmm_quantization= "
        "moe_quantize_token_all_gather=false moe_dispatch_no_expert_sharding=false use_ragged_sort=false "
        "moe_quantize_combine_bwd_method= ragged_sort_use_single_sparsecore=false "
        "moe_use_direct_token_gather=false use_gather_mosaic_kernel=false ragged_gather_fallback=false "
        "ragged_gather_reduce_fallback=false ragged_gather_cost_estimate_flops=-1 "
        "ragged_gather_reduce_cost_estimate_flops=-1 ragged_gather_cost_estimate_bytes_accessed=-1 "
        "ragged_gather_reduce_cost_estimate_bytes_accessed=-1 moe_pin_sparse_core_all_gathers=false "
        "moe_pin_sparse_core_ep_all_gathers=false moe_pin_sparse_core_fsdp_all_gathers=false "
        "moe_pin_sparse_core_fsdp_all_gathers_fwd_only=false moe_fsdp_all_gather_sparse_core_id=0 "
        "moe_ep_all_gather_sparse_core_id=1 use_random_routing=false interleave_moe_layer_step=1 "
        "moe_fsdp_use_two_stage_all_gather=false shard_exp_on_fsdp=false shard_embed_moe_on_fsdp=false "
        "use_2d_fsdp_sharding=false norm_topk_prob=false return_routed_experts=false float32_weight_sum=true "
        "float32_gate_logits=false prefuse_moe_weights=false fuse_expert_scales=false megablox=true "
        "sparse_matmul=true wi_tile_fwd_batch_seq=512 wi_tile_fwd_embed_dim=1024 wi_tile_fwd_mlp_dim=1024 "
        "eval_wi_tile_fwd_batch_seq=512 eval_wi_tile_fwd_embed_dim=1024 eval_wi_tile_fwd_mlp_dim=1024 "
        "wi_tile_dlhs_batch_seq=512 wi_tile_dlhs_embed_dim=1024 wi_tile_dlhs_mlp_dim=1024 "
        "wi_tile_drhs_batch_seq=512 wi_tile_drhs_embed_dim=1024 wi_tile_drhs_mlp_dim=1024 "
        "wo_tile_fwd_batch_seq=512 wo_tile_fwd_embed_dim=1024 wo_tile_fwd_mlp_dim=1024 "
        "eval_wo_tile_fwd_batch_seq=512 eval_wo_tile_fwd_embed_dim=1024 eval_wo_tile_fwd_mlp_dim=1024 "
        "wo_tile_dlhs_batch_seq=512 wo_tile_dlhs_embed_dim=1024 wo_tile_dlhs_mlp_dim=1024 "
        "wo_tile_drhs_batch_seq=512 wo_tile_drhs_embed_dim=1024 wo_tile_drhs_mlp_dim=1024 merge_gating_gmm=false "
        "num_moe_emb_chunks=0 use_tokamax_gmm=false use_gmm_v2=false use_gmm_v2_heuristic_tiling=false "
        "first_num_dense_layers=0 shared_experts=0 routed_scaling_factor=1.0 routed_score_func= routed_bias=false "
        "routed_bias_update_rate=0.0 defer_small_all_reduces=false log_moe_bias_norms=false "
        "log_step_diagnostics=false n_routing_groups=-1 first_num_hash_layers=0 topk_routing_group=-1 "
        "use_batch_split_schedule=false batch_split_factor=1 use_lineage=false",
    ),
    (
        "ignored", "it concerns mtp_num_layers only",
        "mtp_loss_scaling_factor=0.1 mtp_eval_target_module=0 mtp_reuse_input_embedding=false",
    ),
    (
        "ignored", "it concerns attention_type=mla only",
        "mla_naive_kvcache=true q_lora_rank=0 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 "
        "v_head_dim=128 use_sliced_mla_proj=false use_mla_absorbed_mqa=false",
    ),
    (
        "ignored", "it concerns attention_type=compressed only",
        "o_lora_rank=0 o_groups=0 compress_ratios=[] compressed_rope_max_timescale=160000 "
        "use_csa_streamindex_kernel=false",
    ),
    (
        "ignored", "it concerns use_indexer=true only",
        "indexer_head_dim=128 indexer_n_heads=64 indexer_topk=2048 indexer_sparse_training=false "
        "indexer_loss_scaling_factor=0.0 indexer_use_approx_top_k=false indexer_approx_top_k_recall=0.95 "
        "indexer_mask_exact_topk=true",
    ),
    (
        "ignored", "it concerns moba=true only",
        "moba_chunk_size=1024 moba_topk=8",
    ),
    (
        "ignored", "it concerns mhc_expansion_rate only",
        "sinkhorn_iterations=20 enable_mhc_lite=false use_mhc_pallas_kernel=false "
        "mhc_pallas_kernel_fwd_block_size=256 mhc_pallas_kernel_bwd_block_size=128 "
        "mhc_pallas_kernel_bwd_feature_block_size=1024",
    ),
    (
        "ignored", "it concerns engram_layers only",
        "engram_num_heads=8 engram_head_dim=1280 engram_vocab_bases=[] engram_max_ngram_size=3 "
        "engram_kernel_size=4 engram_seed=0",
    ),
    (
        "ignored", "it concerns images and sound only",
        "dtype_mm=float32 remat_policy_for_vit=minimal train_image_column=image eval_image_column=image "
        "attention_for_vit=dot_product vision_encoder_block freeze_vision_encoder_params=true "
        "freeze_audio_encoder_params=true use_audio=false image_size_for_vit=896 image_path= "
        "image_placeholder=<|image|> posemb_type_for_vit=learn max_num_images_per_example=-1 video_path= "
        "audio_path= video_placeholder=<|video|> audio_placeholder=<|audio|> use_audio_in_video=false "
        "use_mrope=false mrope_section=[24,20,20] position_id_per_seconds=25 video_max_grid_t=none "
        "video_max_grid_h=none video_max_grid_w=none hidden_size_for_vit=1408 intermediate_size_for_vit=5632 "
        "num_attention_heads_for_vit=16 num_channels_for_vit=3 tile_size_for_vit=336 patch_size_for_vit=14 "
        "conv_stride_for_vit=14 num_hidden_layers_for_vit=34 rope_theta_for_vit=10000 "
        "vision_output_dim_for_vit=4096 spatial_merge_size_for_vit=2 out_hidden_size_for_vit=512 "
        "temporal_patch_size_for_vit=2 num_position_embeddings_for_vit=1024 deepstack_visual_indexes_for_vit=[] "
        "vision_output_length=-1 projector_input_dim_for_vit=4096 projector_output_dim_for_vit=4096 "
        "pixel_shuffle_ratio_for_vit=0.5 projector_dropout_for_vit=0.0 vision_projector_type=default "
        "vision_connector_num_layers=2 vision_connector_hidden_size=0 vision_connector_activation=gelu "
        "vision_connector_use_bias=true d_model_for_audio=256 encoder_attention_heads_for_audio=4 "
        "encoder_ffn_dim_for_audio=512 encoder_layers_for_audio=2 attention_dropout_for_audio=0.0 "
        "activation_dropout_for_audio=0.0 activation_function_for_audio=gelu num_mel_bins_for_audio=128 "
        "max_source_positions_for_audio=1500 scale_embedding_for_audio=true n_window_for_audio=50 "
        "n_window_infer_for_audio=800 conv_chunksize_for_audio=500 downsample_hidden_size_for_audio=256 "
        "output_dim_for_audio=512 num_conv_layers_for_audio=3 max_timescale_for_audio=10000.0 "
        "max_sample_len_for_audio=10000",
    ),
    (
        "ignored", "fine-tuning data is formatted otherwise here",
        "formatting_func_path= formatting_func_kwargs={}",
    ),
    (
        "ignored", "it concerns adapters only",
        "lora.lora_rank=0 lora.lora_alpha=0.0 lora.lora_module_path lora.lora_weight_qtype=none "
        "lora.lora_tile_size=none lora.lora_restore_path= lora_input_adapters_path= hf_lora_adapter_path=",
    ),
    (
        "ignored", "it concerns distillation only",
        "student_overrides={} teacher_overrides={} offline_data_dir=none distill_alpha=0.5 distill_temperature=1.0 "
        "distill_beta=0.0 distill_feature_loss_type=cosine distill_layer_indices=None distill_alpha_end=None "
        "distill_alpha_schedule=constant distill_temperature_end=None distill_temperature_schedule=constant "
        "distill_beta_end=None distill_beta_schedule=constant learn_to_init_mode=false "
        "lti_use_general_linear_map=false distill_weights_copy_map={} distill_student_weights_share_map={} "
        "attn_module_name=none lti_layer_indices=none student_params_to_update=none",
    ),
    (
        "ignored", "it concerns inference only",
        "max_prefill_predict_length=64 system_prompt= load_from_prefill_dir=false prefill_cache_dir= "
        "autoregressive_decode_assert= model_call_mode= use_chunked_prefill=false prefill_chunk_size=256 "
        "enable_model_warmup=false enable_llm_inference_pool=false multi_sampling=false return_log_prob=false "
        "decode_sampling_strategy=greedy decode_sampling_nucleus_p=-1 decode_sampling_top_k=0 "
        "decode_sampling_temperature=1.0 stack_prefill_result_cache=false prefill_cache_axis_order=1,2,0,3 "
        "ar_cache_axis_order=1,2,0,3 compute_axis_order=0,1,2,3 reshape_q=false "
        "inference_server=MaxtextInterleavedServer prefill_slice=v5e-16 generate_slice=v5e-16 "
        "inference_microbenchmark_prefill_lengths=64,128,256,512,1024 "
        "inference_microbenchmark_stages=prefill,generate inference_microbenchmark_loop_iters=10 "
        "inference_microbenchmark_log_file_path= inference_microbenchmark_num_samples=[1,2,3,4,5] "
        "inference_metadata_file= inference_benchmark_test=false enable_prefix_caching=false "
        "prefix_caching_hbm_byte=10000000000 prefix_caching_dram_byte=100000000000",
    ),
    (
        "ignored", "it concerns inference by vLLM only",
        "kv_cache_buffer=256 hbm_utilization_vllm=0.72 swap_space_vllm_gb=2 free_kv_cache_during_weight_sync=true "
        "enable_dp_attention=false enable_expert_parallel=false async_scheduling=false max_num_batched_tokens=none "
        "max_num_seqs=none vllm_block_size=none stop_strings=none vllm_additional_config={} vllm_hf_overrides={} "
        "vllm_hf_config_path= use_standalone_converter=false use_weight_converter=true use_raiden_ffi=none "
        "rollout_tensor_parallelism=-1 rollout_backend=maxtext weight_sync_debug=false log_weight_sync_time=false "
        "kv_tp_size=1 moe_mlp_tp_size=1 vllm_load_format=dummy debug_converter=false gcs_debug_path=",
    ),
)  # fmt: skip


def _default(text: str) -> Any:
    if nothing(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rows() -> Iterator[tuple[str, Key]]:
    for disposition, why, names in _GROUPS:
        for item in names.split():
            name, equals, text = item.partition("=")
            default = _default(text)
            quiet = (default, tuple(default)) if isinstance(default, list) else (default,)
            read = like(default) if equals else anything
            yield name, Key(read=read, why=why, disposition=disposition, quiet=quiet if equals else ())


KEYS: dict[str, Key] = dict(_rows())
