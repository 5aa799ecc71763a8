"""The state of a Slurm job: what Slurm reports, what that means for a run, and asking again.

`scontrol` reports everything about a job until some minutes after its end, `sacct` afterwards, if accounting is on. No
answer from the controller says nothing about the job: what is known stays, and the next question comes later.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import LaunchError
from seatrial.launch.ending import seen_fault, with_victims
from seatrial.launch.progress import Ending
from seatrial.launch.slurm_job import NOT_SHARED, OUTPUT

POLL_SECONDS, SLOW_POLL_SECONDS = 1.0, 10.0  # in the first minute, and later
UNANSWERED_SECONDS = 60.0  # longest pause after questions without an answer
ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 5.0  # after the job's end, for the last writes of its nodes to be visible here
END_SECONDS = 20.0  # for Slurm to report how a run ended whose processes are gone
CLEAR_SECONDS = 60.0
REQUEUE_SECONDS = 600.0  # until Slurm, by itself, declares a node dead and requeues the job
NO_OUTPUT = "0:53"  # the exit code of a job whose output cannot be opened


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as Slurm reports it, in its own words; `exit_code` is CODE:SIGNAL."""

    state: str
    reason: str = ""
    exit_code: str = ""
    nodes: str = ""
    restarts: int = 0
    time_limit: str = ""
    by: str = ""  # who cancelled it, as a user id


@dataclass(frozen=True)
class Meaning:
    """The meaning of a job's state for the run; where it is over by a fault, the run's reason and the fault's kind."""

    phase: str  # waiting, running, over
    reason: str = ""
    fault: str = ""
    says: str = ""


_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING", "SUSPENDED", "STOPPED")
STATES: dict[str, Meaning] = {
    **dict.fromkeys(_WAITING, Meaning("waiting")),
    **dict.fromkeys(_RUNNING, Meaning("running")),
    **dict.fromkeys(("COMPLETED", "FAILED"), Meaning("over")),
    "CANCELLED": Meaning("over", "interrupted", "cancelled", "was cancelled{by}"),
    "REVOKED": Meaning("over", "interrupted", "cancelled", "was revoked: another cluster runs it"),
    "PREEMPTED": Meaning("over", "interrupted", "preempted", "was preempted by another job"),
    "TIMEOUT": Meaning("over", "died", "time_limit", "reached its time limit{limit}"),
    "DEADLINE": Meaning("over", "died", "time_limit", "reached its deadline"),
    "NODE_FAIL": Meaning("over", "died", "node_lost", "lost a node: {down}"),
    "OUT_OF_MEMORY": Meaning("over", "died", "host_oom", "used more memory than allocated"),
    "BOOT_FAIL": Meaning("over", "could_not_run", "launch_failed", "could not boot its nodes"),
    "LAUNCH_FAILED": Meaning("over", "could_not_run", "launch_failed", "could not be launched"),
}
# A state that only a newer Slurm knows ends nothing.
UNKNOWN = Meaning("running")
CLEARING = "COMPLETING"  # the processes are gone, or have been told to go; an epilog may take minutes
_AFTER_CLEARING = {
    "NonZeroExitCode": "FAILED",
    "RaisedSignal": "FAILED",
    "TimeLimit": "TIMEOUT",
    "NodeDown": "NODE_FAIL",
    "OutOfMemory": "OUT_OF_MEMORY",
    "JobLaunchFailure": "LAUNCH_FAILED",
}  # by the reason that Slurm gives meanwhile


def read_scontrol(text: str) -> Job | None:
    """The job in the output of `scontrol --oneliner show job`; None where there is none."""
    found = re.findall(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S*)", text)
    fields = dict(reversed(found))  # of a name that comes twice, the first counts
    if "JobState" not in fields:
        return None
    return Job(
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_code=fields.get("ExitCode", ""),
        nodes=fields.get("NodeList", "").replace("(null)", ""),
        restarts=int(fields.get("Restarts", "0") or 0),
        time_limit=fields.get("TimeLimit", ""),
    )


SACCT = ("--noheader", "--parsable2", "--allocations", "--format=State,ExitCode,NodeList,Timelimit")


def read_sacct(text: str) -> Job | None:
    """The job in sacct's output, in the format of `SACCT`; "CANCELLED by 1000" names the user."""
    words = text.splitlines()[-1].split("|") if text.strip() else []
    if len(words) != 4 or not words[0]:
        return None
    state, _, by = words[0].partition(" by ")
    return Job(state=state, exit_code=words[1], nodes=words[2], time_limit=words[3], by=by)


def meaning(job: Job | None) -> Meaning:
    """Of a job's state; an unknown job is still waiting."""
    return STATES.get(job.state, UNKNOWN) if job else STATES["PENDING"]


def settled(job: Job) -> Job:
    """A job as it will be when its nodes are clear."""
    if job.state != CLEARING:
        return job
    state = _AFTER_CLEARING.get(job.reason) or ("COMPLETED" if job.exit_code == "0:0" else "CANCELLED")
    return replace(job, state=state)


def explain(
    ending: Ending, number: int, job: Job, *, begun: bool, output: str = "", down: str = "", root: str = ""
) -> Ending:
    """The ending of the run, by its agents (`ending`) and by what Slurm reports of its job.

    `begun`: any agent has reported. `output` are the last lines that the job itself printed, `down` the nodes that
    Slurm has lost, `root` the run's directory. What Slurm did to the job explains what the processes did; that the job
    failed only repeats it.
    """
    means = meaning(job)
    if ending.reason == "completed" or means.phase != "over":
        return ending
    evidence = f"job {number}: {job.state}, exit code {job.exit_code or 'unknown'}"
    if means.fault:
        limit = f" ({job.time_limit})" if job.time_limit else ""
        by = f" by user {job.by}" if job.by else ""
        says = means.says.format(by=by, limit=limit, down=down or f"one of {job.nodes}")
        where = down if means.fault == "node_lost" and down else f"job {number}"
        fault = seen_fault(means.fault, where, f"the job {says} ({evidence})")
        return Ending(reason=means.reason, exit_code=ending.exit_code, faults=with_victims(fault, ending.faults))
    if begun:
        return ending
    if job.exit_code in (NO_OUTPUT, f"{NOT_SHARED}:0"):
        says = f"the nodes cannot see the run directory {root}: it must be on a file system shared with this host"
    else:
        says = "the job ended before it started a process"
    text = f"{says} ({evidence})" + (f"; its last lines: {output}" if output else "")
    fault = seen_fault("start_failed", f"job {number}", text)
    return Ending(reason="could_not_run", exit_code=ending.exit_code, faults=(fault,))


def ask(argv: Sequence[str], seconds: float = ANSWER_SECONDS) -> str | None:
    """The output of one of Slurm's programs; None where there is none, which says nothing about the job."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SCONTROL_"))}
    environment = {**ours, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except (OSError, subprocess.SubprocessError):
        return None
    text = (done.stdout if done.returncode == 0 else done.stderr).decode("utf-8", "replace")
    return text if done.returncode == 0 or "Invalid job id" in text else None


def look(number: int) -> Job | None:
    """A job as Slurm reports it now; None where there is no answer."""
    output = ask(["scontrol", "--oneliner", "show", "job", str(number)])
    if output is None:
        return None
    return read_scontrol(output) or read_sacct(ask(["sacct", f"--jobs={number}", *SACCT]) or "")


def cancel(number: int) -> None:
    """Cancels a job. Raises LaunchError where Slurm does not."""
    try:
        done = subprocess.run(
            ["scancel", str(number)], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"job {number} cannot be cancelled: {error}") from error
    why = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and "Invalid job id" not in why and "already completing or completed" not in why:
        raise LaunchError(f"job {number} cannot be cancelled: {why}")


class Watch:
    """Asks Slurm about a job in a thread of its own, less often as time passes and while there is no answer."""

    def __init__(
        self,
        number: int,
        *,
        run_dir: Path,
        requeues: bool = False,
        deadline_seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.number, self.job = number, look(number)
        self._run_dir, self._requeues, self._deadline, self._say = run_dir, requeues, deadline_seconds, say
        self._began, self._waiting_since = time.monotonic(), time.monotonic()
        self._over_since: float | None = None
        self._deferred: float | None = None
        self._said = ""
        self._cancelled = False
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        unanswered = 0
        while not self._ended.is_set():
            young = time.monotonic() - self._began < 60 or self._cancelled or meaning(self.job).phase == "over"
            pause = POLL_SECONDS if young else SLOW_POLL_SECONDS
            if self._ended.wait(min(UNANSWERED_SECONDS, pause * 2**unanswered)):
                return
            job = look(self.number)
            unanswered = 0 if job else min(unanswered + 1, 6)
            self.job = job or self.job

    # --- what `follow` asks ---

    def waiting(self) -> bool:
        """True if the job has no hosts yet, or none any more. Prints its state when that has changed."""
        phase = meaning(self.job).phase
        state = self.job.state.lower() if self.job else "unknown"
        state += f" ({self.job.reason})" if self.job and phase == "waiting" and self.job.reason != "None" else ""
        state += f" on {self.job.nodes}" if self.job and phase == "running" and self.job.nodes else ""
        if state != self._said:
            self._said = state
            self._say(f"job {self.number}: {state}")
        if phase != "waiting":
            self._waiting_since = time.monotonic()
        return phase == "waiting"

    def refused(self) -> Ending | None:
        """The end of a run whose job has waited for too long."""
        waited = time.monotonic() - self._waiting_since
        if self._deadline is None or waited <= self._deadline or not self.waiting():
            return None
        why = f" ({self.job.reason})" if self.job else ""
        text = f"job {self.number} has waited for {waited:.0f} s{why}; the limit is {self._deadline:.0f} s"
        return Ending(reason="could_not_run", faults=(seen_fault("launch_failed", f"job {self.number}", text),))

    def final(self, ending: Ending) -> bool:
        """True if an ending is the run's: a job that may be requeued goes on after most."""
        if not self._requeues or ending.reason in ("completed", "no_progress") or self.over():
            return True
        self._deferred = self._deferred or time.monotonic()
        if self.waiting():
            self._deferred = None
            return False
        return time.monotonic() - self._deferred > REQUEUE_SECONDS

    def over(self) -> bool:
        """True if the job has ended, and its nodes' last writes have had time to become visible here."""
        if meaning(self.job).phase != "over":
            self._over_since = None
            return False
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() - self._over_since > SETTLE_SECONDS

    def cancel(self) -> None:
        """Cancels the job on our side, unless it is over."""
        if meaning(self.job).phase == "over":
            return
        self._cancelled = True
        try:
            cancel(self.number)
        except LaunchError as error:
            self._say(str(error))

    def explained(self, ending: Ending) -> Ending:
        """The ending with what Slurm knows about it; the job is cancelled if it has not ended by then."""
        ours, is_completed = self._cancelled, ending.reason == "completed"
        self._wait_for_end(END_SECONDS, clear=not is_completed)
        if not (meaning(self.job).phase == "over" or self._clearing() or ours):
            self.cancel()
            self._wait_for_end(CLEAR_SECONDS)
            ours = self._cancelled
        if self.job is None or ours:
            return ending
        job = settled(self.job)
        if job.state == "CANCELLED" and not job.by:  # only sacct knows who, if it is on
            accounted = read_sacct(ask(["sacct", f"--jobs={self.number}", *SACCT], 10) or "")
            job = replace(job, by=accounted.by if accounted else "")
        down = _down(job.nodes) if job.state == "NODE_FAIL" else ""
        begun = any(self._run_dir.glob("nodes/*/status.json"))
        root = str(self._run_dir)
        return explain(ending, self.number, job, begun=begun, output=self._last_lines(), down=down, root=root)

    def close(self) -> None:
        self._ended.set()

    def _clearing(self) -> bool:
        return self.job is not None and self.job.state == CLEARING

    def _wait_for_end(self, seconds: float, *, clear: bool = True) -> None:
        """Waits for the job to be over; without `clear`, its nodes need not be clear yet."""
        deadline = time.monotonic() + seconds
        while not (meaning(self.job).phase == "over" or (self._clearing() and not clear)):
            if time.monotonic() >= deadline:
                return
            self.job = look(self.number) or self.job
            time.sleep(0.5)

    def _last_lines(self) -> str:
        try:
            text = (self._run_dir / OUTPUT.format(self.number)).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return " | ".join(line.strip() for line in text.splitlines()[-5:] if line.strip())[:500]


def _down(nodes: str) -> str:
    """Those of some nodes that Slurm reports as lost."""
    listing = ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T"], 10) or ""
    lost = [line.split()[0] for line in listing.splitlines() if re.search(r" (down|fail|unknown)|\*$", line)]
    return ", ".join(dict.fromkeys(lost))
