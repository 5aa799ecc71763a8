#!/bin/bash
# Llama 2 70B on 8 nodes of H100: tensor, pipeline and data parallelism, tokenised files.
#SBATCH --nodes=8 --ntasks-per-node=1 --exclusive
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_SL=1

GPUS_PER_NODE=8
NNODES=8
DATA=/data/slimpajama
SAVED=/checkpoints/llama2-70b

LAUNCHER=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --rdzv_backend c10d
    --rdzv_endpoint head-node:29500
)
MODEL=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model /models/llama-2/tokenizer.model
)
PARALLELISM=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 5  # 4 chunks of the model on each stage
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING="
    --seq-length 4096
    --micro-batch-size 1
    --global-batch-size $((GPUS_PER_NODE * NNODES * 2))
    --train-iters 1000
    --lr 1.5e-4 --min-lr 1.5e-5
    --lr-decay-style cosine
    --lr-warmup-fraction 0.02
    --weight-decay 0.1
    --adam-beta1 0.9 --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --recompute-granularity selective
"
DATA_ARGS="--data-path 0.7 $DATA/web_text_document 0.3 $DATA/code_text_document --split 990,8,2 --num-workers 4"

srun torchrun "${LAUNCHER[@]}" pretrain_gpt.py \
    "${MODEL[@]}" "${PARALLELISM[@]}" $TRAINING $DATA_ARGS \
    --save "$SAVED" --load "$SAVED" --save-interval 250 --ckpt-format torch_dist \
    --async-save --use-persistent-ckpt-worker \
    --eval-interval 250 --eval-iters 10 --log-interval 1 --log-throughput \
    --tensorboard-dir "$SAVED/tensorboard" 2>&1 | tee train.log
