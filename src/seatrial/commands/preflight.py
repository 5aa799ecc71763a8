"""`seatrial preflight`, and the same before a run: ask the hosts, judge their answers, show the findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.commands.check import ConfigArguments, read_valid, spec_of
from seatrial.console import Say, inert, table, warn
from seatrial.engines import engine as engine_called
from seatrial.errors import InputError, LaunchError, Problem
from seatrial.launch.preflight.answers import Node
from seatrial.launch.preflight.checks import AREAS, judge
from seatrial.launch.preflight.needs import Needs, needs_of
from seatrial.launch.preflight.probing import examine
from seatrial.launch.session import Session
from seatrial.launch.targets import checked, on_hosts, target
from seatrial.launch.where import Where
from seatrial.plan import Plan, Site
from seatrial.report.problems import has_errors, render_text
from seatrial.runs.files import write_json
from seatrial.spec import RunSpec

EVIDENCE = "launch/preflight.json"
MAX_ROWS = 16  # of the table; of more hosts, only those of which there is something to say
MAX_RECORDED = 8  # problems, of a run that is not started because of them
_CELLS = {"error": "ERROR", "warning": "warn", "info": "note"}


class PreflightResult(NamedTuple):
    """The needs of a run, the hosts' answers, and the findings by area."""

    needs: Needs
    nodes: list[Node]
    found: list[tuple[str, Problem]]

    @property
    def problems(self) -> list[Problem]:
        return [problem for _, problem in self.found]

    @property
    def ready(self) -> bool:
        return not has_errors(self.problems)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "v": 1,
            "ready": self.ready,
            "problems": [{"area": area, **problem.as_dict()} for area, problem in self.found],
            "needs": asdict(self.needs),
            "hosts": [{**asdict(node), "host": node.host.name} for node in self.nodes],
        }


def preflight(
    config: ConfigArguments | None, where: Where, *, engine: str, rehearse: bool, as_json: bool
) -> tuple[str, bool]:
    """The findings on all hosts of a cluster file, and whether each of them can run the configuration, or any.

    Raises InputError where there are no hosts.
    """
    resolved = read_valid(config, action="plan", engine=engine) if config else None
    spec, where = spec_of(resolved) if resolved else None, on_hosts(where)
    if not target(where.on).KNOWS_ITS_HOSTS:
        there = "under Slurm" if where.on == "slurm" else f"on {where.on.capitalize()}"
        why = f"{there} there is no preflight: it allots hosts only when a job begins"
        rehearsal = f"`seatrial run CONFIG --on {where.on} --rehearse`"
        fix = f"submit a rehearsal ({rehearsal}), or use SSH: --on ssh --cluster FILE"
        raise InputError.single("slurm-hosts", "--on", why, fix)
    site = target(checked(where).on).site(where, spec, Path("preflight"))
    assert site is not None
    needs = needs_of(spec, site, hosts=site.cluster.hosts, engine=engine, rehearsing=rehearse)
    result, skipped = ask_hosts(site, needs, where.ssh), not_asked(spec, site, engine)
    if as_json:
        return json.dumps({**result.as_dict(), "not_asked": skipped}, indent=1), result.ready
    return "\n\n".join([shown(result), *(f"not checked: {each}" for each in skipped)]), result.ready


def not_asked(spec: RunSpec | None, site: Site, engine: str) -> list[str]:
    """The needs of a run that preflight cannot check."""
    trains, skipped = engine_called(engine), []
    if spec is None:
        of_it = "devices, network cards, data, checkpoints, the image"
        skipped.append(f"{of_it}: without a configuration, nothing says what they must be")
    if not trains.NEEDS_JAX_HERE:
        skipped.append(f"whether {trains.TITLE} is installed {'in the image' if site.runtime else 'on the hosts'}")
    return skipped


def check_before_run(plan: Plan, site: Site, run_dir: Path, *, transport: str, say: Say | None = None) -> None:
    """Checks the hosts of a plan, and keeps their answers; warnings are printed, or given to `say`.

    Raises LaunchError where they cannot run it.
    """
    rehearsing = bool(plan.rehearsal and not plan.rehearsal.collapsed)
    needs = needs_of(plan.spec, site, hosts=list(plan.hosts), engine=plan.engine, rehearsing=rehearsing)
    result = ask_hosts(site, needs, transport)
    write_json(run_dir / EVIDENCE, result.as_dict())
    if not result.ready:
        hint = "nothing was started; --exclude HOST omits a host, --no-preflight skips these checks"
        errors = [problem for problem in result.problems if problem.severity == "error"]
        named = [f"{problem.path}: {problem.why}" for problem in errors[:MAX_RECORDED]]
        more = [f"{len(errors) - len(named)} more"] if len(errors) > len(named) else []
        raise LaunchError(
            f"not all hosts can run it\n\n{render_text(errors)}\n\n{hint}",
            f"not all hosts can run it: {'; '.join([*named, *more])}",
        )
    warn(result.problems, say)


def ask_hosts(site: Site, needs: Needs, transport: str) -> PreflightResult:
    """Asks the hosts, and judges their answers."""
    session = Session(site.cluster, transport=transport)
    try:
        nodes = examine(session, needs)
    finally:
        session.close()
    return PreflightResult(needs, nodes, judge(needs, nodes))


def shown(result: PreflightResult) -> str:
    """A table of hosts and areas, the firewalls, and the findings."""
    worst: dict[tuple[str, str], str] = {}
    for area, problem in sorted(result.found, key=lambda each: list(_CELLS).index(each[1].severity), reverse=True):
        worst[problem.path, area] = problem.severity
    named = {host for host, _ in worst}
    rows = [node for node in result.nodes if len(result.nodes) <= MAX_ROWS or node.host.name in named]
    cells = [(node.host.name, *(_cell(node, worst.get((node.host.name, area))) for area in AREAS)) for node in rows]
    parts = [table(cells, head=("host", *AREAS), whole=(0,), indent=0)] if cells else []
    if len(rows) < len(result.nodes):
        parts.append(f"{len(result.nodes) - len(rows)} more hosts: no findings")
    return "\n\n".join(["\n".join(parts), *_firewalls(result.nodes), render_text(result.problems)])


def _cell(node: Node, severity: str | None) -> str:
    return _CELLS[severity] if severity else "ok" if node.facts else "-"


def _firewalls(nodes: Sequence[Node]) -> list[str]:
    """A note on the hosts' firewalls, which are not touched: one line for hosts that report the same."""
    alike: dict[str, list[str]] = {}
    for node in nodes:
        walls = (node.facts and node.facts.firewall) or {}
        if walls:
            alike.setdefault("; ".join(f"{name} {state}" for name, state in walls.items()), []).append(node.host.name)
    lines = (
        f"firewall: {text} ({f'{len(hosts)} hosts, {hosts[0]} first' if len(hosts) > 1 else hosts[0]})"
        for text, hosts in alike.items()
    )
    return ["\n".join(map(inert, lines))] if alike else []
