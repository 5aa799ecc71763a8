"""MaxText's lines of every version, cut ones, and those of our own trainer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import events, logs
from seatrial.events import RunEnded, RunStarted
from tests.helpers.log_cases import both, same, steps, values
from tests.helpers.streams import make_spec

TFLOPS, TOKENS = "tflops_per_second_per_device", "tokens_per_second_per_device"
Line = Mapping[str, float]


def _pairs(line: Line, *names: str) -> str:
    of = {"tflops": f"TFLOP/s/device: {line[TFLOPS]:.3f}", "rate": f"Tokens/s/device: {line[TOKENS]:.3f}"}
    of |= {"tflops_2023": f"TFLOP/s: {line[TFLOPS]:.3f}", "seconds": f"seconds: {line['seconds']:.3f}"}
    of |= {"weights": f"total_weights: {line['tokens']}", "loss": f"loss: {line['loss']:.3f}"}
    of |= {"lm": f"lm_loss: {line['loss'] / 2:.3f}, perplexity: {line['perplexity']:.3f}"}
    of |= {"slices": "live slice count: 3", "mtp": "main_model_loss: 1.125, mtp_loss: 0.250"}
    of |= {"moe": "moe_lb_loss: 0.012345, moe_max_load_ratio: 2.125, moe_max_load_ratio_mean: 1.250"}
    of |= {"diag": f"diag: raw_grad_norm={line['grad_norm']:.3f} grad_norm=1.000"}
    return ", ".join([f"completed step: {int(line['step'])}", *(of[name] for name in names)])


# Version → how it prints a step, and what it says.
VERSIONS: dict[str, tuple[Callable[[Line], str], tuple[str, ...]]] = {
    "2023": (lambda s: _pairs(s, "seconds", "tflops_2023", "loss"), ("seconds", TFLOPS, "loss")),
    "2024-03": (lambda s: _pairs(s, "seconds", "tflops", "loss"), ("seconds", TFLOPS, "loss")),
    "2024-07": (lambda s: _pairs(s, "seconds", "tflops", "rate", "loss"), ("seconds", TFLOPS, TOKENS, "loss")),
    "2024-09": (
        lambda s: _pairs(s, "seconds", "tflops", "rate", "weights", "loss"),
        ("seconds", TFLOPS, TOKENS, "tokens", "loss"),
    ),
    "0.2.0": (
        lambda s: "I0301 10:00:05.120001 7 m.py:1] " + _pairs(s, "seconds", "tflops", "rate", "weights", "loss", "mtp"),
        ("seconds", TFLOPS, TOKENS, "tokens", "loss"),
    ),
    "0.2.4": (
        lambda s: _pairs(s, "seconds", "slices", "tflops", "rate", "weights", "loss", "lm"),
        ("seconds", TFLOPS, TOKENS, "tokens", "loss", "perplexity"),
    ),
    "0.2.5": (
        lambda s: _pairs(s, "seconds", "tflops", "rate", "weights", "loss", "lm", "moe", "diag"),
        ("seconds", TFLOPS, TOKENS, "tokens", "loss", "perplexity", "grad_norm"),
    ),
}  # fmt: skip

thousandths = st.integers(0, 10**9).map(lambda n: n / 1000)
odd = st.one_of(thousandths, thousandths, st.sampled_from([math.nan, math.inf]))
lines = st.fixed_dictionaries(
    {"seconds": thousandths, TFLOPS: odd, TOKENS: odd, "tokens": st.integers(0, 10**9), "loss": odd}
    | {"perplexity": odd, "grad_norm": odd}
)


def numbered(drawn: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{"step": step, **line} for step, line in enumerate(drawn)]


@given(st.lists(lines, min_size=1, max_size=12).map(numbered), st.sampled_from(sorted(VERSIONS)))
def test_what_a_version_prints_is_read_back(written: list[dict[str, float]], version: str) -> None:
    form, names = VERSIONS[version]
    found = steps(both([form(line) for line in written]))
    assert len(found) == len(written)
    assert all(
        same(values(step), {name: line[name] for name in ("step", *names)})
        for step, line in zip(found, written, strict=True)
    )


@given(lines, st.sampled_from(sorted(VERSIONS)), st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_is_free(line: dict[str, float], version: str, chance: random.Random) -> None:
    head, _, rest = VERSIONS[version][0]({"step": 7, **line}).partition("7, ")
    pairs = [pair for pair in rest.split(", ") if not pair.startswith("total_weights")]
    shuffled = chance.sample(pairs, len(pairs))
    first, second = (steps(both([f"{head}7, {', '.join(order)}"])) for order in (pairs, shuffled))
    assert same(values(second[0]), values(first[0]))


@given(lines, st.sampled_from(sorted(VERSIONS)), st.integers(0, 400), st.booleans())
def test_a_cut_line_says_less_and_nothing_else(line: dict[str, float], version: str, cut: int, last: bool) -> None:
    whole = VERSIONS[version][0]({"step": 1234, **line})
    told = values(steps(logs.parse([whole]))[0])
    before = VERSIONS[version][0]({"step": 1233, **line})
    rest = [] if last else [VERSIONS[version][0]({"step": 1235, **line})]
    for found in steps(both([before, whole[:cut], *rest])):
        if found.step not in (1233, 1235):
            assert same(values(found), {name: told[name] for name in values(found)})


def test_our_own_trainer_is_read_back() -> None:
    from seatrial.train.metrics_log import maxtext_line

    spec = make_spec()
    written = [events.Step(step=n, seconds=0.25 + n / 64, tokens=2048, loss=6.25 - n / 8) for n in range(6)]
    found = steps(both([maxtext_line(spec, step) for step in written]))
    assert [(s.step, s.tokens, s.loss) for s in found] == [(s.step, s.tokens, s.loss) for s in written]
    assert [s.seconds for s in found] == pytest.approx([s.seconds for s in written], abs=0.00051)


def test_a_line_of_a_megabyte_costs_nothing_but_itself() -> None:
    form, _ = VERSIONS["2024-09"]
    one = form(
        {"step": 1, "seconds": 2.0, TFLOPS: 3.0, TOKENS: 4.0, "tokens": 5, "loss": 6.0, "perplexity": 1, "grad_norm": 1}
    )
    two = one.replace("step: 1", "step: 2")
    hostile = ["completed step: " * 70_000, "seconds: 1" * 100_000, "completed step: 2, seconds: " + "1" * 10**6]
    found = steps(both([one, *hostile[:2], two]))
    assert [step.step for step in found] == [1, 2]
    assert steps(logs.parse([hostile[2]])) == [] or steps(logs.parse([hostile[2]]))[0].loss is None


def test_a_short_run_before_the_long_one_is_an_attempt_of_its_own() -> None:
    form, _ = VERSIONS["2024-09"]
    line: dict[str, float] = {"seconds": 2.0, TFLOPS: 3.0, TOKENS: 4.0, "tokens": 5, "perplexity": 1, "grad_norm": 1}
    text = [form({"step": n, "loss": 9 - n / 100, **line}) for n in (*range(15), *range(50))]
    found = both(text)
    assert [event.attempt for event in found if isinstance(event, RunStarted)] == [1, 2]
    assert len(steps(found)) == 65
    assert not [event for event in found if isinstance(event, RunEnded)]


def test_a_cut_line_is_no_model_for_the_lines_that_follow() -> None:
    form, _ = VERSIONS["2024-09"]
    line: dict[str, float] = {"seconds": 2.0, TFLOPS: 3.0, TOKENS: 4.0, "tokens": 5, "perplexity": 1, "grad_norm": 1}
    text = [form({"step": n, "loss": 9 - n / 100, **line}) for n in range(20)]
    text[0], text[7] = text[0][:-1], text[7][:-2]
    assert [step.step for step in steps(both(text)) if step.loss is None] == [0, 7]
