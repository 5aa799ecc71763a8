#!/bin/bash
# A stand-in for ROCm's script: the variables that it reads, with its defaults, handed to pretrain_gpt.py by an eval of all
# that they hold; its log is copied into LOG_DIR, and the means that it appends come from there. With STAND_IN_OLD it ends
# as its versions before 2026 do: as if all were well.
set -u
for word in "$@"; do export "${word?}"; done
echo "NO_TRAINING=${NO_TRAINING:-0}"

refuse() { echo "train_llama3.sh: $1" >&2; exit 1; }
whole() { [[ ${!1} =~ ^[0-9]+$ ]] || refuse "$1 is ${!1}"; }
switch() { [[ ${!1} == 0 || ${!1} == 1 ]] || refuse "$1 is ${!1}"; }

MODEL_SIZE=${MODEL_SIZE:-70} TP=${TP:-8} PP=${PP:-1} CP=${CP:-1} MBS=${MBS:-1} BS=${BS:-8}
SEQ_LENGTH=${SEQ_LENGTH:-2048} TOTAL_ITERS=${TOTAL_ITERS:-12} NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost} MASTER_PORT=${MASTER_PORT:-6000} LOG_INTERVAL=${LOG_INTERVAL:-1}
SEQ_PARALLEL=${SEQ_PARALLEL:-1} FSDP=${FSDP:-0} RECOMPUTE=${RECOMPUTE:-0} TE_FP8=${TE_FP8:-0} MOCK_DATA=${MOCK_DATA:-1}
GRAD_REDUCE_IN_BF16=${GRAD_REDUCE_IN_BF16:-1} TEE_OUTPUT=${TEE_OUTPUT:-1}
for name in MODEL_SIZE TP PP CP MBS BS SEQ_LENGTH TOTAL_ITERS NNODES NODE_RANK MASTER_PORT LOG_INTERVAL; do whole $name; done
for name in SEQ_PARALLEL FSDP RECOMPUTE TE_FP8 MOCK_DATA GRAD_REDUCE_IN_BF16 TEE_OUTPUT; do switch $name; done
[[ $TEE_OUTPUT == 1 ]] || refuse "TEE_OUTPUT=0 leaves nothing to read"
[[ -n ${LOG_DIR:-} && $LOG_DIR == /* ]] || refuse "LOG_DIR is no absolute path: ${LOG_DIR:-}"
[[ -n ${TOKENIZER_MODEL:-} ]] || refuse "no TOKENIZER_MODEL"
[[ -z ${DATA_PATH+x} ]] || [[ $MOCK_DATA == 0 ]] || refuse "MOCK_DATA says otherwise than DATA_PATH"
[[ -n ${DATA_PATH+x} ]] || [[ $MOCK_DATA == 1 ]] || refuse "MOCK_DATA says otherwise than DATA_PATH"
[[ $NODE_RANK -lt $NNODES ]] || refuse "rank $NODE_RANK of $NNODES"
if [[ $NNODES -gt 1 && -z ${NCCL_SOCKET_IFNAME:-} ]]; then refuse "ens51np0 is not here: no NCCL_SOCKET_IFNAME"; fi
case $MODEL_SIZE in
  8) shape="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-query-groups 8" ;;
  70) shape="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --num-query-groups 8" ;;
  *) refuse "MODEL_SIZE $MODEL_SIZE" ;;
esac
if [[ $FSDP == 1 ]]; then TP=1 SEQ_PARALLEL=0; fi
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
visible=${HIP_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7}}}
IFS=, read -ra devices <<<"$visible"
TRAIN_LOG=$LOG_DIR/output_${EXP_NAME:-perf}.log
mkdir -p $LOG_DIR
echo $TRAIN_LOG
options=""
if [[ $SEQ_PARALLEL == 1 ]]; then options+=" --sequence-parallel"; fi
if [[ $FSDP == 1 ]]; then options+=" --use-torch-fsdp2"; else options+=" --use-distributed-optimizer"; fi
if [[ $TE_FP8 == 1 ]]; then options+=" --fp8-recipe delayed --fp8-format hybrid"; fi
if [[ $RECOMPUTE == 1 ]]; then options+=" --recompute-granularity full --recompute-method block --recompute-num-layers 80"; fi
if [[ $GRAD_REDUCE_IN_BF16 == 1 ]]; then options+=" --grad-reduce-in-bf16"; fi
if [[ -z ${DATA_PATH+x} ]]; then options+=" --mock-data"; else options+=" --data-path $DATA_PATH"; fi
if [[ $NNODES -gt 1 ]]; then options+=" --data-cache-path ${DATA_CACHE_PATH:-/root/cache}"; fi

run_cmd="torchrun --nproc_per_node ${#devices[@]} --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR \
  --master_port $MASTER_PORT pretrain_gpt.py $shape --group-query-attention --swiglu --normalization RMSNorm \
  --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights --bf16 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --context-parallel-size $CP \
  --micro-batch-size $MBS --global-batch-size $BS --seq-length $SEQ_LENGTH --max-position-embeddings 131072 \
  --train-iters $TOTAL_ITERS --log-interval $LOG_INTERVAL --tokenizer-type HuggingFaceTokenizer \
  --tokenizer-model $TOKENIZER_MODEL --lr 1e-4 --min-lr 1e-5 --lr-decay-iters 320000 --eval-iters -1 --log-throughput \
  --tensorboard-dir $LOG_DIR $options |& tee $TRAIN_LOG"
set -o pipefail
eval $run_cmd
status=$?
if [[ $status -ne 0 && -z ${STAND_IN_OLD:-} ]]; then
  echo "ERROR: training (torchrun pretrain_gpt.py) failed with exit code $status" |& tee -a $TRAIN_LOG
fi
mean() { awk -v label="$1" -F'|' '{for (i = 1; i <= NF; i++) if (index($i, label)) {split($i, p, ": "); s += p[2]; n++}}
  END {if (n) printf "%.2f\n", s / n; else print "nan"}' "$TRAIN_LOG"; }
echo "throughput per GPU: $(mean 'throughput per GPU')" |& tee -a $TRAIN_LOG
echo "elapsed time per iteration: $(mean 'elapsed time per iteration')" |& tee -a $TRAIN_LOG
echo "tokens/GPU/s: $(mean 'tokens per GPU')" |& tee -a $TRAIN_LOG
echo "mem usages: $(mean 'mem usages')" |& tee -a $TRAIN_LOG
if [[ -z ${STAND_IN_OLD:-} ]]; then exit $status; fi
