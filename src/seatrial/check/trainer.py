"""What Seatrial's own trainer cannot do yet."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import RUNS, Finder
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem
from seatrial.estimate import PARTS
from seatrial.spec import NOT_QUANTIZATIONS, QUANTIZATIONS


def not_supported_yet(finder: Finder) -> Iterator[Problem]:
    """Seatrial's own trainer can do what the run asks for."""
    spec, runs = finder.spec, finder.action in RUNS
    unknown = [part for part in spec.execution.remat_modules if part not in PARTS]
    if spec.execution.remat == "selective" and unknown:
        yield finder.at(
            "execution.remat_modules", "error" if runs else "warning", "not-supported-yet",
            f"{unknown[0]!r} is no part of a layer that Seatrial's own trainer can recompute",
            f"use some of {', '.join(PARTS)}",
        )  # fmt: skip
    quantization = spec.precision.quantization
    if why := _no_recipe(quantization, spec.mesh if mesh_is_sound(spec) else {}):
        yield finder.at(
            "precision.quantization", "error" if runs else "warning", "not-supported-yet",
            f"Seatrial's own trainer does not do this yet: {quantization} products, since {why}",
            "turn it off for this run" if runs else
            "fine for a plan and a verdict; for a run with that trainer, turn it off",
        )  # fmt: skip


def _no_recipe(quantization: str | None, sizes: dict[str, int]) -> str | None:
    """Why the trainer cannot quantize its products like this."""
    recipe = QUANTIZATIONS.get(quantization or "")
    if quantization is None or (recipe and not (recipe.startswith("delayed") and sizes.get("pipeline", 1) > 1)):
        return None
    if recipe:
        return "a pipeline does not gather earlier steps' values; te_fp8_currentscaling needs none"
    return NOT_QUANTIZATIONS.get(quantization, f"there are only {', '.join(QUANTIZATIONS)}")
