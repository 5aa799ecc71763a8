"""Training on the CPU: Seatrial beside the real MaxText, in the same Python with the same jax, from the same settings.

    make .venv/maxtext/made.txt                      (once: a Python with MaxText 0.2.5; 600 MB, as root on Debian 12)
    python bench/cpu_maxtext.py [--rounds 2] [--cases narrow] [--python .venv/maxtext/bin/python3]

Each case is one MaxText configuration. MaxText trains it by its own command, once as its defaults are (every layer
recomputed, layers scanned) and once with the fastest of its settings; Seatrial by `seatrial run` on the same file, once
as it is and once with nothing recomputed and no scan. In a round every trainer runs once, so that whatever else the
machine does falls on all alike. Two things are measured of each start, from outside and in the same way:

* the seconds from the start of the command to the loss of the first step in its log (ours: in its record), nothing
  being compiled beforehand;
* a step: the median time between two losses, behind a warm-up. What MaxText logs as a step's seconds is not used: its
  first ones are those of handing work out.

Ratios are taken within a round, and their median over the rounds is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import record
import yaml

from seatrial import events

ROOT = Path(__file__).parents[1]
STEPS, WARM_UP = 10, 4
LIMIT = 240.0  # seconds of a start
Row = dict[str, Any]

COMMON = {
    "run_name": "bench", "hardware": "cpu", "skip_jax_distributed_system": True, "dataset_type": "synthetic",
    "enable_checkpointing": False, "steps": STEPS, "decoder_block": "llama2", "weight_dtype": "float32",
    "attention": "dot_product", "enable_goodput_recording": False, "jax_cache_dir": "", "log_config": False,
}  # fmt: skip
BASE = {
    "base_num_decoder_layers": 4, "base_emb_dim": 512, "base_num_query_heads": 8, "base_num_kv_heads": 8,
    "head_dim": 64, "base_mlp_dim": 1408, "vocab_size": 32_000, "max_target_length": 512, "per_device_batch_size": 4,
}  # fmt: skip
CASES: dict[str, Row] = {
    "4 layers of 512, 4 × 512 tokens": BASE,
    "the same, fsdp over 4 virtual devices": {**BASE, "per_device_batch_size": 1, "ici_fsdp_parallelism": 4},
    "12 narrow layers of 256, 4 × 512 tokens": {
        **BASE, "base_num_decoder_layers": 12, "base_emb_dim": 256, "base_num_query_heads": 4, "base_num_kv_heads": 4,
        "base_mlp_dim": 704, "vocab_size": 8_000,
    },
    "grouped queries, 1 × 2048 tokens": {
        **BASE, "base_num_kv_heads": 2, "max_target_length": 2048, "per_device_batch_size": 1,
    },
}  # fmt: skip
DTYPES = ("bfloat16", "float32")
MAXTEXT, MAXTEXT_UNROLLED = "MaxText, defaults", "MaxText, minimal_with_context, no scan"
OURS, OURS_UNROLLED = "Seatrial, same file", "Seatrial, nothing recomputed, no scan"
SETTINGS: dict[str, Row] = {
    OURS_UNROLLED: {"remat_policy": "none", "scan_layers": False},
    MAXTEXT: {},
    OURS: {},
    MAXTEXT_UNROLLED: {"remat_policy": "minimal_with_context", "scan_layers": False},
}
# (slower, ours, what is compared, goal)
GOALS = (
    (MAXTEXT, OURS_UNROLLED, "step", None),
    (MAXTEXT_UNROLLED, OURS_UNROLLED, "step", None),
    (MAXTEXT, OURS, "step", None),
    (MAXTEXT, OURS, "first loss", 2.0),
)


def losses(process: subprocess.Popen[str], began: float) -> Iterator[tuple[float, float]]:
    """(seconds since the start, loss) of each step that MaxText prints, as it prints it."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"completed step: \d+,.* loss: ([\d.]+|nan)", line):
            yield time.monotonic() - began, float(found[1])


def maxtext(python: str, settings: Row, folder: Path) -> Row:
    devices = settings.get("ici_fsdp_parallelism", 1)
    variables = {
        "DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in settings.items()]
    began = time.monotonic()
    process = subprocess.Popen(
        [python, "-m", "maxtext.trainers.pre_train.train", *words, f"base_output_directory={folder}"], cwd=folder,
        env={**_environment(), **variables}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    found = list(losses(process, began))
    process.wait(LIMIT)
    return {"at": [at for at, _ in found], "losses": [loss for _, loss in found]}


def seatrial(python: str, settings: Row, folder: Path) -> Row:
    (folder / "bench.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    began = time.monotonic()
    subprocess.run(
        [python, "-m", "seatrial", "run", "bench.yml", "--out", "run"], cwd=folder, timeout=LIMIT, capture_output=True,
        env={**_environment(), "PYTHONPATH": str(ROOT / "src"), "XDG_DATA_HOME": str(folder)}, check=False,
    )  # fmt: skip
    steps = [event for event in events.read(folder / "run/events-0.jsonl") if isinstance(event, events.Step)]
    return {"at": [step.monotonic_time - began for step in steps], "losses": [step.loss or 0.0 for step in steps]}


def _environment() -> Mapping[str, str]:
    """Without what would keep compiled programs, or move XLA's defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "SEATRIAL_"))}


def start(python: str, trainer: str, settings: Row) -> Row:
    """One start: "first loss" and "step" in seconds, or "error"."""
    with tempfile.TemporaryDirectory(prefix="cpu-maxtext-") as folder:
        train = seatrial if trainer in (OURS, OURS_UNROLLED) else maxtext
        found = train(python, {**settings, **SETTINGS[trainer]}, Path(folder))
    if len(found["at"]) < STEPS:
        return {"error": f"{len(found['at'])} of {STEPS} steps", **found}
    gaps = [after - before for before, after in zip(found["at"][WARM_UP:], found["at"][WARM_UP + 1 :], strict=False)]
    return {"first loss": found["at"][0], "step": statistics.median(gaps), **found}


def ratios(starts: Mapping[str, list[Row]]) -> Iterator[Row]:
    """The ratios of another trainer's times to ours, within each round."""
    for slower, ours, measured, goal in GOALS:
        pairs = zip(starts[slower], starts[ours], strict=True)
        each = [a[measured] / b[measured] for a, b in pairs if measured in a and measured in b]
        if each:
            ratio = statistics.median(each)
            yield {"slower": slower, "ours": ours, "of": measured, "ratio": ratio, "goal": goal, "rounds": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=str(ROOT / ".venv/maxtext/bin/python3"), help="one that has MaxText")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", default="", help="only cases that have this in their names")
    given = parser.parse_args()
    if not Path(given.python).exists():
        sys.exit(f"{given.python} is not there; make it with `make .venv/maxtext/made.txt`")
    asks = "import json, jax, sys; print(json.dumps({'python': sys.version.split()[0], 'jax': jax.__version__}))"
    used = json.loads(subprocess.run([given.python, "-c", asks], check=True, capture_output=True, text=True).stdout)
    todo = [(case, dtype) for case in CASES if given.cases in case for dtype in DTYPES]
    rows: list[Row] = []
    path = record.RESULTS
    for case, dtype in todo:
        settings = {**COMMON, **CASES[case], "dtype": dtype}
        starts: dict[str, list[Row]] = {trainer: [] for trainer in SETTINGS}
        for _ in range(given.rounds):
            for trainer, done in starts.items():
                done.append(one := start(given.python, trainer, settings))
                said = one.get("error") or f"first loss {one['first loss']:5.1f} s  step {one['step']:6.3f} s"
                print(f"{said}  {trainer}, {dtype}, {case}", flush=True)
        found = list(ratios(starts))
        for each in found:
            goal = f" (goal {each['goal']})" if each["goal"] else ""
            print(f"  {each['ratio']:5.2f} ×{goal}  {each['of']}: {each['slower']} against {each['ours']}", flush=True)
        rows.append({"case": case, "dtype": dtype, "settings": settings, "starts": starts, "ratios": found})
        path = record.write(f"cpu_maxtext-{record.cpu_name()}", {"used": used, "rows": rows})
    print("written:", path.name)


if __name__ == "__main__":
    main()
