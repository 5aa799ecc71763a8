"""Event streams by hand: what a trainer and a launcher would have written, with any part of it gone wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial import events, recording
from seatrial.estimate import flops
from seatrial.spec import Batch, Data, Expectation, ModelSpec, RunSpec, Topology

MODEL = ModelSpec(
    name="tiny", vocab_size=512, hidden_dim=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, ffn_dim=128
)
START = 1_790_000_000.0


def make_spec(
    *,
    steps: int = 30,
    processes: int = 1,
    data: str = "text",
    device: str | None = "h100",
    expectations: Sequence[Expectation] = (),
    **changes: Any,
) -> RunSpec:
    spec = RunSpec(
        name="tiny",
        dialect="native",
        model=MODEL,
        batch=Batch(sequence_length=128, global_batch_size=16, micro_batch_size=2),
        steps=steps,
        topology=Topology(num_nodes=processes, devices_per_node=4, device=device),
        data=Data(kind=data),
        expectations=tuple(expectations),
    )
    return replace(spec, **changes)


def falling(step: int) -> float:
    return 6.24 * 0.97**step


def rising(step: int) -> float:
    return 6.24 * 1.02**step


def started(
    spec: RunSpec, process: int = 0, *, at: float = 0.0, device_kind: str = "NVIDIA H100 80GB HBM3", **facts: Any
) -> events.RunStarted:
    return events.RunStarted(
        process=process,
        wall_time=START + at,
        monotonic_time=at,
        run=spec.name,
        host=f"local{process}",
        num_processes=spec.topology.num_nodes,
        num_devices=spec.topology.num_devices,
        device_kind=device_kind,
        planned_steps=spec.steps,
        tokens_per_step=spec.tokens_per_step,
        num_parameters=flops.num_parameters(spec.model),
        facts=facts,
    )


def steps(
    spec: RunSpec,
    process: int = 0,
    *,
    first: int = 0,
    last: int | None = None,
    seconds: Callable[[int], float | None] = lambda step: 0.5,
    loss: Callable[[int], float | None] = falling,
    grad_norm: Callable[[int], float | None] = lambda step: 1.0,
    at: float = 10.0,
) -> list[events.Step]:
    """Steps `first` to `last` (default: the planned one), the first of them ending at `at` seconds."""
    made = []
    for number in range(first, (spec.steps - 1 if last is None else last) + 1):
        made.append(
            events.Step(
                process=process,
                wall_time=START + at,
                monotonic_time=at,
                step=number,
                seconds=seconds(number),
                tokens=spec.tokens_per_step,
                loss=loss(number),
                grad_norm=grad_norm(number),
                learning_rate=3e-4,
                data_seconds=0.001,
            )
        )
        at += seconds(number) or 0.5
    return made


def ended(
    reason: str = "completed", process: int = 0, *, exit_code: int | None = 0, at: float = 1000.0
) -> events.RunEnded:
    return events.RunEnded(process=process, wall_time=START + at, monotonic_time=at, reason=reason, exit_code=exit_code)


def fault(kind: str, where: str, text: str, *, process: int = -1, at: float = 900.0) -> events.Fault:
    return events.Fault(process=process, wall_time=START + at, monotonic_time=at, fault=kind, where=where, text=text)


def whole_run(spec: RunSpec, **of_steps: Any) -> list[events.Event]:
    """A run without a fault: every process, and the launcher's last word."""
    processes = range(spec.topology.num_nodes)
    return recording.merge(
        [
            *([started(spec, p), *steps(spec, p, **of_steps), ended(process=p)] for p in processes),
            [ended(process=-1, at=1001.0)],
        ]
    )
