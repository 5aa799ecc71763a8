"""`python -m seatrial.train.compile SPEC.json --target TARGET --out FILE`: a run's step, compiled where it cannot run.

TARGET is a row of `estimate.compiled.TARGETS`: a GPU that need not be there (XLA's plugin for CUDA compiles for its
description in `targets/`), or "cpu". FILE gets, as JSON, what the compiled program says of itself. Started by name;
nothing imports this but tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seatrial.estimate.compiled import CPU, TARGETS
from seatrial.estimate.hlo import read_program
from seatrial.spec import RunSpec, from_dict
from seatrial.xla_flags import settle

# Without a device nothing can be timed, and XLA takes Triton's products where cuBLAS's are as good or better. What the
# configuration says of a flag goes before.
WITHOUT_A_DEVICE = {"xla_gpu_enable_triton_gemm": False}


def compiled_step(spec: RunSpec, target: str, **options: Any) -> tuple[Any, Any]:
    """The step of a run, compiled for a target, and its trainer; `options`: flags of XLA for this program alone.

    Raises RuntimeError where the target cannot be compiled for here, ValueError where a tensor does not divide.
    """
    import jax

    from seatrial.train.data.examples import FIELDS
    from seatrial.train.mesh import make_mesh
    from seatrial.train.trainer import make_trainer

    flags = {} if target == CPU else WITHOUT_A_DEVICE
    flags = {name: value for name, value in flags.items() if name not in spec.execution.xla_flags}
    trainer = make_trainer(spec, make_mesh(spec, _devices(spec, target)))
    state = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(trainer.init),
        trainer.state_shardings,
    )
    batch = {
        name: jax.ShapeDtypeStruct(trainer.batch_shape, FIELDS[name], sharding=place)
        for name, place in trainer.batch_shardings.items()
    }
    step: Any = trainer.step  # which `jax.jit` has made
    return step.lower(state, batch).compile({**flags, **options}), trainer


def _devices(spec: RunSpec, target: str) -> Any:
    import jax
    from jax.experimental import topologies

    if target == CPU:
        return jax.devices("cpu")[: spec.topology.num_devices]
    described = (Path(__file__).parent / "targets" / TARGETS[target]).read_text(encoding="utf-8")
    shape = f"1x{spec.topology.num_nodes}x{spec.topology.devices_per_node}"  # slices × hosts × devices of each
    return topologies.get_topology_desc(platform="cuda", target_config=described, topology=shape).devices


def describe(spec: RunSpec, target: str, **options: Any) -> dict[str, Any]:
    """Memory, collectives and kernels of the compiled step as plain data; see `estimate.compiled.Compiled`."""
    started = time.monotonic()
    step, trainer = compiled_step(spec, target, **options)
    memory, program = step.memory_analysis(), read_program(step.as_text(), dict(trainer.mesh.shape))
    return {
        "memory": {
            "arguments_bytes": memory.argument_size_in_bytes,
            "outputs_bytes": memory.output_size_in_bytes,
            "aliased_bytes": memory.alias_size_in_bytes,
            "temporaries_bytes": memory.temp_size_in_bytes,
        },
        "held": _held(spec, trainer),
        "program": dataclasses.asdict(program),
        "notes": list(_notes(spec, trainer)),
        "seconds": time.monotonic() - started,
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _held(spec: RunSpec, trainer: Any) -> dict[str, int]:
    """Bytes on each device of what the step takes, by what it holds, and of the sum of gradients that it makes."""
    import jax
    import numpy as np

    def of(tree: Any, places: Any, dtype: Any = None) -> int:
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(places), strict=True)
        return sum(math.prod(at.shard_shape(x.shape)) * np.dtype(dtype or x.dtype).itemsize for x, at in pairs)

    from seatrial.train.precision import DTYPES

    state, places = jax.eval_shape(trainer.init), trainer.state_shardings
    gradient = DTYPES[spec.precision.gradient_dtype]
    return {
        "parameters_bytes": of(state["params"], places["params"]),
        "optimizer_bytes": of(state["slots"], places["slots"]),
        "gradients_bytes": of(state["params"], places["params"], gradient),
    }


def _notes(spec: RunSpec, trainer: Any) -> Iterator[str]:
    """Uneven divisions, in sentences."""
    import jax

    model, tensor = spec.model, spec.mesh["tensor"]
    rows = jax.eval_shape(trainer.init)["params"]["embedding"].shape[0]
    if rows != model.vocab_size:
        more = rows / model.vocab_size - 1
        yield f"the vocabulary of {model.vocab_size:,} is padded to {rows:,} ({more:.1%} more), to be split evenly"
    if tensor > model.num_kv_heads:
        copies = tensor // model.num_kv_heads
        yield f"{model.num_kv_heads} key/value heads lie whole on tensor = {tensor} devices: {copies} compute each"
    stages, turns = spec.mesh["pipeline"], spec.accumulation_steps * spec.parallelism.virtual_pipeline
    if stages > 1:
        yield f"the pipeline is idle in {stages - 1} of {turns + stages - 1} ticks of a step"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m seatrial.train.compile", description="A run's step, compiled.")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--target", required=True, choices=(*TARGETS, CPU))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    spec = from_dict(json.loads(given.spec.read_text(encoding="utf-8")))
    devices = spec.topology.num_devices if given.target == CPU else None
    settle(cpu_devices=devices, configured=spec.execution.xla_flags)
    import jax  # late: the flags are read when it is loaded

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot read programs for devices that are not here
    if devices:
        jax.config.update("jax_num_cpu_devices", devices)
    try:
        found = describe(spec, given.target)
    except ValueError as error:
        print(f"seatrial: {error}", file=sys.stderr)
        return 2
    given.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
