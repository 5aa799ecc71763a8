"""What a CVS configuration says beside what runs: notes that contradict it, and keys that do nothing."""

from __future__ import annotations

from seatrial.check import contradiction
from seatrial.dialects import coerce
from seatrial.dialects.cvs_keys import KEYS, NODES, find
from seatrial.dialects.cvs_settings import Settings
from seatrial.errors import Problem
from seatrial.spec import RunSpec


def contradictions(settings: Settings, spec: RunSpec) -> list[Problem]:
    """Where the cell's numbers are not those of the model that it is named after."""
    stated = {
        key.to.removeprefix("model."): name
        for name, key in KEYS.items()
        if key.to.startswith("model.") and name in settings.values and not settings.entries[name].is_override
    }
    differing = {f: name for f, name in stated.items() if settings.values[name] != getattr(spec.model, f)}
    why = contradiction(spec.model.name, {name: (f, settings.values[name]) for f, name in differing.items()})
    if why is None:
        return []
    first = settings.entries[next(iter(differing.values()))]
    return [
        first.problem(
            "warning", "architecture-contradicts-name",
            f"{why}; the name decides, as in CVS, where these keys reach no run",
            "correct the numbers or the name; an override (base_emb_dim=…) is obeyed",
        )
    ]  # fmt: skip


def without_effect(settings: Settings, spec: RunSpec) -> list[Problem]:
    """Keys that do nothing, where that may surprise, and notes that say something else than what runs."""
    problems = []
    for name, value in settings.values.items():
        key, entry = find(name), settings.entries[name]
        if key is None or key.to or (key.needs_nodes and NODES not in settings.values):
            continue
        effective = key.effective(spec) if key.effective else None
        if effective is not None and effective != value:
            meaning = "" if entry.text.lower() == str(value).lower() else f" ({value})"
            why = (
                f"it says {entry.text}{meaning}, but what runs is {coerce.text(effective)}; it has no effect: {key.why}"
            )
            problems.append(entry.problem("warning", "contradiction", why, "make it say what runs, or remove it"))
        elif effective is None and value not in key.quiet:
            problems.append(entry.problem("info", "no-effect", f"it has no effect: {key.why}", "nothing to do"))
    return problems
