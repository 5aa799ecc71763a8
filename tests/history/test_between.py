"""The noise between runs: against scipy, and in comparisons of several runs a side."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from seatrial.errors import InputError
from seatrial.history import compare_runs, judge_slowdown, sides
from seatrial.history.between import ratio_between, spread_of
from seatrial.history.compare import LEVEL, compare
from seatrial.history.loaded import load
from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import loaded, make

NOISY = (1.0, 1.012, 0.991, 1.006, 0.985)  # what the same job takes on other days


def test_two_sides_of_several_are_students_t_test() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        a, b = (rng.lognormal(0, 0.01, int(rng.integers(2, 8))).tolist() for _ in range(2))
        spread = spread_of([a, b])
        exact = stats.ttest_ind(np.log(b), np.log(a)).confidence_interval(LEVEL)
        ratio = ratio_between(a, b, spread, LEVEL)
        assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((exact.low, exact.high), rel=1e-6, abs=1e-9)
        assert spread.df == len(a) + len(b) - 2


def test_one_run_beside_several_has_a_prediction_interval() -> None:
    others = [1.0, 1.01, 0.985, 1.004]
    spread = spread_of([others, [1.03]])
    ratio = ratio_between(others, [1.03], spread, 0.95)
    sigma = np.std(np.log(others), ddof=1)
    reach = stats.t.ppf(0.975, 3) * sigma * math.sqrt(1 + 1 / 4)
    assert math.log(ratio.high / ratio.value) == pytest.approx(reach)
    assert spread.num_runs == 4
    assert spread_of([[1.0], [2.0]]) is None


def test_runs_that_differ_by_themselves_are_not_called_slower(tmp_path: Path) -> None:
    """Each pair of single runs would be: their steps differ by 0.2 %, the runs by 1 %."""
    a = [loaded(tmp_path / f"a{n}", seed=n, times=times) for n, times in enumerate(NOISY[:3])]
    b = [loaded(tmp_path / f"b{n}", seed=10 + n, times=times) for n, times in enumerate(NOISY[2:])]
    assert compare(a[0], b[0]).speed.judgement == "better"
    found = compare(a, b)
    assert found.speed.judgement == "inconclusive"  # 3 % would not have been found either
    assert found.speed.speed.high > 1.03
    assert found.sentence.startswith("Inconclusive: B's speed differs from A's by something within [")
    assert "in these two runs" not in found.sentence
    slow = [loaded(tmp_path / f"c{n}", seed=20 + n, times=1.15 * times) for n, times in enumerate(NOISY[2:])]
    assert compare(a, slow).speed.judgement == "worse"
    gate = judge_slowdown(compare(a, slow), 0.03)
    assert gate.status == "fail"
    assert judge_slowdown(compare(a, b), 0.05).status == "pass"


def test_one_run_a_side_says_that_the_noise_between_runs_is_not_known(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2, times=1.02)
    text, _ = compare_runs(str(a), str(b))
    assert "in these two runs (Tokens/s per device)." in text
    assert "noise between runs is not known" in text
    assert json.loads(compare_runs(str(a), str(b), output="json")[0])["spread"] is None


def test_other_runs_of_the_configuration_tell_how_far_runs_differ(tmp_path: Path) -> None:
    for n, times in enumerate(NOISY):
        make(tmp_path / f"before{n}", seed=n, times=times)
    a, b = make(tmp_path / "a", seed=11), make(tmp_path / "b", seed=12, times=1.02)
    text, _ = compare_runs(str(a), str(b))
    assert text.split("\n\n")[1].startswith("Inconclusive: B's speed differs from A's by something within [")
    assert "(standard deviation, of 5 runs)" in text
    data = json.loads(compare_runs(str(a), str(b), output="json")[0])
    assert data["spread"]["df"] == 4
    assert data["spread"]["sigma"] == pytest.approx(np.std(np.log(NOISY), ddof=1), rel=0.1)
    for n in range(3):
        (tmp_path / f"before{n}" / "verdict.json").unlink()  # two that were judged are too few
    assert "noise between runs is not known" in compare_runs(str(a), str(b))[0]


def test_history_compares_with_the_earlier_runs_of_the_configuration(tmp_path: Path) -> None:
    for n, times in enumerate(NOISY):
        _at(make(tmp_path / f"before{n}", seed=n, times=times), 1_000_000 + n)
    new = _at(make(tmp_path / "new", seed=20, times=1.2), 1_000_100)
    _at(make(tmp_path / "later", seed=21, times=1.2), 1_000_200)
    text, code = compare_runs((), str(new), limit=0.03)
    assert [line.split("/")[-1].split(":")[0] for line in text.splitlines() if re.match(r"A\d  ", line)] == [
        f"before{n}" for n in (4, 3, 2, 1, 0)
    ]
    assert code == 1
    with pytest.raises(InputError, match="no earlier run"):
        compare_runs((), str(tmp_path / "before0"))


def test_runs_of_another_trainer_are_no_earlier_ones(tmp_path: Path) -> None:
    for n in range(3):
        _at(make(tmp_path / f"before{n}", seed=n, family="maxtext"), 1_000_000 + n)
    new = _at(make(tmp_path / "new", seed=20, times=1.2, family="megatron"), 1_000_100)
    with pytest.raises(InputError, match="no earlier run"):
        compare_runs((), str(new), limit=0.03)


def _at(run_dir: Path, seconds: float) -> Path:
    """The run directory, as if the run had started then."""
    path = run_dir / "events-0.jsonl"
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])
    assert first["kind"] == "run_started"
    path.write_text("\n".join([json.dumps(first | {"wall_time": seconds}), *lines[1:]]) + "\n")
    return run_dir


def test_the_same_run_twice_would_make_the_noise_look_smaller(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b", seed=1)
    for one, other in (([a, a], [b]), ([a], [b, f"{b}/"])):
        with pytest.raises(InputError, match="named twice"):
            compare_runs([str(run) for run in one], [str(run) for run in other])
    with pytest.raises(InputError, match="with itself"):
        compare_runs([str(a), str(b)], [str(b)])


def test_copies_of_a_run_are_one_run(tmp_path: Path) -> None:
    a, b = _at(make(tmp_path / "a"), 1_000_000), _at(make(tmp_path / "b", seed=1), 1_000_100)
    copies = [shutil.copytree(a, tmp_path / name) for name in ("a-backup", "a-copy")]
    data = json.loads(compare_runs((), str(b), output="json")[0])
    assert [run["directory"] for run in data["runs_a"]] == [str(a)]
    assert data["spread"] is None  # three of one run would tell of no noise
    assert "noise between runs is not known" in compare_runs(str(a), str(b))[0]
    with pytest.raises(InputError, match="no earlier run"):
        compare_runs((), str(copies[0]))
    for one, other in (([a, copies[0]], [b]), ([a], [copies[1]])):
        with pytest.raises(InputError, match="is a copy of"):
            compare_runs([str(run) for run in one], [str(run) for run in other])
    assert compare_runs(str(a), str(copies[0]), anyway=True)[1] == 0


def test_other_work_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    from tests.helpers.history_runs import one_node
    from tests.history.test_compare import OTHER

    runs = [loaded(tmp_path / "a"), loaded(tmp_path / "b", seed=1)]
    other = loaded(tmp_path / "c", spec=one_node(**OTHER["model"]))
    for a, b in (([runs[0], other], runs[1]), (runs[0], [runs[1], other])):
        with pytest.raises(InputError, match="another model"):
            compare(a, b)


def test_one_failed_run_of_several_fails_the_gate(tmp_path: Path) -> None:
    a = [loaded(tmp_path / f"a{n}", seed=n) for n in range(2)]
    make(tmp_path / "died", seed=5, last=20)
    b = [loaded(tmp_path / "b", seed=3), load(tmp_path / "died")]
    gate = judge_slowdown(compare(a, b), 0.03)
    assert gate.status == "fail"
    assert any(reason.startswith("B2 did not pass its own verdict: died") for reason in gate.reasons)


@pytest.mark.parametrize(("runs", "others", "history", "says"), [
    (("a",), (), False, "1 run is named"), (("a", "b", "c"), (), False, "3 runs are named"),
    (("a",), ("b",), True, "--with names runs too"),
])  # fmt: skip
def test_what_is_compared_with_what_has_to_be_said(
    runs: tuple[str, ...], others: tuple[str, ...], history: bool, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        sides(runs, others, history=history)


def test_several_a_side_on_the_command_line(tmp_path: Path) -> None:
    for n, times in enumerate((1.0, 1.001, 0.999)):
        make(tmp_path / f"a{n}", seed=n, times=times)
        make(tmp_path / f"b{n}", seed=10 + n, times=1.1 * times)
    done = seatrial("compare", "a0", "a1", "a2", "--with", "b0", "b1", "b2", "--fail-if-slower", "3%", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "B is slower than A by 9." in done.stdout
    assert [line[:2] for line in done.stdout.splitlines() if re.match(r"[AB]\d  ", line)] == [
        f"{side}{number}" for side in "AB" for number in (1, 2, 3)
    ]  # by the names that a gate's reasons have
    first = seatrial("compare", "--with", "b0", "b1", "--fail-if-slower", "3%", "--", "a0", "a1", cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    assert seatrial("compare", "a0", "--with", cwd=tmp_path).returncode == 2
    assert os.environ["XDG_DATA_HOME"]
