"""`seatrial preflight`, and what `run` does first: can these hosts run it? Asks, judges, shows what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.engines import engine as engine_called
from seatrial.errors import LaunchError, Problem
from seatrial.launch.preflight.answers import Node
from seatrial.launch.preflight.checks import AREAS, judge
from seatrial.launch.preflight.needs import Needs, needs_of
from seatrial.launch.preflight.probing import examine
from seatrial.launch.session import Session
from seatrial.plan import Plan, Site
from seatrial.report.problems import inert, render_text, warn
from seatrial.runs.files import write_json
from seatrial.spec import RunSpec

EVIDENCE = "launch/preflight.json"
MAX_ROWS = 16  # of the table; of more hosts, only those of which there is something to say
MAX_RECORDED = 8  # problems, of a run that is not started because of them
_CELLS = {"error": "ERROR", "warning": "warn", "info": "note"}


class Looked(NamedTuple):
    """What was asked for, what the hosts told, and what is to be said of it: (area, finding)."""

    needs: Needs
    nodes: list[Node]
    found: list[tuple[str, Problem]]

    @property
    def problems(self) -> list[Problem]:
        return [problem for _, problem in self.found]

    @property
    def ready(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)

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
    spec: RunSpec | None, site: Site, *, transport: str, engine: str, rehearsing: bool, as_json: bool
) -> tuple[str, bool]:
    """What there is to say of all hosts of a site, and whether a run of `spec` could be started on each of them."""
    hosts = site.cluster.hosts
    needs, left = needs_of(spec, site, hosts=hosts, engine=engine, rehearsing=rehearsing), not_asked(spec, site, engine)
    looked = look(site, needs, transport)
    if as_json:
        return json.dumps({**looked.as_dict(), "not_asked": left}, indent=1), looked.ready
    return "\n\n".join([shown(looked), *(f"not asked: {each}" for each in left)]), looked.ready


def not_asked(spec: RunSpec | None, site: Site, engine: str) -> list[str]:
    """What nothing was asked of, though a run would need it."""
    trains, left = engine_called(engine), []
    if spec is None:
        of_it = "devices, network cards, data, checkpoints, the image"
        left.append(f"{of_it}: no configuration is given that says what they are to be")
    if not trains.NEEDS_JAX_HERE:
        where = "in the image" if site.runtime else "on the hosts"
        left.append(f"whether {trains.TITLE} is there {where}")
    return left


def before_run(plan: Plan, site: Site, run_dir: Path, *, transport: str) -> None:
    """Looks at the hosts of a plan, and keeps what they told. Raises LaunchError where they cannot run it."""
    rehearsing = bool(plan.rehearsal and not plan.rehearsal.collapsed)
    needs = needs_of(plan.spec, site, hosts=list(plan.hosts), engine=plan.engine, rehearsing=rehearsing)
    looked = look(site, needs, transport)
    write_json(run_dir / EVIDENCE, looked.as_dict())
    if not looked.ready:
        hint = "nothing was started; --exclude HOST leaves a host out, --no-preflight does not look"
        errors = [problem for problem in looked.problems if problem.severity == "error"]
        named = [f"{problem.path}: {problem.why}" for problem in errors[:MAX_RECORDED]]
        more = [f"{len(errors) - len(named)} more"] if len(errors) > len(named) else []
        raise LaunchError(
            f"not all hosts can run it\n\n{render_text(errors)}\n\n{hint}",
            f"not all hosts can run it: {'; '.join([*named, *more])}",
        )
    warn(looked.problems)


def look(site: Site, needs: Needs, transport: str) -> Looked:
    """Asks the hosts, and judges their answers."""
    session = Session(site.cluster, transport=transport)
    try:
        nodes = examine(session, needs)
    finally:
        session.close()
    return Looked(needs, nodes, judge(needs, nodes))


def shown(looked: Looked) -> str:
    """A table of hosts and areas, the firewalls, and the findings."""
    worst: dict[tuple[str, str], str] = {}
    for area, problem in sorted(looked.found, key=lambda each: list(_CELLS).index(each[1].severity), reverse=True):
        worst[problem.path, area] = problem.severity
    told = [node for node in looked.nodes if any(host == node.host.name for host, _ in worst)]
    rows = looked.nodes if len(looked.nodes) <= MAX_ROWS else told
    width = max([len(inert(node.host.name)) for node in rows] + [len("host")])
    lines = [f"{'host':{width}}  {'  '.join(f'{area:7}' for area in AREAS)}".rstrip()]
    for node in rows:
        cells = [_cell(node, area, worst.get((node.host.name, area))) for area in AREAS]
        row = (f"{cell:{max(7, len(area))}}" for cell, area in zip(cells, AREAS, strict=True))
        lines.append(f"{inert(node.host.name):{width}}  {'  '.join(row)}".rstrip())
    if len(rows) < len(looked.nodes):
        lines.append(f"{len(looked.nodes) - len(rows)} more hosts: nothing to say")
    walls = _firewalls(looked.nodes)
    return "\n\n".join(["\n".join(lines), *([walls] if walls else []), render_text(looked.problems)])


def _cell(node: Node, area: str, severity: str | None) -> str:
    if severity:
        return _CELLS[severity]
    return "ok" if node.facts else "-"


def _firewalls(nodes: Sequence[Node]) -> str:
    """What was seen of firewalls, which are not touched: one line for hosts that say the same."""
    alike: dict[str, list[str]] = {}
    for node in nodes:
        walls = (node.facts and node.facts.firewall) or {}
        if walls:
            alike.setdefault("; ".join(f"{name} {state}" for name, state in walls.items()), []).append(node.host.name)
    return "\n".join(
        inert(
            f"firewall: {text} ({len(hosts)} hosts, {hosts[0]} first)"
            if len(hosts) > 1
            else f"firewall: {text} ({hosts[0]})"
        )
        for text, hosts in alike.items()
    )
