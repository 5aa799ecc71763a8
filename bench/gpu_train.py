"""Training on one GPU: Seatrial's trainer in bfloat16 and fp8, beside torch.compile and MaxText, in eight minutes.

    python bench/gpu_train.py [--maxtext DIR] [--budget 470] [--rounds 2] [--keep DIR] [--cpu]

Runs from a checkout and fetches nothing: needs jax with CUDA, numpy, psutil, pyarrow, PyYAML and platformdirs; torch
and transformers for the rows of PyTorch, and for those of MaxText a folder with its wheels. First the peak of matrix
products, then the steps, last whether the losses on the GPU are those of the CPU in each format (exit status 1 where
they are not). Shapes: Llama 3.1 8B, cut to as many layers as fit if nothing is recomputed (16 on an H200); all of it;
Llama 3.2 1B. Recomputation is what the run itself would choose.

Each start is a process of its own with a time limit; one that fails is a row with its reason. In a round every row runs
once, the most important first; medians are over the rounds. What the budget has no time for is left out, and said.

MaxText recomputes as little as leaves it room, which was found by compiling its step for an H200 (`Shape.maxtext`);
what each program printed, its compiled step and its kernels by name lie in the folder that `--keep` names.

Beside what is measured stands what was expected: memory by the compiled step and by the estimate, time by the model of
time, and its parts beside the profiler's kinds of kernels. Shares are of the peak measured in the same call.

`--cpu` takes small shapes and a CPU in the place of the GPU, and PyTorch without its compiler: it proves this script
and nothing else, and writes its result where `--out` says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import record
import yaml

from seatrial.estimate import flops, hardware, memory, time_model, time_profile
from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, Precision, RunSpec, Topology, to_dict
from seatrial.spec.presets import MODELS
from seatrial.xla_flags import SHARE_VARIABLES

Row = dict[str, Any]
PROGRAMS = Path(__file__).parent / "programs"
STEPS, WARM_UP = 5, 3
LEAST_SECONDS = 20.0  # of what is left of the budget, for another start
COMPARING = 60.0  # seconds that are kept for comparing the losses of all formats
CUT, WHOLE, SMALL = "8B, cut", "8B", "1B"
BF16, FP8, TORCH, MAXTEXT = "seatrial bf16", "seatrial fp8", "torch.compile bf16", "MaxText bf16"
PRECISION = {BF16: Precision(), FP8: Precision(quantization="te_fp8_currentscaling")}
# By importance: (shape, trainer, seconds that a start may take).
ROWS = (
    (CUT, BF16, 100), (CUT, FP8, 110), (CUT, TORCH, 120), (CUT, MAXTEXT, 180), (WHOLE, BF16, 100), (SMALL, BF16, 80),
    (SMALL, TORCH, 80), (SMALL, FP8, 80), (WHOLE, FP8, 100), (SMALL, MAXTEXT, 80),
)  # fmt: skip
# (faster, slower, goal): ratios of tokens per second on the same shape.
GOALS = ((FP8, BF16, 1.30), (BF16, TORCH, 1.10), (BF16, MAXTEXT, 1.15))
# MaxText's settings that recompute least of those whose step fits an H200; tokens per second are compared. With the two
# sequences of the cut it needs 150 GiB if it recomputes the FFN alone, 254 if it keeps what we keep.
MAXTEXT_SETTINGS = {
    "attention": "cudnn_flash_jax", "remat_policy": "save_dot_with_context_except_mlp", "num_vocab_tiling": 8,
}  # fmt: skip
MAXTEXT_STEPS = 12
TINY = ModelSpec(
    name="tiny", vocab_size=512, hidden_dim=128, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=64, ffn_dim=256
)  # fmt: skip


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model with its batch: `sequences` of `length` tokens in one micro-batch; `maxtext`: settings of MaxText's."""

    model: ModelSpec
    sequences: int
    length: int
    scan: bool = False
    moments: Any = "float32"
    maxtext: Row = field(default_factory=dict)

    def spec(self, trainer: str, device: str | None) -> RunSpec:
        """The run; what recomputation it does is decided here, by the estimate of its memory."""
        spec = RunSpec(
            name="bench", dialect="native", model=self.model, steps=WARM_UP + STEPS, data=Data(kind="synthetic"),
            batch=Batch(
                sequence_length=self.length, global_batch_size=self.sequences, micro_batch_size=self.sequences
            ),
            precision=replace(PRECISION.get(trainer, Precision()), optimizer_dtype=self.moments),
            optimizer=Optimizer(learning_rate=3e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0),
            execution=Execution(remat="auto" if device else "none", scan_layers=self.scan),
            topology=Topology(device=device),
        )  # fmt: skip
        return memory.decided(spec, memory.OWN)


def shapes_for(device: str | None) -> dict[str, Shape]:
    """The shapes of a device; small ones where it is not known. The cut is what fits if nothing is recomputed."""
    if device is None:
        each = Shape(model=TINY, sequences=2, length=128)
        return {CUT: each, WHOLE: replace(each, scan=True), SMALL: replace(each, model=replace(TINY, head_dim=32))}
    cuts = [
        Shape(
            model=replace(MODELS["llama3.1-8b"], num_layers=layers),
            sequences=2,
            length=8192,
            maxtext={**MAXTEXT_SETTINGS, "per_device_batch_size": 1},
        )
        for layers in (16, 12, 8, 4)
    ]
    return {
        CUT: next((cut for cut in cuts if cut.spec(BF16, device).execution.remat == "none"), cuts[-1]),
        WHOLE: Shape(model=MODELS["llama3.1-8b"], sequences=2, length=8192, scan=True, moments="bfloat16"),
        SMALL: Shape(model=MODELS["llama3.2-1b"], sequences=8, length=4096, maxtext=MAXTEXT_SETTINGS),
    }


def does_fit(spec: RunSpec) -> bool:
    there = memory.available_bytes(spec, memory.OWN)
    return there is None or memory.per_device(spec, memory.OWN).total_bytes <= there


# --- starts -----------------------------------------------------------------------------------------------------------


class Bench:
    """The starts of one call, within its budget of seconds."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.cpu, self.maxtext, self.keep, self.folder = given.cpu, given.maxtext, given.keep, folder
        self.end = time.monotonic() + given.budget
        # A second start of the same program finds what the first has compiled.
        caches = {name: str(folder / name) for name in ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        self.environment = {**caches, **os.environ, "PYTHONUNBUFFERED": "1"}
        self.starts, self.kept = 0, 0.0  # programs so far; seconds for what comes after the steps

    @property
    def left(self) -> float:
        return self.end - self.kept - time.monotonic()

    def lines(
        self, argv: list[str], limit: float, environment: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> tuple[str, str]:
        """The output of a program, and why it ended badly: its last line, or that its time was over; "" if it did not.

        `merged`: standard error, too.
        """
        limit, why = min(limit, self.left), ""
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE, text=True,
            errors="replace", start_new_session=True, env=environment or self.environment,
        )  # fmt: skip
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            (out, errors), why = process.communicate(), f"stopped after {limit:.0f} s"
        if self.keep:
            self.starts += 1
            for name, text in (("out", out), ("err", errors or "")):
                (self.keep / f"{self.starts:02}-{Path(argv[1]).stem[:20]}.{name}").write_text(text, encoding="utf-8")
        if process.returncode and not why:
            said = [line.strip() for line in (errors or out).splitlines() if line.strip()]
            why = f"{said[-1] if said else 'no word'} ({process.returncode})"
        return out, why

    def worker(self, *arguments: str, limit: float) -> tuple[list[Row], str]:
        """The rows that `gpu_worker.py` prints, and why it ended badly."""
        options = ["--cpu"] if self.cpu else []
        out, why = self.lines([sys.executable, str(PROGRAMS / "gpu_worker.py"), *options, *arguments], limit)
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")], why

    def start(self, trainer: str, shape: Shape, spec: RunSpec, limit: float, profile: bool) -> Row:
        """One start of a trainer: the median of its steps, or "error"."""
        if trainer in PRECISION:
            file = self.folder / "spec.json"
            file.write_text(json.dumps(to_dict(spec)), encoding="utf-8")
            options = ["--profile"] if profile else []
            if profile and self.keep:
                options += [
                    "--keep",
                    str(self.keep / f"{spec.model.name}-{spec.model.num_layers}-{trainer[-4:].strip()}"),
                ]
            rows, why = self.worker("step", str(file), "--steps", str(STEPS), *options, limit=limit)
            return rows[0] if rows else {"error": why or "it printed nothing"}
        if trainer == TORCH:
            return self.torch(shape, limit)
        return self.of_maxtext(shape, spec, limit)

    def torch(self, shape: Shape, limit: float) -> Row:
        given = json.dumps(
            dataclasses.asdict(shape.model) | {"batch": shape.sequences, "sequence_length": shape.length}
        )
        argv = [sys.executable, str(PROGRAMS / "transformers_train.py"), given, "--dtype", "bfloat16"]
        argv += ["--steps", str(WARM_UP + STEPS), *(() if self.cpu else ("--compile", "--device", "cuda"))]
        out, why = self.lines(argv, limit)
        steps = [json.loads(line) for line in out.splitlines() if line.startswith("{")][WARM_UP:]
        if not steps:
            return {"error": why or "it came to no step behind its warm-up"}
        seconds = [step["seconds"] for step in steps]
        return {
            "seconds": seconds, "median_seconds": statistics.median(seconds), "sequences": steps[-1]["batch"],
            "losses": [step["loss"] for step in steps], "peak_bytes": steps[-1].get("peak_bytes"),
        }  # fmt: skip

    def of_maxtext(self, shape: Shape, spec: RunSpec, limit: float) -> Row:
        """MaxText, from the wheels in the given folder, by the command that `--engine maxtext` makes of the spec."""
        from seatrial.engines import Ground, Placement, maxtext

        site = self.folder / "maxtext"
        if not site.is_dir():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
            wheels = sorted(map(str, Path(self.maxtext).glob("*.whl")))
            if not wheels:
                return {"error": f"no wheels in {self.maxtext}"}
            _, why = self.lines([*install, str(site), *wheels], limit)
            if why:
                return {"error": f"installing the wheels: {why}"}
        # Its llama3.1 frequencies have fixed numbers; they cost no time.
        spec = replace(spec, model=replace(spec.model, rope_scaling=None))
        placement, run = Placement(cpu_devices=1 if self.cpu else None), self.folder / "run"
        ground = Ground(hosts=["here"], placements=[placement], run_dir=run, python=sys.executable)
        [command] = maxtext.commands(spec, ground).each
        for name, content in command.files.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            settings = {**yaml.safe_load(content), **shape.maxtext, "steps": MAXTEXT_STEPS}
            (run / name).write_text(yaml.safe_dump(settings), encoding="utf-8")
        variables = {name: str(value) for name, value in command.environment.items()}
        path = os.pathsep.join(filter(None, (str(site), self.environment.get("PYTHONPATH"))))
        environment = {**self.environment, SHARE_VARIABLES[-1]: "0.94", **variables, "PYTHONPATH": path}
        log, why = self.lines(list(command.argv), limit, environment, merged=True)
        # Its seconds are those between two steps' ends, but for the first ones, which it only hands out.
        seconds = [float(found) for found in re.findall(r"completed step: \d+, seconds: ([\d.]+)", log)]
        seconds = seconds[WARM_UP:]
        if not seconds:
            return {"error": why or "its log has no step behind the warm-up"}
        sequences = int(shape.maxtext.get("per_device_batch_size", shape.sequences))
        return {
            "seconds": seconds, "median_seconds": statistics.median(seconds), "sequences": sequences,
            "losses": [float(found) for found in re.findall(r", loss: ([\d.]+)", log)], "options": shape.maxtext,
        }  # fmt: skip


# --- what comes of them -----------------------------------------------------------------------------------------------


def expected(spec: RunSpec, device: str | None) -> Row:
    """Memory by the estimate, and the parts of a step by the model of time, of a known device."""
    row: Row = {"estimated_bytes": memory.per_device(spec, memory.OWN).total_bytes, "remat": spec.execution.remat}
    model = time_model.predict(spec, memory.OWN, time_profile.published(hardware.find(device)))
    if model is not None:
        row |= {"predicted_seconds": model.step_seconds, "predicted_by_kind": dict(model.seconds)}
    return row


def summary(shape: Shape, starts: list[Row], peaks: Mapping[str, float]) -> Row:
    """The medians of a row's starts; its last error where none came to an end."""
    good = [start for start in starts if "error" not in start]
    if not good:
        return {"error": starts[-1]["error"]} if starts else {}
    seconds = statistics.median(start["median_seconds"] for start in good)
    sequences = good[-1].get("sequences", shape.sequences)
    tokens = sequences * shape.length
    speed = tokens * flops.flops_per_token(shape.model, shape.length) / seconds
    return {
        "median_seconds": seconds, "sequences": sequences, "tokens_per_second": tokens / seconds,
        "causal_flops_per_second": speed, "share_of_bf16_peak": speed / peaks["bfloat16"] if peaks else None,
        "peak_bytes": max((start.get("peak_bytes") or 0 for start in good), default=0) or None,
    }  # fmt: skip


def ratios(rows: list[Row]) -> Iterator[Row]:
    """Tokens per second of two trainers on a shape."""
    found = {(row["shape"], row["trainer"]): row["tokens_per_second"] for row in rows if "tokens_per_second" in row}
    for shape in dict.fromkeys(row["shape"] for row in rows):
        for faster, slower, goal in GOALS:
            if (shape, faster) in found and (shape, slower) in found:
                ratio = found[shape, faster] / found[shape, slower]
                yield {"shape": shape, "faster": faster, "slower": slower, "ratio": ratio, "goal": goal}


def shown(row: Row) -> str:
    name = f"{row['trainer']}, {row['shape']}"
    if "median_seconds" not in row:
        return f"{'-':>9}  {name}: {row.get('error') or row.get('left_out')}"
    compiled, measured = row.get("compiled_bytes"), row.get("peak_bytes")
    held = f"{measured / 2**30:.1f} GiB" if measured else ""
    if measured and compiled:
        held += (
            f" ({measured / compiled - 1:+.1%} of compiled, {measured / row['estimated_bytes'] - 1:+.1%} of estimated)"
        )
    predicted = row.get("predicted_seconds")
    timed = f"{row['median_seconds'] / predicted - 1:+.1%} of predicted" if predicted else ""
    share = f"{row['share_of_bf16_peak']:.0%} of the peak" if row["share_of_bf16_peak"] else ""
    facts = "  ".join(filter(None, (share, timed, held)))
    return (
        f"{row['median_seconds'] * 1e3:7.1f} ms  {row['tokens_per_second']:9,.0f} tokens/s  "
        f"{row['causal_flops_per_second'] / 1e12:7.1f} TFLOP/s causal  {name}  {facts}"
    )


def kinds(row: Row) -> Iterator[str]:
    """Milliseconds of each kind of kernel, by the profiler and by the model of time."""
    measured, predicted = row.get("by_kind") or {}, dict(row.get("predicted_by_kind") or {})
    if predicted:
        predicted["memory-bound"] = predicted.get("memory-bound", 0.0) + predicted.pop("optimizer", 0.0)
    for kind in dict.fromkeys((*measured, *predicted)):
        each = (f"{found[kind] * 1e3:9.1f}" if kind in found else f"{'-':>9}" for found in (measured, predicted))
        yield f"  {'  '.join(each)} ms  {kind}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="prove that this script works, without a GPU")
    parser.add_argument("--maxtext", type=Path, help="a folder with MaxText's wheels")
    parser.add_argument("--budget", type=float, default=470.0, help="seconds for everything")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", default="", help="only rows whose trainer or shape has this in its name")
    parser.add_argument("--formats", default="", help="only losses of formats that have this in their names")
    parser.add_argument("--keep", type=Path, help="a folder for what the programs print, their compiled steps, kernels")
    parser.add_argument("--out", type=Path, help="the result's file; default: bench/results/gpu_train-DEVICE.json")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gpu-train-") as folder:
        return measure(given, Bench(given, Path(folder)))


def command(given: argparse.Namespace) -> str:
    """The command without the names of folders."""
    said = {"--maxtext": given.maxtext and "DIR", "--budget": f"{given.budget:g}", "--rounds": str(given.rounds),
            "--rows": given.rows, "--formats": given.formats}  # fmt: skip
    options = [f"{name} {shlex.quote(value)}" for name, value in said.items() if value]
    return " ".join(("python bench/gpu_train.py", *options))


def measure(given: argparse.Namespace, bench: Bench) -> int:
    found, why = bench.worker("peak", limit=120)
    if not found or (found[0]["backend"] == "cpu") != given.cpu:
        print(f"there is no GPU here; --cpu proves that the script works. {why}", file=sys.stderr)
        return 2
    there = found[0]
    known = hardware.find(there["kind"]) if not given.cpu else None
    device, peaks = known.name if known else None, there["flops_per_second"]
    print(f"{there['kind']} ({there['backend']}), jax {there['jax']}: " + ", ".join(
        f"{name} {speed / 1e12:,.2f} TFLOP/s" for name, speed in peaks.items()), flush=True)  # fmt: skip
    if given.cpu:
        print("small shapes on a CPU, PyTorch without its compiler: the script runs, and no figure means anything")
    bench.kept = COMPARING if not given.formats else COMPARING / 3
    rows, shapes = steps_of(given, bench, device), shapes_for(device)
    bench.kept = 0.0
    for row in rows:
        row |= summary(shapes[row["shape"]], row["starts"], peaks)
        print(shown(row), *kinds(row), sep="\n", flush=True)
    compared, why = bench.worker("compare", "--formats", given.formats, limit=bench.left)
    for each in compared:
        word = "same" if each["same"] else "DIFFERENT"
        print(f"{word:9}  {each['format']:11}  losses {each['largest_difference']:.1e} apart, of at most "
              f"{each['tolerance']:.0e}", flush=True)  # fmt: skip
    if why:
        print(f"losses could not be compared: {why}", flush=True)
    between = list(ratios(rows))
    for each in between:
        print(f"{each['ratio']:5.2f} × (goal {each['goal']:.2f})  {each['faster']} against {each['slower']}, "
              f"{each['shape']}")  # fmt: skip
    result = {"command": command(given), "device": there, "compared": compared, "rows": rows,
              "ratios": between, "not_compared": why or None}  # fmt: skip
    name = f"gpu_train-{re.sub(r'[^a-z0-9]+', '-', there['kind'].lower()).strip('-')}"
    path = given.out or (None if given.cpu else record.RESULTS / f"{name}.json")
    if path is not None:
        content = {"machine": record.machine(), "versions": record.versions(), **result}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        print(f"written: {path.name}")
    return 0 if compared and not why and all(each["same"] for each in compared) else 1


def steps_of(given: argparse.Namespace, bench: Bench, device: str | None) -> list[Row]:
    """The rows with their starts of all rounds; those that do not fit, or that time was too short for, say so."""
    shapes, rows = shapes_for(device), []
    for name, trainer, limit in ROWS:
        if given.rows and not re.search(given.rows, f"{trainer}, {name}"):
            continue
        spec = shapes[name].spec(trainer, device)
        row = {"shape": name, "trainer": trainer, "model": spec.model.name, "layers": spec.model.num_layers,
               "length": shapes[name].length, "limit_seconds": limit, "starts": []}  # fmt: skip
        rows.append(row)
        if trainer == MAXTEXT and given.maxtext is None:
            row["left_out"] = "no folder with its wheels was given (--maxtext)"
        elif trainer in PRECISION:
            row |= expected(spec, device)
            if not does_fit(spec):
                row["left_out"] = f"it needs {row['estimated_bytes'] / 2**30:.0f} GiB by the estimate"
    for number in range(given.rounds):
        for row in rows:
            if "left_out" in row or (number and "error" in row["starts"][-1]):
                continue  # what has failed once is not tried again
            if bench.left < LEAST_SECONDS:
                if not number:
                    row["left_out"] = f"the budget of {given.budget:.0f} s was spent"
                continue
            shape = shapes[row["shape"]]
            spec = shape.spec(row["trainer"], device)
            start = bench.start(row["trainer"], shape, spec, row["limit_seconds"], profile=number == 0)
            row["starts"].append(start)
            row |= {key: start[key] for key in ("compiled_bytes", "by_kind") if start.get(key)}
            took = f"{start['median_seconds'] * 1e3:.1f} ms" if "median_seconds" in start else start["error"]
            print(f"round {number + 1} of {given.rounds}: {row['trainer']}, {row['shape']}: {took}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
