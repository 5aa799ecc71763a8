"""Megatron-LM and its relatives: ` iteration 5/ 50 | elapsed time per iteration (ms): 654.5 | lm loss: 1.1E+01 | …`.

NVIDIA's from 2020 to now, ROCm's, Primus, Megatron-Bridge, DeepSpeed, NeoX, MindSpeed. Two programs may share a log,
and one program spells its first lines otherwise. The last rank prints the steps, rank 0 the rest; the figures are means
over `--log-interval` iterations. Of "654.5/735.1" and "615.5 (avg 602.1)" the first is this line's, the second a
running mean. A NaN loss is omitted from the line.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, note
from seatrial.logs.numbers import NUMBER

MEBIBYTE, GIGABYTE = 1 << 20, 1_000_000_000

# The arguments that Megatron dumps before it begins: its name → the name of the fact.
_ARGUMENTS = {
    "train_iters": "planned_steps",
    "train_tokens": "train_tokens",
    "world_size": "num_devices",
    "seq_length": "sequence_length",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "rampup_batch_size": "rampup_batch_size",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "padded_vocab_size": "padded_vocab_size",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
    "log_interval": "log_interval",
    "params_dtype": "params_dtype",
    "fp8": "fp8",
    "transformer_impl": "transformer_impl",
}
_ARGUMENT = re.compile(
    # DeepSpeed's own list has a world_size too, which is the number of replicas: "[config.py:1003:print]   world_size".
    r"(?<![\w.-])(?<!:print\]   )(?:"
    + "|".join(
        rf"{name} \.{{2,60}}:? ?(?!None\b)(?P<{fact}>\w[\w.]{{0,60}}?|\[[^\]]{{1,60}}\])"
        for name, fact in _ARGUMENTS.items()
    )
    + r")(?:\.{4,60}\w{1,20})?\s*$"  # NeoX says behind it whether it is the default
)

_NOTES = (
    note("start", "using world size: ", r"\busing world size: (?P<num_devices>\d+)"),
    note("start", " arguments ---", r"-{8} (?:[\w-]{1,30} )?arguments -{8}"),
    note("start", "[before the start of training step] datetime:",
         r"\[before the start of training step\] datetime: [-\d]+ [\d:.]+", trains=True),
    # A launcher or a scheduler that starts the program again.
    note("start", "will restart worker group",
         r"Worker group \w+\. (?P<restarts_left>\d+)/\d+ attempts left; will restart worker group"),
    note("start", "SLURM_RESTART_COUNT", r"\bSLURM_RESTART_COUNT\W{1,3}(?P<restart_count>[1-9]\d*)\b"),
    note("facts", " ....", _ARGUMENT),
    note("facts", "model parallel rank (0, 0): ",
         r"number of parameters on .*model parallel rank \(0, 0\): (?P<parameters_of_rank_0>\d+)"),
    note("end", "[after training is done] datetime:", r"\[after training is done\] datetime: [-\d]+ [\d:.]+"),
    # --exit-interval and --exit-duration-in-mins: in order, but earlier than planned.
    note("end", "[exiting program a", r"\[exiting program (?:at iteration \d+|after [\d.]+ minutes)\] datetime:"),
    # Bridge prints its speed on a line of its own, before that of the step; 0 stands for "cannot tell".
    note("figures", "GPU utilization:",
         r"Step Time ?: ?(?P<seconds>[\d.]+)s\b[ ,]*"
         r"(?:(?P<tokens_per_second_per_device>[\d.]+) tok/s/gpu[ ,]*)?"
         r"GPU utilization: ?(?:(?!0+(?:\.0*)? ?[MT])(?P<tflops_per_second_per_device>[\d.]+)|[\d.]+)"
         r" ?(?:MODEL_)?TFLOP/s/GPU"
         r"(?:[ ,]*Peak Mem: ?(?P<memory_bytes>[\d.]+ ?Gi?B))?"),
    note("figures", "memory (MB) |",
         rf"iterations\) memory \(MB\) \|.{{0,300}}?\bmax (?:reserved|cached): (?P<memory_bytes>{NUMBER})",
         per=1 / MEBIBYTE),
    note("figures", "memory (MB) |",  # of 2020
         rf"\d iterations memory \(MB\) \|.{{0,300}}?\bmax (?:reserved|cached): (?P<memory_bytes>{NUMBER})",
         per=1 / MEBIBYTE),
    note("figures", "memory (GB) |",
         rf"memory \(GB\) \|.{{0,300}}?\bmem-max-reserved-gigabytes: (?P<memory_bytes>{NUMBER})", per=1 / GIGABYTE),
    note("eval", "validation loss at ",
         r"validation loss at (?:iteration (?P<step>\d+)|the end of training)[^|]*"
         rf"\|(?:[^|]*\|)*? lm loss value: (?P<loss>{NUMBER}) \|"),
    note("eval", "validation results at iteration ",  # NeoX's
         rf"validation results at iteration (?P<step>\d+) \|(?:[^|]*\|)*? lm_loss value: (?P<loss>{NUMBER}) \|"),
    # "saving checkpoint" only says that it began.
    note("checkpoint", "successfully saved ",
         r"successfully saved (?:checkpoint (?:at|from) iteration\s+|\S*/iter_0*)(?P<step>\d+)"),
    note("checkpoint", " is ready now!",  # DeepSpeed's
         r"Checkpoint (?:global_step|iter_0*)(?P<step>\d+) is ready now!"),
    note("checkpoint", "successfully loaded ",
         r"successfully loaded (?:checkpoint from .* at iteration\s+|\S*/iter_0*)(?P<step>\d+)", action="restore"),
    # The last lines of ROCm's train_llama*.sh: means over the steps that ran, printed even if training crashed.
    *(
        note("summary", f"{key}: ", rf"(?:^|[\s\]:]){re.escape(key)}: (?P<{name}>{NUMBER})\s*$", per=per)
        for key, name, per in (
            ("throughput per GPU", "tflops_per_second_per_device", 1.0),
            ("elapsed time per iteration", "seconds", 1000.0),
            ("tokens/GPU/s", "tokens_per_second_per_device", 1.0),
            ("mem usages", "memory_fraction", 1.0),
        )
    ),
)  # fmt: skip

FAMILY = Family(
    name="megatron",
    anchors=("iteration", "elapsed time per iteration"),
    head=re.compile(r"\biteration\s+(?P<step>\d[\d,]*)\s*/\s*(?P<total>\d[\d,]*)\s*\|"),
    # The loss, or what stands behind its place where it is omitted.
    whole=re.compile(r"\b(?:(?:lm_)?loss|loss scale|grad[ _]norm|number of \w+ iterations):[^|]*\|"),
    pair=re.compile(r"(?<=\|)([^|:]+):([^|]*)\|"),  # a value without a | after it may be cut
    fields={
        "elapsed time per iteration (ms)": Field(name="seconds", per=1000),
        "elapsed time per iteration (s)": Field(name="seconds"),
        **dict.fromkeys((
            "throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)", "throughput (TFLOP/s/GPU)",
            "throughput per NPU (TFLOP/s/NPU)", "TFLOP/s/GPU", "TFLOPs", "TFLOPS", "approx flops per GPU",
            "theoretical throughput per NPU (TFLOP/s/NPU)",  # the "actual" counts what the kernels do
        ), Field(name="tflops_per_second_per_device")),
        **dict.fromkeys((
            "tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean", "tokens/s/GPU", "tokens/GPU/s",
            "tokens/sec/GPU", "Tokens per second per GPU (Tok/s/GPU)", "tokens per second per GPU",
            "tokens per gpu per second (tgs)",
        ), Field(name="tokens_per_second_per_device")),
        **dict.fromkeys(("samples per second", "samples/sec"), Field(name="samples_per_second_total")),
        **dict.fromkeys(("mfu", "MFU"), Field(name="mfu")),
        **dict.fromkeys(("mfu (%)", "MFU (%)"), Field(name="mfu", per=100)),
        "energy per GPU (J/iter/GPU)": Field(name="energy_per_device"),
        "power per GPU (W/GPU)": Field(name="power_per_device"),
        "mem usages": Field(name="memory_fraction"),
        "memory usage/free/total": Field(name="memory_bytes"),  # Primus over torchtitan
        # Four values: used/free/total/ratio. The label says GB or GiB for the same number, the ratio is beyond doubt.
        **dict.fromkeys((
            "hip mem usage/free/total/usage_ratio", "rocm mem usage/free/total/usage_ratio",
        ), Field(name="memory_fraction", part=3)),
        "consumed samples": Field(name="consumed_samples"),
        "consumed tokens": Field(name="consumed_tokens"),
        "learning rate": Field(name="learning_rate"),
        # The second is DeepSpeed's and MindSpeed's.
        **dict.fromkeys(("global batch size", "gloabl batch size"), Field(name="global_batch_size")),
        **dict.fromkeys(("lm loss", "lm_loss", "lm-loss"), Field(name="loss", preferred=True)),
        "loss": Field(name="loss"),
        "loss scale": Field(name="loss_scale"),
        **dict.fromkeys(("grad norm", "grad_norm"), Field(name="grad_norm")),
        "params norm": Field(name="params_norm"),
        "number of skipped iterations": Field(name="skipped_steps"),
        "number of nan iterations": Field(name="nan_steps"),
    },
    counted_from=1,
    notes=_NOTES,
)  # fmt: skip
