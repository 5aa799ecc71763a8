"""Compares the memory that XLA reserves for steps of random configurations with `estimate.memory`.

    python -m tools.compiled_memory draw 90 2030     # adds rows of a new seed to the table, without figures
    python -m tools.compiled_memory compile          # fills those that have none, one at a time; may be stopped
    python -m tools.compiled_memory estimate         # writes the estimates, and prints how near they come

The table is `bench/results/compiled_memory.csv`. A new draw is held back: the constants of the estimate may be chosen
by the rows "calibration" alone. Once its errors were looked at, a draw is no longer evidence: before the estimate
changes again, its rows become "calibration", and a new one is needed. Compiling takes the extra plan-gpu.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from seatrial.errors import LaunchError
from seatrial.estimate import memory
from seatrial.spec import (
    Batch,
    Execution,
    MeshShape,
    ModelSpec,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
    uneven_splits,
)
from seatrial.spec.presets import MODELS

TABLE = Path(__file__).parents[1] / "bench" / "results" / "compiled_memory.csv"
TARGET = "h200"
LAST_SEED = 2029  # of the draws in the table
SPLITS = ("calibration", "held back")
SCANNED = 0.9  # of the steps of few layers: each of the others takes minutes to compile
LEAST, MOST = 1 * 2**30, 135 * 2**30  # what is drawn must need, by the estimate of that day: XLA squeezes what is more

SMALL = {
    "0.1b": ModelSpec(name="0.1b", vocab_size=32_000, hidden_dim=768, num_layers=12, num_heads=12, num_kv_heads=12,
                      head_dim=64, ffn_dim=2048),
    "0.5b": ModelSpec(name="0.5b", vocab_size=50_304, hidden_dim=1536, num_layers=16, num_heads=12, num_kv_heads=4,
                      head_dim=128, ffn_dim=4096),
}  # fmt: skip
SHAPES = SMALL | MODELS
AXES = ("pipeline", "data", "fsdp", "context", "tensor")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A configuration in the table's columns, what compiling found (0: not yet), and the estimate."""

    draw: int  # the seed of the draw that the row comes from
    split: str  # "calibration" or "held back"
    model: str
    layers: int
    length: int
    micro: int
    accumulate: int
    pipeline: int
    data: int
    fsdp: int
    context: int
    tensor: int
    virtual: int
    zero1: bool
    sequence_parallel: bool
    remat: str
    scan: bool
    compute: str
    quantization: str
    params: str
    moments: str
    arguments_bytes: int = 0
    temporaries_bytes: int = 0
    total_bytes: int = 0
    estimated_bytes: int = 0
    seconds: float = 0.0
    process_bytes: int = 0

    @property
    def is_alone(self) -> bool:
        """True if it runs on one device."""
        return all(getattr(self, axis) == 1 for axis in AXES)

    def spec(self) -> RunSpec:
        """The run that the row stands for, on nodes of eight devices."""
        sizes = {axis: getattr(self, axis) for axis in AXES}
        formats: dict[str, Any] = {  # texts of a table, which the spec's types name one by one
            "compute_dtype": self.compute, "params_dtype": self.params, "optimizer_dtype": self.moments,
        }  # fmt: skip
        devices = MeshShape(**sizes).product
        per_node = min(devices, 8)
        return RunSpec(
            name="run",
            dialect="native",
            model=replace(SHAPES[self.model], num_layers=self.layers),
            batch=Batch(
                sequence_length=self.length, micro_batch_size=self.micro,
                global_batch_size=self.micro * self.accumulate * self.data * self.fsdp,
            ),
            steps=10,
            topology=Topology(num_nodes=devices // per_node, devices_per_node=per_node, device=TARGET),
            parallelism=_placed(sizes, per_node, self),
            precision=Precision(**formats, quantization=self.quantization or None),
            execution=Execution(remat=self.remat, scan_layers=self.scan),
        )  # fmt: skip


def _placed(sizes: dict[str, int], per_node: int, row: Row) -> Parallelism:
    """The mesh with as much of its last axes as a node holds within it."""
    within: dict[str, int] = {}
    for axis in reversed(AXES):
        within[axis] = next(n for n in range(min(sizes[axis], per_node), 0, -1) if sizes[axis] % n == per_node % n == 0)
        per_node //= within[axis]
    return Parallelism(
        within_node=MeshShape(**within),
        across_nodes=MeshShape(**{axis: size // within[axis] for axis, size in sizes.items()}),
        zero1=row.zero1, sequence_parallel=row.sequence_parallel, virtual_pipeline=row.virtual,
    )  # fmt: skip


# --- the draw ---------------------------------------------------------------------------------------------------------

# Models with the numbers of devices that one trains them on.
DEVICES = {
    "0.1b": (1, 2, 4, 8), "0.5b": (1, 2, 4, 8), "llama3.2-1b": (1, 2, 4, 8, 16), "llama3.2-3b": (1, 4, 8, 16, 32),
    "llama2-7b": (4, 8, 16, 32, 64), "llama3.1-8b": (1, 4, 8, 16, 32, 64), "llama2-13b": (8, 16, 32, 64),
    "llama3.1-70b": (32, 64, 128, 256, 512, 2048), "llama3.1-405b": (256, 512, 1024, 2048),
}  # fmt: skip
# The axes that are used together.
LAYOUTS = (
    ("fsdp",), ("fsdp",), ("fsdp",), ("data",), ("data", "fsdp"), ("fsdp", "tensor"), ("fsdp", "tensor"), ("tensor",),
    ("fsdp", "context"), ("pipeline", "fsdp"), ("pipeline", "tensor", "fsdp"), ("pipeline", "data"),
)  # fmt: skip
ROWS = (
    "full", "full", "full", "none", "minimal", "minimal_with_context", "save_out_proj", "save_qkv_proj",
    "save_dot_except_mlp", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
)  # fmt: skip


def _draw(chance: random.Random, seed: int) -> Row:
    """A row, which need not be possible."""
    model = chance.choice(list(DEVICES))
    devices = chance.choice(DEVICES[model])
    layout = chance.choice(LAYOUTS) if devices > 1 else ()
    sizes = dict.fromkeys(AXES, 1)
    for axis in layout[1:]:
        most = min(devices, 8 if axis == "tensor" else 16)
        sizes[axis] = chance.choice([n for n in (2, 4, 8, 16) if n <= most and devices % n == 0] or [1])
        devices //= sizes[axis]
    if layout:
        sizes[layout[0]] = devices
    staged, layers = sizes["pipeline"] > 1, SHAPES[model].num_layers
    quantization = chance.choice(("", "", "", "", "te_fp8_currentscaling", "" if staged else "fp8"))
    return Row(
        draw=seed,
        split="held back",
        model=model,
        layers=layers,
        length=chance.choice((2048, 4096, 8192, 8192, 16_384, 32_768)),
        micro=chance.choice((1, 1, 2, 4, 8)),
        accumulate=chance.choice((8, 16, 32, 64) if staged else (1, 1, 1, 2, 4, 8)),
        **sizes,
        virtual=chance.choice((1, 1, 2)) if staged else 1,
        zero1=sizes["data"] > 1 and chance.random() < 0.5,
        sequence_parallel=sizes["tensor"] > 1 and chance.random() < 0.7,
        remat=chance.choice(ROWS),
        scan=layers > 32 or staged or chance.random() < SCANNED,
        compute="bfloat16" if quantization or chance.random() < 0.9 else "float32",
        quantization=quantization,
        params=chance.choice(("float32",) * 9 + ("bfloat16",)),
        moments=chance.choice(("float32", "float32", "float32", "bfloat16")),
    )


def _is_possible(row: Row) -> bool:
    spec = row.spec()
    if row.tensor > 16 or any(uneven_splits(spec, balances_context=False, pads_vocabulary=True)):
        return False
    return LEAST <= memory.per_device(spec, memory.OWN).total_bytes <= MOST


# --- the table --------------------------------------------------------------------------------------------------------


def read() -> list[Row]:
    """The rows of the table; none where there is none yet."""
    if not TABLE.exists():
        return []
    kinds = {field.name: str(field.type) for field in fields(Row)}
    made: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": "True".__eq__}
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Row(**{key: made[kinds[key]](text) for key, text in line.items()}) for line in csv.DictReader(file)]


def _write(rows: list[Row]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(row) for row in rows)


def draw(number: int, seed: int) -> None:
    """Adds so many rows of a draw with its own seed."""
    rows, chance = read(), random.Random(seed)
    most = len(rows) + number
    while len(rows) < most:
        row = _draw(chance, seed)
        if _is_possible(row) and all(each.spec() != row.spec() for each in rows):
            rows.append(row)
    _write(rows)


def fill() -> None:
    """Compiles what has no figures yet."""
    from seatrial.commands.compiled_step import compile_step  # late: it starts processes

    rows = read()
    order = sorted(enumerate(rows), key=lambda each: (-each[1].draw, not each[1].scan))  # the others take minutes
    for number, row in order:
        if row.total_bytes:
            continue
        try:
            found = compile_step(row.spec(), TARGET)
        except LaunchError as error:
            print(f"{number + 1}/{len(rows)} {row.model}: {error}", flush=True)
            continue
        rows[number] = row = replace(
            row, arguments_bytes=found.arguments_bytes, temporaries_bytes=found.temporaries_bytes,
            total_bytes=found.total_bytes, seconds=round(found.seconds, 1), process_bytes=found.process_bytes,
        )  # fmt: skip
        _write(rows)
        print(f"{number + 1}/{len(rows)} {row.model}: {row.total_bytes / 2**30:.1f} GiB, {row.seconds} s", flush=True)


# The rows by how much is known of them.
KINDS: dict[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "scanned, no pipeline": lambda row: row.scan and row.pipeline == 1,
    "pipelines": lambda row: row.pipeline > 1,
    "layers not scanned": lambda row: not row.scan,
}


def estimate() -> None:
    """Writes the estimates, and prints how near they come to the rows that have figures."""
    rows = [
        replace(row, estimated_bytes=round(memory.per_device(row.spec(), memory.OWN).total_bytes)) for row in read()
    ]
    _write(rows)
    for draw_seed in sorted({row.draw for row in rows}):
        for split in SPLITS:
            for kind in KINDS:
                if off := errors(rows, split, kind, draw_seed):
                    near, low = sum(abs(each) <= 0.05 for each in off), sum(each < -0.1 for each in off)
                    shown = (
                        f"{near} of {len(off)} within 5%; {low} more than 10% too low; {off[0]:+.1%} to {off[-1]:+.1%}"
                    )
                    print(f"draw {draw_seed}, {split}, {kind}: {shown}")


def errors(rows: list[Row], split: str, kind: str, draw_seed: int) -> list[float]:
    """The estimate's relative errors of the rows that were compiled, from the lowest."""
    return sorted(
        memory.per_device(row.spec(), memory.OWN).total_bytes / row.total_bytes - 1
        for row in rows
        if row.total_bytes and KINDS[kind](row) and (row.split, row.draw) == (split, draw_seed)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("draw", "compile", "estimate"))
    parser.add_argument("number", nargs="?", type=int, default=90)
    parser.add_argument("seed", nargs="?", type=int, default=LAST_SEED + 1)
    given = parser.parse_args()
    {"draw": lambda: draw(given.number, given.seed), "compile": fill, "estimate": estimate}[given.action]()


if __name__ == "__main__":
    main()
