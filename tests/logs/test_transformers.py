"""Lines of Hugging Face's Trainer, by their own step or by the bar before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs
from tests.helpers.log_cases import both, steps


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
