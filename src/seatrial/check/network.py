"""The network between nodes: how processes find each other, and which cards they use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.check.environment import exported
from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.estimate import hardware

_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0", re.IGNORECASE)

# What a configuration calls a network card → the names that its driver gives its RDMA devices.
CARDS: tuple[tuple[str, str, str], ...] = (
    ("broadcom|thor|bnxt", "Broadcom", "bnxt_re"),
    ("ainic|pensando|pollara|ionic", "AMD Pensando", "ionic_"),
    ("mellanox|connectx|cx\\d|mlx", "NVIDIA ConnectX", "mlx5_"),
    ("efa", "AWS EFA", "rdmap"),
)
RENAMED = "rdma"  # by udev rules that call every RDMA device rdma0, rdma1, …
NCCL_VENDORS = ("nvidia", "amd")  # whose collectives are NCCL's or RCCL's
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def coordinator_is_reachable(finder: Finder) -> Iterator[Problem]:
    """All nodes can reach the coordinator by the name that they are given."""
    spec = finder.spec
    host = spec.distributed.coordinator_host
    if host and spec.topology.num_nodes > 1 and _LOOPBACK.fullmatch(host.strip()):
        yield finder.at(
            "distributed.coordinator_host", finder.blocking, "coordinator-unreachable",
            f"on each of the {spec.topology.num_nodes} nodes, {host} is the node itself"
            f"{finder.note('topology.num_nodes')}, so they would never find each other",
            "give the first node's name or address in the network that all nodes share",
        )  # fmt: skip


def cards_are_named(finder: Finder) -> Iterator[Problem]:
    """A run over several nodes names both its network cards and its interface, or neither."""
    spec = finder.spec
    names = exported(spec)
    if spec.topology.num_nodes == 1:
        return
    cards, interface = names.get("NCCL_IB_HCA"), names.get("NCCL_SOCKET_IFNAME")
    for name in INTERFACES:
        if names.get(name, "").strip() in ("lo", "=lo"):
            why = f"lo is a node's own loopback, and there are {spec.topology.num_nodes} nodes"
            fix = "name the interface of the shared network, as `ip -brief address` shows it"
            yield finder.at(finder.variable(name), finder.blocking, "bad-interface", why, fix)
    if cards and not interface:
        yield finder.at(
            finder.variable("NCCL_IB_HCA"), "warning", "interface-not-given",
            "the RDMA cards are named, but NCCL_SOCKET_IFNAME is not: NCCL sets up its connections over the first "
            "interface that it finds, which may be docker0", "add NCCL_SOCKET_IFNAME=eth0, or what the interface is",
        )  # fmt: skip
    if interface and not cards and names.get("NCCL_IB_DISABLE", "0") == "0" and spec.nic_type:
        yield finder.at(
            "nic_type", "warning", "cards-not-given",
            f"the network cards are {spec.nic_type}, but NCCL_IB_HCA does not name them: NCCL takes all that it finds, "
            "those of storage and management too", "add NCCL_IB_HCA with the cards of the training network",
        )  # fmt: skip
    device = hardware.find(spec.topology.device)
    if not cards and not interface and spec.distributed.coordinator_host and device and device.vendor in NCCL_VENDORS:
        yield finder.at(
            "topology.num_nodes", "info", "network-not-named",
            f"{spec.topology.num_nodes} nodes exchange gradients, and nothing names their network: NCCL takes the "
            "first interface and all RDMA cards that it finds on each",
            "set NCCL_SOCKET_IFNAME and NCCL_IB_HCA to be sure",
        )  # fmt: skip
    off = names.get("NCCL_IB_DISABLE", "0").strip()
    if cards and off not in ("", "0"):
        why = f"NCCL_IB_DISABLE={off} turns RDMA off, though NCCL_IB_HCA names cards for it: traffic goes over TCP"
        yield finder.at(finder.variable("NCCL_IB_DISABLE"), "warning", "contradiction", why, "remove one of the two")


def cards_are_of_their_kind(finder: Finder) -> Iterator[Problem]:
    """The cards that are named are of the kind that is named, each once."""
    spec = finder.spec
    listed = [card.strip().lstrip("=^").partition(":")[0] for card in exported(spec).get("NCCL_IB_HCA", "").split(",")]
    path = finder.variable("NCCL_IB_HCA")
    kind = _kind(spec.nic_type or "")
    strange = [card for card in listed if kind and card and not card.startswith((kind[2], RENAMED))]
    if kind and strange:
        other = next((name for _, name, prefix in CARDS if strange[0].startswith(prefix)), None)
        yield finder.at(
            path, "warning", "contradiction",
            f"{strange[0]} is {f'a card of {other}' if other else 'no name'} for {finder.key('nic_type')} "
            f"{spec.nic_type}, whose cards are called {kind[2]}…",
            "correct one of the two; `rdma link` lists the cards",
        )  # fmt: skip
    twice = sorted({card for card in listed if card and listed.count(card) > 1})
    if twice:
        why = f"{', '.join(twice)} is listed more than once"
        yield finder.at(path, "warning", "repeated-card", why, "name each card once")


def _kind(text: str) -> tuple[str, str, str] | None:
    return next((card for card in CARDS if re.search(card[0], text, re.IGNORECASE)), None)


def gid_index(finder: Finder) -> Iterator[Problem]:
    """The index of the address that RoCE uses is a number, and the one of RoCE v2."""
    spec = finder.spec
    text = exported(spec).get("NCCL_IB_GID_INDEX")
    path = finder.variable("NCCL_IB_GID_INDEX")
    if text is not None and not re.fullmatch(r"-1|\d{1,3}", text.strip()):
        why = f"{text!r} is not a GID index"
        yield finder.at(path, "error", "bad-variable", why, "use 3, or what `show_gids` shows for RoCE v2 with IPv4")
    elif text is not None and text.strip() in ("0", "1") and _kind(spec.nic_type or "") is not None:
        why = f"index {text.strip()} is a link-local address on RoCE cards, which is not routed between nodes"
        fix = "use 3 as a rule, or what `show_gids` shows for RoCE v2 with IPv4"
        if spec.topology.num_nodes > 1:
            yield finder.at(path, "warning", "gid-index", why, fix)
