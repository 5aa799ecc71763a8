"""Running a plan on this machine: one detached agent per stand-in for a node, followed until the run is over."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial import events
from seatrial.command import Secret
from seatrial.launch import agent
from seatrial.launch.files import write_json, write_text
from seatrial.launch.follow import LAUNCHER, Deadlines, Ending, Interrupts, Progress, Status, follow
from seatrial.plan import Machine, Plan, Process
from seatrial.xla_flags import known

LEASE_SECONDS = 15.0  # how long the processes outlive a launcher that was killed
LEASE = "launch/lease"
STATUS_SECONDS = 1.0

# Vendor → how its tool lists the devices (the first number of a line is a device's name), and the modules of which one
# makes JAX able to use them.
_VENDORS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "nvidia": (
        ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader"),
        r"^(\d+)",
        ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    ),
    "amd": (("rocm-smi", "--showid", "--csv"), r"^card(\d+)", ("jax_rocm60_plugin", "jax_rocm7_plugin")),
}


# XLA:CPU hands matrix products to a library that is made for CPUs with products of bfloat16. On one without them, XLA's
# own way takes 0.6 of the time of bfloat16's products, 0.85 of float32's, and 0.7 of a whole step in bfloat16.
_PLAIN_CPU_FLAGS = {"xla_cpu_experimental_ynn_fusion_type": ""}
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names it; the last is Arm's


def _cpu_flags() -> dict[str, str]:
    """The XLA flags with which this machine's CPU is fastest; none where its kind cannot be told."""
    try:
        features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return {}
    accepted = known(_PLAIN_CPU_FLAGS) if not features & _BFLOAT16 else set()
    return {name: value for name, value in _PLAIN_CPU_FLAGS.items() if name in accepted}


def this_machine() -> Machine:
    """The cores, memory and accelerators that a process started here can use."""
    import psutil

    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total
    for vendor, (argv, pattern, plugins) in _VENDORS.items():
        if shutil.which(argv[0]) and any(importlib.util.find_spec(plugin) for plugin in plugins):
            try:
                listing = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
            except (OSError, subprocess.SubprocessError):  # installed, but there is no working device
                continue
            if names := tuple(re.findall(pattern, listing, re.MULTILINE)):
                return Machine(cores=cores, memory_bytes=memory, vendor=vendor, accelerators=names)
    return Machine(cores=cores, memory_bytes=memory, cpu_flags=_cpu_flags())


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def revealed(environment: Mapping[str, str | Secret]) -> dict[str, str]:
    """Variables as a process gets them, secrets in the open."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in environment.items()}


class LocalNode:
    """A stand-in for a node: an agent on this machine, in a session of its own."""

    def __init__(self, name: str, job: dict[str, Any], agent_file: Path) -> None:
        self.name = name
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

    def status(self) -> Status | None:
        try:
            text = (self._directory / "status.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return dict(json.loads(text))

    def agent_ended(self) -> bool:
        return self._agent.poll() is not None

    def stop(self, *, now: bool) -> None:
        (self._directory / "stop").touch()
        if now and not self.agent_ended():
            self._agent.send_signal(signal.SIGTERM)


class Lease:
    """Touches a file from a thread of its own: it must go on while the terminal blocks, and stop when this dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._path.touch()
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while not self._over.wait(1.0):
            with suppress(OSError):
                self._path.touch()

    def end(self) -> None:
        self._over.set()


def run_locally(
    plan: Plan,
    run_dir: Path,
    *,
    deadlines: Deadlines,
    on_progress: Callable[[Progress], None],
    lease_seconds: float = LEASE_SECONDS,
) -> Ending:
    """Starts a plan's processes, follows them until none is left, and records what the launcher saw.

    Writes `launch/`, `nodes/`, `status.json` and `events-launcher.jsonl` below `run_dir`.
    """
    run_dir = run_dir.resolve()
    for relative, text in plan.files.items():
        write_text(run_dir / relative, text)
    agent_file = run_dir / "launch" / "agent.py"
    agent_file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(agent.__file__, agent_file)
    writer = events.Writer(run_dir / "events-launcher.jsonl")
    lease = Lease(run_dir / LEASE)
    state = StatusFile(plan, run_dir)

    def progressed(progress: Progress) -> None:
        state.write(progress)
        on_progress(progress)

    nodes: list[LocalNode] = []
    try:
        with Interrupts().caught() as interrupts:
            for host, processes in plan.hosts.items():
                times = {"lease_seconds": lease_seconds, "grace_seconds": deadlines.grace_seconds}
                jobs = [job(plan, host.name, processes, run_dir, **times, masked=m) for m in (True, False)]
                write_json(run_dir / "launch" / f"agent-{host.name}.json", jobs[0])
                nodes.append(LocalNode(host.name, jobs[1], agent_file))
            ending = follow(
                nodes,
                planned_steps=plan.spec.steps,
                deadlines=deadlines,
                interrupts=interrupts,
                on_progress=progressed,
            )
        ending = _told_by_the_trainer(ending, run_dir)
        for fault in ending.faults:
            writer.write(fault)
        writer.write(events.RunEnded(process=LAUNCHER, reason=ending.reason, exit_code=ending.exit_code))
        state.close(ending)
        return ending
    except BaseException:  # whatever went wrong here, nobody would look after the processes
        for node in nodes:
            node.stop(now=True)
        with suppress(OSError):
            writer.write(events.RunEnded(process=LAUNCHER, reason="interrupted"))
            state.close(Ending(reason="interrupted"))
        raise
    finally:
        lease.end()
        writer.close()


def job(
    plan: Plan,
    host: str,
    processes: list[Process],
    run_dir: Path,
    *,
    lease_seconds: float,
    grace_seconds: float,
    masked: bool,
) -> dict[str, Any]:
    """The agent's job for one host; `masked` shows secrets as ***, for the copy that is kept."""

    return {
        "v": agent.VERSION,
        "run": plan.spec.name,
        "directory": str(run_dir / "nodes" / host),
        "processes": [
            {
                "rank": process.rank,
                "argv": list(process.command.argv),
                "environment": {name: str(value) for name, value in process.command.environment.items()}
                if masked
                else revealed(process.command.environment),
                "cwd": str(Path.cwd()),
                "log": str(run_dir / process.log),
            }
            for process in processes
        ],
        "step_pattern": plan.step_pattern,
        "grace_seconds": grace_seconds,
        "lease_seconds": lease_seconds,
        "lease_file": str(run_dir / LEASE),
    }


def _told_by_the_trainer(ending: Ending, run_dir: Path) -> Ending:
    """A process that stopped because its loss was not finite, or on a signal, did not die: its own events say so."""
    if ending.reason != "died":
        return ending
    with suppress(ValueError):  # a damaged record: whoever judges it will say so
        ended = [event for event in events.read_run(run_dir) if isinstance(event, events.RunEnded)]
        for event in ended:
            if event.reason in ("non_finite_loss", "interrupted") and event.exit_code == ending.exit_code:
                return Ending(reason=event.reason, exit_code=ending.exit_code)
    return ending


class StatusFile:
    """`status.json` of the run: how it stands, for whoever looks in from outside."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._path = run_dir / "status.json"
        self._status: dict[str, Any] = {
            "v": 1,
            "run": plan.spec.name,
            "planned_steps": plan.spec.steps,
            "launcher_pid": os.getpid(),
            "started": time.time(),
            "last_step": None,
            "processes": [],
        }
        self._written = 0.0

    def write(self, progress: Progress) -> None:
        """Takes in what is known, and writes it once a second."""
        self._status["last_step"] = progress.last_step
        self._status["processes"] = [{"host": host, **process} for host, process in progress.processes]
        if time.monotonic() - self._written >= STATUS_SECONDS:
            self._put("stopping" if progress.ending else "running", progress.ending)

    def close(self, ending: Ending) -> None:
        """Writes for the last time."""
        self._put("ended", ending)

    def _put(self, state: str, ending: Ending | None) -> None:
        self._written = time.monotonic()
        self._status |= {"state": state, "reason": ending.reason if ending else None, "heartbeat": time.time()}
        with suppress(OSError):  # a full disk must not end a run that can go on
            write_json(self._path, self._status)
