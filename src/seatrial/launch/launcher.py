"""The course of a launched run: start an agent on every node, follow them to the end, record what was seen.

Only how an agent is started and asked differs between targets; the `Node`s know that.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from seatrial import events
from seatrial.errors import LaunchError
from seatrial.launch.ending import LAUNCHER
from seatrial.launch.follow import Following, Interrupts, Node, Queue, follow
from seatrial.launch.job import LEASE, Job, Terms, agent_job
from seatrial.launch.progress import Ending, Progress
from seatrial.plan import Plan
from seatrial.recording import read_run
from seatrial.runs.files import touch, write_json, write_text
from seatrial.runs.mirror import shortage
from seatrial.runs.status import STATUS_FILE, new_status

STATUS_SECONDS = 1.0
BLOCK_BYTES = 4096
STOP = "launch/stop"  # exists once somebody has asked the run to stop
Begun = tuple[Sequence[Node], Queue | None]  # the hosts with their agents, and what allots them, if anything does


def launch(
    plan: Plan,
    run_dir: Path,
    *,
    begin: Callable[[Sequence[tuple[str, Job]]], Begun],
    root: PurePath,
    directory: PurePath,
    following: Following,
    leased: bool = False,
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
    hosts = plan.hosts
    for host, processes in hosts.items():
        masked = agent_job(plan, host, processes, at, masked=True)
        write_json(run_dir / "launch" / f"agent-{host.name}.json", masked, below=run_dir)
    jobs = [(host.name, agent_job(plan, host, own, at, masked=False)) for host, own in hosts.items()]
    if (run_dir / STOP).exists():
        following.say("the run was asked to stop before anything was started")
        raise KeyboardInterrupt
    return supervise(
        lambda: begin(jobs), run_dir, following, name=plan.spec.name, planned_steps=plan.spec.step_limit, root=root,
        detached=not leased, stop_file=run_dir / STOP,
    )  # fmt: skip


def supervise(
    begin: Callable[[], Begun],
    run_dir: Path,
    following: Following,
    *,
    name: str,
    planned_steps: int,
    root: PurePath,
    detached: bool,
    stop_file: Path | None = None,
) -> Ending:
    """Follows what `begin` started, or found running, until none of it is left, and records what was seen.

    `root` is the run directory on the hosts. What is `detached` goes on if this fails; the rest, which nobody would
    look after, is stopped. A `stop_file` that appears is an interrupt.

    Raises LaunchError where the run is over and that cannot be written here, or not all that its hosts wrote.
    """
    record = _Record(run_dir, following, StatusFile(run_dir, name=name, planned_steps=planned_steps))
    nodes: Sequence[Node] = ()
    try:
        with Interrupts(detached=detached, stop_file=stop_file).caught() as interrupts:
            nodes, queue = begin()
            ending = follow(
                nodes, planned_steps=planned_steps, deadlines=following.deadlines, interrupts=interrupts,
                on_progress=record.see, queue=queue,
            )  # fmt: skip
            ending = _by_the_trainer(ending, run_dir)
            ending = queue.explained(ending) if queue else ending  # what took the hosts away explains all the rest
        record.say_losses(ending)
    except BaseException:
        if nodes and not detached:  # what is detached goes on
            for node in nodes:
                node.stop(now=True)
            record.interrupted()
        raise
    else:
        record.end(ending, root, detached=detached)
        return ending
    finally:
        record.close()


class _Record:
    """The local files of a run that is followed: its events and its status, and a lease for as long as it is."""

    def __init__(self, run_dir: Path, following: Following, status: StatusFile) -> None:
        self._run_dir, self._following, self._status = run_dir, following, status
        self._writer = events.Writer(run_dir / "events-launcher.jsonl")
        self._lease = Lease(run_dir)
        self._lost_bytes: dict[str, int] = {}  # of logs, by process
        self._uncopied: dict[str, str] = {}

    def see(self, progress: Progress) -> None:
        """Takes in what is known a few times a second."""
        self._uncopied = progress.uncopied
        self._status.write(progress)
        self._lost_bytes |= {
            f"rank {p['rank']} on {host}": p["lost_bytes"] for host, p in progress.processes if p["lost_bytes"]
        }
        self._following.on_progress(progress)

    def say_losses(self, ending: Ending) -> None:
        """Prints which logs are not whole, and which hosts could not be asked to stop."""
        for where, size in self._lost_bytes.items():
            self._following.say(f"{where}: {size:,} bytes of its log are lost, because the disk there was full")
        if ending.left:
            hosts = ", ".join(ending.left)
            self._following.say(f"could not be asked to stop: {hosts}; retry: seatrial stop {self._run_dir}")

    def interrupted(self) -> None:
        """Records a run that was stopped because following it failed."""
        with suppress(OSError):
            self._writer.write(events.RunEnded(process=LAUNCHER, reason="interrupted"))
            self._status.close(Ending(reason="interrupted"))

    def end(self, ending: Ending, root: PurePath, *, detached: bool) -> None:
        """Records how the run ended. Raises LaunchError where that is not possible, or files of hosts are missing."""
        if self._uncopied:
            self._status.leave(self._uncopied)
            why = f"not all that its hosts wrote could be copied here: {next(iter(self._uncopied.values()))}"
            then = f"seatrial attach {self._run_dir}. The hosts keep it in {root}"
            raise LaunchError(f"{_over(ending)}, but it is not judged, because {why}; then: {then}")
        ended = events.RunEnded(process=LAUNCHER, reason=ending.reason, exit_code=ending.exit_code)
        unrecorded: list[events.Event] = [*ending.faults, ended]
        try:
            while unrecorded:
                self._writer.write(unrecorded[0])
                del unrecorded[0]
        except OSError as error:
            why = shortage(error, self._run_dir)
            if detached:  # whoever attaches finds out the same
                self._status.leave({"launcher": why})
            else:
                self._status.close(ending, unrecorded)
            then = f"seatrial {'attach' if detached else 'judge'} {self._run_dir}"
            raise LaunchError(f"{_over(ending)}, but that cannot be recorded: {why}; then: {then}") from error
        self._status.close(ending)

    def close(self) -> None:
        self._lease.end()
        with suppress(OSError):  # said already
            self._writer.close()


class Lease:
    """Touches a file in a thread of its own: it must go on while the terminal blocks, and end with this process."""

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


def _by_the_trainer(ending: Ending, run_dir: Path) -> Ending:
    """The ending, unless the trainer's own events have a better reason: a loss that is not finite, or a signal."""
    if ending.reason != "died":
        return ending
    with suppress(OSError, ValueError):  # a damaged record: the judge will report it
        ended = [event for event in read_run(run_dir).others if isinstance(event, events.RunEnded)]
        for event in ended:
            if event.reason in ("non_finite_loss", "interrupted") and event.exit_code == ending.exit_code:
                return replace(ending, reason=event.reason, faults=())
    return ending


def _over(ending: Ending) -> str:
    """The ending of a run in words, with the first fault."""
    return f"the run is over ({': '.join([ending.reason.replace('_', ' '), *(f.text for f in ending.faults[:1])])})"


class StatusFile:
    """`status.json` of the run: its state, for other processes."""

    def __init__(self, run_dir: Path, *, name: str, planned_steps: int) -> None:
        self._path = run_dir / STATUS_FILE
        self._status = new_status(name, planned_steps, "running")
        self._progress = Progress(planned_steps=planned_steps)
        self._written = 0.0

    def write(self, progress: Progress) -> None:
        """Takes in what is known, and writes it once a second."""
        self._progress = progress
        if time.monotonic() - self._written >= STATUS_SECONDS:
            self._put("stopping" if progress.ending else "running", progress.ending)

    def close(self, ending: Ending, unrecorded: Sequence[events.Event] = ()) -> None:
        """Writes for the last time, with the events that could not be written elsewhere."""
        self._status["left"] = list(ending.left)
        if unrecorded:
            self._status["unrecorded"] = [events.dumps(event) for event in unrecorded]
        self._put("ended", ending)

    def leave(self, uncopied: Mapping[str, str]) -> None:
        """Writes that the run is no longer followed, and why `attach` has to find out how it ended."""
        self._progress.uncopied = dict(uncopied)
        self._put("running", None, heartbeat=0.0)

    def _put(self, state: str, ending: Ending | None, *, heartbeat: float | None = None) -> None:
        self._written = time.monotonic()
        beat = time.time() if heartbeat is None else heartbeat
        self._status |= {"state": state, "reason": ending.reason if ending else None, "heartbeat": beat}
        self._status["last_step"] = self._progress.last_step
        self._status["processes"] = [{"host": host, **process} for host, process in self._progress.processes]
        self._status["uncopied"] = self._progress.uncopied
        if not self._path.parent.is_dir():  # whoever removed it does not want half of it back
            return
        try:
            write_json(self._path, self._status)
        except OSError:  # a full disk must not end a run that can go on
            with suppress(OSError):
                self._write_over()

    def _write_over(self) -> None:
        """Overwrites the last one within its blocks: a full disk has no room for another file."""
        file = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            before, text = os.fstat(file).st_size, (json.dumps(self._status) + "\n").encode()
            if len(text) <= -(-before // BLOCK_BYTES) * BLOCK_BYTES:
                os.pwrite(file, text.ljust(before), 0)  # JSON may end in spaces
        finally:
            os.close(file)
