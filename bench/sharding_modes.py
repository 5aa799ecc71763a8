"""How the training step is partitioned: `shard_map` by hand, the compiler alone, or shardings in the types.

    python bench/sharding_modes.py             every case; or again some of them: … "fsdp8 bfloat16" "dp2 float32"

Four programs train the same model on the same batch from the same weights, with the same kernels where they can:

    shard_map   the trainer as it stands: one `jax.shard_map` around the step, its collectives written by hand
    automatic   the trainer's kernels as a single-device program, jitted with the shardings of its inputs and outputs
    + islands   the same, told at the border of each block how activations lie, and with the kernels that the compiler
                cannot split (attention, the row-major copy for weight gradients) in `shard_map` islands
    explicit    `AxisType.Explicit`, written anew: `out_sharding=` on every product, the same two islands

Each case runs in processes of its own. The programs' losses are compared first; then they take turns, a step each, so
that whatever else the machine does falls on all of them alike; user CPU seconds hardly depend on it at all.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import record
from jax.sharding import NamedSharding
from programs import sharding as programs

from seatrial.spec import Batch, MeshShape, ModelSpec, Optimizer, Parallelism, Precision, RunSpec, Topology
from seatrial.train import model, objectives, params, precision, sharding, step
from seatrial.train.data import make_batch
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.mesh import make_mesh

ROOT = record.RESULTS.parents[1]
ROUNDS, WARM_UP = 9, 2
PROGRAM = "now compiling: "  # marks on stderr what the compiler's warnings are about
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3}
MODEL = ModelSpec(
    name="bench", vocab_size=8192, hidden_dim=256, num_layers=4, num_heads=8, num_kv_heads=8, head_dim=32, ffn_dim=704
)
SEQUENCES, LENGTH = 8, 256
STRATEGIES = {  # mesh, processes, sequence parallelism, micro-batches
    "dp8": ({"data": 8}, 1, False, 1),
    "fsdp8": ({"fsdp": 8}, 1, False, 1),
    "fsdp4×tp2": ({"fsdp": 4, "tensor": 2}, 1, False, 1),
    "fsdp4×tp2+sp": ({"fsdp": 4, "tensor": 2}, 1, True, 1),
    "dp2": ({"data": 2}, 2, False, 1),
    "dp2, 2 micro-batches": ({"data": 2}, 2, False, 2),
    "fsdp2": ({"fsdp": 2}, 2, False, 1),
}
CASES = {f"{name} {dtype}": (*case, dtype) for name, case in STRATEGIES.items() for dtype in TOLERANCE}
# As the launcher sets it: without, page faults are a quarter of a step on a CPU.
MALLOC = "glibc.malloc.mmap_threshold=68719476736:glibc.malloc.trim_threshold=68719476736:glibc.malloc.arena_max=1"


def make_spec(axes: dict[str, int], sequence_parallel: bool, passes: int, dtype: Any) -> RunSpec:
    shape = MeshShape(**axes)
    micro = SEQUENCES // (shape.data * shape.fsdp * passes)
    return RunSpec(
        name="bench", dialect="native", model=MODEL, steps=1000, optimizer=Optimizer(learning_rate=3e-4),
        batch=Batch(sequence_length=LENGTH, global_batch_size=SEQUENCES, micro_batch_size=micro),
        topology=Topology(devices_per_node=shape.product), precision=Precision(compute_dtype=dtype),
        parallelism=Parallelism(within_node=shape, sequence_parallel=sequence_parallel),
    )  # fmt: skip


# --- what a compiled program communicates -----------------------------------------------------------------------------

COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")
# Bytes that one of n devices sends, per byte of the result, by the ring algorithms.
SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}


def shape_bytes(text: str) -> int:
    """Bytes of an HLO type; of all its parts where it is a tuple."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits or 8) // 8
        for bits, sizes in re.findall(r"\b(?:pred|[a-z]+?(\d+))\[([\d,]*)\]", text)
    )


def group_size(line: str) -> int:
    """Devices in one group of a collective, in any of HLO's spellings; 2 for a permutation, which has none."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(iota[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\].*?\{(.*?)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'\w+'", named[2]))
    if "source_target_pairs=" in line:
        return 2
    raise ValueError(f"a collective among whom? {line}")


def communication(hlo: str) -> tuple[Counter[str], float]:
    """Collectives that one device runs in a step, by kind, loops multiplied out; and the MB that it sends in them."""
    bodies = {m[2]: (m[1], m[3]) for m in re.finditer(r"^(ENTRY )?%?([\w.-]+) \(.*?\{\n(.*?)^\}", hlo, re.M | re.S)}

    def run(name: str) -> tuple[Counter[str], float]:
        counts, sent = Counter[str](), 0.0
        for line in bodies[name][1].splitlines():
            if found := COLLECTIVE.search(line):
                if (members := group_size(line)) > 1:
                    counts[found[2]] += 1
                    sent += SENT[found[2]](members) * shape_bytes(found[1]) / 1e6
            elif inner := re.findall(r"(?:body|calls|to_apply|_computation)=%?([\w.-]+)", line):
                known = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                assert known or " while(" not in line, f"a loop of unknown length: {line}"
                trips = int(known[1]) if known else 1
                for more, sent_more in map(run, inner):
                    counts += Counter({kind: n * trips for kind, n in more.items()})
                    sent += sent_more * trips
        return counts, sent

    return run(next(name for name, (entry, _) in bodies.items() if entry))


# --- one case ---------------------------------------------------------------------------------------------------------


def measure(case: str, process: int, port: int) -> dict[str, Any]:
    """Compiles the programs of a case, compares their losses, and times them by turns; in a process of its own."""
    axes, processes, sequence_parallel, passes, dtype = CASES[case]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(axes.values()) // processes)
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    spec = make_spec(axes, sequence_parallel, passes, dtype)
    mesh = make_mesh(spec)
    trainer = step.make_trainer(spec, mesh)
    source = Synthetic(MODEL.vocab_size, LENGTH, SEQUENCES, spec.seed)
    weights = jax.tree.map(np.asarray, params.initialize(params.declare(spec), spec.seed, jnp.float32))
    zeros = jax.tree.map(np.zeros_like, weights)
    start = {"step": np.int32(0), "params": weights, "m": zeros, "v": zeros}

    compiled, state, batch, results = {}, {}, {}, {}

    def timed_step(name: str) -> tuple[float, float, float]:
        """Wall seconds, user CPU seconds and loss of one step of a program."""
        wall, user = time.perf_counter(), os.times().user
        state[name], metrics = compiled[name](state[name], batch[name])
        jax.block_until_ready((state[name], metrics))
        return time.perf_counter() - wall, os.times().user - user, float(metrics["loss"])

    for name, (on, program) in programs.make_programs(spec, mesh).items():
        print(f"{PROGRAM}{name}", file=sys.stderr, flush=True)
        shardings = jax.tree.map(lambda s, on=on: NamedSharding(on, s.spec), trainer.state_shardings)
        with jax.set_mesh(on):
            state[name] = jax.tree.map(
                lambda x, s: jax.make_array_from_callback(x.shape, s, lambda index: x[index]), start, shardings
            )
            batch[name] = make_batch(source, 0, trainer.batch_shape, NamedSharding(on, trainer.batch_sharding.spec))
            wall, user = time.perf_counter(), os.times().user
            compiled[name] = program.lower(state[name], batch[name]).compile()
            wall, user = time.perf_counter() - wall, os.times().user - user
        counts, sent = communication(compiled[name].as_text())
        temporary = compiled[name].memory_analysis().temp_size_in_bytes / 1e6
        losses = [timed_step(name)[2] for _ in range(WARM_UP)]
        results[name] = {
            "compile_seconds": wall, "compile_user_seconds": user, "collectives": dict(counts),
            "sent_megabytes": sent, "temporary_megabytes": temporary,
            "losses": losses, "step_seconds": [], "step_user_seconds": [],
        }  # fmt: skip
        if not np.allclose(losses, expected := results["shard_map"]["losses"], rtol=0, atol=TOLERANCE[dtype]):
            sys.exit(f"{case}: {name} computes something else: losses {losses}, expected {expected}")
    for _ in range(ROUNDS):
        for name, result in results.items():
            wall, user, _ = timed_step(name)
            result["step_seconds"].append(wall)
            result["step_user_seconds"].append(user)
    return results


# --- all cases --------------------------------------------------------------------------------------------------------


def run_case(case: str) -> dict[str, Any]:
    """Runs a case's processes; wall times are those of process 0, CPU seconds are added up."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"GLIBC_TUNABLES": MALLOC}
    children, logs, outputs = [], [], []
    for process in range(CASES[case][1]):
        argv = [sys.executable, __file__, "--measure", case, str(process), str(port)]
        logs.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115  a pipe would fill up while the other child is read
        children.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=logs[-1], text=True))
    for child, log in zip(children, logs, strict=True):
        outputs.append(child.communicate()[0])
        log.seek(0)
        if child.returncode:
            sys.exit(f"{case} ended with {child.returncode}:\n{log.read()}")
    results, *others = (json.loads(output.splitlines()[-1]) for output in outputs)  # Gloo, too, writes to stdout
    compiler_said = dict(part.split("\n", 1) for part in logs[0].read().split(PROGRAM)[1:])
    for name, result in results.items():
        times = [result["step_user_seconds"], *(other[name]["step_user_seconds"] for other in others)]
        result["step_user_seconds"] = [sum(alike) for alike in zip(*times, strict=True)]
        result["involuntary_rematerializations"] = compiler_said[name].count("Involuntary full rematerialization")
    return results


def ratio(results: dict[str, Any], name: str, figure: str) -> float:
    """The median over the rounds of this program's figure to the trainer's."""
    pairs = zip(results[name][figure], results["shard_map"][figure], strict=True)
    return statistics.median(mine / its for mine, its in pairs)


def show(case: str, results: dict[str, Any]) -> None:
    print(
        f"\n{case}\n             MB sent  MB temp.     step  ratio  user CPU  ratio  compile CPU  warnings  collectives"
    )
    for name, r in results.items():
        figures = (
            f"  {name:10s} {r['sent_megabytes']:7.1f} {r['temporary_megabytes']:9.0f}"
            f" {statistics.median(r['step_seconds']):6.2f} s {ratio(results, name, 'step_seconds'):6.2f}"
            f" {statistics.median(r['step_user_seconds']):7.2f} s {ratio(results, name, 'step_user_seconds'):6.2f}"
            f" {r['compile_user_seconds']:10.1f} s {r['involuntary_rematerializations']:9d}  "
        )
        print(figures, ", ".join(f"{count} {kind}" for kind, count in sorted(r["collectives"].items())), flush=True)


def lines_about_sharding() -> dict[str, int]:
    """Code lines of the forward and backward pass that say where something lies or how it moves."""
    words = re.compile(
        r"shard|gather|scatter|psum|plac|rules|boundary|over_tensor|tensor_offset|at_rest|\bP\(|mesh|local"
        r"|\b(full|whole|heads|between|inward|outward|out|split|spec)\b"
    )
    parts = {
        "shard_map": (model, precision, objectives),
        "shard_map, sharding.py": (sharding,),
        "automatic, + islands": (programs.automatic, programs.row_major),
        "explicit": (programs.explicit, programs.linear, programs.linear_forward, programs.linear_backward,
                     programs.product, programs.weight_gradient, programs.row_major),
    }  # fmt: skip
    lines = {name: "".join(map(inspect.getsource, code)).splitlines() for name, code in parts.items()}
    return {name: sum(bool(words.search(line.partition("#")[0])) for line in code) for name, code in lines.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="How the training step is partitioned.")
    parser.add_argument("cases", nargs="*", help=f"to measure again: {', '.join(CASES)}")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        case, process, port = arguments.measure
        print(json.dumps(measure(case, int(process), int(port))))
        return
    result = record.RESULTS / "sharding_modes.json"
    cases = json.loads(result.read_text(encoding="utf-8"))["cases"] if arguments.cases and result.exists() else {}
    for case in arguments.cases or CASES:
        cases[case] = run_case(case)
        show(case, cases[case])
        record.write("sharding_modes", {"lines_about_sharding": lines_about_sharding(), "cases": cases})
    print("\nlines about sharding:", ", ".join(f"{name} {count}" for name, count in lines_about_sharding().items()))
    print(f"on {record.machine()['cpu']}, {record.machine()['cores']} cores; written: {result.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
