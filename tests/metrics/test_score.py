"""MLPerf's mean of several runs, against one that is made by counting."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.metrics.score import olympic_mean

times = st.floats(1e-3, 1e6)


@given(st.lists(times, min_size=3, max_size=12), st.booleans(), st.randoms())
def test_the_fastest_and_the_slowest_do_not_count(own: list[float], failed: bool, random: Random) -> None:
    everything = [*own, math.inf] if failed else list(own)
    random.shuffle(everything)
    everything.remove(min(everything))
    everything.remove(max(everything))
    found = olympic_mean([*own, None] if failed else own)
    assert found == pytest.approx(fmean(everything))


@pytest.mark.parametrize("own", [[], [5.0], [5.0, 6.0], [5.0, None], [None, 5.0, None], [1.0, 2.0, 3.0, None, None]])
def test_too_few_runs_or_too_many_failures_have_no_mean(own: list[float | None]) -> None:
    assert olympic_mean(own) is None
