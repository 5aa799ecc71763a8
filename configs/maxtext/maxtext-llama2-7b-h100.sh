#!/usr/bin/env bash
# Llama 2 7B on one node of eight H100, with flash attention and the flags that are recommended for it.
# Some of the flags are gone from today's XLA, which ends a process for them: `seatrial check` says which.
RUN_NAME="${RUN_NAME:-llama2-7b-h100}"

export NVTE_FUSED_ATTN=1
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true
    --xla_gpu_enable_triton_gemm=false
    --xla_gpu_enable_highest_priority_async_stream=true
    --xla_gpu_enable_async_all_gather=true
    --xla_gpu_enable_async_reduce_scatter=true
    --xla_gpu_enable_async_all_reduce=true
    --xla_gpu_graph_level=0
    --xla_gpu_simplify_all_fp_conversions
    --xla_gpu_all_reduce_combine_threshold_bytes=1073741824
    --xla_gpu_all_gather_combine_threshold_bytes=1073741824
    --xla_gpu_reduce_scatter_combine_threshold_bytes=134217728
    --xla_gpu_enable_pipelined_all_gather=true
    --xla_gpu_enable_pipelined_reduce_scatter=true
    --xla_gpu_enable_pipelined_all_reduce=true
    --xla_gpu_enable_while_loop_double_buffering=true
    --xla_gpu_enable_all_gather_combine_by_dim=false
    --xla_gpu_enable_reduce_scatter_combine_by_dim=false
    --xla_disable_hlo_passes=rematerialization"

python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml \
    run_name="$RUN_NAME" \
    hardware=gpu \
    model_name=llama2-7b \
    steps=15 \
    per_device_batch_size=2 \
    max_target_length=4096 \
    ici_fsdp_parallelism=8 \
    remat_policy=minimal_with_context \
    attention=cudnn_flash_te \
    max_segments_per_seq=32 \
    use_iota_embed=true \
    scan_layers=false \
    dataset_type=synthetic \
    enable_checkpointing=false \
    base_output_directory=local_train
