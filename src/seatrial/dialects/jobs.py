"""Requests to Slurm in a command: the options of sbatch, salloc and srun before the program.

Nodes and devices are those of the run; the rest is requested again where the run is a job of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from seatrial.dialects.table.entries import Entry, below
from seatrial.source import Node
from seatrial.spec import Origin

JOB = "distributed.slurm"
NODES, EACH = "topology.num_nodes", "topology.devices_per_node"

_JOBS = ("sbatch", "salloc", "srun")
_TASKS = "tasks of a node"  # a device each, where nothing says how many devices there are
_NODES, _TASKS_OF_NODE = re.compile(r"(\d{1,5})(?:-\d+)?"), re.compile(r"(\d{1,3})")  # a range: at least so many
_GPUS, _RESOURCES = (re.compile(rf"{prefix}(?:[A-Za-z][\w.-]*:)?(\d{{1,3}})") for prefix in ("", "gpu:"))
_OPTIONS = {
    "-N": (NODES, _NODES), "--nodes": (NODES, _NODES), "--gpus-per-node": (EACH, _GPUS), "--gres": (EACH, _RESOURCES),
    "--ntasks-per-node": (_TASKS, _TASKS_OF_NODE),
}  # fmt: skip
# Of what a job of ours can request as well. CPUs and memory are left out: it has whole nodes.
_OTHERS = {
    "-A": "account", "-p": "partition", "-q": "qos", "-t": "time", "-C": "constraint", "-w": "nodelist",
    "-x": "exclude",
    **{f"--{name}": name for name in ("account", "partition", "qos", "time", "constraint", "nodelist", "exclude",
                                      "reservation", "gres", "gpus-per-node", "signal")},
}  # fmt: skip


def options(found: Mapping[str, Entry]) -> dict[str, str]:
    """Of what is requested, the options of a job of ours, by name."""
    return {name: entry.text for name, entry in below(JOB, found).items()}


def origins(found: Mapping[str, Entry]) -> dict[str, Origin]:
    """The origins of the job's options, by spec path."""
    return {f"{JOB}.{name}": entry.origin() for name, entry in below(JOB, found).items()}


def requested(words: Sequence[Node]) -> dict[str, Entry]:
    """The requests by spec path; srun's goes before that of the job around it. A wrong number is left out."""
    found: dict[str, Entry] = {}
    is_job = False
    for word, behind in zip_longest(words, words[1:]):
        text = str(word.value)
        is_job = is_job or text.rpartition("/")[2] in _JOBS
        is_joined = re.match(r"-[NApqtCwx][^=]", text)
        name, equals, value = (text[:2], text[2:], text[2:]) if is_joined else text.partition("=")
        node = word if equals else behind
        if not is_job or node is None:
            continue
        value = value if equals else str(node.value)
        if name in _OTHERS:
            value = value.removeprefix("B:") if name == "--signal" else value
            found[f"{JOB}.{_OTHERS[name]}"] = Entry(
                key=name, value=value, text=value, mark=node.mark, key_mark=word.mark
            )
        path, pattern = _OPTIONS.get(name, ("", _NODES))
        number = pattern.fullmatch(value)
        if path and number and int(number[1]):
            found[path] = Entry(key=name, value=int(number[1]), text=number[1], mark=node.mark, key_mark=word.mark)
    tasks = found.pop(_TASKS, None)
    if tasks is not None and tasks.value > 1:
        found.setdefault(EACH, tasks)
    return found
