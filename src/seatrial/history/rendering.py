"""A comparison in words: its parts, and all of it as text, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from seatrial.console import inert, table
from seatrial.events import encode
from seatrial.history.compare import LEVEL, Change, Comparison, Losses
from seatrial.history.gate import Gate, names_of
from seatrial.history.loaded import LoadedRun
from seatrial.report import markdown
from seatrial.spec import METRICS
from seatrial.verdict import show_beside

WORDS = {
    "better": "better", "worse": "worse", "no_clear_difference": "no clear difference", "inconclusive": "inconclusive",
    "not_compared": "",
}  # fmt: skip
HEAD = ("Metric", "A", "B", f"Change [{LEVEL:.0%}]", "")
_SETTINGS = ("What differs", "", "A", "B")
_NOTHING_ELSE = "Nothing else is known to differ."
MOST_SETTINGS = 200
VALUE_CHARACTERS = 100


def as_text(comparison: Comparison, gate: Gate | None) -> str:
    rows, more = settings(comparison)
    changes = differences(comparison)
    blocks = [
        "\n".join(inert(f"{name}  {text}") for name, text in runs_told(comparison)),
        "\n".join(map(inert, (comparison.sentence, *notes(comparison)))),
        table(changes, head=HEAD, right=(1, 2), indent=0),
        inert(losses_told(comparison.losses)),
        "\n".join([table(rows, head=_SETTINGS, indent=0), *more]) if rows else _NOTHING_ELSE,
        *([inert(gate_told(gate))] if gate else []),
    ]
    return "\n\n".join(blocks)


def as_markdown(comparison: Comparison, gate: Gate | None) -> str:
    def escape(text: str) -> str:
        return markdown.inert(inert(text))

    changes = [[escape(cell) for cell in cells] for cells in differences(comparison)]
    others, more = settings(comparison)
    rows = [[escape(cell) for cell in cells] for cells in others]
    blocks = [
        f"## {escape(comparison.sentence)}",
        *([f"**{escape(gate_told(gate))}**"] if gate else []),
        "\n".join(f"- {name}: {escape(text)}" for name, text in runs_told(comparison)),
        *(f"Note: {escape(note)}" for note in notes(comparison)),
        markdown.table(HEAD, changes, numbers=(1, 2)),
        escape(losses_told(comparison.losses)),
        markdown.table(_SETTINGS, rows) if rows else _NOTHING_ELSE,
        *map(escape, more),
    ]
    return "\n\n".join(blocks)


def as_json(comparison: Comparison, gate: Gate | None) -> str:
    return json.dumps(
        {
            "v": 1,
            "a": _side(comparison.a),
            "b": _side(comparison.b),
            "runs_a": [_side(run) for run in comparison.runs_a],
            "runs_b": [_side(run) for run in comparison.runs_b],
            "spread": asdict(comparison.spread) if comparison.spread else None,
            "sentence": comparison.sentence,
            "speed": comparison.speed.metric if comparison.speed else None,
            "changes": [encode(asdict(change)) for change in comparison.changes],
            "losses": encode(asdict(comparison.losses)),
            "obstacles": list(comparison.obstacles),
            "unknown": list(comparison.unknown),
            "differences": [asdict(setting) for setting in comparison.settings],
            "gate": {**encode(asdict(gate)), "exit_code": gate.exit_code} if gate else None,
        },
        indent=1,
    )


def runs_told(comparison: Comparison) -> list[tuple[str, str]]:
    """The name of each run, as a gate has it, and what it is."""
    sides = (*names_of("A", comparison.runs_a), *names_of("B", comparison.runs_b))
    return [(name, _run(run)) for name, run in sides]


def _side(run: LoadedRun) -> dict[str, object]:
    times = run.metrics.performance.step_times
    return {
        "directory": run.directory,
        "name": run.spec.name if run.spec else None,
        "outcome": run.verdict.outcome,
        "steady_steps": times.n if times else 0,
    }


def _run(run: LoadedRun) -> str:
    times = run.metrics.performance.step_times
    model = f", {run.spec.model.name}" if run.spec else ""
    return f"{run.directory}: {run.verdict.outcome.replace('_', ' ')}{model}, {times.n if times else 0} steady steps"


def notes(comparison: Comparison) -> list[str]:
    """The caveats of the answer: obstacles, what may differ, and the noise between runs."""
    found = [f"compared anyway: {'; '.join(comparison.obstacles)}"] if comparison.obstacles else []
    found += [f"not known to be the same: {', '.join(comparison.unknown)}"] if comparison.unknown else []
    return [*found, *_between(comparison)]


def _between(comparison: Comparison) -> list[str]:
    """Notes on the noise between runs, as far as it is known."""
    spread = comparison.spread
    if comparison.speed is None:
        return []
    if spread is None:
        return [
            "noise between runs is not known, and not in the interval: compare several runs a side (--with), or all "
            "earlier ones (--history)"
        ]
    several = max(len(comparison.runs_a), len(comparison.runs_b)) > 1
    first = ["losses and settings are those of the first run of each side"] if several else []
    return [f"noise between runs: {spread.sigma:.2%} (standard deviation, of {spread.num_runs} runs)", *first]


def differences(comparison: Comparison) -> list[Sequence[str]]:
    """Each metric: its title, A, B, the change with its interval, and the judgement or why there is none."""
    return [_cells(change) for change in comparison.changes]


def _cells(change: Change) -> Sequence[str]:
    kind = METRICS[change.metric]
    unit = "fraction" if kind.unit == "fraction" else ""
    moved = ""
    if change.change is not None and change.low is not None and change.high is not None:
        moved = f"{change.change:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"
    title = kind.title if unit else f"{kind.title} ({kind.unit})" if kind.unit not in kind.title.lower() else kind.title
    values = show_beside(*(estimate.value if estimate else "-" for estimate in (change.a, change.b)), unit=unit)
    return title, *values, moved, WORDS[change.judgement] or change.why


def losses_told(losses: Losses) -> str:
    """The sentence on the difference between the losses of the two runs."""
    if losses.last_step is None or losses.largest is None:
        return "Loss: no step has one in both runs."
    parts = [
        f"apart by more than {bound:.1%} from step {step}" for bound, step in losses.parted.items() if step is not None
    ]
    within = next((f"within {bound:.1%} throughout" for bound, step in losses.parted.items() if step is None), "")
    parts += [within] if within else []
    alone = [f"{count} only in {name}" for name, count in (("A", losses.only_a), ("B", losses.only_b)) if count]
    others = f" ({', '.join(alone)})" if alone else ""
    last = " and ".join(show_beside(losses.last_a, losses.last_b))
    return (
        f"Loss: {losses.num_steps} steps in both{others}; {', '.join(parts)}; "
        f"largest difference {losses.largest:.2%} at step {losses.largest_step}; "
        f"at step {losses.last_step} {last}."
    )


def settings(comparison: Comparison) -> tuple[list[tuple[str, ...]], list[str]]:
    """(the settings that differ: section, path, A, B; a line on those that are left out)."""
    more = len(comparison.settings) - MOST_SETTINGS
    shown: list[tuple[str, ...]] = [
        (s.section, s.path, _value(s.a), _value(s.b)) for s in comparison.settings[:MOST_SETTINGS]
    ]
    return shown, [f"… and {more} more: --format json has them all"] if more > 0 else []


def _value(text: str | None) -> str:
    if text is None:
        return "not there"
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}… ({len(text)} characters)"


def gate_told(gate: Gate) -> str:
    """The gate's answer and its reasons."""
    return f"Gate: {gate.status.upper()}: {'; '.join(gate.reasons)}"
