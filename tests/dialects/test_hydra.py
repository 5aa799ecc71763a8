"""Commands that start NxDT with Hydra: the YAML file is found, and the overrides of the command hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.capture import training
from seatrial.dialects import load
from seatrial.errors import InputError
from seatrial.spec import Resolved
from tests.helpers.capturing import captured

EXAMPLE = (Path(__file__).parents[2] / "configs" / "nxdt" / "llama2-7b-hf.yaml").read_text(encoding="utf-8")
START = "torchrun --nproc_per_node 32 training_orchestrator.py"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(EXAMPLE, encoding="utf-8")
    return tmp_path


def read(folder: Path, command: str, *overrides: str) -> Resolved:
    path = folder / "launch.sh"
    path.write_text(f"{command}\n", encoding="utf-8")
    return load(path, overrides, action="plan")


@pytest.mark.parametrize(
    "options",
    ["--config-path=conf --config-name=mine", "--config-path conf -cn mine.yaml", "-cd conf --config-name mine.yaml"],
)
def test_the_file_and_the_overrides_of_the_command_are_read(options: str, conf: Path) -> None:
    plain = load(conf / "conf" / "mine.yaml", [], action="plan").spec
    found = read(conf, f"{START} {options} trainer.max_steps=77 ++model.seed=5 hydra.run.dir=/x model.name='mine'")
    assert found.spec is not None
    assert plain is not None
    assert (found.spec.dialect, found.spec.steps, plain.steps == 77) == ("nxdt", 77, False)
    assert found.spec.model.num_layers == plain.model.num_layers
    origin = found.origin("model.num_layers")
    assert origin.mark is not None
    assert origin.mark.file == str(conf / "conf" / "mine.yaml")


def test_an_override_of_the_command_line_counts_more_than_that_of_the_command(conf: Path) -> None:
    found = read(conf, f"{START} --config-name=mine trainer.max_steps=77", "trainer.max_steps=88")
    assert found.spec is not None
    assert found.spec.steps == 88


@pytest.mark.parametrize(
    ("behind", "code", "words"),
    [
        ("--config-name=other", "unreadable", "conf/other.yaml"),
        ("", "unreadable", "conf/megatron_gpt_config.yaml"),
        ("--config-name=mine -m model.seed=1,2", "not-supported", "several trainings"),
        ("--config-name=mine ~model.seed", "not-supported", "removing a key"),
        ("--config-name=mine --zero", "not-supported", "neither"),
    ],
)
def test_what_hydra_would_do_and_is_not_done_here_is_refused(behind: str, code: str, words: str, conf: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(conf, f"{START} {behind}")
    (problem,) = refused.value.problems
    assert problem.code == code
    assert words in problem.why


def test_a_captured_script_leads_to_the_file_beside_its_program(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """source ./setup.sh
: ${CONF_FILE:=none}
N=$(grep 'num_nodes:' "./conf/$CONF_FILE.yaml" | awk '{print $2}')
ulimit -n 65535 -l unlimited
neuron_parallel_compile torchrun --nnodes $N training_orchestrator.py --config-path=conf \\
  --config-name=$CONF_FILE trainer.max_steps=$STEPS
"""
    (conf / "setup.sh").write_text("set -e\nexport STEPS=61\n")
    done = captured(conf, script, variables={"CONF_FILE": "mine"})
    (found,) = training.trainings(done)
    elsewhere = conf / "elsewhere"
    elsewhere.mkdir()
    path = elsewhere / "x.json"
    monkeypatch.chdir(elsewhere)
    document = training.document(done, found)
    for folder in ("", str(document["captured"]["folder"])):  # without it, the file is looked for beside the script
        document["captured"]["folder"] = folder
        path.write_text(json.dumps(document))
        spec = load(path, [], action="plan").spec
        assert spec is not None
        assert (spec.dialect, spec.steps) == ("nxdt", 61)
