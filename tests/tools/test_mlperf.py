"""The tool that judges MLPerf rounds, on a round of our own, and its committed result."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tools import mlperf

from tests.helpers import mlperf_logs
from tests.helpers.mlperf_logs import GRAMMARS, seconds_to_train

RESULT = Path(__file__).parents[1] / "upstream" / "mlperf.json"
PUBLISHED = RESULT.with_suffix(".toml")
CANCELLED = "slurmstepd: error: *** STEP 4.0 ON gpu-1 CANCELLED AT 2026-09-21T14:13:20 DUE TO TIME LIMIT ***"
RUNS = [(1.1, 0.92), (1.1, 0.95, 0.92), (1.1, 0.95, 0.93, 0.92), (1.1, 0.95, 0.92)]


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two submitters; a run of one was cut short, one of the other cancelled after its end, one aborted."""
    folder = tmp_path / "training_results_v9.0"
    for grammar in GRAMMARS:
        for number, evaluations in enumerate(RUNS):
            lines = grammar(evaluations)
            if number == 3 and grammar is mlperf_logs.only_throughput:
                lines = lines[: len(lines) // 2]
            _write(folder, f"We/results/{grammar.__name__}/llama2_70b_lora/result_{number}.txt", lines)
    _write(folder, "They/results/a/llama2_70b_lora/result_0.txt", [*mlperf_logs.only_throughput(), CANCELLED])
    _write(folder, "They/results/a/bert/result_0.txt", mlperf_logs.only_throughput(status="aborted"))
    _write(folder, "They/results/a/llama2_70b_lora/result_1.txt", ["nothing"])
    _write(folder, "We/results/only_throughput/llama2_70b_lora/scaling.json", ['{"scaling_factor": 1.25}'])
    return folder


def _write(folder: Path, name: str, lines: list[str]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def run(folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    out = folder.parent / "out.json"
    done = CliRunner().invoke(mlperf.main, [str(folder), "--json", str(out), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output, json.loads(out.read_text(encoding="utf-8"))


def test_each_log_is_compared_with_its_own_words(round_: Path) -> None:
    code, text, found = run(round_, "--changed")
    assert code == 0, text
    counted = {
        (each["claimed"], each["outcome"]): each["logs"] for each in found["benchmarks"] if "llama" in each["benchmark"]
    }
    assert counted == {
        ("success", "pass"): 15, ("success", "teardown_failed"): 1, ("none", "inconclusive"): 1, ("none", "refused"): 1,
    }  # fmt: skip
    assert {each["outcome"] for each in found["benchmarks"] if each["benchmark"] == "bert"} == {"fail"}
    (other,) = found["not_as_claimed"]
    assert (other["path"], other["failing"]) == (
        f"{round_.name}/They/results/a/llama2_70b_lora/result_0.txt",
        ["orderly end"],
    )
    assert (found["largest_time_off"], found["passed_changed"], found["absent"]) == (0.0, [], {round_.name: 0})
    assert "15 of 16 that claim success pass; 3 of 3 others do not" in text
    assert str(round_.parent) not in json.dumps(found)
    assert {each["benchmark"] for each in run(round_, "--only", "bert")[2]["benchmarks"]} == {"bert"}


@pytest.mark.parametrize(("factor", "code"), [(1.0005, 0), (1.002, 1)])
def test_scores_are_compared_with_the_published_ones(factor: float, code: int, round_: Path) -> None:
    took = sorted(map(seconds_to_train, RUNS[:3]))[1:]  # the fourth is the slowest
    minutes = 1.25 * sum(took) / len(took) / 60
    row = f'round = "{round_.name}", submitter = "We", system = "only_throughput", benchmark = "llama2_70b_lora"'
    path = round_.parent / "published.toml"
    path.write_text(f"published = [{{{row}, minutes = {minutes * factor}}}]\n", encoding="utf-8")
    found = run(round_, "--published", str(path))
    assert found[0] == code, found[1]
    assert found[2]["published"][0]["measured"] == pytest.approx(minutes, abs=1e-4)


def test_what_the_checkout_lacks_is_counted(round_: Path) -> None:
    git = ["git", "-C", str(round_), "-c", "user.name=We", "-c", "user.email=we@example.org"]
    for more in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *more], check=True)
    (round_ / "They/results/a/llama2_70b_lora/result_1.txt").unlink()
    _, _, found = run(round_, "--only", "llama")
    assert found["absent"] == {round_.name: 1}
    assert len(found["commits"][round_.name]) == 40


def test_the_committed_result_has_the_rates_that_are_claimed() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert sorted(result["commits"]) == [f"training_results_v{version}" for version in ("4.1", "5.0", "5.1")]
    logs: Counter[tuple[bool, bool]] = Counter()
    for each in result["benchmarks"]:
        if "llama" in each["benchmark"]:
            logs[each["claimed"] == "success", each["outcome"] == "pass"] += each["logs"]
    assert logs[True, True] >= 0.99 * (logs[True, True] + logs[True, False]) > 1800
    assert logs[False, True] == 0 < logs[False, False]
    assert result["passed_changed"] == []
    assert result["largest_time_off"] <= 1e-3
    published = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["published"]
    assert all(each["off"] <= 1e-3 for each in result["published"])
    llama = {each["minutes"] for each in published if "llama" in each["benchmark"]}
    assert {each["minutes"] for each in result["published"]} == llama
