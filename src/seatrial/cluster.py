"""The machines that a run gets: hosts in rank order and what each offers. Pure data; reading files is the dialects'."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.errors import InputError

Transport = Literal["local", "ssh", "slurm"]


@dataclass(frozen=True, kw_only=True)
class Host:
    """`name` is what the host is reached by and called in reports; `address` is what the other hosts connect to."""

    name: str
    address: str
    devices: int | None = None  # None: not known before somebody looks
    port: int = 22  # of its SSH daemon


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts in rank order (the first one coordinates) and how they are reached.

    Under Slurm there may be no hosts: then it allots them. `key_file` is a path; the key itself is never read here.
    """

    hosts: tuple[Host, ...]
    transport: Transport = "local"
    user: str | None = None  # None: whoever starts the run
    key_file: str | None = None  # None: what SSH takes by itself

    @classmethod
    def on_this_machine(cls, num_hosts: int = 1) -> Cluster:
        """`num_hosts` stand-ins for nodes, all of them this machine."""
        return cls(hosts=tuple(Host(name=f"local{i}", address="127.0.0.1") for i in range(num_hosts)))

    def without(self, excluded: Collection[str]) -> Cluster:
        """The hosts that are left. Raises InputError for a name that is none of them, or if none is left."""
        known = {name for host in self.hosts for name in (host.name, host.address)}
        for name in excluded:
            if name not in known:
                why = f"there is no host {name} in the cluster file"
                raise InputError.single("unknown-host", "--exclude", why, "give a name as it stands there")
        left = tuple(host for host in self.hosts if not {host.name, host.address} & set(excluded))
        if not left:
            raise InputError.single("no-hosts", "--exclude", "no host is left", "exclude fewer")
        return replace(self, hosts=left)
