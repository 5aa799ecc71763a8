"""Complete run directories, sound and broken, as the launcher, the trainer and the judge would leave them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import events, metrics, recording, verdict
from seatrial.estimate import flops
from seatrial.shrink.rehearsal import rehearse
from seatrial.spec import (
    Batch,
    Data,
    Expectation,
    MeshShape,
    Optimizer,
    Parallelism,
    RunSpec,
    Topology,
    flatten,
    to_dict,
)  # fmt: skip
from seatrial.spec.presets import MODELS
from tests.helpers import streams

CONFIG = "configs/cvs/mi300x_distributed_llama3_1_70b.json"
GIB = 2**30

# How a run goes: the events of each process and of the launcher, from the spec that is run.
Story = Callable[[RunSpec], Iterable[Iterable[events.Event]]]


def asked_for(**changes: Any) -> RunSpec:
    """Llama-3.1-70B on two nodes of eight MI300X, with the bars of a CVS file."""
    spec = RunSpec(
        name="mi300x_distributed_llama3_1_70b",
        dialect="cvs-jax",
        model=MODELS["llama3.1-70b"],
        batch=Batch(sequence_length=8192, global_batch_size=48, micro_batch_size=3),
        steps=30,
        topology=Topology(num_nodes=2, devices_per_node=8, device="mi300x"),
        parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(data=2)),
        optimizer=Optimizer(learning_rate=3e-4, warmup_steps=3),
        data=Data(kind="synthetic"),
        expectations=(
            Expectation(metric="tflops_per_second_per_device", value=380.0),
            Expectation(metric="tokens_per_second_per_device", value=800.0),
        ),
    )
    return replace(spec, **changes)


def jitter(
    step: int, process: int = 0, *, typical: float = 0.42, compiling: float = 5.9, spread: float = 0.012
) -> float:
    """Step times as they are: a slow first one, then noise."""
    if step == 0:
        return max(compiling, 2 * typical)
    return typical * (1 + random.Random(1000 * process + step).gauss(0, spread)) + (0.2 if step == 1 else 0)


def facts(process: int) -> dict[str, Any]:
    return {
        "versions": {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2", "seatrial": "0.1.0"},
        "backend": "cpu",
        "mesh": {"data": 2, "fsdp": 8},
        "accumulation_steps": 1,
        "remat": "full",
        "attention": "causal_blocks",
        "scan_layers": True,
        "flops_convention": "causal",
        "compile_seconds": 4.81 + process / 10,
        "phases": {"connect": 0.9, "data": 0.01, "init": 1.2, "compile": 4.81 + process / 10},
        "memory": {
            "argument_bytes": 2_400_000, "output_bytes": 2_400_000, "alias_bytes": 2_300_000,
            "temp_bytes": 9_700_000, "code_bytes": 310_000,
        },
    }  # fmt: skip


def sound(spec: RunSpec) -> list[list[events.Event]]:
    """Everything goes well."""
    device, typical = "cpu", 0.42
    if spec.topology.device:  # a rehearsal names none
        device, typical = "AMD Instinct MI300X", spec.tokens_per_step / spec.topology.num_devices / 862
    return [
        *(
            [
                streams.started(spec, p, device_kind=device, **facts(p)),
                *streams.steps(
                    spec, p, seconds=lambda n, p=p: jitter(n, p, typical=typical), loss=lambda n: 6.24 * 0.975**n
                ),
                events.RunEnded(process=p, wall_time=streams.START + 100, reason="completed", exit_code=0),
            ]
            for p in range(spec.topology.num_nodes)
        ),
        [streams.ended("completed", -1, at=101)],
    ]


def killed(spec: RunSpec) -> list[list[events.Event]]:
    """Rank 1 is killed after step 7."""
    first, second, _ = sound(spec)
    return [
        [event for event in first if not isinstance(event, events.RunEnded)][:9],
        [event for event in second if not isinstance(event, events.RunEnded)][:9],
        [
            streams.fault(
                "process_died",
                "rank 1 on local1",
                "rank 1 on local1 was killed by SIGKILL (9) (killed from outside, or out of memory); its last line: "
                "step 7 dispatched",
                at=21.4,
            ),
            streams.fault("peer_stopped", "rank 0 on local0", "rank 0 on local0 was told to stop", at=22.1),
            streams.ended("died", -1, exit_code=137, at=22.3),
        ],
    ]


def diverged(spec: RunSpec) -> list[list[events.Event]]:
    """The loss turns NaN at step 17, and the trainer stops there."""
    stories: list[list[events.Event]] = []
    for process, events_of_one in enumerate(sound(spec)[:-1]):
        kept = [e for e in events_of_one if not isinstance(e, events.RunEnded)][:19]
        assert isinstance(kept[-1], events.Step)
        kept[-1] = replace(kept[-1], loss=math.nan, grad_norm=math.inf)
        text = "loss is nan at step 17"
        stories.append(
            [
                *kept,
                streams.fault("non_finite_loss", f"rank {process}", text, process=process, at=30),
                streams.ended("non_finite_loss", process, exit_code=1, at=30.1),
            ]
        )
    return [*stories, [streams.ended("non_finite_loss", -1, exit_code=1, at=31)]]


def slow(spec: RunSpec) -> list[list[events.Event]]:
    """Sound, but at half the speed that is expected."""
    per_device = spec.tokens_per_step / spec.topology.num_devices
    return [
        [
            replace(e, seconds=jitter(e.step, typical=per_device / 431, compiling=95))
            if isinstance(e, events.Step)
            else e
            for e in story
        ]
        for story in sound(spec)
    ]


def write(
    run_dir: Path,
    story: Story = sound,
    *,
    asked: RunSpec | None = None,
    rehearsing: bool = True,
    logs: Mapping[str, str] | None = None,
    problems: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Writes a run directory with every file of the contract, judged; `logs` by rank replace the ordinary ones."""
    asked = asked or asked_for()
    rehearsal = rehearse(asked, cores=2, memory_bytes=8 * GIB) if rehearsing else None
    spec = rehearsal.spec if rehearsal else asked
    run_dir.mkdir(parents=True, exist_ok=True)
    for number, events_of_one in enumerate(story(spec)):
        events_of_one = list(events_of_one)
        process = events_of_one[0].process if events_of_one else number
        writer = events.Writer(run_dir / f"events-{'launcher' if process < 0 else process}.jsonl")
        for event in events_of_one:
            writer.write(event)
        writer.close()
    processes = []
    for rank in range(spec.topology.num_nodes):
        log = f"nodes/local{rank}/rank{rank}.log"
        path = run_dir / log
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"completed step: {n}, seconds: 0.420, loss: {6.24 * 0.975**n:.3f}" for n in range(8)]
        path.write_text((logs or {}).get(str(rank), "\n".join(lines) + "\n"), encoding="utf-8")
        argv = ["python", "-m", "seatrial.train", "launch/trainer-spec.json", "--process-id", str(rank)]
        processes.append({"rank": rank, "host": f"local{rank}", "argv": argv, "environment": {}, "log": log})
    _json(
        run_dir / "spec.json", {"v": 1, "spec": to_dict(asked), "origins": _origins(asked), "problems": list(problems)}
    )
    changes = [vars(change) for change in rehearsal.changes] if rehearsal else []
    _json(
        run_dir / "plan.json",
        {
            "v": 1, "engine": "native", "on": "local", "spec": to_dict(spec),
            "rehearsal": {"changes": changes} if rehearsal else None, "processes": processes, "notes": [], "files": {},
        },
    )  # fmt: skip
    measured = metrics.measure(recording.read_run(run_dir), spec)
    _json(run_dir / "metrics.json", metrics.to_dict(measured))
    found = verdict.judge(measured, spec, rehearsal="rehearsal" if rehearsing else "")
    _json(run_dir / "verdict.json", verdict.to_dict(found))
    return run_dir


def write_judged(
    run_dir: Path,
    story: Story,
    *,
    asked: RunSpec | None = None,
    sources: Iterable[str] = ("logs/node0.log",),
    family: str = "maxtext",
    convention: str | None = None,
) -> Path:
    """Writes the run directory of judged logs from other trainers: no plan, a configuration only if given (`asked`)."""
    run_dir.mkdir(parents=True, exist_ok=True)
    recorded = recording.merge(list(part) for part in story(asked or asked_for()))
    writer = events.Writer(run_dir / "events-0.jsonl")
    for event in recorded:
        writer.write(event)
    writer.close()
    against = "configs/llama.yml" if asked else None
    _json(run_dir / "judged.json", {"v": 1, "sources": list(sources), "family": family, "against": against})
    if asked:
        _json(run_dir / "spec.json", {"v": 1, "spec": to_dict(asked), "origins": _origins(asked), "problems": []})
    measured = metrics.measure(recorded, asked, convention=convention)
    _json(run_dir / "metrics.json", metrics.to_dict(measured))
    _json(run_dir / "verdict.json", verdict.to_dict(verdict.judge(measured, asked, rehearsal=False)))
    return run_dir


def from_other_trainer(spec: RunSpec, *, off: float = 0.0, slow_rank: int | None = None) -> list[list[events.Event]]:
    """A log of somebody else's run: its own figures are `off` by a fraction, and a rank may be slower than the rest."""
    tokens = spec.tokens_per_step / spec.topology.num_devices
    per_token = flops.flops_per_token(spec.model, spec.batch.sequence_length, "non_causal")
    stories: list[list[events.Event]] = []
    for process in range(spec.topology.num_nodes):
        facts = {"family": "maxtext", "source": f"logs/node{process}.log", "clock": "log", "counted_from": 0}
        pace = 1.2 if process == slow_rank else 1.0
        start = replace(streams.started(spec, process, device_kind="AMD Instinct MI300X"), facts=facts)
        made = streams.steps(
            spec, process, seconds=lambda n, pace=pace, p=process: pace * jitter(n, p, typical=30.0, compiling=95.0)
        )
        own: list[events.Event] = []
        for step in made:
            assert step.seconds is not None
            rate = tokens / step.seconds * (1 + off)
            own.append(
                replace(
                    step,
                    reported={
                        "tokens_per_second_per_device": rate,
                        "tflops_per_second_per_device": rate * per_token / 1e12,
                    },
                )
            )
        stories.append([start, *own, streams.ended(process=process, at=2000.0)])
    return stories


def _origins(spec: RunSpec) -> dict[str, Any]:
    """Origins of every kind, in turn, for the values that are not the defaults."""
    given = [path for path in flatten(spec) if path.split(".")[0] in ("model", "batch", "steps", "topology")]
    kinds = ["file", "file", "override", "derived"]
    return {
        path: {
            "kind": kinds[number % 4], "key": f"single_node.{path}", "text": f'"{number}"',
            "note": "nnodes × devices" if kinds[number % 4] == "derived" else "",
            "file": CONFIG if kinds[number % 4] == "file" else None,
            "line": 10 + number if kinds[number % 4] == "file" else None,
            "column": 21 if kinds[number % 4] == "file" else None,
        }
        for number, path in enumerate(given)
    }  # fmt: skip


def _json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
