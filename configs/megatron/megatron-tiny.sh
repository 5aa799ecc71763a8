#!/bin/bash
# A Llama of 4 layers on made-up data: it runs on a laptop, in a minute.
torchrun --nproc_per_node 1 pretrain_gpt.py \
    --num-layers 4 --hidden-size 256 --ffn-hidden-size 688 --num-attention-heads 8 \
    --group-query-attention --num-query-groups 4 --swiglu --normalization RMSNorm \
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear \
    --attention-dropout 0 --hidden-dropout 0 \
    --tokenizer-type NullTokenizer --vocab-size 511 --make-vocab-size-divisible-by 1 --mock-data \
    --seq-length 256 --max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 8 --train-iters 20 \
    --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters 2 \
    --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --bf16 \
    --eval-iters 0 --log-interval 1
