"""The targets that stand beside a CVS configuration of 2026, in its `*_threshold.json`: a mapping of them per sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects import placeholders
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import NO_CHANGE, Entry
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.settings import Settings
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError, Problem, Severity
from seatrial.source import Node
from seatrial.spec import METRICS, Expectation, Origin

# CVS's metric → ours, and how its value becomes one of ours.
TARGETS: Mapping[str, tuple[str, float]] = {
    "tflops_per_sec_per_gpu": ("tflops_per_second_per_device", 1),
    "throughput_per_gpu": ("tflops_per_second_per_device", 1),
    "tokens_per_sec_per_gpu": ("tokens_per_second_per_device", 1),
    "tokens_per_gpu": ("tokens_per_second_per_device", 1),
    "elapsed_time_per_iteration": ("step_seconds", 1000),
    "step_time_mean_ms": ("step_seconds", 1000),
    "step_time_p50_ms": ("step_seconds", 1000),
    "step_time_seconds": ("step_seconds", 1),
    "mem_usage": ("memory_fraction", 1),
    "mfu": ("mfu", 1),
}
_LOSS = "the verdict on numerics judges losses by rules of its own"
_OTHERS: Mapping[str, str] = {
    "final_loss": _LOSS, "loss_decreased": _LOSS, "eval_loss": _LOSS, "loss": _LOSS,
    "tokens_per_sec_total": "it repeats what a target per GPU says",
    "scaling_efficiency_pct": "runs of several sizes are compared by `seatrial report A B`",
    "steps_to_target": _LOSS, "time_to_target_seconds": _LOSS,
    "step_time_p95_ms": "the median step is judged, not its tail",
    "checkpoint_save_seconds": "the time of a checkpoint has no target",
    "checkpoint_load_seconds": "the time of a checkpoint has no target",
    "mem_usage_gb": "memory is judged as a fraction",
}  # fmt: skip
# Kind → which way it bounds; None: it bounds nothing that can be judged here.
KINDS: Mapping[str, str | None] = {
    "min": "higher", "min_tok_s": "higher", "max": "lower", "max_ms": "lower", "within": "both", "min_ratio": None,
    "info": None,
}  # fmt: skip
_NOT_JUDGED = {
    "info": "it is kept for the record", "min_ratio": "a ratio of two metrics of one run is not judged here",
}  # fmt: skip
_MORE = {"higher": "more", "lower": "less"}
_NEEDED = {"info": ("kind",), "within": ("kind", "value", "tolerance_pct")}  # by kind; of the others, kind and value
NO_TARGET = "0 is no target: it is kept for the record"


@dataclass(kw_only=True)
class Targets:
    """The targets of one sweep, as its threshold file gives them, with their origins and the findings."""

    expectations: list[Expectation] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, entry: Entry, metric: str, value: float, tolerance: float | None) -> None:
        """One more target; the first for a metric holds."""
        if any(each.metric == metric for each in self.expectations):
            why = f"there is a target for {METRICS[metric].title} already"
            self.problems.append(entry.problem("warning", "repeated-expectation", why, "keep one of the two"))
            return
        self.expectations.append(Expectation(metric=metric, value=value, tolerance=tolerance))
        self.origins[f"expectations.{metric}"] = entry.origin()


def read_targets(named: Entry | None, config: Path, cells: Sequence[str], *, enforced: bool = True) -> Targets:
    """The targets of the first of some cells that the file has; no file is a finding, not an error."""
    found = Targets()
    beside = config.with_name(f"{config.stem.removesuffix('_config')}_threshold.json")
    if named is None or named.value == "":
        named, path = Entry(key="threshold_json", value=None, text=beside.name), beside
        if not beside.is_file():
            why = f"nothing says what is expected: there is no {beside.name} beside it"
            severity: Severity = "warning" if enforced else "info"
            found.problems.append(named.problem(severity, "no-thresholds", why, "name a file with threshold_json"))
            return found
    else:
        path = config.parent / Path(coerce.text(named.value))
    try:
        document = source.read(path)
    except InputError as error:
        why = f"the targets cannot be read: {error}"
        found.problems.append(named.problem("error", "no-thresholds", why, "correct the path, or set it to nothing"))
        return found
    found.problems.extend(document.problems)
    _read_cell(found, named, document.root, cells)
    return found


def _read_cell(found: Targets, named: Entry, root: Node, cells: Sequence[str]) -> None:
    there = placeholders.given(root)
    cell = next((name for name in cells if name in there), None)
    if cell is None:
        why = f"the threshold file has no cell for this sweep ({' or '.join(dict.fromkeys(cells))})"
        fix = f"{did_you_mean(cells[0], there)} There is {', '.join(there) or 'none'}" if cells else "add one"
        found.problems.append(named.problem("warning", "no-thresholds", why, fix))
        return
    node = root.members[cell]
    if not isinstance(node.value, dict):
        why = "a mapping of metrics belongs here"
        found.problems.append(Entry.of(cell, node).problem("error", "bad-value", why, "write { … }"))
    for name, child in placeholders.given(node).items():
        _read_target(found, Entry.of(f"{cell}.{name}", child), name.removeprefix("training."), child)


def _read_target(found: Targets, entry: Entry, metric: str, node: Node) -> None:
    if metric in _OTHERS:
        why = f"it is not judged here: {_OTHERS[metric]}"
        found.problems.append(entry.problem("info", "not-judged", why, NO_CHANGE))
    elif metric not in TARGETS:
        why = "this is no metric of CVS's training tests"
        fix = did_you_mean(metric, [*TARGETS, *_OTHERS])
        found.problems.append(entry.key_problem("error", "unknown-key", why, fix))
    elif not isinstance(node.value, dict):
        why = f"{coerce.shown(entry.value)} is not a mapping"
        found.problems.append(entry.problem("error", "bad-value", why, 'write {"kind": "min", "value": 1}'))
    else:
        fields = _Fields(keys=_FIELDS)
        for name, child in placeholders.given(node).items():
            fields.take(name, Entry.of(f"{entry.key}.{name}", child))
        found.problems += [*fields.problems, *(
            entry.problem("error", "missing-key", f"it has no {name}", f"add {name}") for name in fields.needed()
            if name not in fields.entries
        )]  # fmt: skip
        if fields.get("kind") is not None:
            _judge(found, entry, metric, fields)


def _judge(found: Targets, entry: Entry, metric: str, fields: _Fields) -> None:
    """Adds a target, or why there is none."""
    ours, divisor = TARGETS[metric]
    kind, value, better = fields.get("kind"), fields.get("value"), METRICS[ours].better
    more, bounds = _MORE[better], KINDS[kind]
    if bounds is None:
        finding = entry.problem("info", "not-judged", _NOT_JUDGED[kind], NO_CHANGE)
    elif bounds not in (better, "both"):
        why = f"{kind} bounds it from the wrong side: of {METRICS[ours].title.lower()}, {more} is better"
        finding = entry.problem("error", "wrong-direction", why, f"use {'min' if better == 'higher' else 'max'}")
    elif value is None:
        return
    elif value <= 0:
        finding = entry.problem("info", "not-judged", NO_TARGET, "set it")
    else:
        tolerance = fields.get("tolerance_pct") if kind == "within" else None
        found.add(entry, ours, coerce.fraction_of(value, divisor), None if tolerance is None else tolerance / 100)
        if kind != "within":
            return
        why = f"only the side that is worse is judged: {more} than that is no failure"
        finding = entry.problem("info", "one-side-judged", why, NO_CHANGE)
    found.problems.append(finding)


def _percent(value: Any) -> float:
    number = coerce.decimal(value)
    if not 0 <= number < 100:
        raise ValueError(f"{number:g} is not between 0 and 100 %")
    return number


_FIELDS: Mapping[str, Key] = {
    "kind": Key(read=coerce.one_of(*KINDS)), "value": Key(read=coerce.decimal), "tolerance_pct": Key(read=_percent),
    "reference": Key(read=coerce.anything), "optional": Key(read=coerce.anything),
}  # fmt: skip


class _Fields(Settings):
    """The keys of one target."""

    UNKNOWN = "a target has no such key"

    def needed(self) -> tuple[str, ...]:
        return _NEEDED.get(self.get("kind"), ("kind", "value"))
