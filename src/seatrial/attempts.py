"""Trying again after what was nobody's mistake: the evidence of an attempt is set aside, and its hosts are left out.

`attempts/N` of a run directory holds what attempt N left, and can be judged and reported like a run directory. Logs and
records of the nodes are there; checkpoints stay where the next attempt finds them.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from seatrial.plan import Plan, Site
from seatrial.report.gather import gather
from seatrial.run_directory import ATTEMPTS, EVIDENCE
from seatrial.spec import RunSpec
from seatrial.verdict import Verdict

_BROKEN = ("died", "no_progress", "could_not_run")


class Again(NamedTuple):
    """Whether there is to be another attempt, why, and which hosts it is to leave out."""

    worth_it: bool
    why: str
    exclude: tuple[str, ...] = ()


def again(verdict: Verdict, run_dir: Path, plan: Plan, site: Site | None) -> Again:
    """Whether a run that was judged is worth another attempt: only where machines, and not the run, are to blame."""
    found = gather(run_dir).metrics
    diagnosis = found.completion.diagnosis if found else None
    if verdict.outcome not in _BROKEN or diagnosis is None:
        return Again(False, f"it is not tried again: nothing broke ({verdict.outcome})")
    if diagnosis.retry == "never":
        return Again(False, f"it is not tried again, because it would end the same way: {diagnosis.sentence}")
    hosts = {name: host.name for host in plan.hosts for name in (host.name, host.address)}
    exclude = tuple(hosts[name] for name in diagnosis.exclude if name in hosts)
    without = f" without {', '.join(exclude)}" if exclude else ""
    left = len(site.cluster.hosts) - len(exclude) if site and plan.on == "ssh" else len(plan.hosts)
    if left < len(plan.hosts):
        return Again(False, f"it is not tried again{without}: {left} hosts are left, and it needs {len(plan.hosts)}")
    return Again(True, f"it is tried again{without}: {diagnosis.sentence}", exclude)


def set_aside(run_dir: Path, number: int) -> None:
    """Moves what an attempt has left to where the next one does not touch it."""
    kept = run_dir / ATTEMPTS / str(number)
    kept.mkdir(parents=True)
    for pattern in EVIDENCE:
        for path in run_dir.glob(pattern):
            path.rename(kept / path.name)
    for path in (run_dir / "spec.json", *run_dir.glob("config.*")):
        if path.exists():
            shutil.copyfile(path, kept / path.name)
    (run_dir / "launch").mkdir()


def resumed(spec: RunSpec) -> RunSpec:
    """The spec of an attempt that goes on from the last checkpoint, where it saves any."""
    return replace(spec, checkpoint=replace(spec.checkpoint, resume=spec.checkpoint.enabled))
