"""Number formats: names say what runs, and what is trained can be stored in its format."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.estimate import hardware

_FORMATS = {
    "fp8": "fp8", "float8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "fp32": "float32", "float32": "float32",
    "f32": "float32",
}  # fmt: skip


def names_say_the_precision(finder: Finder) -> Iterator[Problem]:
    """A number format in the run's or the model's name is the one that runs."""
    spec = finder.spec
    runs = {spec.precision.compute_dtype, _quantized(spec.precision.quantization) or spec.precision.compute_dtype}
    for path, name in (("name", spec.name), ("model.name", spec.model.name)):
        words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word in _FORMATS]
        said = {_FORMATS[word] for word in words}
        if said and not said & runs:
            shown = " and ".join(sorted(runs))
            yield finder.at(
                path, "warning", "precision-contradicts-name", f"{name} says {words[0]}, but {shown} runs",
                "correct the name, or the precision",
            )  # fmt: skip


def _quantized(quantization: str | None) -> str | None:
    found = re.search(r"fp8|fp4|int8", quantization or "")
    return found.group() if found else quantization


def device_has_the_format(finder: Finder) -> Iterator[Problem]:
    """The device supports the number format of the run."""
    spec = finder.spec
    device, quantization = hardware.find(spec.topology.device), spec.precision.quantization
    if device and quantization and "fp8" in quantization and "fp8" not in device.peak_flops:
        why = f"{device.name} has no fp8 matrix units ({device.source})"
        yield finder.at("precision.quantization", "warning", "no-fp8", why, "train in bfloat16, or on another device")


def updates_are_kept(finder: Finder) -> Iterator[Problem]:
    """Weights are stored finely enough for the updates that they get: bfloat16 has 8 bits of mantissa."""
    spec = finder.spec
    precision, rate = spec.precision, spec.optimizer.learning_rate
    if spec.data.kind == "synthetic":
        return  # then there is nothing to learn
    half_a_step = spec.initialization.std * 2**-9  # of a weight of typical size
    if precision.params_dtype == "bfloat16" and not precision.stochastic_rounding and rate < half_a_step:
        yield finder.at(
            "precision.params_dtype", "warning", "updates-lost",
            f"bfloat16 weights of about {spec.initialization.std:g} cannot be changed by less than {half_a_step:.1g}, "
            f"and a step at a learning rate of {rate:g} changes less: most updates are lost",
            "store weights in float32, or round stochastically",
        )  # fmt: skip
