"""A CVS MaxText configuration of 2026 (`framework: jaxmaxtext`), with its thresholds beside it → RunSpec.

What it says in MaxText's words is read by MaxText's dialect: `maxtext_config` as a command with its variables. Findings
keep the places of this file. Nothing is written: CVS's files of before say more of a run.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.dialects import maxtext
from seatrial.dialects.cvs.thresholds import read_bars
from seatrial.dialects.cvs_2026.build import device, finish, here
from seatrial.dialects.cvs_2026.file import File, choose, gather, number_of_nodes, overrides_for
from seatrial.dialects.cvs_2026.keys import JAX as KEYS
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.errors import InputError
from seatrial.source import Document, Node
from seatrial.spec import Resolved

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
    given = request.document.root.members.get("framework")
    if given is None or str(given.value).lower().startswith("jax"):
        return _jax(gather(request, KEYS, maxtext.KEYS))
    why = (
        f"this is a CVS configuration of 2026 for {coerce.shown(given.plain())}, which is not read; of these, "
        "jaxmaxtext, megatron_single and megatron_distributed are"
    )
    raise InputError.single("dialect-not-supported-yet", "framework", why, _INSTEAD, given.mark)


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
        | {"topology.num_nodes": told, "topology.devices_per_node": count, "topology.device": device(file)}
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
    return finish(
        file, resolved, bars, dialect=NAME, extra=extra, name=f"{model}-{file.value('gpu_arch') or 'gpu'}-{told}-nodes"
    )


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
        for key, child in item.members.items():
            if key not in ("name", "maxtext_overrides") and not key.startswith("_"):
                fix = did_you_mean(key, ("name", "maxtext_overrides"))
                entry = Entry.of(f"training.sweeps.{key}", child)
                file.problems.append(entry.key_problem("error", "unknown-key", "a sweep has no such key", fix))
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
    start = here(file)
    entries = {name: entry for name, entry in file.below("training.env_vars").items() if name != "NNODES"}
    for path, name in _VARIABLES.items():
        if path in file.entries and file.entries[path].text not in ("auto", ""):
            entries[name] = file.entries[path]
    environment = {
        name: Node(value=coerce.text(entry.value), text=entry.text, mark=entry.mark or start, key_mark=entry.key_mark)
        for name, entry in entries.items()
        if not isinstance(entry.value, (list, dict)) and entry.value is not None
    }
    flags = file.below("training.xla_flags")
    if flags:
        text = " ".join(f"--{name}={coerce.text(entry.value).strip(chr(39))}" for name, entry in flags.items())
        environment["XLA_FLAGS"] = Node(value=text, text=text, mark=next(iter(flags.values())).mark or start)
    return environment
