"""Logs and metrics of one made-up training, and the folders in which launchers leave such files."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

STEPS = 40
START = datetime(2026, 3, 2, 10, 0, 0, tzinfo=UTC)


def loss(step: int, seed: int = 1) -> float:
    return 2.0 + 9.0 * 0.93**step + random.Random(f"{seed} {step}").gauss(0, 0.02)


def titan(
    *,
    seed: int = 1,
    begin: float = 0.0,
    pace: float = 2.0,
    devices: int = 0,
    first: int = 1,
    last: int = STEPS,
    total: int = STEPS,
    done: bool = True,
    jitter: int = 0,
) -> list[str]:
    """torchtitan's log with its clock: it begins so many seconds after START, and a step takes `pace` seconds."""
    noise = random.Random(f"{seed} {begin} {jitter}")
    now = START + timedelta(seconds=begin)

    def line(text: str) -> str:
        return f"[titan] {now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} - root - INFO - {text}"

    lines = [line("CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory")]
    if devices:
        lines.append(
            line(f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={devices}, cp=1, tp=1")
        )
    sizes = "local batch size 2, global batch size 16, gradient accumulation steps 1, sequence length 8192"
    lines.append(line(f"Trainer is initialized with {sizes}, total steps {total} (warmup 4)"))
    lines.append(line(f"Training starts at step {first}"))
    for step in range(first, last + 1):
        now += timedelta(seconds=pace * (1 + noise.gauss(0, 0.004)) * (5 if step == first else 1))
        value = f"loss: {loss(step, seed):8.5f}  grad_norm:  1.4375"
        lines.append(line(f"step: {step:2}  {value}  memory: 61.20GiB(77.29%)  tps: {16384 / pace:,.0f}  mfu: 41.50%"))
    if done:
        lines.append(line("Training completed"))
    return lines


def metrics(*, seed: int = 1, first: int = 1, last: int = STEPS, every: int = 1) -> list[str]:
    """The same losses as rows of JSON."""
    return [
        json.dumps({"step": step, "loss": round(loss(step, seed), 5), "learning_rate": 1e-4})
        for step in range(first, last + 1, every)
    ]


def table(*, seed: int = 1, last: int = STEPS) -> list[str]:
    """The same as a table."""
    return ["step,train/loss,lr", *(f"{step},{loss(step, seed):.5f},0.0001" for step in range(1, last + 1))]


def state(*, seed: int = 1, last: int = STEPS, total: int = STEPS) -> list[str]:
    """Hugging Face's trainer_state.json after so many steps."""
    history = [{"step": n, "loss": round(loss(n, seed), 4), "epoch": n / 10} for n in range(1, last + 1)]
    if last == total:
        history.append({"step": last, "train_runtime": 81.5, "train_loss": 4.1, "epoch": last / 10})
    return json.dumps({"global_step": last, "max_steps": total, "log_history": history}, indent=2).split("\n")


def unknown(*, seed: int = 9, last: int = STEPS) -> list[str]:
    """A trainer that nobody knows."""
    return [f"== minitrain == upd {n:4d} of {last} ~ my_loss {loss(n, seed):.4f} in 401 ms" for n in range(1, last + 1)]


def lay_out(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Writes the files; those whose names end in .gz are compressed."""
    for name, lines in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
