"""The fixes for a host that cannot be used: commands that can be pasted as they are."""

from __future__ import annotations

import shlex

import pytest

from seatrial.cluster import Cluster, Host
from seatrial.launch.transports import TRANSPORTS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("kind", "port", "command"),
    [
        ("unknown", 22, ["ssh", "-i", "/my keys/id", "ada@node"]),
        ("unknown", 2299, ["ssh", "-p", "2299", "-i", "/my keys/id", "ada@node"]),
        ("changed", 22, ["ssh-keygen", "-R", "node"]),
        ("changed", 2299, ["ssh-keygen", "-R", "[node]:2299"]),
    ],
)
def test_a_fix_by_hand_is_whole(kind: str, port: int, command: list[str], transport: str) -> None:
    host = Host(name="node", address="node", port=port)
    cluster = Cluster(hosts=(host,), transport="ssh", user="ada", key_file="/my keys/id")
    fix = TRANSPORTS[transport](cluster).trouble(kind, host).fix
    _, quoted, _ = fix.split("`")
    assert shlex.split(quoted) == command
    assert not set("[]") & set(quoted.replace("'[node]:2299'", ""))
