"""Typing mistakes: each gets a message that names the place and the fix, exit code 2, and no word of Python's."""

from __future__ import annotations

import os
import random
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.cli import app
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import ROOT

TINY = (ROOT / "configs" / "native" / "tiny-text.json").read_text(encoding="utf-8")
FIX = re.compile(r"^ *fix: \S|Did you mean |is not one of '|: `seatrial|; give |: name ", re.MULTILINE)
OF_PYTHON = re.compile(r"\[Errno|Traceback|\w(Error|Exception)\b(?<!^Error)|<class|object at 0x", re.MULTILINE)

# A command → what its message must name: the place, and a part of the fix.
MISTAKES: dict[str, tuple[str, str]] = {
    # the verb, and options of it
    "chekc tiny.json": ("chekc", "'check'"),
    "rum tiny.json": ("rum", "'run'"),
    "help": ("help", "`seatrial --help` lists"),
    "check tiny.json --stric": ("--stric", "'--strict'"),
    "run tiny.json --rehears": ("--rehears", "'--rehearse'"),
    "stop folder --nwo": ("--nwo", "'--now'"),
    "check tiny.json -x": ("-x", "`seatrial check --help` lists"),
    "check tiny.json --rehearse=yes": ("--rehearse", "write --rehearse alone"),
    "init tiny-text folder": ("folder", "remove it"),
    "version 2": ("2", "remove it"),
    # files that are not there, or are something else
    "check": ("CONFIG", "The configuration file"),
    "check nosuch.json": ("nosuch.json", "check the path"),
    "check ''": ("CONFIG", "name one"),
    "check folder": ("folder", "name a configuration file"),
    "check hello.txt": ("hello.txt", "seatrial init"),
    "check nothing.json": ("nothing.json:1:1", "write a configuration into it"),
    "check bad.json": ("bad.json:1:8", "remove the comma"),
    "check bad.yaml": ("bad.yaml:1:6", "close it with ]"),
    "check binary": ("binary:2:118", "save the file as UTF-8"),
    "check tiny.json/x": ("tiny.json/x", "check its path"),
    "check secret.json": ("secret.json", "permissions"),
    "plan nosuch.yaml": ("nosuch.yaml", "check the path"),
    "plan tiny.json --sweep --all": ("--sweep and --all", "give one of them"),
    "parse hello.txt": ("hello.txt", "--pattern FILE"),
    "run nosuch.json --rehearse": ("nosuch.json", "check the path"),
    "train nosuch.json": ("nosuch.json", "check the path"),
    "convert nosuch.json --to nxdt": ("nosuch.json", "check the path"),
    "preflight nosuch.json --cluster hello.txt": ("nosuch.json", "check the path"),
    # order and overrides
    "check steps=3 tiny.json": ("steps=3", "tiny.json steps=3"),
    "run steps=3 tiny.json": ("steps=3", "tiny.json steps=3"),
    "check tiny.json steps": ("steps", "key=value"),
    "check tiny.json steps = 3": ("=", "without spaces"),
    "check tiny.json stpes=3": ("stpes", "did you mean steps?"),
    "check tiny.json steps=three": ("steps", "a whole number"),
    "check tiny.json steps=-3": ("steps", "a whole number"),
    # values of options
    "check tiny.json --format xml": ("--format", "'json'"),
    "plan tiny.json --on sluurm": ("--on", "'slurm'"),
    "plan tiny.json --engine maxtex": ("--engine", "did you mean maxtext?"),
    "plan tiny.json --explain stpes": ("stpes", "did you mean steps?"),
    "plan tiny.json --compile-for h1000": ("--compile-for", "h100-sxm"),
    "plan tiny.json --text": ("--text", "add --rehearse"),
    "plan tiny.json --rehearse --collapse": ("--collapse", "--rehearse or --collapse"),
    "plan tiny.json --on ssh": ("--cluster", "--cluster FILE"),
    "plan tiny.json --on ssh --cluster nosuch.json": ("nosuch.json", "check the path"),
    "plan tiny.json --on ssh --cluster folder": ("folder", "name a"),
    "plan tiny.json --on ssh --cluster hello.txt": ("hello.txt:1:1", "write key: value"),
    "calibrate --format xml": ("--format", "'json'"),
    "calibrate now": ("now", "remove it"),
    "serve nosuch": ("nosuch", "name the folder that holds"),
    "serve folder --port 70000": ("--port", "from 0 to 65535"),
    "serve folder --token-file nosuch": ("nosuch", "name a file with the token"),
    "serve folder --token-file tiny.json": ("tiny.json", "make one"),
    "publish folder --to csb": ("--to", "mlflow, wandb"),
    "publish folder": ("--to", "mlflow, wandb"),
    "publish --to csv": ("RUN_DIR", "name the directory of a run"),
    "publish folder --to csv": ("--out", "name a folder"),
    "publish folder --to csv --out made": ("folder", "name the directory"),
    "run tiny.json --metrics-port many": ("--metrics-port", "65535"),
    "run tiny.json --retries many": ("--retries", "a whole number from 0 to 100"),
    "run tiny.json --retries -1": ("--retries", "from 0 to 100"),
    "run tiny.json --container dockr": ("--container", "'docker'"),
    "run tiny.json --slurm partition=x": ("--slurm", "--on slurm"),
    "run tiny.json --out hello.txt": ("--out", "name a folder"),
    "run tiny.json --out ''": ("--out", "name one"),
    "run tiny.json --out hello.txt/x": ("--out", "a folder that can be written to"),
    "run tiny.json --out /proc/x": ("--out", "a folder that can be written to"),
    "preflight": ("--cluster", "--cluster FILE"),
    "preflight --cluster nosuch.json": ("nosuch.json", "check the path"),
    # convert, schema, init, capture
    "convert tiny.json": ("--to", "native, cvs"),
    "convert tiny.json --to": ("--to", "native, cvs"),
    "convert --to nxdt": ("CONFIG", "The configuration file"),
    "convert tiny.json --to maxtxt": ("--to", "maxtext"),
    "convert tiny.json --to native --out x.txt": ("x.txt", "x.yaml"),
    "convert tiny.json --to native --out nosuch/x.yaml": ("nosuch/x.yaml", "fix:"),
    "schema nativ": ("nativ", "'native'"),
    "completion bsh": ("bsh", "'bash'"),
    "schema native plan": ("plan", "remove it"),
    "init tiny-txt": ("tiny-txt", "did you mean tiny-text?"),
    "capture nosuch.sh": ("nosuch.sh", "name the script"),
    "capture folder": ("folder", "name the script"),
    "capture hello.txt --time-limit soon": ("--time-limit", "give a number"),
    "capture hello.txt word": ("word", "NAME=value"),
    # logs
    "judge": ("LOG", "The logs of one run"),
    "judge nosuch.log": ("nosuch.log", "name a log"),
    "judge hello.txt": ("hello.txt", "--pattern FILE"),
    "judge folder": ("folder", "--pattern FILE"),
    "judge tiny.json": ("tiny.json", "--against tiny.json"),
    "judge hello.txt steps=3": ("steps=3", "--against FILE"),
    "judge hello.txt --against nosuch.yaml": ("nosuch.yaml", "check the path"),
    "judge hello.txt --policy steedy": ("--policy", "steady"),
    "judge hello.txt --convention casual": ("--convention", "causal"),
    "judge hello.txt --published lots": ("--published", "10%"),
    "judge hello.txt --tokens many": ("--tokens", "15T"),
    "parse nosuch.log": ("nosuch.log", "name a log"),
    "parse hello.txt --family megatrn": ("--family", "megatron"),
    "parse hello.txt --pattern nosuch.toml": ("nosuch.toml", "name a pattern file"),
    "parse hello.txt --pattern bad.yaml": ("bad.yaml:1:", "single quotes"),
    # run directories
    "attach": ("RUN_DIR", "The directory that the run printed"),
    "attach nosuch": ("nosuch", "name the directory that a run printed"),
    "attach folder": ("folder", "name the directory that a run printed"),
    "attach tiny.json": ("tiny.json", "name the directory that a run printed"),
    "stop nosuch": ("nosuch", "name the directory that a run printed"),
    "stop hello.txt": ("hello.txt", "name the directory that a run printed"),
    "logs folder": ("folder", "name the directory that a run printed"),
    "logs folder --rank first": ("--rank", "a whole number"),
    "report nosuch": ("nosuch", "name the directory that a run printed"),
    "report hello.txt": ("hello.txt", "name the directory that a run printed"),
    "report folder --format pdf": ("--format", "'html'"),
    "report folder --price-per-device-hour cheap": ("--price-per-device-hour", "such as 2.5"),
    "report damaged": ("damaged", "name the directory that a run printed"),
    "stop damaged": ("damaged", "name the directory that a run printed"),
    "history --root nosuch": ("--root", "name the folder"),
    "history --root hello.txt": ("--root", "name the folder"),
    "history --outcome passed": ("--outcome", "pass, fail"),
    "history --limit -3": ("--limit", "0 for all"),
    "history --limit many": ("--limit", "a whole number"),
    "compare folder": ("compare", "A1 A2 --with B1 B2"),
    "compare nosuch other": ("other", "seatrial history"),
    "compare folder hello.txt": ("hello.txt", "seatrial judge"),
    "compare a b --fail-if-slower fast": ("--fail-if-slower", "10%"),
    "compare a b --with c --history": ("--history", "use one of the two"),
    "export": ("RUN_DIR|CHECKPOINT", "A run directory"),
    "export folder": ("--to", "A new folder"),
    "data hello.txt": ("--out", "PREFIX"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something of everything."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    (work / "damaged").mkdir()
    files = {
        "tiny.json": TINY, "hello.txt": "hello\n", "nothing.json": "", "bad.json": '{"a": 1,}',
        "bad.yaml": "not: [valid\n",
        "damaged/plan.json": '{"spec": [', "damaged/status.json": "[",
    }  # fmt: skip
    for name, text in files.items():
        (work / name).write_text(text, encoding="utf-8")
    (work / "binary").write_bytes(bytes(range(256)))
    (work / "secret.json").symlink_to(
        "/proc/self/mem/x" if os.geteuid() else "secret.json"
    )  # a circle: not even for root
    return work


def _assert_helps(done: subprocess.CompletedProcess[str], *named: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert not OF_PYTHON.search(said), said
    assert FIX.search(said), said
    for words in named:
        assert words in said, said


def test_there_are_at_least_sixty() -> None:
    assert len(MISTAKES) >= 60
    verbs = {command.split()[0] for command in MISTAKES}
    assert set(app.commands) - verbs == set()


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered(command: str, here: Path) -> None:
    before = sorted(here.rglob("*"))
    _assert_helps(seatrial(*shlex.split(command), cwd=here), *MISTAKES[command])
    assert sorted(here.rglob("*")) == before


NAMED = (
    "check", "plan", "run", "train", "judge", "parse", "attach", "stop", "logs", "report", "capture", "init",
    "history --root", "convert --to nxdt", "compare x", "judge x --against", "run tiny.json --engine",
    "plan tiny.json --explain", "check tiny.json", "schema", "judge hello.txt --policy",
)  # fmt: skip
RANDOM_NAMES = [f"{verb} {place}" for verb in NAMED for place in ("", "folder/")]


@pytest.mark.parametrize("command", RANDOM_NAMES)
def test_any_name_is_answered(command: str, here: Path) -> None:
    for name in _names(random.Random(command), 4):
        _assert_helps(seatrial(*command.split()[:-1], *_ended(command, name), cwd=here))


def _ended(command: str, name: str) -> tuple[str, ...]:
    last = command.split()[-1]
    return (f"folder/{name}",) if last == "folder/" else (last, name)


def _names(randoms: random.Random, number: int) -> Iterator[str]:
    """Names of letters, of anything that can be typed, of too many characters, and of other scripts."""
    letters = "".join(randoms.choices(string.ascii_lowercase, k=8))
    yield letters
    yield letters[:3] + "".join(randoms.choices(string.punctuation.replace("-", "") + " \t", k=number * 2))
    yield letters + "x" * 300
    yield "".join(randoms.choices("äßλж漢字🙂\u202e\x1b\x07", k=6)) + letters


@pytest.mark.parametrize("verb", [name for name in app.commands if name != "version"])
def test_a_letter_too_few_or_too_many_in_a_verb_or_an_option(verb: str, here: Path) -> None:
    randoms = random.Random(verb)
    options = [
        option for parameter in app.commands[verb].params for option in parameter.opts if option.startswith("--")
    ]
    at = randoms.randrange(1, len(verb))
    for wrong in (verb[:at] + verb[at + 1 :] + "q", verb[:at] + "zz" + verb[at:]):
        _assert_helps(seatrial(wrong, "tiny.json", cwd=here), wrong)
    for option in randoms.sample(options, min(2, len(options))):
        wrong = f"{option}q"
        _assert_helps(seatrial(verb, "tiny.json", wrong, cwd=here), wrong)


def test_a_folder_that_may_not_be_written_is_named(here: Path) -> None:
    for command in ("history --format html", "init tiny-text"):
        done = seatrial(*command.split(), cwd=Path("/proc/self"))
        said = done.stdout + done.stderr
        assert done.returncode in (2, 3), said
        assert not OF_PYTHON.search(said), said
        assert "history.html" in said or "tiny-text.json" in said


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("data nosuch.txt --out x", "nosuch.txt"), ("data hello.txt --tokenizer nosuch --out x", "nosuch"),
        ("export nosuch --to x", "nosuch"),
    ],
)  # fmt: skip
def test_a_program_of_the_trainer_is_in_a_process_of_its_own(command: str, told: str, here: Path) -> None:
    words = [sys.executable, "-m", "seatrial", *command.split()]
    _assert_helps(subprocess.run(words, cwd=here, capture_output=True, text=True, check=False), told)
