"""The speed at which a long log is read and judged, and the memory that this takes.

    python bench/judge_throughput.py [GIGABYTES] [--metric-share 0.3] [--profile]

Logs are made in /tmp and removed again. Every measurement is a fresh process on one core, and the measurements
take turns. CPU time is what counts on a machine that does other things too; wall time is printed beside it.

  metric lines     nothing but step lines, through `logs.parse_file`: Megatron's, MaxText's of today, and those of 2025
  the mix          step lines among noise, with the whole table of faults, through `logs.parse_file`
  seatrial judge   a long run from the command line: one line in a hundred is a step's, of which all are kept
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
from mutants import made_logs as made

MEGABYTE = 1 << 20
LONG_RUN_SHARE = 0.01
BATCH = 2000  # lines are written, and their noise is drawn, so many at a time

# What the design asks for; reported beside the measurement, asserted nowhere.
GOALS = {"megatron": 200_000, "maxtext": 200_000, "maxtext-print": 200_000, "mix": 100_000}  # lines/s
GOAL_MEMORY = 300 * MEGABYTE

_STEP = re.compile(r"(completed step: |iteration +)\d+|consumed samples: +\d+")


def _template(family: str) -> list[str]:
    """Step lines of a run, of which a log without end is made."""
    course = made.good_course(2000, random.Random(7))
    return [line.text for line in made.lines_of(made.FAMILIES[family], course) if line.kind == "step"]


def _renumbered(text: str, step: int, total: int) -> str:
    if "completed step" in text:
        return re.sub(r"completed step: \d+", f"completed step: {step}", text, count=1)
    text = re.sub(r"iteration +\d+/ *\d+", f"iteration {step:8d}/{total:8d}", text, count=1)
    return re.sub(r"consumed samples: +\d+", f"consumed samples: {256 * step:12d}", text, count=1)


def _lines(families: tuple[str, ...], share: float, rng: random.Random, total: int) -> Iterator[str]:
    """Step lines of one family after another, `share` of all lines, and noise in between."""
    step = 0
    templates = {family: _template(family) for family in families}
    noise = [made.noise_line(rng) for _ in range(20 * BATCH)]
    while True:
        for template in templates.values():
            for text in template:
                step += 1
                yield _renumbered(text, step, total)
                if share < 1:
                    for _ in range(round(rng.expovariate(share / (1 - share)))):
                        yield rng.choice(noise)


def make_log(path: Path, num_bytes: int, families: tuple[str, ...], share: float) -> int:
    """Writes a log of about so many bytes; the number of its lines."""
    written = lines = 0
    rng = random.Random(11)
    with path.open("w", encoding="utf-8") as log:
        batch: list[str] = []
        for line in _lines(families, share, rng, total=9_999_999):
            batch.append(line)
            if len(batch) == BATCH:
                written += log.write("\n".join(batch) + "\n")
                lines += BATCH
                batch = []
                if written >= num_bytes:
                    return lines
    raise AssertionError("the lines never end")


# --- one measurement, in a process of its own -------------------------------------------------------------------------


def _consume(path: Path) -> None:
    from seatrial import logs

    for _ in logs.parse_file(path):
        pass


def _reference() -> float:
    """CPU seconds of five million additions: how fast this core is just now, beside its neighbours."""
    start, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - start


def measure_here(path: Path) -> dict[str, float]:
    """CPU and wall seconds, and the peak of memory in bytes, of parsing a log in this process."""
    from seatrial import logs

    list(logs.parse(["warm up: imports and tables"]))
    reference = _reference()
    cpu, wall = time.process_time(), time.perf_counter()
    _consume(path)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "reference_seconds": reference,
    }


def _in_own_process(path: Path) -> dict[str, float]:
    argv = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _judge_command(path: Path, config: Path) -> dict[str, float]:
    """`seatrial judge` from start to exit; its answer is not asked for here."""
    seatrial = Path(sys.executable).with_name("seatrial")
    argv = [str(seatrial), "judge", str(path), "--against", str(config), "--format", "json"]
    wall = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(argv, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if not out.read():
            sys.exit(f"seatrial judge ended with {process.returncode}:\n{err.read()}")
    return {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "wall_seconds": time.perf_counter() - wall,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _config(path: Path) -> Path:
    """A configuration that the mix can be held against."""
    path.write_text(_CONFIG, encoding="utf-8")
    return path


_CONFIG = """\
model: llama3.1-8b
steps: 9999999
batch: {sequence_length: 8192, global_batch_size: 256, micro_batch_size: 2}
topology: {num_nodes: 2, devices_per_node: 8, device: h100}
parallelism: {across_nodes: {data: 2}, within_node: {fsdp: 8}}
data: {kind: text, paths: ["stdlib:*.py"]}
expectations: [{metric: step_seconds, value: 12.0}]
"""


def profile(path: Path) -> str:
    """A profile of parsing: the functions with the most time of their own."""
    profiler = cProfile.Profile()
    profiler.runcall(_consume, path)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(18)
        out.seek(0)
        return out.read()


def main(gigabytes: float, share: float, *, repeats: int, profiled: bool, judged: bool) -> None:
    size = int(gigabytes * 1000**3)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="judge_throughput-", dir="/tmp") as folder:
        logs_made = {}
        for name, families, of_metrics, part in (
            ("megatron", ("megatron",), 1.0, 0.1),
            ("maxtext", ("maxtext",), 1.0, 0.1),
            ("maxtext-print", ("maxtext-print",), 1.0, 0.1),
            ("mix", ("megatron", "maxtext", "primus"), share, 1.0),
            ("seatrial judge", ("megatron",), LONG_RUN_SHARE, float(judged)),
        ):
            if not part:
                continue
            path = Path(folder) / f"{name}.log"
            logs_made[name] = (path, make_log(path, int(size * part), families, of_metrics))
        if profiled:
            for path, _ in logs_made.values():
                print(profile(path))
            return
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in logs_made}
        config = _config(Path(folder) / "config.yaml")
        for _ in range(repeats):
            for name, (path, _) in logs_made.items():
                runs[name].append(_judge_command(path, config) if name == "seatrial judge" else _in_own_process(path))
        for name, (path, lines) in logs_made.items():
            cpu = statistics.median(run["cpu_seconds"] for run in runs[name])
            wall = statistics.median(run["wall_seconds"] for run in runs[name])
            peak = max(run["peak_bytes"] for run in runs[name])
            result = {
                "log": name, "bytes": path.stat().st_size, "lines": lines, "lines_per_cpu_second": lines / cpu,
                "lines_per_wall_second": lines / wall, "goal_lines_per_second": GOALS.get(name),
                "peak_bytes": peak, "goal_bytes": GOAL_MEMORY, "runs": runs[name],
            }  # fmt: skip
            results.append(result)
            goal = f" (goal {GOALS[name]:,})" if name in GOALS else ""
            print(
                f"{name:15} {lines:10,} lines: {lines / cpu:10,.0f} lines/s of CPU{goal}, "
                f"{lines / wall:10,.0f} of wall time, peak {peak / MEGABYTE:,.0f} MiB"
            )
    spare = [run["reference_seconds"] for measured in runs.values() for run in measured if "reference_seconds" in run]
    print(f"five million additions took {min(spare):.2f} to {max(spare):.2f} s of CPU beside it")
    facts = {"metric_share": share, "repeats": repeats, "results": results}
    print(f"written: {record.write('judge_throughput', facts).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "gigabytes", nargs="?", type=float, default=1.0, help="size of the mix; the others take a tenth"
    )
    parser.add_argument("--metric-share", type=float, default=0.3, help="share of step lines in the mix")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each, of which the median counts")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and measure nothing")
    parser.add_argument("--no-judge", action="store_true", help="leave out the command line")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure_here(given.measure)))
    else:
        main(
            given.gigabytes,
            given.metric_share,
            repeats=given.repeats,
            profiled=given.profile,
            judged=not given.no_judge,
        )
