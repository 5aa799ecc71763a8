"""A CVS MaxText configuration of 2026 (`framework: jaxmaxtext`), with its thresholds beside it → RunSpec.

What it says in MaxText's words is read by MaxText's dialect: `maxtext_config` as a command with its variables. Findings
keep the places of this file. Nothing is written: CVS's files of before say more of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from seatrial.dialects import maxtext, placeholders
from seatrial.dialects.cvs_2026.build import device, finish, targets
from seatrial.dialects.cvs_2026.file import File, check_keys, choose, gather, number_of_nodes, overrides_for
from seatrial.dialects.cvs_2026.keys import JAX as KEYS
from seatrial.dialects.maxtext.environment import PLACED
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request, below
from seatrial.errors import InputError
from seatrial.source import Document, Node
from seatrial.spec import Resolved
from seatrial.xla_flags import as_text, unquoted

NAME = "cvs-2026"

__all__ = ["KEYS", "NAME", "read"]

_INSTEAD = "give the command that it starts (`seatrial check train.sh`), or a native configuration"
_PLACED = {path: variable for variable, (path, _) in PLACED.items()}
_VARIABLES = {  # keys of the file → what MaxText's processes are given of them
    name: _PLACED.get(key.to, key.to.removeprefix("execution.environment."))
    for name, key in KEYS.items()
    if key.to and name.startswith(("training.nccl.", "training.jax_distributed."))
}
_WORDS = {"training.steps": "steps", "training.enable_checkpointing": "enable_checkpointing",
          "training.tokenizer.tokenizer_path": "tokenizer_path"}  # fmt: skip
_OF_A_SWEEP = ("name", "maxtext_overrides")


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
    said = _maxtext_config(file, changes)
    words = [Node(value=word, mark=file.root.mark) for word in ("train.py", "base.yml")]
    words += [Node(value=f"{key}={_word(e)}", mark=e.mark) for key, e in said.items() if e.mark is not None]
    members = {
        "environment": Node(value=_environment(file), mark=file.root.mark),
        "argv": Node(value=words, mark=file.root.mark),
    }
    nodes = _nodes(file, sweep)
    own = {key: entry.value for key, entry in said.items() if entry.is_override}
    own |= {
        "topology.num_nodes": nodes, "topology.devices_per_node": file.get("training.gpus_per_node") or 8,
        "topology.device": device(file),
    }  # fmt: skip
    document = Document(file=file.file, root=Node(value=members, mark=file.root.mark))
    resolved = maxtext.read(replace(file.request, document=document, overrides=overrides_for(own)))
    model = said["model_name"].text if "model_name" in said else "maxtext"
    name = f"{model}-{file.get('gpu_arch') or 'gpu'}-{nodes}-nodes"
    return finish(file, resolved, targets(file, [sweep] if sweep else []), dialect=NAME, name=name)


def _maxtext_config(file: File, changes: dict[str, Entry]) -> dict[str, Entry]:
    """MaxText's keys: what the file says in its own words, in MaxText's, in the sweep and on the command line."""
    said = {key: file.entries[path] for path, key in _WORDS.items() if path in file.entries}
    said = {key: entry for key, entry in said.items() if entry.value != ""}
    said |= below("training.maxtext_config", file.entries)
    said |= {key: entry for key, entry in changes.items() if key not in said or not said[key].is_override}
    said |= file.changes
    said.pop("base_config", None)
    return said


def _word(entry: Entry) -> str:
    """A value as a word of MaxText's command, which reads it as YAML."""
    if isinstance(entry.value, str) and re.fullmatch(r"[A-Za-z0-9_./+-]*", entry.value):
        return entry.value
    return json.dumps(entry.value, ensure_ascii=False)


def _sweep(file: File) -> tuple[str | None, dict[str, Entry]]:
    """The chosen sweep's name and what it changes; one that is not enabled can be chosen by its name."""
    node = file.root.members.get("training")
    node = node.members.get("sweeps") if node else None
    if node is None or not (sweeps := dict(_sweeps(file, node))):
        return None, {}
    chosen = choose(file, sweeps, "training.enabled_sweep_list", Entry.of("training.sweeps", node))
    changes = sweeps[chosen].members.get("maxtext_overrides") if chosen else None
    members = placeholders.given(changes) if changes else {}
    return chosen, {key: Entry.of(key, child) for key, child in members.items()}


def _sweeps(file: File, node: Node) -> Iterator[tuple[str, Node]]:
    for item in node.items:
        check_keys(file, item, "training.sweeps", _OF_A_SWEEP, "a sweep")
        name = item.members.get("name")
        if name is not None and isinstance(name.value, str):
            yield name.value, item
        else:
            why, fix = "a sweep has a name and maxtext_overrides", 'write {"name": "…", …}'
            file.problems.append(Entry.of("training.sweeps", item).problem("error", "bad-value", why, fix))


def _nodes(file: File, sweep: str | None) -> int:
    given = file.entries.get("training.env_vars.NNODES")
    stated = given.text if given and given.text.isdecimal() else None
    in_name = re.search(r"(?:NNODES|NODES)=(\d{1,6})\b", sweep or "")
    if stated is None and in_name:
        stated = in_name[1]
    if stated is None and file.get("training.distributed") is False:
        stated = "1"
    return number_of_nodes(file, stated)


def _environment(file: File) -> dict[str, Node]:
    """The variables of a process, XLA's flags among them."""
    entries = {name: entry for name, entry in below("training.env_vars", file.entries).items() if name != "NNODES"}
    entries |= {
        name: entry for path, name in _VARIABLES.items()
        if (entry := file.entries.get(path)) and entry.text not in ("auto", "")
    }  # fmt: skip
    environment = {
        name: Node(value=coerce.text(e.value), text=e.text, mark=e.mark or file.start, key_mark=e.key_mark)
        for name, e in entries.items()
        if not isinstance(e.value, (list, dict)) and e.value is not None
    }
    flags = below("training.xla_flags", file.entries)
    if flags:
        text = as_text({name: unquoted(coerce.text(entry.value)) for name, entry in flags.items()})
        environment["XLA_FLAGS"] = Node(value=text, text=text, mark=next(iter(flags.values())).mark or file.start)
    return environment
