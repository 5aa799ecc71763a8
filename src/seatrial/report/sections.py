"""What a report tells beside the verdict, as tables: the same ones in every format, and only those that have a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from seatrial.metrics import FaultRecord, Performance, show_ranges
from seatrial.report.comparisons import cvs_answer, published_results
from seatrial.report.figures import AS_REPORTED, spelled
from seatrial.report.gather import RunReport
from seatrial.report.nodes import notable
from seatrial.report.section import Section
from seatrial.spec import METRICS
from seatrial.verdict import show

MAX_STRAGGLERS = 10
MAX_LISTED = 10


def sections(report: RunReport) -> list[Section]:
    """The sections of a report in the order of reading."""
    found = (make(report) for make in _SECTIONS)
    return [_without_empty_columns(section) for section in found if section and (section.rows or section.notes)]


def _without_empty_columns(section: Section) -> Section:
    kept = [n for n in range(len(section.columns)) if any(row[n] for row in section.rows)]
    rows = tuple(tuple(row[n] for n in kept) for row in section.rows)
    return replace(section, columns=tuple(section.columns[n] for n in kept), rows=rows)


def _faults(report: RunReport) -> Section | None:
    """The faults in the order of time, the one that is blamed for the end marked; what followed from it, and advice."""
    if report.metrics is None:
        return None
    completion, diagnosis = report.metrics.completion, report.metrics.completion.diagnosis
    cause = diagnosis.cause if diagnosis else None
    notes = []
    if diagnosis:
        notes.append(f"First cause: {diagnosis.sentence.removesuffix('.')}.")
        lists = (
            ("Followed from it", diagnosis.symptoms),
            ("Stopped because of it", diagnosis.victims),
            ("Suspects", diagnosis.suspects),
            ("Leave out of the next try", diagnosis.exclude),
        )
        notes += [f"{title}: {', '.join(found[:MAX_LISTED])}." for title, found in lists if found]
        notes += [f"What to do: {diagnosis.hint}"] if diagnosis.hint else []
    return Section(
        key="faults",
        title="What went wrong, in order" if diagnosis else "Faults that did not end the run",
        columns=("Fault", "Where", "Place", "Evidence"),
        rows=tuple(_fault(fault, _shortened(fault.place, report.sources)) for fault in completion.faults),
        strong=frozenset(n for n, fault in enumerate(completion.faults) if _same(fault, cause)),
        notes=tuple(notes),
        first=diagnosis is not None,
        in_evidence=True,
    )


def _fault(fault: FaultRecord, place: str) -> tuple[str, str, str, str]:
    times = f", {fault.count:,} times" if fault.count > 1 else ""
    survived = " (survived)" if fault.survived else ""
    return f"{fault.title}{times}{survived}", fault.where, place or f"after {fault.seconds:.1f} s", fault.text


def _shortened(place: str, sources: Sequence[str]) -> str:
    """A place without the folders that all of the logs are in, of a single log the line; they are listed elsewhere."""
    if len(sources) == 1:
        return place.replace(f"{sources[0]}:", "line ", 1) if place.startswith(f"{sources[0]}:") else place
    folders = {tuple(source.split("/")[:-1]) for source in sources}
    shared = 0
    while len({folder[: shared + 1] for folder in folders}) == 1 and all(len(f) > shared for f in folders):
        shared += 1
    prefix = "/".join(next(iter(folders), ())[:shared])
    return place.removeprefix(f"{prefix}/") if prefix else place


def _same(fault: FaultRecord, cause: FaultRecord | None) -> bool:
    """Whether this is the fault that is blamed, under whatever name its text made of it."""
    return cause is not None and replace(fault, fault=cause.fault, where=cause.where, text=cause.text) == cause


def _sources(report: RunReport) -> Section | None:
    if not report.sources:
        return None
    started = {str(start.facts.get("source", "")): start for start in report.started}
    rows = []
    for source in report.sources:
        start = started.get(source)
        rows.append((source, f"rank {start.process}" if start else "", start.host if start else ""))
    against = f"held against {report.against}" if report.against else "held against no configuration"
    return Section(
        key="sources",
        title="Logs",
        columns=("File", "Process", "Host"),
        rows=tuple(rows),
        notes=(f"Family: {report.family or 'not known'}; {against}.",),
    )


def _attempts(report: RunReport) -> Section | None:
    if report.metrics is None or len(report.metrics.completion.attempts) < 2:
        return None
    times = report.metrics.performance.step_times
    rows = tuple(
        (str(number), f"{a.first_step}–{a.last_step}", f"{a.num_steps:,}")
        for number, a in enumerate(report.metrics.completion.attempts, 1)
    )
    return Section(
        key="attempts",
        title="Attempts",
        columns=("Attempt", "Steps", "Recorded"),
        rows=rows,
        numbers=("Recorded",),
        strong=frozenset([times.attempt - 1] if times else []),
        notes=(f"Speed is taken from attempt {times.attempt}.",) if times else (),
    )


def _reported(report: RunReport) -> Section | None:
    """What the log says of its own speed beside what follows from its times."""
    performance = report.metrics.performance if report.metrics else None
    if performance is None or not performance.reported:
        return None
    rows = []
    for metric, own in performance.reported.items():
        kind, found = METRICS[metric], performance.estimates.get(metric)
        computed = found.value if found and found.origin != AS_REPORTED else None
        unit = kind.unit if kind.unit == "fraction" else ""
        title = f"{kind.title}, s" if kind.unit == "s" else kind.title
        rows.append((
            title,
            show(own.value, unit),
            "" if computed is None else show(computed, unit),
            "" if computed is None or not computed else f"{own.value / computed - 1:+.1%}",
        ))  # fmt: skip
    return Section(
        key="reported",
        title="Reported beside recomputed",
        columns=("Figure", "Reported", "Recomputed", "Difference"),
        rows=tuple(rows),
        numbers=("Reported", "Recomputed", "Difference"),
        notes=tuple(_convention(performance)),
    )


def _convention(performance: Performance) -> list[str]:
    """How FLOPs are counted, and why so."""
    used, own = performance.convention, performance.recognised
    if not used:
        return ["FLOPs were not counted: that needs a configuration."]
    per_token = f", {performance.flops_per_token / 1e9:,.2f} GFLOP per token" if performance.flops_per_token else ""
    said = f"FLOPs are counted {spelled(used)}{per_token}"
    if own is None:
        return [f"{said}; the log's own figures show no convention."]
    off = f"its own figures are off by {abs(own.deviation):.2%}"
    if own.convention == used:
        return [f"{said}, as the log does ({off})."]
    return [f"{said}; the log counts {spelled(own.convention)} ({off})."]


def _evenness(report: RunReport) -> Section | None:
    """What a median does not show."""
    if report.metrics is None:
        return None
    performance = report.metrics.performance
    times, rows = performance.step_times, []
    if times and times.impossible:
        rows.append(("Dispatched, not done", f"{show_ranges(times.impossible)}: faster than possible, left out"))
    if times and times.not_counted:
        rows.append(("Left out", f"{show_ranges(times.not_counted)}: a profiler ran, or the batch still grew"))
    if times and times.disturbed:
        rows.append(("Left out", f"{show_ranges(times.disturbed)}: an evaluation or a checkpoint"))
    if drift := performance.drift:
        trend = f"{drift.change:+.1%} from the first to the last third (p = {drift.p:.2g}, Mann–Kendall)"
        rows.append(("Drift", trend if drift.drifts else f"none: {trend}"))
    if spikes := performance.spikes:
        longest = f"{_steps(spikes.count)} far above the median, {show_ranges(spikes.steps)}"
        rows.append(("Spikes", f"{longest}; they cost {spikes.share_lost:.1%} of the time"))
    if levels := performance.levels:
        apart = levels.slow_seconds / levels.fast_seconds - 1
        rows.append(("Two speeds", f"{levels.share_slow:.0%} of the steps are {apart:.1%} slower than the others"))
    for slow in performance.stragglers[:MAX_STRAGGLERS]:
        host = f" on {slow.host}" if slow.host else ""
        told = f"rank {slow.process}{host}: {slow.slower_by:.1%} slower than the median of all"
        rows.append(("Straggler", told + (f", {slow.origin}" if slow.origin else "")))
    if len(performance.stragglers) > MAX_STRAGGLERS:
        rows.append(("Stragglers", f"{len(performance.stragglers) - MAX_STRAGGLERS} more"))
    if performance.padding:
        rows.append(
            ("Not counted", f"{performance.padding:.1%} of batch × sequence: padding, prompts or masked tokens")
        )
    return Section(
        key="evenness", title="How even the steps are", columns=("What", "Finding"), rows=tuple(rows), in_evidence=True
    )


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


_SECTIONS: tuple[Callable[[RunReport], Section | None], ...] = (
    _faults,
    _sources,
    _attempts,
    _reported,
    _evenness,
    notable,
    published_results,
    cvs_answer,
)
