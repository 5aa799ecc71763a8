"""Lines of Hugging Face's Trainer: by their own step, by the bar around them, or by the end of the run."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from seatrial import logs, metrics, verdict
from seatrial.events import Checkpoint, Event, Fault, RunEnded, RunStarted, Step
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


def sparse(bars: list[tuple[int, int]]) -> list[str]:
    """A run of 312 steps whose bar was drawn last at the first step before each line, and next at the second."""
    drawn = "\r{:3.0f}%|█         | {}/312 [{:02d}:{:02d}<16:08,  3.98s/it]"
    text = []
    for n, (before, after) in enumerate(bars, 1):
        text += [drawn.format(at / 3.12, at, at // 15, at % 15 * 4) for at in (before - 10, before)]
        text += [str({"loss": 0.5 - n / 10, "learning_rate": 7.7e-06, "epoch": round(n / 3.12, 2)})]
        text += [drawn.format(after / 3.12, after, after // 15, after % 15 * 4)]
    end = {"train_runtime": 1235.1371, "train_samples_per_second": 4.047, "train_steps_per_second": 0.253, "epoch": 1.0}
    return [*text, drawn.format(99, 311, 20, 44), str(end), drawn.format(100, 312, 20, 48)]


@pytest.mark.parametrize("last", [(300, 309), (299, 309), (299, 310), (291, 301)])
def test_a_bar_that_is_redrawn_now_and_then_gives_its_lines_the_distance_of_those_before(last: tuple[int, int]) -> None:
    text = sparse([(100, 109), (200, 209), last])
    assert [step.step for step in steps(both(text))] == [100, 200, 300]
    assert outcome(text).outcome == "pass"


def test_the_distance_of_the_lines_does_not_go_beyond_what_the_bar_showed() -> None:
    assert [step.step for step in steps(both(sparse([(100, 109), (200, 209), (280, 290)])))] == [100, 200, 280]
    assert [step.step for step in steps(both(sparse([(99, 109), (200, 209), (299, 309)])))] == [99, 200, 299]
    assert [step.step for step in steps(both(sparse([(18, 35), (35, 50), (50, 65)])))] == [18, 35, 50]


def test_hostile_lines_are_read_in_bounded_time() -> None:
    assert steps(logs.parse(["1%|" * 300_000, "{'loss': " * 100_000, "1%| | 1/2 [" * 90_000])) == []


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[Path, Path]]:
    """Logs and states of runs of 32 steps: with the bar or plain, a line for each step or for every fifth.

    "late": all lines come after the bar, because Python buffers them.
    """
    folder, found = tmp_path_factory.mktemp("hf"), {}
    for bar, every, seconds in (
        ("bar", 1, 0.0), ("bar", 5, 0.0), ("plain", 1, 0.01), ("plain", 5, 0.01), ("late", 1, 0.01), ("late", 5, 0.01),
    ):  # fmt: skip
        log, state = folder / f"{bar}-{every}.log", folder / f"{bar}-{every}.json"
        arguments = ["bar" if bar == "late" else bar, "32", str(every), "24", str(seconds), str(state)]
        with log.open("wb") as file:
            subprocess.run(
                [sys.executable, "-m", "tests.logs.hf_run", *arguments], stdout=file, stderr=file, cwd=ROOT, check=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "" if bar == "late" else "1"},
                timeout=120,
            )  # fmt: skip
        found[bar, every] = (log, state)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bar", ["bar", "plain", "late"])
@pytest.mark.parametrize("every", [1, 5])
def test_what_the_trainer_itself_prints(
    printed: dict[tuple[str, int], tuple[Path, Path]], bar: str, every: int
) -> None:
    for path, planned in zip(printed[bar, every], (None if bar == "plain" else 32, 32), strict=True):
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
    for path in (*printed["plain", 5], *printed["bar", 1], *printed["late", 5]):
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
    """The output of a run without a progress bar; version 4 rounds by decimals, version 5 to four digits."""

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


# --- lines that come late, many at a time, though their bar goes by in time ---


def late(
    every: int, done: int, total: int, per_epoch: int, *, at: list[int], end: bool = True, broken: int = 0
) -> list[str]:
    """A run whose lines come after the bars of the steps `at`, and at its end; that of step `broken` is not finite."""
    text, waiting = [], list[str]()
    for n in range(1, done + 1):
        text.append(f"\r {100 * n // total}%|█         | {n}/{total} [00:00<13:24,  4.20s/it]")
        if n % every == 0:
            told = {"loss": math.nan if n == broken else 1 + 3 / n, "epoch": round(n / per_epoch, 2)}
            waiting.append(str({**told, "learning_rate": 1e-5}))
        if n in at and waiting:
            text[-1] += waiting[0]
            text, waiting = [*text, *waiting[1:]], []
    if not end:
        return text
    last = {"train_runtime": 4.2 * done, "train_steps_per_second": round(total / (4.2 * done), 3), "train_loss": 1.5}
    return [*text, *waiting, str({**last, "epoch": round(done / per_epoch, 2)})]


def outcome(text: list[str]) -> verdict.Verdict:
    return verdict.judge(metrics.measure(logs.parse(text), None), None, rehearsal="")


@given(st.sampled_from([1, 5, 10, 25]), st.integers(4, 80), st.integers(0, 24), st.integers(30, 900), st.data())
def test_late_lines_get_the_right_steps_or_none(every: int, count: int, more: int, per_epoch: int, data: Any) -> None:
    done = every * count + more % every
    at = sorted(data.draw(st.sets(st.integers(2 * every, done), max_size=4)))
    events = list(logs.parse(late(every, done, done, per_epoch, at=at)))
    found = [step.step for step in steps(events)]
    true = list(range(every, done + 1, every))
    assert found == (list(range(1, len(true) + 1)) if counted(events) else true)


def test_a_run_with_late_lines_passes() -> None:
    found = outcome(late(20, 1875, 1875, 1875, at=[630, 1270]))  # the epochs of neighbours are printed alike
    assert (found.outcome, found.headline.partition(",")[0]) == ("pass", "Completed all 1")
    assert "1,875 steps, and the loss fell" in found.headline


def test_late_lines_of_a_run_that_did_not_end_well_do_not_pass() -> None:
    cut = outcome(late(20, 1500, 1875, 1875, at=[630, 1270], end=False))
    assert (cut.outcome, "does not say how many steps each stands for" in cut.headline) == ("inconclusive", True)
    early = outcome(late(20, 1500, 1875, 1875, at=[630, 1270]))
    assert (early.outcome, early.headline) == ("fail", "The last step was 1500; step 1875 was planned.")
    bad = outcome(late(20, 1875, 1875, 1875, at=[630, 1270], broken=1000))
    assert (bad.outcome, "at step 1000" in bad.headline) == ("fail", True)


def test_a_late_line_alone_is_not_noticed_but_does_not_pass() -> None:
    """It stands at the wrong bar, and so do all others."""
    assert outcome(late(20, 1875, 1875, 1875, at=[27, 1270])).outcome == "inconclusive"


def test_the_bar_of_the_training_is_the_one_that_its_end_fits() -> None:
    """The first bar without a word before it is taken for the training's until then."""
    other = "\r100%|██████████| {0}/{0} [00:01<00:00, 2000it/s]"
    text = late(20, 1875, 1875, 1875, at=[])
    assert outcome([other.format(3640), *text, other.format(984)]).outcome == "pass"


# --- steps by the number of lines ---


@given(
    st.integers(1, 30), st.integers(1, 6), st.integers(2, 200), st.integers(1, 16), st.booleans(), st.booleans(),
    st.floats(0.5, 1e5), st.sampled_from([4, 5]),
)  # fmt: skip
@example(every=5, epochs=3, batches=59, accumulated=8, first=False, bar=True, seconds=82.83, version=5)
def test_accumulated_gradients_lead_to_the_right_steps_or_none(
    every: int, epochs: int, batches: int, accumulated: int, first: bool, bar: bool, seconds: float, version: int
) -> None:
    """The last step of an epoch has the batches that are left: its epoch is further on than that of the others."""
    per_epoch = -(-batches // accumulated)
    done = epochs * per_epoch
    at = [e + min(1.0, accumulated * (n + 1) / batches) for e in range(epochs) for n in range(per_epoch)]

    def told(values: dict[str, float]) -> str:
        digits = {"train_runtime": 4, "train_steps_per_second": 3, "epoch": 2}
        shown = {name: round(value, digits.get(name, 9)) for name, value in values.items()}
        return str({name: f"{value:.4g}" for name, value in values.items()} if version == 5 else shown)

    true = [n for n in range(1, done + 1) if n % every == 0 or (first and n == 1)]
    assume(len(true) > 1)  # of one line alone, nobody can tell that it came late
    text = [f"\r{100 * n // done}%|█| {n}/{done} [00:00<13:24,  4.20s/it]" for n in range(1, done + 1) if bar]
    text += [told({"loss": 5 - 4 * n / done, "epoch": at[n - 1]}) for n in true]
    text.append(told({"train_runtime": seconds, "train_steps_per_second": done / seconds, "epoch": float(epochs)}))
    events = list(logs.parse(text))
    found = [step.step for step in steps(events)]
    assert found == (list(range(1, len(true) + 1)) if counted(events) else true)


def test_usual_runs_with_accumulated_gradients_get_their_steps() -> None:
    for every, batches, first in ((5, 59, False), (10, 800, True), (1, 79, False), (20, 3170, True)):
        per_epoch = -(-batches // 8)
        text = late(every, 3 * per_epoch, 3 * per_epoch, per_epoch, at=[])
        early = str({"loss": 4.0, "learning_rate": 1e-5, "epoch": round(1 / per_epoch, 2)})
        where = next(place for place, line in enumerate(text) if line.startswith("{"))
        events = list(logs.parse([*text[:where], *([early] if first else []), *text[where:]]))
        true = [*([1] if first else []), *range(every, 3 * per_epoch + 1, every)]
        assert [step.step for step in steps(events)] == true


def test_two_late_lines_are_enough_if_the_progress_bar_says_how_many_steps_were_done() -> None:
    assert [step.step for step in steps(logs.parse(late(1, 2, 2, 2, at=[])))] == [1, 2]
    assert outcome(late(1, 2, 2, 2, at=[])).axes["completion"].status == "pass"


def decayed(shape: str, done: int, total: int, per_epoch: int) -> list[str]:
    """A run with a line every 20 steps and no bar, whose learning rate comes to 0 at step `total`."""
    shapes = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2, "constant": lambda _: 1.0}
    text = [
        str({"loss": 2 + 8 / (1 + n / 50), "learning_rate": 1e-4 * shapes[shape](n / total), "epoch": n / per_epoch})
        for n in range(20, done + 1, 20)
    ]
    last = {"train_runtime": 14003.8, "train_steps_per_second": round(total / 14003.8, 3), "epoch": done / per_epoch}
    return [*text, str(last)]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_learning_rate_that_comes_to_0_tells_how_many_steps_were_planned(shape: str) -> None:
    whole = outcome(decayed(shape, 1971, 1971, 1971))
    assert (whole.outcome, whole.headline.partition(",")[0]) == ("pass", "Completed all 1")
    for done, per_epoch in ((985, 985), (1300, 650), (1940, 1971)):
        stopped = outcome(decayed(shape, done, 1971, per_epoch))
        assert stopped.outcome != "pass", (done, stopped.headline)


def test_a_learning_rate_that_stays_tells_nothing() -> None:
    assert outcome(decayed("constant", 1971, 1971, 1971)).outcome == "inconclusive"


# --- a run that was resumed ---


def resumed(at: int, seconds: int) -> list[str]:
    """A run that goes on behind step `at`: its bar is there at once."""
    text = ["\r  0%|          | 0/400 [00:00<?, ?it/s]"]
    for n in range(at + 1, 401):
        time = 4 + seconds * (n - at)
        text.append(f"\r {n // 4}%|██        | {n}/400 [{time // 60:02d}:{time % 60:02d}<00:05, 305.36it/s]")
        if n % 10 == 0:
            text.append(str({"loss": 1.2 + n % 7 / 90, "learning_rate": 1e-5, "epoch": n / 200}))
    last = {"train_runtime": 4.0 + seconds * (400 - at), "train_steps_per_second": 1.0, "epoch": 2.0}
    return [*text, str({**last, "train_steps_per_second": round(400 / (4 + seconds * (400 - at)), 3)})]


def test_a_bar_that_is_far_ahead_at_once_is_of_a_resumed_run() -> None:
    events = list(logs.parse(resumed(200, 4)))
    assert [event.step for event in events if isinstance(event, Checkpoint)] == [200]
    found = outcome(resumed(200, 4))
    assert (found.outcome, found.axes["numerics"].status) == ("pass", "pass")
    assert "The run was resumed after step 200" in str(verdict.to_dict(found))
    # Drawn for the first time after a while, it may have done these steps.
    assert not any(isinstance(event, Checkpoint) for event in logs.parse(resumed(200, 0)))


# --- how many epochs were asked for ---

COMMAND = "[2026-02-03 04:05:06,789] [INFO] [runner.py:571:main] cmd = python -u tune.py --num_train_epochs {} --bf16 1"


@pytest.mark.parametrize(
    ("asked", "done", "more", "passes"),
    [
        ("5", 5, "", True),
        ("5.0", 5, "", True),
        ("10", 5, "", False),  # it stopped early
        ("5", 5, " --max_steps 900", False),  # these go first
        ("5", 5, " --max_steps -1", True),
    ],
)
def test_a_command_says_the_epochs_of_a_run_without_a_bar(asked: str, done: int, more: str, passes: bool) -> None:
    """The trainer's steps per second are those of the planned steps, even of a run that ends before."""
    per_epoch, seconds = 80, 1000.0
    text = lines(1, per_epoch * done, per_epoch, version=4, seconds=seconds)
    planned = f"'train_steps_per_second': {per_epoch * float(asked) / seconds:.3f}"
    text[-1] = re.sub(r"'train_steps_per_second': [\d.]+", planned, text[-1])
    found = outcome([COMMAND.format(asked) + more, *text])
    assert (found.outcome == "pass") is passes
    assert passes or found.outcome == "inconclusive"
    assert [step.step for step in steps(logs.parse([COMMAND.format(asked) + more, *text]))] == list(
        range(1, per_epoch * done + 1)
    )


def test_a_loss_beside_a_reward_is_that_of_a_policy() -> None:
    """It may be 0 and need not fall; NaN is NaN."""
    usual = [line.replace("'learning_rate'", "'reward': 0.65, 'learning_rate'") for line in late(1, 60, 60, 20, at=[])]
    rising = [re.sub(r"'loss': [\d.]+", f"'loss': {n / 1e4:.4f}", line) for n, line in enumerate(usual)]
    assert outcome(rising).outcome == "pass"
    assert outcome([line.replace("'reward': 0.65, ", "") for line in rising]).outcome != "pass"
    assert outcome([line.replace(": 0.0090", ": nan") for line in rising]).outcome == "fail"


def test_the_run_after_that_of_a_policy_is_its_own() -> None:
    """GRPO, and then fine-tuning in the same log."""
    both_runs = [lines(1, done, 20, version=4, seconds=100.0) for done in (60, 40)]
    policy = [line.replace("'grad_norm'", "'reward': 0.65, 'grad_norm'") for line in both_runs[0]]
    events = list(logs.parse([*policy, *both_runs[1]]))
    assert [event.facts.get("objective") for event in events if isinstance(event, RunStarted)] == ["policy", ""]


@pytest.mark.parametrize(
    ("rates", "epochs", "passes"),
    [
        ((1e-7, 0.0), 4, True),
        ((0.0, 0.0), 4, False),  # of a schedule that was at 0 before
        ((1e-7, 1e-7), 4, False),  # it may have stopped early
        ((1e-7, 0.0), 3.5, False),  # by a number of steps, which may not be the last
    ],
)
def test_a_schedule_that_runs_out_at_the_last_line_says_that_all_steps_are_done(
    rates: tuple[float, float], epochs: float, passes: bool
) -> None:
    text = lines(1, int(80 * epochs), 80, version=4, seconds=1000.0)
    for place, rate in zip((-3, -2), rates, strict=True):
        text[place] = text[place].replace("'epoch'", f"'learning_rate': {rate}, 'epoch'")
    found = outcome(text)
    assert (found.outcome == "pass") is passes
    assert passes or found.outcome == "inconclusive"


@pytest.mark.parametrize(
    ("asked", "end", "planned"),
    [
        ("03/04/2026 05:06:07 - INFO - __main__ -   num_train_epochs: 3.0", 3.0, 597),
        ("num_train_epochs=3,", 3.0, 597),
        ("{'num_train_epochs': 3.0, 'max_steps': -1}", 3.0, 597),
        ("num_train_epochs=5,", 3.0, None),  # it stopped before
        ("num_train_epochs=3,", 2.5, None),
        ("extra_num_train_epochs=3", 3.0, None),
    ],
)
def test_the_epochs_that_were_asked_for_say_how_many_steps_were_planned(
    asked: str, end: float, planned: int | None
) -> None:
    """Every tenth of 597 steps has a line, the last one none; their number follows from the speed of the whole run."""
    text = [asked, *lines(10, 597, 199, version=4, seconds=2039.25)]
    text[-1] = re.sub(r"'epoch': [\d.]+", f"'epoch': {end}", text[-1])
    text[-1] = re.sub(r"'train_steps_per_second': [\d.]+", f"'train_steps_per_second': {597 / 2039.25:.3f}", text[-1])
    found = list(logs.parse(text))
    assert [event.planned_steps for event in found if isinstance(event, RunStarted)] == [planned]
    assert (outcome(text).outcome == "pass") is (planned is not None)


def test_a_learning_rate_that_stays_where_a_gradient_overflowed_tells_of_an_update_that_was_skipped() -> None:
    """The trainer moves its schedule on behind an update; another norm that is not finite is one that was used."""

    def text(overflowed: set[int], skipped: set[int]) -> list[str]:
        found, updates = [], 0
        for n in range(1, 81):
            updates += n not in skipped
            norm = "nan" if n in overflowed else "1.25"
            rate = 1e-4 * (1 - updates / 80)
            found.append(
                f"{{'loss': {5 - n / 20:.4f}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {n / 80}}}"
            )
        return ["Total optimization steps = 80", *found, "{'train_runtime': 80.0, 'train_steps_per_second': 1.0, "
                "'train_loss': 3.0, 'epoch': 1.0}"]  # fmt: skip

    assert outcome(text(set(), set())).outcome == "pass"
    for some in ({40}, {1, 2, 6}):
        assert outcome(text(some, some)).outcome == "pass"
        failed = outcome(text(some, set()))
        assert failed.outcome == "fail"
        assert "The gradient norm is not finite" in failed.headline
    assert outcome(text({30, 40}, {30})).outcome == "fail"
    assert outcome(text(set(range(20, 40)), set(range(20, 40)))).outcome == "fail"  # a quarter of all steps


def test_an_end_alone_is_that_of_a_training_whose_steps_are_not_known() -> None:
    end = "{'train_runtime': 9.3, 'train_steps_per_second': 0.9, 'train_loss': 1.5, 'epoch': 1.0}"
    found = outcome(["Training adapter1", end, "100% 8/8 [00:09<00:00,  1.17s/it]"])
    assert found.outcome == "inconclusive"
    assert "No step was recognised in the log" in str(found.axes["completion"])
