"""NxDT's `precision`: six names for sets of number formats, and the five switches behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.dialects.nxdt.settings import Settings
from seatrial.spec import Dtype, Precision

TYPES: dict[str, Precision] = {
    "mixed_precision": Precision(),
    "mixed_precisionSR": Precision(stochastic_rounding=True),
    "bf16SR": Precision(
        compute_dtype="bfloat16", params_dtype="bfloat16", optimizer_dtype="bfloat16", gradient_dtype="bfloat16",
        reduce_dtype="bfloat16", stochastic_rounding=True,
    ),
    "fp32": Precision(compute_dtype="float32"),
    "autocast": Precision(),  # bf16 products, everything else as in mixed_precision
}  # fmt: skip
SPELLINGS = {"mixed_precision_SR": "mixed_precisionSR"}  # what NxDT's code tests for, and no document says
MANUAL = "manual"
REDUCE: dict[str, Dtype] = {"bf16": "bfloat16", "fp32": "float32"}
SWITCHES = {  # name → path of the spec, meaning
    "master_weights": ("precision.params_dtype,precision.optimizer_dtype",
                       "Weights, and the optimizer's state, in float32 beside the bfloat16 ones; "
                       "false where not given."),
    "fp32_grad_acc": ("precision.gradient_dtype,precision.reduce_dtype",
                      "Gradients accumulated, and summed over replicas, in float32; false where not given."),
    "xla_use_bf16": ("precision.compute_dtype", "torch's float and double are bfloat16 on the device."),
    "xla_downcast_bf16": ("precision.compute_dtype", "torch's float is bfloat16 on the device, double is float32."),
    "neuron_rt_stochastic_rounding_en": ("precision.stochastic_rounding",
                                         "Results are rounded to bfloat16 at random, unbiased."),
}  # fmt: skip


def precision(settings: Settings) -> Precision:
    """The formats that a name, or the five switches, stand for, and that of sums over tensor parallelism."""
    kind = settings.get("precision.type", "mixed_precision")
    kind = SPELLINGS.get(kind, kind)
    found = _manual(settings) if kind == MANUAL else TYPES[kind]
    given: Dtype = REDUCE[settings.get("precision.parallel_layers_reduce_dtype") or "bf16"]
    if kind == "fp32" or given == found.compute_dtype:
        return found
    return replace(found, tensor_reduce_dtype=given)


def _manual(settings: Settings) -> Precision:
    masters, sums, uses, downcasts, rounds = (bool(settings.get(f"precision.{name}")) for name in SWITCHES)
    if uses and (masters or sums):
        settings.add(
            "precision.xla_use_bf16", "warning", "contradiction",
            "with '1', NxDT holds double in bfloat16 too, so that nothing is left in float32; here float32 is float32",
            "give xla_downcast_bf16: '1' instead, which keeps float32 where it is asked for",
        )  # fmt: skip
    is_half = uses or downcasts
    weights: Dtype = "float32" if masters or not is_half else "bfloat16"
    gradients: Dtype = "float32" if sums or not is_half else "bfloat16"
    return Precision(
        compute_dtype="bfloat16" if is_half else "float32",
        params_dtype=weights,
        optimizer_dtype=weights,
        gradient_dtype=gradients,
        reduce_dtype=gradients,
        stochastic_rounding=rounds,
    )


def reduce_format(precision: Precision) -> str | None:
    """The word for the format of sums over tensor parallelism, or None where NxDT has none (float16)."""
    dtype = precision.tensor_reduce_dtype or precision.compute_dtype
    return next((word for word, known in REDUCE.items() if known == dtype), None)


def formats(precision: Precision) -> dict[str, Any]:
    """The keys that say what the formats are: a name, or the switches."""
    sums = precision.tensor_reduce_dtype
    is_plain = sums in (None, precision.compute_dtype) or sums == "float32"  # what each of the types can say
    plain = replace(precision, quantization=None, tensor_reduce_dtype=None if is_plain else sums)
    named = next((name for name, formats in TYPES.items() if formats == plain), None)
    if named:
        return {"type": named}
    return {
        "type": MANUAL,
        "master_weights": precision.params_dtype == "float32",
        "fp32_grad_acc": precision.gradient_dtype == "float32",
        "xla_use_bf16": "0",
        "xla_downcast_bf16": "1" if precision.compute_dtype == "bfloat16" else "0",
        "neuron_rt_stochastic_rounding_en": "1" if precision.stochastic_rounding else "0",
    }
