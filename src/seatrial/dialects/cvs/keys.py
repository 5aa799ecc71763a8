"""Every key of a CVS JAX configuration: where its value goes in a RunSpec, or why it goes nowhere.

Keys of the `config` section carry that prefix; the others are those of a cell, model_params.<topology>.<model>.<gpu>.
What CVS does with each was read from its own code (ROCm/cvs 7afb1ca3, lib/jax_training_lib.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.check import REMAT
from seatrial.dialects.cvs import table as cvs_table
from seatrial.dialects.cvs.table import ENV, NODES, PRECISIONS, Table, exported, named_billions, target, user_keys
from seatrial.dialects.cvs.write import nearest
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.coerce import Reader, anything
from seatrial.dialects.table.keys import OMIT, FromSpec, Key
from seatrial.spec import RunSpec
from seatrial.spec.presets import MODELS
from seatrial.xla_flags import unquoted

_to, _as_is, _ignored, _repeats = keys.to, keys.as_is, keys.ignored, keys.repeats


def _dimension(field: str, read: Reader) -> Key:
    """A number of the model, which is written as the cell's name has it."""
    return _to(f"model.{field}", read, write=lambda spec: getattr(MODELS[nearest(spec.model, MODELS)], field))


def _said(value: Any, why: str, read: Reader = coerce.text, *, quiet: tuple[Any, ...] = ()) -> Key:
    """A key without effect that CVS wants to be there, with the value that is written."""
    return _ignored(why, read, quiet=quiet, write=lambda spec: value)


def _activations(value: Any) -> tuple[str, ...]:
    if coerce.texts(value) != ("silu", "linear"):
        raise ValueError('only ["silu", "linear"] (SwiGLU) is supported')
    return ("silu", "linear")


def _hardware(value: Any) -> str:
    return str(coerce.one_of("gpu", "gpu_multiprocess", "tpu", "cpu")(coerce.text(value).lower()))


def _billions(value: Any) -> str:
    return coerce.text(value).lower().removesuffix("b")


def _number_format(spec: RunSpec) -> str:
    return "fp8" if "fp8" in (spec.precision.quantization or "") else spec.precision.compute_dtype


def _within(axis: str) -> FromSpec:
    """The size of an axis within a node, which CVS's files cannot leave open."""
    return lambda spec: spec.parallelism.within_node.resolve(spec.topology.devices_per_node).sizes[axis]


def _has_files(spec: RunSpec) -> bool:
    """True of real data, which is written as a Hugging Face data set by one pattern of files."""
    return spec.data.kind == "huggingface"


_DTYPE = coerce.mapped({name: name for name in ("bfloat16", "float32")})
_SWITCH = coerce.mapped({"0": "off", "1": "on"})

_STUCK = "xla_gpu_executable_warn_stuck_timeout"
_SYNTHETIC = "synthetic data needs no files"
_INFERENCE = "it concerns inference only"
_GOODPUT = "it is a service of Google Cloud's"
_NOTE = "CVS does not use it, and MaxText has no such key"

AXES = {"data": "data", "fsdp": "fsdp", "pipeline": "pipeline", "tensor": "tensor", "sequence": "context"}

KEYS: dict[str, Key] = {
    # --- config ---
    **cvs_table.CONFIG,
    f"{ENV}.JAX_COORDINATOR_PORT": _as_is("distributed.coordinator_port", coerce.port),
    f"{ENV}.JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS": _as_is(
        "distributed.initialization_timeout_seconds", coerce.count
    ),
    f"{ENV}.JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS": _as_is("distributed.heartbeat_timeout_seconds", coerce.count),
    "config.coordinator_ip": _as_is("distributed.coordinator_host", coerce.text,
                                   write=lambda spec: spec.distributed.coordinator_host or ""),
    "config.training_steps": _as_is("steps", coerce.count, required=True),
    "config.enable_checkpointing": _as_is("checkpoint.enabled", coerce.boolean),
    "config.nccl_ib_hca": exported("NCCL_IB_HCA"),
    "config.nccl_ib_hca_list": _repeats(
        "CVS's JAX tests read only nccl_ib_hca",
        coerce.text, lambda spec: spec.execution.environment.get("NCCL_IB_HCA"),
    ),
    **{f"config.{name}": exported(name.upper()) for name in (
        "nccl_proto", "nccl_ib_tc", "nccl_ib_sl", "nccl_checks_disable", "gpu_max_hw_queues", "nvte_ck_bwd_v3",
        "nvte_ck_v3_bf16_cvt", "xla_python_client_mem_fraction",
    )},
    "config.xla_gpu_executable_warn_stuck_timeout": _repeats(
        "as an environment variable it means nothing to XLA; the flag of this name stands in xla_flags",
        coerce.text, lambda spec: spec.execution.xla_flags.get(_STUCK),
        write=lambda spec: spec.execution.xla_flags.get(_STUCK, ""),
    ),
    "config.data_cache_dir": _ignored(_SYNTHETIC, coerce.text),
    "config.mock_data": _repeats(
        "CVS does not use it: dataset_type decides", coerce.boolean, lambda spec: spec.data.kind == "synthetic"
    ),
    # --- the cell: devices, mesh, execution ---
    "hardware": _said("gpu", "the devices that are there decide", _hardware, quiet=("gpu",)),
    **{f"dcn_{word}_parallelism": _as_is(
        f"parallelism.across_nodes.{axis}", coerce.axis_size, "across nodes; -1: all that are left"
    ) for word, axis in AXES.items()},
    **{f"ici_{word}_parallelism": _to(
        f"parallelism.within_node.{axis}", coerce.axis_size, "within a node; the product of them is its devices",
        write=_within(axis),
    ) for word, axis in AXES.items()},
    "attention": _as_is("execution.attention", coerce.text),
    "remat_policy": _as_is("execution.remat", coerce.one_of(*REMAT), otherwise="full"),
    "scan_layers": _as_is("execution.scan_layers", coerce.boolean),
    # --- the cell: batch, precision, data ---
    "per_device_batch_size": _to(
        "batch.global_batch_size", coerce.positive, "sequences a step and device; × devices is the batch",
        required=True, write=lambda spec: coerce.fraction_of(spec.batch.global_batch_size, spec.topology.num_devices),
    ),
    "max_target_length": _as_is("batch.sequence_length", coerce.count, required=True),
    "dtype": _as_is("precision.compute_dtype", _DTYPE, otherwise="bfloat16"),
    "weight_dtype": _as_is("precision.params_dtype", _DTYPE, otherwise="float32"),
    "quantization": _to("precision.quantization", lambda value: coerce.text(value) or None,
                        write=lambda spec: spec.precision.quantization or ""),
    "dataset_type": _to("data.kind", coerce.mapped({"synthetic": "synthetic", "hf": "huggingface"}),
                        write=lambda spec: "hf" if spec.data.kind == "huggingface" else "synthetic"),
    "hf_path": _to("data.dataset", coerce.text, "name or folder of a Hugging Face data set", only=_has_files),
    "hf_train_files": _to("data.paths", lambda value: (coerce.text(value),), "its files, by a pattern", only=_has_files,
                          write=lambda spec: spec.data.paths[0] if len(spec.data.paths) == 1 else OMIT),
    "tokenizer_path": _to("data.tokenizer", coerce.text, only=_has_files),
    "packing": _to("data.packing", coerce.boolean, "several examples in one sequence", only=_has_files),
    "async_checkpointing": _as_is("checkpoint.asynchronous", coerce.boolean),
    # --- the cell: the model's shape, which its name already fixes ---
    "base_emb_dim": _dimension("hidden_dim", coerce.count),
    "base_num_query_heads": _dimension("num_heads", coerce.count),
    "base_num_kv_heads": _dimension("num_kv_heads", coerce.count),
    "base_num_decoder_layers": _dimension("num_layers", coerce.count),
    "base_mlp_dim": _dimension("ffn_dim", coerce.count),
    "head_dim": _dimension("head_dim", coerce.count),
    "vocab_size": _dimension("vocab_size", coerce.count),
    "logits_via_embedding": _dimension("tied_embeddings", coerce.boolean),
    "normalization_layer_epsilon": _dimension("norm_epsilon", coerce.positive),
    "rope_max_timescale": _dimension("rope_theta", coerce.positive),
    "mlp_activations": _said(
        ("silu", "linear"), "CVS's models are all SwiGLU", _activations, quiet=(("silu", "linear"),)
    ),
    "decoder_block": _said("llama2", "CVS's models are Llamas", coerce.one_of(
        "llama2", otherwise="only Llama decoders are supported"
    ), quiet=("llama2",)),
    # --- the cell: the targets ---
    "result_dict.tflops_per_sec_per_gpu": target(
        "tflops_per_second_per_device", coerce.not_negative, "model TFLOP/s per GPU, at least; 0: no target"
    ),
    "result_dict.tokens_per_sec_per_gpu": target(
        "tokens_per_second_per_device", coerce.not_negative, "tokens per second and GPU, at least; 0: no target"
    ),
    # --- the cell: what MaxText reads, but nothing here depends on ---
    "use_iota_embed": _said(True, "it chooses how an embedding is looked up, not what is computed", coerce.boolean,
                               quiet=(True, False)),
    "logits_dot_in_fp32": _said(False, "logits are always accumulated in float32", coerce.boolean, quiet=(False,)),
    "megablox": _said(False, "it concerns mixtures of experts only", coerce.boolean, quiet=(False,)),
    "enable_dropout": _said(False, "MaxText's dropout rate is 0 unless dropout_rate says otherwise", coerce.boolean,
                               quiet=(False,)),
    "quantize_kvcache": _said(False, _INFERENCE, coerce.boolean, quiet=(False,)),
    "kv_quant_axis": _said("heads_and_dkv", _INFERENCE, quiet=("heads_and_dkv",)),
    "kv_quant_dtype": _said("int8", _INFERENCE, quiet=("int8",)),
    "checkpoint_is_quantized": _said(False, _INFERENCE, coerce.boolean, quiet=(False,)),
    "skip_first_n_steps_for_profiler": _said(1, "no profiler is asked for", coerce.whole, quiet=(1, 3)),
    "max_segments_per_seq": _ignored(_SYNTHETIC, coerce.whole, quiet=(-1, 32)),
    "enable_goodput_recording": _ignored(_GOODPUT, coerce.boolean, quiet=(False,)),
    "monitor_goodput": _ignored(_GOODPUT, coerce.boolean, quiet=(False,)),
    "optimizer_memory_host_offload": keys.rejected(
        "the optimizer's state cannot be kept in the host's memory", coerce.boolean, quiet=(False,)
    ),
    "param_scan_axis": keys.equivalent("it says how parameters are laid out, not what they are", coerce.whole,
                                       quiet=(0, 1)),
    "shardy": keys.equivalent("it chooses the compiler's partitioner, not the partition", coerce.boolean,
                              quiet=(True, False)),
    "tokenizer_model": _ignored(f"{_NOTE}; synthetic data needs no tokenizer", coerce.text),
    # --- the cell: notes that repeat what other keys decide ---
    "model_size": _repeats(
        f"{_NOTE}: the model's name decides", _billions, lambda spec: named_billions(spec.model.name)
    ),
    "batch_size": _repeats(
        f"{_NOTE}: per_device_batch_size × devices decides",
        coerce.count, lambda spec: spec.batch.global_batch_size, needs_nodes=True,
    ),
    "micro_batch_size": _repeats(
        f"{_NOTE}: per_device_batch_size decides", coerce.positive,
        lambda spec: spec.batch.global_batch_size / spec.accumulation_steps / spec.topology.num_devices,
    ),
    "sequence_length": _repeats(
        f"{_NOTE}: max_target_length decides", coerce.count, lambda spec: spec.batch.sequence_length
    ),
    "tensor_parallelism": _repeats(
        f"{_NOTE}: ici_tensor_parallelism × dcn_tensor_parallelism decides", coerce.count,
        lambda spec: spec.mesh["tensor"],
    ),
    "pipeline_parallelism": _repeats(
        f"{_NOTE}: ici_pipeline_parallelism × dcn_pipeline_parallelism decides", coerce.count,
        lambda spec: spec.mesh["pipeline"],
    ),
    "fsdp": _repeats(
        f"{_NOTE}: ici_fsdp_parallelism × dcn_fsdp_parallelism decides", _SWITCH,
        lambda spec: "on" if spec.mesh["fsdp"] > 1 else "off",
    ),
    "recompute": _repeats(
        f"{_NOTE}: remat_policy decides", _SWITCH, lambda spec: "off" if spec.execution.remat == "none" else "on"
    ),
    "precision": _repeats(f"{_NOTE}: dtype and quantization decide", coerce.mapped(PRECISIONS), _number_format),
}  # fmt: skip

DEFAULTS = {"packing": "True"}  # CVS's own, where a cell omits the key; for all others MaxText's hold
KEYS |= {name: replace(KEYS[name], default=KEYS[name].read(text), shown=text) for name, text in DEFAULTS.items()}

_FLAGS = _to("execution.xla_flags", lambda value: unquoted(coerce.text(value)), "flags of XLA, without their dashes")


def _flags(spec: RunSpec) -> dict[str, str]:
    return user_keys(spec.execution.xla_flags.items())


TABLE = Table(
    title="CVS's JAX configurations",
    keys=KEYS,
    sections={
        **cvs_table.SECTIONS,
        "xla_flags": replace(_FLAGS, write=_flags),
        # Since 2026 these stand in `config`, and CVS reads them nowhere else.
        "config.xla_flags": replace(_FLAGS, write=_flags),
        "config.env_vars": _to(  # of all variables: those that have keys of their own were read there until 2025 only
            "execution.environment", coerce.text, "variables of every process",
            write=lambda spec: user_keys(spec.execution.environment.items()),
        ),
        "config.rdma_lib": _ignored("no library is copied into the container here: mount it (volume_dict)", anything),
    },
    defaults=DEFAULTS,
    derived={f"{ENV}.JAX_COORDINATOR_IP": "config.coordinator_ip", f"{ENV}.NNODES": NODES},
    needed={
        "config.container_image": "rocm/jax-training:maxtext-v25.5", "config.container_name": "jax_container",
        "config.hf_token_file": cvs_table.TOKEN_FILE,
        "result_dict.tflops_per_sec_per_gpu": "0", "result_dict.tokens_per_sec_per_gpu": "0",
        "config.gpu_max_hw_queues": "2", "config.nvte_ck_bwd_v3": "1", "config.nvte_ck_v3_bf16_cvt": "2",
        "config.xla_python_client_mem_fraction": "0.975",
        **{f"xla_flags.xla_gpu_{name}": value for name, value in {
            "enable_cublaslt": "True", "graph_level": "0", "autotune_level": "4",
            "enable_reduce_scatter_combine_by_dim": "false", "reduce_scatter_combine_threshold_bytes": "8589934592",
            "all_reduce_combine_threshold_bytes": "8589934592", "all_gather_combine_threshold_bytes": "137438953472",
            "enable_all_gather_combine_by_dim": "FALSE", "executable_warn_stuck_timeout": "90",
            "executable_terminate_timeout": "300",
        }.items()},
    },
    between_nodes={
        "config.nccl_checks_disable": "1", "config.nccl_proto": "Simple", "config.nccl_ib_tc": "41",
        "config.nccl_ib_sl": "0",
    },
)  # fmt: skip
