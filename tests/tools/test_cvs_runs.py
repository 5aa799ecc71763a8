"""The tool that has CVS start what is written for it, with a small checkout of our own in CVS's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tools import cvs_runs

from seatrial.commands.check import ConfigArguments, read
from tests.helpers.capturing import sandboxed_or_skip

CONFIG = cvs_runs.CONFIGS / "native" / "eight-devices.yaml"
UTILITIES = "def resolve_test_config_placeholders(values, cluster):\n    return values\n"
JAX = """
import paramiko, yaml

class JaxTrainingJob:
    def __init__(self, hosts, model, config, parameters, token, gpu, **more):
        ((models,),) = [tuple(parameters.values())]
        self.hosts, self.cell = hosts, models[model][gpu]

    def exec_nic_setup_scripts(self):
        self.hosts.exec("docker exec name sudo touch /workspace/seen; ibv_devinfo")

    def build_training_job_cmd(self):
        cell = {key: yaml.safe_load(str(value)) for key, value in self.cell.items() if isinstance(value, str)}
        text = yaml.safe_dump({**cell, WRONG})
        target = "/workspace/maxtext/MaxText/configs/training_config.yml"
        self.hosts.exec_cmd_list([f"cat > {target} <<'EOF'\\n{text}EOF" for _ in self.hosts.host_list])
"""
MEGATRON = """
class MegatronLlamaTrainingJob:
    def __init__(self, hosts, model, config, parameters, token, gpu, **more):
        ((models,),) = [tuple(parameters.values())]
        self.hosts, self.cell = hosts, models[model][gpu]

    def exec_nic_setup_scripts(self): pass
    def build_training_job_cmd(self): pass

    def start_training_job(self):
        words = " ".join(f"{name}={self.cell[key]}" for name, key in VARIABLES.items())
        run = "bash /workspace/Megatron-LM/examples/llama/train_llama3.sh > /home/log &"
        self.hosts.exec_cmd_list([f"{words} NODE_RANK={n} {run}" for n, _ in enumerate(self.hosts.host_list)])
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    library = tmp_path / "checkout" / "lib"
    library.mkdir(parents=True)
    (library / "globals.py").touch()
    (library / "utils_lib.py").write_text(UTILITIES)
    (library / "megatron_training_lib.py").write_text(f"VARIABLES = {cvs_runs.VARIABLES!r}\n{MEGATRON}")
    return library.parent


def arrived(checkout: Path, kind: str, folder: Path) -> tuple[str, list[tuple[str, str, str]]]:
    spec = read(ConfigArguments(config=CONFIG), action="convert", engine=None).spec
    assert spec is not None
    file, run = folder / "cvs.json", folder / "run"
    run.mkdir()
    file.write_text(cvs_runs.TARGETS[cvs_runs.KINDS[kind]].write(spec).text)
    why = cvs_runs.sandboxed(checkout, kind, file, run)
    return why, list(cvs_runs.arrived(kind, json.loads(file.read_text()), run))


@pytest.mark.parametrize(
    ("wrong", "differing"), [("", []), ('"steps_": 1', []), ('"ici_fsdp_parallelism": 77', ["ici_fsdp_parallelism"])]
)
def test_a_value_that_does_not_arrive_is_found(
    wrong: str, differing: list[str], checkout: Path, tmp_path: Path
) -> None:
    sandboxed_or_skip()
    (checkout / "lib" / "jax_training_lib.py").write_text(JAX.replace("WRONG", wrong))
    why, rows = arrived(checkout, "jax", tmp_path)
    assert why == ""
    assert len(rows) > 20
    assert [key for key, said, got in rows if said != got] == differing


def test_megatrons_environment_is_compared_and_nothing_outside_is_written(checkout: Path, tmp_path: Path) -> None:
    sandboxed_or_skip()
    why, rows = arrived(checkout, "megatron", tmp_path)
    assert why == ""
    assert {key for key, *_ in rows} == set(cvs_runs.VARIABLES.values())
    assert all(said == got for _, said, got in rows)
    assert not Path("/home/log").exists()


def test_what_cvs_stops_with_is_told(checkout: Path, tmp_path: Path) -> None:
    sandboxed_or_skip()
    (checkout / "lib" / "jax_training_lib.py").write_text("raise KeyError('steps')\n")
    assert arrived(checkout, "jax", tmp_path)[0] == "KeyError: 'steps'"


@pytest.mark.parametrize(("wrong", "is_right"), [("", True), ('"keys": len(self.cell)', False)])
def test_a_file_of_cvs_and_our_reading_of_it_hand_on_the_same(
    wrong: str, is_right: bool, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sandboxed_or_skip()
    used = 'key.startswith(("base_", "ici_", "remat_"))'  # as CVS, which hands on what MaxText knows
    library = JAX.replace("isinstance(value, str)", used).replace("WRONG", wrong)
    (checkout / "lib" / "jax_training_lib.py").write_text(library)
    files = checkout / "input" / "config_file" / "training" / "jax"
    files.mkdir(parents=True)
    shutil.copy(cvs_runs.CONFIGS / "cvs" / "mi300x_singlenode_llama3_1_70b.json", files)
    assert cvs_runs.shipped(checkout) == is_right
    said = capsys.readouterr().out
    assert "base_emb_dim is 16384.0, by our reading 8192.0 (architecture-contradicts-name)" in said
    assert ("keys is " in said and "(WRONG)" in said) != is_right
    assert said.splitlines()[-1].startswith("1 files, 1 cells, ")
