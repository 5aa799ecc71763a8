"""CSV and Parquet, read back by pandas and polars."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyarrow import parquet

from seatrial.publish import Destination, publish
from seatrial.publish.contract import Publication
from seatrial.publish.publication import publication_of
from tests.helpers import attacks, publishing

NAMES = ("runs", "parameters", "checks", "steps")


@pytest.fixture(scope="module")
def publications(tmp_path_factory: pytest.TempPathFactory) -> list[Publication]:
    return [publishing.published(run_dir) for run_dir in publishing.runs(tmp_path_factory.mktemp("runs"))]


def _same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted or (isinstance(wanted, float) and math.isnan(wanted) and math.isnan(found)))


@pytest.mark.parametrize("target", ["csv", "parquet"])
def test_data_frames_have_every_step_check_and_parameter(
    publications: list[Publication], tmp_path: Path, target: str
) -> None:
    for _ in range(2):  # once more replaces it
        assert str(tmp_path) in publish(publications, target, Destination(out=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.{target}" for name in NAMES)
    pandas_read = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}[target]
    polars_read = {"csv": polars.read_csv, "parquet": polars.read_parquet}[target]
    runs, parameters, checks, steps = (polars_read(tmp_path / f"{name}.{target}") for name in NAMES)
    assert [len(pandas_read(tmp_path / f"{name}.{target}")) for name in NAMES] == [
        len(table) for table in (runs, parameters, checks, steps)
    ]
    assert runs["run"].to_list() == ["sound", "diverged", "killed"]
    assert runs["outcome"].to_list() == [one.tags["outcome"] for one in publications]
    assert runs["mfu"].to_list() == [one.figures.get("mfu") for one in publications]
    for one in publications:
        own = polars.col("run_id") == one.id
        losses = steps.filter(own)["loss"].cast(polars.Float64).to_list()
        wanted = [step.loss for attempt in one.report.attempts for step in attempt]
        assert all(_same(found, loss) for found, loss in zip(losses, wanted, strict=True))
        given_values = dict(parameters.filter(own).select("parameter", "value").iter_rows())
        assert set(given_values) == set(one.parameters)
        assert float(given_values["optimizer.learning_rate"]) == one.parameters["optimizer.learning_rate"]
        assert one.report.verdict is not None
        statuses = [(c.title, c.status) for axis in one.report.verdict.axes.values() for c in axis.checks]
        assert list(checks.filter(own).select("check", "status").iter_rows()) == statuses


def test_parquet_keeps_types_units_and_what_is_not_finite(publications: list[Publication], tmp_path: Path) -> None:
    publish(publications, "parquet", Destination(out=tmp_path))
    steps = parquet.read_table(tmp_path / "steps.parquet")
    assert steps.schema.field("step").type == pa.int64()
    assert steps.schema.field("seconds").metadata[b"unit"] == b"s"
    assert steps.schema.field("in_window").type == pa.bool_()
    assert steps["grad_norm"].to_pylist().count(math.inf) == 1
    assert sum(math.isnan(loss) for loss in steps["loss"].to_pylist()) == 1
    assert steps["loss"].null_count == 0


@settings(max_examples=40)
@given(raw=attacks.text)
def test_hostile_text_comes_back_from_parquet_and_inert_from_csv(
    tmp_path_factory: pytest.TempPathFactory, raw: str
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    one = publication_of(attacks.poisoned(raw), Path("nowhere"))
    for target in ("parquet", "csv"):
        publish([one], target, Destination(out=folder))
    assert parquet.read_table(folder / "runs.parquet")["headline"].to_pylist() == [one.tags.get("headline")]
    table = pandas.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    (shown,) = table["headline"]
    wanted = one.tags.get("headline", "")
    assert shown in (wanted, f"'{wanted}")
    assert not shown.startswith(("=", "+", "@"))
    assert not shown.startswith("-") or shown.strip("-0123456789.eE+") == ""
