"""Clusters as fixtures: a test says how many nodes it wants and has them for itself.

Where the machine cannot have them, the tests are skipped; SEATRIAL_REQUIRE_CLUSTER makes them fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.cluster import needs
from tests.cluster.nodes import Cluster
from tests.cluster.slurm import Slurm


def _demand(programs: dict[str, str]) -> None:
    why = needs.missing(programs)
    if why and os.environ.get("SEATRIAL_REQUIRE_CLUSTER"):
        pytest.fail(f"SEATRIAL_REQUIRE_CLUSTER is set, but a cluster on one machine {why}")
    if why:
        pytest.skip(f"a cluster on one machine {why}")


@pytest.fixture(scope="session")
def node_programs() -> None:
    """Skips the test where no node can be made."""
    _demand(needs.NODES)


@pytest.fixture(scope="session")
def slurm_programs(node_programs: None) -> None:
    """Skips the test where Slurm cannot run on nodes."""
    _demand(needs.SLURM)


@pytest.fixture
def make_cluster(node_programs: None) -> Iterator[Callable[..., Cluster]]:
    """`make_cluster(3)`: nodes that are up until the test ends; options as of `Cluster`."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(Cluster(nodes, **options))


@pytest.fixture
def make_slurm(slurm_programs: None) -> Iterator[Callable[..., Slurm]]:
    """`make_slurm(3)`: the same with Slurm on them."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(Slurm(nodes, **options))
