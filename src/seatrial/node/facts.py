"""The facts of a host before a run: the answers of `probe.py`, as data.

`inventory.py` fills them in there, and the launcher reads them by the same classes. A part that could not be found
out is None, and `failed` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """The memory and the CPUs that the control groups allow; None: no limit."""

    memory_bytes: int | None = None
    cores: float | None = None


@dataclass(frozen=True)
class Machine:
    kernel: str
    architecture: str
    cores: int
    memory_bytes: int
    available_bytes: int
    shm_bytes: int
    shm_free_bytes: int
    limits: dict[str, int | None]  # memlock, nofile, nproc; None: no limit
    cgroup: Group
    python: str  # of python3, which runs the agent
    user: int


@dataclass(frozen=True)
class Name:
    """`resolves` are the addresses behind `hostname`, or why there are none.

    `machine` is the same for two names of one machine: its boot, and the network that it sees.
    """

    hostname: str
    resolves: tuple[str, ...] | str
    has_address: bool | None = None
    machine: str | None = None


@dataclass(frozen=True)
class Interface:
    up: bool
    speed_mbits: int | None = None
    mtu: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Port:
    """A port of an RDMA card; `gid` is its address at the index asked for."""

    state: str
    link_layer: str | None = None
    rate: str | None = None
    gid: str | None = None
    gid_type: str | None = None
    gid_interface: str | None = None


@dataclass(frozen=True)
class Card:
    firmware: str | None = None
    ports: dict[str, Port] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    model: str
    memory_bytes: int
    used_bytes: int | None = None
    uncorrected_errors: int | None = None


@dataclass(frozen=True)
class Devices:
    vendor: str | None = None
    driver: str | None = None
    rocm: str | None = None
    found: tuple[Device, ...] = ()
    files: tuple[str, ...] = ()
    usable: bool = True


@dataclass(frozen=True)
class Trainer:
    """The Python that starts the trainer; None for a library that it does not have."""

    python: str
    libraries: dict[str, str | None]


@dataclass(frozen=True)
class Engine:
    """The container engine; `image` is the identity of the image, None where it is missing."""

    version: str
    image: str | None = None
    architecture: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Listening:
    free: bool
    why: str | None = None


@dataclass(frozen=True)
class Disk:
    """A path and what is below it; `nearest` is the folder that exists where the path itself does not."""

    exists: bool
    nearest: str
    readable: bool
    writable: bool
    free_bytes: int
    free_files: int | None = None  # None: the file system does not count them
    size: int | None = None  # bytes of a file, entries of a folder
    nonce: str | None = None  # a file that other nodes can look for
    why: str | None = None  # there is none


@dataclass(frozen=True)
class Facts:
    """`clock` is the node's time when it began, `took` how long it looked; `sent` and `received` are the launcher's."""

    clock: float
    took: float
    sent: float
    received: float
    failed: dict[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    name: Name | None = None
    network: dict[str, Interface] | None = None
    cards: dict[str, Card] | None = None
    devices: Devices | None = None
    trainer: Trainer | None = None
    engine: Engine | None = None
    port: Listening | None = None
    storage: dict[str, Disk] | None = None
    firewall: dict[str, str] | None = None


@dataclass(frozen=True)
class Meeting:
    """`reached`: whether the coordinator's port could be, or why not; `seen`: which files of the first node were."""

    reached: bool | str = True
    seen: dict[str, bool] = field(default_factory=dict)
