"""Names of one thing in many trainers: a row for each meaning, with its names in the spellings read here and others.

Used only to advise on an unknown key. A name with dots matches keys that end in it; `-`, `_` and case do not matter.
First the native name; then NxDT's, MaxText's, Megatron-LM's with its `train_llama3.sh`, CVS's, then any other's.
"""

from __future__ import annotations

ROWS: tuple[str, ...] = (
    # the run
    "name run_name exp_manager.name --wandb-exp-name EXP_NAME experiment_name job_name enabled_sweep_list",
    "seed init_weights_seed data_shuffle_seed --seed random_seed",
    "steps max_steps trainer.max_steps --train-iters TOTAL_ITERS training_iterations training_steps train_steps"
    " train_iters num_train_steps total_steps num_steps iterations",
    "--train-samples --exit-interval steps max_steps --train-iters TOTAL_ITERS training_iterations training_steps",
    "epochs max_epochs trainer.max_epochs num_epoch num_epochs num_train_epochs",
    "log_dir exp_dir explicit_log_dir base_output_directory output_dir logging_dir",
    # machines
    "topology.num_nodes num_nodes trainer.num_nodes nnodes NNODES --nnodes num_slices compile_topology_num_slices",
    "topology.devices_per_node devices trainer.devices gpus_per_node GPUS_PER_NODE --nproc-per-node nproc_per_node"
    " devices_per_node HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES",
    "topology.device gpu_arch gpu_name compile_topology hardware device gpu gpu_type accelerator",
    "distributed.coordinator_host coordinator_ip JAX_COORDINATOR_IP jax_coordinator_address master_address MASTER_ADDR"
    " --master-addr coordinator_address",
    "distributed.coordinator_port coordinator_port JAX_COORDINATOR_PORT MASTER_PORT --master-port",
    "distributed.initialization_timeout_seconds JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS"
    " jax_distributed_initialization_timeout initialization_timeout initialization_timeout_seconds",
    "container.image container_image docker_image image",
    "container.volumes volume_dict volumes",
    "nic_type network_type",
    "nccl_ib_hca NCCL_IB_HCA ib_hca nccl_ib_hca_list ib_hca_list",
    "nccl_socket_ifname NCCL_SOCKET_IFNAME socket_ifname",
    "gloo_socket_ifname GLOO_SOCKET_IFNAME",
    "nccl_ib_gid_index NCCL_IB_GID_INDEX ib_gid_index",
    # parallelism
    "parallelism.within_node.tensor tensor_model_parallel_size ici_tensor_parallelism --tensor-model-parallel-size TP"
    " tensor_parallelism tensor_parallel_degree tensor_parallel_size tp tp_size",
    "parallelism.across_nodes.tensor dcn_tensor_parallelism tensor_model_parallel_size --tensor-model-parallel-size TP"
    " tensor_parallelism dcn_tensor_sequence_parallelism",
    "parallelism.within_node.pipeline pipeline_model_parallel_size ici_pipeline_parallelism"
    " --pipeline-model-parallel-size PP pipeline_parallelism pipeline_parallel_degree pipeline_parallel_size"
    " pp pp_size",
    "parallelism.across_nodes.pipeline dcn_pipeline_parallelism pipeline_model_parallel_size"
    " --pipeline-model-parallel-size PP pipeline_parallelism",
    "parallelism.virtual_pipeline virtual_pipeline_model_parallel_size num_pipeline_repeats"
    " --num-virtual-stages-per-pipeline-rank --num-layers-per-virtual-pipeline-stage virtual_pipeline_stages vpp"
    " num_layers_per_pipeline_stage",
    "parallelism.within_node.context context_parallel_size ici_context_parallelism --context-parallel-size CP"
    " context_parallelism context_parallel_degree cp cp_size ici_sequence_parallelism",
    "parallelism.across_nodes.context dcn_context_parallelism dcn_sequence_parallelism context_parallel_size"
    " --context-parallel-size CP",
    "parallelism.within_node.fsdp ici_fsdp_parallelism --use-torch-fsdp2 --use-megatron-fsdp FSDP fsdp"
    " --use-custom-fsdp --data-parallel-sharding-strategy MEGATRON_FSDP"
    " data_parallel_shard_degree zero3 fsdp_size",
    "parallelism.across_nodes.fsdp dcn_fsdp_parallelism --use-torch-fsdp2 FSDP fsdp",
    "parallelism.within_node.data ici_data_parallelism data_parallelism data_parallel_size data_parallel_degree dp"
    " data_parallel_replicate_degree HSDP_NUM_REPLICAS --num-distributed-optimizer-instances ENABLE_HSDP",
    "parallelism.across_nodes.data dcn_data_parallelism HSDP_NUM_REPLICAS --num-distributed-optimizer-instances"
    " ENABLE_HSDP",
    "parallelism.zero1 zero1 shard_optimizer_over_data --use-distributed-optimizer optimizer_sharding"
    " wrap_with_zero use_distributed_optimizer",
    "parallelism.sequence_parallel sequence_parallel --sequence-parallel SEQ_PARALLEL ici_tensor_sequence_parallelism"
    " sequence_parallelism",
    "expert_model_parallel_size ici_expert_parallelism --expert-model-parallel-size expert_parallelism"
    " expert_parallel_degree",
    # batch
    "batch.micro_batch_size micro_batch_size data.micro_batch_size per_device_batch_size --micro-batch-size MBS"
    " per_device_train_batch_size local_batch_size train_micro_batch_size_per_gpu mbs",
    "batch.global_batch_size global_batch_size data.global_batch_size --global-batch-size BS batch_size"
    " train_batch_size gbs per_device_batch_size gradient_accumulation_steps",
    "gradient_accumulation_steps accumulate_grad_batches accumulation_steps grad_accum_steps global_batch_size"
    " --global-batch-size batch_size",
    "batch.sequence_length encoder_seq_length model.encoder_seq_length data.seq_length max_target_length --seq-length"
    " SEQ_LENGTH sequence_length seq_length seq_len max_seq_length max_seq_len",
    # model
    "model.name model_name model.preset --model-name MODEL_SIZE model_size flavor",
    "model.num_layers base_num_decoder_layers --num-layers num_hidden_layers n_layers --encoder-num-layers",
    "model.hidden_dim hidden_size base_emb_dim --hidden-size emb_dim d_model hidden_dim",
    "model.ffn_dim ffn_hidden_size base_mlp_dim --ffn-hidden-size intermediate_size mlp_dim",
    "model.num_heads num_attention_heads base_num_query_heads --num-attention-heads n_heads num_query_heads",
    "model.num_kv_heads num_kv_heads base_num_kv_heads --num-query-groups num_query_groups num_key_value_heads"
    " n_kv_heads --group-query-attention",
    "model.head_dim kv_channels --kv-channels head_dim",
    "model.vocab_size vocab_size --vocab-size padded_vocab_size",
    "model.activation activation mlp_activations --swiglu hidden_act",
    "model.norm normalization --normalization norm_type",
    "model.norm_epsilon layernorm_epsilon normalization_layer_epsilon --norm-epsilon rms_norm_eps norm_eps",
    "model.tied_embeddings share_embeddings_and_output_weights logits_via_embedding tie_word_embeddings"
    " --untie-embeddings-and-output-weights",
    "model.vocab_multiple make_vocab_size_divisible_by --make-vocab-size-divisible-by vocab_padding_multiple",
    "model.positions position_embedding_type --position-embedding-type trainable_position_size position_embedding",
    "model.max_positions max_position_embeddings --max-position-embeddings",
    "model.rope_theta rope_theta position_freq_base rope_max_timescale --rotary-base rotary_base position_abf_factor",
    "rope_type --use-rope-scaling --rope-scaling-factor rope_scaling",
    "model.rotary_fraction rotary_percentage partial_rotary_factor --rotary-percent rotary_percent",
    "model.biases has_bias mlp_bias attention_bias --disable-bias-linear use_bias add_bias_linear",
    "dropout.hidden hidden_dropout dropout_rate --hidden-dropout enable_dropout",
    "dropout.attention attention_dropout --attention-dropout dropout_rate",
    "dropout.ffn ffn_dropout dropout_rate --hidden-dropout",
    "initialization.std init_method_std dense_init_scale --init-method-std initializer_range",
    # precision
    "precision.compute_dtype dtype precision.type --bf16 compute_dtype torch_dtype xla_use_bf16 xla_downcast_bf16",
    "precision.params_dtype weight_dtype --main-params-dtype param_dtype params_dtype master_weights",
    "precision.optimizer_dtype mu_dtype --exp-avg-dtype --exp-avg-sq-dtype --use-precision-aware-optimizer"
    " master_weights",
    "precision.gradient_dtype grad_dtype --accumulate-allreduce-grads-in-fp32 fp32_grad_acc --main-grads-dtype"
    " GRAD_REDUCE_IN_BF16",
    "precision.reduce_dtype --grad-reduce-in-bf16 GRAD_REDUCE_IN_BF16 reduce_dtype gradient_reduce_dtype grad_dtype"
    " fp32_grad_acc",
    "precision.quantization quantization --fp8-format TE_FP8 fp8 --fp8-hybrid --fp8-e4m3 precision",
    # optimizer
    "optimizer.algorithm optim.name opt_type --optimizer OPTIMIZER optimizer_type optimizer_name",
    "optimizer.learning_rate optim.lr learning_rate --lr lr max_lr peak_lr",
    "optimizer.final_learning_rate_fraction sched.min_lr learning_rate_final_fraction"
    " cosine_learning_rate_final_fraction --min-lr min_lr lr_min min_learning_rate",
    "optimizer.schedule sched.name lr_schedule_type --lr-decay-style lr_scheduler_type decay_type wsd_decay_style"
    " --lr-wsd-decay-style",
    "optimizer.warmup_steps sched.warmup_steps warmup_steps warmup_steps_fraction --lr-warmup-iters lr_warmup_steps"
    " warmup_ratio --lr-warmup-fraction --lr-warmup-samples",
    "optimizer.hold_steps hold_steps hold_ratio wsd_decay_steps_fraction --lr-wsd-decay-iters --lr-wsd-decay-samples",
    "optimizer.decay_norms do_layer_norm_weight_decay adamw_mask --apply-layernorm-weight-decay",
    "optimizer.decay_steps learning_rate_schedule_steps --lr-decay-iters sched.max_steps lr_decay_steps"
    " --lr-decay-samples",
    "optimizer.beta1 optim.betas adam_b1 --adam-beta1 adam_beta1 beta1 beta_1",
    "optimizer.beta2 optim.betas adam_b2 --adam-beta2 adam_beta2 beta2 beta_2",
    "optimizer.epsilon optim.eps adam_eps --adam-eps adam_epsilon eps",
    "optimizer.weight_decay optim.weight_decay adam_weight_decay --weight-decay weight_decay wd",
    "optimizer.clip_norm gradient_clip_val gradient_clipping_threshold --clip-grad max_grad_norm clip_grad grad_clip"
    " gradient_clipping max_norm",
    # data and objective
    "data.paths train_dir data_prefix hf_train_files grain_train_files dataset_path hf_path --data-path DATA_PATH"
    " --train-data-path train_files data_path train_data_path",
    "data.validation_paths val_dir hf_eval_files grain_eval_files --valid-data-path val_data_path eval_data_path",
    "data.test_paths test_dir --test-data-path",
    "data.index_dir index_mapping_dir --data-cache-path DATA_CACHE_PATH data_cache_dir",
    "data.kind dataset_type --mock-data MOCK_DATA mock_data synthetic model_source",
    "data.split splits_string train_split --split",
    "data.tokenizer tokenizer.type tokenizer_path tokenizer_type --tokenizer-model TOKENIZER_MODEL tokenizer_model"
    " --tokenizer-type tokenizer_name",
    "data.packing sft.packing packing sequence_packing",
    "objective.kind use_sft_style_data_module use_sft use_dpo algo alignment",
    "objective.beta dpo.kl_beta dpo.dpo_beta dpo_beta kl_beta orpo.beta orpo_lambda",
    "objective.max_prompt_length dpo.max_prompt_length max_prompt_length",
    # evaluation, logging, checkpoints
    "evaluation.interval_steps val_check_interval eval_interval --eval-interval EVAL_INTERVAL eval_steps_interval",
    "evaluation.batches limit_val_batches eval_steps --eval-iters EVAL_ITERS eval_batches --full-validation",
    "logging.interval_steps log_every_n_steps log_period --log-interval LOG_INTERVAL log_interval log_freq"
    " logging_steps",
    "logging.tensorboard create_tensorboard_logger enable_tensorboard --tensorboard-dir",
    "execution.profile_from_step skip_first_n_steps_for_profiler --profile-step-start ENABLE_PROFILING profiler",
    "execution.profile_steps profiler_steps --profile-step-end",
    "checkpoint.enabled create_checkpoint_callback enable_checkpointing enable_checkpoint --save SAVE_CKPT_PATH",
    "checkpoint.directory checkpoint_dir save_dir --save SAVE_CKPT_PATH enable_checkpointing",
    "checkpoint.interval_steps every_n_train_steps checkpoint_period --save-interval SAVE_INTERVAL save_steps"
    " save_interval checkpoint_interval --persistent-save-interval",
    "checkpoint.keep save_top_k max_num_checkpoints_to_keep save_total_limit keep_latest_k",
    "checkpoint.asynchronous async_checkpointing --async-save async_mode async_save",
    "checkpoint.resume resume_if_exists --load LOAD_CKPT_PATH",
    "checkpoint.resume_required resume_ignore_no_checkpoint --exit-on-missing-checkpoint",
    "checkpoint.resume_from resume_from_checkpoint load_full_state_path load_parameters_path --pretrained-checkpoint"
    " init_from",
    "checkpoint.weights_only weight_init_only --finetune --no-load-optim load_parameters_path",
    # execution
    "execution.attention flash_attention attention --use-flash-attn USE_FLASH_ATTN --attention-backend"
    " attention_kernel attn_implementation",
    "execution.remat activations_checkpoint_granularity remat_policy --recompute-granularity RECOMPUTE recompute"
    " gradient_checkpointing activation_checkpointing activation_checkpoint remat --recompute-activations",
    "execution.remat_modules activations_checkpoint_recompute --recompute-modules recompute_modules",
    "execution.scan_layers scan_layers",
    "execution.compile_cache compiler_cache_url jax_cache_dir compile_cache",
    "execution.xla_flags xla_flags XLA_FLAGS",
    "execution.environment env_dict environment env_vars",
    # targets
    "tflops_per_second_per_device tflops_per_sec_per_gpu throughput_per_gpu",
    "tokens_per_second_per_device tokens_per_sec_per_gpu tokens_per_gpu",
    "step_seconds elapsed_time_per_iteration step_time",
    "memory_fraction mem_usage mem_usages",
)
