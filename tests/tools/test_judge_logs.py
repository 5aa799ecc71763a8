"""The list of other people's logs, each with a label, and the tool that tries the judge on them, on logs of our own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tools import judge_logs

UPSTREAM = Path(__file__).parents[1] / "upstream"
LISTED = UPSTREAM / "logs.toml"
# Each list with the share of its answers that may be wrong; all but the first were taken when those before were known.
WRONG = {"logs": 0.04, "logs-2": 0.04, "logs-3": 0.02, "logs-4": 0.06, "logs-5": 0.09, "logs-6": 0.08}
OUT_OF_MEMORY = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.11 GiB of which 1.05 GiB is free."
)
ENTRIES = """
["https://example.org/runs"]
logs = [
    {id = "whole", family = "a", label = "sound", by = "us", words = "20 of 20 steps"},
    {id = "not-a-number", family = "a", label = "unsound", named = "step 12", by = "us", words = "NaN"},
    {id = "oom", family = "a", label = "failed", cause = ["device_oom"], where = ["rank 3"], by = "us", words = "full"},
    {id = "short", family = "a", label = "open", by = "us", words = "3 steps of 20"},
    {id = "absent", family = "a", label = "open", by = "us", words = "nobody has it"},
]
"""


def line(step: int, loss: float) -> str:
    return (
        f" iteration {step:8d}/{20:8d} | consumed samples: {step * 16:12d} | elapsed time per iteration (ms): 1000.0 | "
        f"learning rate: 1.000000E-04 | global batch size:    16 | lm loss: {loss:.6E} | loss scale: 1.0 | "
        "grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    steps = [line(step, 5 - step / 20) for step in range(1, 21)]
    texts = {
        "whole": steps,
        "not-a-number": [*steps[:11], line(12, float("nan")), *steps[12:]],
        "oom": [*steps[:8], OUT_OF_MEMORY],
        "short": steps[:3],
    }
    for name, lines in texts.items():
        (tmp_path / f"{name}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, listed: str = ENTRIES, *options: str) -> Result:
    (folder / "list.toml").write_text(listed, encoding="utf-8")
    return CliRunner().invoke(judge_logs.main, [str(folder / "list.toml"), str(folder), *options])


def test_the_list_is_as_large_as_is_claimed() -> None:
    listed = judge_logs.entries(LISTED)
    assert len(listed) >= 120
    assert len({each.family for each in listed}) >= 18
    assert sum(each.by == "them" for each in listed) >= 60
    assert [name for name, count in Counter(each.id for each in listed).items() if count > 1] == []
    assert all(each.words and each.source.startswith("https://") for each in listed)
    assert all(each.cause for each in listed if each.label == "failed")
    assert {each.label for each in listed} == {"sound", "unsound", "failed", "open"}


@pytest.mark.parametrize("name", WRONG)
def test_the_committed_result_is_of_its_list_and_as_good_as_is_claimed(name: str) -> None:
    listed = {each.id: each for each in judge_logs.entries(UPSTREAM / f"{name}.toml")}
    logs = json.loads((UPSTREAM / f"{name}_result.json").read_text(encoding="utf-8"))["logs"]
    assert [(each["id"], each["label"]) for each in logs] == [(each.id, each.label) for each in listed.values()]
    wrong = {each["id"]: each["wrong"] for each in logs if "wrong" in each}
    assert not {judge_logs.FALSE_PASS, judge_logs.WRONG_BLAME} & set(wrong.values())
    assert len(wrong) <= WRONG[name] * len(listed)
    assert sorted(wrong) == sorted(each.id for each in listed.values() if each.review)


def test_answers_as_labelled_are_no_disagreement(folder: Path) -> None:
    done = run(folder, ENTRIES, "--json", str(folder / "result.json"))
    assert done.exit_code == 0, done.output
    assert "all agree" in done.output
    assert "1 have no text in" in done.output
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    found = {each["id"]: (each["outcome"], each.get("cause"), each.get("where")) for each in result["logs"]}
    assert found == {
        "whole": ("pass", None, None), "not-a-number": ("fail", None, None),
        "oom": ("died", "device_oom", "rank 3"), "short": ("fail", None, None),
    }  # fmt: skip
    assert str(folder) not in (folder / "result.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (('label = "sound"', 'label = "unsound"'), judge_logs.FALSE_PASS),
        (('label = "unsound"', 'label = "sound"'), judge_logs.FALSE_ALARM),
        (('where = ["rank 3"]', 'where = ["rank 2"]'), judge_logs.WRONG_BLAME),
        (('"oom", family = "a", label = "failed"', '"oom", family = "a", label = "open"'), judge_logs.WRONG_BLAME),
        (('cause = ["device_oom"]', 'cause = ["host_oom"]'), judge_logs.CAUSE_MISSED),
        (('named = "step 12"', 'named = "step 13"'), judge_logs.NOT_NAMED),
        (('"short", family = "a", label = "open"', '"short", family = "any", label = "unsound"'),
         judge_logs.NUMBERS_MISSED),
    ],
)  # fmt: skip
def test_each_disagreement_is_named(change: tuple[str, str], wrong: str, folder: Path) -> None:
    assert change[0] in ENTRIES
    done = run(folder, ENTRIES.replace(*change, 1))
    assert done.exit_code == 1
    assert f"1 {wrong}" in done.output


def test_the_planned_steps_of_the_list_count_and_a_guess_is_confirmed(folder: Path) -> None:
    own = [f"it {step} | loss {5 - step / 20:.4f}" for step in range(1, 21)]
    (folder / "own.log").write_text("\n".join(own) + "\n", encoding="utf-8")
    entry = '{id = "own", family = "a", label = "sound", by = "us", words = "20 steps"},'
    for given, agrees in (("", False), ("steps = 20, ", True), ("steps = 30, ", False)):
        done = run(folder, ENTRIES.replace("logs = [", f"logs = [\n    {entry}".replace("label", f"{given}label"), 1))
        assert (done.exit_code == 0) is agrees, done.output


def test_a_row_that_says_something_unknown_is_refused(folder: Path) -> None:
    for old, new in (("words =", "word ="), ('"device_oom"', '"memory_gone"'), ('label = "open"', 'label = "odd"')):
        done = run(folder, ENTRIES.replace(old, new, 1))
        assert done.exit_code == 1
        assert "Error: " in done.output
