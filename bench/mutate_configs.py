"""Does any configuration, however broken, end in anything but an answer?

    python bench/mutate_configs.py [COUNT] [--seed N] [--one N]

Every shipped configuration is changed again and again, COUNT times in all (10 000): bits, bytes, lines, words, and the
tree of its values (`mutants/config_mutations.py`). `seatrial check` has to end with 0 or 2, without a traceback, within
a second of CPU time; of each ten mutants one goes through `plan` too, and one through `convert`. Whatever fails is kept
with its command and its traceback; `--one N` makes a single mutant again, and shows what becomes of it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import multiprocessing
import os
import random
import resource
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import record
from mutants.config_mutations import mutate

from seatrial.cli import main as seatrial

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path for path in ROOT.glob("configs/*/*") if path.is_file())
COUNT = 10_000
WORKERS = 2
MAX_CPU_SECONDS = 1.0
HANGS_AFTER_SECONDS = 30  # of wall time; a machine may be busy with other things
KEPT = Path(tempfile.gettempdir()) / "mutate_configs"
TARGETS = ("native", "cvs", "maxtext", "megatron", "nxdt")
EXIT_CODES = {"check": (0, 2), "plan": (0, 2, 3), "convert": (0, 2)}  # 3: this machine has no such devices

# What stands for <changeme> in half of the mutants, so that they come further than that.
FILLED = {
    "nnodes": "2", "coordinator_ip": "10.0.0.1", "master_address": "10.0.0.1", "nccl_ib_gid_index": "3",
    "nccl_ib_hca_list": "bnxt_re0", "nccl_ib_hca": "bnxt_re0", "nccl_socket_ifname": "ens51f1np1",
    "gloo_socket_ifname": "ens51f1np1",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one verb to a mutant; `wrong` is empty where it is as it should be."""

    index: int
    config: str
    mutation: str
    verb: str
    exit_code: int
    cpu_seconds: float
    wrong: str


class Hang(BaseException):
    """Nothing below catches it."""


def _alarm(*_: object) -> None:
    raise Hang


def _fill(content: bytes) -> bytes:
    """The file with something plausible in place of every <changeme>."""
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        if b"<changeme>" in line.lower() and b":" in line:
            key, _, rest = line.partition(b":")
            value = FILLED.get(key.strip().strip(b'"').decode(), "800")
            lines[number] = key + b': "' + value.encode() + b'"' + (b"," if rest.rstrip().endswith(b",") else b"")
    return b"\n".join(lines)


def mutant(index: int, seed: int) -> tuple[Path, str, bytes]:
    """A configuration, what is done to it, and what it is then; always the same for a number and a seed."""
    rng = random.Random(f"{seed}:{index}")
    config = CONFIGS[index % len(CONFIGS)]
    content = config.read_bytes()
    name, content = mutate(_fill(content) if rng.random() < 0.5 else content, config.suffix, rng)
    return config, name, content


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _run(arguments: list[str]) -> tuple[int, str, str]:
    """The exit code of `seatrial`, its output, and what was wrong about how it ended, or ""."""
    out = io.StringIO()
    code, wrong = 0, ""
    signal.alarm(HANGS_AFTER_SECONDS)
    try:
        with (
            patch.object(sys, "argv", ["seatrial", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            seatrial()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        code, wrong = -1, traceback.format_exc()
    finally:
        signal.alarm(0)
    said = out.getvalue()
    if not wrong and code not in EXIT_CODES[arguments[0]]:
        wrong = f"exit code {code}: {said[-500:]}"
    return code, said, wrong or ("a traceback was printed" if "Traceback (most recent call last)" in said else "")


def _answers(index: int, seed: int, folder: Path) -> list[Answer]:
    """The answer of each verb that a mutant is tried with."""
    config, name, content = mutant(index, seed)
    path = folder / f"{os.getpid()}-{config.name}"
    path.write_bytes(content)
    verbs = [["check"]]
    verbs += [["plan", *(["--rehearse"] if index % 2 else [])]] if index // len(CONFIGS) % 10 == 0 else []
    verbs += [["convert", "--to", TARGETS[index % len(TARGETS)]]] if index // len(CONFIGS) % 10 == 1 else []
    answers = []
    for verb, *options in verbs:
        start = _cpu_seconds()
        code, said, wrong = _run([verb, str(path), *options])
        seconds = _cpu_seconds() - start
        if not wrong and verb == "check" and code == 2 and "error[" not in said:
            wrong = f"no error is named: {said[-500:]}"
        if not wrong and seconds > MAX_CPU_SECONDS:
            wrong = f"it took {seconds:.1f} s of CPU time"
        if wrong:
            kept = KEPT / f"{index}-{verb}"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / config.name).write_bytes(content)
            (kept / "wrong.txt").write_text(f"{name}: {verb} {' '.join(options)}\n{wrong}\n", encoding="utf-8")
        shown = str(config.relative_to(ROOT / "configs"))
        answers.append(
            Answer(
                index=index, config=shown, mutation=name, verb=verb, exit_code=code, cpu_seconds=seconds, wrong=wrong
            )
        )  # fmt: skip
    return answers


def _start(cache: str) -> None:
    """Prepares a worker: answers about flags go to a cache of its own, and a hang ends."""
    os.environ["XDG_CACHE_HOME"] = cache
    signal.signal(signal.SIGALRM, _alarm)
    faulthandler.enable()


def _many(indexes: range, seed: int, folder: str) -> tuple[list[Answer], int]:
    """The answers of a chunk, and the worker's peak memory in bytes."""
    faulthandler.dump_traceback_later(10 * HANGS_AFTER_SECONDS, exit=True)
    answers = [answer for index in indexes for answer in _answers(index, seed, Path(folder))]
    faulthandler.cancel_dump_traceback_later()
    return answers, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(count: int, seed: int, *, workers: int = WORKERS) -> tuple[list[Answer], int]:
    """The answers to so many mutants, and the peak memory of a worker in bytes."""
    answers: list[Answer] = []
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start, initargs=(f"{folder}/cache",)
        ) as pool:
            chunks = [range(start, min(count, start + 50)) for start in range(0, count, 50)]
            for done, bytes_ in pool.map(_many, chunks, [seed] * len(chunks), [folder] * len(chunks)):
                answers += done
                peak = max(peak, bytes_)
    return answers, peak


def _show(answers: list[Answer], peak: int) -> dict[str, object]:
    """Prints what came out, and returns it as data."""
    folders = sorted({answer.config.partition("/")[0] for answer in answers})
    by_dialect = {}
    print(f"{'configurations':16} {'verb':8} {'exit 0':>7} {'exit 2':>7} {'wrong':>6} {'median':>8} {'slowest':>8}")
    for folder in folders:
        for verb in ("check", "plan", "convert"):
            those = [one for one in answers if one.config.startswith(f"{folder}/") and one.verb == verb]
            if not those:
                continue
            codes = Counter(one.exit_code for one in those)
            seconds = [one.cpu_seconds for one in those]
            wrong = sum(bool(one.wrong) for one in those)
            print(
                f"{folder:16} {verb:8} {codes[0]:7d} {codes[2]:7d} {wrong:6d}"
                f" {statistics.median(seconds) * 1000:5.0f} ms {max(seconds) * 1000:5.0f} ms"
            )
            by_dialect[f"{folder} {verb}"] = {
                "exit_0": codes[0], "exit_2": codes[2], "wrong": wrong,
                "median_cpu_seconds": statistics.median(seconds), "slowest_cpu_seconds": max(seconds),
            }  # fmt: skip
    slowest = sorted(answers, key=lambda one: -one.cpu_seconds)[:5]
    for one in slowest:
        print(f"slow   {one.cpu_seconds:.2f} s  {one.index} {one.verb} {one.config} {one.mutation}")
    wrong_ones = [one for one in answers if one.wrong]
    for one in wrong_ones[:20]:
        print(f"WRONG  {one.index} {one.verb} {one.config} {one.mutation}: {one.wrong.strip().splitlines()[-1][:200]}")
    print(f"{len(answers)} answers, {len(wrong_ones)} wrong; peak memory of a worker {peak / 1e6:.0f} MB")
    if wrong_ones:
        print(f"kept: {KEPT}")
    return {
        "by_dialect": by_dialect,
        "wrong": [asdict(one) for one in wrong_ones],
        "slowest": [asdict(one) for one in slowest],
        "peak_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", type=int, help="make this mutant again, and show it and what becomes of it")
    parser.add_argument("--no-record", action="store_true", help="write no result")
    options = parser.parse_args()
    if options.one is not None:
        signal.signal(signal.SIGALRM, _alarm)
        config, name, content = mutant(options.one, options.seed)
        path = Path(tempfile.mkdtemp()) / config.name
        path.write_bytes(content)
        print(f"{name} of {config.relative_to(ROOT)}: {path}")
        print(*_run(["check", str(path)]), sep="\n")
        return
    try:
        answers, peak = measure(options.count, options.seed)
    except BrokenProcessPool:
        sys.exit("a worker died, or was ended after it hung beyond reach")
    results = _show(answers, peak)
    if not options.no_record:
        measured = {"seed": options.seed, "mutants": options.count, "limit_cpu_seconds": MAX_CPU_SECONDS, **results}
        print(f"written: {record.write('mutate_configs', measured).relative_to(ROOT)}")
    if results["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
