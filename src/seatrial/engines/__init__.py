"""The table of engines, each of which turns a spec into one command per node.

An engine starts a process a node, and the agent is the one writer of its log. It knows nothing of how processes are
started: whether a command runs here, over SSH or in a container is added to it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePath
from typing import Protocol, cast

from seatrial.command import Command, Secret
from seatrial.dialects.table.suggestions import suggestions
from seatrial.errors import InputError
from seatrial.spec import RunSpec

ENGINES: Mapping[str, str] = {  # name → module
    "native": "seatrial.engines.native",
    "maxtext": "seatrial.engines.maxtext",
    "megatron": "seatrial.engines.megatron",
}
DEFAULT_PORT = 12355  # where rank 0 listens on hosts of which nobody has said another


def coordinator_port(spec: RunSpec) -> int:
    """The port on which rank 0 listens."""
    return spec.distributed.coordinator_port or DEFAULT_PORT


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The devices of one process: virtual CPU devices, or the accelerators that `environment` lets it see."""

    cpu_devices: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The inputs of a run's commands beside its spec: the nodes in rank order, and what is where on them.

    `coordinator` is host:port of rank 0, needed for more than one node. `shell` are the variables of the shell that
    starts the processes; None: it is not on their hosts, whose own are not known.
    """

    hosts: Sequence[str]  # their names
    placements: Sequence[Placement]
    run_dir: PurePath
    python: str | None = None  # None: the engine's own choice
    coordinator: str | None = None
    contained: bool = False  # whether each command will run in the configuration's container
    secrets: Mapping[str, Secret] = field(default_factory=dict)  # variables that no configuration holds
    attempt: int = 1
    restarted: bool = False  # the commands are for a start after the first, beside whose files theirs stand
    shell: Mapping[str, str] | None = None

    def rendezvous(self, spec: RunSpec) -> tuple[str, str]:
        """Host and port of rank 0, as two words; this machine where it is alone."""
        host, _, port = (self.coordinator or f"127.0.0.1:{coordinator_port(spec)}").rpartition(":")
        return host, port

    def token_note(self, spec: RunSpec) -> list[str]:
        """A note where a Hugging Face token is asked for, and there is none."""
        missing = spec.hf_token_file is not None and "HF_TOKEN" not in self.secrets
        return [f"HF_TOKEN is not set: {spec.hf_token_file} cannot be read here"] if missing else []


@dataclass(frozen=True, kw_only=True)
class Commands:
    """One command a node, in rank order, and what is worth saying about them.

    `dropped` are the stated keys that bear on speed or memory, and that the engine does not get.
    """

    each: Sequence[Command]
    notes: Sequence[str] = ()
    dropped: Sequence[str] = ()


class Engine(Protocol):
    """The interface of every engine's module."""

    TITLE: str  # for people
    STEP_PATTERN: str  # of the line that a finished step prints; its group is the step's number
    FIRST_STEP: int  # the number of the first step in those lines
    FAMILY: str | None  # whose logs they are, of `logs.FAMILIES`; None: its processes write events themselves
    ON_CPU: bool  # whether it can compute on virtual CPU devices
    FIXED: Sequence[tuple[str, str]]  # (part, field) of what it has built in: a rehearsal leaves it as it is
    NEEDS_JAX_HERE: bool  # whether jax has to be installed beside Seatrial, where the run is here

    def commands(self, spec: RunSpec, ground: Ground) -> Commands:
        """The commands. Raises InputError where the engine cannot do what the configuration says."""


def folders(spec: RunSpec, variable: str, usual: Sequence[str]) -> list[str]:
    """The folders of an engine's program: those that a variable of the run or its container names, then the usual."""
    inside = spec.container.environment.get(variable) if spec.container else None
    return [each for each in dict.fromkeys((spec.execution.environment.get(variable), inside, *usual)) if each]


def engine(name: str) -> Engine:
    """An engine's module. Raises InputError where there is none of the name."""
    return cast(Engine, import_module(ENGINES[known(name)]))


def known(name: str) -> str:
    """The same name, if there is an engine of it; nothing of the engine is imported. Raises InputError."""
    if name not in ENGINES:
        meant = suggestions(name, tuple(ENGINES))
        fix = f"{f'did you mean {meant[0]}? ' if meant else ''}the engines are {', '.join(ENGINES)}"
        raise InputError.single("unknown-engine", "--engine", f"there is no engine {name!r}", fix)
    return name
