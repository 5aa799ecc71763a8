"""The estimated memory of a run, against the figures of compilers and of published runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools import compiled_memory

from seatrial.estimate import flops, layer_memory, memory, own_layer
from seatrial.spec import Container, Execution, Objective, Optimizer, RunSpec
from seatrial.spec.presets import MODELS
from tests.helpers.compiled import COMPILED, SP, spec_of

GIB = 2**30

# What PyTorch's allocator had reserved, logits of the whole micro-batch included: torchtitan, llama3_h100_202412,
# tables 1, 2 and 3 (with torch.compile); ROCm Megatron-LM's "mem usages: 0.7494" of an MI300X, llama2-7b, fp8.
MEASURED: list[tuple[float, RunSpec]] = [
    (77.0, spec_of("llama3.1-8b", 2, 8192, "minimal", fsdp=8)),
    (83.9, spec_of("llama3.1-8b", 1, 32_768, fsdp=8)),
    (62.0, spec_of("llama3.1-8b", 2, 8192, "minimal", fsdp=128)),
    (0.7494 * 192, spec_of("llama2-7b", 4, 4096, "none", scan=False, accumulate=8, data=8, parallel={"zero1": True})),
]


@pytest.mark.parametrize(("gib", "spec"), COMPILED)
def test_our_own_trainer_s_memory_is_what_the_compiler_says(gib: float, spec: RunSpec) -> None:
    """Hardly ever too little: who believes that would run out of memory."""
    assert 0.95 * gib < memory.per_device(spec, "native").total_bytes / GIB < 1.2 * gib


# By draw and split: how many steps, how many within 5%, the lowest and the highest error; and of those whose layers are
# scanned without a pipeline.
Near = tuple[int, int, float, float]
NEAR: dict[tuple[int, str], tuple[Near, Near]] = {
    (2026, "calibration"): ((118, 109, -0.06, 0.41), (92, 90, -0.06, 0.06)),
    (2027, "calibration"): ((111, 99, -0.16, 0.64), (87, 83, -0.07, 0.16)),
    (2028, "calibration"): ((90, 88, -0.05, 0.15), (78, 77, -0.05, 0.06)),
    (2029, "calibration"): ((38, 38, -0.05, 0.03), (35, 35, -0.05, 0.03)),
    (2029, "held back"): ((52, 48, -0.04, 1.16), (42, 40, -0.04, 0.07)),
}


@pytest.mark.parametrize(("draw", "split"), NEAR)
def test_the_estimate_is_as_near_to_compiled_steps_as_the_page_says(draw: int, split: str) -> None:
    """The constants come from the rows "calibration"; the others were held back before anything was compiled."""
    rows = compiled_memory.read()
    for kind, (number, near, lowest, highest) in zip(("all", "scanned, no pipeline"), NEAR[draw, split], strict=True):
        off = compiled_memory.errors(rows, split, kind, draw)
        assert (len(off), sum(abs(each) <= 0.05 for each in off)) == (number, near)
        assert lowest < off[0]
        assert off[-1] < highest


def test_what_is_called_a_guess_is_not_scanned() -> None:
    for row in compiled_memory.read():
        spec = row.spec()
        assert memory.is_uncertain(spec) == (not row.scan and not row.is_alone)


def test_the_table_s_estimates_are_those_of_today() -> None:
    for row in compiled_memory.read():
        assert row.estimated_bytes == round(memory.per_device(row.spec(), "native").total_bytes), row


@pytest.mark.parametrize(("gib", "spec"), MEASURED)
def test_memory_is_what_other_trainers_took_within_a_quarter(gib: float, spec: RunSpec) -> None:
    assert memory.per_device(spec, "megatron", chunk_tokens=None).total_bytes / GIB == pytest.approx(gib, rel=0.25)


@pytest.mark.parametrize(("gib", "spec"), [*COMPILED, *MEASURED])
def test_the_state_alone_is_less_than_any_run_took(gib: float, spec: RunSpec) -> None:
    assert memory.per_device(spec, "native").state_bytes / GIB < gib


def test_all_gradients_are_there_at_the_update() -> None:
    """If a table of positions is most of the model, no moment before the update holds as much."""
    small = replace(
        MODELS["llama3.1-8b"], vocab_size=256, hidden_dim=2, num_layers=2, num_heads=1, num_kv_heads=1, head_dim=2,
        ffn_dim=1, positions="learned", max_positions=1024,
    )  # fmt: skip
    spec = replace(spec_of("llama3.1-8b", 1, 2, accumulate=2, pipeline=2), model=small)
    need = memory.per_device(spec, "native")
    assert need.gradients_bytes >= 4 * 1024 * 2
    assert need.state_bytes <= need.total_bytes


def test_state_is_counted_by_hand() -> None:
    """A parameter is 4 bytes, its gradient 4, Adam's moments 8; ZeRO-1 splits only the moments, FSDP all of it."""
    parameters = flops.num_parameters(MODELS["llama2-7b"]) - MODELS["llama2-7b"].hidden_dim  # but the last norm
    whole = memory.per_device(spec_of("llama2-7b", 1, 4096), "native")
    assert (whole.parameters_bytes, whole.gradients_bytes, whole.optimizer_bytes) == (
        4 * parameters, 4 * parameters, 8 * parameters,
    )  # fmt: skip
    split = memory.per_device(spec_of("llama2-7b", 1, 4096, data=4, parallel={"zero1": True}), "native")
    assert (split.parameters_bytes, split.gradients_bytes, split.optimizer_bytes) == (
        4 * parameters, 4 * parameters, 2 * parameters,
    )  # fmt: skip
    sharded = memory.per_device(spec_of("llama2-7b", 1, 4096, fsdp=4), "native")
    assert (sharded.parameters_bytes, sharded.optimizer_bytes) == (parameters, 2 * parameters)
    for optimizer, each in (
        (Optimizer(algorithm="sgd", momentum=0.0), 0),
        (Optimizer(algorithm="sgd", momentum=0.9), 4),
        (Optimizer(algorithm="rmsprop", momentum=0.0), 4),
        (Optimizer(algorithm="rmsprop", momentum=0.9), 8),
    ):
        other = replace(spec_of("llama2-7b", 1, 4096), optimizer=optimizer)
        assert memory.per_device(other, "native").optimizer_bytes == each * parameters


def per_parameter(spec: RunSpec, engine: str) -> tuple[float, ...]:
    """Bytes of weights, gradients, moments and of the least state for each parameter of llama2-7b."""
    parameters = flops.num_parameters(MODELS["llama2-7b"]) - MODELS["llama2-7b"].hidden_dim  # but the last norm
    need = memory.per_device(spec, engine)
    parts = (need.parameters_bytes, need.gradients_bytes, need.optimizer_bytes, need.state_bytes)
    return tuple(part / parameters for part in parts)


def test_megatron_computes_with_other_weights_than_it_updates() -> None:
    """18 bytes for each parameter, or 6 + 12 / replicas with ZeRO-1 (its theoretical_memory_usage.py).

    The least has gradients in bfloat16, and of what is updated the half that the bfloat16 weights lack; without
    ZeRO-1 neither can be had. In float32 there is one kind of weights.
    """
    alone = spec_of("llama2-7b", 1, 4096, data=4)
    assert per_parameter(alone, "megatron") == (6, 4, 8, 18)
    split = replace(alone, parallelism=replace(alone.parallelism, zero1=True))
    assert per_parameter(split, "megatron") == (2 + 4 / 4, 4, 8 / 4, 2 + (2 + 2 + 8) / 4)
    sharded = spec_of("llama2-7b", 1, 4096, fsdp=4)
    assert per_parameter(sharded, "megatron") == (6 / 4, 4 / 4, 8 / 4, 18 / 4)
    wide = replace(alone, precision=replace(alone.precision, compute_dtype="float32"))
    assert per_parameter(wide, "megatron") == (4, 4, 8, 16)
    assert per_parameter(alone, "maxtext") == (4, 4, 8, 14)
    # Without ZeRO-1 NxDT keeps no weights to be updated, whatever its configuration says.
    assert per_parameter(replace(alone, dialect="nxdt"), "megatron") == (4, 4, 8, 14)


def test_devices_of_a_context_axis_share_the_state() -> None:
    """Megatron-LM's ZeRO-1 and FSDP split over data × context, MaxText's fsdp over fsdp × context; ours do not."""
    plain = spec_of("llama2-7b", 1, 4096, context=8)
    zero1 = replace(plain, parallelism=replace(plain.parallelism, zero1=True))
    both = spec_of("llama2-7b", 1, 4096, context=4, data=2, parallel={"zero1": True})
    for spec in (zero1, both):
        assert per_parameter(spec, "megatron") == (2 + 4 / 8, 4, 8 / 8, 2 + (2 + 2 + 8) / 8)
    assert per_parameter(plain, "megatron") == (6, 4, 8, 18)
    assert per_parameter(spec_of("llama2-7b", 1, 4096, context=4, fsdp=2), "megatron") == (6 / 8, 4 / 8, 8 / 8, 18 / 8)
    for spec in (spec_of("llama2-7b", 1, 4096, context=8), spec_of("llama2-7b", 1, 4096, context=4, fsdp=2)):
        assert per_parameter(spec, "maxtext") == (4 / 8, 4 / 8, 8 / 8, 14 / 8)
    assert memory.per_device(zero1, "native").optimizer_bytes == memory.per_device(plain, "native").optimizer_bytes


def test_state_in_the_host_s_memory_is_not_on_the_device() -> None:
    def told(spec: RunSpec, **keys: str) -> RunSpec:
        return replace(spec, execution=replace(spec.execution, engine_keys=keys))

    alone = spec_of("llama2-7b", 1, 4096, data=2, parallel={"zero1": True})
    whole, part = told(alone, **{"--optimizer-cpu-offload": ""}), {"--optimizer-offload-fraction": "0.5"}
    assert per_parameter(whole, "megatron") == (2, 4, 0, 2 + 2 / 2)
    half = told(alone, **{"--optimizer-cpu-offload": ""}, **part)
    assert per_parameter(half, "megatron") == (2 + 4 / 4, 4, 8 / 4, 2 + 2 / 2 + 2 / 4 + 8 / 4)
    none = told(alone, **{"--optimizer-cpu-offload": "", "--optimizer-offload-fraction": "0"})
    for spec in (none, told(alone, **part)):
        assert per_parameter(spec, "megatron") == per_parameter(alone, "megatron")
    plain = spec_of("llama2-7b", 1, 4096)
    assert per_parameter(told(plain, optimizer_memory_host_offload="true"), "maxtext") == (4, 4, 0, 6)
    assert per_parameter(told(plain, parameter_memory_host_offload="true"), "maxtext") == (0, 4, 8, 10)
    assert per_parameter(told(plain, parameter_memory_host_offload="false"), "maxtext") == (4, 4, 8, 14)
    # Each engine reads its own keys, and our own trainer none of them.
    assert per_parameter(told(plain, optimizer_memory_host_offload="true"), "megatron") == (6, 4, 8, 18)
    assert memory.per_device(whole, "native") == memory.per_device(alone, "native")


def test_megatron_has_no_loop_over_layers_that_keeps_more() -> None:
    looped, apart = (spec_of("llama3.1-8b", 1, 8192, "none", scan=scan) for scan in (True, False))
    assert memory.per_device(looped, "megatron") == memory.per_device(apart, "megatron")
    for engine in ("maxtext", "native"):
        held = [memory.per_device(spec, engine).activations_bytes for spec in (looped, apart)]
        assert held[0] > 1.4 * held[1]


def test_activations_follow_the_papers_rule() -> None:
    """Recomputed in full, a layer keeps its input: 2 bytes × tokens × width (arXiv 2205.05198, table 2)."""
    one = memory.per_device(spec_of("llama3.1-8b", 2, 8192, accumulate=16), "megatron")
    assert one.activations_bytes == 2 * 2 * 8192 * 4096 * 32
    # The first stage of a pipeline holds a micro-batch for each stage, so that the split saves nothing of it …
    pipeline = memory.per_device(spec_of("llama3.1-8b", 2, 8192, accumulate=16, pipeline=4), "megatron")
    assert pipeline.activations_bytes == one.activations_bytes
    # … and virtual stages cost (1 + (p − 1) / (p·v)) times that.
    virtual = spec_of("llama3.1-8b", 2, 8192, accumulate=16, pipeline=4, parallel={"virtual_pipeline": 2})
    assert memory.per_device(virtual, "megatron").activations_bytes == one.activations_bytes * (1 + 3 / 8)
    # Sequence parallelism and context parallelism split the tokens that are kept.
    for changes in ({"tensor": 4, "parallel": SP}, {"context": 4}):
        split = spec_of("llama3.1-8b", 2, 8192, accumulate=16, **changes)  # type: ignore[arg-type]
        assert memory.per_device(split, "megatron").activations_bytes == one.activations_bytes / 4


def test_attention_that_holds_its_scores_needs_them_all() -> None:
    spec = spec_of("llama3.1-8b", 1, 8192, "none", scan=False)
    held = replace(spec, execution=replace(spec.execution, attention="dot_product"))
    more = memory.per_device(held, "native").activations_bytes - memory.per_device(spec, "native").activations_bytes
    assert more == 32 * 32 * 8192**2 * (4 + 2)


def test_our_own_trainer_adds_gradients_of_a_pass_to_their_sum() -> None:
    """Counted by hand: each layer adds its own, but where formats differ there are as many again as gradients; of a
    pipeline, the layers of a stage or of its chunk.

    Without fsdp, XLA copies weights and gradients of a stage with several chunks into the order of the chunks.
    """
    one, four = (memory.per_device(spec_of("llama3.1-8b", 1, 8192, accumulate=n, fsdp=8), "native") for n in (1, 4))
    table = 4 * 128256 * 4096 / 8
    assert one.gradients_bytes == one.parameters_bytes - 2 * table  # the layers' alone, until the end
    assert four.gradients_bytes == four.parameters_bytes + table  # the embedding's own, and its place in the sum
    several = spec_of("llama3.1-8b", 1, 8192, accumulate=4, fsdp=8)
    apart = replace(several, precision=replace(several.precision, gradient_dtype="bfloat16"))
    assert memory.per_device(apart, "native").gradients_bytes == 1.5 * one.parameters_bytes - table
    delayed = replace(several, precision=replace(several.precision, quantization="fp8"))
    assert memory.per_device(delayed, "native").gradients_bytes == 2 * one.parameters_bytes - table
    stages = spec_of("llama3.1-8b", 1, 8192, accumulate=8, pipeline=4)
    held = memory.per_device(stages, "native")
    layers = held.parameters_bytes - 2 * 4 * 128256 * 4096  # but both tables
    assert held.gradients_bytes == 2 * layers  # a tick's and their sum; the head's is not split yet
    chunks = replace(stages, parallelism=replace(stages.parallelism, virtual_pipeline=2))
    assert memory.per_device(chunks, "native").gradients_bytes == 3 * layers  # and weights in the order of chunks
    split = spec_of("llama3.1-8b", 1, 8192, accumulate=8, pipeline=4, fsdp=2, parallel={"virtual_pipeline": 2})
    assert memory.per_device(split, "native").gradients_bytes == 3 * layers / 2


def test_gradients_that_are_not_added_in_place_cross_the_network_late() -> None:
    """Those of a second layer, in float32; without fsdp nothing is brought together, and nothing crosses."""
    one, several = (spec_of("llama3.1-405b", 1, 2048, accumulate=n, fsdp=64) for n in (1, 2))
    assert own_layer.at_work(one, 2048, 10**9) - own_layer.at_work(several, 2048, 10**9) == 4 * 10**9
    alone, more = (spec_of("llama3.1-405b", 1, 2048, accumulate=n) for n in (1, 2))
    assert own_layer.at_work(alone, 2048, 10**9) == own_layer.at_work(more, 2048, 10**9)


def test_activations_of_several_sequences_are_turned_around() -> None:
    """The outputs of both norms of a layer, of all tokens; only with sequence parallelism, and where all is kept."""
    one = 2 * 32 * 8 * 4096 * 4096
    spec = spec_of("llama3.1-8b", 8, 4096, "none", fsdp=8, tensor=8, parallel=SP)
    assert own_layer.turned_activations(spec, 8 * 4096) == 2 * one
    several = spec_of("llama3.1-8b", 8, 4096, "none", accumulate=2, fsdp=8, tensor=8, parallel=SP)
    assert own_layer.turned_activations(several, 8 * 4096) == one
    for other in (
        spec_of("llama3.1-8b", 1, 4096, "none", fsdp=8, tensor=8, parallel=SP),
        spec_of("llama3.1-8b", 8, 4096, "full", fsdp=8, tensor=8, parallel=SP),
        spec_of("llama3.1-8b", 8, 4096, "none", fsdp=8, tensor=8),
    ):
        assert own_layer.turned_activations(other, 8 * 4096) == 0


def test_attention_by_blocks_holds_more_where_products_are_merged() -> None:
    """Up to 64 MiB with their operands: a block's scores take 48 of one step, 96 of the other. Nor with fp8."""
    spec = replace(spec_of("llama2-7b", 1, 16_384), execution=Execution(attention="blocks"))
    model = replace(spec.model, num_heads=24, num_kv_heads=24, head_dim=64)
    square = 2048**2 * 4
    waits = {heads: replace(spec, model=replace(model, num_heads=heads, num_kv_heads=heads)) for heads in (24, 48)}
    assert own_layer._scores(waits[24], 16_384) == (0.0, 4 * 24 * square)
    assert own_layer._scores(waits[48], 16_384) == (0.0, 2.25 * 48 * square)
    fp8 = replace(waits[24], precision=replace(spec.precision, quantization="te_fp8_currentscaling"))
    assert own_layer._scores(fp8, 16_384) == (0.0, 2.25 * 24 * square)


def test_of_few_tokens_both_tables_are_whole_behind_the_layers() -> None:
    """With fsdp, beside all layers' gradients and the head's part; more tokens make the layers' own moment larger."""
    spec = spec_of("llama3.1-8b", 1, 2048, context=4, fsdp=16)
    need, table = memory.per_device(spec, "native"), 4 * 128256 * 4096
    assert need.gradients_bytes == need.parameters_bytes - table / 16
    assert (need.activations_bytes, need.working_bytes) == (0, 2 * table)
    assert memory.per_device(spec_of("llama3.1-8b", 8, 8192, context=4, fsdp=16), "native").activations_bytes > 0


def test_keys_and_values_of_the_whole_sequence_are_kept_where_nothing_is_recomputed() -> None:
    for remat, more in (("none", 3 * 2 * 8 * 128 * 2), ("minimal", 0)):
        whole, split = (spec_of("llama3.1-8b", 1, 8192, remat, context=n) for n in (1, 4))
        assert layer_memory.layer_activations(split, own=True) - layer_memory.layer_activations(whole, own=True) == more


def test_our_own_pipeline_keeps_all_micro_batches() -> None:
    """Of each tick, of which P - 1 are idle, a stage's layers; of each micro-batch what enters and what leaves."""
    spec = spec_of("llama3.1-70b", 1, 8192, accumulate=64, fsdp=8, pipeline=8)
    each = 2 * 8192 * 8192
    assert memory.per_device(spec, "native").activations_bytes == (10 * (64 + 7) + 2 * 64) * each
    assert memory.per_device(spec, "megatron").activations_bytes == 10 * 8 * each


def test_a_pipeline_s_forward_pass_holds_its_stage_s_weights() -> None:
    """In bfloat16, of all devices of fsdp, unless the stage has several chunks; counted by hand."""
    spec = spec_of("llama3.1-405b", 1, 4096, accumulate=8, fsdp=64, pipeline=2, tensor=8, parallel=SP)
    attention, ffn = 16384 * (2 * 16384 + 2 * 8 * 128), 3 * 16384 * 53248
    weights = 2 * 63 * (attention + ffn) / 8
    assert weights < memory.per_device(spec, "native").working_bytes < 1.1 * weights
    chunks = replace(spec, parallelism=replace(spec.parallelism, virtual_pipeline=3))
    assert memory.per_device(chunks, "native").working_bytes < 0.5 * weights


def test_layers_that_are_not_scanned_hold_a_slice_of_their_weights_each() -> None:
    """Of one device, in a step of several passes: the layers' weights in float32, beside their gradients' sum."""
    spec = spec_of("llama3.2-3b", 1, 32_768, accumulate=4, scan=False)
    need = memory.per_device(spec, "native")
    table = 4 * 128256 * 3072
    layers = need.parameters_bytes - table
    assert need.gradients_bytes == need.parameters_bytes
    assert layers + table < need.working_bytes < 1.5 * (layers + table)


def exported(fsdp: int = 1, inside: dict[str, str] | None = None, **environment: str) -> RunSpec:
    spec = spec_of("llama3.1-8b", 1, 8192, fsdp=fsdp)
    container = None if inside is None else Container(image="x", environment=inside)
    return replace(spec, execution=Execution(environment=environment), container=container)


def on(device: str, spec: RunSpec) -> RunSpec:
    return replace(spec, topology=replace(spec.topology, device=device))


@pytest.mark.parametrize(
    ("engine", "spec", "share"),
    [
        ("native", exported(), (0.9, "")),
        ("maxtext", exported(), (0.75, "")),  # JAX's own
        ("megatron", exported(), (1.0, "")),
        ("maxtext", exported(XLA_PYTHON_CLIENT_MEM_FRACTION="0.92"), (0.92, "XLA_PYTHON_CLIENT_MEM_FRACTION")),
        ("native", exported(XLA_CLIENT_MEM_FRACTION=".5"), (0.5, "XLA_CLIENT_MEM_FRACTION")),
        ("maxtext", exported(inside={"XLA_CLIENT_MEM_FRACTION": "0.8"}), (0.8, "XLA_CLIENT_MEM_FRACTION")),
        ("megatron", exported(XLA_CLIENT_MEM_FRACTION="0.5"), (1.0, "")),
        # A limit, also where it is not taken at the start
        ("maxtext", exported(XLA_PYTHON_CLIENT_PREALLOCATE="false"), (0.75, "")),
        ("maxtext", exported(XLA_PYTHON_CLIENT_ALLOCATOR="platform", XLA_CLIENT_MEM_FRACTION="0.5"), (1.0, "")),
        ("maxtext", exported(XLA_PYTHON_CLIENT_ALLOCATOR="bfc"), (0.75, "")),
        # JAX limits the memory of GPUs alone
        ("maxtext", on("mi300x", exported()), (0.75, "")),
        ("maxtext", on("tpu-v5p", exported(XLA_PYTHON_CLIENT_MEM_FRACTION="0.92")), (1.0, "")),
        ("native", on("tpu-v6e", exported()), (1.0, "")),
        ("native", on("trainium2", exported()), (1.0, "")),
        ("native", on("a device that nobody knows", exported()), (0.9, "")),
    ],
)  # fmt: skip
def test_a_process_gets_the_share_that_its_runtime_takes(engine: str, spec: RunSpec, share: tuple[float, str]) -> None:
    assert memory.share(spec, engine) == share


def test_a_preference_is_two_sequences() -> None:
    plain = spec_of("llama3.1-8b", 1, 8192)
    pairs = replace(plain, objective=Objective(kind="dpo"))
    assert (
        memory.per_device(pairs, "native").activations_bytes == 2 * memory.per_device(plain, "native").activations_bytes
    )
