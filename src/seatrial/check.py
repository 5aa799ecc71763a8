"""Cross-field rules: what is wrong, or looks wrong, with a spec as a whole.

A rule sees the spec and where its values came from, and yields findings in the user's own key names. It decides purely:
what the installed jaxlib says about XLA flags is asked for in `xla_flags`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial import flops, hardware, xla_flags
from seatrial.errors import Problem, Severity
from seatrial.presets import MODELS, same_architecture
from seatrial.spec import MeshShape, Resolved, RunSpec

# The trainer's rows of the same names; what each of them keeps is MaxText's meaning of it.
REMAT = (
    "none", "full", "minimal", "minimal_with_context", "minimal_flash", "save_dot_except_mlp",
    "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_qkv_proj", "save_out_proj",
)  # fmt: skip

# Two bars of one file agree if they are no further apart than this: published pairs are rounded, and mix conventions.
AGREEMENT = 0.10


class Finder:
    """What a rule is given: the spec, the action, and a way to say where in the user's file a finding belongs."""

    def __init__(self, resolved: Resolved, spec: RunSpec, action: str) -> None:
        self.spec = spec
        self.action = action
        self._resolved = resolved

    def at(self, path: str, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the value at a spec path."""
        origin = self._resolved.origin(path)
        return Problem(
            severity=severity, code=code, path=origin.key or path, why=why, fix=fix, mark=origin.mark
        )  # fmt: skip

    def key(self, path: str) -> str:
        """What the user calls a spec path."""
        return self._resolved.origin(path).key.rpartition(".")[2] or path

    def note(self, path: str) -> str:
        """How a value was made, where that is not plain: ", assumed …"."""
        note = self._resolved.origin(path).note
        return f" ({note})" if note else ""


Rule = Callable[[Finder], Iterator[Problem]]


def lint(resolved: Resolved, *, action: str) -> Resolved:
    """The same, with what the rules found appended to its problems."""
    if resolved.spec is None:
        return resolved
    finder = Finder(resolved, resolved.spec, action)
    found = [problem for _, rule in RULES for problem in rule(finder)]
    return replace(resolved, problems=(*resolved.problems, *found))


# --- the model --------------------------------------------------------------------------------------------------------


def contradiction(name: str, stated: Mapping[str, tuple[str, Any]]) -> str | None:
    """How numbers given for a model differ from its name's preset: user's key → (field of ModelSpec, value)."""
    preset = MODELS.get(name)
    if preset is None:
        return None
    differing = {key: (field, value) for key, (field, value) in stated.items() if getattr(preset, field) != value}
    if not differing:
        return None
    owner = same_architecture(replace(preset, **dict(differing.values())))
    numbers = ", ".join(f"{key} {value} (not {getattr(preset, field)})" for key, (field, value) in differing.items())
    whose = f"those of {owner}" if owner and owner != name else "of no known model"
    return f"{numbers}: these numbers are {whose}, not those of {name}"


def _architecture(finder: Finder) -> Iterator[Problem]:
    model = finder.spec.model
    stated = {finder.key(f"model.{f}"): (f, value) for f, value in vars(model).items() if f != "name"}
    why = contradiction(model.name, stated)
    if why:
        first = next(f for f, value in stated.values() if value != getattr(MODELS[model.name], f))
        yield finder.at(
            f"model.{first}", "warning", "architecture-contradicts-name", f"{why}; the numbers decide",
            "give the model another name, or the numbers of this one",
        )  # fmt: skip


def _heads(finder: Finder) -> Iterator[Problem]:
    model = finder.spec.model
    if model.num_heads % model.num_kv_heads:
        yield finder.at(
            "model.num_kv_heads", "error", "not-divisible",
            f"{model.num_heads} query heads cannot share {model.num_kv_heads} key/value heads evenly",
            f"use a divisor of {model.num_heads}",
        )  # fmt: skip
    if model.head_dim % 2:
        why = f"rotary positions turn pairs of dimensions, and {model.head_dim} is odd"
        yield finder.at("model.head_dim", "error", "not-divisible", why, "use an even number")


# --- mesh and batch ---------------------------------------------------------------------------------------------------


def _fits(shape: MeshShape, devices: int) -> bool:
    resolved = shape.resolve(devices)
    return resolved.is_resolved and resolved.product == devices


def _mesh_is_sound(spec: RunSpec) -> bool:
    return _fits(spec.parallelism.within_node, spec.topology.devices_per_node) and _fits(
        spec.parallelism.across_nodes, spec.topology.num_nodes
    )


def _devices(finder: Finder) -> Iterator[Problem]:
    """Each part of the mesh uses exactly the devices that it spans."""
    topology, parallelism = finder.spec.topology, finder.spec.parallelism
    for part, shape, there, count, what in (
        ("within_node", parallelism.within_node, topology.devices_per_node, "devices_per_node", "devices of a node"),
        ("across_nodes", parallelism.across_nodes, topology.num_nodes, "num_nodes", "nodes"),
    ):
        unset = [axis for axis, size in shape.sizes.items() if size == -1]
        given = {axis: size for axis, size in shape.sizes.items() if size not in (1, -1)}
        path = f"parallelism.{part}.{next(iter(given or unset), 'fsdp')}"
        product = (
            " × ".join(f"{finder.key(f'parallelism.{part}.{axis}')} {size}" for axis, size in given.items()) or "1"
        )
        if len(unset) > 1:
            keys = " and ".join(finder.key(f"parallelism.{part}.{axis}") for axis in unset)
            why = f"{keys} are both -1, and only one axis can take what the others leave"
            yield finder.at(f"parallelism.{part}.{unset[1]}", "error", "mesh-devices", why, "give all but one a size")
        elif not _fits(shape, there):
            verb = "does not divide" if unset else "is not"
            yield finder.at(
                path, "error", "mesh-devices",
                f"{product} {verb} the {there} {what}{finder.note('topology.num_nodes')}",
                f"make the product of these axes {'a divisor of ' if unset else ''}{there}, or "
                f"{finder.key(f'topology.{count}')} {'a multiple of ' if unset else ''}{shape.product}",
            )  # fmt: skip


def _batch(finder: Finder) -> Iterator[Problem]:
    spec = finder.spec
    if not _mesh_is_sound(spec):
        return
    replicas, batch = spec.data_parallel_size, spec.batch
    if batch.global_batch_size % (batch.micro_batch_size * replicas):
        yield finder.at(
            "batch.global_batch_size", "error", "not-divisible",
            f"{batch.global_batch_size} sequences a step are not a multiple of "
            f"{batch.micro_batch_size} (micro batch) × {replicas} (data × fsdp)",
            f"use a multiple of {batch.micro_batch_size * replicas}",
        )  # fmt: skip


def _split_dimensions(finder: Finder) -> Iterator[Problem]:
    """Every dimension that a mesh axis splits is a multiple of the axis."""
    spec = finder.spec
    if not _mesh_is_sound(spec):
        return
    model, mesh = spec.model, spec.mesh
    embed = mesh["fsdp"] * (mesh["data"] if spec.parallelism.zero1 else 1)
    tokens = mesh["tensor"] if spec.parallelism.sequence_parallel else 1
    for path, size, axes, parts in (
        ("model.num_heads", model.num_heads, "tensor", mesh["tensor"]),
        ("model.num_kv_heads", model.num_kv_heads, "tensor", mesh["tensor"]),
        ("model.ffn_dim", model.ffn_dim, "tensor", mesh["tensor"]),
        ("model.vocab_size", model.vocab_size, "tensor", mesh["tensor"]),
        ("model.hidden_dim", model.hidden_dim, "fsdp × data" if spec.parallelism.zero1 else "fsdp", embed),
        ("batch.sequence_length", spec.batch.sequence_length, "tensor (sequence parallelism)", tokens),
    ):
        if size % parts:
            why = f"{path.rpartition('.')[2]} {size} cannot be split evenly over {axes} = {parts}"
            yield finder.at(path, "error", "not-divisible", why, f"use a multiple of {parts}, or a smaller axis")


def _schedule(finder: Finder) -> Iterator[Problem]:
    spec = finder.spec
    if spec.optimizer.warmup_steps >= spec.steps > 1:
        yield finder.at(
            "optimizer.warmup_steps", "warning", "endless-warm-up",
            f"the learning rate is still rising when the run ends after {spec.steps} steps",
            "warm up for fewer steps, or train for more",
        )  # fmt: skip


def _data(finder: Finder) -> Iterator[Problem]:
    data, model = finder.spec.data, finder.spec.model
    if data.kind == "text" and not data.paths:
        yield finder.at("data.paths", "error", "missing-key", "text is asked for, but no files", "add data.paths")
    if data.kind == "synthetic" and data.paths:
        why = "synthetic data reads no files"
        yield finder.at("data.paths", "warning", "no-effect", why, 'set data.kind to "text", or remove the paths')
    if data.kind == "text" and model.vocab_size < 256:
        why = f"the byte tokenizer makes 256 tokens, and the model has {model.vocab_size}"
        yield finder.at("model.vocab_size", "error", "vocabulary-too-small", why, "use 256 or more")


# --- bars -------------------------------------------------------------------------------------------------------------


def _impossible_bars(finder: Finder) -> Iterator[Problem]:
    """No bar lies above what the device can do at its peak."""
    spec = finder.spec
    device = hardware.find(spec.topology.device)
    peak = device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device else None
    for bar in spec.expectations:
        if bar.metric in ("mfu", "memory_fraction") and bar.value > 1:
            why = f"{bar.value:g} is above 1, and this is a fraction"
            yield finder.at(f"expectations.{bar.metric}", "warning", "impossible-expectation", why, "use a fraction")
        if device is None or peak is None:
            continue
        asked = _tflops(spec, bar.metric, bar.value)
        if asked > peak[0] / hardware.TERA:
            means = "" if bar.metric.startswith("tflops") else f"{bar.value:g} tokens/s mean {asked:.0f} TFLOP/s, and "
            yield finder.at(
                f"expectations.{bar.metric}", "warning", "impossible-expectation",
                f"{means}{device.name} reaches {peak[0] / hardware.TERA:g} TFLOP/s in {peak[1]} at its peak "
                f"({device.source}): no run can pass",
                f"expect less than {peak[0] / hardware.TERA / asked * bar.value:.0f}",
            )  # fmt: skip


def _tflops(spec: RunSpec, metric: str, value: float) -> float:
    """The least TFLOP/s per device that a bar means, by any convention; 0 for a bar on something else."""
    if metric == "tflops_per_second_per_device":
        return value
    if metric == "tokens_per_second_per_device":
        return value * min(_flops_per_token(spec).values()) / hardware.TERA
    return 0.0


def _flops_per_token(spec: RunSpec) -> dict[str, float]:
    return {name: flops.flops_per_token(spec.model, spec.batch.sequence_length, name) for name in flops.CONVENTIONS}


def _repeated_bars(finder: Finder) -> Iterator[Problem]:
    """A metric has one bar."""
    metrics = [bar.metric for bar in finder.spec.expectations]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            why = f"there is a bar for {metric} already"
            path = f"expectations.{index}.metric"
            yield finder.at(path, "error", "repeated-expectation", why, "keep one of the two")


def _contradicting_bars(finder: Finder) -> Iterator[Problem]:
    """TFLOP/s and tokens/s are one measurement: their ratio is the model's FLOPs per token."""
    bars = {bar.metric: bar.value for bar in finder.spec.expectations}
    tflops, tokens = bars.get("tflops_per_second_per_device"), bars.get("tokens_per_second_per_device")
    if tflops is None or tokens is None:
        return
    means = {name: tokens * each / hardware.TERA for name, each in _flops_per_token(finder.spec).items()}
    if any(abs(math.log(tflops / value)) <= math.log1p(AGREEMENT) for value in means.values()):
        return
    listed = ", ".join(f"{value:.0f} ({name})" for name, value in means.items())
    wanted = ", ".join(f"{tokens * tflops / value:.0f} ({name})" for name, value in means.items())
    model, length = finder.spec.model.name, finder.spec.batch.sequence_length
    yield finder.at(
        "expectations.tokens_per_second_per_device", "warning", "contradicting-expectations",
        f"{tokens:g} tokens/s of {model} at {length} tokens mean {listed} TFLOP/s by the published conventions, but "
        f"{tflops:g} TFLOP/s are expected, which would take {wanted} tokens/s",
        "correct one of the two",
    )  # fmt: skip


# --- environment and flags --------------------------------------------------------------------------------------------

_REPEATED = {
    "NNODES": "topology.num_nodes",
    "JAX_COORDINATOR_IP": "distributed.coordinator_host",
    "JAX_COORDINATOR_PORT": "distributed.coordinator_port",
}


def _environment(finder: Finder) -> Iterator[Problem]:
    """Variables that repeat a setting say the same as the setting, which is what every process is given."""
    spec = finder.spec
    settings = {
        "NNODES": spec.topology.num_nodes,
        "JAX_COORDINATOR_IP": spec.distributed.coordinator_host,
        "JAX_COORDINATOR_PORT": spec.distributed.coordinator_port,
    }
    for path, environment in (
        ("container.environment", spec.container.environment if spec.container else {}),
        ("execution.environment", spec.execution.environment),
    ):
        for name, setting in settings.items():
            if name in environment and setting is not None and environment[name] != str(setting):
                decides = _REPEATED[name]
                yield finder.at(
                    f"{path}.{name}", "warning", "environment-contradicts-config",
                    f"it says {environment[name]}, but {finder.key(decides)} is {setting}{finder.note(decides)}, "
                    "and that is what the processes are given",
                    f"make it say {setting}, or remove it",
                )  # fmt: skip


def _variable_names(finder: Finder) -> Iterator[Problem]:
    """What is exported has a name that a shell takes."""
    container = finder.spec.container
    parts = {
        "execution": finder.spec.execution.environment, "container": container.environment if container else {},
    }  # fmt: skip
    for part, variables in parts.items():
        for name in variables:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                why = f"{name!r} is no name of an environment variable"
                fix = "use letters, digits and _ only, and no digit first"
                yield finder.at(f"{part}.environment.{name}", "error", "bad-variable-name", why, fix)


def _flags(finder: Finder) -> Iterator[Problem]:
    flags = finder.spec.execution.xla_flags
    verdicts = xla_flags.probe(flags) if flags else {}
    if verdicts is None:
        why = "there is no jaxlib here to ask whether it knows these flags"
        yield finder.at(
            "execution.xla_flags", "info", "flags-not-probed", why, "install seatrial[train] to have it asked"
        )
        return
    version = xla_flags.jaxlib_version()
    for name, verdict in verdicts.items():
        path = f"execution.xla_flags.{name}"
        if verdict == "malformed":
            why = "XLA_FLAGS is split at blanks and quotes, so this would not stay one flag"
            yield finder.at(path, "error", "bad-xla-flag", why, "remove blanks and quotes")
        if verdict == "unknown":
            yield finder.at(
                path, "warning", "unknown-xla-flag",
                f"jaxlib {version}, as installed here, does not know it, and XLA ends a process for an unknown flag; "
                "Seatrial's own trainer leaves it out",
                xla_flags.replacement(name),
            )  # fmt: skip
        if verdict == "bad_value":
            yield finder.at(
                path, "warning", "bad-xla-flag",
                f"jaxlib {version}, as installed here, cannot read the value {flags[name]!r}, and XLA ends a process "
                "for that; Seatrial's own trainer leaves the flag out",
                "correct the value",
            )  # fmt: skip


# --- what the trainer cannot do yet -----------------------------------------------------------------------------------


def _not_supported_yet(finder: Finder) -> Iterator[Problem]:
    spec = finder.spec
    severity: Severity = "warning" if finder.action == "plan" else "error"
    sizes = spec.mesh if _mesh_is_sound(spec) else {}
    parts = {"within_node": spec.parallelism.within_node, "across_nodes": spec.parallelism.across_nodes}
    wanted = [
        *(
            (f"parallelism.{part}.{axis}", sizes.get(axis, 1) > 1 and shape.sizes[axis] != 1, f"{axis} parallelism")
            for axis in ("pipeline", "context")
            for part, shape in parts.items()
        ),
        ("checkpoint.enabled", spec.checkpoint.enabled, "saving and restoring checkpoints"),
        ("precision.quantization", spec.precision.quantization is not None, f"{spec.precision.quantization} products"),
    ]
    for path, is_wanted, what in wanted:
        if is_wanted:
            yield finder.at(
                path, severity, "not-supported-yet", f"Seatrial's own trainer has no {what} yet",
                "turn it off for this run",
            )  # fmt: skip


RULES: tuple[tuple[str, Rule], ...] = (
    ("the model's numbers are those of its name", _architecture),
    ("query heads share key/value heads evenly", _heads),
    ("the mesh uses every device once", _devices),
    ("the global batch divides into micro batches", _batch),
    ("what a mesh axis splits is a multiple of it", _split_dimensions),
    ("the warm-up ends before the run does", _schedule),
    ("there is data of the kind asked for", _data),
    ("no bar is above the device's peak", _impossible_bars),
    ("no metric has two bars", _repeated_bars),
    ("bars that measure the same thing agree", _contradicting_bars),
    ("variables repeat what the settings say", _environment),
    ("variables have the names of variables", _variable_names),
    ("the installed jaxlib knows the XLA flags", _flags),
    ("the trainer can do what is asked for", _not_supported_yet),
)
