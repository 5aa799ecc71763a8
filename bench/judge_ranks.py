"""The time that `seatrial judge` takes over the files of many ranks, and the memory of all its processes.

    python bench/judge_ranks.py [--ranks 2048] [--steps 1000] [--repeats 3]

Files are made in /tmp and removed again; the kinds take turns. One rank in a hundred is a straggler, one has a NaN.

  maxtext      a log of each rank, with absl's prefix: every step with seconds and loss
  torchtitan   a log of each rank: no seconds, a prefix of torchrun's before every line
  megatron     a log of each rank, of which one prints the steps and the others a few lines
  run          the run directory of our own trainer: events-0.jsonl, …
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import record
from mutants import made_logs as made

from seatrial import events
from seatrial.spec import to_dict

GOAL_SECONDS, GOAL_MEMORY = 20.0, 1 << 30  # on two cores
SLOW, PACE = 100, 1.15  # one rank in so many is so much slower
START = 1_790_000_000.0
APART = 0.05  # seconds between the prints of ranks


def _pace(rank: int) -> float:
    return PACE if rank % SLOW == 57 else 1.0


def _losses(steps: int) -> list[float]:
    rng = random.Random(3)
    return [2.2 + 9.0 * math.exp(-step / (steps / 4)) + rng.gauss(0, 0.03) for step in range(steps)]


def _walk(rank: int, steps: int, usual: float, rng: random.Random) -> Iterator[tuple[float, float]]:
    """(seconds of a step by its rank, seconds from the start to its print): all ranks end a step together."""
    everyone, clock = random.Random(5), 0.0
    for step in range(steps):
        shared = usual * everyone.lognormvariate(0, 0.007) * (12 if step == 0 else 1)
        clock += shared
        yield shared * _pace(rank) * rng.lognormvariate(0, 0.002), clock + rng.random() * APART


def _maxtext(rank: int, losses: list[float], rng: random.Random) -> Iterator[str]:
    yield f"I0921 09:10:00.{rank:06d} 1402 max_utils.py:310] Num_devices: 16384, shape (1, 2048, 8, 1)"
    yield f"I0921 09:10:00.{rank:06d} 1402 pyconfig.py:591] Config param steps: {len(losses)}"
    for step, (loss, (seconds, at)) in enumerate(zip(losses, _walk(rank, len(losses), 0.9, rng), strict=True)):
        _, time_of_day = made.clock_text(33_000.0 + at, micro=True).split(" ")
        yield (
            f"I0921 {time_of_day} 1402 metric_logger.py:265] completed step: {step}, seconds: {seconds:.3f}, "
            f"TFLOP/s/device: {390 / seconds:.3f}, Tokens/s/device: {8192 / seconds:.3f}, "
            f"total_weights: 134217728, loss: {loss:.3f}"
        )


def _torchtitan(rank: int, losses: list[float], rng: random.Random) -> Iterator[str]:
    def logged(text: str, at: float = 0.0) -> str:
        return f"[rank{rank}]:[titan] {made.clock_text(33_000.0 + at, comma=True)} - root - INFO - {text}"

    yield logged(
        "Trainer is initialized with local batch size 1, global batch size 16384, "
        f"gradient accumulation steps 1, sequence length 8192, total steps {len(losses)} (warmup 10)"
    )
    yield logged("Training starts at step 1")
    for step, (loss, (seconds, at)) in enumerate(zip(losses, _walk(rank, len(losses), 0.9, rng), strict=True)):
        yield logged(
            f"\x1b[31mstep: {step + 1:2d}  \x1b[32mloss: {loss:8.5f}  \x1b[38;2;180;60;0mgrad_norm: "
            f"{0.8 + rng.random() / 10:7.4f}  \x1b[38;2;54;234;195mmemory: 66.91GiB(84.51%)  "
            f"\x1b[34mtps: {8192 / seconds:,.0f}  \x1b[36mtflops: {390 / seconds:,.2f}  "
            f"\x1b[35mmfu: {39 / seconds:.2f}%\x1b[39m",
            at,
        )
    yield logged("Training completed", 1e5)


def _megatron(rank: int, losses: list[float], rng: random.Random) -> Iterator[str]:
    yield f"> setting tensorboard ... on rank {rank}"
    yield from (made.noise_line(rng) for _ in range(40))
    if rank:
        return
    course = made.good_course(len(losses), rng)
    yield from (line.text for line in made.lines_of(made.FAMILIES["megatron"], course))


def _events(rank: int, losses: list[float], rng: random.Random) -> Iterator[str]:
    spec = made.spec(len(losses))
    begun: dict[str, Any] = {"process": rank, "wall_time": START, "monotonic_time": 1.0}
    facts = {"versions": {"python": "3.11.7", "jax": "0.10.2"}, "backend": "gpu", "mesh": {"fsdp": 8}}
    yield events.dumps(
        events.RunStarted(
            **begun, run="bench", host=f"node{rank}", num_processes=2048, num_devices=16, device_kind="NVIDIA H100",
            planned_steps=len(losses), tokens_per_step=spec.tokens_per_step, num_parameters=8_030_261_248, facts=facts,
        )
    )  # fmt: skip
    at = 0.0
    for step, (loss, (seconds, at)) in enumerate(zip(losses, _walk(rank, len(losses), 12.0, rng), strict=True)):
        yield events.dumps(
            events.Step(
                process=rank, wall_time=START + at, monotonic_time=1.0 + at, step=step, seconds=seconds,
                tokens=spec.tokens_per_step, loss=loss, grad_norm=0.8 + rng.random() / 10, learning_rate=3e-4,
                data_seconds=rng.random() / 1000,
            )
        )  # fmt: skip
    ended = {"process": rank, "wall_time": START + at + 1, "monotonic_time": at + 2}
    yield events.dumps(events.RunEnded(**ended, reason="completed", exit_code=0))


WRITERS: dict[str, tuple[str, Callable[[int, list[float], random.Random], Iterator[str]]]] = {
    "maxtext": ("rank{}.log", _maxtext),
    "torchtitan": ("rank{}.log", _torchtitan),
    "megatron": ("rank{}.log", _megatron),
    "run": ("events-{}.jsonl", _events),
}


def make_files(folder: Path, kind: str, ranks: int, steps: int) -> int:
    """The files of all ranks in a new folder; the number of their bytes."""
    folder.mkdir()
    name, write = WRITERS[kind]
    losses, size = _losses(steps), 0
    for rank in range(ranks):
        own = [math.nan if rank == 11 and step == steps // 2 else loss for step, loss in enumerate(losses)]
        text = "\n".join(write(rank, own, random.Random(rank))) + "\n"
        size += (folder / name.format(rank)).write_text(text, encoding="utf-8")
    if kind == "run":
        spec = to_dict(made.spec(steps))
        (folder / "spec.json").write_text(json.dumps({"v": 1, "spec": spec, "origins": {}, "problems": []}))
        plan = {"v": 1, "engine": "native", "on": "ssh", "spec": spec, "rehearsal": None, "processes": []}
        (folder / "plan.json").write_text(json.dumps({**plan, "notes": [], "files": {}}))
        ended = events.RunEnded(process=-1, wall_time=START + 1e6, monotonic_time=1e6, reason="completed", exit_code=0)
        (folder / "events-launcher.jsonl").write_text(events.dumps(ended) + "\n")
    return size


# --- measuring --------------------------------------------------------------------------------------------------------


def _memory(process: psutil.Process) -> int:
    """Bytes that a process and its children hold, what they share counted once."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def measure(folder: Path, argv: list[str]) -> dict[str, Any]:
    """`seatrial judge` from start to exit: wall and CPU seconds of all processes, and the peak of their memory."""
    load = os.getloadavg()[0]
    wall, peak = time.perf_counter(), 0
    with (folder.parent / "out.json").open("w") as out, (folder.parent / "err.txt").open("w+") as err:
        process = subprocess.Popen(argv, stdout=out, stderr=err)
        seen = psutil.Process(process.pid)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _memory(seen))
            time.sleep(0.5)  # to look costs time of its own
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if process.returncode not in (0, 1, 3):
            sys.exit(f"seatrial judge ended with {process.returncode}:\n{err.read()}")
    return {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,  # its own, and its children's
        "peak_bytes": peak,
        "exit_code": process.returncode,
        "load_average_before": round(load, 2),
    }


def main(kinds: list[str], ranks: int, steps: int, repeats: int) -> None:
    seatrial = str(Path(sys.executable).with_name("seatrial"))
    with tempfile.TemporaryDirectory(prefix="judge_ranks-", dir="/tmp") as name:
        place = Path(name)
        sizes = {kind: make_files(place / kind, kind, ranks, steps) for kind in kinds}
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for _ in range(repeats):
            for kind in kinds:
                runs[kind].append(measure(place / kind, [seatrial, "judge", str(place / kind), "--format", "json"]))
        results = []
        for kind in kinds:
            wall, cpu = (statistics.median(run[key] for run in runs[kind]) for key in ("wall_seconds", "cpu_seconds"))
            peak = max(run["peak_bytes"] for run in runs[kind])
            print(
                f"{kind:11} {ranks} files, {sizes[kind] / 1e6:,.0f} MB: {wall:6.1f} s of wall time "
                f"(goal {GOAL_SECONDS:.0f}), {cpu:6.1f} s of CPU, peak {peak / (1 << 20):,.0f} MiB (goal 1,024)"
            )
            results.append(
                {
                    "kind": kind, "bytes": sizes[kind], "wall_seconds": wall, "cpu_seconds": cpu, "peak_bytes": peak,
                    "goal_wall_seconds": GOAL_SECONDS, "goal_bytes": GOAL_MEMORY, "runs": runs[kind],
                }
            )  # fmt: skip
    facts = {"ranks": ranks, "steps": steps, "repeats": repeats, "results": results}
    print(f"written: {record.write('judge_ranks', facts).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=1000, help="of each rank")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each, of which the median counts")
    parser.add_argument("--only", choices=list(WRITERS), action="append", help="this kind; may be given several times")
    given = parser.parse_args()
    main(given.only or list(WRITERS), given.ranks, given.steps, given.repeats)
