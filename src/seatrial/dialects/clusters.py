"""Cluster files → `Cluster`: CVS's (`username`, `priv_key_file`, `head_node_dict`, `node_dict`) and the native one.

The native one is a list of hosts, each a name or a mapping, beside `user`, `key_file`, `transport` and the `devices` of
every host that does not say its own. In both, a name may be a range (node[01-03,07]), and the order of the hosts is the
order of the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.cluster import MAX_HOSTS, Cluster, Host, Transport, host_words, hosts_of
from seatrial.dialects import placeholders
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.coerce import anything
from seatrial.dialects.table.entries import NO_CHANGE, Entry
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.settings import Settings
from seatrial.errors import Problem
from seatrial.source import Node

_TEMPLATE = re.compile(r"\{[^}]*\}?")
_NODES = ("node_dict", "nodes")
_HEADS = ("head_node_dict", "head_node")
HOST = r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*"

# --- what a name may be: it ends up in commands -----------------------------------------------------------------------


@coerce.takes("a host's name or address")
def _host(value: Any) -> str:
    word = coerce.text(value)
    if not re.fullmatch(HOST, word):
        raise ValueError(f"{coerce.shown(word)} is neither a host's name nor an address")
    return word


@coerce.takes("a host's name or address, or a range of them: node[01-03,07]")
def _hosts(value: Any) -> list[str]:
    return [_host(name) for name in hosts_of(coerce.text(value))]


@coerce.takes("the name of a user")
def _person(value: Any) -> str:
    word = coerce.text(value)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", word):
        raise ValueError(f"{coerce.shown(word)} is not the name of a user")
    return word


@coerce.takes("the path of a file")
def _file(value: Any) -> str:
    word = coerce.text(value)
    if not word or word.startswith("-") or not word.isprintable():
        raise ValueError(f"{coerce.shown(word)} is not the path of a file")
    if word.startswith("~") and not word.startswith("~/"):
        try:
            Path(word).expanduser()
        except RuntimeError:
            raise ValueError(f"{coerce.shown(word)} is the home of a user that this machine does not have") from None
    return word


# --- tables -----------------------------------------------------------------------------------------------------------

_to, _ignored = keys.to, keys.ignored
_TRAINING = "the training configuration names it"

CVS_KEYS: Mapping[str, Key] = {
    "username": _to("user", _person, "who logs in, on every host"),
    "priv_key_file": _to("key_file", _file, "the private key that SSH uses"),
    **dict.fromkeys(_NODES, Key(read=anything, meaning="the hosts by the name, range or address that SSH reaches")),
    **dict.fromkeys(_HEADS, Key(read=anything, meaning="the host from which CVS works; rank 0 is the first host")),
    "home_mount_dir_name": _ignored("write paths out instead", anything, "what {home-mount-dir} stands for"),
    "node_dir_name": _ignored("write paths out instead", anything, "what {node-dir-name} stands for"),
    "orchestrator": _ignored(_TRAINING, anything, "baremetal or container"),
    "container": _ignored(_TRAINING, anything, "the container of CVS's tests"),
    "env_vars": _ignored(_TRAINING, anything, "variables on every host"),
    "racks": _ignored("nothing here logs in to switches", anything, "switches and their passwords"),
    "password": _ignored("hosts are reached by key only", anything, "the password of username"),
}
CVS_HOST_KEYS: Mapping[str, Key] = {
    "vpc_ip": _to("hosts.address", _hosts, "the address that the other hosts connect to; of a range of hosts, a range"),
    "bmc_ip": _ignored("nothing here switches machines on or off", anything, "the board's own controller"),
}
NATIVE_KEYS: Mapping[str, Key] = {
    "hosts": Key(read=anything, meaning="the hosts: names, ranges (node[01-03,07]) or mappings"),
    "user": _to("user", _person, "who logs in; by default whoever starts the run"),
    "key_file": _to("key_file", _file, "the private key that SSH uses; by default SSH's own choice"),
    "transport": _to("transport", coerce.one_of("ssh", "slurm", "local")),
    "devices": _to("hosts.devices", coerce.count, "how many accelerators each host has"),
}
NATIVE_HOST_KEYS: Mapping[str, Key] = {
    "name": _to("hosts.name", _host, "what SSH reaches the host by"),
    "address": _to("hosts.address", _host, "what the other hosts connect to; by default its name"),
    "devices": _to("hosts.devices", coerce.count, "how many accelerators it has; by default `devices` of the file"),
    "port": _to("hosts.port", coerce.port, "the port of its SSH daemon; by default SSH's own choice"),
}


def is_cluster(root: Node) -> bool:
    """True if a file describes machines, not a run."""
    names = root.members.keys()
    if names & {"model", "steps", "batch", "config", "model_params", "framework", "trainer"}:
        return False
    return bool(names & {*_NODES, "head_node_dict", "hosts"}) or names == {"transport"}


def read_cluster(path: Path, *, user: str, home: Path) -> tuple[Cluster | None, tuple[Problem, ...]]:
    """The machines that a file names, None where errors left none, and all findings.

    `user` and `home` are whose `{user-id}` and `~` stand for. Raises InputError where nothing can be read.
    """
    document = source.read(path)
    root, known = document.root, placeholders.values_for(user, home)
    is_cvs = bool(root.members.keys() & {*_NODES, *_HEADS, "username", "priv_key_file"})
    file = _File(keys=CVS_KEYS if is_cvs else NATIVE_KEYS, problems=list(document.problems), known=known)
    cluster = _cvs(file, root) if is_cvs else _native(file, root)
    return None if file.has_errors else cluster, tuple(file.problems)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Keys(Settings):
    """Those of the file, or of one host in it."""

    UNKNOWN = "cluster files have no such key here"

    known: Mapping[str, str]  # what placeholders stand for

    def read(self, node: Node, path: str = "") -> None:
        """Takes every key of a mapping; one without a value says nothing."""
        if not isinstance(node.value, dict):
            here = Entry.of(path or "(root)", node)
            self.problems.append(here.problem("error", "bad-value", "a mapping belongs here", "write key: value"))
        for name, child in placeholders.given(node).items():
            if child.value is not None or name not in self.keys:
                self.take(name, self.filled(Entry.of(f"{path}.{name}" if path else name, child)))

    def filled(self, entry: Entry) -> Entry:
        """An entry with its placeholders filled."""
        value = placeholders.fill(entry.value, self.known)[0]
        return replace(entry, value=value, text=value if isinstance(value, str) else entry.text)

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if no placeholder is left in a text that is used."""
        is_unfilled = placeholders.is_unfilled(entry.value)
        if not key.to or not isinstance(entry.value, str) or not (is_unfilled or _TEMPLATE.search(entry.value)):
            return True
        why = f"{coerce.shown(entry.value)} is still {'<changeme>' if is_unfilled else 'a placeholder of the template'}"
        fix = "fill in the host's own name or address, or the user's"
        self.problems.append(entry.problem("error", "placeholder", why, fix))
        return False

    def value(self, read: coerce.Reader, entry: Entry) -> Any:
        """A value that has no row of its own: None, with a finding, where it does not fit."""
        if not self.is_filled("", Key(read=read, to="hosts"), entry):
            return None
        try:
            return read(entry.value)
        except ValueError as error:
            self.problems.append(entry.problem("error", "bad-value", str(error), coerce.advice(read)))
            return None


@dataclass(kw_only=True)
class _File(_Keys):
    """A whole file, and the hosts that it has named so far."""

    names: dict[str, str] = field(default_factory=dict)  # host's name → its key in the file
    addresses: dict[str, str] = field(default_factory=dict)  # address → the first host that has it

    def host(self, table: Mapping[str, Key], node: Node, path: str) -> _Keys:
        """The keys of one host."""
        of_host = _Keys(keys=table, problems=self.problems, known=self.known)
        of_host.read(node, path)
        return of_host

    def hosts(self, entry: Entry) -> list[str]:
        """The names that a name or a range stands for; none, with a finding, where it is wrong."""
        names: list[str] = self.value(_hosts, entry) or []
        if len(self.names) + len(names) > MAX_HOSTS:
            why = f"with these there are more than {MAX_HOSTS} hosts"
            self.problems.append(entry.problem("error", "too-many-hosts", why, "correct the range, or name fewer"))
            return []
        return names

    def named(self, path: str, node: Node, name: Any) -> Iterator[Host]:
        """The host of a name, or those of a range."""
        for each in self.hosts(Entry(key=path, value=name, text="", mark=node.mark)):
            yield from self.added(path, node, each, each)

    def added(self, path: str, node: Node, name: str | None, address: str | None, **more: Any) -> Iterator[Host]:
        """The host, unless it is wrong or there already."""
        if name is None or address is None:
            return
        entry = Entry.of(path, node)
        if name in self.names:
            why = f"{name} is a host already ({self.names[name]}), and one machine cannot be two ranks"
            self.problems.append(entry.problem("error", "repeated-host", why, "remove one of the two"))
            return
        same = self.addresses.setdefault(address, name)
        if same != name:
            why = f"{same} has the address {address} too, so two ranks would be one machine"
            self.problems.append(entry.problem("warning", "repeated-address", why, "give each host its own address"))
        self.names[name] = path
        yield Host(name=name, address=address, **more)

    def lacks(self, path: str, example: str, parent: Node, there: Node | None = None) -> None:
        """Adds that there are no hosts, or no name of one."""
        why = "there are no hosts in it" if there is not None else "nothing says which machines there are"
        entry = Entry.of(path, there or parent)
        self.problems.append(entry.problem("error", "missing-key", why, f"write {example}"))


# --- CVS --------------------------------------------------------------------------------------------------------------


def _cvs(file: _File, root: Node) -> Cluster:
    file.read(root)
    path = next((key for key in _NODES if key in root.members), "node_dict")
    nodes = root.members.get(path)
    given = placeholders.given(nodes) if nodes else {}
    if not given:
        file.lacks("node_dict", '"node_dict": {"10.0.0.1": {"vpc_ip": "10.0.0.1", "bmc_ip": "NA"}}', root, nodes)
    hosts = tuple(host for name, node in given.items() for host in _cvs_hosts(file, f"{path}.{name}", name, node))
    head = _head(file, root)
    if head and hosts and head.text not in file.names:
        why = f"it is none of the hosts ({', '.join(list(file.names)[:4])}{', …' if len(file.names) > 4 else ''})"
        fix = "name one of them; rank 0 is the first host either way"
        file.problems.append(head.problem("warning", "unknown-head", why, fix))
    elif head and hosts and head.text != hosts[0].name:
        why = f"rank 0 is the first host, {hosts[0].name}, also in CVS; this one is not moved to the front"
        fix = "move it to the front if it is to coordinate"
        file.problems.append(head.problem("info", "head-not-first", why, fix))
    for name, key in file.loud("ignored"):
        if name in ("password", "racks"):
            why = f"{key.why}; passwords in a file are read by everybody who can read the file"
            file.add(name, "warning", "secret-in-file", why, "remove it")
        elif file.values[name] not in ({}, ""):
            file.add(name, "info", "no-effect", f"it has no effect: {key.why}", NO_CHANGE)
    return Cluster(hosts=hosts, transport="ssh", user=file.get("username"), key_file=file.get("priv_key_file"))


def _cvs_hosts(file: _File, path: str, name: str, node: Node) -> Iterator[Host]:
    """The hosts of a key of node_dict: one, or those of a range, whose addresses are a range too."""
    if not isinstance(node.value, dict):
        why = "a mapping belongs here"
        file.problems.append(Entry.of(path, node).problem("error", "bad-value", why, 'write {"vpc_ip": "…"}'))
        return
    is_given = "vpc_ip" in node.members and node.members["vpc_ip"].value not in ("", "NA", None)
    members = {key: child for key, child in node.members.items() if key != "vpc_ip" or is_given}
    of_host = file.host(CVS_HOST_KEYS, replace(node, value=members), path)
    names = file.hosts(Entry(key=path, value=name, text=name, mark=node.key_mark))
    addresses = of_host.get("vpc_ip", []) if is_given else names
    if names and addresses and len(addresses) != len(names):
        why = f"{len(names)} hosts need as many addresses, not {len(addresses)}"
        of_host.add("vpc_ip", "error", "bad-value", why, "write one key per host, or a range with as many addresses")
    for each, address in zip(names, addresses, strict=False):
        yield from file.added(path, node, each, address)


def _head(file: _File, root: Node) -> Entry | None:
    for key in _HEADS:
        node = root.members.get(key)
        if node is not None and isinstance(node.value, dict):
            node, key = node.members.get("mgmt_ip"), f"{key}.mgmt_ip"
        if node is not None:
            entry = file.filled(Entry.of(key, node))
            return entry if file.value(_host, entry) is not None else None
    return None


# --- native -----------------------------------------------------------------------------------------------------------


def _native(file: _File, root: Node) -> Cluster:
    file.read(root)
    transport: Transport = file.get("transport") or "ssh"
    found, devices = _native_hosts(file, root, transport), file.get("devices")
    hosts = tuple(replace(host, devices=host.devices or devices) for host in found)
    return Cluster(hosts=hosts, transport=transport, user=file.get("user"), key_file=file.get("key_file"))


def _native_hosts(file: _File, root: Node, transport: Transport) -> Iterator[Host]:
    nodes = root.members.get("hosts")
    if nodes is not None and isinstance(nodes.value, str) and nodes.value.strip():
        for word in host_words(nodes.value):
            yield from file.named("hosts", nodes, word)
    elif nodes is not None and isinstance(nodes.value, list) and nodes.value:
        for index, node in enumerate(nodes.value):
            path, is_mapping = f"hosts.{index}", isinstance(node.value, dict)
            yield from _native_host(file, path, node) if is_mapping else file.named(path, node, node.plain())
    elif nodes is None and transport == "local":
        yield from Cluster.on_this_machine().hosts
    elif nodes is not None or transport != "slurm":
        file.lacks("hosts", "hosts: [node-a, node-b]", root, nodes)


def _native_host(file: _File, path: str, node: Node) -> Iterator[Host]:
    """The host of a mapping."""
    of_host = file.host(NATIVE_HOST_KEYS, node, path)
    if "name" not in node.members:
        file.lacks(f"{path}.name", "name: node-a", node)
        return
    name = of_host.get("name")
    more = {key: of_host.get(key) for key in ("devices", "port") if of_host.get(key)}
    yield from file.added(path, node, name, of_host.get("address") or name, **more)
