"""A RunSpec → the text of a Megatron command, and a note for each value that reads back differently."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping

from seatrial.command import as_word
from seatrial.dialects.megatron.arguments import ARGUMENTS, LAUNCHER, is_sharded
from seatrial.dialects.megatron.findings import NEEDS
from seatrial.dialects.megatron.script import NETWORK, VARIABLES, written_variables
from seatrial.dialects.megatron.settings import Settings, is_passed_on
from seatrial.dialects.table import engine_keys, written
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key, written_values
from seatrial.dialects.table.written import Written
from seatrial.spec import Resolved, RunSpec

EXAMPLES = "examples/llama"  # where the scripts are
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

# Why the arguments of pretrain_gpt.py cannot say a value, by the beginning of its path.
_REASONS: Mapping[str, str] = {
    "": "there is no argument for it",
    "model.name": "a command does not name its model",
    "model.max_positions": "Megatron needs a table as long as its sequences, and there is none for rotary positions",
    "model.rope_theta": "--rotary-base is a whole number",
    "model.rope_scaling": "--use-rope-scaling has no setting but its factor",
    "model.vocab_size": "the tokenizer decides",
    "epochs": "Megatron counts steps, not epochs",
    "seed": "Megatron's seeds are positive",
    "topology.device": "a command does not name the device",
    "parallelism": "Megatron numbers its ranks along tensor, context, data and pipeline parallelism, in this order",
    "precision.params_dtype": "Megatron's optimizer updates float32 weights",
    "precision.optimizer_dtype": "Megatron can choose it only for bfloat16 with --use-distributed-optimizer",
    "precision": "Megatron has no argument for it, or not together with the others",
    "initialization": "Megatron always scales the projections back into the residual",
    "dropout": "Megatron has no dropout inside the MLP",
    "optimizer.decay_norms": "Megatron never decays norms and biases",
    "optimizer.on_non_finite": "Megatron stops the run, or continues with the value",
    "optimizer.warmup_steps": "Megatron's warm-up ends before its schedule does",
    "optimizer": "Megatron has no such optimizer or schedule",
    "objective": "pretrain_gpt.py only pretrains",
    "data": "Megatron reads its own .bin and .idx files",
    "evaluation": "Megatron evaluates every N steps, on N batches or on all data",
    "logging": "Megatron has no argument for it",
    "execution.environment": f"invalid names, secrets and what the launcher sets are omitted; {CONNECTIONS} "
    "is set as Megatron requires",
    "execution": "it concerns JAX, or Megatron has no argument for it",
    "checkpoint": "Megatron says it with --save, --load and --save-interval",
    "distributed": "torchrun has its own timeouts",
    "container": "the command runs inside one",
    "expectations": "a command holds no targets",
}
_SCRIPT_REASONS: Mapping[str, str] = {
    **_REASONS,
    "model": "the script has a few Llama models, with Megatron's default rotary base",
    "topology.devices_per_node": "the script uses all devices that torch sees",
    "parallelism.context_strategy": "the script leaves it to Megatron, which uses a ring",
    "optimizer": "the script has a schedule and an optimizer of its own",
    "seed": "the script uses Megatron's default seed",
    "logging": "the script's logging is fixed",
    "evaluation": "the script evaluates only with EVAL_ITERS, and where it saves",
    "execution": "the script has no variable for it",
}


def write(spec: RunSpec, style: str, read: Callable[[Request], Resolved]) -> Written:
    """The spec as a command in one of the two styles."""
    if style == "arguments":
        environment, launcher, arguments = command(spec)
        words = (" ".join(map(as_word, each)) for each in launcher)
        lines = ["torchrun", *words, "pretrain_gpt.py", *map(shlex.join, arguments)]
    else:
        environment, variables, name = script_variables(spec)
        lines = [f"{variable}={shlex.quote(value)}" for variable, value in variables.items()]
        lines.append(f"bash {EXAMPLES}/{name}")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    text = f"#!/bin/bash\n{exports}" + " \\\n    ".join(lines) + "\n"
    reasons = _REASONS if style == "arguments" else _SCRIPT_REASONS
    engine = Settings.ENGINE if spec.execution.engine_keys else ""  # some of these keys are errors elsewhere
    return written.write(spec, text, ".sh", read, reasons, shows_other=True, engine=engine)


def command(spec: RunSpec) -> tuple[dict[str, str], list[list[str]], list[list[str]]]:
    """(variables, arguments of torchrun, arguments of pretrain_gpt.py), each argument with its values."""
    environment = {name: value for name, value in spec.execution.environment.items() if is_passed_on(name)}
    if is_sharded(spec) and environment.get(CONNECTIONS) == "1":
        del environment[CONNECTIONS]
    elif not is_sharded(spec) and spec.mesh["tensor"] * spec.mesh["context"] > 1:
        environment[CONNECTIONS] = "1"
    own = engine_keys.words(spec.execution.engine_keys)
    replaced = {name for name, *_ in own}
    arguments = [words for words in _words(spec, ARGUMENTS) if words[0] not in replaced]
    given = {name for name, *_ in (*arguments, *own)}
    own = [words for words in own if _has_its_needs(words[0], given)]
    return environment, list(_words(spec, LAUNCHER)), [*arguments, *own]


def _has_its_needs(name: str, given: Collection[str]) -> bool:
    """True if Megatron takes an argument beside the others: some need one that a run on one device has not."""
    return all(any(f"--{other}" in given for other in others) for needy, others in NEEDS if name == f"--{needy}")


def _words(spec: RunSpec, keys: Mapping[str, Key]) -> Iterator[list[str]]:
    """The words of each argument that a spec has: none behind a flag, and several of a tuple."""
    for name, value in written_values(spec, keys):
        if value is None or value is False or value == ():
            continue
        words = value if isinstance(value, tuple) else () if value is True else (value,)
        texts = [repr(word) if isinstance(word, float) else str(word) for word in words]
        if len(texts) == 1 and texts[0].startswith("-") and not isinstance(value, tuple):
            yield [f"--{name}={texts[0]}"]  # else argparse takes it for an argument
        else:
            yield [f"--{name}", *texts]


def script_variables(spec: RunSpec) -> tuple[dict[str, str], dict[str, str], str]:
    """(other variables, the script's own, its name): of its own, those that differ from its defaults or matter most."""
    own, name = written_variables(spec)
    own = {k: text for k, text in spec.execution.engine_keys.items() if engine_keys.is_variable(k)} | own
    environment = {
        variable: value for variable, value in spec.execution.environment.items()
        if value and is_passed_on(variable) and (variable not in VARIABLES or variable in NETWORK)
    }  # fmt: skip
    return environment, own, name
