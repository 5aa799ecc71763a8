"""Runs under Slurm on nodes with real daemons: what Slurm does to a job is what the run's verdict says."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.launch.slurm_queue import END_SECONDS
from seatrial.node.slurm_node import expand
from tests.helpers.cluster.nodes import SEARCH_PATH, Node
from tests.helpers.cluster.person import CANARY, HOSTILE, Lookout, nothing_is_left, over, trainers
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.cluster.slurm_user import SlurmUser
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def make_user(make_slurm: Callable[..., Slurm], tmp_path: Path) -> Callable[..., SlurmUser]:
    return lambda nodes, **options: SlurmUser(make_slurm(nodes, **options), tmp_path)


def environment(node: Node) -> dict[str, str]:
    """Of the trainer on a node."""
    (pid,) = trainers(node)
    pairs = node.path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_three_nodes_train_together_while_slurmctld_restarts(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(3, containers=False)
    results = user.cluster.shared / "results"
    options = ["--slurm", "time=30", "--slurm", f"results={results}"]
    run = user.start(*user.rehearsal(*options, steps=50, nodes=3))
    user.wait_for_steps(run, 2)
    user.slurm.stop_controller()
    user.wait_for_steps(run, 49)  # nobody minds
    user.slurm.start_controller()
    code, told = over(run, 200)
    assert code == 0, told
    assert "Completed all 50 steps" in told
    assert "3 processes, 6 devices" in told
    assert f"job {user.job()}: running on node[1-3]" in told
    hosts = [process["host"] for process in json.loads((user.out / "plan.json").read_text())["processes"]]
    assert hosts == ["node1", "node2", "node3"]
    (link,) = results.rglob("*.out")
    assert link.name.endswith(f"_{user.job()}.out")
    assert link.read_bytes() == (user.out / "nodes/node1/rank0.log").read_bytes() != b""
    watched = [(user.out / "nodes" / host / "observed.jsonl").read_text() for host in hosts]
    assert all('"kind":"ended"' in text for text in watched)
    assert nothing_is_left(user.cluster)


def test_lists_of_hosts_are_written_out_as_slurm_does(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(1, containers=False)
    some = random.Random(0)
    for _ in range(20):
        names = [f"{some.choice(['a', 'gpu-', 'r1n'])}{some.randrange(1200):0{some.randint(1, 4)}}" for _ in range(20)]
        short = slurm.run(["scontrol", "show", "hostlist", ",".join(names)]).stdout.strip()
        assert expand(short) == slurm.run(["scontrol", "show", "hostnames", short]).stdout.split()


def test_what_travels_arrives_as_it_is_and_secrets_are_seen_nowhere(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(2)
    variables = {**HOSTILE, "HF_TOKEN": CANARY}
    with Lookout(user.cluster.nodes, CANARY) as lookout:
        run = user.start(*user.rehearsal("--container", "podman", steps=30, nodes=2, variables=variables))
        user.wait_for_steps(run, 2)
        for node in user.cluster.nodes[:2]:
            found = environment(node)
            assert {name: found.get(name) for name in HOSTILE} == HOSTILE
            assert found["HF_TOKEN"] == CANARY
            assert not [name for name, value in found.items() if CANARY in value and name != "HF_TOKEN"]
            (name,) = node.run(["podman", "ps", "--format", "{{.Names}}"]).stdout.split()
            assert CANARY not in node.run(["podman", "inspect", name]).stdout
            assert not node.path("/tmp/executed").exists()
        shown = user.slurm.run(["scontrol", "show", "job", user.job()]).stdout
        script = user.slurm.run(["scontrol", "write", "batch_script", user.job(), "-"]).stdout
        code, told = over(run, 200)
    assert code == 0, told
    assert lookout.found == []
    assert {"srun", "podman", "conmon"} <= lookout.programs
    assert not any(CANARY in text for text in (told, shown, script))
    kept = [path for path in user.out.rglob("*") if path.is_file() and not path.name.startswith("config.")]
    assert not any(CANARY.encode() in path.read_bytes() for path in kept)
    assert nothing_is_left(user.cluster)


def test_what_is_asked_of_slurm_wins_over_the_variables_of_the_submitting_shell(
    make_user: Callable[..., SlurmUser],
) -> None:
    user = make_user(2, containers=False)
    inside = user.slurm.run(["salloc", "-N1", "--mem-per-cpu=100", "env"]).stdout.splitlines()
    of_a_job = dict(line.split("=", 1) for line in inside if line.startswith("SLURM_"))
    wrong = {"SLURM_GPUS_PER_NODE": "h100:4", "SLURM_DISTRIBUTION": "arbitrary", "SLURM_RESTART_COUNT": "1"}
    user.variables |= of_a_job | wrong | {"SLURM_CONF": user.slurm.environment["SLURM_CONF"], "SBATCH_TIMELIMIT": "7"}
    user.variables |= {"SBATCH_MEM_PER_CPU": "100", "SBATCH_REQUEUE": "1", "SBATCH_EXPORT": "NONE"}
    run = user.begin("--slurm", "time=30", nodes=2)
    shown = user.slurm.run(["scontrol", "show", "job", user.job()]).stdout
    assert {"TimeLimit=00:30:00", "Requeue=0"} <= set(shown.split())
    assert not (wrong | {"SLURM_MEM_PER_CPU": "100"}).items() & environment(user.cluster.nodes[1]).items()
    run.send_signal(signal.SIGINT)
    code, told = over(run)
    assert code == 130, told


def scancel(user: SlurmUser) -> tuple[str, str]:
    user.slurm.run(["scancel", user.job()])
    return "cancelled", f"job {user.job()}"


def slurmd_killed(user: SlurmUser) -> tuple[str, str]:
    user.slurm.kill_slurmd(user.cluster.nodes[1])
    return "node_lost", "node2"


@pytest.mark.parametrize(
    ("happens", "exit_code", "clearing_seconds"), [(scancel, 130, END_SECONDS + 15), (slurmd_killed, 4, 0)]
)
def test_what_ended_a_job_is_named(
    make_user: Callable[..., SlurmUser],
    happens: Callable[[SlurmUser], tuple[str, str]],
    exit_code: int,
    clearing_seconds: float,
) -> None:
    user = make_user(3, containers=False, clearing_seconds=clearing_seconds)
    run = user.begin()
    named = happens(user)
    code, told = over(run, 200)  # it takes Slurm a while to see that a slurmd is gone
    assert (code, user.first_fault()) == (exit_code, named), told
    if happens is scancel:  # and all were told once
        assert all(user.ended_in_order(rank) for rank in range(3))
    wait_until(lambda: nothing_is_left(user.cluster), 30)


def test_a_worker_that_is_killed_is_named_and_its_peers_clear_away_their_containers(
    make_user: Callable[..., SlurmUser],
) -> None:
    user = make_user(2)
    run = user.begin("--container", "podman", nodes=2)
    node = user.cluster.nodes[1]
    node.kill(trainers(node)[0])
    code, told = over(run)
    assert (code, user.first_fault()) == (4, ("process_died", "rank 1 on node2")), told
    assert nothing_is_left(user.cluster)
    for node in user.cluster.nodes[:2]:
        assert node.run(["podman", "ps", "--all", "--quiet"]).stdout == ""
    # Slurm calls a job COMPLETING until all of its nodes are clear.
    wait_until(lambda: "JobState=FAILED" in user.slurm.run(["scontrol", "show", "job", user.job()]).stdout, 30)


def test_a_launcher_that_is_killed_is_followed_by_another_which_says_that_the_time_was_over(
    make_user: Callable[..., SlurmUser],
) -> None:
    user = make_user(2, containers=False)
    first = user.begin("--slurm", "time=1", nodes=2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    user.slurm.run(["scontrol", "update", f"JobId={user.job()}", "TimeLimit=1"])
    second = user.start("attach", user.out)
    code, told = over(second, 200)
    assert (code, user.first_fault()) == (4, ("time_limit", f"job {user.job()}")), told
    assert nothing_is_left(user.cluster)


def test_a_job_that_waits_for_too_long_is_given_up(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(1, containers=False)
    arguments = user.rehearsal("--queue-deadline", "5s", steps=10, nodes=2)
    code, told = user.run(*arguments)
    assert code == 3, told
    assert user.first_fault() == ("launch_failed", f"job {user.job()}"), told
    assert user.slurm.run(["squeue", "--noheader"]).stdout == ""


def test_a_run_directory_that_the_nodes_do_not_share_is_told(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(2, containers=False)
    user.out = user.cluster.not_shared / "run"
    code, told = user.run(*user.rehearsal(steps=10, nodes=2))
    assert code == 3, told
    assert f"the nodes cannot see the run directory {user.out}" in " ".join(told.split())


def test_who_interrupts_a_job_that_waits_leaves_none_behind(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(1, containers=False)
    user.slurm.run(["scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=repair"])
    run = user.start(*user.rehearsal(steps=10, nodes=1))
    number = user.job()
    run.send_signal(signal.SIGINT)
    code, told = over(run)
    assert code == 130, told
    assert f"job {number}: pending" in told
    assert user.slurm.run(["squeue", "--noheader"]).stdout == ""


@pytest.fixture
def slow_sbatch(tmp_path: Path) -> Path:
    """A folder for PATH in which sbatch takes its time: it says so, and hands the job over a while later."""
    program = tmp_path / "slow" / "sbatch"
    program.parent.mkdir()
    real = shutil.which("sbatch", path=SEARCH_PATH)
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/submitting\nsleep 3\nexec {real} "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_a_job_that_is_only_being_submitted_is_ended(
    make_user: Callable[..., SlurmUser], slow_sbatch: Path, how: str
) -> None:
    user = make_user(1, containers=False)
    user.variables["PATH"] = f"{slow_sbatch}:{user.variables['PATH']}"
    _, argv, environment = user.command(*user.under_slurm(user.endless(nodes=1)))
    run = subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    user.cluster.used_by.append(run)
    wait_until((slow_sbatch.parent / "submitting").exists, 60)
    if how == "stop":
        assert user.run("stop", user.out)[0] == 0
    else:
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does, to all that is in the foreground
    code, told = over(run)
    assert code == 130, told
    wait_until(lambda: user.slurm.run(["squeue", "--noheader"]).stdout == "", 60)
    assert user.job() in told
    assert "Traceback" not in told
    assert nothing_is_left(user.cluster)


def test_a_job_is_stopped_from_another_shell(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(1, containers=False)
    run = user.begin(nodes=1)
    code, told = user.run("stop", user.out)
    assert code == 0, told
    code, told = over(run)
    assert code == 130, told
    assert user.ended_in_order(0)
    code, logs = user.run("logs", user.out)
    assert "completed step: 1" in logs
    assert nothing_is_left(user.cluster)


def test_a_job_that_may_be_requeued_does_not_resume_from_another_run_s_checkpoints(
    make_user: Callable[..., SlurmUser],
) -> None:
    user = make_user(1, containers=False)
    checkpoint = {"enabled": True, "interval_steps": 5, "directory": str(user.cluster.shared / "kept")}
    for name, steps in (("first", 5), ("second", 10)):
        user.out = user.cluster.shared / name
        config = user.endless(nodes=1, steps=steps, checkpoint=checkpoint)
        code, told = user.run(*user.under_slurm(config, "--slurm", "requeue=yes"))
        assert code == (0 if name == "first" else 3), told
    assert "holds checkpoints already" in told


def test_a_job_that_is_requeued_goes_on_from_its_checkpoint(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(1, containers=False)
    config = user.endless(nodes=1, steps=2000, checkpoint={"enabled": True, "interval_steps": 100})
    run = user.start(*user.under_slurm(config, "--slurm", "requeue=yes"))
    wait_until(lambda: list(user.out.glob("checkpoints/1*")) or run.poll() is not None, 120)
    assert run.poll() is None, over(run)
    user.slurm.run(["scontrol", "requeue", user.job()])
    wait_until(lambda: "Restarts=1" in user.slurm.run(["scontrol", "show", "job", user.job()]).stdout)
    user.slurm.run(["scontrol", "update", f"JobId={user.job()}", "StartTime=now"])  # Slurm lets it wait two minutes
    code, told = over(run, 200)
    assert code == 0, told
    started = [
        event
        for event in map(json.loads, (user.out / "events-0.jsonl").read_text().splitlines())
        if event["kind"] == "run_started"
    ]
    assert [event["attempt"] for event in started] == [1, 2]
