"""The requirements of a run on each of its nodes, from its spec and site. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from seatrial.check.environment import exported
from seatrial.check.network import INTERFACES
from seatrial.cluster import Host
from seatrial.engines import DEFAULT_PORT, coordinator_port, nics
from seatrial.engines import engine as engine_called
from seatrial.errors import Severity
from seatrial.estimate import hardware
from seatrial.estimate.flops import num_parameters
from seatrial.plan import Site
from seatrial.spec import RunSpec

CHECKPOINT_BYTES_PER_PARAMETER = 12  # float32: the weights and AdamW's two moments
_NATIVE_DATA = ("text", "megatron", "arrow", "records")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """NCCL's way to name interfaces and cards: prefixes; `=` whole names; `^` all except these."""

    text: str
    names: tuple[str, ...] = ()
    whole: bool = False
    others: bool = False

    @classmethod
    def read(cls, text: str, *, whole: bool = False) -> Selection:
        words = text.strip()
        others, words = words.startswith("^"), words.removeprefix("^")
        whole, words = whole or words.startswith("="), words.removeprefix("=")
        names = [name.strip().partition(":")[0] for name in words.split(",")]
        return cls(text=text, names=tuple(filter(None, names)), whole=whole, others=others)

    def of(self, there: Sequence[str]) -> list[str]:
        """The selected ones."""
        return [name for name in there if self._meant(name)]

    def absent(self, there: Sequence[str]) -> list[str]:
        """The named ones that do not exist; none with `^`."""
        return [] if self.others else [name for name in self.names if not any(self._is(each, name) for each in there)]

    def _meant(self, name: str) -> bool:
        return any(self._is(name, given) for given in self.names) is not self.others

    def _is(self, name: str, given: str) -> bool:
        return name == given if self.whole else name.startswith(given)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """`hosts` in rank order; the first one's `port` is where the processes meet, if there are several.

    `hardware` is the severity of missing devices, cards and interfaces: a rehearsal does not need them.
    """

    hosts: tuple[Host, ...]
    root: str
    port: int = DEFAULT_PORT
    python: str | None = "python3"  # None: the trainer is in a container
    runtime: str | None = None
    image: str | None = None
    pulled: bool = False  # the run pulls a missing image
    devices: int | None = None
    device: str | None = None  # by the configuration's name
    interfaces: tuple[tuple[str, Selection], ...] = ()  # (variable, what it selects)
    cards: Selection | None = None
    gid_index: int | None = None
    shared: str | None = None  # a path that all nodes must see alike
    checkpoint_bytes: int = 0
    data: tuple[str, ...] = ()
    given: tuple[str, ...] = ()  # files of the host that the container is given
    hardware: Severity = "error"

    @property
    def meet(self) -> bool:
        return len(self.hosts) > 1

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.root, *((self.shared,) if self.shared else ()), *self.data, *self.given)))


def needs_of(
    spec: RunSpec | None, site: Site, *, hosts: Sequence[Host], engine: str = "native", rehearsing: bool = False
) -> Needs:
    """The requirements of a run of `spec` on `hosts`; without a spec, those of any run."""
    root = str(site.root)
    python = site.python if engine_called(engine).NEEDS_JAX_HERE and not site.runtime else None
    if spec is None:
        return Needs(hosts=tuple(hosts), root=root, python=python, runtime=site.runtime)
    variables = {**nics.environment(spec), **exported(spec)}
    device = hardware.find(spec.topology.device)
    index = variables.get(nics.GID_INDEX, "").strip()
    several = len(hosts) > 1
    saves = spec.checkpoint.enabled
    return Needs(
        hosts=tuple(hosts),
        root=root,
        port=coordinator_port(spec),
        python=python,
        runtime=site.runtime,
        image=spec.container.image if site.runtime and spec.container else None,
        pulled=bool(spec.container and spec.container.pull in ("missing", "always")),
        devices=spec.topology.devices_per_node if device and not rehearsing else None,
        device=device.name if device and not rehearsing else None,
        interfaces=tuple(
            (name, Selection.read(variables[name], whole=name.startswith("GLOO")))
            for name in INTERFACES
            if several and variables.get(name)
        ),
        cards=Selection.read(variables[nics.HCAS]) if several and variables.get(nics.HCAS) else None,
        gid_index=int(index) if re.fullmatch(r"\d{1,3}", index) else None,
        shared=_outside(spec.checkpoint.directory or root, spec, site) if several and saves else None,
        checkpoint_bytes=CHECKPOINT_BYTES_PER_PARAMETER * num_parameters(spec.model) if saves else 0,
        data=tuple(path for path in (_outside(each, spec, site) for each in _data(spec)) if path),
        given=_given(spec) if site.runtime and not rehearsing else (),
        hardware="warning" if rehearsing else "error",
    )


def _data(spec: RunSpec) -> list[str]:
    """The files and folders that are read; for a glob, the folder in which its names begin to vary."""
    data = spec.data
    if data.kind not in _NATIVE_DATA:
        return []
    found = []
    for path in (*data.paths, *data.validation_paths, *data.test_paths):
        if not path.startswith("/"):  # relative to the trainer's own folder
            continue
        if data.kind == "megatron":
            name = path.removesuffix(".bin").removesuffix(".idx")
            found += [f"{name}.bin", f"{name}.idx"]
        else:
            fixed = re.split(r"[*?\[]", path, maxsplit=1)[0]
            found.append(path if fixed == path else fixed.rpartition("/")[0] or "/")
    if data.kind != "megatron" and data.tokenizer.startswith("/"):
        found.append(data.tokenizer)
    return list(dict.fromkeys(found))


def _given(spec: RunSpec) -> tuple[str, ...]:
    """Devices and mounted paths of the host; a device may have its place and mode after a colon."""
    if spec.container is None:
        return ()
    mounted = (here for here, _ in spec.container.volumes)
    found = (*(device.partition(":")[0] for device in spec.container.devices), *mounted)
    return tuple(path for path in dict.fromkeys(found) if path.startswith("/"))


def _outside(path: str, spec: RunSpec, site: Site) -> str | None:
    """A path of the trainer as it is on the node; None if it exists only in the container."""
    if not site.runtime or spec.container is None or PurePosixPath(path).is_relative_to(site.root):
        return path
    for here, there in spec.container.volumes:
        inside = there.partition(":")[0]
        if inside and PurePosixPath(path).is_relative_to(inside):
            return str(PurePosixPath(here) / PurePosixPath(path).relative_to(inside))
    return None
