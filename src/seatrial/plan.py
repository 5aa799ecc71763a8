"""RunSpec × machine → Plan: which processes run where, with which commands. Pure: it touches no machine.

A process stands for a node. On this machine its devices are, in this order of preference,

    rehearsal, unless it is only a collapsed mesh               virtual CPU devices
    as many accelerators here as the run asks for               those accelerators
    the run names no kind of device and asks for a few          virtual CPU devices
    else                                                        none: LaunchError, whose fix is a rehearsal
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.cluster import Cluster, Host
from seatrial.command import Command, Secret, guarded, in_container, shown
from seatrial.engines import Ground, Placement, coordinator_port, native, nics
from seatrial.engines import engine as engine_called
from seatrial.errors import InputError, LaunchError
from seatrial.estimate import memory
from seatrial.estimate.hardware import GIB
from seatrial.shrink.collapse import collapse
from seatrial.shrink.rehearsal import Rehearsal
from seatrial.spec import Container, RunSpec, to_dict

MAX_VIRTUAL_DEVICES = 64  # what a test of a mesh needs; a typing error in a node count must not start 2048 processes
SCHEDULERS = ("pyxis", "kubernetes")  # runtimes of a scheduler, which starts the agents in the container
_NOT_OF_PYXIS = ("privileged", "cap_add", "security_opt", "group_add", "pull")
WITH_XLA = ("native", "maxtext")  # engines that read XLA_FLAGS
VISIBLE_DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of one machine.

    `accelerators` are the names by which its `vendor`'s runtime selects them, `accelerator_bytes` is the memory of the
    smallest; None: not known.
    """

    cores: int
    memory_bytes: int
    vendor: str | None = None
    accelerators: tuple[str, ...] = ()
    accelerator_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Site:
    """The site of a run on other machines: its hosts, what starts processes there, and its directory on each."""

    cluster: Cluster
    root: PurePosixPath
    python: str = "python3"
    runtime: str | None = None  # docker or podman; a row of SCHEDULERS: its own; None: no container
    image: str | None = None  # in the place of the configuration's
    about: Callable[[Container], Sequence[str]] = lambda container: ()  # notes on what has no counterpart there


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of the run; `log` is relative to the run directory."""

    rank: int
    host: Host
    command: Command
    log: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run as planned: `spec` is the one that the processes get, after the rehearsal's changes where there are any."""

    engine: str
    on: str
    spec: RunSpec
    processes: tuple[Process, ...]
    restart: tuple[Process, ...] = ()  # the same, as a scheduler starts them again; empty where it does not
    rehearsal: Rehearsal | None = None
    step_pattern: str = native.STEP_PATTERN
    first_step: int = 0  # the number that the log gives the first one
    container: Container | None = None  # in which a scheduler starts the agents
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # stated keys that bear on speed or memory, and that the engine does not get

    @property
    def files(self) -> dict[str, str]:
        """The files that must stand in the run directory before the start: relative path → content."""
        return {path: text for process in self.starts for path, text in process.command.files.items()}

    @property
    def starts(self) -> tuple[Process, ...]:
        """Every process as it is started, first and again."""
        return (*self.processes, *self.restart)

    @property
    def hosts(self) -> dict[Host, list[Process]]:
        """The processes by host, both in rank order."""
        return by_host(self.processes)

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
                    "environment": shown(process.command.environment),
                    "log": process.log,
                }
                for process in self.processes
            ],
            "notes": list(self.notes),
            "dropped": list(self.dropped),
            "files": self.files,
        }


def by_host(processes: Sequence[Process]) -> dict[Host, list[Process]]:
    """The processes by host, in their order."""
    hosts: dict[Host, list[Process]] = {}
    for process in processes:
        hosts.setdefault(process.host, []).append(process)
    return hosts


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The inputs of a plan.

    `coordinator` is the host:port where process 0 listens if there are several (port 0: not chosen yet), `nodes_here`
    how many of the nodes this machine stands for (default: all), `secrets` variables that no configuration holds,
    `shell` those of the launcher's shell, `remat_notes` the notes of `choose_remat`, `attempt` counts from 1,
    `restarts` says that a scheduler may start the processes again, which then resume.
    """

    spec: RunSpec
    run_dir: Path
    machine: Machine
    on: str = "local"
    engine: str = "native"
    rehearsal: Rehearsal | None = None
    coordinator: str = "127.0.0.1:0"
    nodes_here: int | None = None
    attempt: int = 1
    restarts: bool = False
    site: Site | None = None
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    shell: Mapping[str, str] = field(default_factory=dict)
    remat_notes: Sequence[str] = ()

    @property
    def run_spec(self) -> RunSpec:
        """The spec that the processes get: the rehearsal's, if it is one."""
        return self.rehearsal.spec if self.rehearsal else self.spec

    @property
    def on_virtual_devices(self) -> bool:
        """True if it is a rehearsal, and more than a collapsed mesh."""
        return bool(self.rehearsal and not self.rehearsal.collapsed)


def choose_remat(spec: RunSpec, machine: Machine, engine: str, there: float | None = None) -> tuple[RunSpec, list[str]]:
    """The spec with its recomputation chosen where that is "auto", and a note that says why; before any rehearsal.

    `there` are the bytes of each device; None: those of the device that the run names, or where it names none, its part
    of this machine's.
    """
    if spec.execution.remat != "auto":
        return spec, []
    there = there or memory.available_bytes(spec, engine) or machine.memory_bytes / spec.topology.devices_per_node
    chosen = memory.decided(spec, engine, there)
    need, whole = (
        memory.per_device(each, engine).total_bytes / GIB
        for each in (chosen, replace(spec, execution=replace(spec.execution, remat="none")))
    )
    fits = "the least that fits" if need <= memory.ROOM * there / GIB else "and not even that surely fits"
    return chosen, [
        f"execution.remat is auto: {chosen.execution.remat}, {fits}: each device needs about {need:,.1f} GiB of the "
        f"{there / GIB:,.1f} GiB that there are; without recomputation it would need {whole:,.1f} GiB"
    ]


def collapsed(spec: RunSpec, machine: Machine, engine: str) -> tuple[Rehearsal, list[str], float, float]:
    """A run collapsed to this machine, the notes of `choose_remat`, and the bytes a device needs and those it has."""
    here = len(machine.accelerators)  # without any, the CPU is one device
    rehearsal = collapse(spec, num_devices=here or 1, virtual=not here)
    there: float | None = machine.memory_bytes
    if here:
        share = memory.share(spec, engine)[0]
        each = machine.accelerator_bytes
        there = each * share if each else memory.available_bytes(spec, engine)
    chosen, notes = choose_remat(rehearsal.spec, machine, engine, there)
    need = memory.per_device(chosen, engine).total_bytes
    return replace(rehearsal, spec=chosen), notes, need, math.inf if there is None else there


def collapsed_to_fit(spec: RunSpec, machine: Machine, engine: str) -> tuple[Rehearsal, list[str]]:
    """A run collapsed to this machine, and notes. Raises LaunchError where it surely does not fit."""
    rehearsal, notes, need, there = collapsed(spec, machine, engine)
    if need > (1 + memory.DOUBT) * there:
        devices = f"each of its {rehearsal.spec.topology.num_devices} {machine.vendor} accelerators"
        raise LaunchError(
            f"the collapsed run does not fit on this machine: it needs about {need / GIB:,.1f} GiB of "
            f"{devices if machine.accelerators else 'its memory'}, and there {'is' if machine.accelerators else 'are'} "
            f"{there / GIB:,.1f} GiB. To try the configuration here with a small model, give --rehearse instead of "
            "--collapse"
        )
    return rehearsal, notes


def make_plan(request: PlanRequest) -> Plan:
    """The plan of a run, on this machine or at a site; with a rehearsal, of its spec.

    Raises InputError for an unknown engine, for what an engine does not support, and for a site that is not enough;
    LaunchError where the machine lacks what the run needs.
    """
    spec, trains = request.run_spec, engine_called(request.engine)
    if request.on_virtual_devices and not trains.ON_CPU:
        why = f"a rehearsal computes on CPUs, and {trains.TITLE} does not"
        raise InputError.single("rehearsal-engine", "--rehearse", why, "rehearse with --engine native")
    ground, hosts, notes = _at_site(request, request.site) if request.site else _on_this_machine(request)
    made = trains.commands(spec, ground)
    commands, container, about_containers = _contained(made.each, request)
    again: Sequence[Command] = ()
    if request.restarts:
        again = trains.commands(resumed(spec), replace(ground, restarted=True)).each
    return Plan(
        engine=request.engine,
        on=request.on,
        spec=spec,
        processes=_processes(hosts, commands),
        restart=_processes(hosts, _contained(again, request)[0]) if again else (),
        rehearsal=request.rehearsal,
        step_pattern=trains.STEP_PATTERN,
        first_step=trains.FIRST_STEP,
        container=container,
        dropped=tuple(made.dropped),
        notes=(*request.remat_notes, *notes, *made.notes, *_notes_on_flags(request), *about_containers),
    )


def _processes(hosts: Sequence[Host], commands: Sequence[Command]) -> tuple[Process, ...]:
    return tuple(
        Process(rank=rank, host=host, command=command, log=f"nodes/{host.name}/rank{rank}.log")
        for rank, (host, command) in enumerate(zip(hosts, commands, strict=True))
    )


def resumed(spec: RunSpec) -> RunSpec:
    """The spec of an attempt that goes on from the last checkpoint, where it saves any."""
    return replace(spec, checkpoint=replace(spec.checkpoint, resume=spec.checkpoint.enabled))


# --- where the processes are ------------------------------------------------------------------------------------------

_Place = tuple[Ground, tuple[Host, ...], list[str]]  # for the engine, the host of each process, notes


def _at_site(request: PlanRequest, site: Site) -> _Place:
    spec, notes = request.run_spec, list[str]()
    nodes = spec.topology.num_nodes
    hosts = _hosts(site.cluster, nodes)
    address = hosts[0].address
    bare_ipv6 = ":" in address and not address.startswith("[")
    coordinator = f"{f'[{address}]' if bare_ipv6 else address}:{coordinator_port(spec)}"
    named = spec.distributed.coordinator_host
    if nodes > 1 and named not in (None, "localhost", hosts[0].address, hosts[0].name):
        first = f"{hosts[0].name}, and listens at {coordinator}: the cluster file decides, not {named}"
        if site.cluster.transport == "slurm":
            first = f"on the first host of the job, which Slurm decides, not {named}"
        if site.cluster.transport == "kubernetes":
            first = f"in the first pod, and listens at {coordinator}, not {named}"
        notes.append(f"rank 0 is {first}")
    cpu_devices = spec.topology.devices_per_node if request.on_virtual_devices else None
    ground = Ground(
        hosts=[host.name for host in hosts],
        placements=[Placement(cpu_devices=cpu_devices)] * nodes,
        run_dir=site.root,
        python=site.python,
        coordinator=coordinator if nodes > 1 else None,
        contained=site.runtime is not None,
        secrets=request.secrets,
        attempt=request.attempt,
    )
    return ground, hosts, notes


def _on_this_machine(request: PlanRequest) -> _Place:
    nodes = request.run_spec.topology.num_nodes
    hosts = Cluster.on_this_machine(nodes).hosts
    placements, notes = _devices_here(request)
    ground = Ground(
        hosts=[host.name for host in hosts],
        placements=placements,
        run_dir=request.run_dir,
        coordinator=request.coordinator if nodes > 1 else None,
        secrets=request.secrets,
        attempt=request.attempt,
        shell=request.shell,
    )
    return ground, hosts, notes


def _hosts(cluster: Cluster, nodes: int) -> tuple[Host, ...]:
    """The first hosts of a cluster. Raises InputError where it has not enough of them."""
    if len(cluster.hosts) < nodes:
        option = f"--{cluster.transport} nodes" if cluster.transport in ("slurm", "kubernetes") else "--cluster"
        given = "the cluster file" if option == "--cluster" else option
        why = f"the run asks for {nodes} nodes, and {given} gives it {len(cluster.hosts)}"
        fix = "give it more, or let the configuration ask for fewer; --rehearse needs fewer"
        raise InputError.single("too-few-hosts", option, why, fix)
    return cluster.hosts[:nodes]


def _devices_here(request: PlanRequest) -> tuple[list[Placement], list[str]]:
    """The devices of each process, by the order of preference in the module's docstring, and notes on them."""
    spec, machine = request.run_spec, request.machine
    each, nodes = spec.topology.devices_per_node, spec.topology.num_nodes
    nodes_here, virtual = request.nodes_here or nodes, [Placement(cpu_devices=each)] * nodes
    if request.on_virtual_devices:
        return virtual, []
    if machine.vendor and nodes_here * each <= len(machine.accelerators):
        variable = VISIBLE_DEVICES[machine.vendor]
        places = [rank % nodes_here * each for rank in range(nodes)]
        slices = [machine.accelerators[place : place + each] for place in places]
        return [Placement(environment={variable: ",".join(names)}) for names in slices], []
    on_cpu = engine_called(request.engine).ON_CPU
    if on_cpu and spec.topology.device is None and nodes * each <= MAX_VIRTUAL_DEVICES:
        return virtual, ["there is no accelerator here for this run; virtual CPU devices stand in"]
    raise _too_few_devices(spec, machine, request.engine, on_cpu=on_cpu)


def _too_few_devices(spec: RunSpec, machine: Machine, engine: str, *, on_cpu: bool) -> LaunchError:
    asked = f"{spec.topology.num_nodes} × {spec.topology.devices_per_node} devices ({spec.topology.device or 'any'})"
    here = f"{len(machine.accelerators)} {machine.vendor} accelerators" if machine.vendor else "no accelerator"
    fixes = ["to try the configuration here with a small model on virtual CPU devices, add --rehearse"] * on_cpu
    if machine.accelerators or on_cpu:
        _, _, need, there = collapsed(spec, machine, engine)
        if need <= there:
            fixes.append("to train the same model on what is here, add --collapse")
    fix = "; ".join(fixes) or "name hosts that have them: --on ssh or --on slurm"
    return LaunchError(f"the run asks for {asked}, but this machine has {here}. {fix[0].upper()}{fix[1:]}")


# --- containers and flags ---------------------------------------------------------------------------------------------


def _contained(
    commands: Sequence[Command], request: PlanRequest
) -> tuple[Sequence[Command], Container | None, list[str]]:
    """(the commands as they run in containers, the container if a scheduler starts the agents in it, notes)."""
    site = request.site
    if site is None or site.runtime is None:
        return commands, None, []
    container = request.run_spec.container
    if site.image:
        container = replace(container, image=site.image) if container else Container(image=site.image)
    if container is None:
        option, fix = "--container", "name one, or omit --container"
        if site.runtime == "kubernetes":
            option, fix = "--kubernetes image", "name one there, or give --kubernetes image=IMAGE"
        raise InputError.single("no-image", option, "the configuration names no container image", fix)
    notes = []
    if request.on_virtual_devices and container != container.without_hardware():
        container = container.without_hardware()
        notes.append("a rehearsal computes on CPUs: the container is given none of its devices, volumes and rights")
    container, about_it = nics.mounted(container, request.run_spec.nic_type)
    notes += about_it
    if site.runtime not in SCHEDULERS:
        named = [_in_container(command, rank, container, site) for rank, command in enumerate(commands)]
        return named, None, notes
    unknown = [name for name in _NOT_OF_PYXIS if getattr(container, name)]
    notes += site.about(container)
    if unknown and site.runtime == "pyxis":
        notes.append(
            f"pyxis has no {', '.join(unknown)}: it fetches an image as each job begins, and gives its "
            "containers the rights of who submits the job"
        )
    variables = guarded(container.environment)
    return [replace(each, environment={**variables, **each.environment}) for each in commands], container, notes


def _in_container(command: Command, rank: int, container: Container, site: Site) -> Command:
    """A process in a container whose name says whose it is, and that sees the run directory."""
    assert site.runtime is not None
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"seatrial-{site.root.name}-{rank}")
    mounts = (str(site.root),)
    return in_container(command, container, runtime=site.runtime, name=name, run=site.root.name, mounts=mounts)


def _notes_on_flags(request: PlanRequest) -> list[str]:
    """A note on what becomes of the XLA flags in the user's shell; none where there are none."""
    flags, site = request.shell.get("XLA_FLAGS", "").strip(), request.site
    if not flags or request.engine not in WITH_XLA:
        return []
    if site is None:
        return [f"XLA_FLAGS of this shell are used, and the configuration's come after them: {flags}"]
    if site.cluster.transport == "slurm" and site.runtime in (None, "pyxis"):
        return [f"sbatch hands XLA_FLAGS of this shell to the job, as it does with every variable: {flags}"]
    if site.cluster.transport == "kubernetes":
        return ["XLA_FLAGS of this shell are not sent to the pods: those of the image count there"]
    return ["XLA_FLAGS of this shell are not sent to the hosts: those of their own environment count there"]


def without_secrets(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain data, with the values of variables that look like secrets masked."""
    data = to_dict(spec)
    for part in (data["execution"], data["container"] or {}):
        given = part.get("environment", {})
        if given:
            part["environment"] = shown(guarded(given))
    return data


def leaves(data: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Nested plain data as dotted path → value, in order."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{parent}.{key}" if parent else str(key)
        if isinstance(value, Mapping) and value:
            found |= leaves(value, path)
        else:
            found[path] = list(value) if isinstance(value, tuple) else value
    return found
