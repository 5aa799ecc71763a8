"""What a run will need, against what compilers and published runs say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatrial import estimate, flops, hardware
from seatrial.presets import MODELS
from seatrial.published import results
from seatrial.spec import (
    Batch,
    Execution,
    MeshShape,
    Objective,
    Optimizer,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
)

GIB = 2**30


def spec_of(
    model: str, micro: int, length: int, remat: str = "full", *, layers: int | None = None, accumulate: int = 1,
    moments: str = "float32", scan: bool = True, parallel: dict[str, Any] | None = None, **mesh: int,
) -> RunSpec:  # fmt: skip
    shape = MeshShape(**mesh)
    preset = MODELS[model]
    return RunSpec(
        name="run",
        dialect="native",
        model=replace(preset, num_layers=layers or preset.num_layers),
        batch=Batch(
            sequence_length=length, micro_batch_size=micro,
            global_batch_size=micro * accumulate * shape.data * shape.fsdp,
        ),
        steps=10,
        topology=Topology(devices_per_node=shape.product),
        parallelism=Parallelism(within_node=shape, **(parallel or {})),
        precision=Precision(optimizer_dtype=moments),  # type: ignore[arg-type]
        execution=Execution(remat=remat, scan_layers=scan),
    )  # fmt: skip


SP = {"sequence_parallel": True}

# XLA's own account of whole training steps compiled for an H200 (jax 0.10.2, cuDNN attention, float32 parameters and
# moments, logits by chunks), in GiB per device.
COMPILED: list[tuple[float, RunSpec]] = [
    (120.6, spec_of("llama3.1-8b", 1, 8192)),
    (55.8, spec_of("llama3.2-1b", 8, 4096, "none", scan=False)),
    (80.1, spec_of("llama3.2-1b", 8, 4096, "none")),
    (75.6, spec_of("llama3.2-1b", 16, 4096, "minimal_with_context")),
    (108.0, spec_of("llama3.2-3b", 8, 4096, "minimal_with_context")),
    (116.6, spec_of("llama3.1-8b", 4, 8192, "minimal_with_context", layers=16)),
    (95.5, spec_of("llama3.1-8b", 2, 8192, "none", layers=16, scan=False)),
    (102.6, spec_of("llama3.1-8b", 2, 8192, "save_out_proj", moments="bfloat16")),
    (135.9, spec_of("llama3.1-8b", 2, 8192, "minimal_with_context", moments="bfloat16")),
    (94.9, spec_of("llama3.1-70b", 1, 8192, "none", layers=4)),
    (32.1, spec_of("llama3.1-70b", 1, 8192, fsdp=64)),
    (52.1, spec_of("llama3.1-70b", 2, 4096, "save_out_proj", fsdp=64)),
    (132.8, spec_of("llama3.1-70b", 1, 8192, "minimal_with_context", fsdp=64)),
    (15.2, spec_of("llama3.1-70b", 1, 8192, fsdp=2048)),
    (25.4, spec_of("llama3.1-70b", 1, 8192, data=16, fsdp=128)),
    (22.3, spec_of("llama3.1-70b", 8, 8192, data=4, fsdp=64, tensor=8, parallel=SP)),
    (29.6, spec_of("llama3.1-405b", 4, 8192, fsdp=256, tensor=8, parallel=SP)),
    (68.5, spec_of("llama3.1-405b", 1, 8192, data=8, fsdp=256)),
]

# What PyTorch's allocator had reserved, logits of the whole micro-batch included: torchtitan, llama3_h100_202412,
# tables 1, 2 and 3 (with torch.compile); ROCm Megatron-LM's "mem usages: 0.7494" of an MI300X, llama2-7b, fp8.
MEASURED: list[tuple[float, RunSpec]] = [
    (77.0, spec_of("llama3.1-8b", 2, 8192, "minimal", fsdp=8)),
    (83.9, spec_of("llama3.1-8b", 1, 32_768, fsdp=8)),
    (62.0, spec_of("llama3.1-8b", 2, 8192, "minimal", fsdp=128)),
    (0.7494 * 192, spec_of("llama2-7b", 4, 4096, "none", scan=False, accumulate=8, data=8, parallel={"zero1": True})),
]


@pytest.mark.parametrize(("gib", "spec"), COMPILED)
def test_memory_is_what_the_compiler_says_within_a_fifth(gib: float, spec: RunSpec) -> None:
    assert estimate.memory(spec).total_bytes / GIB == pytest.approx(gib, rel=0.2)


@pytest.mark.parametrize(("gib", "spec"), MEASURED)
def test_memory_is_what_other_trainers_took_within_a_quarter(gib: float, spec: RunSpec) -> None:
    assert estimate.memory(spec, chunk_tokens=None).total_bytes / GIB == pytest.approx(gib, rel=0.25)


@pytest.mark.parametrize(("gib", "spec"), [*COMPILED, *MEASURED])
def test_the_state_alone_is_less_than_any_run_took(gib: float, spec: RunSpec) -> None:
    assert estimate.memory(spec).state_bytes / GIB < gib


def test_state_is_counted_by_hand() -> None:
    """A parameter is 4 bytes, its gradient 4, Adam's moments 8; ZeRO-1 splits only the moments, FSDP all of it."""
    parameters = flops.num_parameters(MODELS["llama2-7b"]) - MODELS["llama2-7b"].hidden_dim  # but the last norm
    whole = estimate.memory(spec_of("llama2-7b", 1, 4096))
    assert (whole.parameters_bytes, whole.gradients_bytes, whole.optimizer_bytes) == (
        4 * parameters, 4 * parameters, 8 * parameters,
    )  # fmt: skip
    split = estimate.memory(spec_of("llama2-7b", 1, 4096, data=4, parallel={"zero1": True}))
    assert (split.parameters_bytes, split.gradients_bytes, split.optimizer_bytes) == (
        4 * parameters, 4 * parameters, 2 * parameters,
    )  # fmt: skip
    sharded = estimate.memory(spec_of("llama2-7b", 1, 4096, fsdp=4))
    assert (sharded.parameters_bytes, sharded.optimizer_bytes) == (parameters, 2 * parameters)
    sgd = replace(spec_of("llama2-7b", 1, 4096), optimizer=Optimizer(algorithm="sgd"))
    assert estimate.memory(sgd).optimizer_bytes == 4 * parameters


def test_activations_follow_the_papers_rule() -> None:
    """Recomputed in full, a layer keeps its input: 2 bytes × tokens × width (arXiv 2205.05198, table 2)."""
    one = estimate.memory(spec_of("llama3.1-8b", 2, 8192, accumulate=16))
    assert one.activations_bytes == 2 * 2 * 8192 * 4096 * 32
    # The first stage of a pipeline holds a micro-batch for each stage, so that the split saves nothing of it …
    pipeline = estimate.memory(spec_of("llama3.1-8b", 2, 8192, accumulate=16, pipeline=4))
    assert pipeline.activations_bytes == one.activations_bytes
    # … and virtual stages cost (1 + (p − 1) / (p·v)) times that.
    virtual = spec_of("llama3.1-8b", 2, 8192, accumulate=16, pipeline=4, parallel={"virtual_pipeline": 2})
    assert estimate.memory(virtual).activations_bytes == one.activations_bytes * (1 + 3 / 8)
    # Sequence parallelism and context parallelism split the tokens that are kept.
    for changes in ({"tensor": 4, "parallel": SP}, {"context": 4}):
        split = spec_of("llama3.1-8b", 2, 8192, accumulate=16, **changes)  # type: ignore[arg-type]
        assert estimate.memory(split).activations_bytes == one.activations_bytes / 4


def test_attention_that_holds_its_scores_needs_them_all() -> None:
    spec = spec_of("llama3.1-8b", 1, 8192, "none", scan=False)
    held = replace(spec, execution=replace(spec.execution, attention="dot_product"))
    more = estimate.memory(held).activations_bytes - estimate.memory(spec).activations_bytes
    assert more == 32 * 32 * 8192**2 * (4 + 2)


def test_utilization_is_that_of_nine_in_ten_published_runs() -> None:
    reached: dict[str, list[float]] = {}
    for row in results():
        device = hardware.find(row.device)
        peak = device.peak("bfloat16", row.precision) if device else None
        if row.model in MODELS and not row.proxy and not row.variant and peak and row.precision == peak[1]:
            each = flops.flops_per_token(MODELS[row.model], row.sequence_length)
            reached.setdefault(row.precision, []).append(row.tokens_per_second_per_device * each / peak[0])
    assert set(reached) == set(estimate.UTILIZATION)
    for precision, (low, high) in estimate.UTILIZATION.items():
        inside = [low <= share <= high for share in reached[precision]]
        assert len(inside) > 50
        assert sum(inside) / len(inside) >= 0.9


def test_a_published_step_time_is_within_what_is_expected() -> None:
    """NeMo 24.11.1, llama3.1-8b on 8 H100, 128 sequences of 8192 tokens in bfloat16: 12.91 s."""
    spec = spec_of("llama3.1-8b", 1, 8192, accumulate=16, fsdp=8)
    expected = estimate.speed(spec, hardware.DEVICES["h100-sxm"])
    assert expected is not None
    assert expected.step_seconds[0] < 12.91 < expected.step_seconds[1]
    tokens = 128 * 8192 / 8
    assert expected.tokens_per_second_per_device == (
        pytest.approx(tokens / expected.step_seconds[1]), pytest.approx(tokens / expected.step_seconds[0]),
    )  # fmt: skip
    assert expected.utilization == estimate.UTILIZATION["bfloat16"]


def test_a_pipeline_waits_for_its_ends() -> None:
    plain = estimate.speed(spec_of("llama3.1-8b", 1, 8192, accumulate=8), hardware.DEVICES["h200"])
    spec = spec_of("llama3.1-8b", 1, 8192, accumulate=8, pipeline=5)
    piped = estimate.speed(spec, hardware.DEVICES["h200"])
    assert plain is not None
    assert piped is not None
    assert piped.step_seconds[0] == pytest.approx(plain.step_seconds[0] / 5 * (1 + 4 / 8))


def test_a_preference_is_two_sequences() -> None:
    plain = spec_of("llama3.1-8b", 1, 8192)
    pairs = replace(plain, objective=Objective(kind="dpo"))
    assert estimate.memory(pairs).activations_bytes == 2 * estimate.memory(plain).activations_bytes
    one, two = (estimate.speed(spec, hardware.DEVICES["h200"]) for spec in (plain, pairs))
    assert one is not None
    assert two is not None
    assert two.step_seconds[0] == pytest.approx(2 * one.step_seconds[0])


def test_no_peak_no_speed() -> None:
    spec = spec_of("llama3.1-8b", 1, 8192)
    assert estimate.speed(spec, None) is None
    float32 = replace(spec, precision=Precision(compute_dtype="float32"))
    assert estimate.speed(float32, hardware.DEVICES["h100-sxm"]) is None
