MODEL_SIZE=8 TP=1 MBS=2 BS=128 SEQ_LENGTH=8192 TOTAL_ITERS=50 GRAD_REDUCE_IN_BF16=0 \
    bash examples/llama/train_llama3.sh --train-iters 50
