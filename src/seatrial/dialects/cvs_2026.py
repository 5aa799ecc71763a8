"""A CVS configuration of 2026 (`framework`, or `train_params`), with its thresholds beside it → RunSpec.

What it says in another system's words is read by that system's dialect: `maxtext_config` as a MaxText command with its
variables, Megatron's parameters as CVS's Megatron configuration of before. Findings keep the places of this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import hardware
from seatrial.dialects import coerce, cvs_megatron, maxtext
from seatrial.dialects.cvs_2026_file import File, choose, gather, number_of_nodes, overrides_for
from seatrial.dialects.cvs_2026_keys import COMBINATION, JAX, KEYS, MEGATRON, MOVED
from seatrial.dialects.cvs_thresholds import Bars, read_bars
from seatrial.dialects.entries import Entry, Request
from seatrial.dialects.typed import as_name
from seatrial.errors import InputError, Mark
from seatrial.source import Document, Node
from seatrial.spec import Container, Origin, Resolved

NAME = "cvs-2026"

__all__ = ["KEYS", "NAME", "read"]

_INSTEAD = "give the command that it starts (`seatrial check train.sh`), or a native configuration"
_VARIABLES = {
    "training.nccl.ib_hca": "NCCL_IB_HCA",
    "training.nccl.socket_ifname": "NCCL_SOCKET_IFNAME",
    "training.nccl.gloo_socket_ifname": "GLOO_SOCKET_IFNAME",
    "training.jax_distributed.coordinator_ip": "JAX_COORDINATOR_IP",
    "training.jax_distributed.coordinator_port": "JAX_COORDINATOR_PORT",
    "training.jax_distributed.initialization_timeout_seconds": "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS",
    "training.jax_distributed.heartbeat_timeout_seconds": "JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS",
}
_WORDS = {"training.steps": "steps", "training.enable_checkpointing": "enable_checkpointing",
          "training.tokenizer.tokenizer_path": "tokenizer_path"}  # fmt: skip


def read(request: Request) -> Resolved:
    """The spec of the chosen sweep. Raises InputError for frameworks that are not read."""
    root = request.document.root
    given = root.members.get("framework")
    framework = str(given.value).lower() if given else "megatron"
    if framework.startswith("jax"):
        return _jax(gather(request, JAX, maxtext.KEYS))
    if framework.startswith("megatron"):
        return _megatron(gather(request, MEGATRON, COMBINATION))
    why = (
        f"this is a CVS configuration of 2026 for {coerce.shown(framework)}, which is not read; of these, jaxmaxtext, "
        "megatron_single and megatron_distributed are"
    )
    raise InputError.single("dialect-not-supported-yet", "framework", why, _INSTEAD, given.mark if given else root.mark)


def _finish(file: File, resolved: Resolved, bars: Bars, name: str, extra: Mapping[str, Any]) -> Resolved:
    """What the other dialect has read, with what only this file says."""
    spec = resolved.spec
    judged = file.value("enforce_thresholds") is not False
    if not judged and bars.expectations:
        why = "it says false: the bars of the threshold file are for the record only, and nothing is held to them"
        file.problems.append(file.entries["enforce_thresholds"].problem("info", "not-judged", why, "set it to true"))
    if spec is not None:
        spec = replace(
            spec, name=as_name(name), dialect=NAME, container=_container(file), **extra,
            expectations=tuple(bars.expectations) if judged else (),
        )  # fmt: skip
    problems = (*file.problems, *resolved.problems, *bars.problems)
    origins = {**resolved.origins, **bars.origins}
    for path, key in (
        ("container.image", "container.image"), ("container.name", "container.name"), ("log_dir", "paths.log_dir"),
        ("hf_token_file", "paths.hf_token_file"), ("topology.device", "gpu_arch"), ("topology.device", "gpu_name"),
        ("nic_type", "training.nic_type"), ("topology.devices_per_node", "training.gpus_per_node"),
    ):  # fmt: skip
        if key in file.entries:
            origins[path] = file.entries[key].origin()
    return Resolved(spec=spec, origins=origins, problems=problems)


def _container(file: File) -> Container | None:
    image = file.value("container.image")
    if not image:
        return None
    arguments = "container.runtime.args"
    volumes = []
    for volume in file.value(f"{arguments}.volumes") or ():
        host, _, inside = volume.partition(":")
        volumes.append((host, inside or host))
    variables = {**file.below(f"{arguments}.env"), **file.below("container.env")}
    moved = {path.rpartition(".")[2] for path in MOVED if path.startswith("container.env.")}
    return Container(
        image=image, name=file.value("container.name"), devices=tuple(file.value(f"{arguments}.devices") or ()),
        volumes=tuple(volumes), environment={k: coerce.text(e.value) for k, e in variables.items() if k not in moved},
        shm_size=file.value(f"{arguments}.shm-size") or file.value(f"{arguments}.shm_size"),
    )  # fmt: skip


def _device(file: File) -> str | None:
    name = file.selected.get("gpu") or file.value("gpu_arch") or file.value("gpu_name")
    device = hardware.find(name)
    entry = file.entries.get("gpu_arch") or file.entries.get("gpu_name")
    if name and device is None and entry:
        why = "nothing is known about this GPU: there will be no MFU, and no bar is compared with its peak"
        file.problems.append(entry.problem("warning", "unknown-device", why, "write mi300x, mi325x, mi350x or mi355x"))
    return device.name if device else None


# --- MaxText ----------------------------------------------------------------------------------------------------------


def _jax(file: File) -> Resolved:
    sweep, changes = _sweep(file)
    said: dict[str, Entry] = {}
    for path, key in _WORDS.items():
        if path in file.entries and file.entries[path].value != "":
            said[key] = file.entries[path]
    said |= file.below("training.maxtext_config")
    for key, entry in changes.items():
        if key not in said or not said[key].is_override:
            said[key] = entry
    said |= file.changes
    said.pop("base_config", None)
    root = file.request.document.root
    words = [Node(value="train.py", mark=root.mark), Node(value="base.yml", mark=root.mark)]
    words += [Node(value=f"{key}={_word(e)}", mark=e.mark) for key, e in said.items() if e.mark is not None]
    told, count = _nodes(file, sweep), file.value("training.gpus_per_node") or 8
    document = Document(
        file=file.request.document.file,
        root=Node(value={
            "environment": Node(value=_environment(file), mark=root.mark), "argv": Node(value=words, mark=root.mark),
        }, mark=root.mark),
    )  # fmt: skip
    own = overrides_for(
        {key: entry.value for key, entry in said.items() if entry.is_override}
        | {"topology.num_nodes": told, "topology.devices_per_node": count, "topology.device": _device(file)}
    )
    resolved = maxtext.read(replace(file.request, document=document, overrides=own))
    bars = read_bars(
        file.entries.get("threshold_json"),
        Path(file.request.document.file),
        [sweep] if sweep else [],
        enforced=file.value("enforce_thresholds") is not False,
    )
    model = said["model_name"].text if "model_name" in said else "maxtext"
    extra: dict[str, Any] = {
        "nic_type": file.value("training.nic_type"), "hf_token_file": file.value("paths.hf_token_file"),
        "log_dir": file.value("paths.log_dir"),
    }  # fmt: skip
    return _finish(file, resolved, bars, f"{model}-{file.value('gpu_arch') or 'gpu'}-{told}-nodes", extra)


def _here(file: File) -> Mark:
    return Mark(file=file.request.document.file, line=1, column=1)


def _word(entry: Entry) -> str:
    """A value as a word of MaxText's command, which reads it as YAML."""
    if isinstance(entry.value, str):
        plain = re.fullmatch(r"[A-Za-z0-9_./+-]*", entry.value)
        return entry.value if plain else json.dumps(entry.value, ensure_ascii=False)
    return json.dumps(entry.value, ensure_ascii=False)


def _sweep(file: File) -> tuple[str | None, dict[str, Entry]]:
    """The chosen sweep's name and what it changes; one that is not enabled can be chosen by its name."""
    node = file.request.document.root.members.get("training")
    node = node.members.get("sweeps") if node else None
    sweeps: dict[str, Node] = {}
    for item in node.value if node is not None and isinstance(node.value, list) else ():
        name = item.members.get("name")
        if name is not None and isinstance(name.value, str):
            sweeps[name.value] = item
        else:
            entry = Entry.of("training.sweeps", item)
            file.say(entry, "bad-value", "a sweep has a name and maxtext_overrides", 'write {"name": "…", …}')
    if not sweeps:
        return None, {}
    enabled = [name for name in file.value("training.enabled_sweep_list") or () if name in sweeps]
    chosen = choose(
        file, list(sweeps) if "sweep" in file.selected else enabled or list(sweeps), "training.sweeps",
        Entry.of("training.sweeps", node) if node else None,
    )  # fmt: skip
    changes = sweeps[chosen].members.get("maxtext_overrides") if chosen else None
    members = changes.members if changes else {}
    return chosen, {key: Entry.of(key, child) for key, child in members.items() if not key.startswith("_")}


def _nodes(file: File, sweep: str | None) -> int:
    given = file.entries.get("training.env_vars.NNODES")
    told = given.text if given and given.text.isdecimal() else None
    in_name = re.search(r"(?:NNODES|NODES)=(\d{1,6})\b", sweep or "")
    if told is None and in_name:
        told = in_name[1]
    if told is None and file.value("training.distributed") is False:
        told = "1"
    return number_of_nodes(file, told)[0]


def _environment(file: File) -> dict[str, Node]:
    """The variables of a process, XLA's flags among them."""
    here = _here(file)
    entries = {name: entry for name, entry in file.below("training.env_vars").items() if name != "NNODES"}
    for path, name in _VARIABLES.items():
        if path in file.entries and file.entries[path].text not in ("auto", ""):
            entries[name] = file.entries[path]
    environment = {
        name: Node(value=coerce.text(entry.value), text=entry.text, mark=entry.mark or here, key_mark=entry.key_mark)
        for name, entry in entries.items()
        if not isinstance(entry.value, (list, dict)) and entry.value is not None
    }
    flags = file.below("training.xla_flags")
    if flags:
        text = " ".join(f"--{name}={coerce.text(entry.value).strip(chr(39))}" for name, entry in flags.items())
        environment["XLA_FLAGS"] = Node(value=text, text=text, mark=next(iter(flags.values())).mark or here)
    return environment


# --- Megatron ---------------------------------------------------------------------------------------------------------


def _megatron(file: File) -> Resolved:
    """The same run as CVS's Megatron configuration of before would have it."""
    moved: dict[str, Entry] = {MOVED[path]: entry for path, entry in file.entries.items() if path in MOVED}
    chosen, combination, inline = _combination(file)
    for name, entry in combination.items():
        if name in COMBINATION:
            moved[COMBINATION[name]] = entry
        elif name != "name":
            file.problems.append(
                entry.key_problem("error", "unknown-key", "a combination has no such key", "remove it")
            )
    moved |= {COMBINATION[name]: entry for name, entry in file.changes.items()}
    if "precision" in moved:
        word = moved["precision"].text
        moved["precision"] = replace(moved["precision"], value=f"TE_{word}" if not word.startswith("TE_") else word)
    told = moved.pop("config.nnodes", None)
    framework = file.entries.get("framework")
    is_single = framework is not None and framework.text.endswith("single")
    nodes, _ = number_of_nodes(file, told.text if told else "1" if is_single else None)
    named = file.entries.get("model_params.model_name") or file.entries.get("train_params.model_name")
    size = moved["model_size"].text if "model_size" in moved else "70"
    topology, model = "multi_node" if nodes > 1 else "single_node", named.text if named else f"llama3_1_{size}b"
    gpu = _device(file) or "gpu"
    root = file.request.document.root
    tree: dict[str, Any] = {"config": {}, "cell": {}}
    own: dict[str, str] = {"config.nnodes": str(nodes)}
    for name, entry in moved.items():
        if entry.is_override:
            own[name] = coerce.text(entry.value)
        elif name != "model_size" or entry.value != "":
            part, _, key = name.rpartition(".")
            tree[part or "cell"][key] = Node(
                value=entry.value if not isinstance(entry.value, (list, dict)) else None,
                text=entry.text, mark=entry.mark or _here(file), key_mark=entry.key_mark,
            )  # fmt: skip
    if inline is not None:
        tree["cell"]["result_dict"] = inline
    cell: Node = Node(value=tree["cell"], mark=root.mark)
    for level in (gpu, model, topology):
        cell = Node(value={level: replace(cell, key_mark=named.mark if named and level == model else root.mark)},
                    mark=root.mark)  # fmt: skip
    document = Document(
        file=file.request.document.file,
        root=Node(value={"config": Node(value=tree["config"], mark=root.mark), "model_params": cell}, mark=root.mark),
    )
    request = replace(file.request, document=document, overrides=overrides_for(own))
    resolved = _in_our_words(cvs_megatron.read(request), moved)
    batch = {name: moved[name].text for name in ("micro_batch_size", "batch_size") if name in moved}
    precision = moved["precision"].value.removeprefix("TE_") if "precision" in moved else "FP8"
    made = f"MBS={batch.get('micro_batch_size')},GBS={batch.get('batch_size')},PRECISION={precision}"
    threshold = file.entries.get("threshold_json")
    bars = Bars()
    if inline is None or threshold is not None:
        cells = [name for name in (chosen, made, "default") if name]
        bars = read_bars(
            threshold, Path(file.request.document.file), cells, enforced=file.value("enforce_thresholds") is not False
        )
    if inline is not None and resolved.spec is not None and not bars.expectations:
        bars.expectations.extend(resolved.spec.expectations)
    return _finish(file, resolved, bars, f"{model}-{gpu}-{topology}", {})


def _in_our_words(resolved: Resolved, moved: Mapping[str, Entry]) -> Resolved:
    """Findings and origins by the keys of this file: known by their places, or by their names if overridden."""
    places = {entry.mark: entry.key for entry in moved.values() if entry.mark}
    names = {name.rpartition(".")[2]: entry.key for name, entry in moved.items() if entry.is_override}

    def own(path: str, mark: Mark | None) -> str:
        return places.get(mark, path) if mark else names.get(path.rpartition(".")[2], path)

    problems = tuple(replace(problem, path=own(problem.path, problem.mark)) for problem in resolved.problems)
    origins: dict[str, Origin] = {
        path: replace(origin, key=own(origin.key, origin.mark)) for path, origin in resolved.origins.items()
    }
    return replace(resolved, problems=problems, origins=origins)


def _combination(file: File) -> tuple[str | None, dict[str, Entry], Node | None]:
    """The chosen combination: its key, what it says, and the bars that older files have in it."""
    sweep = file.request.document.root.members.get("sweep")
    node = sweep.members.get("combinations") if sweep else None
    there = {name: child for name, child in node.members.items() if not name.startswith("_")} if node else {}
    if not there:
        return None, {}, None
    runs = [name for name in file.value("sweep.runs") or () if name in there]
    chosen = choose(
        file, list(there) if "sweep" in file.selected else runs or list(there), "sweep.combinations",
        Entry.of("sweep.combinations", node) if node else None,
    )  # fmt: skip
    if chosen is None:
        return None, {}, None
    path = f"sweep.combinations.{chosen}"
    said = {
        name: Entry.of(f"{path}.{name}", child) for name, child in there[chosen].members.items()
        if not name.startswith("_") and name != "result_dict"
    }  # fmt: skip
    inline = there[chosen].members.get("result_dict")
    if inline is not None and isinstance(inline.value, dict):
        zero = {name: child for name, child in inline.value.items() if child.text in ("0", "0.0")}
        for name, child in zero.items():
            entry = Entry.of(f"{path}.result_dict.{name}", child)
            why = "0 is no bar: it is kept for the record"
            file.problems.append(entry.problem("info", "not-judged", why, "set it"))
        inline = replace(inline, value={name: child for name, child in inline.value.items() if name not in zero})
    return chosen, said, inline
