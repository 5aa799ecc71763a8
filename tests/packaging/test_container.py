"""Seatrial where nothing else is: pip alone in an empty Debian, and the container image. `make test-package` runs it.

The Debian is made of this machine's own packages; the wheels lie in the folder SEATRIAL_WHEELS, so that nothing in
here has a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seatrial
from tests.helpers.cluster import image

ROOT = Path(__file__).parents[2]
WHEELS = os.environ.get("SEATRIAL_WHEELS", "")
TINY = ROOT / "configs" / "native" / "tiny-text.json"
BASE, IMAGE = "localhost/debian-python:latest", "localhost/seatrial:latest"
FEW_MINUTES = 300  # from pip to the first report

# What a browser would ask of `seatrial serve`, until the run is there.
READ_PAGE = """
import time, urllib.request
for _ in range(600):
    try:
        page = urllib.request.urlopen("http://127.0.0.1:8900/").read().decode()
    except OSError:
        page = ""
    if "llama-1m" in page:
        break
    time.sleep(0.1)
print("the page has the run" if "llama-1m" in page else page)
"""
_SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# podman would leave mounts, locks and sockets behind outside namespaces of its own.
_APART = 'mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; exec "$@"'

pytestmark = [
    pytest.mark.package,
    pytest.mark.skipif(not WHEELS, reason="make test-package runs it, with wheels for a machine without network"),
    pytest.mark.timeout(900),
]


class Podman:
    """podman with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._settings = folder / "containers.conf"
        self._settings.write_text(_SETTINGS, encoding="utf-8")
        self._apart = [
            "unshare",
            "--mount",
            "--ipc",
            "sh",
            "-ec",
            _APART,
            "sh",
            "podman",
            "--root",
            str(folder / "store"),
        ]

    def __call__(self, *words: str | Path, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._apart, *map(str, words)], stdin=stdin, env={**os.environ, "CONTAINERS_CONF": str(self._settings)},
            capture_output=True, text=True,
        )  # fmt: skip

    def seatrial(self, folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """`seatrial …` of the image on the files of a folder, without a network."""
        return self("run", "--rm", "--network", "none", f"--volume={folder}:/workspace", *options, IMAGE, *words)


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """With the base image: Debian's Python and its venv module, and what Debian cannot be without."""
    folder = tmp_path_factory.mktemp("podman")
    podman = Podman(folder)
    packages = image.packages_of(("bash", "coreutils", "ca-certificates", "python3", "python3-venv"))
    listed = dict.fromkeys([*image.files_of(sorted(packages)), "etc/passwd", "etc/group", "tmp", "var/tmp"])
    (folder / "files").write_text("\n".join(listed), encoding="utf-8")
    tar = ["tar", "--create", "--directory=/", "--no-recursion", f"--files-from={folder / 'files'}"]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
        assert packing.stdout
        done = podman("import", "--quiet", "-", BASE, stdin=packing.stdout.fileno())
    assert done.returncode == 0, done.stderr
    yield podman
    shutil.rmtree(folder / "store")


def build(podman: Podman, accelerator: str) -> subprocess.CompletedProcess[str]:
    arguments = {"BASE": BASE, "ACCELERATOR": accelerator, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    where = ["--network", "none", f"--volume={WHEELS}:/wheels:ro", "--file", ROOT / "container" / "Containerfile"]
    return podman("build", "--quiet", *where, *words, "--tag", IMAGE, ROOT)


@pytest.fixture(scope="session")
def built(podman: Podman) -> Podman:
    done = build(podman, "cpu")
    assert done.returncode == 0, done.stderr
    return podman


def test_a_new_user_has_a_report_in_minutes(podman: Podman, tmp_path: Path) -> None:
    """From an empty machine with pip alone: install, an example, a rehearsal, the page over all runs, an export."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    steps = [
        "cd /tmp && python3 -m venv env",
        'env/bin/pip install --quiet --no-index --find-links /wheels "$(echo /dist/seatrial-*.whl)[train,serve]"',
        "export PATH=/tmp/env/bin:$PATH",
        "seatrial --version",
        "seatrial init tiny-text",
        "seatrial check tiny-text.json",
        "seatrial run tiny-text.json checkpoint.enabled=true --rehearse --out runs/first",
        "seatrial judge runs/first >judged.txt",
        "seatrial report runs/first",
        "seatrial publish runs/first --to csv --out csv",
        "seatrial publish runs/first --to junit --out junit.xml",
        "seatrial history",
        "seatrial serve runs --port 8900 >served.txt &",
        f"python3 -c '{READ_PAGE}'",
        "kill $!; wait $!",
        "seatrial export runs/first --to hf",
        "ls hf",
        "times",
    ]
    volumes = [f"--volume={WHEELS}:/wheels:ro", f"--volume={tmp_path}:/dist:ro"]
    done = podman("run", "--rm", "--network", "none", *volumes, BASE, "bash", "-ec", "\n".join(steps))
    assert done.returncode == 0, done.stderr
    assert f"seatrial {seatrial.__version__}" in done.stdout
    assert "OK: no errors" in done.stdout
    assert re.search(r"^PASS  tiny-text$", done.stdout, re.MULTILINE)
    assert "runs/first/report.html" in done.stdout
    assert re.search(r"runs/first +llama-1m", done.stdout)
    assert "the page has the run" in done.stdout
    assert "model.safetensors" in done.stdout
    minutes, seconds = re.findall(r"(\d+)m([\d.]+)s", done.stdout)[-2]  # user, of what the shell started
    assert int(minutes) * 60 + float(seconds) < FEW_MINUTES


def test_the_image_is_nobodys(built: Podman) -> None:
    (about,) = json.loads(built("image", "inspect", IMAGE).stdout)
    assert about["Config"]["User"] == "10001:10001"
    assert about["Config"]["Entrypoint"] == ["seatrial"]
    labels = about["Config"]["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["com.seatrial.accelerator"] == "cpu"
    done = built("run", "--rm", "--network", "none", "--entrypoint", "sh", IMAGE, "-c", "id -u; ls / /opt/seatrial/bin")
    assert done.stdout.startswith("10001\n")
    assert {"source", "pip"} & set(done.stdout.split()) == set()


def test_check_on_a_mounted_file(built: Podman, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    shutil.copy(TINY, tmp_path / "tiny.json")
    done = built.seatrial(tmp_path, "check", "tiny.json", options=("--read-only",))
    assert (done.returncode, done.stdout) == (0, "OK: no errors\n"), done.stderr
    (tmp_path / "wrong.json").write_text('{"model": "llama3-8b", "stesp": 3}', encoding="utf-8")
    assert built.seatrial(tmp_path, "check", "wrong.json").returncode == 2


@pytest.mark.parametrize("user", [(), ("--user", "12345:12345")], ids=["its own user", "another user"])
def test_a_rehearsal(built: Podman, tmp_path: Path, user: tuple[str, ...]) -> None:
    tmp_path.chmod(0o777)
    shutil.copy(TINY, tmp_path / "tiny.json")
    done = built.seatrial(tmp_path, "run", "tiny.json", "--rehearse", "--out", "runs/first", options=user)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  tiny" in done.stdout
    again = built.seatrial(tmp_path, "judge", "runs/first", "--format", "json", options=user)
    assert json.loads(again.stdout)["verdict"]["outcome"] == "pass"
    assert {path.owner() if path.stat().st_uid == 0 else "nobody's" for path in (tmp_path / "runs").rglob("*")} == {
        "nobody's"
    }


def test_an_unknown_accelerator_is_refused(podman: Podman) -> None:
    done = build(podman, "tpu")
    assert done.returncode != 0
    assert "ACCELERATOR=tpu: it is cpu, cuda or rocm" in done.stdout + done.stderr
