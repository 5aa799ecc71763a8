"""`seatrial capture` as people meet it: consent, what is written, and why there is nothing to write."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.helpers.capturing import sandboxed_or_skip
from tests.helpers.command_line import seatrial

TRAIN = "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b steps=5 dataset_type=synthetic"


def capture(folder: Path, script: str, *words: str) -> CompletedProcess[str]:
    sandboxed_or_skip()
    (folder / "launch.sh").write_text(script, encoding="utf-8")
    return seatrial("capture", "launch.sh", *words, cwd=folder)


def test_from_a_script_to_a_plan(tmp_path: Path) -> None:
    done = capture(tmp_path, f"for n in 1; do\n  [ $n = 1 ] && {TRAIN} per_device_batch_size=$n\ndone\n", "--yes")
    assert done.returncode == 0, done.stderr
    assert "→ " in done.stdout
    assert "launch.sh:2" in done.stdout
    assert "next: seatrial check launch.captured.json" in done.stdout
    read = seatrial("plan", "launch.captured.json", "topology.device=h100", "--explain", "steps", cwd=tmp_path)
    assert "launch.sh:2" in read.stdout
    devices = ["topology.device=h100", "topology.devices_per_node=8"]
    checked = seatrial("check", "launch.captured.json", *devices, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr + checked.stdout


def test_nothing_runs_without_consent(tmp_path: Path) -> None:
    done = capture(tmp_path, f"touch ran\n{TRAIN}\n")
    assert done.returncode == 2
    assert "error[no-consent]" in done.stderr
    assert "--yes" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"launch.sh"}


def test_of_several_trainings_one_is_chosen(tmp_path: Path) -> None:
    script = f"for size in 1 2 4; do {TRAIN} per_device_batch_size=$size; done\n"
    several = capture(tmp_path, script, "--yes")
    assert several.returncode == 2
    assert "it starts 3 different trainings: 1: per_device_batch_size=1" in several.stderr
    assert "--pick" in several.stderr
    done = capture(tmp_path, script, "--yes", "--pick", "3", "--out", "third.json")
    assert done.returncode == 0, done.stderr
    assert "per_device_batch_size=4" in json.loads((tmp_path / "third.json").read_text())["argv"]
    assert capture(tmp_path, script, "--yes", "--pick", "4").returncode == 2


@pytest.mark.parametrize(
    ("script", "code", "advice"),
    [
        ("echo ${MODEL:?MODEL is required}\n", "missing-variable", "capture launch.sh MODEL=…"),
        ("set -u\necho $1\n", "missing-argument", "capture launch.sh -- ARGUMENT…"),
        ("exit 3\n", "script-failed", "--exists"),
        ("echo hello\n", "no-training", "name the script"),
        ("python3 train_tokenizer.py.txt\n", "no-training", "name the script"),
        ("if then\n", "script-failed", "give what it asks for"),
    ],
)
def test_why_there_is_no_training(tmp_path: Path, script: str, code: str, advice: str) -> None:
    done = capture(tmp_path, script, "--yes")
    assert done.returncode == 2
    assert f"error[{code}]" in done.stderr
    assert advice in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_script_prints_stays_inert(tmp_path: Path) -> None:
    done = capture(tmp_path, "printf '\\033[31mred\\033]0;title\\007' >&2; exit 4\n", "--yes")
    assert "\033" not in done.stderr + done.stdout
    assert "\007" not in done.stderr + done.stdout


def test_a_file_that_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    done = capture(tmp_path, f"{TRAIN}\n", "--yes", "--out", "mine.json")
    assert done.returncode == 2
    assert "error[exists]" in done.stderr
    assert (tmp_path / "mine.json").read_text() == "{}"
    assert capture(tmp_path, f"{TRAIN}\n", "--yes", "--out", "new.json").returncode == 0
    assert capture(tmp_path, f"{TRAIN}\n", "--yes", "--out", "new.json").returncode == 0  # ours may be


def test_words_that_are_no_variables_are_refused(tmp_path: Path) -> None:
    done = capture(tmp_path, f"{TRAIN}\n", "8b", "--yes")
    assert done.returncode == 2
    assert "put the script's own arguments behind --" in done.stderr


def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    done = capture(tmp_path, f"export HF_TOKEN=hf_canary KEEP=1\n{TRAIN}\n", "--yes", "--format", "json")
    document = json.loads(done.stdout)
    assert document["captured"]["secrets"] == ["HF_TOKEN"]
    assert document["environment"] == {"KEEP": "1"}
    assert "hf_canary" not in done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"launch.sh"}


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (f"docker run --rm -e HF_TOKEN=CANARY -e B=2 img {TRAIN}", "HF_TOKEN=***"),
        (f"export HF_TOKEN=CANARY; docker run --env HF_TOKEN=$HF_TOKEN img {TRAIN}", "HF_TOKEN=***"),
        (f"srun --export=ALL,HF_TOKEN=CANARY {TRAIN}", "--export=ALL,HF_TOKEN=***"),
        (f"{TRAIN} hf_access_token=CANARY", "hf_access_token=***"),
        (f"{TRAIN} --api-key CANARY", "***"),
        (f'export HF_TOKEN=CANARY MORE="--login CANARY"; {TRAIN} run_name=of-CANARY', "run_name=of-***"),
    ],
)
def test_no_secret_is_written(tmp_path: Path, command: str, where: str) -> None:
    canary = "hf_canary0123456789"
    script = f"for n in 1; do {command.replace('CANARY', canary)}; done\n"
    done = capture(tmp_path, script, "--yes", "--", "--hf-token", canary)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "launch.captured.json").read_text()
    assert canary not in text + done.stdout + done.stderr
    document = json.loads(text)
    assert where in document["argv"]
    assert document["captured"]["arguments"] == ["--hf-token", "***"]
    (name,) = document["captured"]["secrets"]
    assert f"secret: {name} not written" in done.stdout
    checked = seatrial("check", "launch.captured.json", cwd=tmp_path)
    assert "bad-value" not in checked.stdout + checked.stderr


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = seatrial("capture", "none.sh", "--yes", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no such script" in done.stderr


def test_a_read_only_reader_names_capture(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(f"for n in 1 2; do\n  {TRAIN}\ndone\n", encoding="utf-8")
    done = seatrial("check", "launch.sh", cwd=tmp_path)
    assert done.returncode == 2
    assert "seatrial capture launch.sh" in done.stderr + done.stdout
