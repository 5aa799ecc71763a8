"""Network cards by the kinds that configurations name: what a plan sets for each, and what has to be on the nodes.

A plan cannot see a node: whether a device of the kind is there, active, and has the GID is for a preflight to look up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from seatrial.spec import Container, RunSpec

HCAS, GID_INDEX = "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"


@dataclass(frozen=True, kw_only=True)
class Nic:
    """A kind of card.

    `spellings` are what configurations call it. `environment` holds for runs over several nodes unless the
    configuration says otherwise. To look for on a node: RDMA devices that are called as `hca` says (NCCL_IB_HCA should
    name nothing else), and in the image the verbs provider `library`, whose N is the version of rdma-core's interface;
    where it `follows_driver`, it should be the host's own file.
    """

    title: str
    spellings: str  # a pattern
    hca: str  # a pattern
    library: str
    environment: Mapping[str, str] = field(default_factory=dict)
    follows_driver: bool = False
    source: str


NICS: Mapping[str, Nic] = {
    "thor2": Nic(
        title="Broadcom Thor 2 (BCM57608)",
        spellings=r"broadcom|thor|bnxt",
        hca=r"bnxt_re\d+",
        library="libbnxt_re-rdmavN.so",
        environment={GID_INDEX: "3"},
        follows_driver=True,
        source="ROCm/cvs 7afb1ca3, lib/jax_training_lib.py: copies the host's library over the image's, and sets GID 3",
    ),
    "ainic": Nic(
        title="AMD Pensando Pollara 400 (AI NIC)",
        spellings=r"ainic|pollara|ionic",
        hca=r"(?:ionic_|rdma|roce)\w+",
        library="libionic-rdmavN.so",
        environment={
            GID_INDEX: "1", "NCCL_IB_USE_INLINE": "1", "NCCL_GDR_FLUSH_DISABLE": "1", "NCCL_DMABUF_ENABLE": "0",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
        },
        source="AMD-AGI/Primus, runner/helpers/hooks/03_enable_ainic.sh; its traffic classes depend on the switches, "
        "and which plugin RCCL takes (RCCL_AINIC_ROCE, NCCL_NET_PLUGIN) on the image's ROCm",
    ),
    "cx7": Nic(
        title="NVIDIA ConnectX-7",
        spellings=r"cx-?\d|connectx|mellanox|mlx5",
        hca=r"mlx5_\w+",
        library="libmlx5-rdmavN.so",
        source="NVIDIA NCCL, environment variables: since 2.21 it finds the GID of RoCE v2 itself; InfiniBand has none",
    ),
}  # fmt: skip


def find(nic_type: str | None) -> Nic | None:
    """The card that a configuration means; None where it names none, or one of which nothing is known."""
    return next((nic for nic in NICS.values() if re.search(nic.spellings, nic_type or "", re.IGNORECASE)), None)


def environment(spec: RunSpec) -> dict[str, str]:
    """The variables that the run's card needs; none on a single node, which does not use it."""
    nic = find(spec.nic_type)
    return dict(nic.environment) if nic and spec.topology.num_nodes > 1 else {}


def notes(spec: RunSpec, *, contained: bool) -> Iterator[str]:
    """Notes on what is odd about the network of a run over several nodes, as far as a configuration shows it."""
    if spec.topology.num_nodes == 1 or spec.nic_type is None:
        return
    nic, given = find(spec.nic_type), spec.execution.environment.get(HCAS)
    volumes = spec.container.volumes if spec.container and contained else ()
    if nic and nic.follows_driver and contained and not any(_is_library(nic, there) for _, there in volumes):
        yield (
            f"{nic.title} is used by way of the image's own {nic.library}, which has to fit the host's driver; to be "
            "sure of that, mount the host's in its place"
        )
    if nic is None:
        yield f"nothing is known about network cards of the kind {spec.nic_type}; known are {', '.join(NICS)}"
    elif given is None:
        yield f"{HCAS} is not given: NCCL takes every RDMA device that it finds, those for storage too"
    elif not given.startswith("^"):
        names = [word.strip().partition(":")[0] for word in given.removeprefix("=").split(",")]
        strange = [name for name in names if not re.fullmatch(nic.hca, name)]
        if strange:
            yield f"devices of {nic.title} are not called {', '.join(strange)}, which {HCAS} names"


def _is_library(nic: Nic, place: str) -> bool:
    """True if a path in a container is that of the provider, or of what CVS copies over it."""
    pattern = re.escape(nic.library).replace("N", r"\d+")
    return re.fullmatch(pattern, place.rpartition("/")[2].removesuffix(".host")) is not None


def mounted(container: Container, nic_type: str | None) -> tuple[Container, list[str]]:
    """The container with the host's provider library in the place of the image's, and a note where that is new.

    CVS mounts the library beside its place, as `….so.host`, and copies it there as root in every container.
    """
    nic, remarks, volumes = find(nic_type), [], []
    for here, there in container.volumes:
        place = there.removesuffix(".host")
        if nic and place != there and _is_library(nic, there):
            remarks.append(f"{here} of the host is mounted as {place}, where CVS copies {there} over it")
            there = place
        volumes.append((here, there))
    return replace(container, volumes=tuple(volumes)), remarks
