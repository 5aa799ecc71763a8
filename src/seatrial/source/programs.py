"""The programs that start a training, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A file, by the last part of its path, or a module behind -m.
_NEMO = r"training_orchestrator\.py|megatron_\w+_(pre)?training\.py"
_PROGRAM = re.compile(rf"((pre)?train|finetune)(_\w+)?(-\w+)*\.(py|sh)|{_NEMO}", re.ASCII)
_MAXTEXT = r"[Mm]ax[Tt]ext(?!.*\b(inference|checkpoint_conversion|utils)\b)(\.\w+)*"
_MODULE = re.compile(
    rf"(.*\.)?{_MAXTEXT}\.((train|sft)\w*|trainers\.[\w.]+)|(.*\.)?[Mm]ax[Tt]ext|(.*\.)?(pretrain_gpt|train)"
)


def is_program(words: Sequence[str], index: int) -> bool:
    """True if a word of a command is the program, or behind -m the module, that trains."""
    if index and words[index - 1] == "-m":
        return bool(_MODULE.fullmatch(words[index]))
    return bool(_PROGRAM.fullmatch(words[index].rpartition("/")[2])) and ":" not in words[index]  # a mount is none


def is_gpt_module(words: Sequence[str], index: int) -> bool:
    """True if a word is Megatron-LM's pretrain_gpt, behind -m."""
    return index > 0 and words[index - 1] == "-m" and words[index].rpartition(".")[2] == "pretrain_gpt"


def starts_training(words: Sequence[str]) -> bool:
    """True if a command starts a training."""
    return any(is_program(words, index) for index in range(len(words)))
