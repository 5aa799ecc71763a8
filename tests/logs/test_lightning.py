"""NeMo 2's lines and the progress bars of NeMo 1 and NxDT."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs, metrics, verdict
from seatrial.events import RunStarted
from tests.helpers.log_cases import both, same, steps, values

Line = Mapping[str, float]

# Name in the log → what it is; the ones that NeMo 2 prints.
NAMES = {
    "lr": "learning_rate",
    "global_batch_size": "global_batch_size",
    "max_memory_reserved": "memory_bytes",
    "reduced_train_loss": "loss",
    "train_step_timing in s": "seconds",
    "TFLOPS_per_GPU": "tflops_per_second_per_device",
    "tokens_per_sec_per_gpu": "tokens_per_second_per_device",
    "consumed_samples": "consumed_samples",
}


def printed(value: float) -> str:
    """As NeMo 2 does it: whole numbers as such, others with four digits."""
    return str(int(value)) if math.isfinite(value) and float(value).is_integer() else f"{value:.4}"


def write(line: Line) -> str:
    n = int(line["step"])
    parts = [f"{name}: {printed(line[name])}" for name in NAMES]
    parts.insert(2, f"global_step: {n}")
    return " | ".join([f"Training epoch 0, iteration {n}/{n + 99 - n % 100}", *parts])


def said(line: Line) -> dict[str, float]:
    return {"step": line["step"], **{name: float(printed(line[key])) for key, name in NAMES.items()}}


finite = st.floats(1e-9, 1e6, allow_subnormal=False)
odd = st.one_of(finite, finite, st.sampled_from([math.nan, math.inf, 0.0, 1.0, 1249.0]))
whole = st.integers(0, 10**12).map(float)
lines = st.fixed_dictionaries(
    {name: whole if "batch" in name or "memory" in name or "samples" in name else odd for name in NAMES}
)


@given(st.lists(lines, min_size=1, max_size=8))
def test_what_nemo_2_prints_is_read_back(drawn: list[dict[str, float]]) -> None:
    written = [{"step": step, **line} for step, line in enumerate(drawn)]
    found = steps(both([write(line) for line in written]))
    assert len(found) == len(written)
    assert all(same(values(step), said(line)) for step, line in zip(found, written, strict=True))


@given(lines, st.integers(0, 400), st.booleans())
def test_a_file_that_is_cut_says_less_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, float], cut: int, gone_on: bool
) -> None:
    before, whole_line = write({"step": 100, **line}), write({"step": 123, **line})
    path = tmp_path_factory.mktemp("cut") / "log.txt"
    path.write_text(f"{before}\n{whole_line[:cut]}")
    told = values(steps(logs.parse([whole_line]))[0])
    for found in steps(logs.read([path])):
        if found.step != 100:
            assert found.step == 123
            assert same(values(found), {name: told[name] for name in values(found)})


def test_a_bar_that_is_drawn_again_and_again_is_told_once_a_step() -> None:
    bar = (
        "Epoch 0: : {percent:3d}%|████      | {n}/50 [{n:02d}:26<10:00, v_num=gjbq, reduced_train_loss={loss:.3f}, "
        "global_step={step:.2f}, consumed_samples={samples:.1f}, train_step_timing in s={seconds:.2f}]"
    )
    drawn = "\r".join(
        bar.format(percent=2 * n, n=n, loss=12 - step / 8, step=step, samples=(step + 1) * 256, seconds=12.5 + step / 8)
        for step in range(40)
        for n in (step + 1, step + 1, step + 2, step + 3)
    )
    found = steps(both([drawn]))
    assert [(step.step, step.loss, step.seconds) for step in found] == [
        (n, round(12 - n / 8, 3), float(f"{12.5 + n / 8:.2f}")) for n in range(40)
    ]
    assert [step.reported["consumed_samples"] for step in found] == [(n + 1) * 256 for n in range(40)]


def test_hostile_bars_are_read_in_bounded_time() -> None:
    assert steps(logs.parse(["Epoch 0:" * 100_000, "Epoch 0: 1/2 [" * 50_000 + "global_step=1", "=" * 10**6])) == []


def own_bars(epochs: int, *, test: bool) -> list[str]:
    """Lightning's own bar, by the clock, and at the start of an epoch once more the old one under the new name."""
    text = []
    for epoch in range(epochs):
        if epoch:
            text.append(f"Epoch {epoch}: 100%|███| 90/90 [00:45<00:00,  2.00it/s, loss={3 - epoch / 5:.3f}, v_num=3]")
        for n in (7, 31, 58, 90):
            at, loss = 45 * n // 90, 3 - (epoch + n / 90) / 5
            text.append(
                f"Epoch {epoch}: {n}%|█ | {n}/90 [00:{at:02d}<00:09,  2.00it/s, loss={loss + 0.02:.3f}, v_num=3]"
            )
            text.append(f"Epoch {epoch}: {n}%|█ | {n}/90 [00:{at:02d}<00:09,  2.00it/s, loss={loss:.3f}, v_num=3]")
    return [*text, *(["Testing DataLoader 0: 100%|███| 12/12 [00:03<00:00,  4.00it/s]"] if test else [])]


def test_a_test_behind_the_last_epoch_says_that_the_training_is_over() -> None:
    for text, outcome in (
        (own_bars(5, test=True), "pass"),
        (own_bars(5, test=False), "inconclusive"),
        (
            [*own_bars(5, test=False)[:-2], "Testing DataLoader 0: 100%|███| 12/12 [00:03<00:00,  4.00it/s]"],
            "inconclusive",
        ),
        ([*own_bars(2, test=True), *own_bars(5, test=False)[18:]], "inconclusive"),
    ):
        events = list(logs.parse(text))
        assert [event.attempt for event in events if isinstance(event, RunStarted)] == [1]
        found = verdict.judge(metrics.measure(events, None), None, rehearsal="")
        assert found.outcome == outcome, found.headline
