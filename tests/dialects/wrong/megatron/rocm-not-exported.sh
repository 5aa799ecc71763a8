MBS=64
MODEL_SIZE=8 TP=3 \
    bash examples/llama/train_llama3.sh
