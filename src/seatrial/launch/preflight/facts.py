"""What a node has told of itself, read with limits: whoever answers may be broken, or not who we think.

`probe.py` writes what is read here; a part that it could not find out is None, and `failed` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from seatrial.cluster import Host
from seatrial.errors import Problem, Severity

MAX_TEXT = 300
MAX_ENTRIES = 4096

Text = Annotated[str, AfterValidator(lambda text: text[:MAX_TEXT])]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Whole = Annotated[int, Field(ge=-1, lt=2**63)]  # what can be divided and shown
_LIMITED = Field(max_length=MAX_ENTRIES)
Texts = Annotated[dict[Text, Text], _LIMITED]


@dataclass(frozen=True, kw_only=True)
class Group:
    """What the control groups leave; None: all that there is."""

    memory_bytes: Whole | None = None
    cores: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    kernel: Text
    architecture: Text
    cores: Whole
    memory_bytes: Whole
    available_bytes: Whole
    shm_bytes: Whole
    shm_free_bytes: Whole
    limits: Annotated[dict[Text, Whole | None], _LIMITED]  # memlock, nofile, nproc; None: none
    cgroup: Group
    python: Text  # of python3, which runs the agent
    user: Whole


@dataclass(frozen=True, kw_only=True)
class Name:
    """`resolves` are the addresses behind `hostname`, or why there are none.

    `machine` is the same for two names of one machine: its boot, and the network that it sees.
    """

    hostname: Text
    resolves: Annotated[tuple[Text, ...], _LIMITED] | Text
    has_address: bool | None = None
    machine: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Interface:
    up: bool
    speed_mbits: Whole | None = None
    mtu: Whole | None = None
    address: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port of an RDMA card; `gid` is its address at the index asked for."""

    state: Text
    link_layer: Text | None = None
    rate: Text | None = None
    gid: Text | None = None
    gid_type: Text | None = None
    gid_interface: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    firmware: Text | None = None
    ports: Annotated[dict[Text, Port], _LIMITED] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Device:
    model: Text
    memory_bytes: Whole
    used_bytes: Whole | None = None
    uncorrected_errors: Whole | None = None


@dataclass(frozen=True, kw_only=True)
class Devices:
    vendor: Text | None = None
    driver: Text | None = None
    rocm: Text | None = None
    found: Annotated[tuple[Device, ...], _LIMITED] = ()
    files: Annotated[tuple[Text, ...], _LIMITED] = ()
    usable: bool = True


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The Python that starts the trainer; None for a library that it has not."""

    python: Text
    libraries: Annotated[dict[Text, Text | None], _LIMITED]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The container engine; `image` is the identity of the image, None where it is not there."""

    version: Text
    image: Text | None = None
    architecture: Text | None = None
    why: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Listening:
    free: bool
    why: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A path and what is below it; `nearest` is the folder that is there where the path itself is not."""

    exists: bool
    nearest: Text
    readable: bool
    writable: bool
    free_bytes: Whole
    free_files: Whole | None = None  # None: it does not count them
    size: Whole | None = None  # bytes of a file, entries of a folder
    nonce: Text | None = None  # a file that other nodes can look for
    why: Text | None = None  # there is none


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`clock` is the node's time when it began, `took` how long it looked; `sent` and `received` are our times."""

    clock: Number
    took: Number
    sent: Number
    received: Number
    failed: Texts = field(default_factory=dict)
    machine: Machine | None = None
    name: Name | None = None
    network: Annotated[dict[Text, Interface], _LIMITED] | None = None
    cards: Annotated[dict[Text, Card], _LIMITED] | None = None
    devices: Devices | None = None
    trainer: Trainer | None = None
    engine: Engine | None = None
    port: Listening | None = None
    storage: Annotated[dict[Text, Disk], _LIMITED] | None = None
    firewall: Texts | None = None


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """`reached`: whether the coordinator's port could be, or why not; `seen`: which files of the first node were."""

    reached: bool | Text = True
    seen: Annotated[dict[Text, bool], _LIMITED] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host with what it has told, or why it has told nothing: (why, fix)."""

    host: Host
    facts: Facts | None = None
    trouble: tuple[str, str] | None = None
    meeting: Meeting | None = None

    def finding(self, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the host."""
        return Problem(severity=severity, code=code, path=self.host.name, why=why, fix=fix)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


_FACTS, _MEETING = TypeAdapter(Facts), TypeAdapter(Meeting)


def read_facts(answer: dict[str, Any]) -> Facts | str:
    """The facts in a probe's answer, or what is wrong with it."""
    try:
        return _FACTS.validate_python(answer)
    except ValidationError as error:
        return _wrong(error)


def read_meeting(answer: dict[str, Any]) -> Meeting | str:
    """The same of the second question."""
    try:
        return _MEETING.validate_python(answer)
    except ValidationError as error:
        return _wrong(error)


def _wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:MAX_TEXT]
