"""The layout of a mesh's axes over the ranks of a run, where a system numbers its ranks axis by axis."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seatrial.spec import MeshShape


def lay_out(sizes: Mapping[str, int], devices_per_node: int) -> tuple[MeshShape, MeshShape]:
    """(within a node, across nodes), for the size of each axis of `MeshShape`, fastest first.

    The ranks along the first axis are neighbours; each axis takes what the ones before it leave of a node.
    """
    within, room = {}, devices_per_node
    for axis, size in sizes.items():
        within[axis] = math.gcd(size, room)
        room //= within[axis]
    return MeshShape(**within), MeshShape(**{axis: size // within[axis] for axis, size in sizes.items()})
