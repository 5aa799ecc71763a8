"""The table of a system's keys by version, made from repositories of our own in the grammar of theirs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools import key_versions

ARGUMENTS = """
def _add_training_args(parser):
    group = parser.add_argument_group(title="training")
    group.add_argument("--steps", "--train-steps", type=int, default=None)
    group.add_argument("--splits", nargs="+", type=int)
    group.add_argument("--no-bias", action="store_false", dest="bias")
    {more}
    return parser
"""
CONFIG = '''
from dataclasses import dataclass, field

class Base:
    seed: int = 1234

class LoggerConfig(Base):
    log_interval: int = 100
    """Steps between two lines."""
    check_weights: bool = True
    log_memory: bool = False
    kinds: list[str] | None = None
    groups: list[int] = field(default_factory=list, metadata={"argparse_meta": {"nargs": "*"}})
    save: str | None = field(default=None, metadata={"argparse_meta": {"arg_names": ["--save-to"], "type": str}})
    internal: int = 0
'''
FACTORY = "left_out = ['internal']; ArgumentGroupFactory(LoggerConfig, exclude=left_out).build_group(parser, 'log')"


class _Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet")

    def git(self, *arguments: str, day: str = "2026-01-01") -> None:
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = {f"GIT_{role}_DATE": f"{day}T12:00:00Z" for role in ("AUTHOR", "COMMITTER")}
        subprocess.run(["git", "-C", str(self.path), *arguments], check=True, env={**os.environ, **who, **when})

    def commit(self, files: dict[str, str], *, day: str = "2026-01-01", tag: str = "") -> None:
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change", day=day)
        if tag:
            self.git("tag", tag)


def _table(text: str) -> dict[str, tuple[str, str]]:
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: (since, gone) for name, since, gone in rows}


def test_arguments_are_read_at_every_release_and_those_that_dataclasses_make(tmp_path: Path) -> None:
    repository = _Repository(tmp_path / "megatron")
    place, config = "megatron/training/arguments.py", "megatron/training/config.py"
    old = ARGUMENTS.format(more='group.add_argument("--log-interval", type=int); group.add_argument("--gone")')
    repository.commit({"megatron/arguments.py": ARGUMENTS.format(more="pass")}, tag="core_v0.7.0")
    repository.commit({place: old}, tag="core_v0.9.0")
    repository.commit({place: ARGUMENTS.format(more=FACTORY), config: CONFIG}, tag="core_v0.10.0")
    repository.commit({place: ARGUMENTS.format(more=FACTORY + '; group.add_argument("--new")')}, day="2026-03-04")

    found = _table(key_versions.table(key_versions.megatron(key_versions.Clone(repository.path))))

    assert found == {
        "steps=": ("-", "-"), "train-steps=": ("-", "-"), "splits*": ("-", "-"), "no-bias": ("-", "-"),
        "log-interval=": ("0.9", "-"), "gone=": ("0.9", "0.10"), "seed=": ("0.10", "-"),
        "no-check-weights": ("0.10", "-"), "disable-check-weights": ("0.10", "-"), "log-memory": ("0.10", "-"),
        "kinds*": ("0.10", "-"), "groups*": ("0.10", "-"), "save-to=": ("0.10", "-"), "new=": ("2026-03-04", "-"),
    }  # fmt: skip


def test_arguments_of_releases_before_core_are_the_oldest(tmp_path: Path) -> None:
    repository = _Repository(tmp_path / "megatron")
    place = "megatron/arguments.py"
    repository.commit({place: ARGUMENTS.format(more='group.add_argument("--of-old")')}, tag="v2.5")
    repository.commit({place: ARGUMENTS.format(more='group.add_argument("--of-core")')}, tag="core_v0.4.0")

    found = _table(key_versions.table(key_versions.megatron(key_versions.Clone(repository.path))))

    assert found["of-old="] == ("-", "0.4")
    assert found["of-core="] == ("0.4", "-")
    assert found["steps="] == ("-", "-")


def test_maxtexts_keys_are_dated_by_the_commits_that_brought_and_took_them(tmp_path: Path) -> None:
    repository = _Repository(tmp_path / "maxtext")
    older, newer = "MaxText/configs/base.yml", "src/maxtext/configs/base.yml"
    repository.commit({older: "run_name: ''\n# note: no key\nold_key: 1\n"}, day="2024-02-03")
    repository.git("rm", "--quiet", older)
    repository.commit({newer: "run_name: ''\nnested:\n  inner: 2\n"}, day="2025-07-27")
    fields = "class Config(BaseModel):\n  run_name: str = ''\n  new_key: int = 1\n\ntype Names = list\n"
    repository.commit({"src/maxtext/configs/types.py": fields}, day="2026-01-02")

    found = _table(key_versions.table(key_versions.maxtext(key_versions.Clone(repository.path))))

    assert found == {
        "run_name": ("-", "-"), "old_key": ("-", "2025-07-27"), "nested": ("2025-07-27", "-"),
        "new_key": ("2026-01-02", "-"),
    }  # fmt: skip
