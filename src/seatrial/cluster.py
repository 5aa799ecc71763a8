"""The machines that a run gets: hosts in rank order and what each offers. Pure data; reading files is the dialects'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Host:
    """`name` appears in logs and reports; `address` is what the other hosts connect to."""

    name: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts in rank order (the first one coordinates) and how they are reached."""

    hosts: tuple[Host, ...]
    transport: Literal["local", "ssh", "slurm"] = "local"
    user: str | None = None

    @classmethod
    def on_this_machine(cls, num_hosts: int = 1) -> Cluster:
        """`num_hosts` stand-ins for nodes, all of them this machine."""
        return cls(hosts=tuple(Host(name=f"local{i}", address="127.0.0.1") for i in range(num_hosts)))
