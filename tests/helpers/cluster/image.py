"""The container image of the tests: a small Debian from this machine's own packages, made in seconds without a network.

Python and the project are not in it: every node's podman mounts them, as `MOUNTED` says. The stand-ins for other
engines are, where their images have the programs.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

IMAGE = "localhost/seatrial-test:latest"
HOME = Path("/var/cache/seatrial-cluster")  # only root can write there; everything of the tests' clusters is in it
PROJECT = Path(__file__).parents[3]
MOUNTED = tuple(
    str(folder)
    for folder in dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), PROJECT))
    if folder != Path("/usr")
)
WANTED = ("bash", "coreutils", "iproute2", "libstdc++6", "procps", "python3")  # and what Debian cannot be without
PROGRAMS = PROJECT / "tests" / "engines" / "programs"
PLACES = {"maxtext": "workspace/maxtext", "megatron": "workspace/Megatron-LM", "bin": "usr/local/bin"}  # of each
DAYS_KEPT = 7

_LEFT_OUT = re.compile(r"/usr/share/(doc|info|lintian|locale|man|bash-completion)/|/var/lib/dpkg/|/__pycache__/")
_ENVIRONMENT = f"PATH={sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def image_store() -> Path:
    """A folder whose podman store holds the image; made the first time, and when what goes into it has changed."""
    packages = packages_of(WANTED)
    sources = [Path(__file__), *sorted(path for path in PROGRAMS.rglob("*") if path.is_file())]
    texts = [path.read_text(encoding="utf-8") for path in sources if "__pycache__" not in path.parts]
    recipe = repr((sorted(packages.items()), _ENVIRONMENT, texts))
    store = HOME / "images" / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    store.parent.mkdir(parents=True, exist_ok=True)
    with (HOME / "images" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (store / "made").exists():
            for other in store.parent.iterdir():
                if other == store or (other.is_dir() and time.time() - other.stat().st_mtime > DAYS_KEPT * 86400):
                    shutil.rmtree(other)
            _make(store, sorted(packages))
            (store / "made").touch()
        store.touch()  # in use
    return store


def packages_of(wanted: Sequence[str]) -> dict[str, str]:
    """Names and versions of the packages that an image needs for some, as this machine has them."""
    fields = "${Package}\t${Essential}\t${Priority}\t${Version}\t${Pre-Depends}, ${Depends}\n"
    show = ["dpkg-query", "--show", f"--showformat={fields}"]
    rows = [line.split("\t") for line in subprocess.check_output(show, text=True).splitlines()]
    installed = {name: (version, depends) for name, _, _, version, depends in rows}
    waiting = [
        *wanted,
        *(name for name, essential, priority, _, _ in rows if "yes" in essential or "required" in priority),
    ]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in installed and name not in found:
            found[name], depends = installed[name]
            waiting += re.findall(r"(?:^|[,|]\s*)([a-z0-9][a-z0-9+.-]+)", depends)
    return found


def files_of(packages: list[str]) -> list[str]:
    """The files that the packages have put on this machine, and links to them; nothing that only people read."""
    listed = subprocess.check_output(["dpkg-query", "--listfiles", *packages], text=True).splitlines()
    paths = {Path(line) for line in listed if line.startswith("/") and not _LEFT_OUT.search(f"{line}/")}
    paths = {path.parent.resolve() / path.name for path in paths}
    paths |= {path for path in Path("/").iterdir() if path.is_symlink()}  # /bin, /lib …
    for link in [*Path("/usr/bin").iterdir(), *Path("/usr/sbin").iterdir()]:
        if link.is_symlink() and link.readlink().is_relative_to("/etc/alternatives") and link.resolve() in paths:
            paths |= {link, link.readlink()}
    paths -= {Path("/"), Path("/etc/passwd"), Path("/etc/group")}
    return sorted(str(path.relative_to("/")) for path in paths if path.exists() or path.is_symlink())


def _make(store: Path, packages: list[str]) -> None:
    (store / "etc").mkdir(parents=True)
    (store / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n")
    (store / "etc" / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (store / "files").write_text("\0".join(files_of(packages)), encoding="utf-8")
    for program, place in PLACES.items():
        shutil.copytree(PROGRAMS / program, store / place, ignore=shutil.ignore_patterns("__pycache__"))
    own = [f"--directory={store}", "etc/passwd", "etc/group", *PLACES.values()]
    tar = ["tar", "--create", *own, "--directory=/", "--no-recursion", "--null", f"--files-from={store}/files"]
    changes = [f"--change=ENV {_ENVIRONMENT}", '--change=CMD ["/bin/bash"]']
    podman = ["podman", "--root", f"{store}/store", "import", "--quiet", *changes, "-", IMAGE]
    # Outside namespaces of its own, podman would leave a mount, /run/libpod and a segment of shared memory behind.
    hide = 'mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
    apart = ["unshare", "--mount", "--ipc", "sh", "-ec", hide, "sh", *podman]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
        subprocess.run(apart, stdin=packing.stdout, stdout=subprocess.DEVNULL, check=True)
    if packing.returncode:
        raise RuntimeError(f"the image was not made: tar ended with {packing.returncode}")
