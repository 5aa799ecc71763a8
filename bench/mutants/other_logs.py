"""More logs of runs that never happened: of smaller trainers, of those with a block a step, and of progress bars."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mutants.made_logs import (
    DEVICES,
    Course,
    Family,
    Line,
    clock_text,
    learning_rate_of,
    noise,
    number,
    tflop_of,
    tokens_of,
    walk,
)

PEAK = 989.5  # TFLOP/s
LEVANTER_EVERY = 5


class Step(NamedTuple):
    """The figures of a step that can be printed: `number` counts from 1, `tokens_per_second` is of a device."""

    number: int
    seconds: float
    loss: float
    norm: float
    clock: float
    learning_rate: float
    tokens_per_second: float
    mfu: float


def _steps(course: Course) -> Iterator[Step]:
    for step, seconds, loss, norm, clock in walk(course):
        yield Step(
            step + 1, seconds, math.nan if loss is None else loss, norm, clock, learning_rate_of(step, course.planned),
            tokens_of(course) / seconds, tflop_of(course) / seconds / PEAK,
        )  # fmt: skip


def written(
    lines_of_step: Callable[[Course, Step], Iterator[str]],
    start: Callable[[Course], list[str]],
    end: Callable[[Course], list[str]] = lambda _: [],
    *,
    most_noise: int = 2,
) -> Callable[[Course, random.Random], Iterator[Line]]:
    """A log: what comes at the start, each step with noise after it, and what comes at an end in order."""

    def write(course: Course, rng: random.Random) -> Iterator[Line]:
        for text in start(course):
            yield Line(text=text, kind="setup")
        yield from noise(rng, 12 if most_noise else 0)
        for step in _steps(course):
            for text in lines_of_step(course, step):
                yield Line(text=text, kind="step", step=step.number - 1)
            yield from noise(rng, most_noise)
        if course.ends:
            for text in end(course):
                yield Line(text=text, kind="end")

    return write


def _tokens_per_step(course: Course) -> int:
    return course.batch * 8192


# --- a line a step ---


def _nanogpt(course: Course, step: Step) -> Iterator[str]:
    mfu = 100 * step.mfu if step.number - course.first > 5 else -100.0
    yield f"iter {step.number - 1}: loss {number(step.loss, '.4f')}, time {step.seconds * 1000:.2f}ms, mfu {mfu:.2f}%"


def _nanogpt_start(course: Course) -> list[str]:
    return [
        f"Overriding: max_iters = {course.planned - 1}",
        f"tokens per iteration will be: {_tokens_per_step(course):,}",
    ]


def _nanochat(course: Course, step: Step) -> Iterator[str]:
    rate = int(step.tokens_per_second * DEVICES)
    yield (
        f"step {step.number - 1:05d}/{course.planned:05d} ({100 * (step.number - 1) / course.planned:.2f}%) | loss: "
        f"{number(step.loss, '.6f')} | lrm: 1.00 | dt: {step.seconds * 1000:.2f}ms | tok/sec: {rate:,} | bf16_mfu: "
        f"{100 * step.mfu:.2f} | epoch: 1 pq: 0 rg: {step.number} | total time: {step.number / 5:.2f}m"
    )


def _nanochat_start(course: Course) -> list[str]:
    return [
        "GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14",
        f"Total batch size {_tokens_per_step(course):,} => gradient accumulation steps: 8",
    ]


def _llmc(course: Course, step: Step) -> Iterator[str]:
    yield (
        f"step {step.number:4d}/{course.planned} | loss {number(step.loss, '7.6f')} (+0.12z)| norm "
        f"{number(step.norm, '6.4f')} (-0.31z)| lr {step.learning_rate:.2e} | {step.seconds * 1000:.2f} ms | "
        f"{100 * step.mfu:.1f}% bf16 MFU | {step.tokens_per_second * DEVICES:.0f} tok/s"
    )


def _llmc_start(course: Course) -> list[str]:
    return [
        f"| train_num_batches     | {course.planned:<50d} |",
        f"batch_size B=2 * seq_len T=8192 * num_processes={DEVICES} and total_batch_size={_tokens_per_step(course)}",
    ]


def _modded(course: Course, step: Step) -> Iterator[str]:
    milliseconds = 1000 * sum(course.seconds[: step.number - course.first])
    mean = milliseconds / (step.number - course.first)
    yield (
        f"step:{step.number}/{course.planned} train_loss:{number(step.loss, '.4f')} train_time:{milliseconds:.0f}ms "
        f"step_avg:{mean:.2f}ms"
    )


def _litgpt(course: Course, step: Step) -> Iterator[str]:
    yield (
        f"Epoch 1 | iter {step.number} step {step.number} | loss train: {number(step.loss, '.3f')}, val: n/a | "
        f"iter time: {step.seconds * 1000:.2f} ms (step) remaining time: 0:12:34"
    )


def _litgpt_start(course: Course) -> list[str]:
    return [f"{{'train': TrainArgs(save_interval=800, max_steps={course.planned})}}", "Measured TFLOPs: 1234.50"]


def _torchtune(course: Course, step: Step) -> Iterator[str]:
    yield (
        f"Step {step.number} | loss:{step.loss} lr:{step.learning_rate} tokens_per_second_per_gpu:"
        f"{step.tokens_per_second} peak_memory_reserved:61.25 grad_norm:{step.norm} "
    )


def _verl_pairs(step: Step) -> str:
    return (
        f"actor/kl_loss:0.001 - actor/pg_loss:{number(step.loss, '.3f')} - "
        f"actor/grad_norm:{number(step.norm, '.3f')} - "
        f"perf/mfu/actor:1.018 - actor/lr:{step.learning_rate!r} - response_length/mean:288.600 - "
        f"timing_s/gen:{step.seconds / 2:.3f} - timing_s/step:{step.seconds:.3f} - perf/throughput:"
        f"{step.tokens_per_second:.3f}"
    )


def _verl(course: Course, step: Step) -> Iterator[str]:
    yield f"(TaskRunner pid=4711) step:{step.number} - {_verl_pairs(step)}"


def _verl_start(course: Course) -> list[str]:
    return [f"(TaskRunner pid=4711) Total training steps: {course.planned}"]


def _verl_sft(course: Course, step: Step) -> Iterator[str]:
    yield (
        f"step:{step.number} - train/loss:{number(step.loss, '.6f')} - train/grad_norm:{number(step.norm, '.6f')} - "
        f"train/lr(1e-3):{step.learning_rate * 1000:.6f} - train/time(s):{step.seconds:.6f}"
    )


def _deepspeed(course: Course, step: Step) -> Iterator[str]:
    time = f"[{clock_text(step.clock, comma=True)}] [INFO] [logging.py:96:log_dist]"
    yield f"{time} [Rank 0] step={step.number}, skipped=0, lr=[{step.learning_rate}], mom=[(0.9, 0.95)]"
    yield (
        f"steps: {step.number} loss: {number(step.loss, '0.4f')} iter time (s): {step.seconds:0.3f} "
        f"samples/sec: {course.batch / step.seconds:0.3f}"
    )


# --- a block a step ---


def _figure(value: float) -> str:
    """As OLMo prints numbers."""
    if not math.isfinite(value):
        return str(value)
    if value > 1000:
        return f"{int(value):,d}"
    return (
        f"{value:.1f}"
        if value > 100
        else f"{value:.2f}"
        if value > 10
        else f"{value:.3f}"
        if value > 1
        else f"{value:.4f}"
    )


def _olmo(course: Course, step: Step) -> Iterator[str]:
    yield f"{clock_text(step.clock)}.123\tnode0:0\tolmo.train:966\tINFO\t[step={step.number}/{course.planned},epoch=0]"
    yield f"    optim/total_grad_norm={_figure(step.norm)}"
    yield f"    train/CrossEntropyLoss={_figure(step.loss)}"
    yield f"    throughput/total_tokens={step.number * _tokens_per_step(course):,}"
    yield f"    throughput/device/tokens_per_second={_figure(step.tokens_per_second)}"
    yield "    System/Peak GPU Memory (MB)=61,234"


def _olmo_end(course: Course) -> list[str]:
    return [f"{clock_text(90_000.0)}.123\tnode0:0\ttrain:377\tINFO\tTraining complete"]


def _olmo_core(course: Course, step: Step) -> Iterator[str]:
    head = f"[step={step.number}/{course.planned},epoch=1,eta=00:12:34]"
    yield f"{clock_text(step.clock)}.123\tnode0:0\tolmo_core.train.callbacks.console_logger:65\tINFO\t{head}"
    yield f"    train/CE loss={_figure(step.loss)}"
    yield f"    optim/total grad norm={_figure(step.norm)}"
    yield f"    throughput/device/TPS={_figure(step.tokens_per_second)}"
    yield f"    throughput/device/MFU={_figure(100 * step.mfu)}"
    yield "    throughput/total tokens=1.234B"


def _olmo_core_start(course: Course) -> list[str]:
    return [
        f"{clock_text(33_000.0)}.123\tnode0:0\tolmo_core.train.trainer:719\tINFO\tTraining for {course.planned} steps"
    ]


def _composer(course: Course, step: Step) -> Iterator[str]:
    yield f"[batch={step.number}/{course.planned}]:"
    yield f"\t Train time/batch: {step.number - 1}"
    yield f"\t Train loss/train/total: {number(step.loss, '.4f')}"
    yield f"\t Train l2_norm/grad/global: {number(step.norm, '.4f')}"
    yield f"\t Train throughput/device/tokens_per_sec: {step.tokens_per_second:.4f}"
    yield f"\t Train throughput/device/mfu: {step.mfu:.4f}"
    yield "\t Train lr-DecoupledAdamW/group0: 0.0003"


def _composer_start(course: Course) -> list[str]:
    return [
        "2026-09-21 09:10:00,123: rank0[4711][MainThread]: INFO: composer.utils.reproducibility: Setting seed to 17"
    ]


# --- a progress bar as lines ---


def _levanter(course: Course, rng: random.Random) -> Iterator[Line]:
    yield from noise(rng, 12)
    rate = 0.0
    for step in _steps(course):
        rate = step.seconds if step.number - course.first < 3 else 0.7 * rate + 0.3 * step.seconds
        if step.number == 1 or step.number % LEVANTER_EVERY == 0:
            text = (
                f"{clock_text(step.clock)} - 0 - tqdm_loggable.tqdm_logging - INFO :: Progress on:train "
                f"{step.number}.0it/{course.planned}.0it rate:{rate:,.1f}s/it remaining:12:34 elapsed:1:23:45 "
                f"postfix:loss={number(step.loss, '.3g')}"
            )
            yield Line(text=text, kind="step", step=step.number - 1)
        yield from noise(rng, 1)


OTHERS: dict[str, Family] = {
    family.name: family
    for family in (
        Family(name="nanogpt", write=written(_nanogpt, _nanogpt_start), has_grad_norm=False, counts_from=0),
        Family(
            name="nanochat", counts_from=0, has_grad_norm=False,
            write=written(_nanochat, _nanochat_start, lambda _: ["Total training time: 12.34m"]),
        ),
        Family(
            name="llmc",
            write=written(_llmc, _llmc_start, lambda _: ["total average iteration time: 12012.345678 ms"]),
        ),
        Family(
            name="modded_nanogpt", has_grad_norm=False, says_batch=False,
            write=written(
                _modded, lambda _: ["Running PyTorch 2.9.0 compiled for CUDA 12.8"],
                lambda _: ["peak memory allocated: 31712 MiB reserved: 33442 MiB"],
            ),
        ),
        Family(
            name="litgpt", has_grad_norm=False, says_batch=False,
            write=written(_litgpt, _litgpt_start, lambda _: ["| - Training Time : 721.34 s"]),
        ),
        Family(
            name="torchtune", says_batch=False,
            write=written(_torchtune, lambda _: ["Running FullFinetuneRecipeDistributed with resolved config:"]),
        ),
        Family(name="olmo", write=written(_olmo, lambda _: ["Peak GPU Memory (MB) before fsdp: 0"], _olmo_end)),
        Family(name="olmo-core", write=written(_olmo_core, _olmo_core_start, _olmo_end), says_batch=False),
        Family(name="composer", write=written(_composer, _composer_start), says_batch=False),
        Family(
            name="levanter", write=_levanter, steps=120, every=LEVANTER_EVERY, has_grad_norm=False, says_batch=False,
            is_sampled=True,
        ),
        Family(
            name="verl", says_batch=False, is_cross_entropy=False,
            write=written(
                _verl, _verl_start, lambda _: ["(TaskRunner pid=4711) 'Final validation metrics: None'"]
            ),
        ),
        Family(
            name="verl_sft", says_batch=False,
            write=written(_verl_sft, lambda c: [f"Total training steps: {c.planned}"],
                           lambda _: ["Final validation metrics: None"]),
        ),
        Family(
            name="deepspeed", write=written(_deepspeed, lambda _: []), has_grad_norm=False, prints_total=False,
            says_batch=False,
        ),
    )
}  # fmt: skip
