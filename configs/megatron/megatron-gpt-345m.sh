#!/bin/bash
# GPT-2 of 345 million parameters on one node: learned positions, LayerNorm, GELU, biases, dropout.
torchrun --nproc-per-node=8 pretrain_gpt.py \
    --num-layers=24 --hidden-size=1024 --num-attention-heads=16 \
    --seq-length=1024 --max-position-embeddings=1024 \
    --micro-batch-size=4 --global-batch-size=64 --train-samples=1024000 \
    --lr=1.5e-4 --min-lr=1e-5 --lr-decay-style=cosine --lr-decay-samples=640000 --lr-warmup-samples=6400 \
    --weight-decay=1e-2 --clip-grad=1.0 --bf16 \
    --tokenizer-type=GPT2BPETokenizer --vocab-file=gpt2-vocab.json --merge-file=gpt2-merges.txt \
    --data-path=my-gpt2_text_document --split=949,50,1 \
    --save=checkpoints/gpt2_345m --save-interval=1000 --eval-interval=1000 --eval-iters=10
