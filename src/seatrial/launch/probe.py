"""What looks at a node before a run: it changes nothing, apart from one small file where it is asked for one.

One file, standard library only, Python 3.8 or newer; it is sent in the way that `relay.py` is, and never installed.

    facts   {"parts": {name: what it is given}, "seconds"}
            → {"clock", "took", "failed": {part: why}, part: what was found, …}
    meet    {"listen": port, "guests"} or {"connect": [address, port]}, with {"seconds", "files": [path]}
            → {"reached": true or why not, "seen": {path: bool}}
    erase   {"files": [path]}                                 → {}

Every part has a thread of its own and every program a time limit, so that a dead disk or a stuck driver holds up
nothing but itself: what has not answered in time stands in "failed". No program is started by a shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

PROGRAM_SECONDS = 10.0
RUNNING: list[subprocess.Popen[bytes]] = []  # or over
MAX_TEXT = 400
MAX_ENTRIES = 10_000  # of a folder, that are counted
ENOUGH = 1 << 62
NONCE = ".seatrial-"
_SIOCGIFADDR = 0x8915

# What a Python says of the libraries that the trainer needs: importing them takes seconds, and asking importlib for
# their versions longer than everything else that is done here.
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
    """What a program prints. Raises OSError where it is not there, fails, or takes too long."""
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
        raise OSError("%s has not answered within %.0f s" % (argv[0], PROGRAM_SECONDS)) from None
    if process.returncode:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        raise OSError("%s ended with %d: %s" % (argv[0], process.returncode, said[-1] if said else "it says nothing"))
    return out.decode("utf-8", "replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and what it has started; one that even then goes on is left behind."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(1)


def installed(program: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in os.get_exec_path())


def read(path: str) -> str | None:
    """A small file of the kernel's; None where it is not there or says nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return None


def number(text: str | None) -> int | None:
    found = re.match(r"-?\d+", text or "")
    return int(found.group()) if found else None


def listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def existing(path: str) -> str:
    """The path itself, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


# --- parts ------------------------------------------------------------------------------------------------------------


def machine(_: Any) -> dict[str, Any]:
    """Kernel, processors, memory, and how much of them this user may have."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE))
    limits = {}
    for name in ("MEMLOCK", "NOFILE", "NPROC"):
        soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
        limits[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    shm = os.statvfs("/dev/shm")
    return {
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": 1024 * int(found.get("MemTotal", 0)),
        "available_bytes": 1024 * int(found.get("MemAvailable", 0)),
        "shm_bytes": shm.f_blocks * shm.f_frsize,
        "shm_free_bytes": shm.f_bavail * shm.f_frsize,
        "limits": limits,
        "cgroup": cgroup(),
        "python": sys.version.split()[0],
        "user": os.getuid(),
    }


def cgroup() -> dict[str, float | None]:
    """The least that any group above this process allows: bytes of memory, processors."""
    memory, processors = [], []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        base = "/sys/fs/cgroup" + ("/" + controllers if controllers else "")
        while path:
            folder = base + path
            memory += [number(read(folder + "/memory.max")), number(read(folder + "/memory.limit_in_bytes"))]
            quota = (read(folder + "/cpu.max") or "").split()
            quota = quota or [read(folder + "/cpu.cfs_quota_us") or "", read(folder + "/cpu.cfs_period_us") or ""]
            if quota[0].isdigit() and len(quota) > 1 and quota[1].isdigit():
                processors.append(int(quota[0]) / int(quota[1]))
            path = path.rpartition("/")[0]
    return {
        "memory_bytes": min((each for each in memory if each and each < 1 << 60), default=None),
        "cores": min(processors, default=None),
    }


def name(given: dict[str, Any]) -> dict[str, Any]:
    """What the host calls itself, where that leads, and whether the address that others use is its own."""
    hostname = socket.gethostname()
    try:
        found = [info[4][0] for info in socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)]
        resolves: Any = sorted(set(found))
    except OSError as error:
        resolves = str(error)
    return {"hostname": hostname, "resolves": resolves, "has_address": is_own(given["address"])}


def is_own(address: str) -> bool | None:
    """Whether an address is one of this host's; None where it cannot be told."""
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


def network(_: Any) -> dict[str, Any]:
    """The network interfaces: whether they are up, Mbit/s, MTU, and the IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for each in listed("/sys/class/net"):
            folder = "/sys/class/net/%s/" % each
            if not os.path.isdir(folder):
                continue
            address = None
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("256s", each.encode()[:15]))
                address = socket.inet_ntoa(answer[20:24])
            switched_on = int(read(folder + "flags") or "0", 16) & 1
            found[each] = {
                "up": bool(switched_on) and read(folder + "carrier") == "1",
                "speed_mbits": number(read(folder + "speed")),
                "mtu": number(read(folder + "mtu")),
                "address": address,
            }
    return found


def cards(given: dict[str, Any]) -> dict[str, Any]:
    """The RDMA cards and their ports, each with the address at the index asked for."""
    found = {}
    for card in listed("/sys/class/infiniband"):
        folder, ports = "/sys/class/infiniband/" + card, {}
        for port in listed(folder + "/ports"):
            own = "%s/ports/%s/" % (folder, port)
            index = given.get("gid_index")
            ports[port] = {
                "state": (read(own + "state") or "").rpartition(" ")[2],
                "link_layer": read(own + "link_layer"),
                "rate": read(own + "rate"),
                "gid": None if index is None else read("%sgids/%d" % (own, index)),
                "gid_type": None if index is None else read("%sgid_attrs/types/%d" % (own, index)),
                "gid_interface": None if index is None else read("%sgid_attrs/ndevs/%d" % (own, index)),
            }
        found[card] = {"firmware": read(folder + "/fw_ver"), "ports": ports}
    return found


def devices(_: Any) -> dict[str, Any]:
    """The accelerators, by the driver's own files where it has them, else by its tool."""
    amd, nvidia = list(amd_devices()), []
    driver = None
    if installed("nvidia-smi"):
        asked = ("name", "memory.total", "memory.used", "ecc.errors.uncorrected.volatile.total", "driver_version")
        text = ran("nvidia-smi", "--query-gpu=" + ",".join(asked), "--format=csv,noheader,nounits")
        for line in text.splitlines():
            model, total, used, errors, driver = (field.strip() for field in line.split(","))
            nvidia.append(
                {
                    "model": model,
                    "memory_bytes": (number(total) or 0) << 20,
                    "used_bytes": (number(used) or 0) << 20,
                    "uncorrected_errors": number(errors),
                }
            )
    elif amd:
        driver = read("/sys/module/amdgpu/version") or os.uname().release
    rocm, infiniband = read("/opt/rocm/.info/version"), listed("/dev/infiniband")
    kernel_interfaces = [path for path in ("/dev/kfd", "/dev/dri", "/dev/nvidiactl") if os.path.exists(path)]
    return {
        "vendor": "nvidia" if nvidia else "amd" if amd else None,
        "driver": driver,
        "rocm": rocm,
        "found": nvidia or amd,
        "files": [*kernel_interfaces, *("/dev/infiniband/" + each for each in infiniband)][:64],
        "usable": all(os.access(path, os.R_OK | os.W_OK) for path in kernel_interfaces if path != "/dev/dri"),
    }


def amd_devices() -> Iterator[dict[str, Any]]:
    for each in listed("/sys/class/drm"):
        folder = "/sys/class/drm/%s/device/" % each
        total = number(read(folder + "mem_info_vram_total"))
        if re.match(r"card\d+$", each) and total and read(folder + "vendor") == "0x1002":
            errors = re.search(r"ue: (\d+)", read(folder + "ras/umc_err_count") or "")
            yield {
                "model": read(folder + "product_name") or "amd %s" % read(folder + "device"),
                "memory_bytes": total,
                "used_bytes": number(read(folder + "mem_info_vram_used")),
                "uncorrected_errors": int(errors.group(1)) if errors else None,
            }


def trainer(given: dict[str, Any]) -> dict[str, Any]:
    """The Python that starts the trainer."""
    version, *found = ran(given["python"], "-c", LIBRARIES).split()
    return {"python": version, "libraries": dict(each.split("=", 1) for each in found)}


def engine(given: dict[str, Any]) -> dict[str, Any]:
    """The container engine and the image."""
    runtime, image = given["runtime"], given["image"]
    words = ("version", "--format", "{{.Server.Version}}") if runtime == "docker" else ("--version",)
    version = ran(runtime, *words).split()
    try:
        found = ran(runtime, "image", "inspect", "--format", "{{.Id}} {{.Architecture}}", "--", image).split()
    except OSError as error:
        return {"version": version[-1], "image": None, "why": str(error)}
    return {"version": version[-1], "image": found[0], "architecture": found[-1]}


def port(given: dict[str, Any]) -> dict[str, Any]:
    """Whether a port can be listened at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", given["port"]))
            trial.listen(1)
        except OSError as error:
            return {"free": False, "why": error.strerror}
    return {"free": True}


def storage(given: dict[str, Any]) -> dict[str, Any]:
    """Of each path: what is there, and the disk below it; with a nonce, also a file that others can look for."""
    found = {}
    for path in given["paths"]:
        there = existing(path)
        disk = os.statvfs(there)
        folder = there if os.path.isdir(there) else os.path.dirname(there)
        entry = found[path] = {
            "exists": there == path,
            "nearest": there,
            "readable": os.access(there, os.R_OK),
            "writable": os.access(folder, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY,
            "free_bytes": min(disk.f_bavail * disk.f_frsize, ENOUGH),  # some have no end
            "free_files": min(disk.f_favail, ENOUGH) if disk.f_files else None,
            "size": size_of(there) if there == path else None,
            "nonce": None,
        }
        if given["nonce"] and path in given["shared"]:
            mark = os.path.join(folder, NONCE + given["nonce"])
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                entry["nonce"] = mark
            except OSError as error:
                entry["why"] = error.strerror
    return found


def size_of(path: str) -> int:
    """Bytes of a file; of a folder, how many names are in it, up to a limit."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    with os.scandir(path) as entries:
        return sum(1 for entry, _ in zip(entries, range(MAX_ENTRIES)) if not entry.name.startswith(NONCE))


def firewall(_: Any) -> dict[str, Any]:
    """Which firewalls there are and how many rules of theirs refuse something; nothing is loaded or changed."""
    found, running = {}, set()
    for each in listed("/proc"):
        if each.isdigit():
            running.add(read("/proc/%s/comm" % each))
    if "firewalld" in running:
        found["firewalld"] = "runs"
    if re.search(r"^ENABLED=yes", read("/etc/ufw/ufw.conf") or "", re.MULTILINE):
        found["ufw"] = "is enabled"
    if installed("nft"):
        try:
            refusing = re.findall(r"\b(?:drop|reject)\b", ran("nft", "--stateless", "list", "ruleset"))
            found["nftables"] = "%d rules drop or reject" % len(refusing) if refusing else ""
        except OSError:
            found["nftables"] = "its rules may not be read by this user"
    tables = read("/proc/net/ip_tables_names")
    if tables:
        found["iptables"] = "has the tables %s" % ", ".join(tables.split())
    return {key: value for key, value in found.items() if value}


PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "machine": machine, "name": name, "network": network, "cards": cards, "devices": devices, "trainer": trainer,
    "engine": engine, "port": port, "storage": storage, "firewall": firewall,
}  # fmt: skip


# --- verbs ------------------------------------------------------------------------------------------------------------


def facts(given: dict[str, Any]) -> dict[str, Any]:
    clock, begun = time.time(), time.monotonic()
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def look(part: str, asked: Any) -> None:
        try:
            found[part] = PARTS[part](asked)
        except Exception as error:
            failed[part] = str(error)[:MAX_TEXT] or type(error).__name__

    threads = [threading.Thread(target=look, args=item, daemon=True) for item in given["parts"].items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begun + given["seconds"] - time.monotonic()))
    for part in given["parts"]:
        if part not in found and part not in failed:
            failed[part] = "no answer within %.0f s" % given["seconds"]
    return {"clock": clock, "took": time.monotonic() - begun, "failed": failed, **found}


def meet(given: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + given["seconds"]
    reached: Any = True
    if "listen" in given:
        reached = listen(given["listen"], given["guests"], deadline)
    elif "connect" in given:
        reached = connect(given["connect"], deadline)
    seen = {}
    for path in given["files"]:
        while not os.path.exists(path) and time.monotonic() < deadline - given["seconds"] + 1:
            time.sleep(0.1)
        seen[path] = os.path.exists(path)
    return {"reached": reached, "seen": seen}


def listen(number_of_port: int, guests: int, deadline: float) -> Any:
    """Takes connections until all have come."""
    try:
        with socket.create_server(("", number_of_port), backlog=512) as server:
            while guests and time.monotonic() < deadline:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                with contextlib.suppress(socket.timeout):
                    server.accept()[0].close()
                    guests -= 1
    except OSError as error:
        return error.strerror or str(error)
    return True


def connect(where: list[Any], deadline: float) -> Any:
    """Tries until somebody listens."""
    while True:
        try:
            socket.create_connection((where[0], where[1]), timeout=max(0.1, deadline - time.monotonic())).close()
            return True
        except OSError as error:
            if time.monotonic() > deadline - 0.2:
                return error.strerror or str(error)
        time.sleep(0.2)


def erase(given: dict[str, Any]) -> dict[str, Any]:
    for path in given["files"]:
        if os.path.basename(path).startswith(NONCE):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return {}


VERBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"facts": facts, "meet": meet, "erase": erase}


def main(verb: str, given: dict[str, Any]) -> None:
    """Answers in one line, and ends without waiting for what has not answered."""
    try:
        answer = VERBS[verb](given)
    except OSError as error:
        answer = {"error": str(error)}
    view = memoryview(json.dumps(answer).encode() + b"\n")
    while view:
        view = view[os.write(1, view) :]
    for process in RUNNING:
        end(process)
    os._exit(0)
