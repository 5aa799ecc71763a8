"""Cluster files → `Cluster`: CVS's (`username`, `priv_key_file`, `head_node_dict`, `node_dict`) and the native one.

The native one is a list of hosts, each a name or a mapping, beside `user`, `key_file`, `transport` and the `devices` of
every host that does not say its own. In both, a name may be a range (node[01-03,07]), and the order of the hosts is the
order of the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.cluster import MAX_HOSTS, Cluster, Host, Transport, host_words, hosts_of
from seatrial.dialects import placeholders
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.errors import Problem
from seatrial.source import Node

_TEMPLATE = re.compile(r"\{[^}]*\}?")
_NODES = ("node_dict", "nodes")
_HEADS = ("head_node_dict", "head_node")


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a key of a cluster file means; `why` says why it has no effect, where it has none."""

    meaning: str
    why: str = ""


CVS_KEYS: Mapping[str, Meaning] = {
    "username": Meaning(meaning="who logs in, on every host"),
    "priv_key_file": Meaning(meaning="the private key that SSH uses"),
    "head_node_dict.mgmt_ip": Meaning(meaning="the host from which CVS works", why="rank 0 is the first host"),
    "head_node": Meaning(meaning="the same, since 2026", why="rank 0 is the first host"),
    "node_dict": Meaning(meaning="the hosts by the name, range or address that SSH reaches, in the order of ranks"),
    "nodes": Meaning(meaning="the same, since 2026"),
    "node_dict.*.vpc_ip": Meaning(meaning="the address that the other hosts connect to"),
    "node_dict.*.bmc_ip": Meaning(meaning="the board's own controller", why="nothing here switches machines on or off"),
    "home_mount_dir_name": Meaning(meaning="what {home-mount-dir} stands for", why="write paths out instead"),
    "node_dir_name": Meaning(meaning="what {node-dir-name} stands for", why="write paths out instead"),
    "orchestrator": Meaning(meaning="baremetal or container", why="the training configuration names its container"),
    "container": Meaning(meaning="the container of CVS's tests", why="the training configuration names its container"),
    "env_vars": Meaning(meaning="variables on every host", why="the training configuration names its variables"),
    "racks": Meaning(meaning="switches and their passwords", why="nothing here logs in to switches"),
    "password": Meaning(meaning="the password of username", why="hosts are reached by key only"),
}
NATIVE_KEYS: Mapping[str, Meaning] = {
    "hosts": Meaning(meaning="the hosts in the order of their ranks: names, ranges (node[01-03,07]) or mappings"),
    "hosts.*.name": Meaning(meaning="what SSH reaches the host by"),
    "hosts.*.address": Meaning(meaning="what the other hosts connect to; by default its name"),
    "hosts.*.devices": Meaning(meaning="how many accelerators it has; by default `devices`"),
    "hosts.*.port": Meaning(meaning="the port of its SSH daemon; by default 22"),
    "user": Meaning(meaning="who logs in; by default whoever starts the run"),
    "key_file": Meaning(meaning="the private key that SSH uses; by default what SSH takes by itself"),
    "transport": Meaning(meaning="ssh, slurm or local"),
    "devices": Meaning(meaning="how many accelerators each host has"),
}


def is_cluster(root: Node) -> bool:
    """Whether a file describes machines, not a run."""
    keys = root.members.keys()
    if keys & {"model", "steps", "batch", "config", "model_params", "framework", "trainer"}:
        return False
    return bool(keys & {*_NODES, "head_node_dict", "hosts"}) or keys == {"transport"}


def read_cluster(path: Path, *, user: str, home: Path) -> tuple[Cluster | None, tuple[Problem, ...]]:
    """The machines that a file names, None where errors left none, and all findings.

    `user` and `home` are whose `{user-id}` and `~` stand for. Raises InputError where nothing can be read.
    """
    document = source.read(path)
    reader = _Reader(user=user, home=home, problems=list(document.problems))
    is_cvs = bool(document.root.members.keys() & {*_NODES, *_HEADS, "username", "priv_key_file"})
    cluster = reader.cvs(document.root) if is_cvs else reader.native(document.root)
    if any(problem.severity == "error" for problem in reader.problems):
        return None, tuple(reader.problems)
    return cluster, tuple(reader.problems)


# --- what a name may be: it ends up in commands -----------------------------------------------------------------------


def _host(value: Any) -> str:
    word = coerce.text(value)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*", word):
        raise ValueError(f"{coerce.shown(word)} is neither a host's name nor an address")
    return word


def _hosts(value: Any) -> list[str]:
    return [_host(name) for name in hosts_of(coerce.text(value))]


def _person(value: Any) -> str:
    word = coerce.text(value)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", word):
        raise ValueError(f"{coerce.shown(word)} is not the name of a user")
    return word


def _file(value: Any) -> str:
    word = coerce.text(value)
    if not word or word.startswith("-") or not word.isprintable():
        raise ValueError(f"{coerce.shown(word)} is not the path of a file")
    if word.startswith("~") and not word.startswith("~/"):
        try:
            Path(word).expanduser()
        except RuntimeError:
            raise ValueError(f"{coerce.shown(word)} is the home of a user whom this machine does not know") from None
    return word


_TRANSPORT = coerce.one_of("ssh", "slurm", "local")


@dataclass(kw_only=True)
class _Reader:
    """Reads one file; what is wrong with it is collected in `problems`."""

    user: str
    home: Path
    problems: list[Problem]
    names: dict[str, str] = field(default_factory=dict)  # host's name → its key in the file
    addresses: dict[str, str] = field(default_factory=dict)  # address → the first host that has it

    # --- CVS ---

    def cvs(self, root: Node) -> Cluster | None:
        self._unknown(root, "", CVS_KEYS)
        path = next((key for key in _NODES if key in root.members), "node_dict")
        nodes = root.members.get(path)
        given = self._given(nodes) if nodes else []
        if not given:
            self._missing(root, "node_dict", '"node_dict": {"10.0.0.1": {"vpc_ip": "10.0.0.1", "bmc_ip": "NA"}}', nodes)
        hosts = [host for name, node in given for host in self._cvs_hosts(f"{path}.{name}", name, node)]
        head = self._head(root)
        if head and hosts and head.text not in self.names:
            why = f"it is none of the hosts ({', '.join(list(self.names)[:4])}{', …' if len(self.names) > 4 else ''})"
            self._say(head, "warning", "unknown-head", why, "name one of them; rank 0 is the first host either way")
        elif head and hosts and head.text != hosts[0].name:
            why = f"rank 0 is the first host, {hosts[0].name}, also in CVS; this one is not moved to the front"
            self._say(head, "info", "head-not-first", why, "move it to the front if it is to coordinate")
        for key in root.members.keys() & CVS_KEYS.keys() - set(_HEADS):
            self._without_effect(Entry.of(key, root.members[key]), CVS_KEYS[key].why)
        return Cluster(
            hosts=tuple(hosts), transport="ssh", user=self._value(root, "username", _person),
            key_file=self._value(root, "priv_key_file", _file),
        )  # fmt: skip

    def _without_effect(self, entry: Entry, why: str) -> None:
        if entry.key in ("password", "racks"):
            why += "; passwords in a file are read by everybody who can read the file"
            self._say(replace(entry, text=""), "warning", "secret-in-file", why, "remove it")
        elif why and entry.value not in ({}, ""):
            self._say(entry, "info", "no-effect", f"it has no effect: {why}", "nothing to do")

    def _cvs_hosts(self, path: str, name: str, node: Node) -> Iterator[Host]:
        """The hosts of a key of node_dict: one, or those of a range, whose addresses may be a range too."""
        if not isinstance(node.value, dict):
            self._say(Entry.of(path, node), "error", "bad-value", "a mapping belongs here", 'write {"vpc_ip": "…"}')
            return
        self._unknown(node, path, CVS_KEYS, "node_dict.*")
        names = self._hosts(Entry(key=path, value=name, text=name, mark=node.key_mark))
        inner = node.members.get("vpc_ip")
        addresses = names
        if inner is not None and inner.text not in ("", "NA"):
            entry = self._entry(f"{path}.vpc_ip", inner)
            addresses = self._hosts(entry)
            if len(addresses) != len(names) and names and addresses:
                why = f"it is {len(addresses)} address{'es' * (len(addresses) > 1)} for {len(names)} hosts"
                self._say(entry, "error", "bad-value", why, "write one key per host, or a range with as many addresses")
        for each, address in zip(names, addresses, strict=False):
            if host := self._add(path, node, each, address):
                yield host

    def _head(self, root: Node) -> Entry | None:
        for key in _HEADS:
            node = root.members.get(key)
            if node is not None and isinstance(node.value, dict):
                node, key = node.members.get("mgmt_ip"), f"{key}.mgmt_ip"
            if node is not None:
                entry = self._entry(key, node)
                return entry if self._read(entry, _host) is not None else None
        return None

    # --- native ---

    def native(self, root: Node) -> Cluster | None:
        self._unknown(root, "", NATIVE_KEYS)
        transport: Transport = self._value(root, "transport", _TRANSPORT) or "ssh"
        devices = self._value(root, "devices", coerce.count)
        nodes = root.members.get("hosts")
        return Cluster(
            hosts=tuple(
                replace(host, devices=host.devices or devices) for host in self._native_hosts(root, nodes, transport)
            ),
            transport=transport, user=self._value(root, "user", _person),
            key_file=self._value(root, "key_file", _file),
        )  # fmt: skip

    def _native_hosts(self, root: Node, nodes: Node | None, transport: Transport) -> Iterator[Host]:
        if nodes is not None and isinstance(nodes.value, str) and nodes.value.strip():
            for word in host_words(nodes.value):
                yield from self._named_hosts("hosts", nodes, word)
        elif nodes is not None and isinstance(nodes.value, list) and nodes.value:
            for index, node in enumerate(nodes.value):
                is_mapping = isinstance(node.value, dict)
                path = f"hosts.{index}"
                yield from self._host(path, node) if is_mapping else self._named_hosts(path, node, node.plain())
        elif nodes is None and transport == "local":
            yield from Cluster.on_this_machine().hosts
        elif nodes is not None or transport != "slurm":
            self._missing(root, "hosts", "hosts: [node-a, node-b]", nodes)

    def _host(self, path: str, node: Node) -> Iterator[Host]:
        """The host of a mapping."""
        self._unknown(node, path, NATIVE_KEYS, "hosts.*")
        if "name" not in node.members:
            self._missing(node, f"{path}.name", "name: node-a", None)
            return
        name = self._value(node, "name", _host, path)
        address = self._value(node, "address", _host, path) or name
        extra = {"devices": self._value(node, "devices", coerce.count, path)}
        port = self._value(node, "port", coerce.port, path)
        host = self._add(path, node, name, address, **extra, **({"port": port} if port else {}))
        if host:
            yield host

    def _named_hosts(self, path: str, node: Node, name: Any) -> Iterator[Host]:
        """The host of a name, or those of a range."""
        for each in self._hosts(Entry(key=path, value=name, text="", mark=node.mark)):
            if host := self._add(path, node, each, each):
                yield host

    # --- both ---

    def _hosts(self, entry: Entry) -> list[str]:
        """The names or addresses that a name or a range stands for; none, with a finding, where it is wrong."""
        names: list[str] = self._read(entry, _hosts, "write a host's name or address, or a range: node[01-03,07]") or []
        if len(self.names) + len(names) > MAX_HOSTS:
            why = f"with these there are more than {MAX_HOSTS} hosts"
            self._say(entry, "error", "too-many-hosts", why, "correct the range, or name fewer")
            return []
        return names

    def _add(self, path: str, node: Node, name: str | None, address: str | None, **more: Any) -> Host | None:
        if name is None or address is None:
            return None
        if name in self.names:
            why = f"{name} is a host already ({self.names[name]}), and one machine cannot be two ranks"
            self._say(Entry.of(path, node), "error", "repeated-host", why, "remove one of the two")
            return None
        same = self.addresses.setdefault(address, name)
        if same != name:
            why = f"{same} has the address {address} too, so two ranks would be one machine"
            self._say(Entry.of(path, node), "warning", "repeated-address", why, "give each host its own address")
        self.names[name] = path
        return Host(name=name, address=address, **more)

    def _given(self, node: Node) -> list[tuple[str, Node]]:
        return [(name, child) for name, child in node.members.items() if not name.startswith("_")]

    def _entry(self, path: str, node: Node) -> Entry:
        """A value with its placeholders filled."""
        known = placeholders.values_for(self.user, self.home)
        value = placeholders.fill(node.plain(), known)[0]
        return Entry(key=path, value=value, text=coerce.text(value) if isinstance(value, str) else node.text,
                     mark=node.mark, key_mark=node.key_mark)  # fmt: skip

    def _value(self, parent: Node, key: str, read: Callable[[Any], Any], path: str = "") -> Any:
        node = parent.members.get(key)
        if node is None or node.value is None:
            return None
        return self._read(self._entry(f"{path}.{key}" if path else key, node), read)

    def _read(self, entry: Entry, read: Callable[[Any], Any], fix: str = "give a value that fits") -> Any:
        """A value as its type, or None with a finding."""
        if isinstance(entry.value, str) and (_TEMPLATE.search(entry.value) or placeholders.is_unfilled(entry.value)):
            left = "<changeme>" if placeholders.is_unfilled(entry.value) else "the template's placeholder"
            why = f"{coerce.shown(entry.value)} is still {left}"
            return self._say(
                entry, "error", "placeholder", why, "fill in the host's own name or address, or the user's"
            )
        try:
            return read(entry.value)
        except ValueError as error:
            return self._say(entry, "error", "bad-value", str(error), fix)

    def _unknown(self, node: Node, path: str, table: Mapping[str, Meaning], prefix: str = "") -> None:
        """A finding for each key that the table does not have, at its level."""
        if not isinstance(node.value, dict):
            self._say(
                self._entry(path or "(root)", node), "error", "bad-value", "a mapping belongs here", "write key: value"
            )
        known = [key.removeprefix(f"{prefix}.") for key in table if not prefix or key.startswith(f"{prefix}.")]
        first = {key.partition(".")[0] for key in known}
        for name, child in self._given(node):
            if name not in first:
                entry = Entry.of(f"{path}.{name}" if path else name, child)
                finding = entry.key_problem(
                    "error", "unknown-key", "cluster files have no such key here", did_you_mean(name, sorted(first))
                )
                self.problems.append(finding)

    def _missing(self, parent: Node, path: str, example: str, there: Node | None) -> None:
        mark = there.mark if there is not None else parent.mark
        why = "there are no hosts in it" if there is not None else "nothing says which machines there are"
        self.problems.append(
            Problem(severity="error", code="missing-key", path=path, why=why, fix=f"write {example}", mark=mark)
        )

    def _say(self, entry: Entry, severity: Any, code: str, why: str, fix: str) -> None:
        self.problems.append(entry.problem(severity, code, why, fix))
