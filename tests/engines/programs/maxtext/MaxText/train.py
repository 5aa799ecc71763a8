"""A stand-in for MaxText's train.py: as strict about its configuration and environment; trains nothing, prints its log.

    python3 MaxText/train.py CONFIG.yml [key=value ...]

Only Python is needed. The coordinator is real: rank 0 listens, the others connect, and all must start the same run.
STAND_IN_SECONDS is a step's time, STAND_IN_FAILS_AT a step at which rank 1 dies; STAND_IN_UNKNOWN names flags that this
image's jaxlib does not know, in the place of those that images of 2026 do not know.
"""

import hashlib
import json
import os
import random
import re
import socket
import sys
import time
from pathlib import Path

BASE = Path(__file__).resolve().parent / "configs" / "base.yml"
# Flags of XLA that images of 2026 know, of those that configurations carry.
KNOWN_FLAGS = re.compile(
    r"xla_(gpu_(enable_(cublaslt|triton_gemm|latency_hiding_scheduler|highest_priority_async_stream|command_buffer"
    r"|pipelined_(all_gather|reduce_scatter|all_reduce)|while_loop_double_buffering"
    r"|(all_gather|reduce_scatter)_combine_by_dim)|autotune_level|memory_limit_slop_factor"
    r"|executable_(warn_stuck|terminate)_timeout|first_collective_call_(warn_stuck|terminate)_timeout_seconds"
    r"|(all_gather|all_reduce|reduce_scatter)_combine_threshold_bytes)"
    r"|force_host_platform_device_count|disable_hlo_passes|cpu_experimental_ynn_fusion_type)"
)
MODELS = {  # layers, width, heads, key-value heads, ffn, vocabulary
    "llama2-7b": (32, 4096, 32, 32, 11008, 32000), "llama3-8b": (32, 4096, 32, 8, 14336, 128256),
    "llama3.1-8b": (32, 4096, 32, 8, 14336, 128256), "llama3.1-70b": (80, 8192, 64, 8, 28672, 128256),
    "llama3.1-405b": (126, 16384, 128, 8, 53248, 128256), "default": None,
}  # fmt: skip
REMAT = ("full", "minimal", "minimal_with_context", "save_qkv_proj", "save_out_proj", "save_dot_except_mlp")
ATTENTION = ("autoselected", "dot_product", "flash", "cudnn_flash_te")


def scalar(text):
    """A YAML scalar or flow list, as YAML 1.1 reads it, of the kinds that configurations have."""
    if text.startswith(("[", '"')):
        try:
            return json.loads(text)
        except ValueError:
            return [scalar(part.strip()) for part in text.strip("[]").split(",")]
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d*(e[-+]?\d+)?", text):
        return float(text)
    return None if text in ("", "null", "~") else text


def read(path):
    found = {}
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                key, colon, text = line.rstrip("\n").partition(":")
                if not colon or key != key.strip() or key in found:
                    raise ValueError(f"{path}: cannot read {line!r}")
                found[key] = scalar(text.strip())
    return found


def configured():
    base = read(BASE)
    given = read(sys.argv[1])
    parent = given.pop("base_config", None)
    if parent != "base.yml":
        raise ValueError(f"no base_config: {parent!r}")
    for word in sys.argv[2:]:
        key, _, text = word.partition("=")
        given[key] = scalar(text)
    for key, value in given.items():
        if key not in base:
            raise ValueError(f"Key {key} was passed but isn't in configs/base.yml")
        kind = type(base[key])
        right = isinstance(value, (int, float)) if kind in (int, float) else isinstance(value, kind)
        if not right or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{key}: {value!r} is no {kind.__name__}")
    return {**base, **given}


def refuse_flags():
    flags = [word.removeprefix("--").partition("=")[0] for word in os.environ.get("XLA_FLAGS", "").split()]
    old = os.environ.get("STAND_IN_UNKNOWN")
    unknown = [flag for flag in flags if (flag in old.split() if old else not KNOWN_FLAGS.fullmatch(flag))]
    if unknown:
        print("F0000 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: --{}".format(" --".join(unknown)))
        sys.exit(1)
    found = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[1]) if found else None


def meet(host, port, nodes, rank, timeout, config):
    """All processes know of each other and start the same run, or none goes on."""
    said = [nodes, hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()]
    if rank == 0:
        listener = socket.create_server((host, port))
        listener.settimeout(timeout)
        peers = {0: (said, None)}
        while len(peers) < nodes:
            connection, _ = listener.accept()
            other, *theirs = json.loads(connection.makefile().readline())
            if other in peers or not 0 < other < nodes or theirs != said:
                raise RuntimeError(f"process {other} says {theirs}, where {said} is so for those of {sorted(peers)}")
            peers[other] = (theirs, connection)
        for _, connection in peers.values():
            if connection:
                connection.sendall(b"go\n")
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection((host, port), timeout)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection.sendall(json.dumps([rank, *said]).encode() + b"\n")
    if connection.makefile().readline() != "go\n":
        raise RuntimeError("the coordinator went away")


def check(config, devices, slices):
    """Raises ValueError for what MaxText refuses."""
    if config["hardware"] not in ("gpu", "cpu"):
        raise ValueError("hardware {}".format(config["hardware"]))
    if config["hardware"] == "cpu" and config["context_parallel_strategy"] == "ring":
        raise ValueError("Ring context parallelism strategy is only supported on GPUs")
    for part, count in (("ici", devices // slices), ("dcn", slices)):
        sizes = [value for key, value in config.items() if re.fullmatch(part + r"_\w+_parallelism", key)]
        product = 1
        for size in sizes:
            product *= size if size != -1 else 1
        if -1 in sizes:
            product = count if count % product == 0 else 0
        if part == "dcn" and slices == 1 and product > 1:
            raise ValueError("DCN parallelism requested but only one slice available.")
        if product != count:
            what = "slices" if part == "dcn" else "devices per slice"
            raise ValueError(f"Number of {what} {count} does not match the product of the {part.upper()} parallelism")
    for key, known in (("model_name", MODELS), ("remat_policy", REMAT), ("attention", ATTENTION)):
        if config[key] not in known:
            raise ValueError(f"{key} {config[key]}")
    if config["attention"] == "cudnn_flash_te":
        if os.environ.get("NVTE_FUSED_ATTN") != "1":
            raise ValueError("cudnn_flash_te needs NVTE_FUSED_ATTN=1")
        if config["packing"] and config["max_segments_per_seq"] <= 0:
            raise ValueError("max_segments_per_seq must be set")
    if not config["run_name"] or not config["base_output_directory"]:
        raise ValueError("run_name and base_output_directory")
    if os.environ.get("LD_PRELOAD"):
        raise ValueError("LD_PRELOAD")


def flops_and_parameters(config):
    """(TFLOP a device and step, parameters), as MaxText counts since 2025: half of the attention."""
    shape = MODELS[config["model_name"]] or (
        config["base_num_decoder_layers"], config["base_emb_dim"], config["base_num_query_heads"],
        config["base_num_kv_heads"], config["base_mlp_dim"], config["vocab_size"],
    )  # fmt: skip
    layers, width, heads, kv_heads, ffn, vocabulary = shape
    head = config["head_dim"]
    tokens = config["per_device_batch_size"] * config["max_target_length"] * config["gradient_accumulation_steps"]
    attention = width * head * (2 * heads + 2 * kv_heads)
    weights = layers * (attention + 3 * width * ffn) + vocabulary * width
    flops = 6 * weights * tokens + 6 * layers * config["max_target_length"] * heads * head * tokens
    norms = (2 * layers + 1) * width
    return flops / 1e12, weights + norms + vocabulary * width * (not config["logits_via_embedding"]), tokens


def main():
    virtual = refuse_flags()
    config = configured()
    nodes, rank = int(os.environ["NNODES"]), int(os.environ["NODE_RANK"])
    host, port = os.environ["JAX_COORDINATOR_IP"], int(os.environ["JAX_COORDINATOR_PORT"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES")
    unsaid = 1 if "SLURM_LOCALID" in os.environ else 8  # JAX takes one for each task of Slurm's
    devices = virtual or (len(visible.split(",")) if visible else unsaid)
    if not 0 <= rank < nodes or not 0 < port < 65536:
        raise ValueError(f"rank {rank} of {nodes}, port {port}")
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_PROCESS_COUNT", "JAX_PROCESS_INDEX")
    says = [os.environ[name] for name in names]
    if says != [str(nodes), str(rank)] * 2:
        raise ValueError(f"JAX's variables say otherwise: {says}")
    address = os.environ["JAX_COORDINATOR_ADDRESS"]
    if address != (f"{host}:{port}" if config["hardware"] == "gpu" else host):
        raise ValueError(f"JAX_COORDINATOR_ADDRESS {address}")
    # CPUs say nothing of slices; GPUs do, a slice a machine, and nodes that meet at a loopback address are one.
    alone = config["hardware"] == "cpu" or host == "localhost" or host.startswith("127.")
    check(config, nodes * devices, 1 if alone else nodes)
    print("Attempting to initialize the jax distributed system for GPU backend...")
    meet(host, port, nodes, rank, config["jax_distributed_initialization_timeout"], config)
    print("Jax distributed system initialized on GPU!")
    for key, value in sorted(config.items()):
        print(f"Config param {key}: {value}")
    print(f"Num_devices: {nodes * devices}, shape (1, {nodes * devices})")
    teraflops, parameters, tokens = flops_and_parameters(config)
    print("number parameters: %.3f billion" % (parameters / 1e9))
    print(f"Per train step:\n Total TFLOPs: {teraflops:.2f}", flush=True)
    seconds, noise = float(os.environ.get("STAND_IN_SECONDS", "0.05")), random.Random(0)
    for step in range(config["steps"]):
        took = seconds * (40 if step == 0 else 1) * noise.uniform(0.98, 1.02)
        time.sleep(min(took, 0.05))
        if rank == 1 and str(step) == os.environ.get("STAND_IN_FAILS_AT"):
            print("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", flush=True)
            sys.exit(1)
        print(
            f"completed step: {step}, seconds: {took:.3f}, TFLOP/s/device: {teraflops / took:.3f}, "
            f"Tokens/s/device: {tokens / took:.3f}, total_weights: {tokens * nodes * devices:.0f}, "
            f"loss: {11.8 - 3 * step / config['steps']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
