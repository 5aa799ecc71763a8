#!/bin/bash
# ROCm's script: Llama 3 8B in FP8 on the eight devices of a node, made-up data.
TEE_OUTPUT=1 MBS=2 BS=128 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 TOTAL_ITERS=50 \
    bash examples/llama/train_llama3.sh
