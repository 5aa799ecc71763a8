"""A stand-in for Megatron-LM's pretrain_gpt.py: takes the arguments that it takes, trains nothing, prints its log.

Only Python is needed. The first process of a node stands for all of them. The rendezvous is real: the first node
listens, the others connect, and all must have the same arguments. STAND_IN_SECONDS is an iteration's time,
STAND_IN_FAILS_AT one at which the second node dies.
"""

import argparse
import json
import os
import socket
import sys
import time

NUMBERS = [
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "kv-channels",
    "num-query-groups",
    "seq-length",
    "max-position-embeddings",
    "rotary-base",
    "make-vocab-size-divisible-by",
    "vocab-size",
    "micro-batch-size",
    "global-batch-size",
    "train-iters",
    "seed",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "num-virtual-stages-per-pipeline-rank",
    "num-distributed-optimizer-instances",
    "lr-decay-iters",
    "lr-warmup-iters",
    "lr-wsd-decay-iters",
    "eval-interval",
    "eval-iters",
    "log-interval",
    "save-interval",
    "recompute-num-layers",
    "num-workers",
    "profile-step-start",
    "profile-step-end",
]
FRACTIONS = [
    "rotary-percent",
    "rope-scaling-factor",
    "norm-epsilon",
    "init-method-std",
    "attention-dropout",
    "hidden-dropout",
    "lr",
    "min-lr",
    "weight-decay",
    "adam-beta1",
    "adam-beta2",
    "adam-eps",
    "sgd-momentum",
    "clip-grad",
]
FLAGS = [
    "group-query-attention",
    "use-rope-scaling",
    "swiglu",
    "untie-embeddings-and-output-weights",
    "disable-bias-linear",
    "sequence-parallel",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "use-torch-fsdp2",
    "bf16",
    "grad-reduce-in-bf16",
    "mock-data",
    "log-throughput",
    "log-params-norm",
    "profile",
    "async-save",
    "use-persistent-ckpt-worker",
    "finetune",
    "reset-position-ids",
    "reset-attention-mask",
    "eod-mask-loss",
    "no-check-for-nan-in-loss-and-grad",
    "full-validation",
    "overlap-grad-reduce",
    "overlap-param-gather",
]
WORDS = [
    "position-embedding-type",
    "normalization",
    "tokenizer-type",
    "tokenizer-model",
    "cp-comm-type",
    "fp8-recipe",
    "fp8-format",
    "optimizer",
    "lr-decay-style",
    "lr-wsd-decay-style",
    "split",
    "data-cache-path",
    "data-parallel-sharding-strategy",
    "ckpt-format",
    "save",
    "load",
    "attention-backend",
    "recompute-granularity",
    "recompute-method",
    "tensorboard-dir",
    "distributed-backend",
]
LISTS = ["data-path", "train-data-path", "valid-data-path", "test-data-path", "recompute-modules"]


def arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for names, options in (
        (NUMBERS, {"type": int}), (FRACTIONS, {"type": float}), (FLAGS, {"action": "store_true"}), (WORDS, {}),
        (LISTS, {"nargs": "+"}),
    ):  # fmt: skip
        for name in names:
            parser.add_argument("--" + name, **options)
    args = parser.parse_args()
    for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "train_iters"):
        if getattr(args, name) is None:
            parser.error(f"{name} is needed")
    return args


def meet(nodes, rank, said):
    theirs = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens at MASTER_PORT
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + theirs
    if rank == 0:
        listener = socket.create_server(address)
        listener.settimeout(30)
        ranks = {0}
        while len(ranks) < nodes:
            other, theirs = json.loads(listener.accept()[0].makefile().readline())
            if other in ranks or not 0 < other < nodes or theirs != said:
                sys.exit(f"node {other} beside {sorted(ranks)} says {theirs}, not {said}")
            ranks.add(other)
        return
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(address, 5).sendall(json.dumps([rank, said]).encode() + b"\n")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    args = arguments()
    world, nodes, rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK"))
    given = (args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.context_parallel_size)
    sizes = [size or 1 for size in given]
    replicas, rest = divmod(world, sizes[0] * sizes[1] * sizes[2])
    if rest or args.global_batch_size % (args.micro_batch_size * replicas):
        sys.exit("AssertionError: global batch size is not divisible by micro batch size times data parallel size")
    if sizes[0] * sizes[2] > 1 and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1" and not args.use_megatron_fsdp:
        sys.exit("AssertionError: tensor or context parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1")
    if os.environ["LOCAL_RANK"] != "0":
        return
    meet(nodes, rank, [world, nodes, {**vars(args), "tensorboard_dir": None}])
    if rank == 0:
        print(f"using world size: {world}, data-parallel size: {replicas}, context-parallel size: {sizes[2]}")
        print("------------------------ arguments ------------------------")
        for name, value in sorted(vars(args).items()):
            print("  {} {} {}".format(name, "." * (48 - len(name)), value))
        print("  world_size {} {}".format("." * 38, world))
        print("-------------------- end of arguments ---------------------")
    print("[before the start of training step] datetime: {} ".format(time.strftime("%Y-%m-%d %H:%M:%S")), flush=True)
    seconds = float(os.environ.get("STAND_IN_SECONDS", "0.05"))
    tokens = args.global_batch_size * args.seq_length
    heads = args.num_query_groups or args.num_attention_heads
    head = args.kv_channels or args.hidden_size // args.num_attention_heads
    layer = args.hidden_size * (head * (2 * args.num_attention_heads + 2 * heads) + 3 * args.ffn_hidden_size)
    matrices = args.num_layers * layer + (args.vocab_size or 128256) * args.hidden_size
    attended = args.num_layers * args.seq_length * head * args.num_attention_heads
    teraflops = 6 * tokens * (matrices + attended) / 1e12 / world
    clock = time.time()  # of a program that takes its time
    for iteration in range(1, args.train_iters + 1):
        took = seconds * (40 if iteration == 1 else 1)
        clock += took
        time.sleep(min(took, 0.05))
        if rank == 1 and str(iteration) == os.environ.get("STAND_IN_FAILS_AT"):
            sys.exit(
                "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity ..."
            )
        if rank == nodes - 1 and iteration % (args.log_interval or 1) == 0:  # the last rank's node
            now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock))
            print(
                f" [{now}] iteration {iteration:8d}/{args.train_iters:8d} | "
                f"consumed samples: {iteration * args.global_batch_size:12d} | "
                f"elapsed time per iteration (ms): {1000 * took:.1f} | "
                f"throughput per GPU (TFLOP/s/GPU): {teraflops / took:.1f} | "
                f"tokens per GPU (tokens/s/GPU): {tokens / world / took:.1f} | learning rate: 1.000000E-04 | "
                f"global batch size: {args.global_batch_size:5d} | "
                f"lm loss: {11.8 - 3 * iteration / args.train_iters:.6E} | loss scale: 1.0 | grad norm: 1.234 | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |",
                flush=True,
            )
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock))
    print(f"[after training is done] datetime: {now} ", flush=True)


main()
