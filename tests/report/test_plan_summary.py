"""`seatrial plan` on one screen: what is asked for, the estimates, what would be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.dialects.examples import examples
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import ROOT

SINGLE = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
TINY = ROOT / "configs" / "native" / "tiny-text.json"
LINES = 24  # of a terminal as it opens


@pytest.fixture(autouse=True)
def no_flags_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan says which it takes over; the trainer's own tests, in the same process, set some."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("more", [(), ("--rehearse",), ("--rehearse", "--text")], ids=" ".join)
def test_a_plan_fits_one_screen(
    more: tuple[str, ...], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = seatrial("plan", SINGLE, "nnodes=1", *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < LINES + (width == 60) * 4
    assert max(map(len, lines)) <= width
    for told in ("70.6 B parameters in 80 layers", "fsdp 8; 1 node × 8 devices (mi300x)", "16 sequences of 8,192",
                 "131,072 tokens a step", "about 109.9 GiB", "10.2 to 17.7 s", "--all"):  # fmt: skip
        assert told in " ".join(done.stdout.split())
    assert list(tmp_path.iterdir()) == []


def test_the_summary_says_what_is_or_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = seatrial("plan", SINGLE, "nnodes=1", cwd=tmp_path).stdout
    assert "starts             nothing: the run asks for 1 × 8 devices" in said
    said = seatrial("plan", SINGLE, "nnodes=1", "--rehearse", cwd=tmp_path).stdout
    assert "starts             1 process of Seatrial's own trainer on this machine" in said
    assert "rehearsal          557,696 parameters, fsdp 8, 2,048 tokens a step, 30 steps" in said
    said = seatrial("plan", TINY, "--on", "slurm", "topology.num_nodes=3", "parallelism.across_nodes.data=-1",
                    "global_batch_size=24", cwd=tmp_path).stdout  # fmt: skip
    assert "starts             3 processes of Seatrial's own trainer as a Slurm job on 3 nodes" in said


def test_the_numbers_are_those_for_scripts(tmp_path: Path) -> None:
    shown = json.loads(seatrial("plan", SINGLE, "nnodes=1", "--format", "json", cwd=tmp_path).stdout)
    said = seatrial("plan", SINGLE, "nnodes=1", cwd=tmp_path).stdout
    least, most = shown["expected"]["tokens_per_second_per_device"]
    assert f"tokens/s/device; {least:,.0f} to {most:,.0f}" in said
    for each in shown["asked"]["spec"]["expectations"]:
        assert f"{each['value']:,.0f}" in said


def test_all_has_the_values_and_the_summary_has_not(tmp_path: Path) -> None:
    short = seatrial("plan", TINY, "steps=7", cwd=tmp_path).stdout
    whole = seatrial("plan", TINY, "steps=7", "--all", cwd=tmp_path).stdout
    assert "override steps" in whole
    assert "-m seatrial.train" in whole
    assert "override steps" not in short
    assert "7 steps" in short


@pytest.mark.parametrize("name", [name for name, path in examples().items() if path.parent.name != "cvs"])
def test_every_example_has_a_summary(name: str, tmp_path: Path) -> None:
    done = seatrial("plan", examples()[name], cwd=tmp_path)
    if done.returncode == 0:
        assert "  model " in done.stdout
        assert len(done.stdout.splitlines()) < LINES
    else:
        assert done.returncode == 2
        assert "error[" in done.stderr


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(TINY.read_text().replace("llama-1m", "evil\\u001b]0;owned\\u0007"))
    said = seatrial("plan", "run.json", cwd=tmp_path).stdout
    assert "evil" in said, said
    assert "\x1b" not in said
    assert "\x07" not in said
