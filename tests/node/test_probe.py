"""The probe as it runs on a node: in a process of its own, its text and the question on the standard input."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import seatrial
from seatrial.launch.preflight.answers import read_facts, read_meeting
from seatrial.node import inventory, of_the_probe, relay
from seatrial.node.facts import Facts, Meeting
from tests.helpers.processes import processes_with, wait_until

SOURCE = of_the_probe()


def started(verb: str, given: dict[str, Any], path: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", relay.BOOT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"mark": "", "source": SOURCE, "verb": verb, "given": given}).encode() + b"\n")
    process.stdin.flush()
    return process


def answer(verb: str, given: dict[str, Any], path: str = "") -> dict[str, Any]:
    with started(verb, given, path) as process:
        return dict(json.loads(process.communicate(timeout=60)[0]))


def facts(path: str = "", seconds: float = 20, **parts: Any) -> Facts:
    told = answer("facts", {"parts": parts, "seconds": seconds}, path)
    read = read_facts({**told, "sent": 0, "received": 1})
    assert isinstance(read, Facts), read
    return read


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder whose programs are found before the machine's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, script: str) -> str:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir() if path.is_dir()}


def test_this_machine_is_told_whole() -> None:
    before = interfaces()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = facts(
            machine={}, name={"address": "127.0.0.1"}, network={}, cards={"gid_index": 3}, firewall={},
            trainer={"python": sys.executable}, port={"port": taken.getsockname()[1]},
        )  # fmt: skip
    assert found.failed == {}
    assert found.machine
    assert found.machine.cores == len(os.sched_getaffinity(0))
    assert found.machine.kernel == os.uname().release
    assert found.name
    assert (found.name.hostname, found.name.has_address) == (socket.gethostname(), True)
    assert found.name.machine is not None
    assert found.name.machine.endswith(str(Path("/proc/self/ns/net").readlink()))
    assert found.network
    told, after = set(found.network), interfaces()  # the bridges of the tests' clusters come and go meanwhile
    assert before & after <= told
    assert all(name.startswith("seatrial") for name in told - before - after)
    assert found.network["lo"].address == "127.0.0.1"
    assert found.trainer
    assert found.trainer.libraries["seatrial"] == seatrial.__version__
    assert found.port
    assert (found.port.free, found.port.why) == (False, "Address already in use")
    other = facts(name={"address": "192.0.2.77"})
    assert other.name
    assert other.name.has_address is False


def test_nvidia_devices(programs: Path) -> None:
    line = "%d, NVIDIA H200, 143771, 1, %s, 570.86.15"
    path = put(programs, "nvidia-smi", f"echo '{line % (0, 0)}'; echo '{line % (1, '[N/A]')}'; echo '{line % (2, 7)}'")
    found = facts(path, devices={}).devices
    assert found is not None
    assert (found.vendor, found.driver, len(found.found)) == ("nvidia", "570.86.15", 3)
    assert [device.uncorrected_errors for device in found.found] == [0, None, 7]
    assert (found.found[0].memory_bytes, found.found[0].used_bytes) == (143771 * 2**20, 2**20)
    path = put(programs, "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert facts(path, devices={}).failed == {"devices": "nvidia-smi ended with 6: No devices were found"}
    path = put(programs, "nvidia-smi", "echo 'WARNING: infoROM is corrupted'")
    why = "nvidia-smi printed a line that is no row of its table: WARNING: infoROM is corrupted"
    assert facts(path, devices={}).failed == {"devices": why}


def test_container_engines(programs: Path) -> None:
    told = 'if [ "$1" = version ]; then echo 27.3.1; elif [ "$6" = there:1 ]; then echo sha256:aa amd64; '
    path = put(programs, "docker", told + "else echo 'Error: No such image' >&2; exit 1; fi")
    there, missing = (
        facts(path, engine={"runtime": "docker", "image": f"{name}:1"}).engine for name in ("there", "no")
    )
    assert there
    assert (there.version, there.image, there.architecture) == ("27.3.1", "sha256:aa", "amd64")
    assert missing
    assert (missing.image, missing.why) == (None, "docker ended with 1: Error: No such image")
    path = put(programs, "docker", "echo 'permission denied: /var/run/docker.sock' >&2; exit 1")
    failed = facts(path, engine={"runtime": "docker", "image": "x"}).failed
    assert failed == {"engine": "docker ended with 1: permission denied: /var/run/docker.sock"}
    assert facts(engine={"runtime": "no-such-engine", "image": "x"}).failed == {"engine": "there is no no-such-engine"}


def test_what_does_not_answer_holds_up_nothing_else(programs: Path, mark: str) -> None:
    path = put(programs, "nvidia-smi", f"sleep 1000 # {mark}")
    start = time.monotonic()
    found = facts(path, seconds=1, devices={}, machine={})
    assert time.monotonic() - start < 9
    assert found.failed == {"devices": "no answer within 1 s"}
    assert found.machine is not None
    wait_until(lambda: not processes_with(mark))  # and it does not stay behind


def test_values_are_no_shell_text(tmp_path: Path, programs: Path) -> None:
    path = put(programs, "docker", f'printf "%s\\n" "$@" > {tmp_path}/said; echo 1 2')
    hostile = f"$(touch {tmp_path}/executed);`touch {tmp_path}/executed` --rm"
    facts(path, engine={"runtime": "docker", "image": hostile}, trainer={"python": hostile})
    assert (tmp_path / "said").read_text().splitlines()[-2:] == ["--", hostile]
    assert not (tmp_path / "executed").exists()


def test_disks_and_the_file_that_others_look_for(tmp_path: Path) -> None:
    folder, file = tmp_path / "shared", tmp_path / "data.bin"
    folder.mkdir()
    file.write_bytes(b"x" * 123)
    later = str(folder / "run" / "checkpoints")
    asked = {"paths": [later, str(file), str(folder)], "shared": [later], "nonce": "abc"}
    found = facts(storage=asked).storage
    assert found is not None
    assert (found[later].exists, found[later].nearest, found[later].writable) == (False, str(folder), True)
    assert (found[str(file)].exists, found[str(file)].size) == (True, 123)
    mark = found[later].nonce
    assert mark == f"{folder}/.seatrial-abc"
    assert list(folder.iterdir()) == [Path(mark)]
    seen = read_meeting(answer("meet", {"seconds": 1, "files": [mark, f"{folder}/.seatrial-other"]}))
    assert seen == Meeting(seen={mark: True, f"{folder}/.seatrial-other": False})
    assert answer("erase", {"files": [mark, str(file)]}) == {}
    assert (list(folder.iterdir()), file.exists()) == ([], True), "nothing but its own mark is removed"


def test_two_meet_whoever_comes_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    guest = started("meet", {"connect": ["127.0.0.1", port], "seconds": 20, "files": []})
    with guest:
        time.sleep(0.5)
        host = answer("meet", {"listen": port, "guests": 1, "seconds": 20, "files": []})
        met = json.loads(guest.communicate(timeout=30)[0])
    assert (host["reached"], met["reached"]) == (True, True)
    alone = answer("meet", {"connect": ["127.0.0.1", port], "seconds": 0.5, "files": []})
    assert alone["reached"] == "Connection refused"
    with socket.create_server(("", port)):
        taken = answer("meet", {"listen": port, "guests": 1, "seconds": 5, "files": []})
    assert "Address already in use" in taken["reached"]


def test_a_program_that_hangs_is_ended(programs: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "PROGRAM_SECONDS", 0.5)
    program = Path(put(programs, "slow", f"sleep 1000 # {mark}")) / "slow"
    with pytest.raises(OSError, match="no answer from"):
        inventory.ran(str(program), mark)
    wait_until(lambda: not processes_with(mark))
