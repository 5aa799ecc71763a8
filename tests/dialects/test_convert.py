"""Conversion: what a spelling has words for stays as it was, the rest has a note, and files are not overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from seatrial import dialects
from seatrial.dialects import convert, native
from seatrial.dialects.convert import TARGETS
from seatrial.dialects.table.written import Note
from seatrial.spec import Container, Execution, RunSpec
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import COMPLETE, MEGATRON_CELLS, MEGATRON_COMPLETE, ROOT
from tests.helpers.specs import assert_honest, differences, specs

SHIPPED: dict[Path, tuple[str, ...]] = {
    path: COMPLETE.get(path, ())
    for path in sorted(ROOT.glob("configs/*/*"))
    if path not in MEGATRON_COMPLETE and not path.stem.endswith("_threshold")
} | {path: (*MEGATRON_COMPLETE[path], f"model={model}", f"gpu={gpu}") for path, model, gpu in MEGATRON_CELLS}
TINY = ROOT / "configs" / "native" / "tiny-text.json"


def _load(path: Path, *overrides: str) -> RunSpec:
    resolved = dialects.load(path, overrides, action="plan")
    assert [(p.path, p.why) for p in resolved.problems if p.severity == "error"] == [], path.read_text()
    assert resolved.spec is not None
    return resolved.spec


def _through(spec: RunSpec, to: str, folder: Path) -> tuple[RunSpec, tuple[Note, ...]]:
    """A spec as a file in a spelling, and as what that file is then read as; with the notes on what it does not say."""
    written = TARGETS[to].write(spec)
    path = folder / f"run{written.suffix}"
    path.write_text(written.text, encoding="utf-8", newline="")
    return _load(path), written.notes


@pytest.mark.parametrize("to", TARGETS)
# Each dialect's own tests look for the smallest example that fails.
@settings(
    max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(spec=specs())
def test_there_and_back_again(to: str, spec: RunSpec, tmp_path: Path) -> None:
    """From native to another spelling and to native again: nothing changes that has no note."""
    there, notes = _through(spec, to, tmp_path)
    back, none = _through(there, "native", tmp_path)
    assert none == ()
    assert_honest(notes, spec, differences(spec, back))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_is_the_same_run_in_native_words(path: Path, tmp_path: Path) -> None:
    spec = _load(path, *SHIPPED[path])
    again, notes = _through(spec, "native", tmp_path)
    assert notes == ()
    assert again == replace(spec, name=again.name, dialect="native")


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_can_be_put_into_every_spelling(path: Path, to: str) -> None:
    spec = _load(path, *SHIPPED[path])
    assert list(convert.unsaid(spec, TARGETS[to].write(spec), to)) == []


def test_what_a_writer_keeps_to_itself_is_said_all_the_same() -> None:
    spec = _load(TINY)
    written = native.write(replace(spec, seed=7, steps=81))
    (seed, steps) = sorted(convert.unsaid(spec, written, "native"), key=lambda note: note.path)
    assert (seed.path, seed.value, seed.why) == ("seed", 0, "it reads back as 7")
    assert (steps.path, steps.value, steps.why) == ("steps", 80, "it reads back as 81")
    noted = replace(written, notes=(Note(path="seed", value=0, why="x"), Note(path="steps", value=80, why="x")))
    assert list(convert.unsaid(spec, noted, "native")) == []
    (broken,) = convert.unsaid(spec, replace(written, text="steps: 0"), "native")
    assert "cannot be read back" in broken.why


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_text_is_printed_and_each_note_is_a_line_on_stderr(tmp_path: Path) -> None:
    done = seatrial("convert", TINY, "optimizer.learning_rate=0.0123", "--to", "cvs", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["config"]["training_steps"] == "80"
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())
    assert "note: optimizer.learning_rate = 0.0123: " in done.stderr
    assert "note: data.paths = [stdlib:*.py]: " in done.stderr


def test_a_note_names_the_key_as_the_user_wrote_it(tmp_path: Path) -> None:
    path = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
    text = seatrial("convert", path, "nnodes=1", "--to", "maxtext", cwd=tmp_path).stderr
    bars = "[tflops_per_second_per_device 1800.0, tokens_per_second_per_device 900.0]"
    assert f"note: model_params.single_node.llama3.1-70b.mi300x.result_dict = {bars}: " in text


def test_what_check_refuses_of_the_text_is_a_note(tmp_path: Path) -> None:
    path = ROOT / "configs" / "nxdt" / "gpt-6.7b-megatron.yaml"
    arguments = ("convert", path, "trainer.max_steps=100", "--to", "maxtext", "--out", "gpt.sh")
    done = seatrial(*arguments, cwd=tmp_path)
    why = "vocab_size: vocab_size 50257 cannot be split evenly over tensor = 8"
    assert f"note: `check` refuses this text: {why}\n" in done.stderr
    assert done.returncode == 0
    assert seatrial("check", "gpt.sh", cwd=tmp_path).returncode == 2


def test_a_file_is_written_once_and_never_over_another(tmp_path: Path) -> None:
    arguments = ("convert", TINY, "--to", "native", "--out", "run.yaml")
    assert seatrial(*arguments, cwd=tmp_path).returncode == 0
    assert _load(tmp_path / "run.yaml") == replace(_load(TINY), name="tiny-text")
    (tmp_path / "run.yaml").write_text("mine")
    again = seatrial(*arguments, cwd=tmp_path)
    assert (again.returncode, "not overwritten" in again.stderr) == (2, True)
    assert (tmp_path / "run.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "nemo"), "use one of: native, cvs"),
        (("--to", "native", "--out", "run.json"), "name it run.yaml"),
        (("--to", "cvs", "--out", "run.yaml"), "name it run.json"),
        (("--to", "native", "--out", "no/such/folder/run.yaml"), "cannot be written"),
        (("steps=0", "--to", "native"), "less than 1"),
        (("stepz=3", "--to", "native"), "steps"),
        (("topology.devices_per_node=8", "--to", "maxtext"), "mesh-devices"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = seatrial("convert", TINY, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "overrides", "path", "said"),
    [
        ("megatron-env", ("batch.sequence_length=65536", "model=llama2-7b"), "train_llama2.sh", "sequences are longer"),
        ("megatron", ("model.vocab_size=1", "data.kind=synthetic", "data.paths=[]"), "--vocab-size", "0 is less"),
        ("nxdt", ("data.validation_paths=",), "data.data_prefix", "it is empty"),
    ],
)
def test_a_run_that_the_target_would_refuse_is_not_written(
    to: str, overrides: tuple[str, ...], path: str, said: str, tmp_path: Path
) -> None:
    done = seatrial("convert", TINY, *overrides, "--to", to, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error[cannot-express] {path}\n  why: the target cannot express this run: {said}" in done.stderr


def test_secrets_are_neither_shown_nor_copied(tmp_path: Path) -> None:
    spec = replace(
        _load(TINY),
        execution=Execution(
            environment={"HF_TOKEN": "hunter2", "MY_X": "1", "HTTPS_PROXY": "http://me:hunter2@proxy:3128"}
        ),
        container=Container(image="x", environment={"MY_API_KEY": "hunter2"}),
    )
    path = tmp_path / "run.yaml"
    path.write_text(native.write(spec).text, encoding="utf-8")
    for to in TARGETS:
        done = seatrial("convert", path, "--to", to, cwd=tmp_path)
        assert "hunter2" not in done.stdout + done.stderr
        assert "HF_TOKEN = ***" in done.stderr
        assert "HTTPS_PROXY = ***" in done.stderr
