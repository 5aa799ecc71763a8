"""The tables of a report, next to the verdict: the same in every format, and only those with rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from seatrial.console import plural
from seatrial.metrics import Estimate, FaultRecord, Performance, StepTimes, show_ranges
from seatrial.report.comparisons import cvs_answer, published_results
from seatrial.report.figures import AS_REPORTED, spelled
from seatrial.report.gather import RunReport
from seatrial.report.nodes import notable
from seatrial.report.section import Section, without_empty_columns
from seatrial.spec import METRICS
from seatrial.verdict import shifts_told, show, show_beside

MAX_STRAGGLERS = 10
MAX_LISTED = 10
MINUTE = 60  # seconds; of an hour as many minutes


def sections(report: RunReport) -> list[Section]:
    """The sections of a report in the order of reading."""
    shown = []
    for section in (make(report) for make in _SECTIONS):
        if section and (section.rows or section.notes):
            columns, rows = without_empty_columns(section.columns, section.rows)
            shown.append(replace(section, columns=columns, rows=rows))
    return shown


def _faults(report: RunReport) -> Section | None:
    """The faults in the order of time, the one that is blamed for the end marked; what followed from it, and advice."""
    if report.metrics is None:
        return None
    completion, diagnosis = report.metrics.completion, report.metrics.completion.diagnosis
    cause = diagnosis.cause if diagnosis else None
    notes = []
    if diagnosis:
        notes.append(f"Root cause: {diagnosis.sentence.removesuffix('.')}.")
        lists = (
            ("In unknown order with it", diagnosis.rivals),
            ("Followed from it", diagnosis.symptoms),
            ("Stopped because of it", diagnosis.victims),
            ("Suspects", diagnosis.suspects),
            ("Exclude from a retry", diagnosis.exclude),
        )
        notes += [f"{title}: {', '.join(found[:MAX_LISTED])}." for title, found in lists if found]
        notes += [f"Fix: {diagnosis.hint}"] if diagnosis.hint else []
    return Section(
        key="faults",
        title="Faults in order of time" if diagnosis else "Faults that did not end the run",
        columns=("Time", "Fault", "Where", "Place", "Evidence"),
        rows=tuple(_fault(fault, _shortened(fault.place, report.sources)) for fault in completion.faults),
        strong=frozenset(n for n, fault in enumerate(completion.faults) if _same(fault, cause)),
        notes=tuple(notes),
        first=diagnosis is not None,
        in_evidence=True,
    )


def _fault(fault: FaultRecord, place: str) -> tuple[str, str, str, str, str]:
    times = f", {fault.count:,} times" if fault.count > 1 else ""
    survived = " (survived)" if fault.survived else ""
    return _time(fault), f"{fault.title}{times}{survived}", fault.where, place, fault.text


def _time(fault: FaultRecord) -> str:
    """The time of a fault since the run's first event, or its step: +21.4 s, +3:12:05; "" where neither is known."""
    if fault.after is not None:
        return f"after step {fault.after}"
    if fault.order == "unknown" or not fault.seconds:
        return ""
    if fault.seconds < MINUTE:
        return f"+{fault.seconds:.1f} s"
    minutes, seconds = divmod(round(fault.seconds), MINUTE)
    return f"+{minutes // MINUTE}:{minutes % MINUTE:02}:{seconds:02}"


def _shortened(place: str, sources: Sequence[str]) -> str:
    """A place without the folders that all of the logs are in, of a single log the line; they are listed elsewhere."""
    if len(sources) == 1:
        return place.replace(f"{sources[0]}:", "line ", 1) if place.startswith(f"{sources[0]}:") else place
    folders = {tuple(source.split("/")[:-1]) for source in sources}
    shared = 0
    while len({folder[: shared + 1] for folder in folders}) == 1 and all(len(f) > shared for f in folders):
        shared += 1
    prefix = "/".join(next(iter(folders), ())[:shared])
    return (place.removeprefix(f"{prefix}/") or place) if prefix else place


def _same(fault: FaultRecord, cause: FaultRecord | None) -> bool:
    """True if this is the fault that is blamed, under whatever name its text made of it."""
    if cause is None:
        return False
    refined = replace(fault, fault=cause.fault, where=cause.where, text=cause.text, rank=cause.rank, host=cause.host)
    return refined == cause


def _sources(report: RunReport) -> Section | None:
    if not report.sources:
        return None
    started = {str(start.facts.get("source", "")): start for start in report.started}
    rows = []
    for source in report.sources:
        start = started.get(source)
        rows.append((source, f"rank {start.process}" if start else "", start.host if start else ""))
    against = f"judged by {report.against}" if report.against else "judged without a configuration"
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
    """The speed that the log reports, and the one recomputed from its times; None where it reports none."""
    performance = report.performance
    if performance is None or not performance.reported:
        return None
    return Section(
        key="reported",
        title="Reported vs recomputed",
        columns=("Figure", "Reported", "Recomputed", "Difference"),
        rows=tuple(
            _reported_row(metric, own.value, performance.estimates.get(metric))
            for metric, own in performance.reported.items()
        ),
        numbers=("Reported", "Recomputed", "Difference"),
        notes=(_convention(performance),),
    )


def _reported_row(metric: str, own: float, found: Estimate | None) -> tuple[str, str, str, str]:
    kind = METRICS[metric]
    unit = kind.unit if kind.unit == "fraction" else ""
    title = f"{kind.title}, s" if kind.unit == "s" else kind.title
    if found is None or found.origin == AS_REPORTED:
        return title, show(own, unit), "", ""
    off = f"{own / found.value - 1:+.1%}" if found.value else ""
    reported, recomputed = show_beside(own, found.value, unit=unit)
    return title, reported, recomputed, off


def _convention(performance: Performance) -> str:
    """A note on the convention by which FLOPs are counted, and the reason for it."""
    used, own = performance.convention, performance.recognised
    if not used:
        return "FLOPs were not counted: that needs a configuration."
    per_token = f", {performance.flops_per_token / 1e9:,.2f} GFLOP per token" if performance.flops_per_token else ""
    counted = f"FLOPs are counted {spelled(used)}{per_token}"
    if own is None:
        return f"{counted}; the log's own figures show no convention."
    off = f"its own figures are off by {abs(own.deviation):.2%}"
    if own.convention == used:
        return f"{counted}, as the log does ({off})."
    return f"{counted}; the log counts {spelled(own.convention)} ({off})."


def _stability(report: RunReport) -> Section | None:
    """The steadiness of the step times, which a median does not show."""
    performance = report.performance
    if performance is None:
        return None
    rows = [*_steps_left_out(performance.step_times), *_unsteadiness(performance), *_stragglers(performance)]
    if performance.padding:
        padding = f"{performance.padding:.1%} of batch × sequence: padding, prompts or masked tokens"
        rows.append(("Not counted", padding))
    return Section(
        key="evenness", title="Step-time stability", columns=("What", "Finding"), rows=tuple(rows), in_evidence=True
    )


def _steps_left_out(times: StepTimes | None) -> list[tuple[str, str]]:
    if times is None:
        return []
    reasons = (
        ("Dispatched, not done", times.impossible, "faster than possible, left out"),
        ("Left out", times.not_counted, "a profiler ran, or the batch still grew"),
        ("Left out", times.disturbed, "an evaluation or a checkpoint"),
    )
    return [(title, f"{show_ranges(ranges)}: {why}") for title, ranges, why in reasons if ranges]


def _unsteadiness(performance: Performance) -> list[tuple[str, str]]:
    rows = []
    if drift := performance.drift:
        trend = f"{drift.change:+.1%} from the first to the last third (p = {drift.p:.2g}, Mann–Kendall)"
        rows.append(("Drift", trend if drift.drifts else f"none: {trend}"))
    if performance.shifts:
        rows.append(("Level shifts", shifts_told(performance)))
    if spikes := performance.spikes:
        count = f"{plural(spikes.count, 'step')} far above the median"
        rows.append(("Spikes", f"{count}, {show_ranges(spikes.steps)}; they cost {spikes.share_lost:.1%} of the time"))
    if levels := performance.levels:
        apart = levels.slow_seconds / levels.fast_seconds - 1
        rows.append(("Two speeds", f"{levels.share_slow:.0%} of the steps are {apart:.1%} slower than the others"))
    return rows


def _stragglers(performance: Performance) -> list[tuple[str, str]]:
    rows = []
    for slow in performance.stragglers[:MAX_STRAGGLERS]:
        rank = f"rank {slow.process}{f' on {slow.host}' if slow.host else ''}"
        origin = f", {slow.origin}" if slow.origin else ""
        rows.append(("Straggler", f"{rank}: {slow.slower_by:.1%} slower than the median of all{origin}"))
    more = len(performance.stragglers) - MAX_STRAGGLERS
    return [*rows, ("Stragglers", f"{more} more")] if more > 0 else rows


_SECTIONS: tuple[Callable[[RunReport], Section | None], ...] = (
    _faults,
    _sources,
    _attempts,
    _reported,
    _stability,
    notable,
    published_results,
    cvs_answer,
)
