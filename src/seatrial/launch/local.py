"""The target `local`: one agent on this machine for each stand-in for a node, followed until the run is over."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from seatrial.errors import InputError
from seatrial.launch.follow import Following, Node
from seatrial.launch.job import OBSERVE_SECONDS, Job
from seatrial.launch.launcher import Begun, launch
from seatrial.launch.progress import Ending, Status, status_of
from seatrial.launch.where import Where
from seatrial.node import of_the_agent
from seatrial.plan import VISIBLE_DEVICES, Machine, Plan, Site
from seatrial.runs.files import read_text, touch, write_text
from seatrial.spec import RunSpec

KNOWS_ITS_HOSTS = False  # there are none to check

# Vendor → how its tool lists the devices (a line has a device's name and, if printed, its memory in MiB), and the
# modules of which one lets JAX use them.
_VENDORS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "nvidia": (
        ("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"),
        r"^(\d+)(?:, *(\d+))?",
        ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    ),
    "amd": (("rocm-smi", "--showid", "--csv"), r"^card(\d+)()", ("jax_rocm60_plugin", "jax_rocm7_plugin")),
}


def this_machine(*, for_jax: bool = True) -> Machine:
    """The cores, memory and accelerators that a process started here can use; `for_jax`, those that JAX can use."""
    import psutil

    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total
    for vendor, (argv, pattern, plugins) in _VENDORS.items():
        if for_jax and not any(importlib.util.find_spec(plugin) for plugin in plugins):
            continue
        listing = _listing(argv)
        memory_of = dict(re.findall(pattern, listing or "", re.MULTILINE))
        names = _shown(tuple(memory_of), os.environ.get(VISIBLE_DEVICES[vendor]))
        if listing is not None and names:
            known = [int(memory_of[name]) << 20 for name in names if memory_of.get(name)]
            return Machine(
                cores=cores, memory_bytes=memory, vendor=vendor, accelerators=names,
                accelerator_bytes=min(known) if len(known) == len(names) else None,
            )  # fmt: skip
    return Machine(cores=cores, memory_bytes=memory)


_WARNED = (0, 14)  # exit codes beside which a listing is whole; 14: nvidia-smi warns that an infoROM is corrupted


def _listing(argv: Sequence[str]) -> str | None:
    """The output of a vendor's tool; None if it is not installed, or finds no working device."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode in _WARNED else None


def _shown(names: tuple[str, ...], variable: str | None) -> tuple[str, ...]:
    """The accelerators that the shell's variable selects, in its order; unset: all.

    As CUDA reads it, the list ends at a word that is no device; a device may also be named by its UUID.
    """
    words = names if variable is None or variable.strip() == "all" else map(str.strip, variable.split(","))
    return tuple(takewhile(lambda word: word in names or word.startswith(("GPU-", "MIG-")), words))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class LocalNode(Node):
    """A stand-in for a node: an agent on this machine, in a session of its own."""

    def __init__(self, name: str, job: Job, agent_file: Path) -> None:
        self._name = name
        self._directory = Path(job["directory"])
        self._directory.mkdir(parents=True)
        with (self._directory / "agent.log").open("wb") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-I", str(agent_file), "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # The job travels by pipe, because the environment in it may hold secrets.
        assert self._agent.stdin is not None
        with suppress(BrokenPipeError), self._agent.stdin as pipe:
            pipe.write(json.dumps(job).encode())
        self._status: Status | None = None

    @property
    def name(self) -> str:
        return self._name

    def status(self) -> Status | None:
        with suppress(OSError, ValueError):  # half written on a full disk, or not to be read just now
            self._status = status_of(read_text(self._directory / "status.json"))
        return self._status

    def agent_ended(self) -> bool:
        return self._agent.poll() is not None

    def stop(self, *, now: bool) -> None:
        try:
            touch(self._directory / "stop", below=self._directory)
        except OSError:  # where nothing can be written, the signal means the same
            now = True
        if now and not self.agent_ended():
            self._agent.send_signal(signal.SIGTERM)


def site(where: Where, spec: RunSpec | None, run_dir: Path) -> None:
    """None: the host is this machine."""


def restarts(where: Where) -> bool:
    """Never."""
    return False


def without(where: Where, hosts: tuple[str, ...], run_dir: Path) -> Where:
    """The same: there is only this machine."""
    return where


def run(plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int) -> Ending:
    """Runs a plan's processes on this machine, and returns when none of them is left."""
    run_dir = run_dir.resolve()

    def begin(jobs: Sequence[tuple[str, Job]]) -> Begun:
        for name, text in of_the_agent().items():
            write_text(run_dir / name, text)
        # The stand-ins for nodes are one machine, which need not be observed by each of them.
        seconds = [OBSERVE_SECONDS] + [0.0] * (len(jobs) - 1)
        agent_file = run_dir / "launch" / "agent.py"
        nodes = [
            LocalNode(host, {**job, "observe_seconds": each}, agent_file)
            for (host, job), each in zip(jobs, seconds, strict=True)
        ]
        return nodes, None

    return launch(plan, run_dir, begin=begin, root=run_dir, directory=Path.cwd(), following=following, leased=True)


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Raises InputError: what runs here ends with its launcher."""
    why = "it runs on this machine, and ends with its launcher"
    raise InputError.single("run-local", str(run_dir), why, f"read its logs: seatrial logs -f {run_dir}")


def stop(run_dir: Path, *, now: bool) -> None:
    """Asks the agents to stop their processes; they kill what does not stop."""
    for node in (run_dir / "nodes").iterdir():
        touch(node / "stop", below=run_dir)
