"""Logs of runs that never happened, in the grammar of frameworks and versions, with the noise of real ones.

A `Course` is what happened, step by step; a family writes it down as `Line`s, which remember what they say. So a change
can be made to the run (slower, NaN) or to the record of it (lines lost, doubled), and what is right is known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.estimate import flops
from seatrial.spec import Batch, Data, Expectation, RunSpec, Topology
from seatrial.spec.presets import MODELS

Kind = Literal["step", "noise", "setup", "end"]

STEP_SECONDS = 12.0  # 10,923 tokens/s on each device
JITTER = 0.007
NODES, DEVICES = 2, 16


@dataclass(frozen=True, kw_only=True)
class Line:
    text: str
    kind: Kind = "noise"
    step: int = -1


@dataclass(frozen=True, kw_only=True)
class Course:
    """The course of a run: seconds, loss (None: not printed) and gradient norm of each step; the steps that were saved.

    `planned`: the steps that the run itself announces; `steps`: those that it does. `ends`: it comes to its own end.
    """

    seconds: list[float]
    loss: list[float | None]
    grad_norm: list[float]
    saves: frozenset[int]
    planned: int
    first: int = 0  # the number of the first step, counted from 0; more than 0 after a restart
    batch: int = 256
    ends: bool = True
    clock: float = 0.0
    seed: int = 0

    @property
    def steps(self) -> int:
        return len(self.seconds)


def spec(steps: int, *, expected_seconds: float = STEP_SECONDS, tolerance: float = 0.02) -> RunSpec:
    """The spec of every run here, with its speed as the target."""
    return RunSpec(
        name="llama3.1-8b", dialect="native", model=MODELS["llama3.1-8b"], steps=steps,
        batch=Batch(sequence_length=8192, global_batch_size=256, micro_batch_size=2),
        topology=Topology(num_nodes=NODES, devices_per_node=DEVICES // NODES, device="h100"), data=Data(kind="text"),
        expectations=(Expectation(metric="step_seconds", value=expected_seconds, tolerance=tolerance),),
    )  # fmt: skip


BATCH = 256
TOKENS_PER_DEVICE = BATCH * 8192 / DEVICES
TFLOP_PER_DEVICE = flops.flops_per_token(MODELS["llama3.1-8b"], 8192, "causal") * TOKENS_PER_DEVICE / 1e12
TFLOP_NON_CAUSAL = flops.flops_per_token(MODELS["llama3.1-8b"], 8192, "non_causal") * TOKENS_PER_DEVICE / 1e12


def good_course(steps: int, rng: random.Random) -> Course:
    """Warm-up, jitter, two checkpoints that stretch their step, a loss that falls with noise."""
    seconds = [STEP_SECONDS * rng.lognormvariate(0, JITTER) for _ in range(steps)]
    seconds[0] *= 4.5
    seconds[1] *= 1.4
    saves = frozenset({steps // 3, 2 * steps // 3})
    for step in saves:
        seconds[step] *= 1.3
    loss = [2.2 + 9.0 * math.exp(-step / (steps / 4)) + rng.gauss(0, 0.03) for step in range(steps)]
    norms = [0.8 + 4 * math.exp(-step / 8) + abs(rng.gauss(0, 0.1)) for step in range(steps)]
    return Course(
        seconds=seconds, loss=list(loss), grad_norm=norms, saves=saves, planned=steps, seed=rng.randrange(1 << 30)
    )


def part(course: Course, first: int, last: int, *, ends: bool) -> Course:
    """Steps `first` to before `last` of a course, as an attempt of its own writes them."""
    return replace(
        course, seconds=course.seconds[first:last], loss=course.loss[first:last],
        grad_norm=course.grad_norm[first:last], first=course.first + first, ends=ends,
        saves=frozenset(save for save in course.saves if first <= save < last), clock=course.clock + 4000.0 * first,
    )  # fmt: skip


def tokens_of(course: Course) -> float:
    """Tokens that a device processes in a step."""
    return TOKENS_PER_DEVICE * course.batch / BATCH


def tflop_of(course: Course) -> float:
    return TFLOP_PER_DEVICE * course.batch / BATCH


# --- noise ------------------------------------------------------------------------------------------------------------

_NOISE = (
    "node{node}:{pid}:{pid} [{gpu}] NCCL INFO Channel {n:02d}/0 : {gpu}[{gpu}] -> {peer}[{peer}] via P2P/CUMEM",
    "node{node}:{pid}:{pid} [{gpu}] NCCL INFO Connected all rings, {n} channels",
    "node{node}:{pid}:{pid} [{gpu}] NCCL INFO NET/IB : Using [0]mlx5_{gpu}:1/RoCE [RO]; OOB eth0:10.0.{node}.{n}<0>",
    "/opt/venv/lib/python3.12/site-packages/torch/distributed/c10d.py:{n}: UserWarning: an option is deprecated",
    "  warnings.warn(  # warn only once",
    "W0921 09:1{gpu}:07.{pid} {pid} loader.py:{n}] shard {n} was read from the cache in {n} ms",
    "I0921 09:1{gpu}:07.{pid} {pid} compiler.cc:{n}] fused {n} kernels into {gpu}, autotune level {gpu}",
    "> building train, validation, and test datasets: {n} documents in split {gpu}",
    " > loaded indexed file data/part-{n:05d}.idx in {n} microseconds, 0 errors",
    "time (ms) | forward-backward: {pid}.5 | grads-reduce: {n}.2 | optimizer: {n}.9",
    "[rank{gpu}] allocator: segments {n}, active {pid} MB, retries 0, inf checks off",
    "data prefetch queue: {n} batches ready, worker {gpu} idle {n} ms",
    "hook[{gpu}]: wrote trace of step window {n} to /scratch/run/trace-{pid}.json",
    "{{'event': 'heartbeat', 'rank': {gpu}, 'seq': {pid}, 'lag_ms': {n}}}",
)


def noise_line(rng: random.Random) -> str:
    """A line that says nothing of the run."""
    return rng.choice(_NOISE).format(
        node=rng.randrange(NODES), pid=rng.randrange(10_000, 99_999), gpu=rng.randrange(8), peer=rng.randrange(8),
        n=rng.randrange(1, 999),
    )  # fmt: skip


def noise(rng: random.Random, most: int) -> Iterator[Line]:
    for _ in range(rng.randrange(most + 1)):
        yield Line(text=noise_line(rng))


def clock_text(seconds: float, *, micro: bool = False, comma: bool = False) -> str:
    day, rest = divmod(seconds, 86_400)
    text = f"2026-09-{21 + int(day):02d} {int(rest // 3600):02d}:{int(rest % 3600 // 60):02d}:{int(rest % 60):02d}"
    return text + (f".{int(rest % 1 * 1e6):06d}" if micro else f",{int(rest % 1 * 1e3):03d}" if comma else "")


# --- families ---------------------------------------------------------------------------------------------------------

Writer = Callable[[Course, random.Random], Iterator[Line]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The log format of a framework; `has_grad_norm` and the like say what of a course can be read back."""

    name: str
    write: Writer
    steps: int = 60
    has_grad_norm: bool = True
    prints_total: bool = True
    counts_from: int = 1
    every: int = 1
    omits_nan_loss: bool = False
    says_batch: bool = True
    is_cross_entropy: bool = True
    is_sampled: bool = False  # prints some steps, by the clock
    is_rows: bool = False  # a file of metrics, into which nothing else is written


def lines_of(family: Family, course: Course) -> list[Line]:
    """The log of a course, the same each time."""
    return list(family.write(course, random.Random(course.seed)))


def number(value: float, fmt: str) -> str:
    return format(value, fmt) if math.isfinite(value) else str(value)


def walk(course: Course) -> Iterator[tuple[int, float, float | None, float, float]]:
    """(step from 0, seconds, loss, gradient norm, clock at its end)"""
    clock = 33_000.0 + course.clock
    for index in range(course.steps):
        clock += course.seconds[index]
        yield course.first + index, course.seconds[index], course.loss[index], course.grad_norm[index], clock


def learning_rate_of(step: int, planned: int) -> float:
    return 3e-4 * min(1.0, (step + 1) / 10) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / planned)))


def _maxtext(course: Course, rng: random.Random) -> Iterator[Line]:
    def logged(text: str, at: float, source: str = "metric_logger.py:265") -> str:
        date, clock = clock_text(at, micro=True).split(" ")
        return f"I{date[5:].replace('-', '')} {clock} 140213061369728 {source}] {text}"

    start = 33_000.0 + course.clock
    yield Line(text=logged(f"Num_devices: {DEVICES}, shape (1, 2, 8, 1)", start, "max_utils.py:310"), kind="setup")
    yield Line(text=logged(f"Config param steps: {course.planned}", start, "pyconfig.py:591"), kind="setup")
    yield from noise(rng, 12)
    if course.first:
        text = f"restoring from this run's directory step {course.first - 1}"
        yield Line(text=logged(text, start, "checkpointing.py:300"), kind="setup")
    yield Line(text="Per train step:", kind="setup")
    yield Line(text=f" Total TFLOPs: {tflop_of(course):.2f} ", kind="setup")
    yield Line(text=logged("number parameters: 8.030 billion", start), kind="setup")
    for step, seconds, loss, _, clock in walk(course):
        value = math.nan if loss is None else loss
        perplexity = math.exp(value) if value < 300 else math.inf if value >= 300 else math.nan
        more = f", lm_loss: {number(value, '.3f')}, perplexity: {number(perplexity, '.3f')}"
        text = _maxtext_line(course, step, seconds, value) + more
        yield Line(text=logged(text, clock), kind="step", step=step)
        if step in course.saves:
            yield Line(text=logged(f"Saved a checkpoint at step {step}.", clock, "checkpointing.py:412"))
        yield from noise(rng, 2)
    if course.ends:
        yield Line(text="I0921 23:00:00.000000 139 distributed.cc:80] Distributed task shutdown result: OK", kind="end")


def _maxtext_line(course: Course, step: int, seconds: float, loss: float) -> str:
    if step == course.first + 1:
        seconds = 0.011  # the device has not been waited for
    return (
        f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflop_of(course) / seconds:.3f}, "
        f"Tokens/s/device: {tokens_of(course) / seconds:.3f}, total_weights: {course.batch * 8192}, "
        f"loss: {number(loss, '.3f')}"
    )


def _maxtext_print(course: Course, rng: random.Random) -> Iterator[Line]:
    """Before 2026: plain prints, and no time anywhere."""
    yield Line(text=f"Num_devices: {DEVICES}, shape (1, 2, 8, 1)", kind="setup")
    yield Line(text=f"Config param steps: {course.planned}", kind="setup")
    yield from noise(rng, 12)
    if course.first:
        yield Line(text=f"restoring from this run's directory step {course.first - 1}", kind="setup")
    for step, seconds, loss, _, _ in walk(course):
        text = _maxtext_line(course, step, seconds, math.nan if loss is None else loss)
        yield Line(text=text, kind="step", step=step)
        if step in course.saves:
            yield Line(text=f"saved a checkpoint at step {step}")
        yield from noise(rng, 2)
    if course.ends:
        yield Line(text="I0921 23:00:00.000000 139 distributed.cc:80] Distributed task shutdown result: OK", kind="end")


def _megatron_line(course: Course, step: int, seconds: float, loss: float | None, norm: float, extra: str) -> str:
    told = "" if loss is None or math.isnan(loss) else f" lm loss: {number(loss, '.6E')} |"
    return (
        f"iteration {step + 1:8d}/{course.planned:8d} | consumed samples: {(step + 1) * course.batch:12d} | "
        f"{extra}learning rate: {learning_rate_of(step, course.planned):.6E} | global batch size: {course.batch:5d} |"
        f"{told} loss scale: 1.0 | grad norm: {number(norm, '.3f')} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _elapsed(seconds: float) -> str:
    return f"elapsed time per iteration (ms): {seconds * 1000:.1f} | "


def _throughput(course: Course, seconds: float) -> str:
    return f"throughput per GPU (TFLOP/s/GPU): {tflop_of(course) / seconds:.1f} | "


def _megatron_save(step: int, clock: float) -> Iterator[Line]:
    yield Line(text=f"saving checkpoint at iteration {step + 1:7d} to /ckpt/run in torch_dist format")
    text = f"  successfully saved checkpoint from iteration {step + 1:7d} to /ckpt/run [ t 1/1, p 1/1 ]"
    yield Line(text=f"{text} after {clock % 3:.1f} s")


def _megatron_start(course: Course, rng: random.Random) -> Iterator[Line]:
    yield Line(
        text=f"using world size: {DEVICES}, data-parallel size: {DEVICES}, tensor-model-parallel size: 1", kind="setup"
    )
    yield Line(text=f"  train_iters ..................................... {course.planned}", kind="setup")
    yield from noise(rng, 12)
    if course.first:
        text = f"  successfully loaded checkpoint from /ckpt/run [ t 1/1, p 1/1 ] at iteration {course.first}"
        yield Line(text=text, kind="setup")
    yield Line(
        text=f"[before the start of training step] datetime: {clock_text(33_000.0 + course.clock)} ", kind="setup"
    )


def _megatron(*, throughput: bool, stamp: bool) -> Writer:
    def write(course: Course, rng: random.Random) -> Iterator[Line]:
        yield from _megatron_start(course, rng)
        clock = 0.0
        for step, seconds, loss, norm, clock in walk(course):
            extra = _elapsed(seconds) + (_throughput(course, seconds) if throughput else "")
            text = " " + _megatron_line(course, step, seconds, loss, norm, extra)
            yield Line(text=(f" [{clock_text(clock, micro=True)}]" if stamp else "") + text, kind="step", step=step)
            if step in course.saves:
                yield from _megatron_save(step, clock)
            yield from noise(rng, 2)
        if course.ends:
            yield Line(text=f"[after training is done] datetime: {clock_text(clock)} ", kind="end")

    return write


def _rocm(course: Course, rng: random.Random) -> Iterator[Line]:
    yield from _megatron_start(course, rng)
    for step, seconds, loss, norm, clock in walk(course):
        extra = f"{_elapsed(seconds)}mem usages: 0.7494 | {_throughput(course, seconds)}"
        text = f" [{clock_text(clock)}] {_megatron_line(course, step, seconds, loss, norm, extra)}"
        yield Line(text=text, kind="step", step=step)
        if step in course.saves:
            yield from _megatron_save(step, clock)
        yield from noise(rng, 2)
    if course.ends:
        kept = course.seconds[2:-1] or course.seconds
        mean = sum(kept) / len(kept)
        yield Line(text=f"throughput per GPU: {tflop_of(course) / mean}", kind="end")
        yield Line(text=f"elapsed time per iteration: {mean * 1000}", kind="end")
        yield Line(text=f"tokens/GPU/s: {tokens_of(course) / mean}", kind="end")
        yield Line(text="mem usages: 0.7494000000000002", kind="end")


def _primus(course: Course, rng: random.Random) -> Iterator[Line]:
    def logged(text: str, at: float) -> str:
        stamp = clock_text(at).replace("-", "")
        return f"[{stamp}][rank-{DEVICES - 1}/{DEVICES}][INFO ] [--------trainer.py:2488] : {text}"

    for line in _megatron_start(course, rng):
        yield replace(line, text=logged(line.text, 33_000.0 + course.clock)) if line.kind == "setup" else line
    clock = 0.0
    mean: list[float] = []
    for step, seconds, loss, norm, clock in walk(course):
        tokens = tokens_of(course) / seconds
        if step - course.first < 2:
            extra = f"{_elapsed(seconds)}{_throughput(course, seconds)}tokens per GPU (tokens/s/GPU): {tokens:.1f} | "
        else:
            mean = [*mean[-9:], seconds]
            middle = sum(mean) / len(mean)
            extra = (
                f"elapsed time per iteration (ms): {seconds * 1000:.1f}/{middle * 1000:.1f} | "
                "hip mem usage/free/total/usage_ratio: 141.35GiB/50.64GiB/191.98GiB/73.62% | "
                f"throughput per GPU (TFLOP/s/GPU): {tflop_of(course) / seconds:.1f}/{tflop_of(course) / middle:.1f} | "
                f"tokens per GPU (tokens/s/GPU): {tokens:.1f}/{tokens_of(course) / middle:.1f} | "
            )
        text = logged(" " + _megatron_line(course, step, seconds, loss, norm, extra), clock)
        yield Line(text=text, kind="step", step=step)
        if step in course.saves:
            yield from _megatron_save(step, clock)
        yield from noise(rng, 2)
    if course.ends:
        yield Line(text=logged(f"[after training is done] datetime: {clock_text(clock)} ", clock), kind="end")


def _torchtitan(course: Course, rng: random.Random) -> Iterator[Line]:
    every = TORCHTITAN_EVERY

    def logged(text: str, at: float) -> str:
        return f"[rank0]:[titan] {clock_text(at, comma=True)} - root - INFO - {text}"

    start = 33_000.0 + course.clock
    text = (
        f"Trainer is initialized with local batch size 2, global batch size {course.batch}, "
        f"gradient accumulation steps 8, sequence length 8192, total steps {course.planned} (warmup 10)"
    )
    yield Line(text=logged(text, start), kind="setup")
    yield from noise(rng, 12)
    yield Line(text=logged(f"Training starts at step {course.first + 1}", start), kind="setup")
    window: list[float] = []
    clock = start
    for step, seconds, loss, norm, clock in walk(course):
        window.append(seconds)
        if step + 1 == 1 or (step + 1) % every == 0:
            mean = sum(window) / len(window)
            window = []
            value = loss if loss is not None else math.nan
            rate = TFLOP_NON_CAUSAL * course.batch / BATCH / mean
            text = (
                f"\x1b[31mstep: {step + 1:2d}  \x1b[32mloss: {number(value, '8.5f')}  "
                f"\x1b[38;2;180;60;0mgrad_norm: {number(norm, '7.4f')}  "
                f"\x1b[38;2;54;234;195mmemory: 66.91GiB(84.51%)  "
                f"\x1b[34mtps: {tokens_of(course) / mean:,.0f}  \x1b[36mtflops: {rate:,.2f}  "
                f"\x1b[35mmfu: {rate / 9.89:.2f}%\x1b[39m"
            )
            yield Line(text=logged(text, clock), kind="step", step=step)
        if step in course.saves:
            yield Line(
                text=logged(
                    f"Finished saving the checkpoint (or staging if async is enabled) at step {step + 1}", clock
                )
            )
        yield from noise(rng, 1)
    if course.ends:
        yield Line(text=logged("Training completed", clock), kind="end")
        yield Line(text=logged("Process group destroyed", clock), kind="end")


def _nemo(course: Course, rng: random.Random) -> Iterator[Line]:
    yield Line(text=f"[NeMo I 2026-09-21 09:10:00 nemo_logging:393] max_steps={course.planned}", kind="setup")
    yield from noise(rng, 12)
    for step, seconds, loss, norm, _ in walk(course):
        value = loss if loss is not None else math.nan
        text = (
            f"Training epoch 0, iteration {step}/{course.planned - 1} | "
            f"lr: {learning_rate_of(step, course.planned):.3e} | "
            f"global_batch_size: {course.batch} | global_step: {step} | max_memory_reserved: 70833405952 | "
            f"max_memory_allocated: 44271689728 | reduced_train_loss: {number(value, '.4g')} | grad_norm: "
            f"{number(norm, '.4g')} | train_step_timing in s: {seconds:.4g} | TFLOPS_per_GPU: "
            f"{tflop_of(course) / seconds:.3e} | consumed_samples: {(step + 1) * course.batch}"
        )
        yield Line(text=text, kind="step", step=step)
        yield from noise(rng, 2)
    if course.ends:
        yield Line(text=f"`Trainer.fit` stopped: `max_steps={course.planned}` reached.", kind="end")


def _bridge(course: Course, rng: random.Random) -> Iterator[Line]:
    yield from _megatron_start(course, rng)
    clock = 0.0
    for step, seconds, loss, norm, clock in walk(course):
        text = f"Step Time : {seconds:.2f}s GPU utilization: {tflop_of(course) / seconds:.1f}MODEL_TFLOP/s/GPU"
        yield Line(text=text, kind="step", step=step)
        text = f" [{clock_text(clock)}] {_megatron_line(course, step, seconds, loss, norm, _elapsed(seconds))}"
        yield Line(text=text, kind="step", step=step)
        if step in course.saves:
            yield from _megatron_save(step, clock)
        yield from noise(rng, 2)
    if course.ends:
        yield Line(text=f"[after training is done] datetime: {clock_text(clock)} ", kind="end")


TORCHTITAN_EVERY = 5
_PLAIN, _FULL = _megatron(throughput=False, stamp=False), _megatron(throughput=True, stamp=True)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(name="maxtext", write=_maxtext, has_grad_norm=False, prints_total=False, counts_from=0),
        Family(name="maxtext-print", write=_maxtext_print, has_grad_norm=False, prints_total=False, counts_from=0),
        Family(name="megatron", write=_FULL, omits_nan_loss=True),
        Family(name="megatron-plain", write=_PLAIN, omits_nan_loss=True),
        Family(name="rocm", write=_rocm, omits_nan_loss=True),
        Family(name="primus", write=_primus, omits_nan_loss=True),
        Family(name="torchtitan", write=_torchtitan, steps=120, every=TORCHTITAN_EVERY),
        Family(name="nemo2", write=_nemo, counts_from=0),
        Family(name="bridge", write=_bridge, omits_nan_loss=True),
    )
}
