"""`seatrial plan`: every value with its origin, the estimates, each process's command, its files; or one value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.check.mesh import mesh_is_sound
from seatrial.commands.check import read, spec_of
from seatrial.commands.compiled_step import compile_step, kept_step, named_target, target_of, why_not
from seatrial.commands.device_profile import profile_for
from seatrial.commands.planned import action_of, planned
from seatrial.commands.run import RunRequest
from seatrial.console import UNLIMITED, inert, show_value, table
from seatrial.dialects.explain import explain as explain_value
from seatrial.errors import InputError
from seatrial.estimate.compiled import CPU, Compiled
from seatrial.estimate.memory import OWN, decided
from seatrial.plan import Plan, leaves, without_secrets
from seatrial.report import compiled, plan_summary
from seatrial.report.expected import expected_lines
from seatrial.spec import Resolved, RunSpec


def describe(request: RunRequest, *, as_json: bool, compile_for: str | None = None, shows_all: bool = False) -> str:
    """Describes what `run` would start: on one screen, or with `shows_all` value by value, command by command.

    Where this machine lacks what the run asks for, a note says so instead of the commands.

    `compile_for`: the step is compiled, too, for this device ("": the run's own). Raises LaunchError where that fails.
    """
    made = planned(request)
    resolved, plan, spec = made.asked, made.plan, spec_of(made.asked)
    step = None if compile_for is None else _compiled(request, spec, plan, compile_for)
    if as_json:
        return json.dumps(made.as_dict() | ({} if step is None else {"compiled": step.as_dict()}), indent=1)
    kept = _kept(request, spec)
    if not shows_all:
        short = plan_summary.summary(spec, plan, made.missing, request.engine, profile_for(spec), kept)
        parts = [short, *([step.text()] if step else [])]
        return "\n\n".join([*parts, "All values with their origins, commands, files: add --all"])
    found = leaves(without_secrets(spec))
    values = [(path, show_value(value), _origin(resolved, path)) for path, value in found.items()]
    sections = ["# The run, value by value", _table(values)]
    sections += ["# Estimates", _table(expected_lines(spec, request.engine, profile_for(spec), compiled=kept))]
    sections += [step.text()] if step else []
    sections += _described(plan, made.files) if plan else [f"note: {inert(made.missing)}"]
    return "\n\n".join(sections)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A run's compiled step, or why there is none."""

    spec: RunSpec
    found: Compiled | None
    why: str = ""

    def as_dict(self) -> dict[str, object]:
        return compiled.as_dict(self.found, self.spec) if self.found else {"target": None, "why": self.why}

    def text(self) -> str:
        return compiled.render(self.found, self.spec) if self.found else f"# Compiled\n\nnote: {inert(self.why)}"


def _compiled(request: RunRequest, spec: RunSpec, plan: Plan | None, device: str) -> _Step:
    """The step of what would run, compiled for a device ("": the run's own; in a rehearsal, this machine's CPU)."""
    if request.engine != OWN:
        why = f"it compiles the step of Seatrial's own trainer, not of {request.engine}"
        raise InputError.single("option-engine", "--compile", why, "omit it, or use --engine native")
    if plan and plan.rehearsal:
        spec = plan.spec
    target = named_target(device) if device else CPU if request.rehearse else target_of(spec)
    if target is None:
        return _Step(spec=spec, found=None, why=why_not(spec))
    if target != CPU:
        spec = replace(spec, topology=replace(spec.topology, device=target))
    spec = decided(spec, OWN)
    return _Step(spec=spec, found=compile_step(spec, target))


def _kept(request: RunRequest, spec: RunSpec) -> Compiled | None:
    """The step as it was compiled for the run's own device earlier."""
    target = target_of(spec) if request.engine == OWN and not request.rehearse else None
    return kept_step(decided(spec, OWN), target) if target and mesh_is_sound(spec) else None


def explain(request: RunRequest, key: str, *, as_json: bool) -> str:
    """The origin of a value and its name in each dialect. Raises InputError for a key that means none."""
    resolved = read(request.config, action=action_of(request))
    spec_of(resolved)
    found = explain_value(resolved, key)
    if as_json:
        return json.dumps({"v": 1, "key": key, "values": [each.as_dict() for each in found]}, indent=1)
    return "\n\n".join("\n".join(inert(line) for line in each.lines()) for each in found)


def _described(plan: Plan, files: Mapping[str, str]) -> list[str]:
    """The changes of a rehearsal, each process's command, the files, and notes."""
    sections = []
    if plan.rehearsal:
        reduced = plan.rehearsal
        changes = [(c.path, f"{show_value(c.original)} → {show_value(c.rehearsed)}", c.why) for c in reduced.changes]
        sections += [f"# Changes by the {'collapse' if reduced.collapsed else 'rehearsal'}", _table(changes)]
    for process in plan.processes:
        sections += [f"# Process {process.rank} on {process.host.name}", process.command.shell()]
    for path, text in files.items():
        if not path.endswith(".json"):  # JSON is the spec above
            lines = "\n".join(map(inert, text.rstrip("\n").split("\n")))
            sections.append(f"# File {path}\n\n{lines}")
    return [*sections, *(f"note: {inert(each)}" for each in plan.notes)]


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    """A line per value, for grep, however long its origin is."""
    return table([(name, f"= {value}", why) for name, value, why in rows], indent=0, columns=UNLIMITED, widest=48)


def _origin(resolved: Resolved, path: str) -> str:
    origin = resolved.origin(path)
    place: str = origin.kind
    if origin.kind == "file":
        mark = origin.mark
        place = f"{Path(mark.file).name}:{mark.line}:{mark.column} {origin.key}" if mark else origin.key
    elif origin.kind == "override":
        place = f"override {origin.key}"
    return f"{place}; {origin.note}" if origin.note else place
