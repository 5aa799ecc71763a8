"""The memory that XLA reserves on each device for training steps: in GiB, by the buffers of steps compiled for an H200.

Arguments, results that do not reuse an argument's buffer, and temporary memory; with jax, jax-cuda13-plugin and
jax-cuda13-pjrt 0.10.2 and cuDNN 9.12.0.46; float32 parameters and moments unless stated otherwise. `make test-gpu-plan`
compiles every row again and compares.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.spec import Batch, Execution, MeshShape, Parallelism, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS

JAX = "0.10.2"


def spec_of(
    model: str, micro: int, length: int, remat: str = "full", *, layers: int | None = None, accumulate: int = 1,
    moments: str = "float32", scan: bool = True, parallel: dict[str, Any] | None = None, **mesh: int,
) -> RunSpec:  # fmt: skip
    """A run of a preset in micro-batches of so many sequences of this length, on as many devices as its mesh has."""
    shape = MeshShape(**mesh)
    preset = MODELS[model]
    return RunSpec(
        name="run",
        dialect="native",
        model=replace(preset, num_layers=layers or preset.num_layers),
        batch=Batch(
            sequence_length=length, micro_batch_size=micro,
            global_batch_size=micro * accumulate * shape.data * shape.fsdp,
        ),
        steps=10,
        topology=Topology(devices_per_node=shape.product),
        parallelism=Parallelism(within_node=shape, **(parallel or {})),
        precision=Precision(optimizer_dtype=moments),  # type: ignore[arg-type]
        execution=Execution(remat=remat, scan_layers=scan),
    )  # fmt: skip


SP = {"sequence_parallel": True}

COMPILED: list[tuple[float, RunSpec]] = [
    # one device
    (121.7, spec_of("llama3.1-8b", 1, 8192)),
    (125.5, spec_of("llama3.1-8b", 1, 8192, accumulate=4)),
    (55.8, spec_of("llama3.2-1b", 8, 4096, "none", scan=False)),
    (80.1, spec_of("llama3.2-1b", 8, 4096, "none")),
    (76.1, spec_of("llama3.2-1b", 16, 4096, "minimal_with_context")),
    (104.8, spec_of("llama3.2-3b", 8, 4096, "minimal_with_context")),
    (118.9, spec_of("llama3.1-8b", 4, 8192, "minimal_with_context", layers=16)),
    (96.7, spec_of("llama3.1-8b", 2, 8192, "none", layers=16, scan=False)),
    (99.3, spec_of("llama3.1-8b", 2, 8192, "save_out_proj", moments="bfloat16")),
    (137.7, spec_of("llama3.1-8b", 2, 8192, "minimal_with_context", moments="bfloat16")),
    (94.9, spec_of("llama3.1-70b", 1, 8192, "none", layers=4)),
    # fsdp
    (6.6, spec_of("llama3.2-1b", 4, 4096, fsdp=8)),
    (24.4, spec_of("llama3.1-8b", 1, 8192, fsdp=8)),
    (24.3, spec_of("llama3.1-8b", 1, 8192, accumulate=4, fsdp=8)),
    (65.8, spec_of("llama3.1-8b", 2, 8192, "minimal", fsdp=8)),
    (42.1, spec_of("llama3.1-8b", 2, 8192, "save_dot_with_context_except_mlp", fsdp=8)),
    (134.8, spec_of("llama3.1-8b", 2, 8192, "none", fsdp=8)),
    (22.3, spec_of("llama3.1-8b", 4, 8192, fsdp=64)),
    (43.5, spec_of("llama3.1-70b", 1, 8192, fsdp=64)),
    (57.0, spec_of("llama3.1-70b", 4, 4096, fsdp=64)),
    (94.2, spec_of("llama3.1-70b", 1, 8192, accumulate=4, fsdp=16)),
    (53.2, spec_of("llama3.1-70b", 2, 4096, "save_out_proj", fsdp=64)),
    (55.7, spec_of("llama3.1-70b", 1, 8192, "save_qkv_proj", fsdp=64)),
    (142.4, spec_of("llama3.1-70b", 1, 8192, "minimal_with_context", fsdp=64)),
    (26.4, spec_of("llama3.1-70b", 1, 8192, fsdp=2048)),
    (34.6, spec_of("llama3.1-70b", 1, 8192, data=16, fsdp=128)),
    (86.7, spec_of("llama3.1-405b", 1, 8192, fsdp=512)),
    (99.5, spec_of("llama3.1-405b", 1, 8192, data=8, fsdp=256)),
    # data alone, and other axes
    (125.6, spec_of("llama3.1-8b", 4, 4096, data=8)),
    (76.1, spec_of("llama3.1-8b", 4, 4096, data=8, parallel={"zero1": True})),
    (76.2, spec_of("llama3.1-8b", 4, 4096, accumulate=4, data=8, parallel={"zero1": True})),
    (20.0, spec_of("llama3.1-8b", 4, 4096, tensor=8)),
    (16.3, spec_of("llama3.1-8b", 4, 4096, tensor=8, parallel=SP)),
    (30.5, spec_of("llama3.1-70b", 1, 8192, fsdp=8, tensor=8)),
    (21.5, spec_of("llama3.1-70b", 1, 8192, fsdp=8, tensor=8, parallel=SP)),
    (21.3, spec_of("llama3.1-70b", 1, 8192, accumulate=8, fsdp=8, tensor=8, parallel=SP)),
    (20.7, spec_of("llama3.1-70b", 8, 8192, data=4, fsdp=64, tensor=8, parallel=SP)),
    (31.1, spec_of("llama3.1-405b", 4, 8192, fsdp=256, tensor=8, parallel=SP)),
    (68.5, spec_of("llama3.1-8b", 2, 8192, context=4, fsdp=2)),
    # pipelines
    (59.3, spec_of("llama3.1-8b", 1, 8192, accumulate=16, pipeline=4)),
    (48.1, spec_of("llama3.1-8b", 1, 8192, accumulate=32, fsdp=2, pipeline=4)),
    (53.0, spec_of("llama3.1-70b", 1, 4096, accumulate=16, fsdp=8, pipeline=8)),
    (139.9, spec_of("llama3.1-70b", 1, 8192, accumulate=64, fsdp=8, pipeline=8)),
    (59.1, spec_of("llama3.1-70b", 1, 8192, accumulate=16, fsdp=8, pipeline=8, parallel={"virtual_pipeline": 2})),
    (56.7, spec_of("llama3.1-70b", 1, 8192, accumulate=8, fsdp=4, pipeline=4, tensor=4)),
]  # fmt: skip
