"""`check --strict` and what `plan` says to expect, as the command line gives them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli import app
from seatrial.commands.check import ConfigArguments
from seatrial.dialects import load
from seatrial.report.expected import expected, expected_lines
from tests.helpers.command_line import seatrial

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "native" / "tiny-text.json"
RECIPE = ROOT / "configs" / "native" / "recipe-llama2-70b-h100.yaml"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout


def test_strict_takes_warnings_for_errors() -> None:
    warned = (str(TINY), "optimizer.learning_rate=3")
    code, said = run("check", *warned)
    assert (code, said.splitlines()[-1]) == (0, "OK: no errors, 1 warning")
    code, said = run("check", *warned, "--strict")
    assert (code, said.splitlines()[-1]) == (2, "1 error")
    assert "error[learning-rate] optimizer.learning_rate" in said
    code, said = run("check", *warned, "--strict", "--format", "json")
    assert code == 2
    assert [problem["severity"] for problem in json.loads(said)["problems"]] == ["error"]


def test_strict_leaves_a_sound_file_and_notes_alone() -> None:
    assert run("check", str(TINY), "--strict") == (0, "OK: no errors\n")
    code, said = run("check", str(TINY), "optimizer.momentum=0.9", "--format", "json", "--strict")
    found = [(problem["code"], problem["severity"]) for problem in json.loads(said)["problems"]]
    assert (code, found) == (0, [("no-effect", "info")])


def test_a_plan_says_what_to_expect_of_a_cluster_that_is_not_here() -> None:
    code, said = run("plan", str(RECIPE), "--all")
    assert code == 0
    assert re.search(r"^memory per device +=? *= about ", said, re.MULTILINE)
    assert "% of 72.0 GiB, which a process gets of 80.0 GiB; parameters " in said
    assert re.search(
        r"^step time .* s: 80% of tuned runs, by published constants; \d+% to \d+% of 989 TFLOP/s", said, re.MULTILINE
    )
    assert "note: the run asks for 8 × 8 devices (h100-sxm), but this machine has" in said
    code, said = run("plan", str(RECIPE), "--format", "json")
    shown = json.loads(said)
    assert (code, shown["plan"], shown["expected"]["device"]) == (0, None, "h100-sxm")
    assert sum(shown["expected"]["memory_bytes_by_use"].values()) == pytest.approx(shown["expected"]["memory_bytes"])
    assert "this machine has" in shown["missing"]


def test_a_plan_counts_all_micro_batches_of_our_own_pipeline(tmp_path: Path) -> None:
    """139.9 GiB by the compiler; of another trainer's, which holds as many micro-batches as stages, 35."""
    (tmp_path / "run.yaml").write_text(
        "model: llama3.1-70b\nsteps: 10\nbatch: {sequence_length: 8192, micro_batch_size: 1, global_batch_size: 512}\n"
        "topology: {num_nodes: 8, devices_per_node: 8, device: h200}\n"
        "parallelism: {within_node: {fsdp: 8}, across_nodes: {pipeline: 8}}\nexecution: {remat: full}\n",
        encoding="utf-8",
    )
    needed = {}
    for engine in ("native", "megatron"):
        code, said = run("plan", str(tmp_path / "run.yaml"), "--format", "json", "--engine", engine)
        assert code == 0
        needed[engine] = json.loads(said)["expected"]["memory_bytes"] / 2**30
    assert 0.95 * 139.9 < needed["native"] < 1.1 * 139.9
    assert needed["megatron"] < 40


def test_the_recipe_s_published_speed_is_within_what_is_expected() -> None:
    """NVIDIA's recipe for Llama2-70B on 64 H100: 1170 tokens/s per GPU."""
    spec = load(RECIPE, (), action="plan").spec
    assert spec is not None
    low, high = expected(spec, "native")["tokens_per_second_per_device"]
    assert low < 1170 < high


def test_without_a_device_only_memory_is_told() -> None:
    spec = load(TINY, (), action="plan").spec
    assert spec is not None
    told = {what: (value, how) for what, value, how in expected_lines(spec, "native")}
    assert told["step time"] == ("unknown", "the run names no device")
    assert told["memory per device"][0].endswith(" MiB")
    assert expected(spec, "native")["step_seconds"] is None


def test_several_files_are_checked_each_by_itself(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("model: llama2-7b\nstepz: 3\n", encoding="utf-8")
    code, said = run("check", str(TINY), str(tmp_path / "bad.yaml"), str(RECIPE), "optimizer.learning_rate=3")
    assert code == 2
    first, second, third = said.split("# ")[1:]
    assert first.splitlines()[-2] == "OK: no errors, 1 warning"
    assert "error[unknown-key] stepz" in second
    assert "learning-rate" in third
    code, said = run("check", str(TINY), str(RECIPE), "--format", "json")
    assert [each["config"] for each in json.loads(said)["configurations"]] == [str(TINY), str(RECIPE)]
    assert code == 0


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["train.py", "steps=10"],
        ["deep/train.py"],
        ["pretrain_gpt.py"],
        ["other.py"],
        ["base.yml"],
        ["train_llama3.sh"],
        ["train_llama3.sh", "TP=1"],
    ],
    ids=" ".join,
)
def test_a_program_s_name_alone_is_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], exists: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(words[0])
    if exists:
        file.parent.mkdir(exist_ok=True)
        file.write_text("import jax\n" if file.suffix == ".py" else "")
    code, said = run("check", *words)
    assert code == 2
    assert said.splitlines()[0].endswith(str(file))
    missing = "why: there is no such file" in said
    assert missing is not exists
    if exists and file.suffix == ".py":
        assert "this is a program, not a configuration" in said
    if file.name in ("train.py", "pretrain_gpt.py"):
        assert f"give the whole command: seatrial … -- python3 {file} " in said


def test_a_command_that_gives_maxtext_nothing_is_refused(tmp_path: Path) -> None:
    code, said = run("check", "python3", "train.py")
    assert code == 2
    assert "error[nothing-asked]" in said
    assert "give the whole command: python3 train.py base.yml model_name=" in said
    (tmp_path / "go.sh").write_text("python3 -m MaxText.train\n")
    assert run("check", str(tmp_path / "go.sh"))[0] == 2
    for words in (["python3", "train.py", "base.yml"], ["python3", "train.py", "steps=5"]):
        assert run("check", *words)[0] == 0


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_warnings_are_counted_in_one_line_that_names_the_command_that_shows_them(verb: str, tmp_path: Path) -> None:
    config = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
    given = (config, "config.nnodes=1", "XLA_FLAGS=--a b", "HF_TOKEN=hunter-2-hunter")
    done = seatrial(verb, *given[:2], *(("--out", config) if verb == "run" else ()), cwd=tmp_path)
    line, *more = done.stderr.splitlines()
    assert line == f"8 warnings, 10 notes: seatrial check {config} config.nnodes=1"
    assert bool(more) == (verb == "run")  # its folder is a file
    said = seatrial(*shlex.split(line.partition(": seatrial ")[2]), cwd=tmp_path)
    assert said.stdout.endswith("OK: no errors, 8 warnings, 10 notes\n")
    shown = ConfigArguments(config=config, overrides=given[1:], model="a b").check_command(rehearse=True)
    assert shlex.split(shown)[-5:] == ["XLA_FLAGS=--a b", "HF_TOKEN=***", "--model", "a b", "--rehearse"]


def test_errors_stand_in_full(tmp_path: Path) -> None:
    config = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
    done = seatrial("run", config, "--rehearse", "steps=x", cwd=tmp_path)
    assert done.returncode == 2
    assert "fix: " in done.stderr
    assert "error[" in done.stderr
