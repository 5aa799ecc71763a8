"""The table in memory: filters and orders against plain loops, and configurations with their changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from seatrial.history.summary import COLUMNS, IndexRow
from seatrial.serve.table import SORTS, Table, Wanted, group_of, key_of


def row(directory: str, **values: Any) -> IndexRow:
    return dict.fromkeys(COLUMNS) | {"directory": directory, "name": Path(directory).name, "outcome": "pass"} | values


def message(*rows: IndexRow, gone: list[str] | None = None, live: list[Any] | None = None) -> dict[str, Any]:
    return {"rows": list(rows), "gone": gone or [], "live": live or [], "is_whole": True}


def random_rows(count: int, seed: int = 0) -> list[IndexRow]:
    rng = random.Random(seed)
    return [
        row(
            f"/{rng.choice('ab')}/run-{number}", started_at=rng.choice([None, rng.uniform(1e9, 2e9)]),
            outcome=rng.choice(["pass", "fail", "died", "running"]), model=rng.choice([None, "llama", "gpt"]),
            device=rng.choice([None, "MI300X", "H100"]), step_seconds=rng.choice([None, rng.uniform(1, 9)]),
            last_loss=rng.choice([None, "nan", rng.uniform(1, 9)]), mfu=rng.random(), attempts=rng.randint(1, 3),
            wall_seconds=rng.uniform(1, 100), tokens_per_second_per_device=rng.uniform(1, 100),
        )
        for number in range(count)
    ]  # fmt: skip


def test_filters_and_orders() -> None:
    table = Table([Path("/a"), Path("/b")])
    rows = random_rows(300)
    table.apply(message(*rows))
    rng = random.Random(1)
    for _ in range(200):
        query = {
            "q": rng.choice(["", "RUN-1", "/b/"]), "outcome": rng.choice(["", "pass", "fail"]),
            "model": rng.choice(["", "llama"]), "device": rng.choice(["", "H100"]), "root": rng.choice(["", "/a"]),
            "sort": rng.choice(list(SORTS)), "reverse": rng.choice(["", "1"]),
        }  # fmt: skip
        wanted = Wanted.of(query)
        found = [table.rows[key] for key in table.find(wanted)]
        expected = [
            each
            for each in rows
            if query["q"].lower() in each["directory"].lower()
            and query["outcome"] in ("", each["outcome"])
            and query["model"] in ("", each["model"])
            and query["device"] in ("", each["device"])
            and each["directory"].startswith(query["root"])
        ]
        assert sorted(each["directory"] for each in found) == sorted(each["directory"] for each in expected)
        column, largest = SORTS[query["sort"]]
        if query["sort"] not in ("run", "outcome"):
            numbers = [each[column] for each in found if isinstance(each[column], (int, float))]
            assert numbers == sorted(numbers, reverse=largest != bool(query["reverse"]))
        assert Wanted.of(wanted.query(page=wanted.page)) == wanted
        counted = table.counts(wanted)["outcome"]
        assert sum(counted.values()) == len(table.find(Wanted.of({**query, "outcome": ""})))


@pytest.mark.parametrize(
    "query", [{"page": "-1"}, {"page": "9" * 50}, {"page": "²"}, {"sort": "__class__"}, {"q": "x" * 9999}, {"z": "1"}]
)
def test_an_odd_address_is_an_ordinary_one(query: dict[str, str]) -> None:
    table = Table([Path("/a")])
    table.apply(message(*random_rows(9)))
    wanted = Wanted.of(query)
    assert wanted.page >= 1
    assert wanted.sort in SORTS
    table.find(wanted)


def test_runs_come_change_and_go() -> None:
    table = Table([Path("/a")])
    run = row("/a/x", outcome="running", fingerprint="f")
    assert table.apply(message(run)).rows == {key_of("/a/x")}
    figures = {"directory": "/a/x", "step": 1}
    assert table.apply(message(live=[figures])).live == {key_of("/a/x")}
    assert table.apply(message(live=[figures])).live == set()  # nothing new
    table.apply(message(run | {"outcome": "pass"}))
    assert table.live == {}
    assert table.apply(message(live=[figures])).live == set()  # it is over
    table.apply(message(gone=["/a/x"]))
    assert (table.rows, table.trends()) == ({}, [])


def test_a_configuration_has_its_changes_with_the_versions_that_differ() -> None:
    rng = random.Random(3)
    table = Table([Path("/a")])
    rows = [
        row(
            f"/a/{n}", started_at=1e9 + n, fingerprint="f", device="H100", num_devices=8,
            outcome=rng.choice(["pass", "fail"]),
            step_seconds=(5.0 if n < 20 else 5.25) * rng.lognormvariate(0, 0.002),
            versions=f'{{"jax": "{1 if n < 20 else 2}", "python": "3.12"}}',
        )
        for n in range(32)
    ]  # fmt: skip
    other = row("/a/other", started_at=3e9, fingerprint="f", device="H100", num_devices=16, step_seconds=9.0)
    table.apply(message(*rng.sample(rows, 32), other))
    assert [len(trend.runs) for trend in table.trends()] == [1, 32]
    trend = table.trend(group_of(rows[0]) or "")
    assert trend is not None
    (found,) = table.changes(trend)
    assert (found.place, found.key, found.runs, found.versions) == (20, key_of("/a/20"), 12, ("jax 1 → 2",))
    assert found.change == pytest.approx(0.05, abs=0.005)
    assert table.trend("nothing") is None


def test_copies_of_a_run_make_no_level() -> None:
    table = Table([Path("/a")])
    rows = [row(f"/a/{n}", started_at=1e9 + n, fingerprint="f", record=f"r{n}", step_seconds=5.0 + n) for n in range(2)]
    copies = [rows[1] | {"directory": f"/a/backup-{n}"} for n in range(5)]
    table.apply(message(*rows, *copies))
    (trend,) = table.trends()
    assert (len(trend.runs), [table.rows[key]["step_seconds"] for key in trend.timed]) == (7, [5.0, 6.0])
    assert len(trend.levels) == 1
