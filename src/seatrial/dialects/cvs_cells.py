"""model_params.<topology>.<model>.<gpu>: which cell of a CVS configuration is meant."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial import hardware
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node

TOPOLOGIES = ("single_node", "multi_node")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model on one GPU in one topology."""

    topology: str
    model: str
    gpu: str
    node: Node

    @property
    def path(self) -> str:
        return f"model_params.{self.topology}.{self.model}.{self.gpu}"

    def __str__(self) -> str:
        return f"topology={self.topology} model={self.model} gpu={self.gpu}"


def cells(root: Node) -> list[Cell]:
    """Every cell of a file, in its order. Raises InputError where the levels are not what they should be."""
    found = []
    params = root.members["model_params"]
    for topology, models in _members(params):
        if topology not in TOPOLOGIES:
            raise _malformed(f"model_params.{topology}", models.key_mark, f"only {' and '.join(TOPOLOGIES)} stand here")
        for model, gpus in _members(models):
            for gpu, node in _members(gpus):
                if not isinstance(node.value, dict):
                    path = f"model_params.{topology}.{model}.{gpu}"
                    raise _malformed(path, node.mark, "under a GPU's name stands a mapping of parameters")
                found.append(Cell(topology=topology, model=model, gpu=gpu, node=node))
    if not found:
        why = "there is no model_params.<topology>.<model>.<gpu> in it"
        raise _malformed("model_params", params.mark, why)
    return found


def _members(node: Node) -> list[tuple[str, Node]]:
    return [(name, child) for name, child in node.members.items() if not name.startswith("_")]


def _malformed(path: str, mark: Mark | None, why: str) -> InputError:
    return InputError.single("malformed", path, why, "compare with an example: `seatrial init`", mark)


def select(found: list[Cell], wanted: dict[str, str], mark: Mark | None) -> Cell | Problem:
    """The one cell that has everything that is wanted (topology, model, gpu), or what is wrong with the choice."""
    chosen = [cell for cell in found if all(_same(kind, getattr(cell, kind), name) for kind, name in wanted.items())]
    if len(chosen) == 1:
        return chosen[0]
    asked = " ".join(f"{kind}={name}" for kind, name in wanted.items())
    if not chosen:
        why = f"no cell of the file has {asked}; there is: {'; '.join(map(str, found))}"
        code, fix = "unknown-cell", f"choose one that is there, for example {found[0]}"
    else:
        why = f"{len(chosen)} cells {f'have {asked}' if asked else 'could be meant'}: {'; '.join(map(str, chosen))}"
        code, fix = "ambiguous-cell", f"say which, for example {chosen[0]}"
    return Problem(severity="error", code=code, path="model_params", why=why, fix=fix, mark=mark)


def _same(kind: str, name: str, wanted: str) -> bool:
    if name.lower() == wanted.lower():
        return True
    device = hardware.find(wanted) if kind == "gpu" else None
    return device is not None and hardware.find(name) == device
