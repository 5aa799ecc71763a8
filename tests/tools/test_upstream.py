"""The corpus of other repositories' files, and the tool that tries them, on repositories of our own."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools import upstream

from tests.helpers.capturing import sandboxed_or_skip

CORPUS = Path(__file__).parents[1] / "upstream" / "corpus.toml"
RESULT = CORPUS.with_name("result.json")

FILES = {
    "run.sh": "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b per_device_batch_size=1\n",
    "loop.sh": "for n in 1; do\n"
    "python MaxText/train.py base.yml model_name=llama2-7b steps=$1 per_device_batch_size=$B\ndone\n",
    "t5.sh": "torchrun --nproc_per_node 8 pretrain_t5.py --num-layers 12\n",
    "llama.yml": "base_config: base.yml\nmodel_name: llama2-7b\nper_device_batch_size: 1\n",
    "wrong.yml": "base_config: base.yml\nmodel_name: llama2-7b\nper_device_batch_size: many\n",
}
ENTRIES = """
["we/ours"]
commit = "0000000000000000000000000000000000000000"
scripts = [
    {path = "run.sh"},
    {path = "loop.sh", arguments = ["30"], variables = {B = "2"}},
    {path = "t5.sh", refused = "other-program"},
]
configurations = [
    {path = "llama.yml"},
    {path = "wrong.yml", refused = "bad-value"},
    {path = "absent.yml"},
]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "checkouts" / "we+ours" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "corpus.toml").write_text(ENTRIES, encoding="utf-8")
    return tmp_path


def test_the_corpus_is_well_formed() -> None:
    entries = upstream.entries(CORPUS)
    assert len(entries) >= 150
    assert len({each.repository for each in entries}) >= 12
    assert [each for each, count in Counter((e.repository, e.path) for e in entries).items() if count > 1] == []
    assert all(re.fullmatch("[a-z]+(-[a-z0-9]+)*", each.refused) for each in entries if each.refused)
    assert all(not each.path.startswith("/") and ".." not in each.path for each in entries)
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in upstream.commits(CORPUS).values())


def test_the_committed_result_is_of_this_corpus() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["commits"] == upstream.commits(CORPUS)
    listed = [(each.repository, each.kind, each.path) for each in upstream.entries(CORPUS)]
    assert [(each["repository"], each["kind"], each["path"]) for each in result["entries"]] == listed


def test_each_outcome_is_held_against_the_expected_one(checkout: Path) -> None:
    sandboxed_or_skip()
    out = checkout / "result.json"
    arguments = [str(checkout / "corpus.toml"), str(checkout / "checkouts"), "--json", str(out)]
    done = CliRunner().invoke(upstream.main, arguments)
    assert done.exit_code == 1, done.output  # a file is not there
    found = {each["path"]: each for each in json.loads(out.read_text(encoding="utf-8"))["entries"]}
    assert {path: each["outcome"] for path, each in found.items()} == {
        "run.sh": "resolved", "loop.sh": "resolved", "t5.sh": "refused", "llama.yml": "resolved",
        "wrong.yml": "refused", "absent.yml": "absent",
    }  # fmt: skip
    assert (found["run.sh"]["by"], found["loop.sh"]["by"]) == ("read", "captured")
    assert (found["t5.sh"]["code"], found["wrong.yml"]["code"]) == ("other-program", "bad-value")
    assert str(checkout) not in out.read_text(encoding="utf-8")
    assert "absent.yml: absent  ← expected: resolved" in done.output
    assert CliRunner().invoke(upstream.main, [*arguments, "--only", "run.sh"]).exit_code == 0


def test_a_row_that_says_something_unknown_is_refused(checkout: Path) -> None:
    path = checkout / "corpus.toml"
    path.write_text(ENTRIES.replace("variables =", "variabels ="), encoding="utf-8")
    done = CliRunner().invoke(upstream.main, [str(path), str(checkout)])
    assert done.exit_code == 1
    assert "we/ours, script 2" in done.output


@pytest.mark.parametrize(("kind", "least"), [("script", 0.90), ("configuration", 0.95)])
def test_the_committed_result_has_the_rates_that_are_claimed(kind: str, least: float) -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    found = [each["outcome"] for each in result["entries"] if each["kind"] == kind]
    assert found.count("resolved") >= least * len(found)
