"""The step compiled for an H200 by a machine without a GPU: what runs there, and in how much memory, is seen in the
program that XLA makes.

Needs NVIDIA's compiler plugin and cuDNN beside jax: `pip install 'seatrial[plan-gpu]'`.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from dataclasses import replace

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from seatrial.estimate.compiled import TARGETS
from seatrial.estimate.own_memory import CHUNK_TOKENS, chunk_tokens
from seatrial.spec import Batch, Execution, ModelSpec, Precision, RunSpec
from seatrial.train import compile as deviceless
from seatrial.train import fp8, trainer
from seatrial.train.compile import compiled_step, describe
from tests.helpers.compiled import COMPILED, JAX
from tests.helpers.trainer import make_spec


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


MISSING = [name for name in ("jax_plugins.xla_cuda13", "jax_cuda13_plugin", "nvidia.cudnn") if not is_there(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the extra plan-gpu is not installed: no {', '.join(MISSING)}")

MODEL = ModelSpec(
    name="wide", vocab_size=1024, hidden_dim=512, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128, ffn_dim=1024
)  # fmt: skip


@pytest.fixture(autouse=True)
def uncached():
    """Programs for a device that is not there cannot be read back from JAX's cache."""
    was = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", was)
    compilation_cache.reset_cache()


def custom_calls(spec: RunSpec) -> Counter[str]:
    """The number of calls of each routine of NVIDIA's libraries in the step's program; scanned layers count once."""
    text = program_of(spec)
    return Counter(re.findall(r'custom_call_target="([^"]+)"', text))


def spec_of(precision: Precision, mesh: dict[str, int] | None = None, scan: bool = True) -> RunSpec:
    batch = Batch(sequence_length=1024, global_batch_size=8, micro_batch_size=2)
    execution = Execution(remat="none", scan_layers=scan)
    return make_spec(mesh, model=MODEL, batch=batch, precision=precision, execution=execution)


LINEAR = 3 * 7  # forward, and the gradients of both operands, of the matrices of a layer


def test_attention_is_cudnn_s_and_products_are_cublas_s():
    calls = custom_calls(spec_of(Precision()))
    assert calls["__cudnn$fmhaSoftmax"] >= 1
    assert calls["__cudnn$fmhaSoftmaxBackward"] >= 1
    # And the output head; products as small as these are merged where they share an operand.
    assert 0.7 * LINEAR + 3 < calls["__cublas$lt$matmul"] <= LINEAR + 3
    assert calls["__cublas$lt$matmul$f8"] == 0


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("fp8", {}),
        pytest.param("te_fp8_currentscaling", {"fsdp": 4, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_every_product_of_a_layer_runs_on_the_fp8_units(name, mesh):
    calls = custom_calls(spec_of(Precision(quantization=name), mesh))
    assert calls["__cublas$lt$matmul$f8"] >= LINEAR  # more where XLA takes a turn out of the loop over layers
    assert calls["__cublas$lt$matmul"] == 3  # the output head
    assert calls["__cudnn$fmhaSoftmaxBackward"] >= 1


@pytest.mark.parametrize("name", ["fp8", "te_fp8_currentscaling"])
def test_a_run_s_own_program_computes_in_fp8(name, monkeypatch):
    """With a device XLA may offer products to Triton, and of these it would drop the rounding to fp8."""
    monkeypatch.setattr(deviceless, "WITHOUT_A_DEVICE", {})
    spec = spec_of(Precision(quantization=name))
    assert custom_calls(spec)["__cublas$lt$matmul$f8"] >= LINEAR
    monkeypatch.setattr(fp8, "OPTIONS", {})
    assert "f8e" not in program_of(spec)  # else the options are no longer needed


def test_without_units_for_fp8_numbers_are_rounded_all_the_same(monkeypatch):
    monkeypatch.setattr(deviceless, "WITHOUT_A_DEVICE", {})
    monkeypatch.setattr(fp8, "OPTIONS", {})
    monkeypatch.setattr(trainer, "has_fp8_units", lambda device: False)
    text = program_of(spec_of(Precision(quantization="te_fp8_currentscaling")))
    assert "f8e4m3fn" in text
    assert "f8e5m2" in text
    assert "$f8" not in text


def test_gradients_wait_for_fp8_in_bfloat16():
    """XLA would keep those of gate and up in float32, between the activation's backward pass and their rounding."""
    text = program_of(spec_of(Precision(quantization="te_fp8_currentscaling"), scan=False))
    of_ffn = rf"f32\[2,1024,{MODEL.ffn_dim}\]"
    assert re.search(of_ffn, text)  # within fusions
    assert not re.search(rf"= \(?[^=]*{of_ffn}[^=]*\)? fusion\(", text)


def test_current_scales_are_agreed_on_once_a_step():
    """Of all weights together: what a device itself computes with, it scales by itself."""
    execution = Execution(remat="full")
    spec = replace(spec_of(Precision(quantization="te_fp8_currentscaling"), {"fsdp": 4}), execution=execution)
    found = describe(spec, "h200")["program"]["collectives"]
    times = Counter({each["kind"]: 0 for each in found})
    for each in found:
        times[each["kind"]] += each["times"]
    assert times["all-reduce"] <= 4  # the scales, the norm, the metrics; not one for each product
    assert times["all-gather"] >= MODEL.num_layers


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_says_what_its_step_does(target):
    """Two layers that keep everything: seven matrices in three products each, and the head's in chunks of tokens."""
    spec = spec_of(Precision(), {"fsdp": 2, "tensor": 2})
    found = describe(spec, target, xla_gpu_dot_merger_threshold_mb=0)
    passes, kernels = spec.accumulation_steps, {each["kind"]: each["times"] for each in found["program"]["kernels"]}
    chunks = 2 * 1024 // CHUNK_TOKENS
    assert kernels == {
        "cuDNN attention, backward": 2 * passes,
        "cuDNN attention, forward": 2 * passes,
        "product, bf16": (2 * LINEAR + 3 * chunks) * passes,
    }
    over = {(each["kind"], each["axes"]): each for each in found["program"]["collectives"]}
    assert over["all-gather", ("fsdp",)]["is_asynchronous"]
    summed = sum(each["bytes"] for (kind, axes), each in over.items() if kind == "reduce-scatter" and axes == ("fsdp",))
    # in float32, whatever is split over fsdp, once a pass: matrices of both layers, both tables
    matrices = MODEL.num_layers * MODEL.hidden_dim * (2 * 512 + 2 * 256 + 3 * MODEL.ffn_dim)
    assert summed == pytest.approx(4 * passes * (matrices + 2 * MODEL.vocab_size * MODEL.hidden_dim) / 2, rel=0.01)


def program_of(spec: RunSpec) -> str:
    text: str = compiled_step(spec, "h200")[0].as_text()
    return text


def temporaries(spec: RunSpec) -> int:
    size: int = compiled_step(spec, "h200")[0].memory_analysis().temp_size_in_bytes
    return size


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize(("remat", "forward"), [("minimal_with_context", 1), ("minimal", 2)])
def test_attention_whose_context_is_kept_runs_forward_once(remat, forward, scan):
    """cuDNN's backward pass wants the log-sum-exp, too, which has no name of its own."""
    spec = replace(spec_of(Precision()), execution=Execution(remat=remat, scan_layers=scan))
    found = describe(spec, "h200")["program"]["kernels"]
    times = {each["kind"]: each["times"] for each in found}
    layers = MODEL.num_layers * spec.accumulation_steps
    assert times["cuDNN attention, forward"] == forward * layers
    assert times["cuDNN attention, backward"] == layers


def test_micro_batches_add_to_one_tree_of_gradients():
    """Those of the layers lie in memory once, however many micro-batches there are."""
    model = replace(MODEL, num_layers=32)
    of_layers = 4 * model.num_layers * MODEL.hidden_dim * (2 * 512 + 2 * 256 + 3 * MODEL.ffn_dim)

    def spec(sequences: int) -> RunSpec:
        batch = Batch(sequence_length=1024, global_batch_size=sequences, micro_batch_size=1)
        return make_spec(model=model, batch=batch, precision=Precision(), execution=Execution(remat="full"))

    more = temporaries(spec(4)) - temporaries(spec(1))
    assert more < 0.3 * of_layers


@pytest.mark.parametrize("scan", [True, False])
def test_one_kernel_updates_a_parameter_and_both_moments(scan):
    """28 bytes for each parameter: what the update writes at the top level, it writes by threes."""
    batch = Batch(sequence_length=1024, global_batch_size=2, micro_batch_size=2)
    execution = Execution(remat="none", scan_layers=scan)
    text = program_of(make_spec(model=MODEL, batch=batch, precision=Precision(), execution=execution))
    entry = text[text.index("\nENTRY ") :]
    updates = re.findall(r"= (\(.*?\)|\S+) fusion\(.*op_name=\"jit\(train_step\)/(?:sub|add)\"", entry)
    written = [Counter(re.findall(r"f32\[\d+,[\d,]+\]", kinds)) for kinds in updates]
    assert sum(sum(each.values()) for each in written) == 3 * (len("qkvogud") + len("eh") + 2)  # and norms of layers
    assert all(number % 3 == 0 for each in written for number in each.values())


def test_the_head_takes_as_many_tokens_at_once_as_gradients_leave_room_for():
    """The head's gradient is read and written by each chunk, which takes as long as a fifth of the chunk's products."""
    batch = Batch(sequence_length=8192, global_batch_size=1, micro_batch_size=1)
    for layers, chunk in ((2, CHUNK_TOKENS), (16, 4 * CHUNK_TOKENS)):
        spec = make_spec(model=replace(MODEL, num_layers=layers), batch=batch, execution=Execution(remat="full"))
        assert chunk_tokens(spec) == chunk
        assert f"f32[{chunk},{MODEL.vocab_size}]" in program_of(spec)


@pytest.mark.parametrize(("gib", "spec"), COMPILED[::3])  # enough to see that the step has changed
def test_the_memory_of_a_step_is_what_the_table_says(gib, spec):
    """Other versions of XLA place buffers a little differently; more than that is for the estimate to follow."""
    memory = compiled_step(spec, "h200")[0].memory_analysis()
    unaliased = memory.output_size_in_bytes - memory.alias_size_in_bytes
    whole = (memory.argument_size_in_bytes + unaliased + memory.temp_size_in_bytes) / 2**30
    assert whole == pytest.approx(gib, rel=0.01 if jax.__version__ == JAX else 0.1)
