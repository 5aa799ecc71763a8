"""The differences between two runs: versions, environment, flags, nodes, and the values of their specs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.command import MASK, is_secret, masked
from seatrial.history.loaded import LoadedRun
from seatrial.plan import leaves, without_secrets

_ABSENT = object()
# Facts that a run measures; they differ each time and are nobody's setting.
_MEASURED = {"phases", "compile_seconds", "flops_convention"}
_ABOUT_THE_LOG = {"source", "clock"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that two runs do not share; None: the run does not have it. Secrets are masked."""

    section: str
    path: str
    a: str | None
    b: str | None


def differences(a: LoadedRun, b: LoadedRun) -> tuple[Setting, ...]:
    """Every setting that differs, by section."""
    found = []
    for section, read in SECTIONS.items():
        one, other = read(a), read(b)
        found += [
            Setting(section=section, path=path, a=_shown(section, path, one), b=_shown(section, path, other))
            for path in (*one, *(path for path in other if path not in one))
            if one.get(path, _ABSENT) != other.get(path, _ABSENT)
        ]
    return tuple(found)


def _facts(run: LoadedRun) -> Mapping[str, Any]:
    return run.started.facts if run.started else {}


def _versions(run: LoadedRun) -> dict[str, Any]:
    versions = _facts(run).get("versions")
    return leaves(versions) if isinstance(versions, Mapping) else {}


def _environment(run: LoadedRun) -> dict[str, Any]:
    """The variables of the processes, as planned, without what differs between the processes of one run."""
    processes = run.plan.get("processes")
    listed = [process for process in processes if isinstance(process, dict)] if isinstance(processes, list) else []
    planned = [found for process in listed if isinstance(found := process.get("environment"), dict)]
    shared = {
        name: value
        for name, value in (planned[0] if planned else {}).items()
        if name != "XLA_FLAGS" and all(other.get(name) == value for other in planned)
    }
    spec = run.spec
    asked = dict(spec.execution.environment) if spec else {}
    return asked | shared | (dict(spec.container.environment) if spec and spec.container else {})


def _flags(run: LoadedRun) -> dict[str, Any]:
    """The flags for XLA that the first process used, the shell's among them; else the configuration's."""
    used = _facts(run).get("xla_flags")
    if isinstance(used, Mapping):
        return dict(used)
    return dict(run.spec.execution.xla_flags) if run.spec else {}


def _nodes(run: LoadedRun) -> dict[str, Any]:
    performance = run.metrics.performance
    return {
        "hosts": list(run.hosts),
        "device": performance.device,
        "devices": performance.num_devices,
        "engine": run.plan.get("engine"),
        "on": run.plan.get("on"),
        "rehearsal": bool(run.plan.get("rehearsal")),
    }


def _spec(run: LoadedRun) -> dict[str, Any]:
    if run.spec is None:
        return {}
    data = without_secrets(run.spec)
    elsewhere = {"environment", "xla_flags"}
    data["execution"] = {key: value for key, value in data["execution"].items() if key not in elsewhere}
    if data["container"]:
        data["container"] = {key: value for key, value in data["container"].items() if key not in elsewhere}
    return leaves(data)


def _reported(run: LoadedRun) -> dict[str, Any]:
    """The facts that the first process reported about itself, without versions, flags and what it measured."""
    skipped = _MEASURED | _ABOUT_THE_LOG | {"versions", "xla_flags"}
    facts = {key: value for key, value in _facts(run).items() if key not in skipped}
    return leaves(facts)


SECTIONS: dict[str, Callable[[LoadedRun], dict[str, Any]]] = {
    "versions": _versions,
    "environment": _environment,
    "flags": _flags,
    "nodes": _nodes,
    "spec": _spec,
    "facts": _reported,
}


def _shown(section: str, path: str, values: Mapping[str, Any]) -> str | None:
    """A value as text. A variable whose name says that it is a secret is masked, and so is a secret within a text."""
    if path not in values:
        return None
    value = values[path]
    name = path.rpartition(".")[2]
    is_variable = section == "environment" or "environment." in path or name.isupper()
    if is_variable and is_secret(path):
        return MASK
    if value is None:
        return "not set"
    return masked(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
