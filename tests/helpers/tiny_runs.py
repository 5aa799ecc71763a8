"""Tiny runs of the real trainer, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.compiling import quick_flags
from tests.helpers.coverage import measured
from tests.helpers.processes import wait_until

SEATRIAL = [sys.executable, "-c", "from seatrial.cli import main; main()"]
CVS = Path(__file__).parents[2] / "configs" / "cvs"
FOREVER = 1_000_000
CANARY = "canary-6f0e"
TINY = {
    "name": "tiny",
    "model": {
        "name": "tiny", "vocab_size": 64, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
        "head_dim": 8, "ffn_dim": 32,
    },
    "batch": {"sequence_length": 16, "global_batch_size": 2, "micro_batch_size": 1},
    "steps": FOREVER,
    "topology": {"num_nodes": 1, "devices_per_node": 2},
    "parallelism": {"within_node": {"data": 2}},
    "optimizer": {"learning_rate": 0.01, "decay_steps": FOREVER},  # one program, however many steps
    "execution": {"xla_flags": quick_flags()},
}  # fmt: skip
TWO_PROCESSES = {
    "topology": {"num_nodes": 2, "devices_per_node": 1},
    "parallelism": {"across_nodes": {"data": 2}},
}


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.json"
    path.write_text(json.dumps(TINY | changes))
    return path


def start(config: Path, run_dir: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """`seatrial run` in the background, in a shell with these variables."""
    return subprocess.Popen(
        [*SEATRIAL, "run", str(config), "--out", str(run_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=config.parent,
        env=measured("train") | variables,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file that may not be there yet: {} then."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def stepping(run_dir: Path, num_processes: int, launcher: subprocess.Popen[str] | None = None) -> dict[int, int]:
    """Waits until every process has done a few steps; pid by rank."""

    def pids() -> dict[int, int]:
        for rank in range(num_processes):
            path = run_dir / f"events-{rank}.jsonl"
            if not path.exists() or path.read_text().count('"kind": "step"') < 3:
                assert launcher is None or launcher.poll() is None, end_of(launcher)
                return {}
        return {p["rank"]: p["pid"] for p in read_json(run_dir / "status.json").get("processes", [])}

    return dict(wait_until(pids, 120))


def end_of(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    """(exit code, everything that it printed)."""
    text, _ = process.communicate(timeout=seconds)
    return process.returncode, text
