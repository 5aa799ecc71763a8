"""Step times of all ranks on a bounded grid: nothing slow is lost, and who it was is known."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seatrial import events, metrics
from seatrial.metrics.record import Record, Records
from seatrial.recording import Steps
from seatrial.report import html, ranks
from seatrial.report.gather import RunReport, gather
from tests.helpers import page_stories, run_directory, streams


@pytest.fixture(scope="module")
def performance() -> metrics.Performance:
    spec = streams.make_spec()
    return metrics.measure(streams.whole_run(spec), spec).performance


def record(process: int, times: dict[int, float | None]) -> Record:
    steps = Steps.of([events.Step(process=process, step=step, seconds=seconds) for step, seconds in times.items()])
    return Record(process=process, steps=steps, attempts=(steps,))


def of(records: list[Record]) -> Records:
    return Records(main=records[0], others=tuple(records[1:]))


@pytest.mark.parametrize(("num_ranks", "num_steps"), [(2, 5), (97, 30), (200, 431), (3, 1001)])
def test_each_cell_has_the_longest_time_and_whose_it_is(
    performance: metrics.Performance, num_ranks: int, num_steps: int
) -> None:
    rng = random.Random(num_ranks)
    numbers = sorted(rng.sample(range(10 * num_ranks), num_ranks))
    given = {
        rank: {3 * n: None if rng.random() < 0.05 else rng.lognormvariate(0, 0.3) for n in range(num_steps)}
        for rank in numbers
    }
    found = ranks.rank_times(of([record(*each) for each in given.items()]), None, performance)
    assert found is not None
    assert found.ratio.shape == (min(96, num_ranks), min(200, num_steps))
    assert (found.rows[0], found.last_rank, found.columns[0]) == (numbers[0], numbers[-1], 0)
    typical = found.typical
    assert typical is not None
    edges = (*found.rows, math.inf), (*found.columns, math.inf)
    for row in range(len(found.rows)):
        for column in range(0, len(found.columns), 7):
            inside = {
                (rank, step): seconds
                for rank in numbers if edges[0][row] <= rank < edges[0][row + 1]
                for step, seconds in given[rank].items()
                if edges[1][column] <= step < edges[1][column + 1] and seconds is not None
            }  # fmt: skip
            if not inside:
                assert math.isnan(found.ratio[row, column])
                continue
            longest = max(inside.values())
            assert found.ratio[row, column] == pytest.approx(longest / typical)
            assert inside[found.rank[row, column], found.step[row, column]] == longest


def test_the_slowest_ranks_are_those_of_the_verdict(tmp_path: Path) -> None:
    page_stories.straggler(tmp_path)
    report = gather(tmp_path / "run")
    assert report.ranks is not None
    assert report.metrics is not None
    (slow,) = report.metrics.performance.stragglers
    first = report.ranks.slowest[0]
    assert (first.rank, first.host) == (slow.process, slow.host) == (37, "node4")
    assert first.slower_by == pytest.approx(slow.slower_by)
    assert ranks.table(report.ranks).rows[0] == ("rank 37", "node4", "10.76", "+12.0%")
    rows = report.ranks.ratio[:, 5:119].mean(axis=1)
    assert int(np.argmax(rows)) == 37
    assert rows[37] > 1.1 > 1.02 > sorted(rows)[-2]


def test_ranks_without_seconds_are_compared_by_their_rates(performance: metrics.Performance) -> None:
    made = []
    for process in range(4):
        rate = 50.0 if process == 2 else 100.0
        steps = Steps.of(
            [events.Step(process=process, step=n, reported={"tokens_per_second_per_device": rate}) for n in range(20)]
        )
        made.append(Record(process=process, steps=steps, attempts=(steps,)))
    found = ranks.rank_times(of(made), None, performance)
    assert found is not None
    assert (found.typical, found.slowest[0].rank, found.slowest[0].seconds) == (None, 2, None)
    assert found.slowest[0].slower_by == pytest.approx(1.0)
    assert "tokens/s" in ranks.table(found).notes[0]


def test_one_rank_has_no_map(tmp_path: Path) -> None:
    report = gather(
        run_directory.write_judged(tmp_path / "run", lambda spec: run_directory.from_other_trainer(spec)[:1])
    )
    assert report.ranks is None
    assert "ranks-map" not in html.render(report).partition("<script>")[0]


@pytest.mark.slow
def test_two_thousand_ranks_are_a_small_page_soon(performance: metrics.Performance, tmp_path: Path) -> None:
    rng = random.Random(1)
    slow = {1777: 1.3}
    times = [9 + rng.random() / 10 for _ in range(500)]
    made = [
        record(rank, {step: slow.get(rank, 1.0) * seconds for step, seconds in enumerate(times)})
        for rank in range(2048)
    ]
    report: RunReport = gather(run_directory.write(tmp_path / "run", rehearsing=False))
    start = time.process_time()
    found = ranks.rank_times(of(made), None, performance)
    text = html.render(replace(report, ranks=found))
    assert time.process_time() - start < 10
    assert len(text) < 2_000_000
    assert found is not None
    assert found.slowest[0].rank == 1777
    row = 1777 * 96 // 2048
    assert set(found.rank[row].tolist()) == {1777}
