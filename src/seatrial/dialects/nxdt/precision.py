"""NxDT's `precision`: six names for sets of number formats, and the five switches behind them."""

from __future__ import annotations

from seatrial.dialects.nxdt.readers import boolean, choice, optional, switch
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table.keys import Key, ignored, to
from seatrial.spec import Precision

_HALF = Precision(
    compute_dtype="bfloat16", params_dtype="bfloat16", optimizer_dtype="bfloat16", gradient_dtype="bfloat16",
    reduce_dtype="bfloat16", stochastic_rounding=True,
)  # fmt: skip
_FULL = Precision(compute_dtype="float32")

TYPES: dict[str, Precision] = {
    "mixed_precision": Precision(),
    "mixed_precisionSR": Precision(stochastic_rounding=True),
    "bf16SR": _HALF,
    "fp32": _FULL,
    "autocast": Precision(),  # bf16 products, everything else as in mixed_precision
}
SPELLINGS = {"mixed_precision_SR": "mixed_precisionSR"}  # what NxDT's code tests for, and no document says
MANUAL = "manual"
MANUAL_KEYS = {
    "precision.master_weights": "Weights, and the optimizer's state, in float32 beside the bfloat16 ones.",
    "precision.fp32_grad_acc": "Gradients accumulated, and summed over replicas, in float32.",
    "precision.xla_use_bf16": "torch's float and double are bfloat16 on the device.",
    "precision.xla_downcast_bf16": "torch's float is bfloat16 on the device, double is float32.",
    "precision.neuron_rt_stochastic_rounding_en": "Results are rounded to bfloat16 at random, unbiased.",
}
_PATHS = {
    "precision.master_weights": "precision.params_dtype,precision.optimizer_dtype",
    "precision.fp32_grad_acc": "precision.gradient_dtype,precision.reduce_dtype",
    "precision.xla_use_bf16": "precision.compute_dtype",
    "precision.xla_downcast_bf16": "precision.compute_dtype",
    "precision.neuron_rt_stochastic_rounding_en": "precision.stochastic_rounding",
}

KEYS: dict[str, Key] = {
    "precision.type": to(
        "precision", choice(*TYPES, MANUAL, *SPELLINGS), "One of the named sets of formats, or manual.", required=True
    ),
    **{
        name: to(_PATHS[name], optional(switch), f"{meaning} Read where type is manual only.")
        for name, meaning in MANUAL_KEYS.items()
    },
    "precision.parallel_layers_reduce_dtype": ignored(
        "partial products are summed over tensor parallelism in the format of the product",
        choice("bf16", "fp32"), "Format of sums over tensor parallelism.", quiet=("bf16",),
    ),
    "precision.fp32_grads_cc": ignored("precision.type decides; NxDT does not read it either", optional(boolean),
                                       quiet=(True, False, None)),
}  # fmt: skip


def precision(settings: Settings) -> Precision:
    """The formats that a name, or the five switches, stand for."""
    kind = settings.get("precision.type", "mixed_precision")
    kind = SPELLINGS.get(kind, kind)
    if kind != MANUAL:
        return TYPES[kind]
    halves = settings.get("precision.xla_use_bf16") or settings.get("precision.xla_downcast_bf16")
    is_half = bool(halves)
    masters = settings.get("precision.master_weights") or not is_half
    sums = settings.get("precision.fp32_grad_acc") or not is_half
    if settings.get("precision.xla_use_bf16") and (settings.get("precision.master_weights") or
                                                   settings.get("precision.fp32_grad_acc")):  # fmt: skip
        settings.add(
            "precision.xla_use_bf16", "warning", "contradiction",
            "with '1', NxDT holds double in bfloat16 too, so that nothing is left in float32; here float32 is float32",
            "give xla_downcast_bf16: '1' instead, which leaves float32 where it is asked for",
        )  # fmt: skip
    return Precision(
        compute_dtype="bfloat16" if is_half else "float32",
        params_dtype="float32" if masters else "bfloat16",
        optimizer_dtype="float32" if masters else "bfloat16",
        gradient_dtype="float32" if sums else "bfloat16",
        reduce_dtype="float32" if sums else "bfloat16",
        stochastic_rounding=bool(settings.get("precision.neuron_rt_stochastic_rounding_en")),
    )
