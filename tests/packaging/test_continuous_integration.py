"""The pre-commit hook and the GitHub action: their files are valid, and what they start does its work.

Where `make test-package` has made the wheels, the hook is tried by pre-commit itself and the action installs itself,
both without a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import run_directory
from tests.helpers.report_stories import STORIES
from tests.report.test_github import read

ROOT = Path(__file__).parents[2]
WHEELS = os.environ.get("SEATRIAL_WHEELS", "")
DEBIAN = Path(WHEELS).parent / "debian" / "bin"  # a Python for which the wheels are, with pre-commit and others
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
TINY = ROOT / "configs" / "native" / "tiny-text.json"
WRONG = '{"model": "llama3-8b", "stesp": 3}'

needs_wheels = pytest.mark.skipif(not WHEELS, reason="make test-package runs it, with wheels and pre-commit")


class Runner:
    """A runner of GitHub's, as far as a composite action sees one: its variables, its files, and bash."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder / "repository", folder / "runner"
        self.folder.mkdir()
        self.temporary.mkdir()
        program = folder / "bin" / "seatrial"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m seatrial "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        self.path = f"{program.parent}:/usr/bin:/bin"

    def file(self, name: str) -> str:
        path = self.temporary / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def step(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Runs a step as `shell: bash` means it, with the inputs in place of their expressions in `env`."""
        (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == name]
        defaults = {key: row["default"] for key, row in ACTION["inputs"].items()}
        values = {f"inputs.{key}": value for key, value in {**defaults, **inputs}.items()}
        values["github.action_path"] = str(ROOT)
        given = {key: values[text.strip("${} ")] for key, text in step["env"].items()}
        files = {f"GITHUB_{each}": str(self.temporary / each) for each in ("PATH", "OUTPUT", "STEP_SUMMARY")}
        environment = {
            "PATH": self.path, "HOME": str(self.temporary), "RUNNER_TEMP": str(self.temporary), "LC_ALL": "C.UTF-8",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **_pip(), **files, **given,
        }  # fmt: skip
        script = self.temporary / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


def _pip() -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, "PIP_CONFIG_FILE": os.devnull} if WHEELS else {}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


# --- the action ---------------------------------------------------------------------------------------------------


def test_no_input_is_shell_text() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
        assert all(re.fullmatch(r"\$\{\{ (inputs|github)\.\w+ \}\}", text) for text in step["env"].values())
    used = re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text(encoding="utf-8"))
    assert set(used) == set(ACTION["inputs"])
    assert all(row["description"] for row in ACTION["inputs"].values())


def test_configurations_are_checked_with_annotations(runner: Runner) -> None:
    for place, text in (("a/good.json", TINY.read_text()), ("a/b/bad.json", WRONG), ("a file.json", TINY.read_text())):
        (runner.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (runner.folder / place).write_text(text, encoding="utf-8")
    good = runner.step("Check", configs="a/*.json\na file.json\n", overrides="steps=5\n\n")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.splitlines()[-1].startswith("OK: no errors")
    bad = runner.step("Check", configs="**/*.json")
    assert bad.returncode == 2
    found = [read(line) for line in bad.stdout.splitlines()[:-1]]
    assert {place["file"] for level, place, _ in found if level == "error"} == {"a/b/bad.json"}
    none = runner.step("Check", configs="nothing/*.yaml")
    assert none.returncode == 2
    assert read(none.stdout)[0] == "error"


def test_warnings_are_errors_where_that_is_asked_for(runner: Runner) -> None:
    shutil.copy(ROOT / "configs" / "nxdt" / "llama3-8b-sft.yaml", runner.folder / "sft.yaml")
    codes = [runner.step("Check", configs="sft.yaml", strict=strict).returncode for strict in ("false", "true", "yes")]
    assert codes == [0, 2, 0]


@pytest.mark.parametrize("story", STORIES)
def test_a_run_is_judged_with_a_summary(runner: Runner, story: str) -> None:
    run_directory.write(runner.folder / "run", STORIES[story])
    done = runner.step("Judge", logs="run")
    code = re.fullmatch(r"exit-code=(\d+)\n", runner.file("OUTPUT"))
    assert code
    assert done.returncode == int(code[1])
    assert [read(line) for line in done.stdout.splitlines()]
    assert runner.file("STEP_SUMMARY").startswith("## ")


def test_logs_are_judged_against_a_configuration(runner: Runner) -> None:
    logs = sorted((ROOT / "tests" / "logs" / "nanogpt").rglob("log.txt"))
    shutil.copy(logs[0], runner.folder / "a log.txt")
    done = runner.step("Judge", logs="a *.txt")
    assert f"exit-code={done.returncode}\n" == runner.file("OUTPUT")
    assert done.stdout.startswith("::")
    assert runner.file("STEP_SUMMARY").startswith("## ")
    missing = runner.step("Judge", logs="a *.txt", against="no-such.json")
    assert missing.returncode == 2
    assert "no-such.json" in missing.stdout


HOSTILE = [
    "$(touch made)", "`touch made`", "; touch made", "x\"; touch made; \"", "'; touch made; '", "-h", "--help",
    "--out=made",
    "& touch made", "| touch made", "a=$(touch made)", "\\$(touch made)", "${IFS}touch${IFS}made", "x\ny; touch made",
    "::error::gotcha", "<(touch made)", "{a,b};touch made", "!touch made", "~root/x", "%0A::error::x",
]  # fmt: skip


@pytest.mark.parametrize("text", [HOSTILE[0], *(pytest.param(each, marks=pytest.mark.slow) for each in HOSTILE[1:])])
def test_hostile_inputs_are_text(runner: Runner, text: str) -> None:
    (runner.folder / "good.json").write_text(TINY.read_text(encoding="utf-8"), encoding="utf-8")
    done = [
        runner.step("Check", configs=text),
        runner.step("Check", configs="good.json", overrides=text, strict=text),
        runner.step("Judge", logs=text),
        runner.step("Judge", logs="good.json", against=text),
    ]
    assert [each.returncode for each in done] == [2] * 4
    assert [path.name for path in runner.folder.iterdir()] == ["good.json"]
    for each in done:
        for line in each.stdout.splitlines():
            assert not line.startswith("::error::")
            assert "gotcha" not in line or read(line)[1]["title"]


@pytest.mark.package
@needs_wheels
def test_the_action_installs_itself(runner: Runner) -> None:
    runner.path = f"{DEBIAN}:/usr/bin:/bin"
    installed = runner.step("Install")
    assert installed.returncode == 0, installed.stderr
    runner.path = f"{runner.file('PATH').strip()}:/usr/bin:/bin"
    (runner.folder / "good.json").write_text(TINY.read_text(encoding="utf-8"), encoding="utf-8")
    assert runner.step("Check", configs="good.json").stdout == "OK: no errors\n"


@pytest.mark.package
@needs_wheels
def test_the_action_and_the_workflow_follow_their_schemas() -> None:
    for schema, path in (
        ("vendor.github-actions", "action.yml"),
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
    ):
        command = [DEBIAN / "check-jsonschema", "--builtin-schema", schema, ROOT / path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# --- the hook -----------------------------------------------------------------------------------------------------


def _hook() -> dict[str, Any]:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return hook  # type: ignore[no-any-return]


def test_the_hook_takes_configurations_and_nothing_else() -> None:
    hook = _hook()
    for path, wanted in (
        ("configs/native/tiny-text.json", True),
        ("team/config/run.yaml", True),
        ("configs/cvs/jaxmaxtext_llama3.1-8b_mi300x_threshold.json", False),
        ("package.json", False),
        ("reconfigs/x.json", False),
    ):
        taken = re.search(hook["files"], path) and not re.search(hook["exclude"], path)
        assert bool(taken) is wanted, path


@pytest.mark.package
@needs_wheels
def test_pre_commit_runs_the_hook(tmp_path: Path) -> None:
    """In a repository of somebody else's, from a copy of this one: it is installed, and checks what is committed."""
    environment = {
        **os.environ, **_pip(), "HOME": str(tmp_path), "PRE_COMMIT_HOME": str(tmp_path / "cache"), "PYTHONPATH": "",
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@b", "PATH": f"{DEBIAN}:/usr/bin:/bin",
    }  # fmt: skip

    def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)

    hooks, team = tmp_path / "hooks", tmp_path / "team"
    hooks.mkdir()
    for name in ("src", "configs", "docs/man", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        (hooks / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, hooks / name)
    (team / "configs").mkdir(parents=True)
    (team / "configs" / "good.json").write_text(TINY.read_text(encoding="utf-8"), encoding="utf-8")
    (team / "other.json").write_text('{"not": "ours"}', encoding="utf-8")
    for repository in (hooks, team):
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
            done = run("git", *words, cwd=repository)
            assert done.returncode == 0, done.stderr
    assert run("pre-commit", "validate-manifest", ".pre-commit-hooks.yaml", cwd=hooks).returncode == 0
    good = run("pre-commit", "try-repo", hooks, "seatrial-check", "--all-files", "--verbose", cwd=team)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "OK: no errors" in good.stdout
    (team / "configs" / "bad.json").write_text(WRONG, encoding="utf-8")
    run("git", "add", "--all", cwd=team)
    bad = run("pre-commit", "try-repo", hooks, "seatrial-check", cwd=team)
    assert bad.returncode == 1, bad.stdout + bad.stderr
    assert "configs/bad.json:1" in bad.stdout
    assert "did you mean steps?" in bad.stdout


# --- the package --------------------------------------------------------------------------------------------------


@pytest.mark.package
@needs_wheels
def test_a_registry_would_take_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run([DEBIAN / "twine", "check", "--strict", *tmp_path.iterdir()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2
