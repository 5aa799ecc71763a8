"""The states of a job as Slurm reports them, and the run's ending that follows from them."""

from __future__ import annotations

import pytest

from seatrial.events import Fault
from seatrial.launch.progress import Ending
from seatrial.launch.slurm_queue import STATES, Job, explain, meaning, read_sacct, read_scontrol, settled
from seatrial.logs.faults import KINDS

SCONTROL = (
    "JobId=12 JobName=seatrial-llama UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=(null) "
    "QOS=(null) JobState=PENDING Reason=Resources Dependency=(null) Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A NodeList=(null) NumNodes=3 NumCPUs=3\n"
)


def test_scontrol_is_read() -> None:
    assert read_scontrol(SCONTROL) == Job(
        state="PENDING", reason="Resources", exit_code="0:0", nodes="", restarts=2, time_limit="01:00:00"
    )
    assert read_scontrol("slurm_load_jobs error: Invalid job id specified\n") is None


def test_sacct_is_read() -> None:
    told = read_sacct("CANCELLED by 1000|0:15|node[1-3]|01:00:00\n")
    assert told == Job(state="CANCELLED", exit_code="0:15", nodes="node[1-3]", time_limit="01:00:00", by="1000")
    assert read_sacct("") is None


STOPPED = Fault(process=-1, fault="peer_stopped", where="agent on node1", text="it stopped its processes: SIGTERM")
DIED = Fault(process=-1, fault="process_died", where="rank 1 on node2", text="it was ended by SIGKILL (9)")
LOST = Fault(process=-1, fault="process_died", where="agent on node1", text="the agent ended")


@pytest.mark.parametrize(
    ("state", "reason", "fault", "says"),
    [
        ("CANCELLED", "interrupted", "cancelled", "was cancelled by user 1000"),
        ("TIMEOUT", "died", "time_limit", "reached its time limit (01:00:00)"),
        ("DEADLINE", "died", "time_limit", "reached its deadline"),
        ("NODE_FAIL", "died", "node_lost", "lost a node: node2"),
        ("PREEMPTED", "interrupted", "preempted", "was preempted"),
        ("OUT_OF_MEMORY", "died", "host_oom", "more memory than allocated"),
        ("BOOT_FAIL", "could_not_run", "launch_failed", "could not boot"),
    ],
)
def test_what_slurm_did_to_a_job_explains_its_end(state: str, reason: str, fault: str, says: str) -> None:
    job = Job(state=state, exit_code="0:15", nodes="node[1-3]", time_limit="01:00:00", by="1000")
    found = explain(Ending(reason="interrupted", faults=(STOPPED, DIED)), 12, job, begun=True, down="node2")
    assert (found.reason, found.faults[0].fault) == (reason, fault)
    assert says in found.faults[0].text
    assert f"job 12: {state}, exit code 0:15" in found.faults[0].text
    assert [victim.fault for victim in found.faults[1:]] == ["peer_stopped", "peer_stopped"]


@pytest.mark.parametrize(
    ("reason", "exit_code", "state"),  # as Slurm 22.05 reports them while an epilog runs
    [
        ("None", "0:0", "COMPLETED"),
        ("None", "0:15", "CANCELLED"),
        ("NonZeroExitCode", "3:0", "FAILED"),
        ("TimeLimit", "0:15", "TIMEOUT"),
    ],
)
def test_a_job_whose_nodes_are_being_cleared_ended_as_its_reason_tells(reason: str, exit_code: str, state: str) -> None:
    assert settled(Job(state="COMPLETING", reason=reason, exit_code=exit_code)).state == state


def test_a_run_that_is_complete_stays_so() -> None:
    done = Ending(reason="completed", exit_code=0)
    assert all(explain(done, 12, Job(state=state), begun=True) is done for state in STATES)


def test_a_job_that_failed_repeats_what_its_process_did() -> None:
    for ending in (Ending(reason="died", exit_code=137, faults=(DIED,)), Ending(reason="interrupted")):
        assert explain(ending, 12, Job(state="FAILED", exit_code="1:0"), begun=True) is ending


@pytest.mark.parametrize(
    ("exit_code", "says"),
    [
        ("69:0", "cannot see the run directory /runs/1"),
        ("0:53", "cannot see the run directory /runs/1"),
        ("127:0", "its last lines: python3: not found"),
    ],
)
def test_a_job_that_failed_without_a_process_could_not_run(exit_code: str, says: str) -> None:
    found = explain(
        Ending(reason="died", faults=(LOST,)), 12, Job(state="FAILED", exit_code=exit_code),
        begun=False, output="python3: not found", root="/runs/1",
    )  # fmt: skip
    assert (found.reason, found.faults[0].fault) == ("could_not_run", "start_failed")
    assert says in found.faults[0].text


def test_every_state_means_something_that_is_known() -> None:
    assert {each.phase for each in STATES.values()} == {"waiting", "running", "over"}
    assert {each.fault for each in STATES.values()} - {""} <= set(KINDS)
    assert meaning(None).phase == "waiting"
    assert meaning(Job(state="SOMETHING_NEW")).phase == "running"
