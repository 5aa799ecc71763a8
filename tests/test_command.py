"""The words that a container is started with: what its host gives it is what was asked for, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from seatrial.command import RUNTIMES, Command, in_container
from seatrial.spec import Container

PLAIN = Container(image="image:1")


def words(container: Container, runtime: str) -> tuple[str, ...]:
    made = in_container(Command(argv=("true",)), container, runtime=runtime, name="name", run="run", mounts=("/run",))
    return made.argv


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"privileged": True}, [("--privileged", "--ulimit")]),
        ({"pull": "never"}, [("--pull", "never")]),
        ({"pull": "always"}, [("--pull", "always")]),
        ({"cap_add": ("A", "B")}, [("--cap-add", "A"), ("--cap-add", "B")]),
        ({"security_opt": ("seccomp=unconfined",)}, [("--security-opt", "seccomp=unconfined")]),
        ({"group_add": ("video", "render")}, [("--group-add", "video"), ("--group-add", "render")]),
    ],
)
def test_a_container_is_given_what_it_asks_for_and_only_then(
    asked: dict[str, Any], given: list[tuple[str, str]], runtime: str
) -> None:
    usual, made = words(PLAIN, runtime), words(Container(image="image:1", **asked), runtime)
    assert set(given) <= set(pairwise(made))
    assert not {flag for flag, _ in given} & set(usual)
    assert made[-2:] == ("image:1", "true")
