"""The facts of a node, part by part. Nothing is changed, apart from one small file where it is asked for.

No program is started by a shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING or __package__:
    from seatrial.node import facts, sensors
else:  # on a node, with the modules that travel with it
    import facts
    import sensors

PROGRAM_SECONDS = 10.0
RUNNING: list[subprocess.Popen[bytes]] = []  # or over
MAX_ENTRIES = 10_000  # of a folder, that are counted
ENOUGH = 1 << 62
NONCE = ".seatrial-"
SIOCGIFADDR = 0x8915
NVIDIA = ["index", "name", "memory.total", "memory.used", "ecc.errors.uncorrected.volatile.total", "driver_version"]
read, whole = sensors.read, sensors.whole

# Prints the versions of the trainer's libraries: importing them takes seconds, and asking importlib for them longer
# than everything else here.
LIBRARIES = """
import os, sys
wanted, found = ("seatrial", "jax", "jaxlib"), {}
for folder in sys.path:
    for entry in os.listdir(folder or ".") if os.path.isdir(folder or ".") else ():
        name, _, rest = entry.partition("-")
        if name in wanted and rest.endswith(".dist-info"):
            found.setdefault(name, rest[: -len(".dist-info")])
for name in wanted:
    if name not in found:
        import importlib.util
        if importlib.util.find_spec(name):
            found[name] = "of-no-known-version"
print(sys.version.split()[0], *("%s=%s" % each for each in found.items()))
"""


def ran(*argv: str) -> str:
    """The output of a program. Raises OSError where it is missing, fails, or takes too long."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError:
        raise OSError("there is no %s" % argv[0]) from None
    RUNNING.append(process)
    try:
        out, err = process.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        raise OSError("no answer from %s within %.0f s" % (argv[0], PROGRAM_SECONDS)) from None
    if process.returncode:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        raise OSError("%s ended with %d: %s" % (argv[0], process.returncode, said[-1] if said else "no output"))
    return out.decode("utf-8", "replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a program and what it has started; one that survives is left behind."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(1)


def installed(program: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in os.get_exec_path())


def listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def existing(path: str) -> str:
    """The path itself, or the nearest folder above it that exists."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def machine(_: Any) -> facts.Machine:
    """Kernel, processors, memory, and this user's limits."""
    memory, limits = sensors.memory(), {}
    for name in ("MEMLOCK", "NOFILE", "NPROC"):
        soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
        limits[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    shm = os.statvfs("/dev/shm")
    return facts.Machine(
        kernel=os.uname().release,
        architecture=os.uname().machine,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        shm_bytes=shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm.f_bavail * shm.f_frsize,
        limits=limits,
        cgroup=cgroup(),
        python=sys.version.split()[0],
        user=os.getuid(),
    )


def cgroup() -> facts.Group:
    """The least that any group above this process allows: bytes of memory, processors."""
    memory, processors = [], []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        base = "/sys/fs/cgroup" + ("/" + controllers if controllers else "")
        while path:
            folder = base + path
            memory += [whole(read(folder + "/memory.max")), whole(read(folder + "/memory.limit_in_bytes"))]
            quota = (read(folder + "/cpu.max") or "").split()
            quota = quota or [read(folder + "/cpu.cfs_quota_us") or "", read(folder + "/cpu.cfs_period_us") or ""]
            if quota[0].isdigit() and len(quota) > 1 and quota[1].isdigit():
                processors.append(int(quota[0]) / int(quota[1]))
            path = path.rpartition("/")[0]
    limits = [each for each in memory if each and each < 1 << 60]
    return facts.Group(memory_bytes=min(limits, default=None), cores=min(processors, default=None))


def name(given: dict[str, Any]) -> facts.Name:
    """The hostname, what it resolves to, and whether the address that others use is the host's own."""
    hostname = socket.gethostname()
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)}
        resolves: tuple[str, ...] | str = tuple(sorted(found))
    except OSError as error:
        resolves = str(error)
    machine = None
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        # A kernel may have several networks, as with nodes in containers.
        machine = "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/net"))
    return facts.Name(hostname=hostname, resolves=resolves, has_address=is_own(given["address"]), machine=machine)


def is_own(address: str) -> bool | None:
    """True if an address is one of this host's; None if unknown."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
    except OSError:
        return None
    with socket.socket(family, kind) as trial:
        try:
            trial.bind(where)
        except OSError:
            return False
    return True


def network(_: Any) -> dict[str, facts.Interface]:
    """The network interfaces: whether they are up, Mbit/s, MTU, and the IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for each in listed("/sys/class/net"):
            folder = "/sys/class/net/%s/" % each
            if not os.path.isdir(folder):
                continue
            address = None
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(control, SIOCGIFADDR, struct.pack("256s", each.encode()[:15]))
                address = socket.inet_ntoa(answer[20:24])
            switched_on = int(read(folder + "flags") or "0", 16) & 1
            found[each] = facts.Interface(
                up=bool(switched_on) and read(folder + "carrier") == "1",
                speed_mbits=whole(read(folder + "speed")),
                mtu=whole(read(folder + "mtu")),
                address=address,
            )
    return found


def cards(given: dict[str, Any]) -> dict[str, facts.Card]:
    """The RDMA cards and their ports, each with the address at the index asked for."""
    found = {}
    for card in listed("/sys/class/infiniband"):
        folder, ports = "/sys/class/infiniband/" + card, {}
        for port in listed(folder + "/ports"):
            own = "%s/ports/%s/" % (folder, port)
            index = given.get("gid_index")
            ports[port] = facts.Port(
                state=(read(own + "state") or "").rpartition(" ")[2],
                link_layer=read(own + "link_layer"),
                rate=read(own + "rate"),
                gid=None if index is None else read("%sgids/%d" % (own, index)),
                gid_type=None if index is None else read("%sgid_attrs/types/%d" % (own, index)),
                gid_interface=None if index is None else read("%sgid_attrs/ndevs/%d" % (own, index)),
            )
        found[card] = facts.Card(firmware=read(folder + "/fw_ver"), ports=ports)
    return found


def devices(_: Any) -> facts.Devices:
    """The accelerators, by the driver's own files where it has them, else by its tool."""
    found, vendor, driver = [], None, None
    if installed("nvidia-smi"):
        for line in ran("nvidia-smi", "--query-gpu=" + ",".join(NVIDIA), "--format=csv,noheader,nounits").splitlines():
            row = sensors.nvidia_row(line, NVIDIA)
            if row is None:
                raise OSError("nvidia-smi printed a line that is no row of its table: %s" % line)
            found.append(row[1:])
            vendor, driver = "nvidia", line.rpartition(",")[2].strip()
    if not found:
        found = list(sensors.amd_cards().values())
        if found:
            vendor, driver = "amd", read("/sys/module/amdgpu/version") or os.uname().release
    kernel_interfaces = [path for path in ("/dev/kfd", "/dev/dri", "/dev/nvidiactl") if os.path.exists(path)]
    return facts.Devices(
        vendor=vendor,
        driver=driver,
        rocm=read("/opt/rocm/.info/version"),
        found=tuple(
            facts.Device(
                model=about["model"],
                memory_bytes=int(about["memory_bytes"]),
                used_bytes=values.get("memory_bytes"),
                uncorrected_errors=values.get("uncorrected"),
            )
            for about, values in found
        ),
        files=tuple([*kernel_interfaces, *("/dev/infiniband/" + each for each in listed("/dev/infiniband"))][:64]),
        usable=all(os.access(path, os.R_OK | os.W_OK) for path in kernel_interfaces if path != "/dev/dri"),
    )


def trainer(given: dict[str, Any]) -> facts.Trainer:
    """The Python that starts the trainer."""
    version, *found = ran(given["python"], "-c", LIBRARIES).split()
    libraries: Any = dict(each.split("=", 1) for each in found)
    return facts.Trainer(python=version, libraries=libraries)


def engine(given: dict[str, Any]) -> facts.Engine:
    """The container engine and the image."""
    runtime, image = given["runtime"], given["image"]
    words = ("version", "--format", "{{.Server.Version}}") if runtime == "docker" else ("--version",)
    version = ran(runtime, *words).split()
    try:
        found = ran(runtime, "image", "inspect", "--format", "{{.Id}} {{.Architecture}}", "--", image).split()
    except OSError as error:
        return facts.Engine(version=version[-1], why=str(error))
    return facts.Engine(version=version[-1], image=found[0], architecture=found[-1])


def port(given: dict[str, Any]) -> facts.Listening:
    """True if this user can listen on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", given["port"]))
            trial.listen(1)
        except OSError as error:
            return facts.Listening(free=False, why=error.strerror)
    return facts.Listening(free=True)


def storage(given: dict[str, Any]) -> dict[str, facts.Disk]:
    """For each path, what it is and its disk; with a nonce, also a file that others can look for."""
    found = {}
    for path in given["paths"]:
        there = existing(path)
        disk = os.statvfs(there)
        folder = there if os.path.isdir(there) else os.path.dirname(there)
        mark = why = None
        if given["nonce"] and path in given["shared"]:
            mark = os.path.join(folder, NONCE + given["nonce"])
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except OSError as error:
                mark, why = None, error.strerror
        found[path] = facts.Disk(
            exists=there == path,
            nearest=there,
            readable=os.access(there, os.R_OK),
            writable=os.access(folder, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY,
            free_bytes=min(disk.f_bavail * disk.f_frsize, ENOUGH),  # some have no end
            free_files=min(disk.f_favail, ENOUGH) if disk.f_files else None,
            size=size_of(there) if there == path else None,
            nonce=mark,
            why=why,
        )
    return found


def size_of(path: str) -> int:
    """Bytes of a file; of a folder, how many names are in it, up to a limit."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    with os.scandir(path) as entries:
        return sum(1 for entry, _ in zip(entries, range(MAX_ENTRIES)) if not entry.name.startswith(NONCE))


def firewall(_: Any) -> dict[str, str]:
    """The firewalls, and how many of their rules refuse something; nothing is loaded or changed."""
    found = {}
    if "firewalld" in {read("/proc/%s/comm" % each) for each in listed("/proc") if each.isdigit()}:
        found["firewalld"] = "runs"
    if re.search(r"^ENABLED=yes", read("/etc/ufw/ufw.conf") or "", re.MULTILINE):
        found["ufw"] = "is enabled"
    if installed("nft"):
        try:
            refusing = re.findall(r"\b(?:drop|reject)\b", ran("nft", "--stateless", "list", "ruleset"))
            found["nftables"] = "%d rules drop or reject" % len(refusing) if refusing else ""
        except OSError:
            found["nftables"] = "this user may not read its rules"
    tables = read("/proc/net/ip_tables_names")
    if tables:
        found["iptables"] = "has the tables %s" % ", ".join(tables.split())
    return {key: value for key, value in found.items() if value}


PARTS: dict[str, Callable[[Any], Any]] = {
    "machine": machine, "name": name, "network": network, "cards": cards, "devices": devices, "trainer": trainer,
    "engine": engine, "port": port, "storage": storage, "firewall": firewall,
}  # fmt: skip
