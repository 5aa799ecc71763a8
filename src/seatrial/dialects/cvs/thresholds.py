"""The bars that stand beside a CVS configuration of 2026, in its `*_threshold.json`: a mapping of them per sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.errors import InputError, Problem, Severity
from seatrial.source import Node
from seatrial.spec import METRICS, Expectation, Origin

# CVS's metric → ours, and how its value becomes one of ours.
BARS: Mapping[str, tuple[str, float]] = {
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
    "tokens_per_sec_total": "it repeats what a bar per GPU says",
    "scaling_efficiency_pct": "runs of several sizes are compared by `seatrial report A B`",
    "steps_to_target": _LOSS, "time_to_target_seconds": _LOSS,
    "step_time_p95_ms": "the median step is judged, not its tail",
    "checkpoint_save_seconds": "the time of a checkpoint has no bar", "mem_usage_gb": "memory is judged as a fraction",
    "checkpoint_load_seconds": "the time of a checkpoint has no bar",
}  # fmt: skip
# Kind → which way it bounds; None: it bounds nothing that can be judged here.
KINDS: Mapping[str, str | None] = {
    "min": "higher", "min_tok_s": "higher", "max": "lower", "max_ms": "lower", "within": "both", "min_ratio": None,
    "info": None,
}  # fmt: skip
_FIELDS = ("kind", "value", "tolerance_pct", "reference", "optional")


@dataclass(kw_only=True)
class Bars:
    """What a threshold file asks of one sweep."""

    expectations: list[Expectation] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, entry: Entry, metric: str, value: float, tolerance: float | None) -> None:
        """One more bar; the first for a metric holds."""
        if any(bar.metric == metric for bar in self.expectations):
            why = f"there is a bar for {METRICS[metric].title} already"
            self.problems.append(entry.problem("warning", "repeated-expectation", why, "keep one of the two"))
            return
        self.expectations.append(Expectation(metric=metric, value=value, tolerance=tolerance))
        self.origins[f"expectations.{metric}"] = entry.origin()


def read_bars(named: Entry | None, config: Path, cells: Iterable[str], *, enforced: bool = True) -> Bars:
    """The bars of the first of some cells that the file has; no file is a finding, not an error."""
    bars = Bars()
    if named is None or named.value == "":
        beside = config.with_name(f"{config.stem.removesuffix('_config')}_threshold.json")
        path, entry = beside, Entry(key="threshold_json", value=None, text=beside.name)
        if not beside.is_file():
            why = f"nothing says what is expected: there is no {beside.name} beside it"
            severity: Severity = "warning" if enforced else "info"
            bars.problems.append(entry.problem(severity, "no-thresholds", why, "name a file with threshold_json"))
            return bars
    else:
        path, entry = config.parent / Path(coerce.text(named.value)), named
    try:
        document = source.read(path)
    except InputError as error:
        why = f"the bars cannot be read: {error}"
        bars.problems.append(entry.problem("error", "no-thresholds", why, "correct the path, or set it to nothing"))
        return bars
    bars.problems.extend(document.problems)
    _read_cell(bars, entry, document.root, list(dict.fromkeys(cells)))
    return bars


def _read_cell(bars: Bars, entry: Entry, root: Node, cells: list[str]) -> None:
    there = [name for name in root.members if not name.startswith("_")]
    cell = next((name for name in cells if name in there), None)
    if cell is None:
        why = f"the threshold file has no cell for this sweep ({' or '.join(cells)})"
        fix = f"{did_you_mean(cells[0], there)} There is {', '.join(there) or 'none'}" if cells else "add one"
        bars.problems.append(entry.problem("warning", "no-thresholds", why, fix))
        return
    node = root.members[cell]
    if not isinstance(node.value, dict):
        bad = Entry.of(cell, node)
        bars.problems.append(bad.problem("error", "bad-value", "a mapping of metrics belongs here", "write { … }"))
    for name, child in node.members.items():
        if not name.startswith("_"):
            _read_bar(bars, f"{cell}.{name}", name.removeprefix("training."), child)


def _read_bar(bars: Bars, path: str, metric: str, node: Node) -> None:
    entry = Entry.of(path, node)
    known = BARS.get(metric)
    if known is None:
        if metric in _OTHERS:
            finding = entry.problem("info", "not-judged", f"it is not judged here: {_OTHERS[metric]}", "nothing to do")
        else:
            why = "this is no metric of CVS's training tests"
            finding = entry.key_problem("error", "unknown-key", why, did_you_mean(metric, [*BARS, *_OTHERS]))
        bars.problems.append(finding)
        return
    if not isinstance(node.value, dict):
        why = f"{coerce.shown(entry.value)} is not a mapping"
        bars.problems.append(entry.problem("error", "bad-value", why, 'write {"kind": "min", "value": 1}'))
        return
    for name, child in node.members.items():
        if name not in _FIELDS and not name.startswith("_"):
            finding = Entry.of(f"{path}.{name}", child).key_problem(
                "error", "unknown-key", "a bar has no such key", did_you_mean(name, _FIELDS)
            )
            bars.problems.append(finding)
    values = dict(_checked(bars, path, node))
    kind, value = values.get("kind"), values.get("value")
    if kind is None:
        return
    ours, divisor = known
    better, bounds = METRICS[ours].better, KINDS[kind]
    if bounds is None:
        why = "it is kept for the record" if kind == "info" else "a ratio of two metrics of one run is not judged here"
        bars.problems.append(entry.problem("info", "not-judged", why, "nothing to do"))
        return
    if bounds not in (better, "both"):
        why = f"{kind} bounds it from the wrong side: of {METRICS[ours].title.lower()}, {_MORE[better]} is better"
        fix = f"use {'min' if better == 'higher' else 'max'}"
        bars.problems.append(entry.problem("error", "wrong-direction", why, fix))
    elif value is not None and value <= 0:
        bars.problems.append(entry.problem("info", "not-judged", "0 is no bar: it is kept for the record", "set it"))
    elif value is not None:
        tolerance = values.get("tolerance_pct")
        if kind == "within":
            why = f"only the side that is worse is judged: {_MORE[better]} than that is no failure"
            bars.problems.append(entry.problem("info", "one-side-judged", why, "nothing to do"))
        share = None if tolerance is None or kind != "within" else tolerance / 100
        bars.add(entry, ours, coerce.fraction_of(value, divisor), share)


_MORE = {"higher": "more", "lower": "less"}


def _checked(bars: Bars, path: str, node: Node) -> Iterator[tuple[str, Any]]:
    """The fields of a bar, each as its type; what is wrong or missing is a finding."""
    readers: dict[str, Callable[[Any], Any]] = {
        "kind": coerce.one_of(*KINDS), "value": coerce.decimal, "tolerance_pct": _percent,
    }  # fmt: skip
    kind = node.members.get("kind")
    needed = {"kind", "value"} - ({"value"} if kind is not None and kind.value == "info" else set())
    for name, read in readers.items():
        child = node.members.get(name)
        if child is None:
            if name in needed or (name == "tolerance_pct" and kind is not None and kind.value == "within"):
                entry = Entry.of(path, node)
                bars.problems.append(entry.problem("error", "missing-key", f"it has no {name}", f"add {name}"))
            continue
        try:
            yield name, read(child.plain())
        except ValueError as error:
            entry = Entry.of(f"{path}.{name}", child)
            bars.problems.append(entry.problem("error", "bad-value", str(error), "give a value that fits"))


def _percent(value: Any) -> float:
    number = coerce.decimal(value)
    if not 0 <= number < 100:
        raise ValueError(f"{number:g} is not between 0 and 100 %")
    return number
