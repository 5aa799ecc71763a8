"""Every key of CVS's configurations of 2026: jaxmaxtext and megatron, the latter in both of its forms.

Names are paths from the root of the file. A row whose name ends in `.*` is that of a mapping with keys of its own. What
CVS does with each was read from ROCm/cvs dddd9143 and 15ea03dd (cvs/lib/training, cvs/lib/utils/config_loader.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.dialects.cvs import megatron_keys as cvs_megatron_keys
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.coerce import Reader, anything
from seatrial.dialects.table.keys import Key

_to, _as_is = keys.to, keys.as_is


def _ignored(why: str, read: Reader = anything, *, quiet: tuple[Any, ...] = ()) -> Key:
    return keys.ignored(why, read, quiet=quiet)


_OWN_RULES = "the verdict judges completion, losses and speed by rules of its own"
_CONTAINER = "how a container is started is the launcher's business"
_REPEATED = "the sweep and its keys decide"

_COMMON: dict[str, Key] = {
    "schema_version": _ignored("there is one version", coerce.whole, quiet=(1,)),
    "framework": _ignored("it says which configuration this is", coerce.text, quiet=("jaxmaxtext", "megatron_single",
                          "megatron_distributed", "megatron")),
    "gpu_arch": _to("topology.device", coerce.text, "the GPU's name"),
    "gpu_name": _to("topology.device", coerce.text, "the same, in its newer spelling"),
    "enforce_thresholds": _to("expectations", coerce.boolean, "whether the targets of the threshold file are judged"),
    "threshold_json": _to("expectations", coerce.text, "the file with the targets, beside this one"),
    "container.name": _as_is("container.name", coerce.text),
    "container.image": _as_is("container.image", coerce.text),
    "container.image_tar": _ignored(_CONTAINER),
    "container.lifetime": _ignored(_CONTAINER, coerce.one_of("no_launch", "per_run", "persistent"),
                                   quiet=("no_launch", "per_run", "persistent")),
    "container.enabled": _ignored(_CONTAINER, coerce.boolean, quiet=(True,)),
    "container.launch": _ignored(_CONTAINER, coerce.boolean, quiet=(True,)),
    "container.env.*": _to("container.environment", coerce.text),
    "container.runtime.name": _ignored(_CONTAINER, coerce.text, quiet=("docker",)),
    "container.runtime.args.volumes": _to("container.volumes", coerce.texts, "host path:container path[:options]"),
    "container.runtime.args.devices": _as_is("container.devices", coerce.texts),
    **dict.fromkeys(("container.runtime.args.shm_size", "container.runtime.args.shm-size"),
                    _as_is("container.shm_size", lambda value: coerce.text(value) or None)),
    "container.runtime.args.privileged": _as_is("container.privileged", coerce.boolean),
    **{f"container.runtime.args.{name}": _as_is(f"container.{name}", coerce.texts)
       for name in ("cap_add", "security_opt", "group_add")},
    "container.runtime.args.env.*": _to("container.environment", coerce.text),
    **{f"container.runtime.args.{name}": _ignored(_CONTAINER, quiet=quiet) for name, quiet in {
        "network": ("host",), "ipc": ("host",), "ulimit": (),
    }.items()},
    "container.runtime.args.registry.*": _ignored("images are fetched by the container's own means"),
    "loss_curve.*": _ignored(_OWN_RULES),
    "convergence.*": _ignored(_OWN_RULES),
    "scaling_baseline.*": _ignored("runs of several sizes are compared by `seatrial report A B`"),
}  # fmt: skip

JAX: Mapping[str, Key] = {
    **_COMMON,
    "paths.log_dir": _as_is("log_dir", coerce.text),
    "paths.hf_token_file": _as_is("hf_token_file", coerce.text),
    "paths.shared_fs": keys.equivalent("it stands in other paths as {shared_fs}", anything),
    "paths.models_dir": keys.equivalent("it stands in other paths as {paths.models_dir}", anything),
    "model.id": _ignored("maxtext_config.model_name decides"),
    "model.remote": _ignored("no model is downloaded here", quiet=(0, False)),
    "model.precision": _ignored("maxtext_config.dtype and quantization decide"),
    "training.distributed": _to("topology.num_nodes", coerce.boolean, "whether there is more than one node"),
    "training.gpus_per_node": _as_is("topology.devices_per_node", coerce.count),
    "training.verify_dmesg": _ignored("kernel logs are not read here"),
    "training.steps": _to("steps", coerce.count),
    "training.enable_checkpointing": _to("checkpoint.enabled", coerce.boolean),
    "training.train_script": _ignored("the image decides where MaxText is"),
    "training.train_script_paths": _ignored("the image decides where MaxText is"),
    "training.maxtext_config.*": _to("model", anything, "MaxText's own keys"),
    "training.tokenizer.hf_model_id": _ignored("no model is downloaded here"),
    "training.tokenizer.tokenizer_path": _to("data.tokenizer", coerce.text, "MaxText's tokenizer_path"),
    "training.nic_type": _as_is("nic_type", coerce.text),
    "training.rdma_lib.*": _ignored("no library is copied into the container here: mount it"),
    "training.env_vars.*": _to("execution.environment", coerce.text),
    "training.xla_flags.*": _to("execution.xla_flags", coerce.text),
    "training.error_patterns.*": _ignored("faults in a log are found by a table of its own"),
    "training.nccl.ib_hca": _to("execution.environment.NCCL_IB_HCA", coerce.text),
    "training.nccl.socket_ifname": _to("execution.environment.NCCL_SOCKET_IFNAME", coerce.text),
    "training.nccl.gloo_socket_ifname": _to("execution.environment.GLOO_SOCKET_IFNAME", coerce.text),
    "training.nccl.ib_hca_list": _ignored("NCCL reads no variable of this name: ib_hca decides"),
    **{f"training.nccl.{name}": _ignored("CVS accepts it and exports nothing: env_vars decides")
       for name in ("ib_tc", "ib_sl", "ib_gid_index")},
    "training.jax_distributed.coordinator_ip": _to("distributed.coordinator_host", coerce.text),
    "training.jax_distributed.coordinator_port": _to("distributed.coordinator_port", coerce.port),
    "training.jax_distributed.initialization_timeout_seconds": _to(
        "distributed.initialization_timeout_seconds", coerce.count
    ),
    "training.jax_distributed.heartbeat_timeout_seconds": _to("distributed.heartbeat_timeout_seconds", coerce.count),
    "training.scaling_baseline.*": _COMMON["scaling_baseline.*"],
    "training.convergence.*": _COMMON["convergence.*"],
    "training.loss_curve.*": _COMMON["loss_curve.*"],
    "training.checkpoint_resume.*": _ignored("saving and resuming is not tested by running twice"),
    "training.sweeps": _to("batch", anything, "runs: a name, and the keys of maxtext_config that it changes"),
    "training.enabled_sweep_list": _to("name", coerce.texts, "those of the sweeps that are run"),
}  # fmt: skip

_PARAMETERS = (
    "tokenizer_model", "model_size", "sequence_length", "recompute", "fsdp", "tensor_parallelism",
    "pipeline_parallelism", "precision", "micro_batch_size",
)  # fmt: skip
_CONFIG = (
    "hf_token_file", "log_dir", "data_cache_dir", "scripts_dir", "rocm_dir", "megatron_root", "training_iterations",
    "nnodes", "master_address", "nic_type", "nccl_ib_hca_list", "nccl_ib_hca", "nccl_socket_ifname",
    "gloo_socket_ifname", "nccl_ib_gid_index", "nccl_debug", "hca_id_pattern", "verify_network_errors",
)  # fmt: skip
# Where CVS's key of today was in its files of before, whose table says what it means.
MOVED: Mapping[str, str] = {
    **{f"config.{name}": f"config.{name}" for name in _CONFIG},
    **{f"paths.{name}": f"config.{name}"
       for name in ("hf_token_file", "log_dir", "data_cache_dir", "scripts_dir", "rocm_dir")},
    **{f"{section}.{name}": name for section in ("model_params", "train_params") for name in _PARAMETERS},
    **{f"{section}.{name}": f"config.{name}"
       for section in ("model_params", "train_params") for name in ("training_iterations", "nnodes")},
    **{f"{section}.global_batch_size": "batch_size" for section in ("model_params", "train_params")},
    "verify_network_errors": "config.verify_network_errors",
    "nic_type": "config.nic_type",
    "container.env.NNODES": "config.nnodes",
    "container.env.MASTER_ADDR": "config.master_address",
    "container.env.NCCL_IB_HCA": "config.nccl_ib_hca_list",
    "container.env.NCCL_SOCKET_IFNAME": "config.nccl_socket_ifname",
    "container.env.GLOO_SOCKET_IFNAME": "config.gloo_socket_ifname",
    "container.env.NCCL_IB_GID_INDEX": "config.nccl_ib_gid_index",
    "container.env.NCCL_DEBUG": "config.nccl_debug",
}  # fmt: skip
COMBINATION: Mapping[str, str] = {
    "global_batch_size": "batch_size", **{name: name for name in _PARAMETERS},
    "training_iterations": "config.training_iterations",
}  # fmt: skip


def _as_before(old: str) -> Key:
    """The row of a key whose value the older file's row reads; path, reason and meaning are that row's."""
    row = cvs_megatron_keys.KEYS[old]
    meaning = row.meaning or f"as {old} in CVS's Megatron configurations"
    return Key(read=anything, to=row.to, why=row.why, meaning=meaning)


MEGATRON: Mapping[str, Key] = {
    **_COMMON,
    **{name: _as_before(old) for name, old in MOVED.items()},
    "model_params.model_name": _to("name", coerce.text),
    "train_params.model_name": _to("name", coerce.text),
    "smoke.*": _ignored("a rehearsal (--rehearse) comes before a run here"),
    "checkpoint.*": _ignored("saving and resuming is not tested by running twice"),
    "sweep.combinations.*": _to("batch", anything, "runs: batch, micro-batch and precision of each"),
    "sweep.runs": _to("name", coerce.texts, "those of the combinations that are run"),
}
