"""A sound spec, its parts, and the findings about it."""

from __future__ import annotations

from seatrial.check import lint
from seatrial.errors import Problem
from seatrial.spec import (
    Batch,
    Expectation,
    MeshShape,
    Origin,
    Parallelism,
    Resolved,
    RunSpec,
    Topology,
)
from seatrial.spec.presets import MODELS

SOUND = RunSpec(
    name="sound",
    dialect="native",
    model=MODELS["llama3.1-8b"],
    batch=Batch(sequence_length=8192, global_batch_size=32, micro_batch_size=1),
    steps=100,
    topology=Topology(num_nodes=2, devices_per_node=8, device="mi300x"),
    parallelism=Parallelism(within_node=MeshShape(fsdp=4, tensor=2), across_nodes=MeshShape(data=-1)),
)


def findings(spec: RunSpec, action: str = "run", **origins: Origin) -> list[Problem]:
    return list(lint(Resolved(spec=spec, origins=origins, problems=()), action=action).problems)


def bars(**values: float) -> tuple[Expectation, ...]:
    return tuple(Expectation(metric=metric, value=value) for metric, value in values.items())


def within(**sizes: int) -> Parallelism:
    return Parallelism(within_node=MeshShape(**sizes), across_nodes=MeshShape(data=-1))
