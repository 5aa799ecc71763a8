"""A run → a shell text that exports its variables and starts MaxText.

The text is read back, and every value that comes back otherwise gets a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.command import as_word
from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.environment import FLAGS, PLACED, is_kept
from seatrial.dialects.maxtext.keys import KEYS, OWN_WORDS
from seatrial.dialects.table.engine_keys import as_text, maxtext_keys
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import written_values
from seatrial.dialects.table.written import Written, write
from seatrial.spec import Resolved, RunSpec, flatten
from seatrial.xla_flags import is_sound

_PROGRAM = "python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml"

_PORT = "2222"  # of the coordinator, where none is given: that of MaxText's documentation

# Why a value is not in the text, by the longest path that it is at or under.
_WHY = {
    "": "MaxText has no such setting",
    "model": "MaxText's Llama decoder has RMSNorm, rotary positions of the whole head and no biases",
    "model.name": "MaxText knows models by its own names; the dimensions are given",
    "model.rope_scaling": "MaxText's llama3.1 scaling has fixed numbers",
    "model.vocab_multiple": "MaxText does not pad the vocabulary; its size is given as it is",
    "initialization": "MaxText initializes from a normal distribution by fan-in",
    "dropout": "MaxText has one dropout_rate for all",
    "topology": "MaxText uses the devices that it finds; give it on Seatrial's command line",
    "parallelism": "MaxText's mesh is written with the size that -1 comes to, or cannot be this one",
    "parallelism.sequence_parallel": "without tensor parallelism, it has no effect",
    "parallelism.virtual_pipeline": "MaxText's repeats × stages × layers per stage make the number of layers",
    "batch": "MaxText's batch is a multiple of what a forward pass reads on all devices",
    "precision": "MaxText leaves sums and rounding to XLA",
    "precision.quantization": "MaxText does not know it, or not together with several micro-batches a step",
    "optimizer.algorithm": "MaxText has adamw and sgd",
    "optimizer.schedule": "MaxText has cosine, and wsd with a linear or cosine decay, which end a step earlier",
    "optimizer.warmup_steps": "MaxText has a share of the schedule, and none gives this number of steps",
    "optimizer.hold_steps": "MaxText holds the rate in its schedule wsd only, for the steps between warm-up and decay",
    "optimizer.on_non_finite": "MaxText aborts the run, or continues with non-finite values",
    "objective": "MaxText shortens prompts in its own way",
    "data": "MaxText's pipeline for this data does not read it",
    "data.kind": "MaxText has no pipeline for such data, or not for such paths",
    "data.weights": "MaxText mixes by weights, with grain only; equal ones are written where there are none",
    "epochs": "MaxText counts epochs of real data, and has no number for no limit",
    "evaluation": "MaxText evaluates every N steps, on M batches",
    "logging": "MaxText has one way of logging",
    "execution.remat": "MaxText has no policy of this name",
    "execution.remat_kept": "MaxText's remat_policy=custom reads it, and this run has another",
    "execution.remat_offloaded": "MaxText's remat_policy=custom reads it, and this run has another",
    "execution.remat_modules": "MaxText chooses by its policies' names",
    "execution.attention": "MaxText has no attention of this name",
    "execution.xla_flags": "a flag with blanks or quotes in it does not stay one flag",
    "execution.environment": "some of these are no names for a shell, are secrets, or mean something else to MaxText",
    "execution.profile_from_step": "MaxText profiles from a step on, or not at all",
    "checkpoint": "MaxText saves every N steps, into the run's folder",
    "checkpoint.resume": "MaxText resumes from the checkpoints of the run's name wherever it saves any",
    "checkpoint.resume_from": "MaxText loads everything only where it saves checkpoints",
    "log_dir": "MaxText would read this text as something else",
    "distributed": "MaxText leaves it to JAX",
    "distributed.coordinator_port": f"MaxText has no default for it beside a host; {_PORT} is written",
    "container": "a command does not name its container",
    "hf_token_file": "MaxText reads the token from the variable HF_TOKEN",
    "expectations": "MaxText has no targets",
}


def written(spec: RunSpec, read: Callable[[Request], Resolved]) -> Written:
    """The text, and a note for each value that it does not say."""
    environment, keys = stated(spec)
    if "JAX_COORDINATOR_IP" in environment:  # where it is, MaxText reads the others as well, and has no defaults
        environment.setdefault("JAX_COORDINATOR_PORT", _PORT)
        environment["NNODES"] = str(spec.topology.num_nodes)
        environment["NODE_RANK"] = "$NODE_RANK" if spec.topology.num_nodes > 1 else "0"
    lines = [f"export {name}={_word(name, value)}" for name, value in environment.items()]
    words = [_PROGRAM, *(f"{name}={shlex.quote(as_text(value))}" for name, value in keys.items())]
    text = "\n".join(["#!/usr/bin/env bash", *lines, " \\\n    ".join(words), ""])
    return write(spec, text, ".sh", read, _WHY, whole=("container",))


def _word(name: str, value: str) -> str:
    return as_word(value) if name in ("NODE_RANK", "JAX_COORDINATOR_IP") else shlex.quote(value)


def with_engine_keys(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """The spec with those of MaxText's keys that were given, and that its own fields do not say: MaxText gets them."""
    # Where the model's name is written, it says what keys for its parts say.
    of_fields = _said(spec)
    said = {*of_fields, *(name for name, key in KEYS.items() if key.to.startswith("model."))} - {
        name for name in OWN_WORDS if _is_another_word(name, given.get(name), of_fields)
    }
    rest = {name: as_text(value) for name, value in given.items() if name not in said and value is not None}
    return replace(spec, execution=replace(spec.execution, engine_keys=rest))


def _said(spec: RunSpec) -> dict[str, Any]:
    """The keys that say a field of the spec."""
    return {name: value for name, value in written_values(spec, KEYS) if values.can_be_said(value)}


def _is_another_word(name: str, word: Any, said: Mapping[str, Any]) -> bool:
    """True if a word of MaxText's is another one for what a key says of a run."""
    if word is None or name not in said or word == said[name]:
        return False
    try:
        return bool(KEYS[name].read(word) == KEYS[name].read(said[name]))
    except ValueError:
        return False


def stated(spec: RunSpec) -> tuple[dict[str, str], dict[str, Any]]:
    """(variables, keys of MaxText's) that say what can be said of a run."""
    found = _said(spec)
    needed = {}
    if found.get("packing") and spec.execution.attention == "cudnn_flash_te":
        needed = {"max_segments_per_seq": values.SEGMENTS}  # MaxText refuses it without
    own = maxtext_keys(spec)
    words = {name: own[name] for name in OWN_WORDS if _is_another_word(name, own.get(name), found)}
    return dict(_environment(spec)), {**found, **needed, **own, **found, **words}


def _environment(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """The variables that say something of a run."""
    for name, value in spec.execution.environment.items():
        if name.isascii() and name.isidentifier() and is_kept(name):
            yield name, value
    distributed = flatten(spec.distributed, "distributed")
    default = flatten(type(spec.distributed)(), "distributed")
    as_key = "distributed.initialization_timeout_seconds"
    for name, (path, _) in PLACED.items():
        if path != as_key and path in distributed and distributed[path] != default[path]:
            yield name, str(distributed[path])
    flags = {name: value for name, value in spec.execution.xla_flags.items() if is_sound(name, value)}
    if flags:
        yield FLAGS, " ".join(f"--{name}={value}" for name, value in flags.items())
