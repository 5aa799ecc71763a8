"""The files of one run: which of them should have steps and has none, and which are two streams of one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from seatrial import logs, metrics, verdict
from seatrial.events import Step
from seatrial.verdict import Check, Verdict

N = 20
STEPS = "".join(
    f" iteration {step:8d}/{N:8d} | consumed samples: {step * 16:12d} | elapsed time per iteration (ms): "
    f"{1000 + step % 3}.0 | learning rate: 1.000000E-04 | global batch size:    16 | lm loss: {5 - step / 20:.6E} | "
    "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    for step in range(1, N + 1)
)
HELLO = "a word of another rank\n"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "logs"


def judged(folder: Path) -> Verdict:
    return verdict.judge(metrics.measure(logs.read([folder]), None), None, rehearsal=False)


def together(found: Verdict) -> Check:
    return next(check for check in found.axes["completion"].checks if check.name == "processes together")


def of(names: str, *texts: str) -> dict[str, str]:
    """Files of several ranks: the name with each number in it, and what stands in it."""
    return {names.format(number): text for number, text in enumerate(texts)}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (of("rank{}.log", STEPS, STEPS, STEPS, ""), "1 of 4 processes report no step: rank3.log is empty."),
        (of("rank{}.log", STEPS, ""), "1 of 2 processes report no step: rank1.log is empty."),
        (of("rank{}.log", STEPS, STEPS, "\n \n", ""),
         "2 of 4 processes report no step: rank2.log is empty, rank3.log is empty."),
        (of("rank{}.log", STEPS, STEPS, STEPS, HELLO), "1 of 4 processes report no step: rank3.log has no step."),
        (of("rank{}.log", STEPS, HELLO, HELLO, ""), "1 of 2 processes report no step: rank3.log is empty."),
        (of("gpu{}.txt", STEPS, "", STEPS), "1 of 3 processes report no step: gpu1.txt is empty."),
        (of("{}/stderr.log", STEPS, STEPS, "") | of("{}/stdout.log", "", "", ""),
         "1 of 3 processes report no step: 2/stderr.log is empty."),
        (of("rank{}.out", STEPS, "", STEPS) | of("rank{}.err", "", HELLO, HELLO),
         "1 of 3 processes report no step: rank1.out has no step."),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_rank_that_says_nothing_beside_others_that_do_is_no_pass(
    files: Mapping[str, str], told: str, tmp_path: Path
) -> None:
    found = judged(written(tmp_path, files))
    assert (found.outcome, together(found).sentence, found.headline) == ("inconclusive", told, told)


@pytest.mark.parametrize(
    "files",
    [
        of("rank{}.log", STEPS, STEPS, STEPS, STEPS),
        of("rank{}.out", STEPS, STEPS, STEPS) | of("rank{}.err", "", "", ""),
        of("attempt_0/{}/stderr.log", STEPS, STEPS) | of("attempt_0/{}/stdout.log", "", HELLO),
        {"12345.out": STEPS, "12345.err": ""},
        {"train.log": STEPS, "nccl.log": "", "launcher.out": ""},
        of("rank{}.log", STEPS, HELLO, HELLO, HELLO),
        of("rank{}.log", HELLO, HELLO, HELLO, STEPS),
        of("rank{}.log", "", "", "", STEPS),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_stream_that_is_not_used_and_ranks_that_do_not_print_are_no_gap(
    files: Mapping[str, str], tmp_path: Path
) -> None:
    found = judged(written(tmp_path, files))
    assert found.outcome == "pass"
    assert together(found).status in ("pass", "not_applicable")


def test_both_streams_of_a_process_have_its_rank(tmp_path: Path) -> None:
    for names in (
        ("{}/stdout.log", "{}/stderr.log"),
        ("rank{}.out", "rank{}.err"),
        ("node-{}-stdout", "node-{}-stderr"),
    ):
        folder = written(tmp_path / names[0][:4], {names[0].format(rank): STEPS for rank in (2, 5)})
        written(tmp_path / names[0][:4], {names[1].format(rank): HELLO for rank in (2, 5)})
        assert {event.process for event in logs.read([folder]) if isinstance(event, Step)} == {2, 5}
