"""A RunSpec → the text of a CVS configuration: what the two kinds of file share, and the JAX one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects.cvs.table import ENV, VOLUMES, Table
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.written import Note, Written, changed, shown
from seatrial.spec import Data, MeshShape, ModelSpec, Resolved, RunSpec
from seatrial.spec.presets import MODELS, same_architecture

Read = Callable[[Request], Resolved]
Settings = dict[str, Any]  # a key of the table → its value; None is left out


def sayable(value: str) -> bool:
    """Whether a text means itself in a CVS file: no placeholder, nothing left to be filled in."""
    return "<changeme>" not in value.lower() and not re.search(r"(?<!\$)\{[A-Za-z][\w-]*\}", value)


def user_keys(entries: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of the user's own keys and values that mean themselves; a key that begins with _ is a note."""
    return {key: value for key, value in entries if sayable(key) and sayable(value) and not key.startswith("_") and key}


def gpu(spec: RunSpec) -> str:
    """What a cell calls the GPU: CVS says mi300x, but mi325, mi350 and mi355."""
    name = spec.topology.device or "gpu"
    return name.removesuffix("x") if re.fullmatch(r"mi3[25]\dx|mi355x", name) else name


def nearest(model: ModelSpec, names: Iterable[str]) -> str:
    """Of some presets, the one whose dimensions a model has, or the one of the nearest size."""
    names = list(names)
    if model.name in names:
        return model.name
    if (owner := same_architecture(model)) in names:
        return owner
    size = model.num_layers * model.hidden_dim * (model.hidden_dim + model.ffn_dim)
    return min(names, key=lambda name: abs(_layers(MODELS[name]) - size))


def _layers(model: ModelSpec) -> int:
    return model.num_layers * model.hidden_dim * (model.hidden_dim + model.ffn_dim)


def common(spec: RunSpec, table: Table) -> Settings:
    """The keys of `config` that every CVS file has, and the variables that have keys of their own."""
    settings: Settings = {
        "config.nnodes": spec.topology.num_nodes,
        "config.nic_type": spec.nic_type,
        "config.hf_token_file": spec.hf_token_file,
        "config.log_dir": spec.log_dir,
    }
    for name, key in table.keys.items():
        if key.to.startswith("execution.environment."):
            settings[name] = spec.execution.environment.get(key.to.removeprefix("execution.environment."))
    if spec.container:
        settings |= {
            "config.container_image": spec.container.image,
            "config.container_name": spec.container.name,
            "config.shm_size": spec.container.shm_size,
            "config.container_config.device_list": spec.container.devices or None,
            VOLUMES: user_keys(spec.container.volumes),
            ENV: user_keys(spec.container.environment.items()),
        }
    return settings


def bars(spec: RunSpec, table: Table) -> Settings:
    """The bars that `result_dict` has keys for, in their order."""
    names = {key.to: name for name, key in table.keys.items() if name.startswith("result_dict.")}
    known = {names[path]: bar.value for bar in spec.expectations if (path := f"expectations.{bar.metric}") in names}
    return dict(known)


def written(
    spec: RunSpec, settings: Settings, cell: str, read: Read, reasons: Mapping[str, str], table: Table
) -> Written:
    """The text of a file with one cell, and a note for each value that it does not read back as."""
    tree: dict[str, Any] = {"config": {}, "model_params": {}}
    for name, value in settings.items():
        if value is None or value == {} or not _is_taken(value, table.keys.get(name)):
            continue
        parent, parts = tree, name.split(".")
        if parts[0] != "config":
            parts = ["model_params", *cell.split("/"), *parts]
        elif name.startswith(f"{ENV}."):
            parts = [*ENV.split("."), name.removeprefix(f"{ENV}.")]
        for part in parts[:-1]:
            parent = parent.setdefault(part, {})
        parent[parts[-1]] = {**parent.get(parts[-1], {}), **value} if isinstance(value, dict) else _text(value)
    text = json.dumps(tree, indent=4, ensure_ascii=False) + "\n"
    document = source.parse(text, file="written", is_json=True)
    request = Request(document=document, overrides=[], action="plan", user="user", home=Path("/"))
    again = read(request).spec
    if again is None:  # what is written above can always be read
        raise AssertionError("a configuration was written that cannot be read")
    return Written(text=text, suffix=".json", notes=tuple(_notes(spec, again, reasons)))


def _is_taken(value: Any, key: Key | None) -> bool:
    """Whether the reader of a key takes a value, and for what it is."""
    if isinstance(value, str) and not sayable(value):
        return False
    if isinstance(value, dict) or key is None:
        return True
    try:
        key.read(_text(value))
    except ValueError:
        return False
    return True


def _text(value: Any) -> Any:
    """CVS writes every scalar as text."""
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return str(value)


def _notes(spec: RunSpec, again: RunSpec, reasons: Mapping[str, str]) -> Iterable[Note]:
    """One note for each leaf that differs; a bar or a part that is missing as a whole counts as one."""
    for path, value, other in changed(spec, again):
        reason = next((why for prefix, why in reasons.items() if path.startswith(prefix)), "there is no key for it")
        yield Note(path=path, value=value, why=f"{reason}; what runs is {shown(path, other)}")


# --- JAX --------------------------------------------------------------------------------------------------------------

_MESH = {"data": "data", "fsdp": "fsdp", "pipeline": "pipeline", "tensor": "tensor", "context": "sequence"}

_JAX_REASONS = {
    "model": "the name of a cell stands for a published model, and no key changes it",
    "optimizer": "CVS passes no key of the optimizer on: MaxText's defaults hold",
    "precision.optimizer_dtype": "MaxText keeps Adam's moments in weight_dtype",
    "data": "of real data, CVS hands on a Hugging Face data set by one pattern of files",
    "epochs": "MaxText goes once over real data, and CVS has no key for it",
    "batch.micro_batch_size": "MaxText's batch is one per device, without accumulation",
    "topology.device": "the cell is named after the GPU, and this is none of them",
    "topology.devices_per_node": "the devices of a node are the product of ici_*",
    "expectations": "result_dict has TFLOP/s and tokens/s only, without tolerances",
    "execution.environment": "only variables that have a key of their own are exported",
    "container": "values in braces and <changeme> mean something else in a CVS file",
}


def write(spec: RunSpec, read: Read) -> Written:
    """The spec as a CVS JAX configuration of one cell."""
    from seatrial.dialects.cvs.keys import TABLE

    topology = "multi_node" if spec.topology.num_nodes > 1 else "single_node"
    mesh = {"ici": spec.parallelism.within_node, "dcn": spec.parallelism.across_nodes}
    settings: Settings = common(spec, TABLE) | {
        "config.coordinator_ip": spec.distributed.coordinator_host,
        "config.training_steps": spec.steps,
        "config.enable_checkpointing": spec.checkpoint.enabled,
        f"{ENV}.JAX_COORDINATOR_PORT": spec.distributed.coordinator_port,
        f"{ENV}.JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS": spec.distributed.initialization_timeout_seconds,
        f"{ENV}.JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS": spec.distributed.heartbeat_timeout_seconds,
        "config.xla_flags": user_keys(spec.execution.xla_flags.items()),
        "config.env_vars": user_keys(
            (name, value) for name, value in spec.execution.environment.items()
            if name not in {key.to.rpartition(".")[2] for key in TABLE.keys.values()}
        ),
        "hardware": "gpu",
        **{f"{side}_{word}_parallelism": shape.sizes[axis] for side, shape in _resolved(mesh, spec).items()
           for axis, word in _MESH.items()},
        "attention": spec.execution.attention,
        "remat_policy": spec.execution.remat,
        "scan_layers": spec.execution.scan_layers,
        **_data(spec.data),
        "async_checkpointing": spec.checkpoint.asynchronous,
        "per_device_batch_size": _per_device(spec),
        "max_target_length": spec.batch.sequence_length,
        "dtype": spec.precision.compute_dtype,
        "weight_dtype": spec.precision.params_dtype,
        "quantization": spec.precision.quantization or "",
        **bars(spec, TABLE),
    }  # fmt: skip
    return written(spec, settings, f"{topology}/{nearest(spec.model, MODELS)}/{gpu(spec)}", read, _JAX_REASONS, TABLE)


def _data(data: Data) -> Settings:
    """What is read: nothing, or a Hugging Face data set by one pattern."""
    if data.kind != "huggingface":
        return {"dataset_type": "synthetic"}
    return {
        "dataset_type": "hf",
        "hf_path": data.dataset,
        "hf_train_files": data.paths[0] if len(data.paths) == 1 else None,
        "tokenizer_path": data.tokenizer,
        "packing": data.packing,
    }


def _resolved(mesh: Mapping[str, MeshShape], spec: RunSpec) -> dict[str, MeshShape]:
    """The mesh; within a node CVS's files cannot leave a size open."""
    return {"ici": mesh["ici"].resolve(spec.topology.devices_per_node), "dcn": mesh["dcn"]}


def _per_device(spec: RunSpec) -> float:
    """The batch over the number of devices; MaxText takes a fraction of one."""
    return coerce.fraction_of(spec.batch.global_batch_size, spec.topology.num_devices)
