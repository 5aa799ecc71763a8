"""The nodes and devices that a command requests of Slurm: the options of sbatch, salloc and srun before the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from seatrial.dialects.table.entries import Entry
from seatrial.source import Node

NODES, EACH = "topology.num_nodes", "topology.devices_per_node"

_JOBS = ("sbatch", "salloc", "srun")
_TASKS = "tasks of a node"  # a device each, where nothing says how many devices there are
_NODES, _TASKS_OF_NODE = re.compile(r"(\d{1,5})(?:-\d+)?"), re.compile(r"(\d{1,3})")  # a range: at least so many
_GPUS, _RESOURCES = (re.compile(rf"{prefix}(?:[A-Za-z][\w.-]*:)?(\d{{1,3}})") for prefix in ("", "gpu:"))
_OPTIONS = {
    "-N": (NODES, _NODES), "--nodes": (NODES, _NODES), "--gpus-per-node": (EACH, _GPUS), "--gres": (EACH, _RESOURCES),
    "--ntasks-per-node": (_TASKS, _TASKS_OF_NODE),
}  # fmt: skip


def requested(words: Sequence[Node]) -> dict[str, Entry]:
    """The numbers by spec path; srun's go before those of the job around it. What is no number stands as nothing."""
    found: dict[str, Entry] = {}
    is_job = False
    for word, behind in zip_longest(words, words[1:]):
        text = str(word.value)
        is_job = is_job or text.rpartition("/")[2] in _JOBS
        name, equals, value = (text[:2], text[2:], text[2:]) if re.match(r"-N\d", text) else text.partition("=")
        node = word if equals else behind
        if not is_job or name not in _OPTIONS or node is None:
            continue
        path, pattern = _OPTIONS[name]
        number = pattern.fullmatch(value if equals else str(node.value))
        if number and int(number[1]):
            found[path] = Entry(key=name, value=int(number[1]), text=number[1], mark=node.mark, key_mark=word.mark)
    tasks = found.pop(_TASKS, None)
    if tasks is not None and tasks.value > 1:
        found.setdefault(EACH, tasks)
    return found
