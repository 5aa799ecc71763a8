"""Logs whose times have no year, as their files are found: at once, months later, over New Year, in pieces."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from seatrial import logs
from seatrial.events import Event, Step


def absl(*times: datetime, first: int = 0) -> list[str]:
    """A step of MaxText's at each of these times."""
    return [
        f"I{time:%m%d %H:%M:%S.%f} 140004950292352 metric_logger.py:265] completed step: {step}, seconds: 2.000, "
        f"TFLOP/s/device: 9.0, Tokens/s/device: 4096.0, total_weights: 8192, loss: {9 - step / 64:.3f}"
        for step, time in enumerate(times, first)
    ]


def every(seconds: float, begin: datetime, count: int) -> list[datetime]:
    return [begin + n * timedelta(seconds=seconds) for n in range(count)]


def write(path: Path, lines: Sequence[str], written: datetime) -> Path:
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    stamp = written.replace(tzinfo=UTC).timestamp()
    os.utime(path, (stamp, stamp))
    return path


def times(events: Sequence[Event]) -> list[datetime]:
    return [datetime.fromtimestamp(event.wall_time, UTC).replace(tzinfo=None) for event in events]


def steps(*paths: Path) -> list[Step]:
    return [event for event in logs.read(paths) if isinstance(event, Step)]


AUTUMN, NEW_YEAR, LEAP = datetime(2026, 11, 23, 8), datetime(2026, 12, 31, 23, 59, 50), datetime(2024, 2, 29, 12)


@pytest.mark.parametrize(
    ("begin", "written"),
    [
        (AUTUMN, AUTUMN + timedelta(minutes=1)),  # judged as the run ends
        (AUTUMN, datetime(2027, 6, 1)),  # copied months later
        (AUTUMN, AUTUMN - timedelta(hours=9)),  # logged by a clock of Tokyo's
        (NEW_YEAR, NEW_YEAR + timedelta(minutes=1)),
        (NEW_YEAR, datetime(2027, 6, 1)),
        (datetime(2027, 1, 1, 3), datetime(2026, 12, 31, 18, 1)),  # Tokyo's New Year
        (datetime(2026, 12, 31, 18), datetime(2027, 1, 1, 2, 1)),  # and California's
        (LEAP, datetime(2025, 3, 1)),
        (LEAP, datetime(2027, 6, 1)),
    ],
)
@pytest.mark.parametrize("name", ["train.log", "train.log.gz"])
def test_the_year_is_the_last_in_which_the_log_can_have_been_written(
    begin: datetime, written: datetime, name: str, tmp_path: Path
) -> None:
    told = every(2, begin, 30)
    path = write(tmp_path / name, absl(*told), written)
    assert times(steps(path)) == told
    assert times([event for event in logs.parse_file(path) if isinstance(event, Step)]) == told


def test_files_of_one_run_lie_in_one_stretch_of_time_whenever_each_was_copied(tmp_path: Path) -> None:
    """Two attempts, before and after New Year; the first one's file was last touched before it."""
    early, late = every(2, NEW_YEAR - timedelta(hours=1), 20), every(2, NEW_YEAR + timedelta(hours=1), 20)
    first = write(tmp_path / "first.log", absl(*early), early[-1])
    second = write(tmp_path / "second.log", absl(*late, first=20), datetime(2028, 3, 1))
    found = times(steps(first, second))
    assert found == [*(time.replace(year=2026 + 1) for time in early), *(time.replace(year=2028) for time in late)]
    assert found[-1] - found[0] == late[-1] - early[0]


def test_a_time_with_a_year_beside_them_decides(tmp_path: Path) -> None:
    dated = "2023-12-31 23:59:40,000 completed step: 0, seconds: 2.000, TFLOP/s/device: 9.0, loss: 9.000"
    told = every(10, datetime(2023, 12, 31, 23, 59, 50), 3)
    path = write(tmp_path / "train.log", [dated, *absl(*told, first=1)], AUTUMN)
    assert times(steps(path)) == [told[0] - timedelta(seconds=10), *told]


def test_a_log_that_comes_over_the_standard_input_may_cross_new_year(monkeypatch: pytest.MonkeyPatch) -> None:
    year = datetime.now(UTC).year - 1
    told = every(2, datetime(year, 12, 31, 23, 59, 50), 10)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(absl(*told)).encode())))
    assert times([event for event in logs.parse_file(Path("-")) if isinstance(event, Step)]) == told


def test_a_file_without_a_time_of_its_own_was_written_by_now(tmp_path: Path) -> None:
    told = every(2, datetime.now(UTC).replace(tzinfo=None, microsecond=0) - timedelta(minutes=5), 10)
    assert times(steps(write(tmp_path / "train.log", absl(*told), datetime(1980, 1, 1)))) == told


def test_times_with_years_and_logs_that_count_seconds_stay_as_they_are(tmp_path: Path) -> None:
    counted = [line.partition("] ")[2] for line in absl(*every(2, AUTUMN, 5))]
    path = write(tmp_path / "train.log", counted, AUTUMN)
    assert [step.wall_time for step in steps(path)] == [2.0, 4.0, 6.0, 8.0, 10.0]
