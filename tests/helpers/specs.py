"""Runs of every kind, as hypothesis draws them, and what holds of each dialect: what it writes reads back the same."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from hypothesis import strategies as st

from seatrial import source
from seatrial.check import REMAT
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Note, Written
from seatrial.estimate.hardware import DEVICES
from seatrial.spec import (
    AXES,
    METRICS,
    Algorithm,
    Batch,
    Checkpoint,
    Container,
    Data,
    Distributed,
    Dropout,
    Dtype,
    Evaluation,
    Execution,
    Expectation,
    Initialization,
    Logging,
    MeshShape,
    ModelSpec,
    Objective,
    Optimizer,
    Parallelism,
    Precision,
    Resolved,
    RopeScaling,
    RunSpec,
    ScheduleKind,
    Topology,
    flatten,
)
from seatrial.spec.presets import MODELS

Part = TypeVar("Part")

# --- scalars ----------------------------------------------------------------------------------------------------------

# What a spelling has to quote, or a shell, YAML, JSON or OmegaConf would read as something else.
AWKWARD = (
    "with blanks in it", "it's", 'say "x"', "$HOME/x", "${oc.env:HOME}", "a\\b", "a#b", "a: b", "a=b", "a,b", "*.txt",
    "~/x", "-x", "--steps=3", "null", "None", "none", "true", "no", "12", "1e3", "0x1F", "[a]", "{a}", "@a", "&a", "!a",
    "%a", "`id`", "$(id)", "a;b", "a|b", "größe", "数据", "😀", " leading", "trailing ", "'", '"', "---", "<<",
)  # fmt: skip


def without_engine_keys(spec: RunSpec) -> RunSpec:
    """A run without what only its own engine reads."""
    return replace(spec, execution=replace(spec.execution, engine_keys={}))


def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    """Text of one character or more, none of them a control character or the end of a line."""
    free = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=max_size)
    plain = st.from_regex(r"[a-z][a-z0-9_./-]{0,15}", fullmatch=True)
    return plain | st.sampled_from(AWKWARD) | free


def decimals(low: float, high: float, *, digits: int = 4) -> st.SearchStrategy[float]:
    """Numbers as people write them: a few digits, between two bounds, each of which is possible."""
    made = st.builds(
        lambda share: float(f"{low + (high - low) * share:.{digits}g}"), st.floats(0, 1, allow_subnormal=False)
    )
    return made.filter(lambda number: low <= number <= high)


def rates(low_exponent: int = -8, high_exponent: int = -1) -> st.SearchStrategy[float]:
    """Numbers above 0, over several orders of magnitude, of up to five digits."""
    exponents = st.integers(low_exponent, high_exponent)
    return st.builds(lambda digits, exponent: float(f"{digits}e{exponent - 4}"), st.integers(1, 99_999), exponents)


def names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[a-z0-9][A-Za-z0-9._-]{0,20}[a-z0-9]", fullmatch=True)


def variables() -> st.SearchStrategy[str]:
    """Names of environment variables of which no dialect makes something else."""
    known = ("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "NCCL_PROTO")
    return st.sampled_from(known) | st.from_regex(r"MY_[A-Z0-9_]{1,8}", fullmatch=True)


def maybe(strategy: st.SearchStrategy[Part]) -> st.SearchStrategy[Part | None]:
    return st.none() | strategy


def some_of(kind: type[Part], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Part]:
    """A part of the spec with all of its fields left out, or any of them given."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


def words(alias: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(alias))


# --- parts that stand alone -------------------------------------------------------------------------------------------

_STEPS = st.integers(1, 100_000)
_SHARE = decimals(0, 1) | st.sampled_from((0.0, 0.5, 1.0))
_PROBABILITY = decimals(0, 0.9)
_BELOW_ONE = decimals(0, 0.9999)


def optimizers(steps: int) -> st.SearchStrategy[Optimizer]:
    return some_of(
        Optimizer, algorithm=words(Algorithm), learning_rate=rates(), schedule=words(ScheduleKind),
        warmup_steps=st.integers(0, steps), hold_steps=st.integers(0, steps), constant_steps=st.integers(0, steps),
        decay_steps=maybe(st.integers(max(1, steps // 2), 2 * steps)), final_learning_rate_fraction=_SHARE,
        decay_power=decimals(0.5, 4), decay_factor=decimals(0.01, 1),
        decay_interval_steps=maybe(st.integers(1, steps)), beta1=_BELOW_ONE, beta2=_BELOW_ONE, epsilon=rates(-12, -3),
        momentum=_SHARE,
        weight_decay=decimals(0, 1), decay_norms=st.booleans(), clip_norm=maybe(decimals(0.1, 10)),
        on_non_finite=st.sampled_from(("abort", "skip", "continue")),
    )  # fmt: skip


@st.composite
def _data(draw: st.DrawFn, objective: str) -> Data:
    kind = draw(words(get_type_hints(Data)["kind"]) if objective == "pretraining" else st.just("records"))
    if kind == "synthetic":
        return Data()
    is_named = kind in ("huggingface", "tfds", "c4_mlperf")
    paths = tuple(draw(st.lists(texts(), min_size=0 if is_named else 1, max_size=3, unique=True)))
    weighted = draw(st.booleans()) and bool(paths)
    rest = draw(some_of(
        dict, validation_paths=st.lists(texts(), max_size=2, unique=True).map(tuple),
        test_paths=st.lists(texts(), max_size=2, unique=True).map(tuple),
        split=st.sampled_from((None, "980,10,10", "99,1,0", "1,0,0")), tokenizer=texts(), index_dir=maybe(texts()),
        packing=st.booleans(), max_examples=maybe(st.integers(1, 10_000)), reset_positions=st.booleans(),
        reset_attention=st.booleans(), mask_document_ends=st.booleans(),
    ))  # fmt: skip
    weights = tuple(draw(decimals(0.01, 10)) for _ in paths) if weighted else ()
    return Data(kind=kind, paths=paths, weights=weights, dataset=draw(texts()) if is_named else None, **rest)


_OBJECTIVES = some_of(Objective, max_prompt_length=maybe(st.integers(1, 4096))) | st.builds(
    Objective, kind=st.sampled_from(("sft", "dpo", "orpo")), beta=decimals(0.01, 2),
    max_prompt_length=maybe(st.integers(1, 4096)), truncation=st.sampled_from(("keep_start", "keep_end")),
)  # fmt: skip
_EVALUATIONS = some_of(
    Evaluation, interval_steps=maybe(_STEPS), interval_fraction=maybe(decimals(0.01, 1)),
    every_epochs=maybe(st.integers(1, 5)),
    batches=maybe(st.integers(1, 1000)), fraction=decimals(0.01, 1), initial_batches=st.integers(-1, 8),
    target_loss=maybe(decimals(0.01, 10)), patience=maybe(st.integers(1, 10)),
)  # fmt: skip
_LOGGING = some_of(
    Logging, interval_steps=st.integers(1, 1000), tensorboard=st.booleans(), gradient_norm=st.booleans(),
    parameter_norm=st.booleans(), startup_times=st.booleans(),
)  # fmt: skip
_CHECKPOINTS = some_of(
    Checkpoint, enabled=st.booleans(), asynchronous=st.booleans(), directory=maybe(texts()),
    interval_steps=maybe(_STEPS), interval_minutes=maybe(decimals(0.5, 600)), keep=maybe(st.integers(1, 100)),
    keep_best=maybe(st.sampled_from(("validation_loss", "loss"))), resume=st.booleans(), resume_required=st.booleans(),
    resume_from=maybe(texts()), weights_only=st.booleans(),
)  # fmt: skip
_FLAG = st.from_regex(r"xla_(gpu|cpu)_[a-z]{2,12}", fullmatch=True)
_MODULES = st.lists(st.sampled_from(("core_attn", "mlp", "layernorm")), min_size=1, unique=True).map(tuple)
_EXECUTIONS = st.builds(
    lambda given, modules: replace(given, remat="selective", remat_modules=modules) if modules else given,
    some_of(
        Execution, remat=st.sampled_from(REMAT), scan_layers=st.booleans(),
        attention=st.sampled_from(("auto", "dot_product", "flash", "cudnn_flash_te")),
        xla_flags=st.dictionaries(_FLAG, st.from_regex(r"[a-z0-9_.,:/+-]{1,10}", fullmatch=True), max_size=3),
        environment=st.dictionaries(variables(), texts(), max_size=4), compile_cache=maybe(texts()),
        profile_from_step=maybe(st.integers(0, 100)), profile_steps=st.integers(1, 20),
    ),
    st.none() | st.none() | _MODULES,
)  # fmt: skip
_PRECISIONS = some_of(
    Precision, compute_dtype=words(Dtype), params_dtype=words(Dtype), optimizer_dtype=words(Dtype),
    gradient_dtype=words(Dtype), reduce_dtype=words(Dtype), stochastic_rounding=st.booleans(),
    tensor_reduce_dtype=maybe(words(Dtype)),
    quantization=st.sampled_from((None, "fp8", "te_fp8_currentscaling", "fp8_e4m3", "nanoo_fp8", "int8")),
)  # fmt: skip
_DISTRIBUTED = some_of(
    Distributed, coordinator_host=maybe(st.sampled_from(("10.0.0.1", "node-0", "head.cluster.example"))),
    coordinator_port=maybe(st.integers(1, 65535)), initialization_timeout_seconds=st.integers(1, 10_000),
    heartbeat_timeout_seconds=st.integers(1, 10_000),
)  # fmt: skip


@st.composite
def _containers(draw: st.DrawFn) -> Container:
    return Container(
        image=draw(st.sampled_from(("rocm/jax-training:maxtext-v25.7", "nvcr.io/nvidia/jax:25.04", "localhost/x"))),
        name=draw(maybe(names())),
        devices=tuple(draw(st.lists(st.sampled_from(("/dev/kfd", "/dev/dri", "/dev/infiniband")), unique=True))),
        volumes=tuple(draw(st.dictionaries(texts(), texts(), max_size=3)).items()),
        environment=draw(st.dictionaries(variables(), texts(), max_size=3)),
        shm_size=draw(maybe(st.sampled_from(("64G", "256G", "128g")))),
        pull=draw(maybe(st.sampled_from(("never", "missing", "always")))),
        privileged=draw(st.booleans()),
        cap_add=draw(st.sampled_from(((), ("SYS_PTRACE", "IPC_LOCK")))),
        security_opt=draw(st.sampled_from(((), ("seccomp=unconfined",)))),
        group_add=draw(st.sampled_from(((), ("video", "render")))),
    )


_VALUES = {
    "tflops_per_second_per_device": decimals(1, 2000), "tokens_per_second_per_device": decimals(1, 100_000),
    "step_seconds": decimals(0.001, 1000), "mfu": decimals(0.01, 1), "memory_fraction": decimals(0.01, 1),
}  # fmt: skip
assert set(_VALUES) == set(METRICS)


@st.composite
def _expectations(draw: st.DrawFn) -> tuple[Expectation, ...]:
    metrics = draw(st.lists(st.sampled_from(list(METRICS)), unique=True, max_size=3))
    tolerances = maybe(decimals(0, 0.5))
    return tuple(Expectation(metric=m, value=draw(_VALUES[m]), tolerance=draw(tolerances)) for m in metrics)


# --- model, mesh and batch, which have to fit each other --------------------------------------------------------------


@st.composite
def _shapes(draw: st.DrawFn, devices: int) -> MeshShape:
    """A mesh over just so many devices, each prime factor of them on any axis."""
    sizes = dict.fromkeys(AXES, 1)
    rest = devices
    for prime in (2, 3):
        while rest % prime == 0:
            sizes[draw(st.sampled_from(AXES))] *= prime
            rest //= prime
    return MeshShape(**sizes)


def _fits(model: ModelSpec, mesh: Mapping[str, int], chunks: int) -> bool:
    split = (model.num_heads, model.num_kv_heads, model.ffn_dim, model.vocab_size)
    whole = not model.hidden_dim % (mesh["fsdp"] * mesh["data"]) and not model.num_layers % (mesh["pipeline"] * chunks)
    return whole and not any(size % mesh["tensor"] for size in split)


@st.composite
def _models(draw: st.DrawFn, mesh: Mapping[str, int], chunks: int) -> ModelSpec:
    presets = [model for model in MODELS.values() if _fits(model, mesh, chunks)]
    if presets and draw(st.booleans()):
        preset = draw(st.sampled_from(presets))
        layers = mesh["pipeline"] * chunks * draw(st.integers(1, 8))
        changed = replace(preset, name=draw(names()), num_layers=layers, rope_theta=draw(decimals(1000, 1e6)))
        return draw(st.sampled_from((preset, preset, changed, replace(preset, name=changed.name))))
    kv_heads = mesh["tensor"] * draw(st.integers(1, 4))
    heads, head_dim = kv_heads * draw(st.integers(1, 4)), 2 * draw(st.integers(1, 64))
    positions: Literal["rope", "learned"] = draw(st.sampled_from(("rope", "rope", "learned")))
    whole = heads * head_dim
    shards = mesh["fsdp"] * mesh["data"]
    hidden = whole if whole % shards == 0 and draw(st.booleans()) else 2 * shards * draw(st.integers(1, 512))
    scaling = some_of(
        RopeScaling, factor=decimals(1.5, 32), low_freq_factor=decimals(0.5, 2), high_freq_factor=decimals(3, 8),
        original_max_positions=st.integers(1, 32).map(lambda k: 1024 * k),
    )  # fmt: skip
    rest = draw(some_of(
        dict, rope_theta=st.sampled_from((10_000.0, 500_000.0, 12_345.5)), norm_epsilon=rates(-8, -3),
        tied_embeddings=st.booleans(), norm=st.sampled_from(("rmsnorm", "layernorm")),
        activation=st.sampled_from(("swiglu", "gelu")), biases=st.booleans(),
        vocab_multiple=st.sampled_from((1, 8, 128)), sliding_window=maybe(st.integers(1, 5000)),
    ))  # fmt: skip
    if positions == "rope":
        rest["rope_scaling"] = draw(maybe(scaling))
        rest["rotary_fraction"] = draw(st.sampled_from((1.0, 1.0, 0.5, 0.25)))
    else:
        rest["max_positions"] = draw(maybe(st.integers(1, 64).map(lambda k: 1024 * k)))
    return ModelSpec(
        name=draw(names()), vocab_size=mesh["tensor"] * draw(st.integers(256, 4096)), hidden_dim=hidden,
        num_layers=mesh["pipeline"] * chunks * draw(st.integers(1, 8)), num_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, ffn_dim=mesh["tensor"] * draw(st.integers(1, 1024)), positions=positions, **rest,
    )  # fmt: skip


@st.composite
def _maybe_open(draw: st.DrawFn, shape: MeshShape) -> MeshShape:
    """The shape, or the same one with an axis that takes all that the others leave."""
    axis = draw(st.sampled_from((None, None, None, *AXES)))
    return replace(shape, **{axis: -1}) if axis else shape


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    """A run that could be run: what is split divides, what belongs together fits, and any part may be left out."""
    nodes, each = draw(st.sampled_from((1, 1, 2, 4, 3))), draw(st.sampled_from((1, 2, 4, 8)))
    within, across = draw(_shapes(each)), draw(_shapes(nodes))
    mesh = {axis: within.sizes[axis] * across.sizes[axis] for axis in AXES}
    chunks = draw(st.sampled_from((1, 2))) if mesh["pipeline"] > 1 else 1
    replicas, micro = mesh["data"] * mesh["fsdp"], draw(st.integers(1, 4))
    accumulation = draw(st.integers(1, 4)) * mesh["pipeline"]
    length = math.lcm(2 * mesh["context"], mesh["tensor"]) * draw(st.sampled_from((1, 64, 128, 512)))
    steps = draw(st.integers(1, 10_000))
    objective = draw(st.just(Objective()) | _OBJECTIVES)
    parts: dict[str, st.SearchStrategy[Any]] = {
        "epochs": maybe(st.integers(1, 10)), "precision": _PRECISIONS, "optimizer": optimizers(steps),
        "initialization": some_of(Initialization, std=decimals(0.001, 0.1), scaled=st.booleans()),
        "dropout": some_of(Dropout, hidden=_PROBABILITY, attention=_PROBABILITY, ffn=_PROBABILITY),
        "evaluation": _EVALUATIONS, "logging": _LOGGING, "execution": _EXECUTIONS, "checkpoint": _CHECKPOINTS,
        "distributed": _DISTRIBUTED, "container": maybe(_containers()),
        "nic_type": st.sampled_from((None, "thor2", "ainic", "mellanox")), "hf_token_file": maybe(texts()),
        "log_dir": maybe(texts()), "expectations": _expectations(), "seed": st.integers(0, 2**31 - 1),
    }  # fmt: skip
    return RunSpec(
        name=draw(names()), dialect="native", model=draw(_models(mesh, chunks)), steps=steps, objective=objective,
        batch=Batch(
            sequence_length=length, global_batch_size=micro * replicas * accumulation, micro_batch_size=micro
        ),
        topology=Topology(
            num_nodes=nodes, devices_per_node=each, device=draw(maybe(st.sampled_from(list(DEVICES))))
        ),
        parallelism=Parallelism(
            within_node=draw(_maybe_open(within)), across_nodes=draw(_maybe_open(across)),
            virtual_pipeline=chunks, zero1=draw(st.booleans()),
            sequence_parallel=draw(st.booleans()) if mesh["tensor"] > 1 else False,
            context_strategy=draw(st.sampled_from(("all_gather", "ring"))),
        ),
        data=draw(_data(objective.kind)), **draw(st.fixed_dictionaries({}, optional=parts)),
    )  # fmt: skip


# --- the law of every dialect -----------------------------------------------------------------------------------------

NOT_SAID = object()
NOT_COMPARED = ("name", "dialect")


def read_text(read: Callable[[Request], Resolved], text: str, suffix: str) -> Resolved:
    """A text in a file of such a suffix, as the dialect reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"run{suffix}"
        path.write_text(text, encoding="utf-8", newline="")
        document = source.read(path)
    return read(Request(document=document, overrides=[], action="plan", user="me", home=Path("/home/me")))


def differences(spec: RunSpec, again: RunSpec) -> dict[str, tuple[Any, Any]]:
    """Path → both values, of every leaf in which two specs differ (`name` and `dialect` aside); types count."""
    a, b = flatten(spec), flatten(again)
    pairs = {path: (a.get(path, NOT_SAID), b.get(path, NOT_SAID)) for path in {**a, **b} if path not in NOT_COMPARED}
    return {path: (one, two) for path, (one, two) in pairs.items() if one != two or type(one) is not type(two)}


def _about(note: str, path: str) -> bool:
    """True if a note's path is that of a leaf, of a part that holds it, or of an item in it."""
    return note == path or path.startswith(f"{note}.") or note.startswith(f"{path}.")


def assert_honest(notes: Iterable[Note], spec: RunSpec, different: Iterable[str]) -> None:
    """Every leaf that differs has a note, and every note is about a leaf that differs."""
    different = list(different)
    paths = [note.path for note in notes]
    silent = [path for path in different if not any(_about(note, path) for note in paths)]
    assert silent == [], f"changed without a note: {silent}"
    lying = [note for note in paths if not any(_about(note, path) for path in different)]
    assert lying == [], f"noted, but nothing is lost: {lying}"
    leaves = flatten(spec)
    wrong = [(note.path, note.value) for note in notes if note.path in leaves and leaves[note.path] != note.value]
    assert wrong == [], f"notes with values that are not the spec's: {wrong}"
    assert all(note.why for note in notes)


def assert_round_trip(
    write: Callable[[RunSpec], Written], read: Callable[[Request], Resolved], spec: RunSpec
) -> Written:
    """Asserts that what a dialect writes reads back, without errors, as the same spec at every path without a note."""
    written = write(spec)
    resolved = read_text(read, written.text, written.suffix)
    errors = [(p.code, p.path, p.why) for p in resolved.problems if p.severity == "error"]
    assert errors == [], f"{errors}\n{written.text}"
    assert resolved.spec is not None
    different = differences(spec, resolved.spec)
    try:
        assert_honest(written.notes, spec, different)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{different}\n{written.text}") from None
    return written
