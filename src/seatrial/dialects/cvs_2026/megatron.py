"""A CVS Megatron configuration of 2026, in both of its forms, with its thresholds beside it → RunSpec.

Its parameters are read by the dialect of CVS's Megatron configurations of before; findings keep the places of this
file. Nothing is written: those files of before say more of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.dialects.cvs.thresholds import Bars, read_bars
from seatrial.dialects.cvs_2026.build import device, finish, here
from seatrial.dialects.cvs_2026.file import File, choose, gather, number_of_nodes, overrides_for
from seatrial.dialects.cvs_2026.keys import COMBINATION, MOVED
from seatrial.dialects.cvs_2026.keys import MEGATRON as KEYS
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.errors import Mark
from seatrial.source import Document, Node
from seatrial.spec import Origin, Resolved

NAME = "cvs-2026-megatron"

__all__ = ["KEYS", "NAME", "read"]


def read(request: Request) -> Resolved:
    """The spec of the chosen combination, as CVS's Megatron configuration of before would have it."""
    file = gather(request, KEYS, COMBINATION)
    moved: dict[str, Entry] = {MOVED[path]: entry for path, entry in file.entries.items() if path in MOVED}
    chosen, combination, inline = _combination(file)
    moved |= {COMBINATION[name]: entry for name, entry in combination.items() if name in COMBINATION}
    moved |= {COMBINATION[name]: entry for name, entry in file.changes.items()}
    if "precision" in moved:
        word = moved["precision"].value
        if isinstance(word, str) and not word.startswith("TE_"):
            moved["precision"] = replace(moved["precision"], value=f"TE_{word}")
    told = moved.pop("config.nnodes", None)
    framework = file.entries.get("framework")
    is_single = framework is not None and framework.text.endswith("single")
    nodes, _ = number_of_nodes(file, told.text if told else "1" if is_single else None)
    named = file.entries.get("model_params.model_name") or file.entries.get("train_params.model_name")
    size = moved["model_size"].text if "model_size" in moved else "70"
    topology, model = "multi_node" if nodes > 1 else "single_node", named.text if named else f"llama3_1_{size}b"
    gpu = device(file) or "gpu"
    root = file.request.document.root
    tree: dict[str, Any] = {"config": {}, "cell": {}}
    own: dict[str, str] = {"config.nnodes": str(nodes)}
    for name, entry in moved.items():
        if entry.is_override:
            own[name] = coerce.text(entry.value)
        elif name != "model_size" or entry.value != "":
            part, _, key = name.rpartition(".")
            tree[part or "cell"][key] = replace(
                Node.of(entry.value, entry.mark or here(file)), text=entry.text, key_mark=entry.key_mark
            )
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
    before = replace(request, document=document, overrides=overrides_for(own))
    resolved = _in_our_words(cvs_megatron.read(before), moved)
    batch = {name: moved[name].text for name in ("micro_batch_size", "batch_size") if name in moved}
    precision = str(moved["precision"].value).removeprefix("TE_") if "precision" in moved else "FP8"
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
    return finish(file, resolved, bars, dialect=NAME, name=f"{model}-{gpu}-{topology}", extra={})


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
    for cell, child in there.items():
        for name, value in child.members.items():
            if name not in (*COMBINATION, "name", "result_dict") and not name.startswith("_"):
                entry = Entry.of(f"sweep.combinations.{cell}.{name}", value)
                fix = did_you_mean(name, [*COMBINATION, "name"])
                file.problems.append(entry.key_problem("error", "unknown-key", "a combination has no such key", fix))
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
