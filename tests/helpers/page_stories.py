"""Eight kinds of run whose pages are looked at, and pages of several runs: each a function of a folder → its page."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import events, recording
from seatrial.commands.judge import JudgeOptions, judge_logs
from seatrial.report import html
from seatrial.report.gather import gather
from seatrial.spec import Batch, Evaluation, Expectation, Objective, RunSpec, Topology
from tests.helpers import run_directory, streams

GIB = 2**30


def _page(folder: Path, story: run_directory.Story, asked: RunSpec, **shown: float) -> Path:
    run = run_directory.write(folder / "run", story, asked=asked, rehearsing=False)
    page = run / "report.html"
    page.write_text(html.render(gather(run, **shown)), encoding="utf-8")
    return page


def _one_node(**changes: Any) -> RunSpec:
    topology = Topology(num_nodes=1, devices_per_node=8, device="mi300x")
    return run_directory.asked_for(topology=topology, **changes)


def healthy_and_long(folder: Path) -> Path:
    """20,000 steps with evaluations, a schedule of the learning rate, memory, and a slow step now and then."""
    count = 20_000
    rng = random.Random(1)

    def story(spec: RunSpec) -> list[list[events.Event]]:
        made = streams.steps(
            spec,
            seconds=lambda n: 95.0 if n == 0 else 57 * (1 + rng.gauss(0, 0.006)) * (1.4 if n % 1000 == 999 else 1),
            loss=lambda n: 2.1 + 4.4 * math.exp(-n / 900) + 1.2 / (1 + n / 3000) + rng.gauss(0, 0.05),
            grad_norm=lambda n: 0.4 + 3 / (1 + n / 50) + abs(rng.gauss(0, 0.1)) + (25 if n % 3777 == 3776 else 0),
        )
        made = [
            replace(
                step,
                learning_rate=3e-4 * min(step.step / 500, 0.55 + 0.45 * math.cos(math.pi * step.step / count)),
                reported={"memory_bytes": (131 + (step.step % 50) / 100) * GIB},
            )
            for step in made
        ]
        evals = [
            events.Eval(step=n, loss=2.2 + 4.2 * math.exp(-n / 900) + 1.1 / (1 + n / 3000), wall_time=made[n].wall_time)
            for n in range(499, count, 500)
        ]
        own = recording.merge([[streams.started(spec, device_kind="AMD Instinct MI300X")], made, evals])
        return [[*own, streams.ended(at=2e6)], [streams.ended(process=-1, at=2e6 + 1)]]

    asked = _one_node(
        steps=count,
        expectations=(Expectation(metric="tokens_per_second_per_device", value=830.0),),
        evaluation=Evaluation(interval_steps=500, batches=4, target_loss=2.2),
    )
    return _page(folder, story, asked, price_per_device_hour=2.5, tokens=1e12)


def not_finite(folder: Path) -> Path:
    """The loss is NaN from step 17 on."""
    return _page(folder, run_directory.diverged, run_directory.asked_for())


def straggler(folder: Path) -> Path:
    """64 ranks over 200 steps, of which rank 37 is slower by 12 %, and all of them at step 120."""

    def story(spec: RunSpec) -> list[list[events.Event]]:
        stories: list[list[events.Event]] = []
        for process in range(64):
            rng = random.Random(process)
            pace = 1.12 if process == 37 else 1.0
            made = streams.steps(
                spec,
                process,
                seconds=lambda n, rng=rng, pace=pace: (
                    9.6 * pace * (1 + rng.gauss(0, 0.008)) * (1.5 if n == 120 else 1) if n else 60.0
                ),
            )
            facts = {"family": "torchtitan", "source": f"logs/rank{process}.log", "clock": "log", "counted_from": 0}
            start = replace(streams.started(spec, process, device_kind="NVIDIA H100 80GB HBM3"), facts=facts)
            stories.append(
                [replace(start, host=f"node{process // 8}"), *made, streams.ended(process=process, at=3000.0)]
            )
        return stories

    asked = run_directory.asked_for(
        steps=200, topology=Topology(num_nodes=8, devices_per_node=8, device="h100-sxm"), expectations=(),
        batch=Batch(sequence_length=8192, global_batch_size=64, micro_batch_size=1),
    )  # fmt: skip
    sources = [f"logs/rank{process}.log" for process in range(64)]
    run = run_directory.write_judged(folder / "run", story, asked=asked, sources=sources, family="torchtitan")
    page = run / "report.html"
    page.write_text(html.render(gather(run)), encoding="utf-8")
    return page


def killed_with_retries(folder: Path) -> Path:
    """Rank 1 is killed in each of three attempts, each of which goes on from a checkpoint."""

    def story(spec: RunSpec) -> list[list[events.Event]]:
        stories = []
        for process in range(2):
            own: list[events.Event] = []
            for attempt, (first, last) in enumerate(((0, 41), (30, 77), (60, 96))):
                at = 3000.0 * attempt
                own.append(streams.started(spec, process, at=at, device_kind="AMD Instinct MI300X"))
                own += streams.steps(
                    spec, process, first=first, last=last, at=at + 60,
                    seconds=lambda n, a=attempt, p=process: run_directory.jitter(n + 100 * a, p, typical=28.0),
                )  # fmt: skip
            stories.append(own)
        faults = [
            [
                streams.fault(
                    "process_died", "rank 1 on local1",
                    "rank 1 on local1 was killed by SIGKILL (9) (killed from outside, or out of memory)", at=at,
                ),
                streams.fault("peer_stopped", "rank 0 on local0", "rank 0 on local0 was told to stop", at=at + 1),
            ]
            for at in (1300.0, 4400.0, 7150.0)
        ]  # fmt: skip
        last_word = streams.ended("died", -1, exit_code=137, at=7152.0)
        return [*stories, [*(fault for attempt in faults for fault in attempt), last_word]]

    return _page(folder, story, run_directory.asked_for(steps=120))


def fine_tuned(folder: Path) -> Path:
    """A preference optimisation of 90 steps with an evaluation after every tenth."""
    rng = random.Random(5)

    def story(spec: RunSpec) -> list[list[events.Event]]:
        made = streams.steps(
            spec, seconds=lambda n: run_directory.jitter(n, typical=58.0, compiling=140),
            loss=lambda n: 0.12 + 0.57 * math.exp(-n / 35) + rng.gauss(0, 0.02), grad_norm=lambda n: 2 + rng.random(),
        )  # fmt: skip
        evals = [
            events.Eval(step=n, loss=0.18 + 0.5 * math.exp(-n / 35), wall_time=made[n - 1].wall_time)
            for n in range(10, 91, 10)
        ]
        own = recording.merge([[streams.started(spec, device_kind="AMD Instinct MI300X")], made, evals])
        return [[*own, streams.ended(at=6000)], [streams.ended(process=-1, at=6001)]]

    asked = _one_node(
        steps=90, expectations=(), objective=Objective(kind="dpo"),
        evaluation=Evaluation(interval_steps=10, batches=2, target_loss=0.25),
    )  # fmt: skip
    return _page(folder, story, asked)


def mlperf(folder: Path) -> Path:
    """A log of MLPerf logging that reaches its target at the ninth evaluation."""
    lines = []

    def say(ms: int, key: str, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any) -> None:
        entry = {
            "namespace": "", "time_ms": 1_790_000_000_000 + ms, "event_type": kind, "key": key, "value": value,
            "metadata": {"file": "/workspace/callbacks.py", "lineno": 42, **metadata},
        }  # fmt: skip
        lines.append(f":::MLLOG {json.dumps(entry)}")

    say(10, "submission_benchmark", "llama31_8b")
    say(11, "submission_platform", "1xH100x8")
    say(20, "global_batch_size", 32)
    say(21, "max_sequence_length", 8192)
    say(22, "target_accuracy", 3.3)
    say(23, "max_steps", 1_200_000)
    say(31, "run_start", None, "INTERVAL_START")
    at = 31
    for block in range(1, 10):
        at += 399_000 + 700 * block
        say(at, "tracked_stats", {"throughput": 30.7 + 0.01 * block, "train_loss": 3.1 + 5 * math.exp(-block / 2)},
            step=12288 * block)  # fmt: skip
        at += 9_500
        samples = 12288 * block
        say(
            at, "eval_accuracy", round(3.27 + 4.2 * math.exp(-block / 1.8), 4), epoch_num=samples, samples_count=samples
        )
    say(at + 900, "run_stop", None, "INTERVAL_END", status="success", samples_count=12288 * 9)
    return _judged(folder, "mlperf.log", lines)


def shifted(folder: Path) -> Path:
    """From step 160 on the run is slower by 9 %, and misses its targets."""

    def story(spec: RunSpec) -> list[list[events.Event]]:
        pace = spec.tokens_per_step / spec.topology.num_devices / 862
        rng = random.Random(9)
        made = streams.steps(
            spec, seconds=lambda n: (95 if n == 0 else pace * (1 + rng.gauss(0, 0.006)) * (1.09 if n >= 160 else 1)),
            loss=lambda n: 3 + 6 * math.exp(-n / 60) + rng.gauss(0, 0.03), grad_norm=lambda n: 0.8 + rng.random() / 4,
        )  # fmt: skip
        start = streams.started(spec, device_kind="AMD Instinct MI300X")
        return [[start, *made, streams.ended(at=40_000)], [streams.ended(process=-1, at=40_001)]]

    targets = (
        Expectation(metric="tokens_per_second_per_device", value=850.0, tolerance=0.01),
        Expectation(metric="tflops_per_second_per_device", value=383.0, tolerance=0.01),
    )
    return _page(folder, story, _one_node(steps=320, expectations=targets))


def without_speed(folder: Path) -> Path:
    """A log of Hugging Face's Trainer that has losses and nothing of time."""
    rng = random.Random(3)
    lines = [
        str({
            "loss": round(1.1 + 1.4 * math.exp(-n / 20) + rng.gauss(0, 0.02), 4),
            "grad_norm": round(1 + rng.random(), 4),
            "learning_rate": round(2e-5 * (1 - n / 80), 9),
            "epoch": round(n / 40, 3),
        })
        for n in range(1, 81)
    ]  # fmt: skip
    return _judged(folder, "finetune.log", lines)


def _judged(folder: Path, name: str, lines: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = folder / "run"
    judge_logs(
        [folder / name], JudgeOptions(), resolved=None, config=None, family="auto", cvs_compat=False, out=run
    )  # fmt: skip
    return run / "report.html"


KINDS: dict[str, Callable[[Path], Path]] = {
    "healthy": healthy_and_long,
    "not-finite": not_finite,
    "straggler": straggler,
    "retries": killed_with_retries,
    "fine-tuned": fine_tuned,
    "mlperf": mlperf,
    "shifted": shifted,
    "without-speed": without_speed,
}
