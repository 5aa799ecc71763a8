"""Retries after infrastructure failures: what an attempt left is set aside, and the hosts to blame are excluded.

`attempts/N` of a run directory holds what attempt N left, and can be judged and reported like a run directory. Logs and
records of the nodes are there; checkpoints stay where the next attempt finds them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.errors import LaunchError, SeatrialError
from seatrial.events import Fault, RunEnded, Writer
from seatrial.launch.ending import LAUNCHER
from seatrial.launch.launcher import STOP
from seatrial.plan import Plan, Site
from seatrial.report.gather import RunReport
from seatrial.runs.directory import ATTEMPTS, EVIDENCE, INPUTS
from seatrial.runs.files import write_json, write_text
from seatrial.runs.mirror import shortage
from seatrial.runs.status import BETWEEN, STATUS_FILE, UNDECIDED, read_status, write_status
from seatrial.spec import RunSpec
from seatrial.verdict import Verdict

_BROKEN = ("died", "no_progress", "could_not_run")
_TAKEN = ("preempted", "evicted")  # kinds of what interrupts a run that nobody has asked to stop
_OF_A_NODE = ("native", "maxtext")  # engines of which a process is a rank, and not a launcher of many


class RetryDecision(NamedTuple):
    """If there is another attempt (`retry`), why, and the hosts that it excludes."""

    retry: bool
    reason: str
    exclude: tuple[str, ...] = ()


def decide_retry(report: RunReport, verdict: Verdict, run_dir: Path, plan: Plan, site: Site | None) -> RetryDecision:
    """The decision on a judged run: another attempt is worth it only after infrastructure failures."""
    if (run_dir / STOP).exists():
        return RetryDecision(False, "no retry: it was asked to stop")
    diagnosis = report.metrics.completion.diagnosis if report.metrics else None
    broke = diagnosis and (verdict.outcome in _BROKEN or diagnosis.kind in _TAKEN)
    if diagnosis is None or not broke:
        return RetryDecision(False, f"no retry: nothing broke ({verdict.outcome})")
    if diagnosis.retry == "never":
        return RetryDecision(False, f"no retry, because it would end the same way: {diagnosis.sentence}")
    exclude = _hosts_to_exclude(diagnosis.exclude, plan)
    without = f" without {', '.join(exclude)}" if exclude else ""
    left = len(site.cluster.hosts) - len(exclude) if site and plan.on == "ssh" else len(plan.hosts)
    if left < len(plan.hosts):
        return RetryDecision(False, f"no retry{without}: {left} hosts are left, and it needs {len(plan.hosts)}")
    return RetryDecision(True, f"retry{without}: {diagnosis.sentence}", exclude)


def _hosts_to_exclude(names: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """The plan's hosts that a diagnosis names, by name, address or rank."""
    hosts = {name: host.name for host in plan.hosts for name in (host.name, host.address)}
    if plan.engine in _OF_A_NODE:
        hosts |= {f"rank {process.rank}": host.name for host, own in plan.hosts.items() for process in own}
    return tuple(dict.fromkeys(hosts[name] for name in names if name in hosts))


@contextmanager
def beginning(run_dir: Path) -> Iterator[None]:
    """Inside, an attempt is begun; one of which nothing could be started is recorded as that, with the reason.

    Nothing is recorded before the run directory is ours.

    Raises LaunchError where a disk is full or the terminal is gone.
    """
    try:
        yield
    except OSError as error:
        why = shortage(error, run_dir) if run_dir.exists() else str(error)
        is_begun = _status(run_dir).get("state", "starting") not in BETWEEN
        failure = LaunchError(f"{'the run is no longer followed' if is_begun else 'nothing was started'}: {why}")
        _record_unbegun(run_dir, failure)
        raise failure from error
    except (SeatrialError, KeyboardInterrupt) as error:
        _record_unbegun(run_dir, error)
        raise


def _status(run_dir: Path) -> dict[str, Any]:
    try:
        return read_status(run_dir)
    except SeatrialError:
        return {}


def _record_unbegun(run_dir: Path, error: BaseException) -> None:
    status = _status(run_dir)
    if status.get("state") not in BETWEEN or status.get("launcher_pid") != os.getpid():
        return
    reason = "could_not_run" if isinstance(error, SeatrialError) else "interrupted"
    with suppress(OSError):  # the disk may be full
        with closing(Writer(run_dir / "events-launcher.jsonl")) as writer:
            if reason == "could_not_run":
                text = error.reason if isinstance(error, LaunchError) else str(error)
                writer.write(Fault(process=LAUNCHER, fault="start_failed", text=" ".join(text.split())))
            writer.write(RunEnded(process=LAUNCHER, reason=reason))
        ended = {"state": "ended", "reason": reason, "heartbeat": time.time()}
        write_json(run_dir / STATUS_FILE, status | ended)
        mark_decided(run_dir)


def mark_undecided(run_dir: Path) -> None:
    """Announces that this process may retry the run when it ends."""
    write_text(run_dir / UNDECIDED, str(os.getpid()), below=run_dir)


def mark_decided(run_dir: Path) -> None:
    """Announces that the run will not be retried any more."""
    (run_dir / UNDECIDED).unlink(missing_ok=True)


def archive_attempt(run_dir: Path, spec: RunSpec, number: int) -> None:
    """Moves what an attempt has left to where the next one does not touch it."""
    kept = run_dir / ATTEMPTS / str(number)
    kept.mkdir(parents=True)
    for path in (path for pattern in INPUTS for path in run_dir.glob(pattern)):
        shutil.copy(path, kept / path.name)  # with its mode: a configuration may be for its owner only
    write_status(run_dir, spec, "retrying")
    mark_decided(run_dir)
    for path in (path for pattern in EVIDENCE for path in run_dir.glob(pattern)):
        path.rename(kept / path.name)
    (run_dir / "launch").mkdir()
