"""A RunSpec → the text of a CVS configuration with one cell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects.cvs.table import MAY_BE_EMPTY, Table
from seatrial.dialects.placeholders import stands_for_itself
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key, written_values
from seatrial.dialects.table.written import Note, Written, write
from seatrial.spec import ModelSpec, Resolved, RunSpec
from seatrial.spec.presets import MODELS, same_architecture

_WHY = {
    "topology.device": "the cell is named after the GPU, and this is none of them",
    "execution.environment": "only variables that have a key of their own are exported",
    "container": "values in braces and <changeme> mean something else in a CVS file",
}


def nearest(model: ModelSpec, names: Iterable[str]) -> str:
    """Of some presets, the one whose dimensions a model has, or the one of the nearest size."""
    names = list(names)
    if model.name in names:
        return model.name
    if (owner := same_architecture(model)) in names:
        return owner
    return min(names, key=lambda name: abs(_size(MODELS[name]) - _size(model)))


def _size(model: ModelSpec) -> int:
    return model.num_layers * model.hidden_dim * (model.hidden_dim + model.ffn_dim)


def written(
    spec: RunSpec, table: Table, model: str, read: Callable[[Request], Resolved], why: Mapping[str, str]
) -> Written:
    """The text of a file with one cell, and a note for each value that it does not read back as."""
    gpu = spec.topology.device or "gpu"
    gpu = gpu.removesuffix("x") if re.fullmatch(r"mi3[25]\dx|mi355x", gpu) else gpu  # mi300x, but mi325, mi350, mi355
    config: dict[str, Any] = {}
    cell: dict[str, Any] = {}
    for name, value in (*written_values(spec, table.sections), *written_values(spec, table.keys)):
        if value in (None, ()) or not _is_taken(value, table.keys.get(name)):
            continue
        parent, last = _place(name, config, cell)
        parent[last] = {**parent.get(last, {}), **value} if isinstance(value, dict) else _text(value)
    for name in MAY_BE_EMPTY:
        if name in table.keys:
            parent, last = _place(name, config, cell)
            parent.setdefault(last, "")
    cell.setdefault("result_dict", {})
    several = spec.topology.num_nodes > 1
    added = _add(config, cell, {**table.needed, **(table.between_nodes if several else {})}, table)
    tree = {"config": config, "model_params": {"multi_node" if several else "single_node": {model: {gpu: cell}}}}
    text = json.dumps(tree, indent=4, ensure_ascii=False) + "\n"
    done = write(spec, text, ".json", read, {**_WHY, **why, **_reasons(added)}, shows_other=True)
    noted = {note.path for note in done.notes}
    mappings = {"execution.environment": spec.execution.environment, "execution.xla_flags": spec.execution.xla_flags}
    more = (Note(path=path, value=dict(mappings[path]), why=_reasons(added)[path])
            for path in mappings if path in added and path not in noted)  # fmt: skip
    return replace(done, notes=(*done.notes, *more))


def _place(name: str, config: dict[str, Any], cell: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The mapping in which a key stands, made where it is missing, and the key's name in it."""
    *parents, last = name.removeprefix("config.").split(".")
    parent = config if name.startswith("config.") else cell
    for part in parents:
        parent = parent.setdefault(part, {})
    return parent, last


def _add(config: dict[str, Any], cell: dict[str, Any], needed: Mapping[str, str], table: Table) -> dict[str, list[str]]:
    """Adds what CVS stops without, as its own files have it; (the path, or what it is in → each as text) of these."""
    added: dict[str, list[str]] = {}
    for name, value in needed.items():
        parent, last = _place(name, config, cell)
        if last in parent:
            continue
        parent[last] = value
        path = table.keys[name].to if name in table.keys else f"{table.sections[name.partition('.')[0]].to}.{last}"
        whole, _, variable = path.rpartition(".")
        where = whole if whole in ("execution.environment", "execution.xla_flags") else path
        added.setdefault(where, []).append(f"{variable}={value}")
    return added


def _reasons(added: Mapping[str, list[str]]) -> dict[str, str]:
    """The reason for each value that was added, by path."""
    why = {path: f"CVS stops without these, which its own files have: {', '.join(texts)}" if "execution" in path
           else "CVS stops without it, and this is CVS's own" for path, texts in added.items()}  # fmt: skip
    if "container.image" in why:
        why["container"] = "CVS runs in a container only, and this is CVS's own"
    return why


def _is_taken(value: Any, key: Key | None) -> bool:
    """True if the reader of a key takes a value, and for what it is."""
    if isinstance(value, str) and not stands_for_itself(value):
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
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else str(value)
