"""Faults of machines: each is there inside `with`, and undone at its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.cluster.nodes import Node
from tests.helpers.processes import wait_until


@contextlib.contextmanager
def cable_out(node: Node) -> Iterator[None]:
    """Nothing reaches the node or leaves it, and nobody is told."""
    node.cable(False)
    try:
        yield
    finally:
        node.cable(True)


@contextlib.contextmanager
def dropped_from(node: Node, other: Node) -> Iterator[None]:
    """All that `other` sends to the node is lost; the opposite direction works."""
    with _nft(node, f"ip saddr {other.address} drop"):
        yield


@contextlib.contextmanager
def packets_lost(node: Node, percent: int) -> Iterator[None]:
    """A share of what reaches the node is lost, 1 to 99 percent."""
    with _nft(node, f"numgen random mod 100 < {percent} drop"):
        yield


@contextlib.contextmanager
def port_refused(node: Node, port: int) -> Iterator[None]:
    """A firewall of the node refuses connections to a port of it."""
    with _nft(node, f"tcp dport {port} reject with tcp reset"):
        yield


@contextlib.contextmanager
def slow_link(node: Node, megabits: float) -> Iterator[None]:
    """The node's link carries so many Mbit/s in either direction, and queues the rest for up to 0.4 s."""
    shape = ["root", "tbf", "rate", f"{round(megabits * 1000)}kbit", "burst", "16kbit", "latency", "400ms"]
    here, there = ("dev", node.cable_name), ("dev", "eth0")
    subprocess.run(["tc", "qdisc", "add", *here, *shape], check=True)
    node.run(["tc", "qdisc", "add", *there, *shape])
    try:
        yield
    finally:
        node.run(["tc", "qdisc", "del", *there, "root"])
        subprocess.run(["tc", "qdisc", "del", *here, "root"], check=True)


@contextlib.contextmanager
def disk_full(node: Node, folder: str | Path = "/tmp") -> Iterator[None]:
    """The disk of the node that holds a folder has no byte left."""
    disk = node.run(["findmnt", "--noheadings", "--output", "TARGET", "--target", str(folder)]).stdout.strip()
    before = os.statvfs(node.path(disk))
    size, used = before.f_blocks * before.f_frsize, (before.f_blocks - before.f_bfree) * before.f_frsize
    node.run(["mount", "--no-mtab", "-o", f"remount,size={max(used, before.f_frsize)}", disk])
    left = node.path(disk) / ".last-page"
    if not used:  # a disk without any byte does not exist
        left.write_bytes(b"\0" * before.f_frsize)
    try:
        yield
    finally:
        left.unlink(missing_ok=True)
        node.run(["mount", "--no-mtab", "-o", f"remount,size={size}", disk])


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 8) -> Iterator[Path]:
    """A folder of this machine on a disk of its own."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No block is left on a disk of this machine."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """The run directory there can only be read; what is in it is hidden until then."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk / "run")], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk / "run")], check=True)


@contextlib.contextmanager
def removed(disk: Path) -> Iterator[None]:
    """The run directory there is away."""
    (disk / "run").rename(disk / "away")
    try:
        yield
    finally:
        (disk / "away").rename(disk / "run")


@contextlib.contextmanager
def sshd_stopped(node: Node) -> Iterator[None]:
    """New connections are refused; those that are open stay."""
    node.stop_sshd()
    try:
        yield
    finally:
        node.start_sshd()
        node.wait_for_port(22)


@contextlib.contextmanager
def sshd_with(node: Node, *settings: str) -> Iterator[None]:
    """sshd runs with other settings: `MaxStartups 1:100:1` throttles, `AuthorizedKeysFile none` refuses every key."""
    with sshd_stopped(node):
        node.start_sshd(*settings)
        try:
            yield
        finally:
            node.stop_sshd()


@contextlib.contextmanager
def host_key_changed(node: Node) -> Iterator[None]:
    """The node shows another host key than the one that is known."""
    key = node.folder / "another_key"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with sshd_with(node, f"HostKey {key}"):
        yield


@contextlib.contextmanager
def port_taken(node: Node, port: int) -> Iterator[None]:
    """Another program of the node listens at a port, on all addresses."""
    listen = f"import socket, time; s = socket.create_server(('', {port})); print(flush=True); time.sleep(1e6)"
    with node.start(["python3", "-c", listen], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), f"port {port} of {node} was taken before"
        try:
            yield
        finally:
            _end(node, f"create_server(('', {port}))")


@contextlib.contextmanager
def image_missing(node: Node) -> Iterator[None]:
    """podman of the node has no image; containers that run go on."""
    settings = node.folder / "containers-etc" / "storage.conf"
    before = settings.read_text()
    settings.write_text("\n".join(line for line in before.splitlines() if "imagestores" not in line))
    try:
        yield
    finally:
        settings.write_text(before)


@contextlib.contextmanager
def frozen(node: Node, pid: int) -> Iterator[None]:
    """A process of the node gets no time; its connections stay open."""
    node.run(["kill", "-STOP", str(pid)])
    try:
        yield
    finally:
        node.run(["kill", "-CONT", str(pid)], check=False)


@contextlib.contextmanager
def _nft(node: Node, rule: str) -> Iterator[None]:
    """A rule for what reaches the node."""
    hook = "type filter hook input priority 0; policy accept;"
    add = f"add table inet fault; add chain inet fault input {{ {hook} }}; add rule inet fault input {rule}"
    node.run(["nft", add])
    try:
        yield
    finally:
        node.run(["nft", "delete table inet fault"])


def _end(node: Node, text: str) -> None:
    for process in node.processes(text):
        node.run(["kill", "-9", str(process.pid)], check=False)
    wait_until(lambda: not node.processes(text))
