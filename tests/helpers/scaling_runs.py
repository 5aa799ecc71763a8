"""Runs of one workload at several sizes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import events, metrics, verdict
from seatrial.report.gather import RunReport, gather
from seatrial.spec import Batch, Data, MeshShape, Parallelism, RunSpec, Topology, to_dict
from seatrial.spec.presets import MODELS
from tests.helpers import streams


def recipe(devices: int, global_batch_size: int | None = None, **changes: Any) -> RunSpec:
    spec = RunSpec(
        name=f"llama2-70b on {devices}",
        dialect="maxtext",
        model=MODELS["llama2-70b"],
        batch=Batch(sequence_length=4096, global_batch_size=global_batch_size or 2 * devices, micro_batch_size=2),
        steps=50,
        topology=Topology(num_nodes=max(1, devices // 8), devices_per_node=min(8, devices), device="h100-sxm"),
        parallelism=Parallelism(within_node=MeshShape(fsdp=min(8, devices)), across_nodes=MeshShape(fsdp=-1)),
        data=Data(kind="synthetic"),
    )
    return replace(spec, **changes)


def run(
    folder: Path,
    spec: RunSpec,
    seconds: float | Callable[[int], float],
    *,
    name: str = "",
    loss: Callable[[int], float] = streams.falling,
    convention: str = "non_causal",
    policy: str = "steady",
    device_kind: str = "NVIDIA H100 80GB HBM3",
    complete: bool = True,
    **facts: object,
) -> RunReport:
    """A run directory that `judge` leaves of a log from another trainer, and its report; one process speaks for all."""
    folder = folder / (name or f"run-{spec.topology.num_devices}")
    folder.mkdir(parents=True)
    times = seconds if callable(seconds) else lambda step: seconds
    start = replace(streams.started(spec, device_kind=device_kind, **facts), num_processes=1)
    recorded = [start, *streams.steps(spec, seconds=times, loss=loss), *([streams.ended()] if complete else [])]
    (folder / "events-0.jsonl").write_text("".join(events.dumps(event) + "\n" for event in recorded), encoding="utf-8")
    measured = metrics.measure(recorded, spec, convention=convention, policy=policy)
    judged = verdict.judge(measured, spec, rehearsal=False)
    documents = {
        "judged": {"v": 1, "sources": [f"{folder.name}.log"], "family": "maxtext", "against": "llama2.yml"},
        "spec": {"v": 1, "spec": to_dict(spec), "origins": {}, "problems": []},
        "metrics": metrics.to_dict(measured),
        "verdict": verdict.to_dict(judged),
    }
    for file, document in documents.items():
        (folder / f"{file}.json").write_text(json.dumps(document), encoding="utf-8")
    return gather(folder)


def noisy(typical: float, seed: int, spread: float = 0.01) -> Callable[[int], float]:
    return lambda step: typical * (1 + spread * random.Random(1000 * seed + step).gauss(0, 1))
