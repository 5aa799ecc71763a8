"""A CVS Megatron configuration of 2026, in both of its forms, with its thresholds beside it → RunSpec.

Its parameters are read by the dialect of CVS's Megatron configurations of before; findings keep the places of this
file. Nothing is written: those files of before say more of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seatrial.dialects import placeholders
from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.dialects.cvs.thresholds import NO_TARGET, Targets
from seatrial.dialects.cvs_2026.build import device, finish, targets
from seatrial.dialects.cvs_2026.file import File, check_keys, choose, gather, number_of_nodes, overrides_for
from seatrial.dialects.cvs_2026.keys import COMBINATION, MOVED
from seatrial.dialects.cvs_2026.keys import MEGATRON as KEYS
from seatrial.dialects.table.entries import Entry, Request
from seatrial.errors import Mark
from seatrial.source import Document, Node
from seatrial.spec import Origin, Resolved

NAME = "cvs-2026-megatron"

__all__ = ["KEYS", "NAME", "read"]


def read(request: Request) -> Resolved:
    """The spec of the chosen combination, as CVS's Megatron configuration of before would have it."""
    file = gather(request, KEYS, COMBINATION)
    chosen, combination, inline = _combination(file)
    moved = _moved(file, combination)
    stated = moved.pop("config.nnodes", None)
    framework = file.entries.get("framework")
    is_single = framework is not None and framework.text.endswith("single")
    nodes = number_of_nodes(file, stated.text if stated else "1" if is_single else None)
    named = file.entries.get("model_params.model_name") or file.entries.get("train_params.model_name")
    size = moved["model_size"].text if "model_size" in moved else "70"
    model = named.text if named else f"llama3_1_{size}b"
    cell = ("multi_node" if nodes > 1 else "single_node", model, device(file) or "gpu")
    own = {"config.nnodes": nodes, **{name: entry.value for name, entry in moved.items() if entry.is_override}}
    root = _as_before(file, moved, cell, inline, named.mark if named else None)
    document = Document(file=file.file, root=root)
    resolved = cvs_megatron.read(replace(request, document=document, overrides=overrides_for(own)))
    resolved = _in_our_words(resolved, moved)
    found = Targets()
    if inline is None or "threshold_json" in file.entries:
        found = targets(file, [name for name in (chosen, _cell_of(moved), "default") if name])
    if inline is not None and resolved.spec is not None and not found.expectations:
        found.expectations.extend(resolved.spec.expectations)
    return finish(file, resolved, found, dialect=NAME, name=f"{model}-{cell[2]}-{cell[0]}")


def _moved(file: File, combination: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries by the keys of older files: of each key an override, else the combination's, else the file's."""
    moved = {MOVED[path]: entry for path, entry in file.entries.items() if path in MOVED}
    for changes in (combination, file.changes):
        moved |= {COMBINATION[name]: entry for name, entry in changes.items() if name in COMBINATION}
    precision = moved.get("precision")
    if precision and isinstance(precision.value, str) and not precision.value.startswith("TE_"):
        moved["precision"] = replace(precision, value=f"TE_{precision.value}")
    if "model_size" in moved and moved["model_size"].value == "" and not moved["model_size"].is_override:
        del moved["model_size"]
    return moved


def _cell_of(moved: Mapping[str, Entry]) -> str:
    """The name of these values' cell in newer threshold files."""
    micro, batch = (moved[name].text if name in moved else None for name in ("micro_batch_size", "batch_size"))
    precision = str(moved["precision"].value).removeprefix("TE_") if "precision" in moved else "FP8"
    return f"MBS={micro},GBS={batch},PRECISION={precision}"


def _as_before(
    file: File, moved: Mapping[str, Entry], cell: tuple[str, str, str], inline: Node | None, model_mark: Mark | None
) -> Node:
    """The tree of an older file with one cell: what is moved, but for overrides, each at its place in this file."""
    config: dict[str, Node] = {}
    members: dict[str, Node] = {}
    for name, entry in moved.items():
        if not entry.is_override:
            section, _, key = name.rpartition(".")
            node = Node.of(entry.value, entry.mark or file.start)
            (config if section else members)[key] = replace(node, text=entry.text, key_mark=entry.key_mark)
    if inline is not None:
        members["result_dict"] = inline
    mark = file.root.mark
    topology, model, gpu = cell
    node = Node(value=members, mark=mark)
    for level, key_mark in ((gpu, mark), (model, model_mark), (topology, mark)):
        node = Node(value={level: replace(node, key_mark=key_mark)}, mark=mark)
    return Node(value={"config": Node(value=config, mark=mark), "model_params": node}, mark=mark)


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
    """The chosen combination: its key, what it says, and the targets that older files have in it."""
    sweep = file.root.members.get("sweep")
    node = sweep.members.get("combinations") if sweep else None
    there = placeholders.given(node) if node else {}
    if node is None or not there:
        return None, {}, None
    for name, child in there.items():
        check_keys(file, child, f"sweep.combinations.{name}", (*COMBINATION, "name", "result_dict"), "a combination")
    chosen = choose(file, there, "sweep.runs", Entry.of("sweep.combinations", node))
    if chosen is None:
        return None, {}, None
    path = f"sweep.combinations.{chosen}"
    said = {name: Entry.of(f"{path}.{name}", child) for name, child in there[chosen].members.items()}
    inline = there[chosen].members.get("result_dict")
    if inline is not None and isinstance(inline.value, dict):
        zero = {name: child for name, child in inline.value.items() if child.text in ("0", "0.0")}
        for name, child in zero.items():
            entry = Entry.of(f"{path}.result_dict.{name}", child)
            file.problems.append(entry.problem("info", "not-judged", NO_TARGET, "set it"))
        inline = replace(inline, value={name: child for name, child in inline.value.items() if name not in zero})
    return chosen, said, inline
