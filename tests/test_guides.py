"""The guides and the README: every command in them is executed, and what they show is what it prints.

`SEATRIAL_GOLDEN=1` rewrites what they show; what varies is then made `…` again by hand.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.compiling import quick_variables
from tests.helpers.guides import ANY, SECONDS, agrees, alike, environment, execute, follow, rewritten, steps
from tests.helpers.processes import processes_with

ROOT = Path(__file__).parents[1]
GUIDES = {path.stem: path for path in sorted((ROOT / "docs" / "guides").glob("*.md"))}
QUICK = {"logs-in-ci"}  # in `make test`; all others are slow
ELSEWHERE = {
    "on-kubernetes": "cluster/test_guides.py",
    "on-slurm": "cluster/test_guides.py",
}  # with what else a guide needs
HERE = [
    pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for name, path in GUIDES.items()
    if name not in ELSEWHERE
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one page, and beside it whatever it needs; no process that was started below may be left."""
    (tmp_path / "guide").mkdir()
    yield tmp_path / "guide"
    left = processes_with(str(tmp_path))
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("path", HERE)
def test_a_guide_does_what_it_shows(path: Path, folder: Path) -> None:
    follow(path, folder, environment(folder.parent) | quick_variables())


README = ROOT / "README.md"
NOT_HERE = {"make demo", "make test"}  # the first has a test of its own in test_project.py, the second is this one
INSTALLS = ("pip ", "pipx ", "uv ", "podman build ")  # as tests/packaging does, from the wheel


def the_recipes_log() -> str:
    """As MaxText prints it for NVIDIA's recipe: a profiling run of 15 steps, and the run of 50."""
    lines = []
    for steps_, seconds in ((15, 7.9), (50, 6.989)):
        lines += ["Num_devices: 64, shape (1, 1, 64, 1, 1, 1, 1, 1, 1, 1)", "number parameters: 68.977 billion"]
        for step in range(steps_):
            took = 48.2 if step == 0 else 0.4 if step < 3 else seconds + (step * 7 % 9 - 4) / 100
            figures = f"TFLOP/s/device: {3641.35 / took:.3f}, Tokens/s/device: {8192 / took:.3f}, total_weights: 524288"
            lines.append(f"completed step: {step}, seconds: {took:.3f}, {figures}, loss: {11 * 0.97**step:.3f}")
    return "\n".join(lines) + "\n"


def test_the_readme_does_what_it_shows(folder: Path) -> None:
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "train.log").write_text(the_recipes_log())
    page = list(steps(README.read_text(encoding="utf-8"), guide=False))
    assert {step.command for step in page if step.command.startswith("make")} == NOT_HERE
    here = [step for step in page if step.command not in NOT_HERE and not step.command.startswith(INSTALLS)]
    follow(README, folder, environment(folder.parent), here)


@pytest.mark.parametrize("name", GUIDES)
def test_every_block_of_a_guide_has_a_rule(name: str) -> None:
    text = GUIDES[name].read_text(encoding="utf-8")
    assert any(not step.file for step in steps(text))
    assert not re.search(r"/pytest-|/var/cache/", text)  # the folder of a test, as SEATRIAL_GOLDEN writes it


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_a_guide_that_needs_more_is_executed_elsewhere(name: str, test: str) -> None:
    assert f'"{name}.md"' in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_workflow_does_what_the_guide_executes() -> None:
    page = list(steps(GUIDES["logs-in-ci"].read_text(encoding="utf-8")))
    (workflow,) = (yaml.safe_load(step.command) for step in page if step.file.startswith(".github/"))
    ran = [step["run"] for step in workflow["jobs"]["judge"]["steps"] if step.get("run", "").startswith("seatrial")]
    assert len(ran) == 2
    assert [line for line in ran if line not in [step.command for step in page]] == []


# --- the executor itself ----------------------------------------------------------------------------------------------

PAGE = """\
# A page

`data/a b.txt`:

```text
$ not a command, "quoted" and $HOME
```

```console
$ cat 'data/a b.txt'
$ export WORD=kept; cd data
$ echo "$WORD $(basename $PWD)" \\
    "second line"
kept data second line
$ ls nothing 2>&1 | tr a-z A-Z
LS: …
$ echo $?
2
$ read line; echo "[$line]"
[]
```
"""


def test_a_page_is_done_in_order_by_one_shell(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    page = list(steps(PAGE))
    assert [(step.file, step.line) for step in page][:2] == [("data/a b.txt", 5), ("", 10)]
    done = execute(page, tmp_path / "guide", environment(tmp_path), 60)
    printed = [(text.rstrip("\n"), code) for text, code in done]
    assert printed[:2] == [("", 0), ('$ not a command, "quoted" and $HOME', 0)]
    assert printed[3] == ("kept data second line", 0)
    assert printed[4][0].startswith("LS: CANNOT ACCESS")
    assert [code for _, code in printed[4:]] == [2, 0, 0]
    assert (printed[5][0], printed[6][0]) == ("2", "[]")


def test_nothing_but_seatrial_and_the_system_is_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    page = list(steps("```console\n$ seatrial version\n$ command -v pytest mypy\n$ echo $?\n1\n```\n"))
    done = execute(page, tmp_path / "guide", environment(tmp_path), 60)
    assert [code for _, code in done] == [0, 1, 0]


@pytest.mark.parametrize(
    "block",
    [
        "```bash\n$ seatrial run\n```\n",
        "```\nseatrial run\n```\n",
        "```console\nseatrial run\n```\n",
        "```text\nout\n```\n",
    ],
)
def test_a_command_without_a_rule_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 3: neither a console block"):
        list(steps(f"text\n\n{block}"))


@pytest.mark.parametrize(
    ("command", "shown", "why"),
    [
        ("echo one", "two", "prints"),
        ("echo one; echo two", "one", "prints"),
        ("echo one", "one\ntwo", "prints"),
        ("false", "", "no `$ echo $?` says so"),
        ("false", "$ echo $?\n0", "prints"),
    ],
)
def test_a_page_that_shows_something_else_fails(command: str, shown: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"```console\n$ {command}\n{shown}\n```\n")
    (tmp_path / "guide").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SEATRIAL_GOLDEN", raising=False)
        with pytest.raises(AssertionError, match=re.escape(why)):
            follow(path, tmp_path / "guide", environment(tmp_path))


def test_a_page_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_GOLDEN", "1")
    path = tmp_path / "page.md"
    path.write_text("A\n\n```console\n$ seq 5\n1\n…\n4\nold\n$ echo took 7 s\ntook … s\n$ echo end\n```\n\nB\n")
    (tmp_path / "guide").mkdir()
    follow(path, tmp_path / "guide", environment(tmp_path))
    assert path.read_text() == (
        "A\n\n```console\n$ seq 5\n1\n…\n4\n5\n$ echo took 7 s\ntook … s\n$ echo end\nend\n```\n\nB\n"
    )


LINES = st.lists(st.text("ab…", max_size=3), max_size=7)


@given(LINES, st.lists(st.text("ab", max_size=3), max_size=7))
def test_output_agrees_as_file_names_do(shown: list[str], printed: list[str]) -> None:
    """Against fnmatch, where a line is a character: a `*` in its place is any lines."""
    letters: dict[str, str] = {}
    text = "".join(letters.setdefault(line, chr(0x4E00 + len(letters))) for line in printed)

    def as_pattern(line: str) -> str:
        fitting = "".join(
            letter for line_, letter in letters.items() if fnmatch.fnmatchcase(line_, line.replace(ANY, "*"))
        )
        return f"[{fitting}]" if fitting else "!"

    pattern = "".join("*" if line == ANY else as_pattern(line) for line in shown)
    assert agrees(shown, printed) == fnmatch.fnmatchcase(text, pattern)


@given(LINES, st.lists(st.text("ab", max_size=3), max_size=7))
def test_what_is_rewritten_agrees(shown: list[str], printed: list[str]) -> None:
    assert agrees(rewritten(shown, printed), printed)
    if ANY not in "".join(shown):
        assert rewritten(shown, printed) == printed


def test_a_long_mismatch_is_found_at_once() -> None:
    some = random.Random(0)
    printed = ["".join(some.choices("ab", k=20)) for _ in range(300)]
    assert not agrees([ANY, "a…b…a…b"] * 40 + ["end"], printed)
    assert alike("a…b…c", "a and b, then c")
