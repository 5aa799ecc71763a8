"""Requests to Slurm in a command: the options of sbatch, salloc and srun before the program.

Nodes and devices are those of the run; the rest is requested again where the run is a job of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from seatrial.dialects.table.entries import Entry, below
from seatrial.source import Node
from seatrial.spec import Origin

JOB = "distributed.slurm"
NODES, EACH = "topology.num_nodes", "topology.devices_per_node"

_JOBS = ("sbatch", "salloc", "srun")
_TASKS = "tasks of a node"  # a device each, where nothing says how many devices there are
_ALL_TASKS = "tasks of all nodes"
_NODES, _TASKS_OF_NODE = re.compile(r"(\d{1,5})(?:-\d+)?"), re.compile(r"(\d{1,3})")  # a range: at least so many
_GPUS, _RESOURCES = (re.compile(rf"{prefix}(?:[A-Za-z][\w.-]*:)?(\d{{1,3}})") for prefix in ("", "gpu:"))
_OPTIONS = {
    "-N": (NODES, _NODES), "--nodes": (NODES, _NODES), "--gpus-per-node": (EACH, _GPUS), "--gres": (EACH, _RESOURCES),
    "--ntasks-per-node": (_TASKS, _TASKS_OF_NODE), "-n": (_ALL_TASKS, _NODES), "--ntasks": (_ALL_TASKS, _NODES),
}  # fmt: skip
# Of what a job of ours can request as well. CPUs and memory are left out: it has whole nodes.
_OTHERS = {
    "-A": "account", "-p": "partition", "-q": "qos", "-t": "time", "-C": "constraint", "-w": "nodelist",
    "-x": "exclude",
    **{f"--{name}": name for name in ("account", "partition", "qos", "time", "constraint", "nodelist", "exclude",
                                      "reservation", "gres", "gpus-per-node", "signal")},
}  # fmt: skip
# Options of srun, sbatch and salloc (24.11), and of pyxis, behind which no value stands as a word of its own.
_IS_ALONE = re.compile(
    "-[EHIKOQVXZhklsuv]"
    "|--(bcast|bell|compress|contiguous|disable-status|exact|exclusive|external|get-user-env|help|hold|ignore-pbs"
    "|immediate|interactive|kill-command|kill-on-bad-exit|label|multi-prog|nice|no-allocate|no-bell|no-kill|no-requeue"
    "|no-shell|overcommit|overlap|oversubscribe|parsable|preserve-env|propagate|pty|quiet|quit-on-interrupt|reboot"
    "|requeue|resv-ports|send-libs|spread-job|stepmgr|test-only|unbuffered|usage|use-min-nodes|verbose|version|x11"
    "|(no-)?container-(entrypoint|mount-home|remap-root)|container-(entrypoint-log|readonly|writable))"
)


def options(found: Mapping[str, Entry]) -> dict[str, str]:
    """Of what is requested, the options of a job of ours, by name."""
    return {name: entry.text for name, entry in below(JOB, found).items()}


def origins(found: Mapping[str, Entry]) -> dict[str, Origin]:
    """The origins of the job's options, by spec path."""
    return {f"{JOB}.{name}": entry.origin() for name, entry in below(JOB, found).items()}


def requested(words: Sequence[Node]) -> dict[str, Entry]:
    """The requests by spec path; srun's goes before that of the job around it. A wrong number is left out."""
    found: dict[str, Entry] = {}
    for name, option, node, value in _given(words):
        if name in _OTHERS:
            value = value.removeprefix("B:") if name == "--signal" else value
            found[f"{JOB}.{_OTHERS[name]}"] = Entry(
                key=name, value=value, text=value, mark=node.mark, key_mark=option.mark
            )
        path, pattern = _OPTIONS.get(name, ("", _NODES))
        number = pattern.fullmatch(value)
        if path and number and int(number[1]):
            found[path] = Entry(key=name, value=int(number[1]), text=number[1], mark=node.mark, key_mark=option.mark)
    together, nodes = found.pop(_ALL_TASKS, None), found.get(NODES)
    if together and nodes and together.value % nodes.value == 0:
        found.setdefault(_TASKS, _share(together, nodes.value))
    tasks = found.pop(_TASKS, None)
    if tasks is not None and tasks.value > 1:
        found.setdefault(EACH, tasks)
    return found


def _share(entry: Entry, parts: int) -> Entry:
    """One of so many equal parts of a number."""
    return replace(entry, value=entry.value // parts, text=str(entry.value // parts))


def _given(words: Sequence[Node]) -> Iterator[tuple[str, Node, Node, str]]:
    """(option, its word, the word of its value, the value) of each that has one, up to the program that is started."""
    texts = [str(word.value) for word in words]
    is_job = False
    waiting: int | None = None  # the place of an option that takes the word behind it, unless that is another option
    for place, text in enumerate(texts):
        if text.startswith("-") and is_job and text not in ("-", "--"):
            name, value = _parts(text)
            if value is not None:
                yield name, words[place], words[place], value
            waiting = place if value is None and not _IS_ALONE.fullmatch(name) else None
        elif waiting is not None and not _is_job(text):
            yield texts[waiting], words[waiting], words[place], text
            waiting = None
        else:
            is_job, waiting = _is_job(text), None


def _is_job(text: str) -> bool:
    return text.rpartition("/")[2] in _JOBS


def _parts(text: str) -> tuple[str, str | None]:
    """An option and the value that is joined to it, if any: `--nodes=2`, `-N2`, `-N=2`."""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        return name, value if equals else None
    name, rest = text[:2], text[2:]
    return name, rest.removeprefix("=") if rest and not _IS_ALONE.fullmatch(name) else None
