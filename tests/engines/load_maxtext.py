"""Loads commands with MaxText's own loader, in its Python: a list of words each, as JSON on stdin → on stdout.

A command is {"words": ["steps=5", …], "nodes": 1}; its answer is {key: value as MaxText has it}, or why it is refused.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import maxtext
from maxtext.configs import pyconfig
from maxtext.utils import max_utils


def load(words: list[str], nodes: int) -> dict[str, Any] | str:
    base = Path(maxtext.__file__).parent / "configs" / "base.yml"
    with patch.object(max_utils, "get_num_slices", lambda raw_keys: nodes):  # a CPU is one slice
        try:
            config = pyconfig.initialize(["train", str(base), *words])
        except (ValueError, TypeError, KeyError) as error:
            return f"{type(error).__name__}: {error}"[:600]
    names = [word.partition("=")[0] for word in words]
    found = {name: config.get_keys().get(name.partition(".")[0]) for name in names}
    found = {name: value[name.partition(".")[2]] if "." in name else value for name, value in found.items()}
    return {name: value.value if isinstance(value, Enum) else value for name, value in found.items()}


answers = [load(each["words"], each["nodes"]) for each in json.load(sys.stdin)]
print(f"\nLOADED {json.dumps(answers, default=str)}")
