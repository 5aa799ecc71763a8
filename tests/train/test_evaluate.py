"""Evaluation: at the right steps, on the right examples, and what it measures is the loss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seatrial.spec import Evaluation
from seatrial.train.data import Sources
from seatrial.train.evaluate import enough, judged, make_evaluator
from seatrial.train.mesh import make_mesh
from seatrial.train.model import hidden_states
from seatrial.train.random import make_key
from seatrial.train.trainer import make_setup, make_trainer
from tests.helpers.trainer import TINY, RandomSource, begun, make_spec


class Held(RandomSource):
    """Examples some of whose targets do not count, as many as an epoch has."""

    def __init__(self, num_examples: int | None) -> None:
        super().__init__(TINY.vocab_size, 32)
        self.num_examples = num_examples

    def examples(self, numbers):
        made = super().examples(numbers)
        drawn = np.stack([np.random.default_rng((7, n)).random(32) for n in numbers.tolist()])
        return made | {"weights": (drawn < 0.7).astype(np.float32)}


def evaluator(training: int | None, held: int | None, **asked):
    spec = make_spec(evaluation=Evaluation(**asked))
    return make_evaluator(spec, SimpleNamespace(), Sources(Held(training), Held(held)))


def evaluated(evaluator, steps: int) -> dict[int, int]:
    """Steps done → batches evaluated then."""
    return {done: n for done in range(steps + 1) if (n := evaluator.batches_after(done))}


# The global batch is 16: 170 examples are 10 steps an epoch, 100 are 6 batches and a rest that is left out.
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"interval_steps": 5, "batches": 2}, {5: 2, 10: 2, 15: 2, 20: 2}),
        ({"interval_steps": 12, "batches": 2, "initial_batches": 1}, {0: 1, 12: 2}),
        ({"interval_steps": 12, "batches": 50, "initial_batches": 50}, {0: 6, 12: 6}),
        ({"interval_steps": 12, "initial_batches": -1}, {0: 6, 12: 6}),
        ({"interval_steps": 12, "fraction": 0.5}, {12: 3}),
        ({"interval_steps": 12, "fraction": 0.01}, {12: 1}),
        ({"interval_fraction": 1.0, "batches": 1}, {10: 1, 20: 1}),
        ({"interval_fraction": 0.4, "batches": 1}, {4: 1, 8: 1, 14: 1, 18: 1}),  # counted anew in each epoch
        ({"interval_fraction": 0.01, "batches": 1}, dict.fromkeys(range(1, 21), 1)),
        ({"interval_steps": 4, "every_epochs": 1, "batches": 1}, {4: 1, 8: 1, 14: 1, 18: 1}),
        ({"interval_steps": 4, "every_epochs": 2, "batches": 1}, {14: 1, 18: 1}),
        ({"interval_fraction": 1.0, "every_epochs": 2, "batches": 1}, {20: 1}),
        ({"interval_fraction": 0.5, "every_epochs": 2, "batches": 1}, {15: 1, 20: 1}),
    ],
)
def test_when_and_on_how_much(asked, expected):
    assert evaluated(evaluator(170, 100, **asked), 20) == expected


def test_it_is_off_without_an_interval():
    assert evaluator(170, 100, batches=3, initial_batches=2) is None


@pytest.mark.parametrize(
    ("training", "held", "asked", "message"),
    [
        (None, 100, {"interval_fraction": 0.5}, "counts in epochs, and this data is endless: set interval_steps"),
        (
            None,
            100,
            {"interval_steps": 5, "every_epochs": 2},
            "every_epochs counts in epochs, and this data is endless",
        ),
        (170, 100, {"interval_steps": 11, "every_epochs": 1}, "is 11, and an epoch, in which it counts, has 10"),
        (170, None, {"interval_steps": 5}, "is endless: set evaluation.batches"),
        (170, None, {"interval_steps": 5, "batches": 1, "initial_batches": -1}, "is endless: set evaluation.batches"),
    ],
)
def test_what_has_no_end_has_no_parts(training, held, asked, message):
    with pytest.raises(ValueError, match=message):
        evaluator(training, held, **asked)


def test_it_measures_the_mean_over_all_targets_that_count():
    spec = make_spec({"data": 2}, model=replace(TINY, num_layers=1), evaluation=Evaluation(interval_steps=1))
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:2]))
    params = begun(spec, trainer)["params"]
    held = Held(55)  # 3 batches
    event, text = make_evaluator(spec, trainer, Sources(Held(None), held)).evaluate(params, 7, process=0)

    example = held.examples(np.arange(48))
    alone = make_spec(model=spec.model)
    decoder = make_setup(alone, "cpu").decoder
    params = jax.tree.map(np.asarray, params)
    h_BTD = jax.jit(lambda tokens: hidden_states(params, {"tokens": tokens}, decoder, make_key(0)))(example["tokens"])
    logits_BTV = np.asarray(h_BTD, np.float64) @ params["head"]
    losses_BT = np.log(np.exp(logits_BTV).sum(-1)) - np.take_along_axis(
        logits_BTV, example["targets"][..., None].astype(np.int64), -1
    ).squeeze(-1)
    expected = (losses_BT * example["weights"]).sum() / example["weights"].sum()
    assert event.step == 7
    np.testing.assert_allclose(event.loss, expected, rtol=1e-5)
    assert text == f"eval metrics after step: 6, loss={expected:.3f}, total_weights={example['weights'].sum():.1f}"


@pytest.mark.parametrize(
    ("losses", "asked", "why"),
    [
        ([3.0, 2.0], Evaluation(target_loss=2.0), "reached the target 2"),
        ([3.0, 2.1], Evaluation(target_loss=2.0), None),
        ([3.0, 2.0, 2.1, 2.0], Evaluation(patience=2), "last 2 evaluations were no better than 2.0000"),
        ([3.0, 2.0, 2.1, 1.9], Evaluation(patience=2), None),
        ([float("nan"), float("nan")], Evaluation(patience=1), "no better"),
        ([float("nan"), 5.0], Evaluation(patience=1), None),
        ([float("nan")], Evaluation(target_loss=9.0), None),
        ([9.0, 9.0, 9.0], Evaluation(), None),
    ],
)
def test_evaluations_say_when_it_is_enough(losses, asked, why):
    found = {}
    for loss in losses:
        found = judged(loss, found)
    told = enough(found, asked)
    assert (told is None) if why is None else (why in told)
