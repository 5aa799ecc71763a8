"""Every key of every dialect, given a value of every other kind: a finding at that key, never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from seatrial import source
from seatrial.commands.check import ConfigArguments, check
from seatrial.dialects import DIALECTS, Dialect
from seatrial.dialects.explain import table
from seatrial.errors import InputError
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import CVS, ROOT

CONFIGS = [path for path in sorted((ROOT / "configs").glob("*/*")) if "_threshold" not in path.name]
KINDS: dict[str, Any] = {
    "list": ["a", "b"], "nested": [[1], {"a": None}], "empty list": [], "mapping": {"a": [1]}, "empty mapping": {},
    "whole": 3, "negative": -1, "fraction": 1.5, "huge": 1e300, "true": True, "null": None, "empty": "", "text": "x",
}  # fmt: skip
TEXTS = ("a,b", "null", '{"a": 1}', "-1.5", "", "[1, 2]", '["a", [1]]', "3", "true", "x", "{x}${y}")
LIST = "config.nccl_ib_hca_list=bnxt_re0,bnxt_re1"
FEW = ("list", "null", "mapping", "empty mapping", "fraction", "true")  # of KINDS, for what is not slow
GROUPS = 5
SAMPLE = 8  # keys of a configuration; all of them take a quarter of an hour

Keys = tuple[str, ...]


@cache
def dialect(config: Path) -> Dialect:
    root = source.read(config).root
    return next(dialect for dialect in DIALECTS if dialect.recognise(root))


def paths(tree: Any, before: Keys = ()) -> Iterator[Keys]:
    """The places of a tree, those that hold others after what they hold."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in parts:
        yield from paths(value, (*before, str(name)))
        yield (*before, str(name))


def put(tree: Any, path: Keys, value: Any) -> None:
    """Sets what stands at a path, whose parents are made where they are missing."""
    for part in path[:-1]:
        tree = tree[int(part)] if isinstance(tree, list) else tree.setdefault(part, {})
        if not isinstance(tree, (dict, list)):
            return
    if isinstance(tree, dict):
        tree[path[-1]] = value
    elif int(path[-1]) < len(tree):
        tree[int(path[-1])] = value


@cache
def known(config: Path) -> tuple[Keys, ...]:
    """The keys of the configuration, and of its dialect's table those that it could have, the deepest first."""
    tree = source.read(config).root.plain()
    there = [] if config.suffix == ".sh" else list(paths(tree))
    cell = next((path for path in there if path[0] == "model_params" and len(path) == 4), ())  # CVS's of before
    for key in table(dialect(config).module):
        path = tuple(f"{key[:-1]}x".split(".") if key.endswith(".*") else key.split("."))
        there.append(path if path[0] == "config" else (*cell, *path))
    return tuple(sorted(dict.fromkeys(there), key=len, reverse=True))


@cache
def firsts() -> dict[tuple[str, Keys], Path]:
    """Each key of each dialect, with the first configuration that has it."""
    found: dict[tuple[str, Keys], Path] = {}
    for config in CONFIGS:
        for path in known(config):
            found.setdefault((dialect(config).name, path), config)
    return found


def answered(config: Path, overrides: Sequence[str], what: str) -> None:
    try:
        check(ConfigArguments(config=config, overrides=tuple(overrides)), rehearse=False, strict=False, output="text")
    except InputError:
        pass
    except Exception as error:
        raise AssertionError(what) from error


def changed(config: Path, together: Sequence[Keys], value: Any, folder: Path) -> Path:
    """A copy of the configuration as JSON, which every dialect of a file takes, with some of its values replaced."""
    tree = source.read(config).root.plain()
    for path in together:
        put(tree, path, value)
    beside = config.with_name(f"{config.stem}_threshold.json")
    if beside.is_file():
        (folder / beside.name).write_text(beside.read_text())
    copy = folder / config.with_suffix(".json").name
    copy.write_text(json.dumps(tree))
    return copy


def own(config: Path) -> list[Keys]:
    """The keys that no configuration of the same dialect before this one has."""
    return [path for path in known(config) if firsts()[dialect(config).name, path] == config]


def sections(config: Path) -> list[Keys]:
    """The keys that hold others, which a value of another kind hides."""
    holding = {path[:length] for path in known(config) for length in range(1, len(path))}
    return [path for path in own(config) if path in holding]


def groups(config: Path) -> list[list[Keys]]:
    """All other keys, of which many can be wrong at once; neighbours stand in different groups."""
    apart = {*sections(config)}
    leaves = [path for path in own(config) if path not in apart]
    return [group for start in range(GROUPS) if (group := leaves[start::GROUPS])]


def of_files() -> list[Path]:
    return [config for config in CONFIGS if config.suffix != ".sh"]


def by_name(config: Path) -> str:
    return config.name


@pytest.mark.parametrize("config", of_files(), ids=by_name)
def test_a_value_of_any_kind_in_a_file_gets_an_answer(config: Path, tmp_path: Path) -> None:
    for kind in FEW:
        for group in groups(config):
            answered(changed(config, group, KINDS[kind], tmp_path), (), f"{kind} at {group}")
    for path in sections(config):
        for kind in FEW[:2]:
            answered(changed(config, (path,), KINDS[kind], tmp_path), (), f"{kind} at {path}")


@pytest.mark.parametrize("config", CONFIGS, ids=by_name)
def test_an_override_of_any_kind_gets_an_answer(config: Path) -> None:
    for group in groups(config):
        for text in TEXTS[:5]:
            answered(config, [f"{'.'.join(path)}={text}" for path in group], f"{text} for {group}")


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=by_name)
def test_a_key_by_itself_gets_an_answer(config: Path, tmp_path: Path) -> None:
    keys = known(config)
    for path in random.Random(config.name).sample(keys, min(SAMPLE, len(keys))):
        for kind, value in KINDS.items() if config.suffix != ".sh" else ():
            answered(changed(config, (path,), value, tmp_path), (), f"{kind} at {path}")
        for text in TEXTS:
            answered(config, [f"{'.'.join(path)}={text}"], f"{path}={text}")


@pytest.mark.parametrize("config", of_files(), ids=by_name)
def test_a_value_that_its_key_cannot_take_is_named(config: Path, tmp_path: Path) -> None:
    """Each scalar that the file has, by the reader of its row."""
    rows, tree = table(dialect(config).module), source.read(config).root.plain()
    for path in set(paths(tree)) & set(own(config)):
        row = rows.get(".".join(path))
        for kind in ("list", "empty mapping", "null"):
            if row is not None and not takes(row.read, KINDS[kind]):
                told = problems(changed(config, [path], KINDS[kind], tmp_path))
                assert [p for p in told if p["severity"] == "error" and path[-1] in p["path"]], (kind, path)


def takes(read: Any, value: Any) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True


def problems(config: Path) -> list[dict[str, Any]]:
    try:
        text, _ = check(ConfigArguments(config=config), rehearse=False, strict=False, output="json")
    except InputError as error:
        return [problem.as_dict() for problem in error.problems]
    found: list[dict[str, Any]] = json.loads(text)["problems"]
    return found


def test_the_advice_of_a_list_on_the_command_line_is_taken() -> None:
    """The findings about the network recommend this list."""
    config = CVS / "megatron_llama3.1-8b_mi325x.json"
    done = seatrial("check", config.name, LIST, cwd=CVS)
    assert (done.returncode, done.stderr) == (0, "")
    planned = seatrial("plan", config.name, LIST, "--explain", "NCCL_IB_HCA", cwd=CVS)
    assert "NCCL_IB_HCA = bnxt_re0,bnxt_re1" in planned.stdout
