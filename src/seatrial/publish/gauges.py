"""The figures of a run for Prometheus: names and meanings, the same of a run that goes on and of one that is over.

All are gauges, so that node exporter's textfile collector, which reads the older text format, takes the text in
OpenMetrics as it is. Every series has the labels run (name of the run directory), model and device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from seatrial.publish.publication import figures_of
from seatrial.report.gather import RunReport, clean
from seatrial.spec import RunSpec

GAUGES = {
    "seatrial_step": "Optimizer steps that are done.",
    "seatrial_planned_steps": "Optimizer steps that the run has to do.",
    "seatrial_loss": "Loss of the last step.",
    "seatrial_step_seconds": "Median step time: of the last steps while the run goes on, then of the steady window.",
    "seatrial_tokens_per_second": "Tokens per second of all devices, at that step time.",
    "seatrial_tokens_per_second_per_device": "Tokens per second of each device, at that step time.",
    "seatrial_tflops_per_second_per_device": "Model TFLOP/s of each device, at that step time.",
    "seatrial_mfu_ratio": "Model FLOP/s over peak FLOP/s, at that step time.",
    "seatrial_eta_seconds": "Seconds until the planned steps are done, at that step time.",
    "seatrial_nodes": "Nodes of the run.",
    "seatrial_nodes_alive": "Nodes whose agent runs and was heard of lately.",
    "seatrial_started_timestamp_seconds": "Start of the run, in seconds since the epoch.",
    "seatrial_outcome": "1 for the run's outcome: running, or that of its verdict.",
    "seatrial_exit_code": "Exit code of the verdict.",
    "seatrial_check": "1 for each check of the verdict, with its axis and status.",
}


class Sample(NamedTuple):
    """A value of one of GAUGES."""

    name: str
    labels: Mapping[str, str]
    value: float


# Gauge → figure of a run that is over.
_FIGURES = {
    "seatrial_step": "num_steps",
    "seatrial_planned_steps": "planned_steps",
    "seatrial_loss": "last_loss",
    "seatrial_step_seconds": "step_seconds",
    "seatrial_tokens_per_second": "tokens_per_second_total",
    "seatrial_tokens_per_second_per_device": "tokens_per_second_per_device",
    "seatrial_tflops_per_second_per_device": "tflops_per_second_per_device",
    "seatrial_mfu_ratio": "mfu",
}


def labels_of(run: str, spec: RunSpec | None, device: str) -> dict[str, str]:
    """The labels of every series of a run."""
    return {"run": run, "model": clean(spec.model.name) if spec else "", "device": clean(device)}


def of_a_judged(report: RunReport, run: str) -> Iterator[Sample]:
    """The last figures of a run that is over; `run` is its label."""
    metrics, spec, verdict = report.metrics, report.spec, report.verdict
    labels = labels_of(run, spec, metrics.performance.device if metrics else "")
    figures = figures_of(metrics) if metrics else {}
    yield from (Sample(gauge, labels, figures[name]) for gauge, name in _FIGURES.items() if name in figures)
    if spec is not None:
        yield Sample("seatrial_nodes", labels, spec.topology.num_nodes)
    if report.started_at is not None:
        yield Sample("seatrial_started_timestamp_seconds", labels, report.started_at)
    if verdict is None:
        return
    yield Sample("seatrial_outcome", labels | {"outcome": verdict.outcome}, 1)
    yield Sample("seatrial_exit_code", labels, verdict.exit_code)
    for check in report.checks:
        about = {"axis": check.axis, "check": check.title, "status": check.status}
        yield Sample("seatrial_check", labels | about, 1)


class Gauges:
    """A collector for a registry of prometheus_client; `samples` is called for every scrape."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def describe(self) -> list[Any]:
        """Nothing: registering must not count as a scrape."""
        return []

    def collect(self) -> Iterator[Any]:
        yield from families(self._samples())


def families(samples: Iterable[Sample]) -> list[Any]:
    """The samples as prometheus_client's families, in the order of GAUGES; of one series, the first counts.

    Prometheus would refuse all that stands beside a series that is there twice.
    """
    from prometheus_client.core import GaugeMetricFamily

    found: dict[str, Any] = {}
    seen: set[tuple[str, ...]] = set()
    for name, labels, value in samples:
        series = (name, *labels.values())
        if series in seen:
            continue
        seen.add(series)
        if name not in found:
            found[name] = GaugeMetricFamily(name, GAUGES[name], labels=list(labels))
        found[name].add_metric(list(labels.values()), value)
    return [found[name] for name in GAUGES if name in found]


def text(samples: Iterable[Sample]) -> str:
    """The samples in OpenMetrics' text format."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry, kept = CollectorRegistry(), list(samples)
    registry.register(Gauges(lambda: kept))
    written: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return written.decode()
