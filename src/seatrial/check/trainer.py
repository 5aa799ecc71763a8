"""What Seatrial's own trainer cannot do yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seatrial.check.finder import Finder
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem, Severity
from seatrial.presets import MODELS
from seatrial.spec import Batch, RunSpec, flatten

# What the trainer has not yet, where a value other than the default asks for it: path → what is asked for.
_NOT_YET = {
    "checkpoint.enabled": "saving and restoring checkpoints",
    "checkpoint.resume_from": "starting from a checkpoint",
    "precision.quantization": "{} products",
    "precision.stochastic_rounding": "stochastic rounding",
    "precision.gradient_dtype": "other formats for accumulated gradients",
    "precision.reduce_dtype": "other formats for reduced gradients",
    "model.norm": "LayerNorm",
    "model.activation": "GELU",
    "model.positions": "learned positions",
    "model.rotary_fraction": "partial rotary positions",
    "model.biases": "biases",
    "model.vocab_multiple": "padded vocabularies",
    "initialization": "other initialisations",
    "dropout": "dropout",
    "optimizer.algorithm": "other optimizers",
    "optimizer.schedule": "other schedules",
    "optimizer.hold_steps": "a held learning rate",
    "optimizer.constant_steps": "a constant learning rate at the end",
    "objective.kind": "fine-tuning objectives",
    "data.weights": "weighted data",
    "data.tokenizer": "tokenizers beside bytes",
    "data.packing": "packing",
    "data.max_examples": "a limit on examples",
    "epochs": "counting of epochs",
}
# The same, where the training itself does not depend on it.
_LEFT_OUT = {
    "evaluation": "evaluation",
    "logging": "logging beside events and the log",
    "execution.profile_from_step": "profiles",
    "execution.compile_cache": "cache of compiled programs",
    "checkpoint.resume": "resuming",
}
# What is worth less where a dialect's own default asks for it: the training itself is the same without.
_HARMLESS = ("checkpoint.enabled", "checkpoint.resume", "logging.tensorboard", "execution.compile_cache")


def not_supported_yet(finder: Finder) -> Iterator[Problem]:
    """Seatrial's own trainer can do what the run asks for."""
    spec = finder.spec
    error: Severity = "warning" if finder.action == "plan" else "error"
    sizes = spec.mesh if mesh_is_sound(spec) else {}
    parts = {"within_node": spec.parallelism.within_node, "across_nodes": spec.parallelism.across_nodes}
    wanted: list[tuple[str, Severity, str]] = [
        (f"parallelism.{part}.{axis}", error, f"{axis} parallelism")
        for axis in ("pipeline", "context")
        for part, shape in parts.items()
        if sizes.get(axis, 1) > 1 and shape.sizes[axis] != 1
    ]
    if spec.data.kind not in ("synthetic", "text"):
        wanted.append(("data.kind", error, f"data of the kind {spec.data.kind}"))
    given, plain = flatten(spec), flatten(replace(_PLAIN, model=spec.model, batch=spec.batch, steps=spec.steps))
    plain |= flatten(replace(MODELS["llama2-7b"], name=""), "model")
    if not spec.model.vocab_size % (spec.model.vocab_multiple * sizes.get("tensor", 1)):
        plain["model.vocab_multiple"] = spec.model.vocab_multiple  # there is nothing to pad
    for severity, table in ((error, _NOT_YET), ("warning", _LEFT_OUT)):
        for path, what in table.items():
            asked = [p for p in given if p == path or p.startswith(f"{path}.")]
            first = next((p for p in asked if given[p] != plain.get(p, given[p])), None)
            if first:
                wanted.append((first, severity, what.format(given[first])))
    for path, severity, what in wanted:
        if finder.is_default(path) and path in _HARMLESS:  # nobody asked for it, and the result is the same
            severity = "warning" if severity == "error" else "info"
        yield finder.at(
            path, severity, "not-supported-yet", f"Seatrial's own trainer has no {what} yet",
            "turn it off for this run" if severity == "error" else "nothing to do: it is left out",
        )  # fmt: skip


# A run with every default; what it is of does not matter.
_PLAIN = RunSpec(
    name="", dialect="", model=MODELS["llama2-7b"], steps=1,
    batch=Batch(sequence_length=1, global_batch_size=1, micro_batch_size=1),
)  # fmt: skip
