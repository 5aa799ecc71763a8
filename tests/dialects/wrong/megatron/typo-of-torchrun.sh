torchrun --nproc_per_nods 8 pretrain_gpt.py \
    --num-layers 4 --hidden-size 256 --ffn-hidden-size 688 --num-attention-heads 8 --seq-length 256 \
    --max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 16 --train-iters 20 --lr 3e-4 \
    --tokenizer-type NullTokenizer --vocab-size 511 --make-vocab-size-divisible-by 1 --swiglu \
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \
    --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --lr-decay-style cosine --bf16 \
    --mock-data --eval-iters 0 --log-interval 1
