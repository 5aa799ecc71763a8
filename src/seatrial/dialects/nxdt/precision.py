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
SWITCHES = {  # name → path of the spec, meaning
    "master_weights": ("precision.params_dtype,precision.optimizer_dtype",
                       "Weights, and the optimizer's state, in float32 beside the bfloat16 ones."),
    "fp32_grad_acc": ("precision.gradient_dtype,precision.reduce_dtype",
                      "Gradients accumulated, and summed over replicas, in float32."),
    "xla_use_bf16": ("precision.compute_dtype", "torch's float and double are bfloat16 on the device."),
    "xla_downcast_bf16": ("precision.compute_dtype", "torch's float is bfloat16 on the device, double is float32."),
    "neuron_rt_stochastic_rounding_en": ("precision.stochastic_rounding",
                                         "Results are rounded to bfloat16 at random, unbiased."),
}  # fmt: skip


def precision(settings: Settings) -> Precision:
    """The formats that a name, or the five switches, stand for."""
    kind = settings.get("precision.type", "mixed_precision")
    kind = SPELLINGS.get(kind, kind)
    if kind != MANUAL:
        return TYPES[kind]
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


def formats(precision: Precision) -> dict[str, Any]:
    """The keys that say what the formats are: a name, or the switches."""
    plain = replace(precision, quantization=None)
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
