"""Lines of Hugging Face's Trainer: by their own step, by the bar around them, or by the end of the run."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial import logs, metrics, verdict
from seatrial.events import Event, Fault, RunEnded, RunStarted, Step
from seatrial.spec import Expectation
from tests.helpers.log_cases import both, steps
from tests.helpers.streams import make_spec
from tests.logs.hf_run import loss_at

ROOT = Path(__file__).parents[2]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.booleans())
def test_losses_come_back_with_the_step_of_the_bar(losses: list[float], strings: bool) -> None:
    text = []
    for n, loss in enumerate(losses, 1):
        told: dict[str, object] = {"loss": loss, "grad_norm": 1.5, "epoch": n / 10}
        bar = f"\r {n}%|█         | {10 * n}/1000 [00:{n:02d}<13:24,  4.20s/it]"
        text.append(bar + str({name: str(value) for name, value in told.items()} if strings else told))
    assert [(step.step, step.loss) for step in steps(both(text))] == [
        (10 * n, loss) for n, loss in enumerate(losses, 1)
    ]


def test_hostile_lines_are_read_in_bounded_time() -> None:
    assert steps(logs.parse(["1%|" * 300_000, "{'loss': " * 100_000, "1%| | 1/2 [" * 90_000])) == []


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[Path, Path]]:
    """Logs and states of runs of 32 steps: with the bar or plain, a line for each step or for every fifth."""
    folder, found = tmp_path_factory.mktemp("hf"), {}
    for bar, every, seconds in (("bar", 1, 0.0), ("bar", 5, 0.0), ("plain", 1, 0.01), ("plain", 5, 0.01)):
        log, state = folder / f"{bar}-{every}.log", folder / f"{bar}-{every}.json"
        arguments = [bar, "32", str(every), "24", str(seconds), str(state)]
        with log.open("wb") as file:
            subprocess.run(
                [sys.executable, "-m", "tests.logs.hf_run", *arguments], stdout=file, stderr=file, cwd=ROOT, check=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=120,
            )  # fmt: skip
        found[bar, every] = (log, state)
    return found


@pytest.mark.parametrize("bar", ["bar", "plain"])
@pytest.mark.parametrize("every", [1, 5])
def test_what_the_trainer_itself_prints(
    printed: dict[tuple[str, int], tuple[Path, Path]], bar: str, every: int
) -> None:
    for path, planned in zip(printed[bar, every], (32 if bar == "bar" else None, 32), strict=True):
        events = logs.read([path])
        (started,) = [event for event in events if isinstance(event, RunStarted)]
        (ended,) = [event for event in events if isinstance(event, RunEnded)]
        assert [step.step for step in steps(events)] == list(range(every, 33, every)), path.name
        assert [step.loss for step in steps(events)] == [
            pytest.approx(loss_at(s.step), rel=1e-3) for s in steps(events)
        ]
        assert (started.planned_steps, started.facts["family"]) == (planned, "transformers")
        assert ended.totals is not None
        assert ended.totals["run_seconds"] * ended.totals["steps_per_second"] == pytest.approx(32, rel=0.02)


def test_a_reported_speed_of_the_whole_run_decides_nothing(
    printed: dict[tuple[str, int], tuple[Path, Path]],
) -> None:
    spec = make_spec(steps=32, expectations=[Expectation(metric="step_seconds", value=100.0)])
    for path in (*printed["plain", 5], *printed["bar", 1]):
        events = logs.read([path])
        (rate,) = [event.totals["steps_per_second"] for event in events if isinstance(event, RunEnded) and event.totals]
        measured = metrics.measure(events, spec)
        found = verdict.judge(measured, spec, rehearsal="")
        (target,) = found.axes["performance"].checks
        assert (found.outcome, target.status) == ("inconclusive", "inconclusive")
        assert target.measured == pytest.approx(1 / rate)
        assert "no step has a time of its own; 10 are needed" in target.evidence
        assert any("as reported for the whole run" in line for line in target.evidence)


def lines(
    every: int, steps_done: int, per_epoch: int, *, version: int, seconds: float, first: bool = False, end: bool = True
) -> list[str]:
    """What a run prints without a bar; version 4 rounds by decimals, version 5 to four digits."""

    def told(values: dict[str, float]) -> str:
        if version == 5:
            return str({name: f"{value:.4g}" for name, value in values.items()})
        rounded = {"train_runtime": 4, "train_steps_per_second": 3, "epoch": 2}
        return str({name: round(value, rounded.get(name, 9)) for name, value in values.items()})

    shown = [n for n in range(1, steps_done + 1) if n % every == 0 or (first and n == 1)]
    text = [told({"loss": 5 - 4 * n / steps_done, "grad_norm": 1.5, "epoch": n / per_epoch}) for n in shown]
    last = {
        "train_runtime": seconds,
        "train_steps_per_second": steps_done / seconds,
        "train_loss": 3.5,
        "epoch": steps_done / per_epoch,
    }
    return [*text, *([told(last)] if end else [])]


def counted(events: list[Event]) -> bool:
    return any(isinstance(event, RunStarted) and event.facts.get("lines_counted") for event in events)


@given(
    st.sampled_from([1, 2, 5, 10, 50, 100, 500]), st.integers(3, 60), st.integers(0, 500), st.integers(3, 20_000),
    st.floats(0.5, 1e6), st.sampled_from([4, 5]), st.booleans(),
)  # fmt: skip
@example(every=10, count=12, more=0, per_epoch=308, seconds=1.75, version=4, first=False)
def test_lines_without_a_step_get_the_right_one_or_none(
    every: int, count: int, more: int, per_epoch: int, seconds: float, version: int, first: bool
) -> None:
    done = every * count + more % every
    text = lines(every, done, per_epoch, version=version, seconds=seconds, first=first)
    events = list(logs.parse(text))
    found = [step.step for step in steps(events)]
    true = sorted({*range(every, done + 1, every), *([1] if first else [])})
    assert found == (list(range(1, len(true) + 1)) if counted(events) else true)


@pytest.mark.parametrize("version", [4, 5])
def test_usual_runs_get_their_steps(version: int) -> None:
    made, resolved = random.Random(3), 0
    for _ in range(200):
        every, count = made.choice([1, 5, 10]), made.randrange(10, 60)
        text = lines(every, every * count, made.randrange(20, 400), version=version, seconds=made.uniform(100, 5000))
        resolved += not counted(list(logs.parse(text)))
    assert resolved >= 120


def test_lines_are_counted_where_the_run_does_not_end() -> None:
    text = lines(10, 200, 100, version=5, seconds=100.0, end=False)
    events = list(logs.parse(text))
    assert [step.step for step in steps(events)] == list(range(1, 21))
    assert counted(events)
    broken = [text[0], text[1].replace("'4.6'", "'nan'"), *text[2:]]
    (bad,) = [step for step in steps(logs.parse(broken)) if not math.isfinite(step.loss or 0.0)]
    assert bad.step == 2


def test_a_crash_after_the_last_line_is_not_survived() -> None:
    """The line waits for its bar; what broke comes after it nevertheless."""
    bars = [
        f"\r {n}%|█         | {n}/100 [00:{n:02d}<13:24,  4.20s/it]{{'loss': {5 - n / 50}, 'epoch': {n / 50}}}"
        for n in range(1, 21)
    ]
    crash = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "RuntimeError: broken"]
    events = list(logs.parse([*bars, *crash]))
    assert [event.step for event in events[1:21] if isinstance(event, Step)] == list(range(1, 21))
    assert isinstance(events[21], Fault)
    found = verdict.judge(metrics.measure(events, None), None, rehearsal="")
    assert (found.outcome, found.headline.split(":")[0]) == ("died", "Training died after step 20 of 100")
