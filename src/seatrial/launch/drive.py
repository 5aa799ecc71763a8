"""The course of a launched run: start an agent on every node, follow them to the end, record what was seen.

How an agent is started and asked differs from target to target, and is the `Node`s'; all else is here.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from seatrial import events
from seatrial.cluster import Host
from seatrial.command import Secret
from seatrial.errors import LaunchError
from seatrial.launch.conclude import LAUNCHER, Ending, Progress
from seatrial.launch.follow import Following, Interrupts, Node, Queue, follow
from seatrial.node import agent
from seatrial.plan import Plan
from seatrial.runs.copies import shortage
from seatrial.runs.files import touch, write_json, write_text

LEASE = "launch/lease"
STOP = "launch/stop"  # is there once somebody has told the run to end
STATUS_SECONDS = 1.0
BLOCK_BYTES = 4096
OBSERVE_SECONDS = 5.0  # from one look at a node's devices to the next

Job = dict[str, Any]  # what an agent reads


def revealed(environment: Mapping[str, str | Secret]) -> dict[str, str]:
    """Variables as a process gets them, secrets in the open."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in environment.items()}


class Lease:
    """Touches a file from a thread of its own: it must go on while the terminal blocks, and stop when this dies."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._over = threading.Event()
        self._touch()
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while not self._over.wait(1.0):
            with suppress(OSError):
                self._touch()

    def _touch(self) -> None:
        touch(self._run_dir / LEASE, below=self._run_dir)

    def end(self) -> None:
        self._over.set()


def drive(
    plan: Plan,
    run_dir: Path,
    *,
    begin: Callable[[Sequence[tuple[str, Job]]], Sequence[Node]],
    root: PurePath,
    directory: PurePath,
    following: Following,
    leased: bool = False,
    queue: Callable[[], Queue] | None = None,
) -> Ending:
    """Starts a plan's processes, follows them until none is left, and records what the launcher saw.

    `begin` starts the agents, given (host, job) in rank order; `root` is where the run directory is on the nodes, and
    `directory` where the processes are started. Unless they are `leased`, they go on when this process is gone. Writes
    `launch/`, `nodes/`, `status.json` and `events-launcher.jsonl` below `run_dir`.
    """
    for relative, text in plan.files.items():
        write_text(run_dir / relative, text, below=run_dir)
    (run_dir / "launch").mkdir(exist_ok=True)
    deadlines = following.deadlines
    at = Terms(root, directory, deadlines.grace_seconds, deadlines.lease_seconds if leased else None)
    for host in plan.hosts:
        write_json(run_dir / "launch" / f"agent-{host.name}.json", job(plan, host, at, masked=True), below=run_dir)
    jobs = [(host.name, job(plan, host, at, masked=False)) for host in plan.hosts]
    if (run_dir / STOP).exists():
        following.say("it was told to end, and nothing was started")
        raise KeyboardInterrupt
    return accompany(
        lambda: begin(jobs), run_dir, following, name=plan.spec.name, planned_steps=plan.spec.steps, root=root,
        detached=not leased, queue=queue, stop_file=run_dir / STOP,
    )  # fmt: skip


def accompany(
    begin: Callable[[], Sequence[Node]],
    run_dir: Path,
    following: Following,
    *,
    name: str,
    planned_steps: int,
    root: PurePath,
    detached: bool,
    queue: Callable[[], Queue] | None = None,
    stop_file: Path | None = None,
) -> Ending:
    """Follows what `begin` started, or found running, until none of it is left, and records what was seen.

    `queue` is asked for when `begin` is through; `root` is the run directory on the hosts. What is `detached` goes on
    where this ends by a mistake of its own; the rest, which nobody would look after, is stopped. A `stop_file` that
    comes to be is an interrupt.

    Raises LaunchError where the run is over and that cannot be written here, or not all that its hosts wrote.
    """
    writer = events.Writer(run_dir / "events-launcher.jsonl")
    lease = Lease(run_dir)
    state = StatusFile(run_dir, name=name, planned_steps=planned_steps)

    lost: dict[str, int] = {}
    uncopied: dict[str, str] = {}

    def progressed(progress: Progress) -> None:
        nonlocal uncopied
        uncopied = progress.uncopied
        state.write(progress)
        lost.update(
            {f"rank {p['rank']} on {host}": p["lost_bytes"] for host, p in progress.processes if p["lost_bytes"]}
        )
        following.on_progress(progress)

    nodes: Sequence[Node] = ()
    try:
        with Interrupts(detached=detached, stop_file=stop_file).caught() as interrupts:
            nodes, waits = begin(), queue() if queue else None
            ending = follow(
                nodes,
                planned_steps=planned_steps,
                deadlines=following.deadlines,
                interrupts=interrupts,
                on_progress=progressed,
                queue=waits,
            )
            ending = _told_by_the_trainer(ending, run_dir)
            ending = waits.explained(ending) if waits else ending  # what took the hosts away explains all the rest
        for where, size in lost.items():
            following.say(f"{where}: {size:,} bytes of its log are lost, because the disk there was full")
        if ending.left:
            following.say(f"could not be told to end: {', '.join(ending.left)}; try again: seatrial stop {run_dir}")
    except BaseException:
        if nodes and not detached:  # what is detached goes on; that nothing could be started is for others to say
            for node in nodes:
                node.stop(now=True)
            with suppress(OSError):
                writer.write(events.RunEnded(process=LAUNCHER, reason="interrupted"))
                state.close(Ending(reason="interrupted"))
        raise
    else:
        if uncopied:
            state.leave(uncopied)
            why = f"not all that its hosts wrote could be copied here: {next(iter(uncopied.values()))}"
            then = f"seatrial attach {run_dir}. The hosts keep it in {root}"
            raise LaunchError(f"{_over(ending)}, but it is not judged, because {why}; then: {then}")
        end = events.RunEnded(process=LAUNCHER, reason=ending.reason, exit_code=ending.exit_code)
        unrecorded: list[events.Event] = [*ending.faults, end]
        try:
            while unrecorded:
                writer.write(unrecorded[0])
                del unrecorded[0]
        except OSError as error:
            why = shortage(error, run_dir)
            if detached:  # whoever attaches finds out the same
                state.leave({"launcher": why})
            else:
                state.close(ending, unrecorded)
            then = f"seatrial {'attach' if detached else 'judge'} {run_dir}"
            raise LaunchError(f"{_over(ending)}, but that cannot be recorded: {why}; then: {then}") from error
        state.close(ending)
        return ending
    finally:
        lease.end()
        with suppress(OSError):  # said already
            writer.close()


def _over(ending: Ending) -> str:
    """How a run ended, in the words of what is blamed."""
    return f"the run is over ({': '.join([ending.reason.replace('_', ' '), *(f.text for f in ending.faults[:1])])})"


class Terms(NamedTuple):
    """What all agents of a run are told alike."""

    root: PurePath  # the run directory on the nodes
    directory: PurePath  # where the processes are started
    grace_seconds: float
    lease_seconds: float | None


def job(plan: Plan, host: Host, at: Terms, *, masked: bool) -> Job:
    """The agent's job for one host; `masked` shows secrets as ***, for the copy that is kept."""
    return {
        "v": agent.VERSION,
        "run": plan.spec.name,
        "directory": str(at.root / "nodes" / host.name),
        "processes": [
            {
                "rank": process.rank,
                "argv": list(process.command.argv),
                "environment": {name: str(value) for name, value in process.command.environment.items()}
                if masked
                else revealed(process.command.environment),
                "stdin": process.command.stdin and (str if masked else Secret.reveal)(process.command.stdin),
                "wake": [list(argv) for argv in process.command.wake],
                "after": [list(argv) for argv in process.command.after],
                "cwd": str(at.directory),
                "log": str(at.root / process.log),
            }
            for process in plan.hosts[host]
        ],
        "step_pattern": plan.step_pattern,
        "first_step": plan.first_step,
        "grace_seconds": at.grace_seconds,
        "lease_seconds": at.lease_seconds,
        "lease_file": str(at.root / LEASE),
        "observe_seconds": OBSERVE_SECONDS,
    }


def _told_by_the_trainer(ending: Ending, run_dir: Path) -> Ending:
    """A process that stopped because its loss was not finite, or on a signal, did not die: its own events say so."""
    if ending.reason != "died":
        return ending
    with suppress(OSError, ValueError):  # a damaged record: whoever judges it will say so
        ended = [event for event in events.read_run(run_dir) if isinstance(event, events.RunEnded)]
        for event in ended:
            if event.reason in ("non_finite_loss", "interrupted") and event.exit_code == ending.exit_code:
                return Ending(reason=event.reason, exit_code=ending.exit_code)
    return ending


class StatusFile:
    """`status.json` of the run: how it stands, for whoever looks in from outside."""

    def __init__(self, run_dir: Path, *, name: str, planned_steps: int) -> None:
        self._path = run_dir / "status.json"
        self._status: dict[str, Any] = {
            "v": 1,
            "run": name,
            "planned_steps": planned_steps,
            "launcher_pid": os.getpid(),
            "started": time.time(),
        }
        self._progress = Progress(planned_steps=planned_steps)
        self._written = 0.0

    def write(self, progress: Progress) -> None:
        """Takes in what is known, and writes it once a second."""
        self._progress = progress
        if time.monotonic() - self._written >= STATUS_SECONDS:
            self._put("stopping" if progress.ending else "running", progress.ending)

    def close(self, ending: Ending, unrecorded: Sequence[events.Event] = ()) -> None:
        """Writes for the last time; here may be room for events that could not be written."""
        self._status["left"] = list(ending.left)
        if unrecorded:
            self._status["unrecorded"] = [events.dumps(event) for event in unrecorded]
        self._put("ended", ending)

    def leave(self, uncopied: Mapping[str, str]) -> None:
        """Writes that nobody follows the run any more, and why somebody who attaches is to find out how it ended."""
        self._progress.uncopied = dict(uncopied)
        self._put("running", None, heartbeat=0.0)

    def _put(self, state: str, ending: Ending | None, *, heartbeat: float | None = None) -> None:
        self._written = time.monotonic()
        beat = time.time() if heartbeat is None else heartbeat
        self._status |= {"state": state, "reason": ending.reason if ending else None, "heartbeat": beat}
        self._status["last_step"] = self._progress.last_step
        self._status["processes"] = [{"host": host, **process} for host, process in self._progress.processes]
        self._status["uncopied"] = self._progress.uncopied
        if not self._path.parent.is_dir():  # who has removed it does not want half of it back
            return
        try:
            write_json(self._path, self._status)
        except OSError:  # a full disk must not end a run that can go on
            with suppress(OSError):
                self._write_over()

    def _write_over(self) -> None:
        """Writes where the last one stands, as far as its blocks go: a full disk has no room for another file."""
        file = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            before, text = os.fstat(file).st_size, (json.dumps(self._status) + "\n").encode()
            if len(text) <= -(-before // BLOCK_BYTES) * BLOCK_BYTES:
                os.pwrite(file, text.ljust(before), 0)  # JSON may end in spaces
        finally:
            os.close(file)
