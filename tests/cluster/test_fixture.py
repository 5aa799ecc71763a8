"""The cluster itself: its nodes are machines of their own, its faults are there, and nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from seatrial.dialects.clusters import read_cluster
from tests.helpers.cluster import faults
from tests.helpers.cluster.image import HOME, IMAGE, PROJECT
from tests.helpers.cluster.nodes import USER_HOME, Cluster, Node
from tests.helpers.cluster.slurm import DEVICES, Slurm
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.cluster

PODMAN = ["podman", "run", "--rm", "--pull=never", "--network=host"]


def reaches(node: Node, other: Node, port: int = 22, seconds: float = 20) -> bool:
    connect = f"import socket; socket.create_connection(('{other.address}', {port}), timeout={seconds})"
    return node.run(["python3", "-c", connect], check=False).returncode == 0


def is_cut_off(node: Node, other: Node) -> bool:
    return not reaches(node, other, seconds=1)


def test_nodes_are_machines_of_their_own(make_cluster: Callable[..., Cluster], mark: str) -> None:
    cluster = make_cluster(3)
    first, second, third = cluster.nodes
    assert [node.ssh(["hostname"]).stdout.strip() for node in cluster.nodes] == ["node1", "node2", "node3"]
    for node in cluster.nodes:
        assert node.ssh(["ip", "-brief", "-4", "address", "show", "eth0"]).stdout.split()[2] == f"{node.address}/24"
        assert node.run(["getent", "hosts", "node3"]).stdout.split() == [third.address, "node3"]
        assert {process.pid for process in node.processes()} < set(range(1, 1000))
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", USER_HOME, cluster.not_shared):
        first.ssh(["touch", f"{folder}/{mark}"])
        assert second.run(["ls", f"{folder}/{mark}"], check=False).returncode, folder
        assert not Path(folder, mark).exists(), folder
    assert first.ssh(["touch", f"/usr/{mark}"], check=False).returncode, "the machine's own files are written to"
    (cluster.shared / "ours").write_text("said here")
    assert second.ssh(["cat", f"{cluster.shared}/ours"]).stdout == "said here"
    assert all(reaches(node, other) for node in cluster.nodes for other in cluster.nodes)


def test_a_shared_home_is_one_home(make_cluster: Callable[..., Cluster]) -> None:
    first, second = make_cluster(2, shared_home=True, containers=False).nodes
    first.ssh(["touch", "mine"])
    assert "mine" in second.ssh(["ls"]).stdout.split()
    assert second.ssh(["python3", "-c", "import seatrial"]).stdout == ""


def test_cvs_reads_the_cluster_file(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2, containers=False)
    read, problems = read_cluster(cluster.cluster_json(), user="somebody", home=Path("/nowhere"))
    assert read is not None
    assert [problem for problem in problems if problem.severity != "info"] == []
    assert [host.address for host in read.hosts] == [node.address for node in cluster.nodes]
    assert (read.user, read.key_file) == ("root", str(cluster.key))


def test_processes_are_seen_and_ended(make_cluster: Callable[..., Cluster], mark: str) -> None:
    first, second = make_cluster(2, containers=False).nodes
    first.ssh(["sh", "-c", f"setsid python3 -c 'import time; time.sleep(1e6)' {mark} > /dev/null 2>&1 &"])
    (process,) = wait_until(lambda: [process for process in first.processes(mark) if process.argv[0] == "python3"])
    assert second.processes(mark) == []
    with faults.frozen(first, process.pid):
        wait_until(lambda: "T (stopped)" in first.path(f"/proc/{process.pid}/status").read_text())
    first.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: first.processes(mark) == [])


def test_faults_of_the_network(make_cluster: Callable[..., Cluster]) -> None:
    first, second, third = make_cluster(3, containers=False).nodes
    with faults.cable_out(second):
        assert is_cut_off(first, second)
        assert is_cut_off(second, first)
        assert reaches(first, third)
    with faults.dropped_from(second, first):
        assert is_cut_off(first, second)
        assert reaches(third, second)
    with faults.port_refused(second, 22):
        assert "Connection refused" in second.ssh(["true"], check=False).stderr
    with faults.port_taken(second, 12345):
        assert reaches(first, second, 12345)
    assert not reaches(first, second, 12345)
    with faults.slow_link(second, megabits=1):
        start = time.monotonic()
        assert len(second.ssh(["head", "-c", "100000", "/dev/zero"]).stdout) == 100_000
        assert time.monotonic() - start > 0.5  # 100 kB at 1 Mbit/s are 0.8 s, less what the queues hold
    assert reaches(first, second)
    assert reaches(second, third)


def test_faults_of_sshd(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(1, containers=False)
    (node,) = cluster.nodes

    def refusal() -> str:
        done = node.ssh(["true"], check=False)
        assert done.returncode == 255
        return done.stderr

    with faults.sshd_stopped(node):
        assert "Connection refused" in refusal()
    with faults.sshd_with(node, "AuthorizedKeysFile none"):
        node.wait_for_port(22)
        assert "Permission denied (publickey)" in refusal()
    with faults.host_key_changed(node):
        node.wait_for_port(22)
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refusal()
    session_command = ["ssh", "-F", str(cluster.ssh_config), node.name, "sleep 1234"]
    with subprocess.Popen(session_command, stderr=subprocess.DEVNULL) as session:
        wait_until(lambda: node.processes("sleep 1234"))
        node.drop_sessions()
        assert session.wait(timeout=20) == 255
        assert node.processes("sleep 1234"), "what a session has started goes on"
    assert node.ssh(["hostname"]).stdout == "node1\n"


def test_a_full_disk_is_full(make_cluster: Callable[..., Cluster]) -> None:
    first, second = make_cluster(2, containers=False).nodes
    for folder in ("/tmp", str(USER_HOME)):
        write = ["python3", "-c", f"import pathlib; pathlib.Path('{folder}/some').write_bytes(b'x' * 4096)"]
        with faults.disk_full(first, folder):
            assert "[Errno 28] No space left on device" in first.run(write, check=False).stderr
            second.run(write)
        first.run(write)


def test_a_node_that_was_off_is_empty(make_cluster: Callable[..., Cluster]) -> None:
    first, second = make_cluster(2, containers=False).nodes
    first.ssh(["touch", "/tmp/mine"])
    first.power_off(silently=True)
    assert is_cut_off(second, first)
    first.power_on()
    assert "mine" not in first.ssh(["ls", "/tmp"]).stdout.split()  # the checkout may lie there


def test_containers_run_the_trainer_and_reach_each_other(make_cluster: Callable[..., Cluster]) -> None:
    first, second = make_cluster(2).nodes
    serve = (
        "import socket, seatrial; s = socket.create_server(('', 4321)); c, _ = s.accept(); "
        "c.sendall(socket.gethostname().encode())"
    )
    first.ssh([*PODMAN, "--detach", "--name=server", IMAGE, "python", "-c", serve])
    ask = (
        "import socket, time\n"
        "for _ in range(100):\n"
        "    try: print(socket.create_connection(('node1', 4321)).recv(99).decode()); break\n"
        "    except OSError: time.sleep(0.1)\n"
    )
    assert second.ssh([*PODMAN, IMAGE, "python", "-c", ask]).stdout == "node1\n"
    usage = second.ssh([*PODMAN, IMAGE, "python", "-m", "seatrial.train"], check=False)
    assert usage.returncode == 2
    with faults.image_missing(second):
        missing = second.ssh([*PODMAN, IMAGE, "true"], check=False)
    assert (missing.returncode, "image not known" in missing.stderr) == (125, True)
    second.ssh([*PODMAN, IMAGE, "true"])


def test_slurm_runs_on_all_nodes(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(3)
    assert sorted(slurm.run(["srun", "--nodes=3", "hostname"]).stdout.split()) == ["node1", "node2", "node3"]
    shared = slurm.cluster.shared
    head = f"#!/bin/sh\n#SBATCH --nodes=2 --gpus-per-node={DEVICES} --output=%j.out\n"
    step = "srun sh -c 'hostname; touch started; until [ -e go ]; do sleep 0.1; done'\n"
    (shared / "job.sh").write_text(f"{head}{step}exit 3\n")
    job = slurm.run(["sbatch", "--parsable", "job.sh"]).stdout.strip()
    wait_until((shared / "started").exists)  # a step that starts while the controller does waits for minutes
    slurm.restart_controller()
    (shared / "go").touch()
    shown = wait_until(lambda: ended(slurm, job), 60)
    assert "JobState=FAILED Reason=NonZeroExitCode" in shown
    assert "ExitCode=3:0" in shown
    assert sorted((shared / f"{job}.out").read_text().split()) == ["node1", "node2"]
    assert f"JobId={job} " in slurm.completed_jobs.read_text()
    slurm.kill_slurmd(slurm.nodes[2])
    assert slurm.run(["srun", "--nodes=2", "hostname"]).stdout.split()
    slurm.start_slurmd(slurm.nodes[2])
    slurm.wait_for_nodes("idle")


def test_sacct_knows_how_a_job_ended(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(1, accounting=True)
    (slurm.cluster.shared / "job.sh").write_text("#!/bin/sh\nsrun true\nexit 3\n")
    job = slurm.run(["sbatch", "--parsable", "job.sh"]).stdout.strip()
    ask = ["sacct", f"--jobs={job}", "--noheader", "--parsable2", "--format=JobID,State,ExitCode"]
    wait_until(lambda: f"{job}|FAILED|3:0" in slurm.run(ask).stdout.split(), 60)
    assert f"{job}.0|COMPLETED|0:0" in slurm.run(ask).stdout.split()


def ended(slurm: Slurm, job: str) -> str:
    """Slurm's description of a job that has ended; "" before its end."""
    shown = slurm.run(["scontrol", "show", "job", job], check=False).stdout
    return "" if any(f"JobState={state}" in shown for state in ("PENDING", "RUNNING", "COMPLETING")) else shown


# --- nothing is left --------------------------------------------------------------------------------------------------

LOCKS = (Path("/run/libpod"), Path("/run/containers"), Path("/dev/shm/libpod_lock"))


def seen() -> dict[str, set[object]]:
    """The network devices, processes and control groups of this machine, by numbers that nothing later has again."""
    links = json.loads(subprocess.check_output(["ip", "-json", "link"], text=True))
    found: dict[str, set[object]] = {
        "devices": {link["ifindex"] for link in links},
        "processes": set(),
        "groups": {path for path in Path("/sys/fs/cgroup").rglob("libpod-*") if path.is_dir()},
    }
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found["processes"].add((process.pid, process.create_time()))
    return found


def common(one: dict[str, set[object]], other: dict[str, set[object]]) -> dict[str, set[object]]:
    return {kind: one[kind] & other[kind] for kind in one if one[kind] & other[kind]}


def traces(slot: int) -> dict[str, set[object]]:
    """The network devices, processes and control groups that the cluster in a slot has made."""
    links = json.loads(subprocess.check_output(["ip", "-json", "link"], text=True))
    members: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(f"/slots/{slot}/" in word for word in process.cmdline()) and process.name() == "unshare":
                members |= {process, *process.children(recursive=True)}
    containers = {
        container["id"]
        for listed in HOME.glob(f"slots/{slot}/*/containers/storage/overlay-containers/containers.json")
        for container in json.loads(listed.read_text())
    }
    groups = {path for path in Path("/sys/fs/cgroup").rglob("libpod-*") if path.name.split("-")[-1] in containers}
    return {
        "devices": {link["ifindex"] for link in links if link["ifname"].startswith(f"seatrial{slot}")},
        "processes": {(process.pid, process.create_time()) for process in members},
        "groups": set(groups),
    }


def test_nothing_is_left_after_a_failed_test(node_programs: None) -> None:
    locks = [path for path in LOCKS if path.exists()]
    before: dict[str, set[object]] = {}

    def fail() -> None:
        with Cluster(2) as cluster:
            for node in cluster.nodes:
                node.ssh([*PODMAN, "--detach", "--name=busy", IMAGE, "sleep", "1000"])
            before.update(traces(cluster.slot))
            cluster.nodes[0].power_off()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(before.values()), before
    assert common(before, seen()) == {}
    assert "seatrial" not in Path("/proc/self/mountinfo").read_text()
    assert [path for path in LOCKS if path.exists()] == locks


def test_what_a_killed_process_leaves_is_cleared_by_the_next(node_programs: None) -> None:
    program = (
        "import time; from tests.helpers.cluster.nodes import Cluster\n"
        "with Cluster(1, containers=False) as cluster: print(cluster.slot, flush=True); time.sleep(1e6)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        slot = int(process.stdout.readline())
        before = traces(slot)
        process.kill()
    assert before["devices"]
    wait_until(lambda: "processes" not in common(before, seen()))  # they die with it
    with Cluster(1, containers=False):
        assert common(before, seen()) == {}
