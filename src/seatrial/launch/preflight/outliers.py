"""Nodes that differ from the others where all should be alike. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seatrial.errors import Problem, Severity
from seatrial.launch.preflight.answers import Node, is_loopback
from seatrial.launch.preflight.needs import Needs
from seatrial.node.facts import Facts

Found = Iterator[Problem]


class Outlier(NamedTuple):
    """Something in which all nodes should be alike."""

    severity: Severity
    code: str
    area: str
    what: str
    of: Callable[[Needs, Facts], object]
    fix: str

    def findings(self, needs: Needs, nodes: Sequence[Node]) -> Found:
        """The nodes that differ from most; in a tie, from the first."""
        known = [(node, self.of(needs, node.facts)) for node in nodes if node.facts]
        values = [(node, value) for node, value in known if value is not None]
        if not values:
            return
        usual, number = Counter(value for _, value in values).most_common(1)[0]
        for node, value in values:
            if value != usual:
                why = f"{self.what}: {value} here, {usual} on {number} of {len(values)} hosts"
                yield node.finding(self.severity, self.code, why, self.fix)


def _library(name: str) -> Callable[[Needs, Facts], object]:
    return lambda needs, facts: facts.trainer and facts.trainer.libraries.get(name)


def _of(part: str, name: str) -> Callable[[Needs, Facts], object]:
    return lambda needs, facts: getattr(getattr(facts, part), name, None)


def _models(needs: Needs, facts: Facts) -> object:
    found = facts.devices.found if facts.devices else ()
    return ", ".join(f"{count} × {model}" for model, count in Counter(each.model for each in found).items()) or None


def _link(needs: Needs, facts: Facts) -> object:
    """Mbit/s and MTU of the interface that has the node's address, or of those that are named."""
    network = facts.network or {}
    chosen = {name for _, selection in needs.interfaces for name in selection.of(list(network))}
    ways = [each for name, each in network.items() if each.up and each.address and (name in chosen or not chosen)]
    speeds = sorted(
        {f"{each.speed_mbits} Mbit/s, MTU {each.mtu}" for each in ways if not is_loopback(each.address or "")}
    )
    return "; ".join(speeds) or None


def _processors(needs: Needs, facts: Facts) -> object:
    return facts.machine and f"{facts.machine.cores} × {facts.machine.architecture}"


def _cards(needs: Needs, facts: Facts) -> object:
    if not facts.cards:
        return None
    active = sum(port.state == "ACTIVE" for card in facts.cards.values() for port in card.ports.values())
    return f"{len(facts.cards)} cards, {active} active ports"


def _firmware(needs: Needs, facts: Facts) -> object:
    return ", ".join(sorted({card.firmware for card in (facts.cards or {}).values() if card.firmware})) or None


def _sizes(needs: Needs, facts: Facts) -> object:
    there = [(path, (facts.storage or {}).get(path)) for path in needs.data]
    return "; ".join(f"{path} {disk.size:,}" for path, disk in there if disk and disk.size is not None) or None


_SAME = "make the hosts alike, or exclude this one (--exclude)"
_INSTALL = "install the same version everywhere"
_DIGEST = "pull the same image everywhere, best by its digest"

ALIKE = (
    Outlier("error", "other-version", "trainer", "seatrial", _library("seatrial"), _INSTALL),
    Outlier("error", "other-version", "trainer", "jax", _library("jax"), _INSTALL),
    Outlier("error", "other-version", "trainer", "jaxlib", _library("jaxlib"), _INSTALL),
    Outlier("error", "other-image", "trainer", "the image", _of("engine", "image"), _DIGEST),
    Outlier("warning", "other-engine", "trainer", "the container engine", _of("engine", "version"), _SAME),
    Outlier("warning", "other-devices", "devices", "devices", _models, _SAME),
    Outlier("warning", "other-driver", "devices", "the driver", _of("devices", "driver"), _SAME),
    Outlier("warning", "other-driver", "devices", "ROCm", _of("devices", "rocm"), _SAME),
    Outlier("warning", "other-link", "network", "the network link", _link, _SAME),
    Outlier("warning", "other-cards", "rdma", "RDMA", _cards, _SAME),
    Outlier("warning", "other-firmware", "rdma", "RDMA firmware", _firmware, _SAME),
    Outlier("warning", "other-data", "files", "bytes or entries of the data", _sizes, _SAME),
    Outlier("warning", "other-kernel", "machine", "the kernel", _of("machine", "kernel"), _SAME),
    Outlier("warning", "other-processors", "machine", "processors", _processors, _SAME),
)
