"""Writes which keys of a training configuration CVS reads, and how, from a clone of ROCm's cvs.

    tools/cvs_reads.py CLONE    → tests/dialects/cvs_reads.txt

Nothing of the clone is executed: what its library of each trainer and one of its tests do with the two mappings of a
file is read from their syntax, at one commit of 2025 and at the newest. A line of the table is a release, a kind of
file, a key (`config.` or of the cell), whether CVS stops without it (`needed`, `needed-across` where only a run on
several nodes reads it) or has a default, as what it is used (`int`, `float` or `any`), and the words that its value
follows in what CVS writes: `steps:` in MaxText's YAML, `NCCL_DEBUG=` in a script, `--xla_gpu_autotune_level=` in a
flag.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

TABLE = Path(__file__).resolve().parents[1] / "tests" / "dialects" / "cvs_reads.txt"

RELEASES = {"2025": "7afb1ca3", "2026": "HEAD"}
SOURCES = {  # kind → by release: the files that read its configurations
    ("jax", "2025"): ("lib/jax_training_lib.py", "tests/training/jax/distributed_llama_3_1_70b.py"),
    ("jax", "2026"): ("cvs/lib/jax_training_lib.py", "cvs/tests/training/jax/jax_llama3_1_70b_distributed.py"),
    ("megatron", "2025"): ("lib/megatron_training_lib.py", "tests/training/megatron/distributed_llama3_1_8b.py"),
    ("megatron", "2026"): (
        "cvs/lib/megatron_training_lib.py", "cvs/tests/training/megatron/megatron_llama3_1_8b_distributed.py"
    ),
}  # fmt: skip
ROOTS = {  # names of the two mappings in CVS's code → what its keys are called here
    **dict.fromkeys(("self.training_config_dict", "training_config_dict", "training_dict"), "config"),
    **dict.fromkeys(("self.model_params_dict", "model_params_dict"), "model_params"),
}
METHODS = ("get", "setdefault")
_INTO = re.compile(r"((?:--)?[A-Za-z_]\w*[=:]) ?\"?$")


@dataclass
class Reads:
    """The keys of a configuration that some code reads, and how it reads them."""

    names: dict[str, str] = field(default_factory=lambda: dict(ROOTS))  # name in the code → key
    defaults: set[str] = field(default_factory=set)
    needed: dict[str, bool] = field(default_factory=dict)  # key → whether a run on one node reads it as well
    kinds: dict[str, str] = field(default_factory=dict)
    into: dict[str, set[str]] = field(default_factory=dict)

    def key(self, node: ast.expr) -> str | None:
        """The key that an expression stands for: `config.nnodes`, or `model_params.*.*.*.fsdp` of a cell."""
        if isinstance(node, ast.Subscript):
            base = self.key(node.value)
            is_name = isinstance(node.slice, ast.Constant) and base != "model_params"  # single_node or multi_node
            word = str(node.slice.value) if is_name and isinstance(node.slice, ast.Constant) else "*"
            return None if base is None else f"{base}.{word}"
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
            base = self.key(node.func.value) if isinstance(node.func, ast.Attribute) else None
            word = str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else "*"
            return None if base is None else f"{base}.{word}"
        return self.names.get(ast.unparse(node)) if isinstance(node, ast.Name | ast.Attribute) else None

    def learn(self, tree: ast.AST) -> None:
        """Other names for the mappings and their values, as often as there is something new."""
        before = -1
        while before != len(self.names):
            before = len(self.names)
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    value, kind = _unwrapped(node.value)
                    key, target = self.key(value), ast.unparse(node.targets[0])
                    if key and isinstance(node.targets[0], ast.Name | ast.Attribute):
                        self.names.setdefault(target, key)
                        self.kinds |= {key: kind} if kind else {}

    def read(self, tree: ast.AST, *, alone: bool = True) -> None:
        """Collects what a tree reads; what stands where `distributed_training` holds is not read on one node."""
        if isinstance(tree, ast.Raise):
            return
        if isinstance(tree, ast.If) and "distributed_training" in ast.unparse(tree.test):
            across_first = "not" not in ast.unparse(tree.test)
            for body, is_across in ((tree.body, across_first), (tree.orelse, not across_first)):
                for each in body:
                    self.read(each, alone=alone and not is_across)
            return
        self._one(tree, alone)
        for child in ast.iter_child_nodes(tree):
            self.read(child, alone=alone)

    def _one(self, node: ast.AST, alone: bool) -> None:
        if isinstance(node, ast.Call):
            method, base = getattr(node.func, "attr", ""), getattr(node.func, "value", None)
            if method in METHODS and base is not None and (key := self.key(base)) and node.args:
                word = str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else "*"
                self.defaults.add(f"{key}.{word}")
            value, kind = _unwrapped(node)
            if kind and (key := self.key(value)):
                self.kinds[key] = kind
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and (key := self.key(node)):
            self.needed[key] = self.needed.get(key, False) or alone
        elif isinstance(node, ast.JoinedStr):
            self._written(node)

    def _written(self, text: ast.JoinedStr) -> None:
        """The words in front of each value in a text that CVS writes."""
        before = ""
        for part in text.values:
            if isinstance(part, ast.FormattedValue):
                key, found = self.key(_unwrapped(part.value)[0]), _INTO.search(before)
                if key and found:
                    self.into.setdefault(key, set()).add(found[1])
                before = ""
            else:
                before = str(getattr(part, "value", ""))


def _unwrapped(node: ast.expr) -> tuple[ast.expr, str]:
    """An expression without int() or float() around it, and which of them it was."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("int", "float") and node.args:
        return node.args[0], ast.unparse(node.func)
    return node, ""


def rows(clone: Path, releases: Mapping[str, str] = RELEASES) -> Iterator[str]:
    """The lines of the table; `releases` are names of git's, by the year of the release."""
    for (kind, release), paths in SOURCES.items():
        found = Reads()
        trees = [ast.parse(_show(clone, f"{releases[release]}:{path}")) for path in paths]
        for tree in trees:
            found.learn(tree)
        for tree in trees:
            found.read(tree)
        for key in sorted(found.needed | dict.fromkeys(found.defaults)):
            written = re.sub(r"^model_params\.\*\.\*\.\*\.?", "", key)
            is_leaf = not written.startswith("model_params") and written not in ("", "config") and "*" not in written
            if is_leaf and not any(other.startswith(f"{key}.") for other in {*found.needed, *found.defaults}):
                has_default = any(key == name or key.startswith(f"{name}.") for name in found.defaults)
                how = "default" if has_default else "needed" if found.needed[key] else "needed-across"
                into = ",".join(sorted(found.into.get(key, ()))) or "-"
                yield f"{release} {kind} {written} {how} {found.kinds.get(key, 'any')} {into}"


def _show(clone: Path, place: str) -> str:
    command = ["git", "-C", str(clone), "show", place]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@click.command()
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(clone: Path) -> None:
    """Write the table from a CLONE of CVS's repository."""
    lines = list(dict.fromkeys(rows(clone)))
    head = "# What CVS reads of its training configurations. Made by tools/cvs_reads.py, which explains the columns.\n"
    TABLE.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    click.echo(f"{TABLE}: {len(lines)} reads")


if __name__ == "__main__":
    main()
