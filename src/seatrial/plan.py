"""RunSpec × machine → Plan: which processes run where, with which commands. Pure: nothing here looks at a machine.

A process stands for a node. On this machine its devices are, in this order of preference,

    rehearsal, unless it is only a collapsed mesh               virtual CPU devices
    as many accelerators here as the run asks for               those accelerators
    the run names no kind of device and asks for a few          virtual CPU devices
    else                                                        none: LaunchError, whose fix is a rehearsal
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from seatrial.cluster import Cluster, Host
from seatrial.command import Command, Secret, guarded, in_container
from seatrial.engines import DEFAULT_PORT as DEFAULT_PORT
from seatrial.engines import Ground, Placement, native, nics
from seatrial.engines import engine as engine_called
from seatrial.errors import InputError, LaunchError
from seatrial.estimate import memory
from seatrial.estimate.hardware import GIB
from seatrial.shrink.collapse import collapse
from seatrial.shrink.rehearsal import Rehearsal
from seatrial.spec import Container, RunSpec, to_dict

MAX_VIRTUAL_DEVICES = 64  # what a test of a mesh needs; a typing error in a node count must not start 2048 processes
_NOT_OF_PYXIS = ("privileged", "cap_add", "security_opt", "group_add", "pull")
WITH_XLA = ("native", "maxtext")  # engines that read XLA_FLAGS
VISIBLE_DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What one machine offers.

    `accelerators` are the names by which its `vendor`'s runtime selects them, `accelerator_bytes` is the memory of the
    smallest; None: nobody says.
    """

    cores: int
    memory_bytes: int
    vendor: str | None = None
    accelerators: tuple[str, ...] = ()
    accelerator_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a run is that is not on this machine: its hosts, what starts processes there, and its directory on each."""

    cluster: Cluster
    root: PurePosixPath
    python: str = "python3"
    runtime: str | None = None  # docker or podman; pyxis: Slurm's own; None: no container


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of the run; `log` is relative to the run directory."""

    rank: int
    host: Host
    command: Command
    log: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be run: `spec` is what the processes get, after the rehearsal's changes where there are any."""

    engine: str
    on: str
    spec: RunSpec
    processes: tuple[Process, ...]
    rehearsal: Rehearsal | None = None
    step_pattern: str = native.STEP_PATTERN
    first_step: int = 0  # the number that the log gives the first one
    container: Container | None = None  # in which Slurm is to start the agents
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """The files that must stand in the run directory before the start: relative path → content."""
        return {path: text for process in self.processes for path, text in process.command.files.items()}

    @property
    def hosts(self) -> dict[Host, list[Process]]:
        """The processes by host, both in rank order."""
        hosts: dict[Host, list[Process]] = {}
        for process in self.processes:
            hosts.setdefault(process.host, []).append(process)
        return hosts

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data, for `plan.json`; secrets stay masked."""
        changes = self.rehearsal.changes if self.rehearsal else ()
        return {
            "v": 1,
            "engine": self.engine,
            "on": self.on,
            "spec": without_secrets(self.spec),
            "rehearsal": self.rehearsal
            and {"collapsed": self.rehearsal.collapsed, "changes": [vars(change) for change in changes]},
            "processes": [
                {
                    "rank": process.rank,
                    "host": process.host.name,
                    "argv": list(process.command.argv),
                    "environment": {name: str(value) for name, value in process.command.environment.items()},
                    "log": process.log,
                }
                for process in self.processes
            ],
            "notes": list(self.notes),
            "files": self.files,
        }


def decided(spec: RunSpec, machine: Machine, engine: str, there: float | None = None) -> tuple[RunSpec, list[str]]:
    """The spec with its recomputation chosen, where that is "auto", and why it is that; before any rehearsal.

    What counts are the bytes `there` for each device; None: those of the device that the run names, or where it names
    none, its part of this machine's.
    """
    if spec.execution.remat != "auto":
        return spec, []
    there = there or memory.available_bytes(spec, engine) or machine.memory_bytes / spec.topology.devices_per_node
    chosen = memory.decided(spec, engine, there)
    need, whole = (
        memory.per_device(each, engine).total_bytes / GIB
        for each in (chosen, replace(spec, execution=replace(spec.execution, remat="none")))
    )
    fits = "the least that fits" if need <= memory.ROOM * there / GIB else "and not even that fits surely"
    return chosen, [
        f"execution.remat is auto: {chosen.execution.remat}, {fits}: each device needs about {need:,.1f} GiB of the "
        f"{there / GIB:,.1f} GiB that there are; without recomputation it would need {whole:,.1f} GiB"
    ]


def collapsed(spec: RunSpec, machine: Machine, engine: str) -> tuple[Rehearsal, list[str], float, float]:
    """A run collapsed to this machine, the notes of `decided`, and of each device the bytes needed and those there."""
    here = len(machine.accelerators)  # without any, the CPU is one device
    rehearsal = collapse(spec, num_devices=here or 1, virtual=not here)
    there: float | None = machine.memory_bytes
    if here:
        share = memory.share(spec, engine)[0]
        each = machine.accelerator_bytes
        there = each * share if each else memory.available_bytes(spec, engine)
    chosen, why = decided(rehearsal.spec, machine, engine, there)
    need = memory.per_device(chosen, engine).total_bytes
    return replace(rehearsal, spec=chosen), why, need, math.inf if there is None else there


def collapsed_to_fit(spec: RunSpec, machine: Machine, engine: str) -> tuple[Rehearsal, list[str]]:
    """A run collapsed to this machine, and the notes of `decided`. Raises LaunchError where it surely does not fit."""
    rehearsal, why, need, there = collapsed(spec, machine, engine)
    if need > (1 + memory.DOUBT) * there:
        devices = f"each of its {rehearsal.spec.topology.num_devices} {machine.vendor} accelerators"
        raise LaunchError(
            f"the collapsed run does not fit on this machine: it needs about {need / GIB:,.1f} GiB of "
            f"{devices if machine.accelerators else 'its memory'}, and there {'is' if machine.accelerators else 'are'} "
            f"{there / GIB:,.1f} GiB. To try the configuration here with a small model, give --rehearse instead of "
            "--collapse"
        )
    return rehearsal, why


def make_plan(
    spec: RunSpec,
    *,
    run_dir: Path,
    machine: Machine,
    on: str = "local",
    engine: str = "native",
    rehearsal: Rehearsal | None = None,
    coordinator: str = "127.0.0.1:0",
    nodes_here: int | None = None,
    attempt: int = 1,
    site: Site | None = None,
    secrets: Mapping[str, Secret] = MappingProxyType({}),
    shell: Mapping[str, str] = MappingProxyType({}),
    why: Sequence[str] = (),
) -> Plan:
    """The plan of a run, on this machine or at a site; with a rehearsal, of its spec.

    `coordinator` is the host:port where process 0 listens if there are several (port 0: not chosen yet), `nodes_here`
    how many of the nodes this machine stands for (default: all), `secrets` variables that no configuration holds,
    `shell` those of the shell in which the launcher runs, `why` the notes of `decided`, `attempt` how often the run is
    being tried. Raises InputError for an unknown engine, for
    what an engine cannot do, and for a site that is not enough; LaunchError where the machine has not what it takes.
    """
    spec = rehearsal.spec if rehearsal else spec
    nodes, rehearsing = spec.topology.num_nodes, bool(rehearsal and not rehearsal.collapsed)
    trains, notes = engine_called(engine), list[str]()
    if rehearsing and not trains.ON_CPU:
        why = f"a rehearsal computes on CPUs, and {trains.TITLE} does not"
        raise InputError.single("rehearsal-engine", "--rehearse", why, "rehearse with --engine native")
    if site:
        hosts = _hosts(site.cluster, nodes)
        port = spec.distributed.coordinator_port or DEFAULT_PORT
        coordinator = f"{hosts[0].address}:{port}"
        placements = [Placement(cpu_devices=spec.topology.devices_per_node if rehearsing else None)] * nodes
        named = spec.distributed.coordinator_host
        if nodes > 1 and named not in (None, "localhost", hosts[0].address, hosts[0].name):
            first = f"{hosts[0].name}, and listens at {coordinator}: the cluster file decides, not {named}"
            if site.cluster.transport == "slurm":
                first = f"on the first host of the job, which Slurm decides, not {named}"
            notes.append(f"rank 0 is {first}")
    else:
        hosts = Cluster.on_this_machine(nodes).hosts
        placements, notes = _place(spec, machine, nodes_here or nodes, engine, rehearsing=rehearsing)
    made = trains.commands(
        spec,
        Ground(
            hosts=[host.name for host in hosts],
            placements=placements,
            run_dir=site.root if site else run_dir,
            python=site.python if site else None,
            coordinator=coordinator if nodes > 1 else None,
            contained=bool(site and site.runtime),
            secrets=secrets,
            attempt=attempt,
            shell=None if site else shell,
        ),
    )
    commands, notes = made.each, [*notes, *made.notes, *_about_flags(shell, engine, site)]
    around: Container | None = None
    if site and site.runtime:
        if spec.container is None:
            why, fix = "the configuration names no container image", "name one, or leave --container away"
            raise InputError.single("no-image", "--container", why, fix)
        container = spec.container
        if rehearsing and container != container.without_hardware():
            container = container.without_hardware()
            notes.append("a rehearsal computes on CPUs: the container is given none of its devices, volumes and rights")
        container, about_it = nics.mounted(container, spec.nic_type)
        notes += about_it
        if site.runtime == "pyxis":
            around, variables = container, guarded(container.environment)
            unknown = [name for name in _NOT_OF_PYXIS if getattr(container, name)]
            if unknown:
                notes.append(
                    f"pyxis knows no {', '.join(unknown)}: it fetches an image as each job begins, and gives its "
                    "containers the rights of who submits the job"
                )
            commands = [replace(command, environment={**variables, **command.environment}) for command in commands]
        else:
            commands = [
                _contained(command, rank, container, site, site.runtime) for rank, command in enumerate(commands)
            ]
    return Plan(
        engine=engine,
        on=on,
        spec=spec,
        processes=tuple(
            Process(rank=rank, host=host, command=command, log=f"nodes/{host.name}/rank{rank}.log")
            for rank, (host, command) in enumerate(zip(hosts, commands, strict=True))
        ),
        rehearsal=rehearsal,
        step_pattern=trains.STEP_PATTERN,
        first_step=trains.FIRST_STEP,
        container=around,
        notes=(*why, *notes),
    )


def _hosts(cluster: Cluster, nodes: int) -> tuple[Host, ...]:
    """The first hosts of a cluster. Raises InputError where it has not enough of them."""
    if len(cluster.hosts) < nodes:
        option, given = "--cluster", "the cluster file"
        if cluster.transport == "slurm":
            option = given = "--slurm nodes"
        why = f"the run asks for {nodes} nodes, and {given} gives it {len(cluster.hosts)}"
        fix = "give it more, or let the configuration ask for fewer; with --rehearse, fewer will do"
        raise InputError.single("too-few-hosts", option, why, fix)
    return cluster.hosts[:nodes]


def _contained(command: Command, rank: int, container: Container, site: Site, runtime: str) -> Command:
    """A process in a container whose name says whose it is, and that sees the run directory."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"seatrial-{site.root.name}-{rank}")
    mounts = (str(site.root),)
    return in_container(command, container, runtime=runtime, name=name, run=site.root.name, mounts=mounts)


def _about_flags(shell: Mapping[str, str], engine: str, site: Site | None) -> list[str]:
    """What becomes of the flags for XLA that the user's shell holds."""
    flags = shell.get("XLA_FLAGS", "").strip()
    if not flags or engine not in WITH_XLA:
        return []
    if site is None:
        return [f"XLA_FLAGS of this shell are used, and the configuration's come after them: {flags}"]
    if site.cluster.transport == "slurm" and site.runtime in (None, "pyxis"):
        return [f"sbatch hands XLA_FLAGS of this shell to the job, as it does with every variable: {flags}"]
    return ["XLA_FLAGS of this shell are not sent to the hosts: those of their own environment count there"]


def _place(
    spec: RunSpec, machine: Machine, nodes_here: int, engine: str, *, rehearsing: bool
) -> tuple[list[Placement], list[str]]:
    """What each process computes on, by the order of the module's docstring, and what is worth saying about it."""
    each, nodes = spec.topology.devices_per_node, spec.topology.num_nodes
    if not rehearsing and machine.vendor and nodes_here * each <= len(machine.accelerators):
        variable = VISIBLE_DEVICES[machine.vendor]
        places = [rank % nodes_here * each for rank in range(nodes)]
        slices = [machine.accelerators[place : place + each] for place in places]
        return [Placement(environment={variable: ",".join(names)}) for names in slices], []
    virtual = [Placement(cpu_devices=each)] * nodes
    if rehearsing:
        return virtual, []
    on_cpu = engine_called(engine).ON_CPU
    if on_cpu and spec.topology.device is None and nodes * each <= MAX_VIRTUAL_DEVICES:
        return virtual, ["there is no accelerator here for this run; virtual CPU devices stand in"]
    here = f"{len(machine.accelerators)} {machine.vendor} accelerators" if machine.vendor else "no accelerator"
    said = f"the run asks for {nodes} × {each} devices ({spec.topology.device or 'any'}), but this machine has {here}."
    fixes = ["to try the configuration here with a small model on virtual CPU devices, add --rehearse"] * on_cpu
    if machine.accelerators or on_cpu:
        _, _, need, there = collapsed(spec, machine, engine)
        if need <= there:
            fixes.append("to train the very model on what is here, add --collapse")
    way = "; ".join(fixes) or "name hosts that have them: --on ssh or --on slurm"
    raise LaunchError(f"{said} {way[0].upper()}{way[1:]}")


def without_secrets(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain data, with the values of variables that look like secrets masked."""
    data = to_dict(spec)
    for part in (data["execution"], data["container"] or {}):
        given = part.get("environment", {})
        if given:
            part["environment"] = {name: str(value) for name, value in guarded(given).items()}
    return data
