"""Whether nodes can run what is asked of them, judged by what they have told. Pure: a table of checks.

A finding's `path` is the host that it is about. An error means that the run would not start, or not be the one that
was asked for; a warning that it may be slow, or break later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seatrial.errors import Problem
from seatrial.estimate import hardware
from seatrial.estimate.hardware import GIB
from seatrial.launch.preflight.answers import Node, is_loopback
from seatrial.launch.preflight.needs import Needs
from seatrial.launch.preflight.outliers import ALIKE
from seatrial.node.facts import Disk, Facts

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
Look = Callable[[Needs, Node, Facts], Found]


# --- one node by itself -----------------------------------------------------------------------------------------------


def all_is_told(needs: Needs, node: Node, facts: Facts) -> Found:
    """Everything that was asked for could be found out."""
    for part in ("machine", "name", "network", "cards", "storage", "port", "firewall"):
        if part in facts.failed:
            why, fix = f"{part}: it could not be told ({facts.failed[part]})", "log in and look what holds it up"
            yield node.finding("error" if part in ("storage", "port") else "warning", "not-told", why, fix)


def trainer_is_there(needs: Needs, node: Node, facts: Facts) -> Found:
    """The Python that starts the trainer has what it needs."""
    if needs.python is None:
        return
    if facts.trainer is None:
        why = f"{needs.python} cannot be asked for its libraries: {facts.failed.get('trainer', 'it says nothing')}"
        yield node.finding("error", "no-python", why, "name a Python with Seatrial in it by --python, or a --container")
        return
    absent = [name for name in ("seatrial", "jax") if not facts.trainer.libraries.get(name)]
    if absent:
        why = f"{needs.python} (Python {facts.trainer.python}) has no {' and no '.join(absent)}"
        fix = "install 'seatrial[train]' there, or name another Python by --python, or a --container"
        yield node.finding("error", "no-trainer", why, fix)


def image_is_there(needs: Needs, node: Node, facts: Facts) -> Found:
    """The container engine answers and has the image."""
    if needs.runtime is None:
        return
    engine = facts.engine
    if engine is None:
        why = f"{needs.runtime} cannot be used: {facts.failed.get('engine', 'it says nothing')}"
        yield node.finding("error", "no-engine", why, f"install {needs.runtime} there, or start its daemon")
    elif needs.image and engine.image is None:
        why, fix = f"the image {needs.image} is not there", f"fetch it first: {needs.runtime} pull {needs.image}"
        why += f" ({engine.why})" if engine.why else ""
        why += "; the run will fetch it, which takes time on every host" if needs.pulled else ""
        yield node.finding("warning" if needs.pulled else "error", "image-missing", why, fix)
    elif needs.image and facts.machine and engine.architecture:
        own = ARCHITECTURES.get(facts.machine.architecture, facts.machine.architecture)
        if engine.architecture != own:
            why = f"the image {needs.image} is for {engine.architecture}, the host is {own}"
            yield node.finding("error", "image-architecture", why, "fetch the image of the host's architecture")


def devices_are_there(needs: Needs, node: Node, facts: Facts) -> Found:
    """As many devices as are asked for, of the kind asked for."""
    if needs.devices is None:
        return
    devices = facts.devices
    if devices is None:
        why = f"its devices could not be listed: {facts.failed.get('devices', 'it says nothing')}"
        yield node.finding(
            "error", "devices-not-told", why, "run nvidia-smi or rocm-smi there and see what holds it up"
        )
        return
    if len(devices.found) < needs.devices:
        why = f"it has {len(devices.found)} devices, the run asks for {needs.devices} of {needs.device}"
        fix = "leave the host out with --exclude, or look for what keeps its driver from finding them"
        yield node.finding("error", "too-few-devices", why, fix)
    for model in dict.fromkeys(device.model for device in devices.found):
        known = hardware.find(model)
        if known and known.name != needs.device:
            why = f"its devices are {model}, the configuration says {needs.device}"
            fix = "name the device that is there, or the hosts that have the other"
            yield node.finding("warning", "another-device", why, fix)
    if not devices.usable:
        why, fix = "this user may not use the devices' files", "add the user to the groups video and render"
        yield node.finding("error", "devices-closed", why, fix)


def devices_are_well(needs: Needs, node: Node, facts: Facts) -> Found:
    """No device is in use or has lost data."""
    for number, device in enumerate(facts.devices.found if facts.devices else ()):
        if device.uncorrected_errors:
            why = f"device {number} has counted {device.uncorrected_errors} memory errors that it could not correct"
            yield node.finding(
                "warning", "memory-errors", why, "reset the device, or leave the host out with --exclude"
            )
        if device.used_bytes and device.used_bytes > BUSY_SHARE * device.memory_bytes:
            why = f"device {number} is in use: {device.used_bytes / GIB:.1f} of {device.memory_bytes / GIB:.0f} GiB"
            yield node.finding("warning", "device-in-use", why, "see who uses it; the run would have less memory")


def name_leads_to_it(needs: Needs, node: Node, facts: Facts) -> Found:
    """The host's name leads to an address that others can use."""
    if not needs.meet or facts.name is None:
        return
    name, found = facts.name.hostname, facts.name.resolves
    fix = f"put {node.host.address} for {name} into its /etc/hosts"
    if is_loopback(node.host.address) or node.host.address == "localhost":
        fix = f"name it in the cluster file by an address that others reach: {node.host.address} is the loopback's"
    if isinstance(found, str) or not found:
        yield node.finding(
            "error", "unknown-hostname", f"its own name {name} leads nowhere ({found or 'nothing'})", fix
        )
    elif all(is_loopback(address) for address in found):
        why = f"its own name {name} leads to {found[0]}, where no other host can reach it"
        yield node.finding("error", "loopback-hostname", why, fix)
    if facts.name.has_address is False and node.host == needs.hosts[0]:
        why = f"{node.host.address}, where the others look for it, is not one of its addresses"
        yield node.finding("warning", "not-its-address", why, "give its address in the network that all hosts share")


def interfaces_are_up(needs: Needs, node: Node, facts: Facts) -> Found:
    """The network interfaces that are named are there and up."""
    if facts.network is None:
        return
    there = [name for name in facts.network if name != "lo"]
    for variable, selection in needs.interfaces:
        fix = f"correct {variable}; there {'are' if len(there) > 1 else 'is'} {', '.join(there[:10]) or 'none'}"
        for name in selection.absent([*there, "lo"]):
            yield node.finding(needs.hardware, "no-interface", f"{variable} names {name}, which is not there", fix)
        chosen = selection.of(there)
        down = [name for name in chosen if not facts.network[name].up]
        if chosen and len(down) == len(chosen):
            why = f"{', '.join(down[:10])}, of {variable}, {'are' if len(down) > 1 else 'is'} down"
            yield node.finding(needs.hardware, "interface-down", why, f"`ip link set {down[0]} up`, or check the cable")


def cards_are_up(needs: Needs, node: Node, facts: Facts) -> Found:
    """The RDMA cards that are named are there, their ports active, with an address at the index asked for."""
    if needs.cards is None or facts.cards is None:
        return
    there = list(facts.cards)
    absent = needs.cards.absent(there)
    if absent:
        fix = f"correct NCCL_IB_HCA; there {'are' if len(there) > 1 else 'is'} {', '.join(there[:16]) or 'none'}"
        yield node.finding(needs.hardware, "no-card", f"NCCL_IB_HCA names {', '.join(absent)}: not there", fix)
    for card in needs.cards.of(there):
        for number, port in facts.cards[card].ports.items():
            if port.state != "ACTIVE":
                why, fix = (
                    f"port {number} of {card} is {port.state or 'in no state'}",
                    "check its cable and switch port",
                )
                yield node.finding(needs.hardware, "port-not-active", why, fix)
            elif needs.gid_index is not None and port.link_layer == "Ethernet":
                yield from _gid(needs, node, f"{card}, port {number}", port.gid, port.gid_type)


def _gid(needs: Needs, node: Node, where: str, gid: str | None, kind: str | None) -> Found:
    index = needs.gid_index
    fix = "`show_gids` lists them; NCCL_IB_GID_INDEX must be one of RoCE v2 with an IPv4 address"
    if not gid or not gid.replace(":", "").strip("0"):
        yield node.finding(needs.hardware, "no-gid", f"{where} has no address at GID index {index}", fix)
    elif kind and "v2" not in kind:
        yield node.finding("warning", "gid-type", f"{where} has one of {kind} at GID index {index}", fix)


def port_is_free(needs: Needs, node: Node, facts: Facts) -> Found:
    """Nobody listens where the processes are to meet."""
    if facts.port and not facts.port.free:
        why = f"port {needs.port}, where the processes are to meet, cannot be had ({facts.port.why})"
        fix = f"see who has it (`ss -ltnp sport = :{needs.port}`), or give another coordinator port"
        yield node.finding("error", "port-taken", why, fix)


def clock_is_right(needs: Needs, node: Node, facts: Facts) -> Found:
    """The clock is ours, as far as the time of an answer lets us tell."""
    least, most = facts.clock - (facts.received - facts.took), facts.clock - facts.sent
    if least > CLOCK_SECONDS or most < -CLOCK_SECONDS:
        by, where = (least, "ahead of") if least > 0 else (-most, "behind")
        why = f"its clock is at least {by:,.0f} s {where} this machine's"
        fix = "let chrony or ntpd set it: logs of different hosts cannot be compared"
        yield node.finding("warning", "clock", why, fix)


def disks_have_room(needs: Needs, node: Node, facts: Facts) -> Found:
    """The run can be written, and its checkpoints."""
    storage = facts.storage or {}
    for path in dict.fromkeys((needs.root, *((needs.shared,) if needs.shared else ()))):
        disk = storage.get(path)
        if disk is None:
            continue
        bytes_asked = needs.checkpoint_bytes if path == (needs.shared or needs.root) else 0
        yield from _room(node, path, disk, bytes_asked)


def _room(node: Node, path: str, disk: Disk, checkpoint: int) -> Found:
    where = path if disk.exists else f"{path} (in {disk.nearest})"
    fix = "make room there, or name another place"
    if not disk.writable:
        yield node.finding("error", "not-writable", f"{where} cannot be written", "see to its owner and its mount")
    if disk.free_bytes < LEAST_DISK_BYTES or (disk.free_files is not None and disk.free_files < LEAST_FILES):
        left = f"{disk.free_bytes / MIB:,.0f} MiB"
        files = "" if disk.free_files is None else f" and room for {disk.free_files:,} files"
        yield node.finding("error", "disk-full", f"the disk of {where} has {left}{files} left", fix)
    elif disk.free_bytes < checkpoint:
        why = (
            f"the disk of {where} has {disk.free_bytes / GIB:,.1f} GiB left, a checkpoint takes about "
            f"{checkpoint / GIB:,.1f} GiB"
        )
        yield node.finding("error", "no-room-for-checkpoints", why, fix)
    elif disk.free_bytes < LITTLE_DISK_BYTES:
        why = f"the disk of {where} has only {disk.free_bytes / MIB:,.0f} MiB left"
        yield node.finding("warning", "little-disk", why, fix)


def data_are_there(needs: Needs, node: Node, facts: Facts) -> Found:
    """What is to be learnt lies on every node."""
    for path in needs.data:
        disk = (facts.storage or {}).get(path)
        if disk and not disk.exists:
            why, fix = f"{path}, of the data, is not there", "copy it, or mount what it is on"
            yield node.finding(needs.hardware, "data-missing", why, fix)
        elif disk and not disk.readable:
            why, fix = f"{path}, of the data, cannot be read by this user", "see to its owner and its mode"
            yield node.finding(needs.hardware, "data-closed", why, fix)


def given_files_are_there(needs: Needs, node: Node, facts: Facts) -> Found:
    """What the container is given of the host is there."""
    for path in needs.given:
        disk = (facts.storage or {}).get(path)
        if disk and not disk.exists:
            why = f"{path}, which the container is to be given, is not there"
            yield node.finding("error", "no-such-file", why, "correct the container's devices and volumes, or make it")


def limits_suffice(needs: Needs, node: Node, facts: Facts) -> Found:
    """Shared memory, open files, pinned memory and control groups leave enough."""
    machine = facts.machine
    if machine is None:
        return
    if needs.devices and machine.shm_bytes < LITTLE_SHM_BYTES:
        why = f"/dev/shm has {machine.shm_bytes / MIB:,.0f} MiB, through which devices of a host exchange data"
        yield node.finding("warning", "little-shm", why, "mount it larger: `mount -o remount,size=16g /dev/shm`")
    files, pinned = machine.limits.get("nofile"), machine.limits.get("memlock")
    if files is not None and files < LITTLE_NOFILE:
        why = f"a process may have {files} open files"
        yield node.finding("warning", "little-nofile", why, "raise nofile in /etc/security/limits.conf")
    if needs.cards and needs.runtime is None and pinned is not None and pinned < LITTLE_MEMLOCK_BYTES:
        why = f"a process may pin {pinned / MIB:,.0f} MiB of memory, and RDMA pins what it sends"
        yield node.finding("warning", "little-memlock", why, "make memlock unlimited in /etc/security/limits.conf")
    group = machine.cgroup.memory_bytes
    if group is not None and group < machine.memory_bytes / 2:
        why = f"its control group leaves {group / GIB:,.1f} of {machine.memory_bytes / GIB:,.1f} GiB of memory"
        yield node.finding("warning", "little-memory", why, "log in with another slice, or raise MemoryMax")


# --- two sides --------------------------------------------------------------------------------------------------------


def coordinator_is_reached(needs: Needs, nodes: Sequence[Node]) -> Found:
    """Every node can connect to where the first one listens."""
    first = next((node for node in nodes if node.host == needs.hosts[0]), None)
    for node in nodes if needs.meet else ():
        reached = node.meeting.reached if node.meeting else True
        if reached is True:
            continue
        if node is first:
            why, fix = f"nothing could listen at port {needs.port} of it ({reached})", "give another coordinator port"
        else:
            place = f"{needs.hosts[0].address}:{needs.port}"
            why = (
                f"{place}, where the processes are to meet, cannot be reached from it ({reached or 'no reason given'})"
            )
            walls = first.facts.firewall if first and first.facts else None
            told = "; ".join(f"{name} {state}" for name, state in (walls or {}).items())
            fix = f"let the hosts connect to each other{f': there, {told}' if told else ''}"
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
    """What the first node writes where checkpoints go is seen by the others."""
    first = next((node for node in nodes if node.host == needs.hosts[0]), None)
    if needs.shared is None or first is None or first.facts is None or first.facts.storage is None:
        return
    disk = first.facts.storage.get(needs.shared)
    if disk is None or disk.nonce is None:
        why = f"nothing could be written to {needs.shared} ({disk.why if disk else 'it was not looked at'})"
        yield first.finding("error", "not-shared", why, "see to its owner and its mount")
        return
    severity = "error" if needs.shared != needs.root else needs.hardware
    for node in nodes:
        if node is not first and node.meeting and not node.meeting.seen.get(disk.nonce):
            why = (
                f"{needs.shared} is not shared: what {first.host.name} writes there is not seen, and every host would "
                "keep its own part of a checkpoint"
            )
            fix = "mount the same file system there on every host, or name a folder of one"
            yield node.finding(severity, "not-shared", why, fix)


# --- the table --------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """`area` is the column in which it is shown."""

    area: str
    what: str
    findings: Callable[[Needs, Sequence[Node]], Found]


def _each(look: Look) -> Callable[[Needs, Sequence[Node]], Found]:
    def findings(needs: Needs, nodes: Sequence[Node]) -> Found:
        for node in nodes:
            if node.facts:
                yield from look(needs, node, node.facts)

    return findings


def hosts_answer(needs: Needs, nodes: Sequence[Node]) -> Found:
    """Every host can be logged in to, and answers."""
    for node in nodes:
        if node.trouble:
            yield node.finding("error", "no-answer", *node.trouble)


CHECKS: tuple[Check, ...] = (
    Check("login", "every host answers", hosts_answer),
    Check("login", "all that was asked is told", _each(all_is_told)),
    Check("trainer", "the trainer's Python has what it needs", _each(trainer_is_there)),
    Check("trainer", "the image is there", _each(image_is_there)),
    Check("devices", "the devices are there", _each(devices_are_there)),
    Check("devices", "the devices are well", _each(devices_are_well)),
    Check("network", "each is a machine of its own", each_is_a_machine_of_its_own),
    Check("network", "the host's name leads to it", _each(name_leads_to_it)),
    Check("network", "the interfaces are up", _each(interfaces_are_up)),
    Check("rdma", "the cards are up", _each(cards_are_up)),
    Check("meeting", "the coordinator's port is free", _each(port_is_free)),
    Check("meeting", "the coordinator is reached", coordinator_is_reached),
    Check("clock", "the clock is right", _each(clock_is_right)),
    Check("files", "the disks have room", _each(disks_have_room)),
    Check("files", "shared paths are shared", shared_paths_are_shared),
    Check("files", "the data are there", _each(data_are_there)),
    Check("files", "what the container is given is there", _each(given_files_are_there)),
    Check("machine", "the limits suffice", _each(limits_suffice)),
    *(Check(each.area, f"{each.what}: the same everywhere", each) for each in ALIKE),
)
AREAS = tuple(dict.fromkeys(check.area for check in CHECKS))


def judge(needs: Needs, nodes: Sequence[Node]) -> list[tuple[str, Problem]]:
    """(area, finding) of all checks, in the order of the table and of the hosts."""
    return [(check.area, problem) for check in CHECKS for problem in check.findings(needs, nodes)]
