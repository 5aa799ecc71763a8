"""Metrics files: one JSON object per line, tables, `trainer_state.json`, our own events and reports."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import events, logs, metrics, verdict
from seatrial.events import Eval, Event, RunEnded, RunStarted, Step
from seatrial.logs import metric_keys
from seatrial.report import csv as csv_report
from tests.helpers.log_cases import steps

N = 40


def loss_at(step: int) -> float:
    return 1.5 + 4 * 0.95**step


# How programs spell a row: the number of the row → what it says, and which step that is.
Spelling = tuple[Callable[[int], Mapping[str, Any]], Callable[[int], int]]
ROWS: dict[str, Spelling] = {
    "maxtext": (
        lambda n: {"learning/loss": loss_at(n), "perf/step_time_seconds": 1.25, "learning/grad_norm": 2.0,
                   "perf/per_device_tflops_per_sec": 400.5, "run_name": "x", "step": float(n)},
        lambda n: n,
    ),
    "ms-swift": (
        lambda n: {"loss": loss_at(n), "grad_norm": 2.0, "learning_rate": 1e-4, "token_acc": 0.5, "epoch": n / 7,
                   "global_step/max_steps": f"{n + 1}/{N}", "memory(GiB)": 4.2},
        lambda n: n + 1,
    ),
    "LLaMA-Factory": (
        lambda n: {"current_steps": 5 * n + 5, "total_steps": 5 * N, "loss": loss_at(n), "lr": 1e-4, "epoch": n / 7,
                   "percentage": 2.5 * n, "elapsed_time": "1 day, 0:10:05", "remaining_time": "0:00:00"},
        lambda n: 5 * n + 5,
    ),
    "torchtitan": (
        lambda n: {"step": 10 * n + 10, "loss_metrics/global_avg_loss": loss_at(n), "throughput(tps)": 9000.5,
                   "time_metrics/end_to_end(s)": 1.25, "mfu(%)": 31.5, "tflops": 400.5, "grad_norm": 2.0},
        lambda n: 10 * n + 10,
    ),
    "W&B": (
        lambda n: {"_step": n, "_runtime": 2.5 * n, "_timestamp": 1.76e9 + 2.5 * n, "train/loss": loss_at(n),
                   "train/global_step": 5 * n + 5, "train/grad_norm": 2.0},
        lambda n: 5 * n + 5,
    ),
    "nested": (lambda n: {"step": n, "train": {"loss": loss_at(n), "grad_norm": 2.0}}, lambda n: n),
    "megatron": (
        lambda n: {"_step": n + 1, "lm loss": loss_at(n), "iteration-time": 1.25, "grad-norm": 2.0, "loss-scale": 1.0},
        lambda n: n + 1,
    ),
    "strings": (lambda n: {"step": str(n), "loss": f"{loss_at(n):.6f}"}, lambda n: n),
}  # fmt: skip


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, delimiter=delimiter, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def started(record: Sequence[Event]) -> RunStarted:
    (found,) = [event for event in record if isinstance(event, RunStarted)]
    return found


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["lines", "table", "semicolons"])
def test_every_spelling_says_its_steps(name: str, form: str, tmp_path: Path) -> None:
    make, number = ROWS[name]
    rows = [make(n) for n in range(N)]
    if form != "lines" and name == "nested":
        rows = [{"step": row["step"], **{f"train/{key}": value for key, value in row["train"].items()}} for row in rows]
    write = {"lines": write_lines, "table": write_table, "semicolons": lambda path, of: write_table(path, of, ";")}[
        form
    ]
    record = logs.read([write(tmp_path / "metrics", rows)])
    assert [step.step for step in steps(record)] == [number(n) for n in range(N)]
    assert [step.loss for step in steps(record)] == pytest.approx([loss_at(n) for n in range(N)], rel=1e-5)
    assert started(record).facts["family"] == "metrics"
    assert "guessed" not in started(record).facts
    told = rows[3]
    assert steps(record)[3].seconds == (1.25 if {"perf/step_time_seconds", "iteration-time"} & told.keys() else
                                        told.get("time_metrics/end_to_end(s)"))  # fmt: skip
    if "mfu(%)" in told:
        assert steps(record)[3].reported["mfu"] == pytest.approx(0.315)
        assert steps(record)[3].reported["tokens_per_second_per_device"] == 9000.5
    assert started(record).planned_steps == {"ms-swift": N, "LLaMA-Factory": 5 * N}.get(name)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"gap": st.integers(1, 9)},
            optional={
                "loss": st.floats(allow_nan=True, allow_infinity=True, width=32) | st.none(),
                "val_loss": st.floats(0, 100),
                "lr": st.floats(0, 1),
            },
        ),
        min_size=1, max_size=30,
    ),
    st.booleans(),
)  # fmt: skip
def test_sparse_rows_say_what_they_say(drawn: list[dict[str, Any]], table: bool) -> None:
    """Against what Python's own readers make of the file: a step has the losses of all its rows."""
    with TemporaryDirectory() as folder:
        check_sparse(drawn, Path(folder), table=table)


def check_sparse(drawn: list[dict[str, Any]], folder: Path, *, table: bool) -> None:
    step, rows = 0, []
    for row in drawn:
        step += row["gap"]
        kept = {name: value for name, value in row.items() if name != "gap" and value is not None}
        rows += [{"step": step, name: value} for name, value in kept.items()] or [{"step": step}]
    path = write_table(folder / "metrics.csv", rows) if table else write_lines(folder / "m.jsonl", rows)
    if not any("loss" in row or "val_loss" in row for row in rows):
        return
    losses: dict[int, float] = {}
    validated: dict[int, float] = {}
    for row in (
        csv.DictReader(io.StringIO(path.read_text())) if table else map(json.loads, path.read_text().splitlines())
    ):
        for name, found in (("loss", losses), ("val_loss", validated)):
            if row.get(name) not in (None, ""):
                found[int(row["step"])] = float(row[name])
    record = logs.read([path])
    read = {each.step: each.loss for each in steps(record) if each.loss is not None}
    assert read == pytest.approx(losses, nan_ok=True)
    evals = {each.step: each.loss for each in record if isinstance(each, Eval)}
    assert evals == pytest.approx(validated)


def test_a_table_of_lightning(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for step in range(9, 200, 10):
        rows += [{"lr-AdamW": 1e-4, "step": step}, {"epoch": 0, "step": step, "train_loss": loss_at(step // 10)}]
        if step % 50 == 49:
            rows.append({"epoch": 0, "step": step, "val_loss": 3.5})
    record = logs.read([write_table(tmp_path / "metrics.csv", rows)])
    assert [step.step for step in steps(record)] == list(range(9, 200, 10))
    assert {step.learning_rate for step in steps(record)} == {1e-4}
    assert [event.step for event in record if isinstance(event, Eval)] == [49, 99, 149, 199]


def test_a_row_that_was_cut_is_none(tmp_path: Path) -> None:
    text = write_table(
        tmp_path / "whole.csv", [{"step": n, "loss": f"{loss_at(n):.6f}"} for n in range(20)]
    ).read_text()
    (tmp_path / "cut.csv").write_text(text[:-5])
    assert [step.step for step in steps(logs.read([tmp_path / "cut.csv"]))] == list(range(19))
    whole = write_lines(tmp_path / "whole.jsonl", [{"step": n, "loss": loss_at(n)} for n in range(20)]).read_text()
    (tmp_path / "cut.jsonl").write_text(whole[:-6])
    assert [step.step for step in steps(logs.read([tmp_path / "cut.jsonl"]))] == list(range(19))
    with gzip.open(tmp_path / "packed", "wt") as file:
        file.write(whole)
    assert len(steps(logs.read([tmp_path / "packed"]))) == 20


def test_a_loss_that_is_nan_fails(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": math.nan if n == 12 else loss_at(n)} for n in range(20)]
    for path in (write_lines(tmp_path / "a.jsonl", rows), write_table(tmp_path / "a.csv", rows)):
        found = verdict.judge(metrics.measure(logs.read([path]), None), None, rehearsal="")
        assert (found.outcome, found.headline) == ("fail", "The loss became nan at step 12.")


def test_a_loss_beside_the_loss_that_is_nan_fails(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": loss_at(n), "z_loss": math.inf if n == 12 else 0.1} for n in range(20)]
    nested = [{"step": row["step"], "train": {"loss": row["loss"], "z_loss": row["z_loss"]}} for row in rows]
    whole = state([row for row in rows if row["step"]], done=19, planned=19)
    (tmp_path / "trainer_state.json").write_text(json.dumps(whole))
    for path, name in {
        write_lines(tmp_path / "a.jsonl", rows): "z_loss",
        write_lines(tmp_path / "b.jsonl", nested): "train/z_loss",
        write_table(tmp_path / "a.csv", rows): "z_loss",
        tmp_path / "trainer_state.json": "z_loss",
    }.items():
        found = verdict.judge(metrics.measure(logs.read([path]), None), None, rehearsal="")
        assert (found.outcome, found.headline) == ("fail", f"{name} became inf at step 12.")


def test_a_nan_is_not_forgotten_for_another_row_of_its_step(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": loss_at(n)} for n in range(20)]
    rows.insert(12, {"step": 12, "loss": math.nan})
    found = steps(logs.read([write_lines(tmp_path / "a.jsonl", rows)]))
    assert [step.step for step in found if not math.isfinite(step.loss or 0.0)] == [12]
    assert len(found) == 20


def state(history: Sequence[Mapping[str, Any]], *, done: int, planned: int) -> dict[str, Any]:
    return {
        "best_metric": None, "epoch": 1.0, "eval_steps": 500, "global_step": done, "log_history": list(history),
        "max_steps": planned, "num_train_epochs": 1, "trial_name": None,
    }  # fmt: skip


HISTORY = [{"epoch": n / 40, "loss": loss_at(n), "grad_norm": 2.0, "step": n} for n in range(2, 31, 2)]


@pytest.mark.parametrize("indent", [2, None])
def test_a_trainer_state(indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state(HISTORY, done=31, planned=31), indent=indent, sort_keys=True) + "\n")
    record = logs.read([path])
    assert [step.step for step in steps(record)] == list(range(2, 31, 2))
    found = verdict.judge(metrics.measure(record, None), None, rehearsal="")
    assert (found.outcome, started(record).planned_steps) == ("pass", 31)
    path.write_text(json.dumps(state(HISTORY[:8], done=16, planned=31), indent=indent))
    found = verdict.judge(metrics.measure(logs.read([path]), None), None, rehearsal="")
    assert found.outcome == "fail"
    assert found.headline.startswith("The record breaks off after step 16 of 31")


def test_a_long_trainer_state_of_one_line(tmp_path: Path) -> None:
    history = [{"loss": loss_at(n % 90), "step": n, "note": "x" * 50} for n in range(1, 3001)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state(history, done=3000, planned=3000)))
    assert len(steps(logs.read([path]))) == 3000


def test_what_we_wrote_ourselves_is_read_back(tmp_path: Path) -> None:
    record = logs.read([write_lines(tmp_path / "a.jsonl", [ROWS["maxtext"][0](n) for n in range(20)])])
    path = tmp_path / "events.jsonl"
    path.write_text("".join(events.dumps(event) + "\n" for event in record))
    assert [events.dumps(event) for event in logs.read([path])] == [events.dumps(event) for event in record]
    table = csv_report.write(csv_report.COLUMNS, [
        (n, 1, 1.25, 8e4, 1e4, 400.5, 0.4, loss_at(n), 2.0, 1e-4, "", "yes") for n in range(20)
    ])  # fmt: skip
    (tmp_path / "steps.csv").write_text(table)
    read = steps(logs.read([tmp_path / "steps.csv"]))
    assert [(step.step, step.loss, step.seconds) for step in read] == [(n, loss_at(n), 1.25) for n in range(20)]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}\n", "[1, 2]\n", "{\n", '{"a": ' * 5000, "a,b,c\n1,2,3\n", "step,name\n1,x\n",
        "Hello, world\nstep, loss\n",
        '{"level": "info", "msg": "step 3 loss 2.5"}\n' * 3, '{"log_history": 3}\n', '{"log_history": [3, "x", null]}',
        '{"step": "x", "loss": "y"}\n', '{"step": -1, "loss": 2.5}\n{"step": 1e400, "loss": 2.5}\n',
        '{"step": NaN, "loss": 2.5}\n{"step": 1.5, "loss": 2.5}\n{"step": true, "loss": 2.5}\n', "step,loss\n",
        "step,loss\nx,y\n1\n1,2,3\n", '"step","loss\n"1', "\x00" * 100,
    ],
)  # fmt: skip
def test_what_has_no_step_gives_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    assert steps(logs.read([tmp_path / "x"])) == []


@pytest.mark.slow
def test_rows_are_not_kept(tmp_path: Path) -> None:
    def memory(count: int) -> int:
        path = write_lines(tmp_path / f"{count}.jsonl", [ROWS["maxtext"][0](n) for n in range(count)])
        tracemalloc.start()
        assert sum(1 for _ in logs.parse_file(path)) == count + 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    memory(10)
    assert memory(20_000) < memory(2_000) + 500_000


def test_no_key_means_two_fields() -> None:
    keys = [key for key, _ in metric_keys.FIELDS]
    assert len(set(keys)) == len(keys)
    assert all(key == metric_keys.plain(key) for key in (*keys, *metric_keys.STEP, *metric_keys.EVAL_LOSS))
    assert not set(keys) & {*metric_keys.STEP, *metric_keys.EVAL_LOSS, *metric_keys.TIME, *metric_keys.TOTAL}


def test_the_end_of_a_run_is_no_step(tmp_path: Path) -> None:
    """ms-swift's last row has the mean loss of all steps, under the number of the last one."""
    rows = [ROWS["ms-swift"][0](n) for n in range(N)]
    end = {"train_runtime": 50.0, "train_steps_per_second": 0.8, "train_loss": 9.5, "global_step/max_steps": f"{N}/{N}"}
    record = logs.read([write_lines(tmp_path / "logging.jsonl", [*rows, end, {"best_metric": 1.5}])])
    assert steps(record)[-1].loss == loss_at(N - 1)
    (ended,) = [event for event in record if isinstance(event, RunEnded)]
    assert (ended.reason, ended.totals) == (
        "completed",
        {"run_seconds": 50.0, "steps_per_second": 0.8, "planned_steps": N},
    )


def test_llama_factory_ends_with_a_row_of_the_last_step(tmp_path: Path) -> None:
    total = 5 * N + 3
    rows = [{**ROWS["LLaMA-Factory"][0](n), "total_steps": total} for n in range(N)]
    checked = {"current_steps": 50, "total_steps": total, "eval_loss": 2.5, "epoch": 1.5}
    end = {"current_steps": total, "total_steps": total, "epoch": 6.0, "percentage": 100.0}
    for last, word in (([end], ["completed"]), ([{**end, "current_steps": total - 1}], []), ([], [])):
        record = logs.read([write_lines(tmp_path / "trainer_log.jsonl", [*rows[:9], checked, *rows[9:], *last])])
        assert [step.step for step in steps(record)] == [5 * n + 5 for n in range(N)]
        assert [event.reason for event in record if isinstance(event, RunEnded)] == word
        assert [(event.step, event.loss) for event in record if isinstance(event, Eval)] == [(50, 2.5)]
    at_the_end = {**checked, "current_steps": total}  # an evaluation of the last step may come before that row
    for last, word in (([at_the_end, end], ["completed"]), ([at_the_end], [])):
        record = logs.read([write_lines(tmp_path / "trainer_log.jsonl", [*rows, *last])])
        assert [event.reason for event in record if isinstance(event, RunEnded)] == word
        assert [(event.step, event.loss) for event in record if isinstance(event, Eval)] == [(total, 2.5)]


def test_a_row_with_a_reward_is_of_a_policy(tmp_path: Path) -> None:
    rows = [{**ROWS["ms-swift"][0](n), "reward": 0.5} for n in range(N)]
    assert started(logs.read([write_lines(tmp_path / "logging.jsonl", rows)])).facts["objective"] == "policy"


def test_random_lines_never_end_in_an_error(tmp_path: Path) -> None:
    made = random.Random(5)
    lines = [json.dumps(ROWS["maxtext"][0](n)) for n in range(30)]
    for number in range(200):
        text = list("\n".join(lines))
        for _ in range(made.randrange(1, 40)):
            place = made.randrange(len(text))
            text[place : place + made.randrange(3)] = made.choice(
                ['"', "{", "}", "\n", "1", "e9", "nan", "", "\x00", "é"]
            )
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(text))
        assert all(isinstance(event, Event) for event in logs.read([path]))


def test_standard_input_may_be_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(json.dumps(ROWS["W&B"][0](n)) + "\n" for n in range(20)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert [step.step for step in logs.parse_file(Path("-")) if isinstance(step, Step)] == list(range(5, 101, 5))


def judged(path: Path, planned_steps: int | None = None) -> verdict.Verdict:
    found = metrics.measure(logs.read([path]), None, planned_steps=planned_steps)
    return verdict.judge(found, None, rehearsal="")


def by_epoch(first: int, *, length: int = 20, epochs: int = 3, **others: Any) -> list[dict[str, Any]]:
    """Rows of a loop that numbers the batches of each epoch."""
    return [
        {"epoch": epoch, "step": step, **others, "loss": loss_at(epoch * length + step)}
        for epoch in range(epochs)
        for step in range(first, first + length)
    ]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("write", [write_lines, write_table])
def test_steps_that_begin_again_with_each_epoch_are_those_of_the_run(
    first: int, write: Callable[..., Path], tmp_path: Path
) -> None:
    rows = by_epoch(first)
    record = logs.read([write(tmp_path / "metrics", rows)])
    assert [step.step for step in steps(record)] == list(range(first, 60 + first))
    assert started(record).attempt == 1
    assert judged(tmp_path / "metrics").outcome == "inconclusive"
    assert judged(tmp_path / "metrics", 60).outcome == "pass"
    rows[10]["loss"] = math.nan
    found = judged(write(tmp_path / "broken", rows))
    assert (found.outcome, found.headline) == ("fail", f"The loss became nan at step {10 + first}.")


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 1), st.data())
def test_a_run_that_is_resumed_in_an_epoch_goes_on_there(lengths: list[int], first: int, data: st.DataObject) -> None:
    rows = [
        {"epoch": epoch, "step": step, "loss": loss_at(step), "true": sum(lengths[:epoch]) + step}
        for epoch, length in enumerate(lengths)
        for step in range(first, length + first)
    ]
    end, again = (data.draw(st.integers(1, len(rows))) for _ in range(2))
    rows = [*rows[:end], *rows[min(end, again) :]]
    with TemporaryDirectory() as folder:
        record = logs.read([write_lines(Path(folder) / "a.jsonl", rows)])
    assert {step.step for step in steps(record)} == {row["true"] for row in rows}


def test_regular_lines_of_an_epoch_go_on_in_the_next(tmp_path: Path) -> None:
    every: dict[tuple[int, ...], list[int]] = {  # lines of an epoch → those of the run
        (0, 5, 10, 15): [0, 5, 10, 15, 20, 25, 30, 35],
        (1, 6, 11, 16): [1, 6, 11, 16, 21, 26, 31, 36],
        (5, 10, 15, 20): [5, 10, 15, 20, 25, 30, 35, 40],
        (1, 5, 10, 15): [1, 5, 10, 15, 16, 20, 25, 30],  # with its first one
        (5, 10, 15, 17): [5, 10, 15, 17, 22, 27, 32, 34],  # with its last one
        (0, 5, 10, 14): [0, 5, 10, 14, 15, 20, 25, 29],
        (7,): [7, 14],
    }
    for lines, of_run in every.items():
        rows = [{"epoch": epoch, "iter": step, "loss": loss_at(step)} for epoch in (1, 2) for step in lines]
        assert [step.step for step in steps(logs.read([write_lines(tmp_path / "a.jsonl", rows)]))] == of_run


def test_a_total_beside_the_step_of_an_epoch_is_the_epochs_or_the_runs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", by_epoch(1, total_steps=20))
    assert started(logs.read([path])).planned_steps is None
    assert (judged(path).outcome, judged(path, 60).outcome, judged(path, 80).outcome) == (
        "inconclusive",
        "pass",
        "fail",
    )
    path = write_lines(tmp_path / "b.jsonl", by_epoch(1, total_steps=60))
    assert (started(logs.read([path])).planned_steps, judged(path).outcome) == (60, "pass")
    path = write_lines(tmp_path / "c.jsonl", by_epoch(1, total_steps=20, epochs=1))
    assert (started(logs.read([path])).planned_steps, judged(path).outcome) == (20, "pass")
    # Of epochs of the run's own steps, and of one that ends early.
    rows = [{"epoch": n // 20, "step": n + 1, "max_steps": 60, "loss": loss_at(n)} for n in range(60)]
    assert judged(write_lines(tmp_path / "d.jsonl", rows)).outcome == "pass"
    assert judged(write_lines(tmp_path / "e.jsonl", rows[:50])).outcome == "fail"


def test_a_row_without_a_loss_begins_no_epoch(tmp_path: Path) -> None:
    """A validation may be numbered by its epoch, beside steps of the run."""
    rows: list[dict[str, Any]] = [{"epoch": n // 20, "step": n, "loss": loss_at(n)} for n in range(60)]
    rows.insert(20, {"epoch": 1, "step": 1, "val_loss": 3.0})
    assert [step.step for step in steps(logs.read([write_lines(tmp_path / "a.jsonl", rows)]))] == list(range(60))
    counted = by_epoch(1)
    counted.insert(40, {"epoch": 1, "step": 20, "val_loss": 3.0})
    record = logs.read([write_lines(tmp_path / "b.jsonl", counted)])
    assert [event.step for event in record if isinstance(event, Eval)] == [40]


def test_an_epoch_with_a_fraction_is_beside_a_step_of_the_run(tmp_path: Path) -> None:
    """A run begun again after another one on less data: its step goes back while its epoch goes on."""
    rows = [{"epoch": n / 20, "step": n, "loss": loss_at(n)} for n in range(1, 41)]
    rows += [{"epoch": n / 4, "step": n, "loss": loss_at(n)} for n in range(12, 17, 4)]
    assert [step.step for step in steps(logs.read([write_lines(tmp_path / "a.jsonl", rows)]))][-2:] == [12, 16]


def test_an_mfu_is_a_fraction_or_percent(tmp_path: Path) -> None:
    """nanoGPT and OLMo-core write percent; the first of nanoGPT's are -100, the first of others -1."""
    for key, written, read in (
        ("mfu", 41.5, 0.415), ("throughput/device/MFU", 41.5, 0.415), ("mfu", 0.415, 0.415), ("mfu(%)", 0.5, 0.005),
        ("mfu(%)", 150.0, 1.5), ("mfu", -100.0, None), ("mfu", -1.0, None),
    ):  # fmt: skip
        rows = [{"_step": n, "train/loss": loss_at(n), key: written} for n in range(1, 31)]
        path = write_lines(tmp_path / "a.jsonl", rows)
        assert steps(logs.read([path]))[0].reported.get("mfu") == (read and pytest.approx(read))
        assert judged(path, 30).outcome == ("fail" if read == 1.5 else "pass")


def test_a_table_of_a_data_frame_has_a_number_before_each_row(tmp_path: Path) -> None:
    rows = [{"": n, "_step": n + 1, "train/loss": loss_at(n)} for n in range(20)]
    path = write_table(tmp_path / "history.csv", rows)
    assert path.read_text().startswith(",_step,train/loss\n0,1,")
    assert [step.step for step in steps(logs.read([path]))] == list(range(1, 21))
    unknown = write_table(tmp_path / "other.csv", [{"": n, "b": n * 2, "sft loss": loss_at(n)} for n in range(20)])
    record = logs.read([unknown])
    assert [step.step for step in steps(record)] == [2 * n for n in range(20)]
    assert "'b' for the step" in started(record).facts["guessed"]
    (tmp_path / "no.csv").write_text(",loss\n" + "".join(f"{n},{loss_at(n)}\n" for n in range(20)))
    assert steps(logs.read([tmp_path / "no.csv"])) == []


def test_a_comma_in_a_table_of_semicolons_is_a_decimal_one(tmp_path: Path) -> None:
    def with_comma(value: float) -> str:
        return f"{value:.3f}".replace(".", ",")

    rows = [
        {"step": n, "loss": with_comma(loss_at(n) + 8), "val_loss": with_comma(9.125), "step_time_s": "1,202",
         "consumed_tokens": "1,024"}
        for n in range(1, 21)
    ]  # fmt: skip
    record = logs.read([write_table(tmp_path / "a.csv", rows, ";")])
    assert [step.loss for step in steps(record)] == [round(loss_at(n) + 8, 3) for n in range(1, 21)]
    assert {step.seconds for step in steps(record)} == {1.202}
    assert {event.loss for event in record if isinstance(event, Eval)} == {9.125}
    assert "consumed_tokens" not in steps(record)[0].reported  # 1,024 may be either
    for tokens, read in (("1,024", 1024.0), ("1,024,000", 1_024_000.0)):
        point = [{"step": n, "loss": f"{loss_at(n):.3f}", "consumed_tokens": tokens} for n in range(20)]
        record = logs.read([write_table(tmp_path / "b.csv", point)])
        assert steps(record)[0].reported["consumed_tokens"] == read


def test_a_nan_may_stand_for_no_value(tmp_path: Path) -> None:
    """As in the rows of a data frame; an evaluation that gives NaN is told from it by the other rows."""
    nan = math.nan

    def rows(validated: Callable[[int], float], **own: float) -> list[dict[str, Any]]:
        return [{"step": n, "train_loss": loss_at(n), "val_loss": validated(n), **own} for n in range(1, 41)]

    def evals(made: Sequence[Mapping[str, Any]], write: Callable[..., Path]) -> list[int]:
        record = logs.read([write(tmp_path / "a", made)])
        assert [step.step for step in steps(record)] == list(range(1, 41))
        return [event.step for event in record if isinstance(event, Eval)]

    sparse = rows(lambda n: 3.0 if n % 10 == 0 else nan)
    apart = [each for row in sparse for each in (
        {**row, "val_loss": nan}, *([{**row, "train_loss": nan}] if row["step"] % 10 == 0 else [])
    )]  # fmt: skip
    for made in (sparse, apart):
        assert evals(made, write_lines) == evals(made, write_table) == [10, 20, 30, 40]
        assert judged(tmp_path / "a", 40).outcome == "pass"
    one_has_none = rows(lambda n: nan if n == 20 else 3.0)
    del one_has_none[4]["val_loss"]
    never = rows(lambda n: nan)
    rare = [row if row["step"] % 10 == 0 else {"step": row["step"], "train_loss": row["train_loss"]} for row in never]
    at_first = [*never[:1], *({**row, "val_loss": 3.0} for row in rare[1:30]), *rare[30:]]
    del at_first[1]["val_loss"]
    always = rows(lambda n: nan if n in (1, 20) else 3.0)
    for made, at in ((one_has_none, 20), (never, 1), (rare, 10), (at_first, 1), (always, 1)):
        path = write_lines(tmp_path / "b", made)
        assert judged(path, 40).outcome == "fail"
        (found, *_) = [e.step for e in logs.read([path]) if isinstance(e, Eval) and math.isnan(e.loss or 0)]
        assert found == at


def test_a_time_may_be_in_milliseconds(tmp_path: Path) -> None:
    for scale in (1, 1e3, 1e6, 1e9):
        rows = [
            {"timestamp": (1.7637e9 + 2 * n) * scale, "step": n, "loss": loss_at(n), "step_time_s": 2.0}
            for n in range(1, 41)
        ]
        path = write_lines(tmp_path / "a.jsonl", rows)
        assert [step.wall_time for step in steps(logs.read([path]))][:2] == pytest.approx([1.7637e9 + 2, 1.7637e9 + 4])
        assert judged(path, 40).outcome == "pass"
