"""model_params.<topology>.<model>.<gpu>: which cell of a CVS configuration is meant."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.dialects.detection import installed_gpu
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.estimate import hardware
from seatrial.source import Node

TOPOLOGIES = ("single_node", "multi_node")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model on one GPU in one topology; the marks are those of their names."""

    topology: str
    model: str
    gpu: str
    node: Node
    model_mark: Mark | None
    gpu_mark: Mark | None

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
                marks = {"model_mark": gpus.key_mark, "gpu_mark": node.key_mark}
                found.append(Cell(topology=topology, model=model, gpu=gpu, node=node, **marks))
    if not found:
        why = "there is no model_params.<topology>.<model>.<gpu> in it"
        raise _malformed("model_params", params.mark, why)
    return found


def _members(node: Node) -> list[tuple[str, Node]]:
    return [(name, child) for name, child in node.members.items() if not name.startswith("_")]


def _malformed(path: str, mark: Mark | None, why: str) -> InputError:
    return InputError.single("malformed", path, why, "compare with an example: `seatrial init`", mark)


def select(found: list[Cell], wanted: dict[str, str], mark: Mark) -> tuple[Cell | None, Problem | None]:
    """The one cell that has everything that is wanted (topology, model, gpu), and what there is to say about it.

    Where only GPUs are left to choose from, this machine is asked which it has; nothing is ever chosen without a word.
    """
    left = _having(found, wanted)
    if len(left) == 1:
        return left[0], None
    if not left:
        asked = " ".join(f"{kind}={name}" for kind, name in wanted.items())
        why = f"no cell of the file has {asked}; there is: {'; '.join(map(str, found))}"
        return None, _finding("error", "unknown-cell", why, f"choose one that is there, for example {found[0]}", mark)
    if len({(cell.topology, cell.model) for cell in left}) == 1 and (gpu := installed_gpu()):
        detected = _having(left, {"gpu": gpu})
        if len(detected) == 1:
            why = f"this machine has {gpu}, so {detected[0]} is read"
            return detected[0], _finding("info", "gpu-detected", why, f"give gpu={detected[0].gpu} to be sure", mark)
    why = f"{len(left)} cells could be meant: {'; '.join(map(str, left))}"
    return None, _finding("error", "ambiguous-cell", why, f"say which, for example {left[0]}", mark)


def _finding(severity: Severity, code: str, why: str, fix: str, mark: Mark) -> Problem:
    return Problem(severity=severity, code=code, path="model_params", why=why, fix=fix, mark=mark)


def _having(found: list[Cell], wanted: dict[str, str]) -> list[Cell]:
    return [cell for cell in found if all(_same(kind, getattr(cell, kind), name) for kind, name in wanted.items())]


def _same(kind: str, name: str, wanted: str) -> bool:
    if name.lower() == wanted.lower():
        return True
    device = hardware.find(wanted) if kind == "gpu" else None
    return device is not None and hardware.find(name) == device
