"""`seatrial data` and `seatrial export`: options that need no jax, for programs of the trainer that do."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Never

import click
from click import argument, option

from seatrial.commands.options import offered


def _become(name: str, **arguments: Any) -> Never:
    """Replaces this process with a program of the trainer's. Raises LaunchError where jax is not installed."""
    from seatrial.commands.run import require_trainer

    require_trainer()
    program = (sys.executable, "-P", "-m", "seatrial.train.programs", name, json.dumps(arguments))
    os.execv(sys.executable, program)


@click.command()
@argument(
    "text",
    nargs=-1,
    required=True,
    metavar="TEXT...",
    shell_complete=offered("files"),
    help="Files or globs: text, or tables with column text.",
)
@option(
    "--tokenizer",
    default="byte",
    metavar="T",
    shell_complete=offered("tokenizers"),
    help="byte, or the path of a tokenizer.json.",
)
@option(
    "--out",
    required=True,
    metavar="PREFIX",
    shell_complete=offered("files"),
    help="Of the new files PREFIX.bin and PREFIX.idx.",
)
def data(text: tuple[str, ...], tokenizer: str, out: str) -> None:
    """Tokenise text once, into Megatron's files."""
    _become("data", text=text, tokenizer=tokenizer, out=out)


@click.command()
@argument(
    "source",
    metavar="RUN_DIR|CHECKPOINT",
    shell_complete=offered("run-directories"),
    help="A run directory, a folder of checkpoints, or one checkpoint.",
)
@option("--to", required=True, metavar="FOLDER", shell_complete=offered("folders"), help="A new folder.")
@option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: as in the checkpoint.")
def export(source: str, to: str, dtype: str | None) -> None:
    """Write a checkpoint's weights for Hugging Face."""
    _become("export", source=source, to=to, dtype=dtype)
