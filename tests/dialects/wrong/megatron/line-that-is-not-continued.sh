torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 2 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 \
    --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 3e-4 --mock-data \
    --tokenizer-type NullTokenizer --vocab-size 511 \
    # the rest is as in the paper
    --bf16 --swiglu --clip-grad 1.0
