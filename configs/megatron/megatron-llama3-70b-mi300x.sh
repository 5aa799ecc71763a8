#!/bin/bash
# ROCm's script in a container: Llama 3 70B, parameters sharded over four nodes.
docker exec megatron bash -lc "cd /workspace/Megatron-LM && \
    export NCCL_SOCKET_IFNAME=ens51np0 GLOO_SOCKET_IFNAME=ens51np0; \
    MODEL_SIZE=70 MBS=3 BS=96 SEQ_LENGTH=8192 TOTAL_ITERS=50 RECOMPUTE=1 \
    FSDP=1 TP=1 SEQ_PARALLEL=0 NNODES=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=6000 \
    bash examples/llama/train_llama3.sh 2>&1 | tee train.log"
