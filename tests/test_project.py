"""The project as it is handed over: commands in the docs are real, nothing local leaks out, the wheel is whole."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from seatrial.cli import app
from seatrial.logs import FAMILIES
from tests.helpers.compiling import quick_variables

ROOT = Path(__file__).parents[1]

# What tools leave in a checkout; none of it is handed over.
NOT_OURS = {
    ".git",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "__pycache__",
    "runs",
    "dist",
    "site",
    ".complexipy_cache",
}


def _files() -> Iterator[Path]:
    """Every file of the project."""
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name in NOT_OURS or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


def _console_commands() -> Iterator[tuple[str, str]]:
    """(file:line, command) for every `$ …` line in a fenced console block of the documentation."""
    for path in [
        *sorted(path for path in ROOT.glob("*.md") if path.name != "CONTRIBUTING.md"),  # its recipes are executed
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "bench").glob("*.md")),
    ]:
        in_console, continued = False, ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("```"):
                in_console = line.removeprefix("```").strip() == "console"
            elif in_console and (continued or line.startswith("$ ")):
                continued += line.removeprefix("$ ")
                if continued.endswith("\\"):
                    continued = continued[:-1]
                else:
                    yield f"{path.relative_to(ROOT)}:{number}", continued
                    continued = ""


COMMANDS = [pytest.param(command, id=where) for where, command in _console_commands()]


def test_the_reference_lists_every_family_of_logs() -> None:
    text = (ROOT / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(FAMILIES)


# Files that the docs name although they are not here: of a run directory, and of an older commit.
ELSEWHERE = {"launch/slurm/job.sh", "bench/programs/sharding.py"}


def test_the_docs_name_real_files() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"`([a-z_]+(?:/\w+)+\.(?:py|toml|txt|sh|md))`", page.read_text())
    }
    bases = (ROOT, ROOT / "src", ROOT / "src" / "seatrial", ROOT / "tests", ROOT / "docs")
    missing = {name for name in named if not any((base / name).exists() for base in bases)}
    assert len(named) > 30
    assert missing == ELSEWHERE


def _parse(arguments: list[str]) -> None:
    """Reads the arguments as the command line does, without doing anything. Raises where it would refuse them."""
    with contextlib.suppress(click.exceptions.Exit):  # --help has said all it has to say
        context = app.make_context("seatrial", list(arguments))
        verb, command, rest = context.command.resolve_command(context, list(arguments))
        command.make_context(verb, rest, parent=context)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_docs_name_real_commands(command: str) -> None:
    program, *arguments = shlex.split(command, comments=True)
    if program == "seatrial":
        _parse(arguments)
    elif program == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)


def test_a_command_that_does_not_exist_would_be_found() -> None:
    _parse(["check", "some.json", "config.nnodes=1", "--format", "json"])
    for wrong in (["chek", "some.json"], ["check", "some.json", "--fromat", "json"], ["report"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            _parse(wrong)


def test_nothing_local_leaks_out() -> None:
    # Spelled so that this file does not find itself.
    local = re.compile(r"(?<![\w.}-])/" + r"(?:work|root)/")
    found = []
    for path in _files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {line.strip()[:100]}" for line in text.splitlines() if local.search(line)]
    assert found == []


def _requirements() -> list[str]:
    """The requirements in pyproject.toml: those of every installation, and of every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]


def test_requirements_are_names_and_versions() -> None:
    pinned = re.compile(r'[A-Za-z0-9._-]+==[0-9][0-9a-z.]*( ; python_version [<>]=? "3\.\d+")?')
    for path in (ROOT / "constraints.txt", ROOT / "tests" / "engines" / "maxtext.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line and not line.startswith("#") and not pinned.fullmatch(line)] == []
    assert [requirement for requirement in _requirements() if "://" in requirement or "@" in requirement] == []


def test_every_direct_requirement_is_pinned() -> None:
    def normal(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()

    pinned = {normal(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert {normal(requirement) for requirement in _requirements()} - pinned == {"seatrial"}


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_really_prints(tmp_path: Path) -> None:
    """Each line of README's example, but for its numbers, is in the output of `make demo`, whose loss falls visibly."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"\$ make demo\n```\n.*?```text\n(.*?)```", readme, re.DOTALL)
    dry = subprocess.run(
        ["make", "--dry-run", "--assume-old", ".venv/.installed-train", "demo"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    command = next(line for line in dry.stdout.splitlines() if "seatrial run" in line)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | quick_variables()
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", *command.split()[1:]],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def alike(line: str) -> str:
        return re.sub(r"[\d,.:-]*\d", "0", line)

    printed = set(map(alike, (done.stderr + done.stdout).splitlines()))
    assert [line for line in shown.splitlines() if alike(line) not in (*printed, "…")] == []
    first, last = re.search(r"the loss fell from (\d+\.\d+) to (\d+\.\d+)", done.stdout).groups()
    assert float(last) < 0.6 * float(first)
    assert done.stderr.count("\n") == 1
