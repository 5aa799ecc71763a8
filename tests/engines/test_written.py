"""Files that `convert` writes load in the target's own loader: MaxText's and OmegaConf, from `make test-maxtext`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial import source
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import COMPLETE, SEEDS

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAM = os.environ.get("SEATRIAL_MAXTEXT")  # the folder whose python3 has MaxText and OmegaConf
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600),
              pytest.mark.skipif(PROGRAM is None, reason="no SEATRIAL_MAXTEXT: run `make test-maxtext`")]  # fmt: skip
CASES = [*(path for kind in ("maxtext", "megatron", "native", "nxdt") for path in sorted((CONFIGS / kind).iterdir())),
         *SEEDS]  # fmt: skip


def python(program: str, *words: str, given: str = "") -> str:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE"}
    command = [str(Path(PROGRAM or "").resolve() / "python3"), program, *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def converted(path: Path, to: str, tmp_path: Path) -> str:
    result = seatrial("convert", path, "--to", to, *COMPLETE.get(path, ()), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stdout


def words_of(text: str) -> list[str]:
    """The words behind base.yml of a command that `convert` has written."""
    line = next(line for line in text.replace("\\\n", " ").splitlines() if line.startswith("python3"))
    words = shlex.split(line)
    return words[1 + next(i for i, word in enumerate(words) if word.endswith("base.yml")) :]


def same(value: Any, word: str) -> bool:
    """True if MaxText has a value as the word says it; of a text of YAML, the value, and nothing is as good as ""."""
    said = yaml.load(word, Loader=yaml.SafeLoader)
    try:
        return float(said) == float(value)
    except (TypeError, ValueError):
        return (said or "") == (value or "") or str(said).lower() == str(value).lower()


def test_maxtexts_own_loader_has_every_value_that_was_written(tmp_path: Path) -> None:
    commands = []
    for path in CASES:
        words = words_of(converted(path, "maxtext", tmp_path))
        sizes = [int(word.partition("=")[2]) for word in words if word.startswith("dcn_")]
        nodes = max(1, *sizes, *(2 for size in sizes if size == -1))
        commands.append({"words": words, "nodes": nodes})
    program = str(Path(__file__).with_name("load_maxtext.py"))
    answers = json.loads(python(program, given=json.dumps(commands)).rpartition("LOADED ")[2])
    refused = {str(path): answer for path, answer in zip(CASES, answers, strict=True) if isinstance(answer, str)}
    assert refused == {}
    for path, command, answer in zip(CASES, commands, answers, strict=True):
        given = {word.partition("=")[0]: word.partition("=")[2] for word in command["words"]}
        # -1 is for MaxText to decide
        wrong = {
            name: (text, answer[name]) for name, text in given.items() if text != "-1" and not same(answer[name], text)
        }
        assert wrong == {}, path


_OMEGACONF = """
import json, sys
from omegaconf import OmegaConf
OmegaConf.register_new_resolver("multiply", lambda a, b: a * b)
read = [OmegaConf.to_container(OmegaConf.create(text), resolve=True) for text in json.load(sys.stdin)]
print(json.dumps(read, default=str))
"""


def test_omegaconf_reads_what_was_written_for_nxdt(tmp_path: Path) -> None:
    """NxDT resolves interpolations with OmegaConf; what that makes of a text is what is read here."""
    texts = [converted(path, "nxdt", tmp_path) for path in CASES]
    theirs = json.loads(python("-c", _OMEGACONF, given=json.dumps(texts)))
    for path, text, read in zip(CASES, texts, theirs, strict=True):
        ours = source.parse(text, file="run.yaml", is_json=False)
        assert read == json.loads(json.dumps(ours.root.plain(), default=str)), path
