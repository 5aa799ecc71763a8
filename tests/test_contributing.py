"""The recipes of CONTRIBUTING.md, each followed to the letter on a copy of the tree.

In a recipe, a fenced block whose info string ends in a path is the content of a new file, one whose language is `diff`
changes a file, and the `$ …` lines of a `console` block are commands. They are done in the order in which they stand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("src", "tests", "tools", "docs", "configs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CACHES = shutil.ignore_patterns(".*_cache", "*.egg-info")


@dataclass(frozen=True)
class Recipe:
    """The blocks of a section of CONTRIBUTING.md: language, path and text of each."""

    title: str
    blocks: tuple[tuple[str, str, str], ...]


def recipes() -> Iterator[Recipe]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for section in re.split(r"^### ", text.partition("\n## Recipes\n")[2], flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        yield Recipe(title, tuple((found[1], found[2] or "", found[3]) for found in _FENCE.finditer(section)))


RECIPES = list(recipes())


def changed(text: str, hunk: str) -> str:
    """A text with a hunk of a diff in it: lines that begin with a blank or a minus are found, once; those with a plus
    take the place of the latter."""
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[:1] in " -")
    after = "".join(line[1:] for line in lines if line[:1] in " +")
    assert text.count(before) == 1, f"{text.count(before)} places have these lines:\n{before}"
    return text.replace(before, after)


def test_the_recipes_are_those_that_contributors_need() -> None:
    titles = ["A log family", "A dialect key", "A check", "An engine", "A target to publish to", "A guide"]
    assert [recipe.title for recipe in RECIPES] == titles
    assert all({"diff", "console"} <= {language for language, _, _ in recipe.blocks} for recipe in RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_following_a_recipe_works(recipe: Recipe, tmp_path: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        shutil.copytree(source, target, ignore=CACHES) if source.is_dir() else shutil.copy(source, target)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    python = f'#!/bin/sh\nPYTHONPATH="{tmp_path / "src"}" exec "{sys.executable}" "$@"\n'
    seatrial = f'#!/bin/sh\nexec "{programs / "python"}" -m seatrial "$@"\n'
    for name, text in (("python", python), ("seatrial", seatrial)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    for language, name, text in recipe.blocks:
        path = tmp_path / name
        if language == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), text), encoding="utf-8")
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    done = subprocess.run(
                        line[2:], shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
                    )
                    assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        elif name:
            assert not path.exists(), f"{name} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
