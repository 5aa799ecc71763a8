"""What Seatrial's own trainer cannot do yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seatrial.check.finder import RUNS, Finder
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem, Severity
from seatrial.presets import MODELS
from seatrial.spec import NOT_QUANTIZATIONS, QUANTIZATIONS, Batch, RunSpec, flatten

# What the trainer has not yet, where a value other than the default asks for it: path → what is asked for.
_NOT_YET = {
    "epochs": "counting epochs",
}
# The same, where the training itself does not depend on it.
_LEFT_OUT = {
    "evaluation": "evaluation",
    "logging": "logging beside events and the log",
    "execution.profile_from_step": "profiles",
    "execution.compile_cache": "a cache of compiled programs",
}
# What is worth less where a dialect's own default asks for it: the training itself is the same without.
_HARMLESS = ("logging.tensorboard", "execution.compile_cache")


def not_supported_yet(finder: Finder) -> Iterator[Problem]:
    """Seatrial's own trainer can do what the run asks for."""
    spec = finder.spec
    error: Severity = "error" if finder.action in RUNS else "warning"
    sizes = spec.mesh if mesh_is_sound(spec) else {}
    wanted: list[tuple[str, Severity, str]] = []
    if why := _no_recipe(spec.precision.quantization, sizes):
        wanted.append(("precision.quantization", error, f"{spec.precision.quantization} products, since {why}"))
    given, plain = flatten(spec), flatten(replace(_PLAIN, model=spec.model, batch=spec.batch, steps=spec.steps))
    plain |= flatten(replace(MODELS["llama2-7b"], name=""), "model")
    for severity, table in ((error, _NOT_YET), ("warning", _LEFT_OUT)):
        for path, what in table.items():
            asked = [p for p in given if p == path or p.startswith(f"{path}.")]
            first = next((p for p in asked if given[p] != plain.get(p, given[p])), None)
            if first:
                wanted.append((first, severity, what.format(given[first])))
    wanted = [
        (path, _milder(severity) if finder.is_default(path) and path in _HARMLESS else severity, what)
        for path, severity, what in wanted
    ]
    kinds: tuple[tuple[Severity, str, str], ...] = (
        ("error", "", "turn it off for this run"),
        (
            "warning",
            "" if error == "warning" else ", and leaves it out",
            "fine for a plan and a verdict; for a run with that trainer, turn it off",
        ),
        ("info", ", and leaves it out", "nothing to do"),
    )
    for severity, consequence, fix in kinds:
        of_kind = [(path, what) for path, each, what in wanted if each == severity]
        if of_kind:
            told = ", ".join(f"{what} ({finder.name(path)})" if len(of_kind) > 1 else what for path, what in of_kind)
            why = f"Seatrial's own trainer does not do this yet{consequence}: {told}"
            yield finder.at(of_kind[0][0], severity, "not-supported-yet", why, fix)


def _no_recipe(quantization: str | None, sizes: dict[str, int]) -> str | None:
    """Why the trainer cannot quantize its products like this."""
    recipe = QUANTIZATIONS.get(quantization or "")
    if quantization is None or (recipe and not (recipe.startswith("delayed") and sizes.get("pipeline", 1) > 1)):
        return None
    if recipe:
        return "a pipeline does not gather earlier steps' values; te_fp8_currentscaling needs none"
    return NOT_QUANTIZATIONS.get(quantization, f"there are only {', '.join(QUANTIZATIONS)}")


def _milder(severity: Severity) -> Severity:
    return "warning" if severity == "error" else "info"


# A run with every default; what it is of does not matter.
_PLAIN = RunSpec(
    name="", dialect="", model=MODELS["llama2-7b"], steps=1,
    batch=Batch(sequence_length=1, global_batch_size=1, micro_batch_size=1),
)  # fmt: skip
