"""Clusters as fixtures: a test says how many nodes it wants and has them for itself.

Where the machine cannot have them, the tests are skipped; SEATRIAL_REQUIRE_CLUSTER makes them fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.cluster import needs
from tests.helpers.cluster.nodes import Cluster
from tests.helpers.cluster.person import Person
from tests.helpers.cluster.slurm import Slurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what cannot run here, with one line a file."""
    for fixture, programs in (("node_programs", needs.NODES), ("slurm_programs", needs.SLURM)):
        using = [item for item in items if fixture in getattr(item, "fixturenames", ())]
        if using and not needs.REQUIRED and (why := needs.missing(programs)):
            for item in using:
                item.add_marker(pytest.mark.skip(reason=f"a cluster on one machine {why}"))


@pytest.fixture(scope="session")
def node_programs() -> None:
    """Fails if something that nodes need is missing."""
    if why := needs.missing(needs.NODES):
        pytest.fail(f"SEATRIAL_REQUIRE_CLUSTER is set, but a cluster on one machine {why}", pytrace=False)


@pytest.fixture(scope="session")
def slurm_programs(node_programs: None) -> None:
    """Fails if something that nodes or Slurm need is missing."""
    if why := needs.missing(needs.SLURM):
        pytest.fail(f"SEATRIAL_REQUIRE_CLUSTER is set, but Slurm on one machine {why}", pytrace=False)


@pytest.fixture
def make_cluster(node_programs: None) -> Iterator[Callable[..., Cluster]]:
    """`make_cluster(3)`: nodes that are up until the test ends; options as of `Cluster`."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(Cluster(nodes, **options))


@pytest.fixture
def make_person(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Callable[..., Person]:
    """`make_person(3)`: somebody who uses such a cluster."""
    return lambda nodes, **options: Person(make_cluster(nodes, **options), tmp_path)


@pytest.fixture
def make_slurm(slurm_programs: None) -> Iterator[Callable[..., Slurm]]:
    """`make_slurm(3)`: the same with Slurm on them."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes, **options: stack.enter_context(Slurm(nodes, **options))
