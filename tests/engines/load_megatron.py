"""Parses commands with Megatron-LM's own parser, of the package megatron-core: as JSON on stdin → on stdout.

A command is {"words": ["--num-layers", "8", …], "world": 16, "environment": {…}}; its answer is {name: value as
Megatron has it}, or why it is refused. Every rank does this first: parse, validate, make a model's configuration.
"""

from __future__ import annotations

import io
import json
import os
import sys
import typing
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch

# The package is for Python 3.12 and for GPUs: this is what Python 3.11 lacks, and a file of kernels for which it
# imports Triton, a gigabyte, without asking whether it is there. No argument has to do with either.
if not hasattr(typing, "override"):
    typing.override = lambda function: function  # type: ignore[attr-defined]
sys.modules["megatron.core.transformer.moe.ops.paged_stash"] = type(sys)("paged_stash")
sys.modules["megatron.core.transformer.moe.ops.paged_stash"].__getattr__ = lambda name: None  # type: ignore[method-assign]

from megatron.core import utils  # type: ignore[import-not-found]  # noqa: E402
from megatron.training import arguments  # type: ignore[import-not-found]  # noqa: E402
from packaging.version import Version  # noqa: E402

utils._te_version = Version("2.9.0")  # Transformer Engine is for GPUs, too: a model's configuration asks for its age

HOPPER = (9, 0)


def parse(words: list[str], world: int, environment: dict[str, str]) -> dict[str, Any] | str:
    """Megatron's arguments by name after its start, as the first of `world` ranks; or its error message."""
    noise = io.StringIO()
    ranks = {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"}
    # The kernel of Transformer Engine's that rotates is looked for at once.
    argv = ["pretrain_gpt.py", *words, "--no-rope-fusion"]
    with ExitStack() as on:
        on.enter_context(patch.dict(os.environ, environment | ranks))
        on.enter_context(patch.object(sys, "argv", argv))
        on.enter_context(patch.object(torch.cuda, "get_device_capability", lambda: HOPPER))
        on.enter_context(patch.object(arguments, "get_device_arch_version", lambda: HOPPER[0]))
        on.enter_context(redirect_stdout(noise))
        on.enter_context(redirect_stderr(noise))
        try:
            found = arguments.validate_args(arguments.parse_args(), {})
            arguments.core_transformer_config_from_args(found)
        except SystemExit:
            return noise.getvalue()[-600:]
        except (AssertionError, ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"[:600]
    return {name: getattr(value, "name", value) for name, value in vars(found).items()}


answers = [parse(each["words"], each["world"], each["environment"]) for each in json.load(sys.stdin)]
print(f"\nPARSED {json.dumps(answers, default=str)}")
