"""Folders of thousands of run directories: made of a few real ones, with other speeds, times and outcomes."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seatrial import events
from seatrial.spec import Batch, Expectation, RunSpec, Topology, to_dict
from seatrial.spec.presets import MODELS
from tests.helpers import run_directory, streams

# Model, nodes, device, its name for the runtime, sequence length, global batch, tokens/s per device.
CONFIGURATIONS = (
    ("llama3.1-70b", 2, "mi300x", "AMD Instinct MI300X", 8192, 48, 862),
    ("llama3.1-70b", 1, "mi300x", "AMD Instinct MI300X", 8192, 24, 871),
    ("llama3.1-8b", 1, "mi300x", "AMD Instinct MI300X", 8192, 64, 8420),
    ("llama3.1-8b", 1, "h100-sxm", "NVIDIA H100 80GB HBM3", 8192, 64, 9630),
    ("llama2-70b", 16, "h200", "NVIDIA H200", 4096, 256, 990),
    ("llama3.1-8b", 4, "h100-sxm", "NVIDIA H100 80GB HBM3", 4096, 256, 9310),
)
STORIES: tuple[tuple[run_directory.Story, float], ...] = (
    (run_directory.sound, 0.84), (run_directory.slow, 0.04), (run_directory.killed, 0.08),
    (run_directory.diverged, 0.04),
)  # fmt: skip
FILES = ("spec.json", "plan.json", "metrics.json", "verdict.json", "events-launcher.jsonl")
MINUTES_APART = 25.0


@dataclass(frozen=True, kw_only=True)
class Base:
    """A judged run directory, read."""

    texts: dict[str, str]
    events: list[dict[str, Any]]


def spec_of(number: int, **changes: Any) -> RunSpec:
    """One of CONFIGURATIONS."""
    model, nodes, device, _, length, batch, rate = CONFIGURATIONS[number]
    target = Expectation(metric="tokens_per_second_per_device", value=0.93 * rate)
    return run_directory.asked_for(
        expectations=(target,), name=f"{model}-{nodes}n-{device}", model=MODELS[model], batch=Batch(
            sequence_length=length, global_batch_size=batch, micro_batch_size=batch // (8 * nodes) or 1
        ),
        topology=Topology(num_nodes=nodes, devices_per_node=8, device=device), **changes,
    )  # fmt: skip


def write(root: Path, count: int, *, seed: int = 0, slower: float = 1.04, until: float | None = None) -> Path:
    """`count` run directories, the newest at `until` (seconds since the epoch).

    The first configuration is slower by `slower` in the last third of them, with a newer jax.
    """
    rng, until = random.Random(seed), until or time.time()
    bases = dict(_bases())
    weights = [weight for _, weight in STORIES]
    names = [story.__name__ for story, _ in STORIES]
    for number in range(count):
        of = rng.choices(range(len(CONFIGURATIONS)), [5, 4, 3, 3, 1, 2])[0]
        story = rng.choices(names, weights)[0]
        is_late = of == 0 and number > count * 2 / 3
        times = (slower if is_late else 1.0) * rng.lognormvariate(0, 0.004)
        at = until - 3600 - (count - number) * 60 * MINUTES_APART
        name = f"{spec_of(of).name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}"
        _write_one(root / name, bases[of, story], times, at, {"jax": "0.11.0" if is_late else "0.10.2"})
    return root


def _bases() -> Iterator[tuple[tuple[int, str], Base]]:
    with TemporaryDirectory() as folder:
        for number in range(len(CONFIGURATIONS)):
            for story, _ in STORIES:
                made = run_directory.write(
                    Path(folder) / f"{number}-{story.__name__}", _on_one_process(story, number),
                    asked=spec_of(number), rehearsing=False,
                )  # fmt: skip
                texts = {name: (made / name).read_text(encoding="utf-8") for name in FILES}
                lines = (made / "events-0.jsonl").read_text(encoding="utf-8").splitlines()
                yield (number, story.__name__), Base(texts=texts, events=[json.loads(line) for line in lines])


def _on_one_process(story: run_directory.Story, number: int) -> run_directory.Story:
    """The same at the speed of a configuration, recorded by the first process and the launcher only."""
    _, _, _, device, _, _, rate = CONFIGURATIONS[number]

    def moved(event: events.Event, spec: RunSpec, pace: float) -> events.Event:
        if isinstance(event, events.Step):
            return replace(event, tokens=spec.tokens_per_step, seconds=event.seconds and event.seconds * pace)
        if isinstance(event, events.RunStarted):
            sizes = {"num_devices": spec.topology.num_devices, "tokens_per_step": spec.tokens_per_step}
            return replace(event, device_kind=device, num_processes=1, **sizes)
        return event

    def told(spec: RunSpec) -> list[list[events.Event]]:
        two = replace(spec, topology=replace(spec.topology, num_nodes=2))
        pace = spec.tokens_per_step / spec.topology.num_devices / rate / (two.tokens_per_step / 16 / 862)
        found = [list(each) for each in story(two)]
        return [[moved(event, spec, pace) for event in found[0]], found[-1]]

    return told


def _write_one(run_dir: Path, base: Base, times: float, at: float, versions: dict[str, str]) -> None:
    run_dir.mkdir(parents=True)
    metrics = json.loads(base.texts["metrics.json"])
    speeds = metrics["performance"]
    for name, found in speeds["estimates"].items():
        factor = times if name == "step_seconds" else 1 / times
        for end in ("value", "low", "high"):
            found[end] = found[end] and found[end] * factor
    for name, value in (speeds["step_times"] or {}).items():
        if isinstance(value, float):
            speeds["step_times"][name] = value * times
    late = at - streams.START
    lines = []
    for event in base.events:
        moved = {**event, "wall_time": event["wall_time"] + late}
        if event["kind"] == "step" and event.get("seconds"):
            moved["seconds"] = event["seconds"] * times
        if event["kind"] == "run_started":
            moved["facts"] = {**event["facts"], "versions": {**event["facts"].get("versions", {}), **versions}}
        lines.append(json.dumps(moved))
    for name, text in base.texts.items():
        (run_dir / name).write_text(json.dumps(metrics) if name == "metrics.json" else text, encoding="utf-8")
    (run_dir / "events-0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    put_status(run_dir, state="ended", heartbeat=at + 100, started=at, last_step=29, planned_steps=30)


def put_status(run_dir: Path, **fields: Any) -> None:
    """A launcher's status.json, replaced as a whole."""
    now = time.time()
    status = {
        "v": 1, "run": run_dir.name, "planned_steps": 1000, "launcher_pid": os.getpid(), "started": now,
        "state": "running", "reason": None, "heartbeat": now, "last_step": None, "processes": [], **fields,
    }  # fmt: skip
    unfinished = run_dir / ".status.json.new"
    unfinished.write_text(json.dumps(status), encoding="utf-8")
    unfinished.replace(run_dir / "status.json")


class LiveRun:
    """A run that goes on: `step` appends one, as the trainer and the launcher do."""

    def __init__(
        self, run_dir: Path, number: int = 0, *, planned: int = 1000, nodes: Sequence[str] = ("local0",)
    ) -> None:
        self.directory, self.spec = run_dir, spec_of(number, steps=planned)
        self._nodes, self._planned, self._step, self._started = nodes, planned, -1, time.time()
        run_dir.mkdir(parents=True)
        plan = {
            "v": 1, "engine": "native", "on": "ssh", "spec": to_dict(self.spec), "rehearsal": None, "processes": [],
            "notes": [], "files": {},
        }  # fmt: skip
        (run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        put_status(run_dir, state="starting", planned_steps=planned)
        self.write(streams.started(self.spec, device_kind=CONFIGURATIONS[number][3]), wall_time=self._started)

    def write(self, event: events.Event, *, wall_time: float | None = None) -> None:
        line = events.dumps(replace(event, wall_time=wall_time or time.time()))
        with (self.directory / "events-0.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def step(self, loss: Callable[[int], float] = streams.falling, seconds: float = 0.5) -> int:
        """The number of the step."""
        self._step += 1
        self.write(
            events.Step(step=self._step, seconds=seconds, tokens=self.spec.tokens_per_step, loss=loss(self._step))
        )
        self.beat()
        return self._step

    def beat(self, **fields: Any) -> None:
        """The launcher's and the agents' statuses, as they are now."""
        states = [
            {"rank": rank, "host": host, "state": "running", "last_step": self._step, "pid": 0}
            for rank, host in enumerate(self._nodes)
        ]
        status = {
            "planned_steps": self._planned,
            "last_step": self._step,
            "started": self._started,
            "processes": states,
        }
        put_status(self.directory, **status | fields)
