"""Megatron commands and what they are read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects import megatron
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.overrides import Override
from seatrial.spec import Resolved, RunSpec, flatten
from tests.helpers.specs import without_engine_keys

TENSOR, DATA, FSDP, PIPELINE, CONTEXT = (
    f"parallelism.within_node.{axis}" for axis in ("tensor", "data", "fsdp", "pipeline", "context")
)
MODEL = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 256"
LEAST = f"{MODEL} --micro-batch-size 2 --train-iters 100 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 999"


def request(text: str, *overrides: str) -> Request:
    given = [Override(key=each.partition("=")[0], text=each.partition("=")[2]) for each in overrides]
    document = source.parse_shell(text, file="run.sh")
    return Request(document=document, overrides=given, action="plan", user="me", home=Path("/home/me"))


def read(text: str, *overrides: str) -> Resolved:
    return megatron.read(request(text, *overrides))


def gpt(more: str = "", launcher: str = "--nproc_per_node 8 --nnodes 2", *, least: str = LEAST) -> Resolved:
    return read(f"torchrun {launcher} pretrain_gpt.py {least} {more}\n")


def spec_of(resolved: Resolved) -> RunSpec:
    errors = [(p.path, p.why) for p in resolved.problems if p.severity == "error"]
    assert errors == []
    assert resolved.spec is not None
    return resolved.spec


def errors(resolved: Resolved) -> list[tuple[str, str]]:
    return [(p.code, p.path) for p in resolved.problems if p.severity == "error"]


def changes(before: RunSpec, after: RunSpec) -> dict[str, Any]:
    old, new = flatten(without_engine_keys(before)), flatten(without_engine_keys(after))
    return {path: new.get(path) for path in {**old, **new} if old.get(path, "absent") != new.get(path, "absent")}
