"""The observer of a node: the real one, under a real agent; programs stand in for those of the vendors only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from seatrial.node import observer, of_the_agent
from tests.helpers.agents import AGENT, Agent
from tests.helpers.processes import processes_with, wait_until

Start = Callable[..., Agent]
FOREVER = "import time; print('up'); time.sleep(600)"
OBSERVER = AGENT.with_name("observer.py")

NVIDIA = """#!/bin/sh
case "$*" in *clocks_event_reasons*)
  echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
esac
echo "$*" > "{folder}/asked"
while :; do
  echo "0, NVIDIA H100 80GB HBM3, 81559, 0x0000000000000000, 98, 70000, 612.50, 61, 77, 1980, 0, 0"
  echo "1, NVIDIA H100 80GB HBM3, 81559, 0x0000000000000044, 96, 70000, [N/A], 85, N/A, 1200, 3, 0"
  sleep 0.2
done
"""
AMD = """#!/bin/sh
echo "WARNING: the user is not in the render group"
echo '{"gpu_data": [{"gpu": 0, "usage": {"gfx_activity": {"value": 88, "unit": "%"}},
 "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 98304, "unit": "MB"}},
 "temperature": {"edge": "N/A", "hotspot": {"value": 71, "unit": "C"}, "mem": {"value": 55, "unit": "C"}},
 "power": {"socket_power": {"value": 640, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
 "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0}}]}'
"""


def program(folder: Path, name: str, text: str) -> None:
    """A small program that stands in for one of a vendor's."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(text.replace("{folder}", str(folder)))
    (folder / "bin" / name).chmod(0o755)


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / "observed.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [entry for entry in map(json.loads, whole) if entry["kind"] == kind]


def seen(folder: Path) -> dict[str, Any]:
    """The last sample of each device."""
    return {device: values for entry in lines(folder, "sample") for device, values in entry["devices"].items()}


@pytest.fixture
def with_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(**programs: str) -> None:
        for name, text in programs.items():
            program(tmp_path, name.replace("_", "-"), text)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return put


def test_a_node_is_watched_while_its_processes_run(start_agent: Start, tmp_path: Path, with_programs: Any) -> None:
    with_programs(nvidia_smi=NVIDIA)
    agent = start_agent([FOREVER], observe_seconds=1)
    wait_until(lambda: len(lines(tmp_path, "sample")) >= 3 and seen(tmp_path))
    agent.process.send_signal(signal.SIGTERM)
    agent.wait()
    begun, ended = lines(tmp_path, "begun")[0], lines(tmp_path, "ended")[0]
    assert (begun["v"], begun["cores"]) == (observer.VERSION, os.cpu_count())
    assert ended["left_out"] == {}
    assert seen(tmp_path) == {
        "gpu0": {"utilization": 0.98, "memory_bytes": 70000 << 20, "watts": 612.5, "celsius": 61, "memory_celsius": 77,
                 "clock_mhz": 1980, "corrected": 0, "uncorrected": 0, "throttled": []},
        "gpu1": {"utilization": 0.96, "memory_bytes": 70000 << 20, "celsius": 85, "clock_mhz": 1200, "corrected": 3,
                 "uncorrected": 0, "throttled": ["power cap", "hardware thermal slowdown"]},
    }  # fmt: skip
    assert "clocks_throttle_reasons.active" in (tmp_path / "asked").read_text()
    node = [entry["node"] for entry in lines(tmp_path, "sample") if "node" in entry]
    assert all(0 < each["memory_bytes"] < begun["memory_bytes"] for each in node)
    first = lines(tmp_path, "counters")[0]
    names = {path.name for path in Path("/sys/class/net").iterdir()}  # others' clusters come and go
    assert {name for name in names if not name.startswith(("lo", "seatrial"))} <= set(first["counters"])
    assert {"rx_bytes", "tx_errors"} <= set(next(iter(first["counters"].values())))
    assert not processes_with(str(tmp_path / "bin"))


def test_an_amd_device_is_read_by_its_tool(start_agent: Start, tmp_path: Path, with_programs: Any) -> None:
    with_programs(amd_smi=AMD)
    start_agent([FOREVER], observe_seconds=0.2)
    wait_until(lambda: seen(tmp_path))
    assert seen(tmp_path) == {
        "gpu0": {"utilization": 0.88, "memory_bytes": 98304 << 20, "watts": 640, "celsius": 71, "memory_celsius": 55,
                 "corrected": 2, "uncorrected": 0, "throttled": []}
    }  # fmt: skip
    assert lines(tmp_path, "devices")[0]["devices"] == {"gpu0": {"model": "AMD", "memory_bytes": 196592 << 20}}


def test_what_is_not_there_is_said_and_costs_nothing(start_agent: Start, tmp_path: Path) -> None:
    agent = start_agent(["import time; time.sleep(1)"], observe_seconds=0.5)
    assert agent.wait() == 0
    lacks = {entry["source"]: entry["why"] for entry in lines(tmp_path, "source")}
    assert lacks["nvidia-smi"] == "there is no nvidia-smi"
    assert lacks["amd-smi"] == "there is no amd-smi"
    assert lines(tmp_path, "ended")[0]["cpu_seconds"] < 2


def test_a_tool_that_finds_no_device_says_why(start_agent: Start, tmp_path: Path, with_programs: Any) -> None:
    with_programs(nvidia_smi="#!/bin/sh\necho 'NVIDIA-SMI has failed: is the driver loaded?'; exit 9\n")
    start_agent([FOREVER], observe_seconds=1)
    said = wait_until(lambda: [entry["why"] for entry in lines(tmp_path, "source") if entry["source"] == "nvidia-smi"])
    assert said == ["it ended with 9: NVIDIA-SMI has failed: is the driver loaded?"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_its_own_death_or_silence_disturbs_nothing(start_agent: Start, tmp_path: Path, how: signal.Signals) -> None:
    agent = start_agent(["import time; time.sleep(1.5)"], observe_seconds=0.5)
    wait_until(lambda: lines(tmp_path, "sample"))
    pid = watcher_of(agent)
    os.kill(pid, how)
    assert agent.wait() == 0
    status = agent.status()
    assert (status["state"], status["left_behind"], status["survivors"]) == ("ended", 0, [])
    wait_until(lambda: pid not in processes_with(str(OBSERVER)))


def watcher_of(agent: Agent) -> int:
    """The pid of what an agent has started to watch the node."""
    children = psutil.Process(agent.process.pid).children()
    (pid,) = (child.pid for child in children if str(OBSERVER) in child.cmdline())
    return int(pid)


def test_it_dies_with_the_agent(start_agent: Start, tmp_path: Path, with_programs: Any) -> None:
    with_programs(nvidia_smi=NVIDIA)
    agent = start_agent([FOREVER], observe_seconds=1)
    wait_until(lambda: seen(tmp_path))
    pid = watcher_of(agent)
    agent.process.kill()
    wait_until(lambda: pid not in processes_with(str(OBSERVER)) and not processes_with(str(tmp_path / "bin")))


def test_a_job_that_does_not_ask_for_it_has_none(start_agent: Start, tmp_path: Path) -> None:
    assert start_agent(["pass"]).wait() == 0
    assert not (tmp_path / "observed.jsonl").exists()


class Watching:
    """An observer without an agent."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.process = subprocess.Popen([sys.executable, "-I", str(OBSERVER)], stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        job = {"path": str(folder / "observed.jsonl"), "interval_seconds": seconds}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.communicate()


def test_what_the_kernel_says_meanwhile_is_kept_with_its_time(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make the kernel say something")
    watching = Watching(tmp_path, 60)
    wait_until(lambda: lines(tmp_path, "counters"))
    if [entry for entry in lines(tmp_path, "source") if entry["source"] == "kernel log"]:
        watching.end()
        pytest.skip("the kernel's log may not be read here")
    before = time.time()
    word = f"seatrial-test-{os.getpid()}"
    Path("/dev/kmsg").write_text(f"{word}: Out of memory: Killed process 1 (init)\n")  # of a program, not of the kernel
    for state in ("on", "off"):
        subprocess.run(["ip", "link", "set", "dev", "lo", "promisc", state], check=True)
    said = wait_until(lambda: [entry for entry in lines(tmp_path, "kernel") if "left promiscuous" in entry["text"]])
    watching.end()
    assert before - 0.5 <= said[0]["at"] <= time.time() + 0.5
    assert said[0]["level"] == 6
    assert word not in (tmp_path / "observed.jsonl").read_text()


def test_samples_come_more_rarely_as_the_file_grows() -> None:
    read_end, write_end = os.pipe()
    watching = observer.Observer(f"/dev/fd/{write_end}", 5)
    os.close(read_end)
    pauses = []
    for size in (0, observer.SAMPLE_BYTES - 1, observer.SAMPLE_BYTES, 4 * observer.SAMPLE_BYTES):
        watching.written["sample"] = size
        pauses.append(watching.pause())
    assert pauses == [5, 5, 10, 80]
    assert watching.pause(took=2.0) == 200


@pytest.mark.parametrize(("share", "every"), [(0.0, 5), (0.009, 5), (0.011, 5), (0.02, 10), (0.033, 17), (1.0, 500)])
def test_a_tool_that_costs_too_much_tells_more_rarely(share: float, every: int) -> None:
    assert observer.slower(5, share) == every


def test_nvidia_s_tool_is_slowed_down_where_it_costs_too_much(
    start_agent: Start, tmp_path: Path, with_programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = NVIDIA.replace("sleep 0.2", ":")  # it never rests
    with_programs(nvidia_smi=busy)
    folder = tmp_path / "launch"
    folder.mkdir()
    for name, text in of_the_agent().items():
        (tmp_path / name).write_text(text.replace("COST_SECONDS = 60.0", "COST_SECONDS = 0.5"))
    monkeypatch.setattr("tests.helpers.agents.AGENT", folder / "agent.py")
    start_agent([FOREVER], observe_seconds=1)
    asked = tmp_path / "asked"
    wait_until(lambda: asked.exists() and "--loop=1" not in asked.read_text() and "--loop=" in asked.read_text())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    watching = observer.Observer("/dev/full", 5)
    watching.write("sample", devices={})
    assert watching.left_out == {"sample": 1}
    watching = observer.Observer(str(tmp_path / "observed.jsonl"), 5)
    watching.torn = True  # a line was written in part
    os.write(watching.file, b'{"kind": "sam')
    watching.write("ended")
    assert (tmp_path / "observed.jsonl").read_text().split("\n")[1].startswith('{"kind":"ended"')
