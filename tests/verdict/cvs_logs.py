"""Logs in the grammar of the two frameworks that CVS validates, with any part of them gone wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from seatrial.estimate import flops
from seatrial.spec import Batch, Data, Expectation, RunSpec, Topology
from seatrial.spec.presets import MODELS

STEPS = 30


def falling(step: int) -> float:
    return 4.0 + 8.0 * 0.9**step


def rising(step: int) -> float:
    return 8.0 * 1.03**step


def jitter(step: int) -> float:
    """A factor within half a percent of 1."""
    return 1 + (step * 7 % 11 - 5) / 1000


def _clock(seconds: float) -> str:
    return (datetime(2026, 10, 1, 10) + timedelta(seconds=seconds)).isoformat(sep=" ", timespec="seconds")


def megatron_spec(*expectations: Expectation) -> RunSpec:
    return RunSpec(
        name="llama3.1-8b", dialect="native", model=MODELS["llama3.1-8b"],
        batch=Batch(sequence_length=8192, global_batch_size=128, micro_batch_size=2), steps=STEPS,
        topology=Topology(num_nodes=1, devices_per_node=8, device="mi300x"),
        data=Data(kind="synthetic"), expectations=expectations,
    )  # fmt: skip


def megatron(
    *,
    step_ms: float,
    tokens: float,
    loss: Callable[[int], float | None] = falling,
    iterations: int = STEPS,
    summary: bool = True,
    after: tuple[str, ...] = (),
) -> list[str]:
    """The log of ROCm's train_llama3.sh: iteration lines, and four lines that sum them up."""
    lines = ["training starts: 8 ranks"]
    tflops, clock = tokens * tflop_per_token(megatron_spec()), 0.0
    for step in range(1, iterations + 1):
        value = loss(step)
        clock += step_ms * jitter(step) / 1000
        told = "" if value is None else f" lm loss: {value:.6E} |"
        lines.append(
            f" [{_clock(clock)}] iteration {step:8d}/{STEPS:8d} | consumed samples: "
            f"{128 * step:12d} | elapsed time per iteration (ms): {step_ms * jitter(step):.1f} | mem usages: 0.5462 | "
            f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f} | learning rate: 1.000000E-04 | global batch size:   128 |"
            f"{told} loss scale: 1.0 | grad norm: 1.571 | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |"
        )
    if summary:
        lines += [
            f"throughput per GPU: {tflops}", f"elapsed time per iteration: {step_ms}",
            f"tokens/GPU/s: {tokens}", "mem usages: 0.5462",
        ]  # fmt: skip
    return [*lines, *after]


def maxtext_spec(tokens: float, *, data: str = "synthetic", steps: int = STEPS) -> RunSpec:
    """Llama 3.1 70B on one node, held to `tokens` per second and device, and to the TFLOP/s that this comes to."""
    spec = RunSpec(
        name="llama3.1-70b", dialect="cvs-jax", model=MODELS["llama3.1-70b"],
        batch=Batch(sequence_length=8192, global_batch_size=56, micro_batch_size=7), steps=steps,
        topology=Topology(num_nodes=1, devices_per_node=8, device="mi300x"),
        data=Data(kind=data),
    )  # fmt: skip
    bars = {"tflops_per_second_per_device": tokens * tflop_per_token(spec), "tokens_per_second_per_device": tokens}
    return replace(spec, expectations=tuple(Expectation(metric=name, value=value) for name, value in bars.items()))


def tflop_per_token(spec: RunSpec) -> float:
    return flops.flops_per_token(spec.model, spec.batch.sequence_length, flops.DEFAULT_CONVENTION) / 1e12


def maxtext(
    spec: RunSpec,
    *,
    tokens: Callable[[int], float] = lambda step: 1000.0 * jitter(step),
    loss: Callable[[int], float] = falling,
    steps: int = STEPS,
    before: tuple[str, ...] = (),
    marker: bool = True,
) -> list[str]:
    """The log of MaxText on the node that reports, up to its orderly shutdown."""
    per_device = spec.tokens_per_step / spec.topology.num_devices
    lines = [f"Num_devices: {spec.topology.num_devices}, shape (1, 8)", *before]
    for step in range(steps):
        rate = tokens(step)
        tflops = rate * tflop_per_token(spec)
        lines.append(
            f"completed step: {step}, seconds: {per_device / rate:.3f}, TFLOP/s/device: {tflops:.3f}, "
            f"Tokens/s/device: {rate:.3f}, total_weights: {spec.tokens_per_step}, loss: {loss(step):.3f}"
        )
    return [*lines, "Distributed task shutdown result: OK"] if marker else lines
