"""Judges by the answers of nodes if they can run a configuration. Pure: a table of checks.

A finding's `path` is its host. An error means that the run would not start, or would not be the one that was asked
for; a warning that it may be slow, or break later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seatrial.errors import Problem, Severity
from seatrial.estimate import hardware
from seatrial.estimate.hardware import GIB
from seatrial.launch.preflight.answers import Node, is_loopback
from seatrial.launch.preflight.needs import Needs
from seatrial.launch.preflight.outliers import ALIKE
from seatrial.node.facts import Disk, Facts, Port

MIB = 2**20
CLOCK_SECONDS = 2.0
LEAST_DISK_BYTES, LITTLE_DISK_BYTES = 64 * MIB, GIB
LEAST_FILES = 1000
LITTLE_SHM_BYTES = GIB
BUSY_SHARE = 0.05  # of a device's memory, that a driver may hold by itself
LITTLE_MEMLOCK_BYTES = GIB
LITTLE_NOFILE = 1024
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Found = Iterator[Problem]
Said = Iterator[tuple[Severity, str, str, str]]  # severity, code, why, fix


# --- one node by itself -----------------------------------------------------------------------------------------------


def parts_are_known(needs: Needs, node: Node, facts: Facts) -> Said:
    """Everything that was asked for could be found out."""
    for part in ("machine", "name", "network", "cards", "storage", "port", "firewall"):
        if part in facts.failed:
            severity: Severity = "error" if part in ("storage", "port") else "warning"
            yield severity, "not-told", f"{part}: unknown ({facts.failed[part]})", "log in and see what blocks it"


def trainer_is_there(needs: Needs, node: Node, facts: Facts) -> Said:
    """The Python that starts the trainer has its libraries."""
    if needs.python is None:
        return
    if facts.trainer is None:
        why = f"{needs.python} does not list its libraries: {facts.failed.get('trainer', 'no output')}"
        yield "error", "no-python", why, "name a Python that has Seatrial with --python, or use --container"
        return
    absent = [name for name in ("seatrial", "jax") if not facts.trainer.libraries.get(name)]
    if absent:
        why = f"{needs.python} (Python {facts.trainer.python}) has no {' and no '.join(absent)}"
        fix = "install 'seatrial[train]' there, name another Python with --python, or use --container"
        yield "error", "no-trainer", why, fix


def image_is_there(needs: Needs, node: Node, facts: Facts) -> Said:
    """The container engine answers and has the image."""
    if needs.runtime is None:
        return
    engine = facts.engine
    if engine is None:
        why = f"{needs.runtime} does not work: {facts.failed.get('engine', 'no output')}"
        yield "error", "no-engine", why, f"install {needs.runtime} there, or start its daemon"
    elif needs.image and engine.image is None:
        why = f"the image {needs.image} is missing"
        why += f" ({engine.why})" if engine.why else ""
        why += "; the run will pull it, which takes time on every host" if needs.pulled else ""
        fix = f"pull it first: {needs.runtime} pull {needs.image}"
        yield "warning" if needs.pulled else "error", "image-missing", why, fix
    elif needs.image and facts.machine and engine.architecture:
        own = ARCHITECTURES.get(facts.machine.architecture, facts.machine.architecture)
        if engine.architecture != own:
            why = f"the image {needs.image} is for {engine.architecture}, the host is {own}"
            yield "error", "image-architecture", why, "pull the image for the host's architecture"


def devices_are_there(needs: Needs, node: Node, facts: Facts) -> Said:
    """As many devices as the configuration needs, of its kind."""
    if needs.devices is None:
        return
    devices = facts.devices
    if devices is None:
        why = f"its devices cannot be listed: {facts.failed.get('devices', 'no output')}"
        yield "error", "devices-not-told", why, "run nvidia-smi or rocm-smi there and see what blocks it"
        return
    if len(devices.found) < needs.devices:
        why = f"it has {len(devices.found)} devices, the run needs {needs.devices} of {needs.device}"
        yield "error", "too-few-devices", why, "exclude the host (--exclude), or find out why its driver misses some"
    for model in dict.fromkeys(device.model for device in devices.found):
        known = hardware.find(model)
        if known and known.name != needs.device:
            why = f"its devices are {model}, the configuration says {needs.device}"
            yield "warning", "another-device", why, "correct the configuration's device, or use other hosts"
    if not devices.usable:
        why, fix = "this user has no access to the device files", "add the user to the groups video and render"
        yield "error", "devices-closed", why, fix


def devices_are_well(needs: Needs, node: Node, facts: Facts) -> Said:
    """No device is in use or has lost data."""
    for number, device in enumerate(facts.devices.found if facts.devices else ()):
        if device.uncorrected_errors:
            why = f"device {number} has counted {device.uncorrected_errors} uncorrected memory errors"
            yield "warning", "memory-errors", why, "reset the device, or exclude the host (--exclude)"
        if device.used_bytes and device.used_bytes > BUSY_SHARE * device.memory_bytes:
            why = f"device {number} is in use: {device.used_bytes / GIB:.1f} of {device.memory_bytes / GIB:.0f} GiB"
            yield "warning", "device-in-use", why, "see who uses it; the run would have less memory"


def name_resolves(needs: Needs, node: Node, facts: Facts) -> Said:
    """The host's name resolves to an address that others can use."""
    if not needs.meet or facts.name is None:
        return
    name, found = facts.name.hostname, facts.name.resolves
    fix = f"put {node.host.address} for {name} into its /etc/hosts"
    if is_loopback(node.host.address) or node.host.address == "localhost":
        fix = f"in the cluster file, give an address that others can reach: {node.host.address} is a loopback address"
    if isinstance(found, str) or not found:
        yield "error", "unknown-hostname", f"hostname {name} does not resolve ({found or 'no address'})", fix
    elif all(is_loopback(address) for address in found):
        why = f"hostname {name} resolves to {found[0]}, which no other host can reach"
        yield "error", "loopback-hostname", why, fix
    if facts.name.has_address is False and node.host == needs.hosts[0]:
        why = f"{node.host.address}, where the others expect it, is not one of its addresses"
        yield "warning", "not-its-address", why, "give its address in the network that all hosts share"


def interfaces_are_up(needs: Needs, node: Node, facts: Facts) -> Said:
    """The named network interfaces exist and are up."""
    if facts.network is None:
        return
    there = [name for name in facts.network if name != "lo"]
    for variable, selection in needs.interfaces:
        fix = f"correct {variable}; the host has {', '.join(there[:10]) or 'none'}"
        for name in selection.absent([*there, "lo"]):
            yield needs.hardware, "no-interface", f"{variable} names {name}, which does not exist", fix
        chosen = selection.of(there)
        down = [name for name in chosen if not facts.network[name].up]
        if chosen and len(down) == len(chosen):
            why = f"{', '.join(down[:10])}, of {variable}, {'are' if len(down) > 1 else 'is'} down"
            yield needs.hardware, "interface-down", why, f"`ip link set {down[0]} up`, or check the cable"


def cards_are_up(needs: Needs, node: Node, facts: Facts) -> Said:
    """The named RDMA cards exist, their ports are active, with an address at the GID index."""
    if needs.cards is None or facts.cards is None:
        return
    there = list(facts.cards)
    if absent := needs.cards.absent(there):
        fix = f"correct NCCL_IB_HCA; the host has {', '.join(there[:16]) or 'none'}"
        yield needs.hardware, "no-card", f"NCCL_IB_HCA names {', '.join(absent)}, which the host does not have", fix
    for card in needs.cards.of(there):
        for number, port in facts.cards[card].ports.items():
            if port.state != "ACTIVE":
                why = f"port {number} of {card} is {port.state or 'in no state'}"
                yield needs.hardware, "port-not-active", why, "check its cable and switch port"
            elif needs.gid_index is not None and port.link_layer == "Ethernet":
                yield from _gid(needs, f"{card}, port {number}", port)


def _gid(needs: Needs, where: str, port: Port) -> Said:
    index = needs.gid_index
    fix = "`show_gids` lists them; NCCL_IB_GID_INDEX must be one of RoCE v2 with an IPv4 address"
    if not (port.gid or "").replace(":", "").strip("0"):
        yield needs.hardware, "no-gid", f"{where} has no address at GID index {index}", fix
    elif port.gid_type and "v2" not in port.gid_type:
        yield "warning", "gid-type", f"{where} has a {port.gid_type} address at GID index {index}", fix


def port_is_free(needs: Needs, node: Node, facts: Facts) -> Said:
    """Nobody listens on the coordinator's port."""
    if facts.port and not facts.port.free:
        why = f"the coordinator's port {needs.port} cannot be used ({facts.port.why})"
        fix = f"see who listens there (`ss -ltnp sport = :{needs.port}`), or give another coordinator port"
        yield "error", "port-taken", why, fix


def clock_is_right(needs: Needs, node: Node, facts: Facts) -> Said:
    """The clock agrees with the launcher's, within the time that the answer took."""
    least, most = facts.clock - (facts.received - facts.took), facts.clock - facts.sent
    if least > CLOCK_SECONDS or most < -CLOCK_SECONDS:
        by, where = (least, "ahead of") if least > 0 else (-most, "behind")
        why = f"its clock is at least {by:,.0f} s {where} this machine's"
        yield "warning", "clock", why, "synchronize it with chrony or ntpd: logs of different hosts cannot be compared"


def disks_have_room(needs: Needs, node: Node, facts: Facts) -> Said:
    """The run directory and the checkpoints can be written."""
    storage = facts.storage or {}
    for path in dict.fromkeys((needs.root, needs.shared or needs.root)):
        if disk := storage.get(path):
            checkpoint = needs.checkpoint_bytes if path == (needs.shared or needs.root) else 0
            yield from _room(path if disk.exists else f"{path} (in {disk.nearest})", disk, checkpoint)


def _room(where: str, disk: Disk, checkpoint: int) -> Said:
    fix = "make room there, or name another place"
    if not disk.writable:
        yield "error", "not-writable", f"{where} is not writable", "check its owner and its mount"
    if disk.free_bytes < LEAST_DISK_BYTES or (disk.free_files is not None and disk.free_files < LEAST_FILES):
        files = "" if disk.free_files is None else f" and {disk.free_files:,} inodes"
        yield "error", "disk-full", f"the disk of {where} has {disk.free_bytes / MIB:,.0f} MiB{files} left", fix
    elif disk.free_bytes < checkpoint:
        left, size = f"{disk.free_bytes / GIB:,.1f} GiB", f"{checkpoint / GIB:,.1f} GiB"
        yield "error", "no-room-for-checkpoints", f"the disk of {where} has {left} left, a checkpoint needs {size}", fix
    elif disk.free_bytes < LITTLE_DISK_BYTES:
        yield "warning", "little-disk", f"the disk of {where} has only {disk.free_bytes / MIB:,.0f} MiB left", fix


def data_are_there(needs: Needs, node: Node, facts: Facts) -> Said:
    """The training data are on every node."""
    for path in needs.data:
        disk = (facts.storage or {}).get(path)
        if disk and not disk.exists:
            yield needs.hardware, "data-missing", f"the data {path} do not exist", "copy them, or mount their disk"
        elif disk and not disk.readable:
            why = f"this user cannot read the data {path}"
            yield needs.hardware, "data-closed", why, "check their owner and mode"


def given_files_are_there(needs: Needs, node: Node, facts: Facts) -> Said:
    """The container's devices and volumes exist."""
    for path in needs.given:
        disk = (facts.storage or {}).get(path)
        if disk and not disk.exists:
            why = f"{path}, which the container uses, does not exist"
            yield "error", "no-such-file", why, "correct the container's devices and volumes, or create it"


def limits_suffice(needs: Needs, node: Node, facts: Facts) -> Said:
    """Shared memory, open files, pinned memory and control groups leave enough."""
    machine = facts.machine
    if machine is None:
        return
    if needs.devices and machine.shm_bytes < LITTLE_SHM_BYTES:
        why = f"/dev/shm has {machine.shm_bytes / MIB:,.0f} MiB, and devices of a host exchange data through it"
        yield "warning", "little-shm", why, "mount it larger: `mount -o remount,size=16g /dev/shm`"
    files, pinned = machine.limits.get("nofile"), machine.limits.get("memlock")
    if files is not None and files < LITTLE_NOFILE:
        why = f"the limit of open files is {files}"
        yield "warning", "little-nofile", why, "raise nofile in /etc/security/limits.conf"
    if needs.cards and needs.runtime is None and pinned is not None and pinned < LITTLE_MEMLOCK_BYTES:
        why = f"the limit of pinned memory is {pinned / MIB:,.0f} MiB, and RDMA pins its buffers"
        yield "warning", "little-memlock", why, "make memlock unlimited in /etc/security/limits.conf"
    group = machine.cgroup.memory_bytes
    if group is not None and group < machine.memory_bytes / 2:
        why = f"its control group allows {group / GIB:,.1f} of {machine.memory_bytes / GIB:,.1f} GiB of memory"
        yield "warning", "little-memory", why, "log in with another slice, or raise MemoryMax"


# --- several nodes ----------------------------------------------------------------------------------------------------


def hosts_answer(needs: Needs, nodes: Sequence[Node]) -> Found:
    """Every host accepts a login, and answers."""
    for node in nodes:
        if node.trouble:
            yield node.finding("error", "no-answer", *node.trouble)


def coordinator_is_reached(needs: Needs, nodes: Sequence[Node]) -> Found:
    """Every node can connect to the coordinator's port on the first one."""
    first = next((node for node in nodes if node.host == needs.hosts[0]), None)
    walls = (first and first.facts and first.facts.firewall) or {}
    firewall = "; ".join(f"{name} {state}" for name, state in walls.items())
    for node in nodes if needs.meet else ():
        reached = node.meeting.reached if node.meeting else True
        if reached is True:
            continue
        why = f"it cannot listen on port {needs.port} ({reached})"
        fix = "give another coordinator port"
        if node is not first:
            coordinator = f"{needs.hosts[0].address}:{needs.port}"
            why = f"it cannot connect to the coordinator, {coordinator} ({reached or 'no reason given'})"
            fix = f"let the hosts connect to each other{f'; the firewall there: {firewall}' if firewall else ''}"
        yield node.finding("error", "coordinator-unreachable", why, fix)


def each_is_a_machine_of_its_own(needs: Needs, nodes: Sequence[Node]) -> Found:
    """No two hosts are one machine by two names."""
    first: dict[str, str] = {}
    for node in nodes:
        machine = node.facts.name.machine if node.facts and node.facts.name else None
        if machine and first.setdefault(machine, node.host.name) != node.host.name:
            why = f"it is the same machine as {first[machine]}, and one machine cannot be two ranks"
            yield node.finding("error", "same-machine", why, "name another host, or remove one of the two")


def shared_paths_are_shared(needs: Needs, nodes: Sequence[Node]) -> Found:
    """The other nodes see a file that the first one writes to the checkpoint directory."""
    first = next((node for node in nodes if node.host == needs.hosts[0]), None)
    if needs.shared is None or first is None or first.facts is None or first.facts.storage is None:
        return
    disk = first.facts.storage.get(needs.shared)
    if disk is None or disk.nonce is None:
        why = f"nothing could be written to {needs.shared} ({disk.why if disk else 'it was not checked'})"
        yield first.finding("error", "not-shared", why, "check its owner and its mount")
        return
    severity = "error" if needs.shared != needs.root else needs.hardware
    for node in nodes:
        if node is not first and node.meeting and not node.meeting.seen.get(disk.nonce):
            why = (
                f"{needs.shared} is not shared: a file that {first.host.name} writes there does not appear here, and "
                "every host would keep its own part of a checkpoint"
            )
            fix = "mount the same file system there on every host, or name a folder on one"
            yield node.finding(severity, "not-shared", why, fix)


# --- the table --------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """`area` is the column in which it is shown."""

    area: str
    what: str
    findings: Callable[[Needs, Sequence[Node]], Found]


def _each(check: Callable[[Needs, Node, Facts], Said]) -> Callable[[Needs, Sequence[Node]], Found]:
    def findings(needs: Needs, nodes: Sequence[Node]) -> Found:
        for node in nodes:
            yield from (node.finding(*said) for said in (check(needs, node, node.facts) if node.facts else ()))

    return findings


CHECKS: tuple[Check, ...] = (
    Check("login", "every host answers", hosts_answer),
    Check("login", "every question is answered", _each(parts_are_known)),
    Check("trainer", "the trainer's Python has its libraries", _each(trainer_is_there)),
    Check("trainer", "the image exists", _each(image_is_there)),
    Check("devices", "the devices exist", _each(devices_are_there)),
    Check("devices", "the devices are well", _each(devices_are_well)),
    Check("network", "each is a machine of its own", each_is_a_machine_of_its_own),
    Check("network", "the hostname resolves", _each(name_resolves)),
    Check("network", "the interfaces are up", _each(interfaces_are_up)),
    Check("rdma", "the cards are up", _each(cards_are_up)),
    Check("rendezvous", "the coordinator's port is free", _each(port_is_free)),
    Check("rendezvous", "the coordinator is reached", coordinator_is_reached),
    Check("clock", "the clock is right", _each(clock_is_right)),
    Check("files", "the disks have room", _each(disks_have_room)),
    Check("files", "shared paths are shared", shared_paths_are_shared),
    Check("files", "the data exist", _each(data_are_there)),
    Check("files", "the container's devices and volumes exist", _each(given_files_are_there)),
    Check("machine", "the limits suffice", _each(limits_suffice)),
    *(Check(each.area, f"{each.what}: the same everywhere", each.findings) for each in ALIKE),
)
AREAS = tuple(dict.fromkeys(check.area for check in CHECKS))


def judge(needs: Needs, nodes: Sequence[Node]) -> list[tuple[str, Problem]]:
    """(area, finding) of all checks, in the order of the table and of the hosts."""
    return [(check.area, problem) for check in CHECKS for problem in check.findings(needs, nodes)]
