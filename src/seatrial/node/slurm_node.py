"""Started by `srun` on every node of a job: finds its place among the others, fills in its job, becomes the agent.

    python3 -I ROOT/launch/slurm_node.py ROOT

Hosts are not known when a job is submitted, so the jobs in ROOT/launch/slurm have stand-ins for them:
`slurm-node-N.invalid` for the name of the N-th host, `slurm-address-0.invalid` for the address at which the others
reach the first. They are replaced as text in what is then data; no shell reads any of it. Secrets come as variables
that the job names, and are taken out of the environment that the processes get.

A process that fails does not fail its task: `srun` would kill the others before they have saved and cleared away. It
leaves a file that makes the job's script fail in the end; `srun --wait` ends those that go on regardless.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING or __package__:
    from seatrial.node.job_secrets import with_secrets
else:  # on a node, where it lies beside this
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from job_secrets import with_secrets

HOST, ADDRESS = "slurm-node-%d.invalid", "slurm-address-%d.invalid"
STAND_IN = re.compile(r"slurm-(node|address)-(\d+)\.invalid")
JOB = "launch/slurm/job-%d.json"
RESTART = "launch/slurm/restart-%d.json"  # the job of a node after Slurm has requeued the whole
PLACE = "launch/slurm/node-%d.json"
FAILED = "launch/slurm/failed"
ASK_SECONDS = 20


def expand(nodelist: str) -> list[str]:
    """The hosts of Slurm's short form, in its order: `a[1-2,07],b` is a1, a2, a07, b. Raises ValueError."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodelist):
        pieces = [
            _numbers(piece[1:-1]) if piece[0] == "[" else [piece] for piece in re.findall(r"\[.*?\]|[^\[]+", part)
        ]
        hosts += map("".join, itertools.product(*pieces))
    if not re.match(r"(?:[^][]|\[[^][]*\])+$", nodelist):
        raise ValueError("%r names no hosts" % nodelist)
    return hosts


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        match = re.match(r"(\d+)(?:-(\d+))?$", part)
        if match is None:
            raise ValueError("%r is no range of numbers" % part)
        first, last = match.group(1), match.group(2) or match.group(1)
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def hostnames(nodelist: str) -> list[str]:
    """The hosts of a job, from Slurm itself if it is installed (in a container it is not)."""
    return _ask("scontrol", "show", "hostnames", nodelist).split() or expand(nodelist)


def address_of(host: str) -> str:
    """The address at which others reach a host, IPv4 before IPv6; not loopback, to which a host may resolve itself.

    Raises OSError where neither its name nor Slurm's NodeAddr has one.
    """
    node_addr = re.findall(r"\bNodeAddr=(\S+)", _ask("scontrol", "show", "node", host))[:1]
    for name in [host, *node_addr]:
        found = []
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        usable = sorted((a for a in addresses if not (a.is_loopback or a.is_link_local)), key=lambda a: a.version)
        if usable:
            return str(usable[0]) if usable[0].version == 4 else "[%s]" % usable[0]
    raise OSError("%s: neither its name nor Slurm's NodeAddr resolves to an address that others can reach" % host)


def _ask(*argv: str) -> str:
    """The output of a program; nothing if it is missing or fails."""
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=ASK_SECONDS
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


def fill(data: Any, known: Callable[[str, int], str]) -> Any:
    """Plain data with every stand-in replaced by `known(what, number)`, in keys too."""
    if isinstance(data, str):
        return STAND_IN.sub(lambda match: known(match.group(1), int(match.group(2))), data)
    if isinstance(data, list):
        return [fill(each, known) for each in data]
    if isinstance(data, dict):
        return {fill(key, known): fill(value, known) for key, value in data.items()}
    return data


def with_hosts(data: Any, hosts: list[str], address: str) -> Any:
    """Plain data with the hosts of a job, and the address of the first, in the place of their stand-ins."""
    return fill(data, lambda what, number: address if what == "address" else hosts[number])


def write(path: str, data: Any) -> None:
    """Replaces a file in one step, so that nobody sees half of it."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(path + ".new", path)


def main(arguments: list[str]) -> None:
    """Becomes the agent of this node, and returns when nothing of it is left."""
    (root,) = arguments
    rank, restarts = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    hosts = hostnames(os.environ["SLURM_JOB_NODELIST"])
    address = address_of(hosts[0]) if len(hosts) > 1 else "127.0.0.1"
    again = os.path.join(root, RESTART % rank)
    path = again if restarts and os.path.exists(again) else os.path.join(root, JOB % rank)
    with open(path, encoding="utf-8") as file:
        job = with_hosts(json.load(file), hosts, address)  # before the secrets, which stay as they are
    job = with_secrets(job, os.environ)
    directory = job["directory"]
    os.makedirs(directory, exist_ok=restarts > 0)  # fails for a second run of this name
    for name in ("status.json", "stop"):  # of the last attempt, if it was on this host too
        path = os.path.join(directory, name)
        if os.path.exists(path):
            os.replace(path, "%s-before-restart-%d" % (path, restarts))
    place = {"host": hosts[rank], "hosts": hosts, "address": address, "restarts": restarts}
    write(os.path.join(root, PLACE % rank), place)
    log = os.open(os.path.join(directory, "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    agent: Any = importlib.import_module("agent")
    if agent.Agent(job).run() != 0:
        open(os.path.join(root, FAILED), "w").close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit("seatrial: %s: %s: %s" % (socket.gethostname(), type(error).__name__, error))
