"""Completion, asked as shells ask: every option has its values, and bash, zsh and fish themselves put them in."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from seatrial import source
from seatrial.cli import app
from seatrial.commands.completion import shells
from seatrial.commands.completion.offers import FUNCTIONS, TABLES, offer
from seatrial.dialects.examples import examples
from tests.helpers.command_line import seatrial
from tests.helpers.terminal import WITH_TERMINAL

ROOT = Path(__file__).parents[2]
CVS = ROOT / "configs" / "cvs" / "mi300x_singlenode_llama3_1_70b.json"
TINY = ROOT / "configs" / "native" / "tiny-text.json"

# Numbers, names that are the user's own, addresses, commands of other machines.
FREE = {
    "fail_if_slower", "host", "limit", "metrics_port", "pick", "port", "price_per_device_hour", "project", "published",
    "python", "queue_deadline", "retries", "seconds", "steps", "tokens", "url", "variables",
}  # fmt: skip
# A command remembers how its first context spelled --help.
ALONE = click.Context(app, info_name="seatrial", **app.context_settings)


def offers(line: str, shell: str = "bash", *, in_hand: str | None = None) -> list[str]:
    """The words, or the types where the shell completes them itself, for a command line up to the cursor."""
    last = re.split(r"[\s=]", line)[-1] if in_hand is None else in_hand
    asked = {"_SEATRIAL_COMPLETE": f"{shell}_complete", "COMP_LINE": line, "COMP_CUR": last}
    rows = [row.split("\t") for row in shells.answer(app, asked).splitlines()]
    return [value if kind == "plain" else f"<{kind}>" for kind, value, _ in rows]


def run_in(folder: Path, *names: str) -> None:
    """Folders that look like runs, the last one the newest."""
    for at, name in enumerate(names):
        run_dir = folder / "runs" / name
        run_dir.mkdir(parents=True)
        (run_dir / "plan.json").write_text("{}", encoding="utf-8")
        os.utime(run_dir, (at, at))


# --- every parameter ----------------------------------------------------------------------------------------------


def _parameters() -> Iterator[tuple[str, click.Parameter]]:
    for verb, command in app.commands.items():
        for parameter in command.params:
            if not (isinstance(parameter, click.Option) and parameter.is_flag):
                yield verb, parameter


def test_every_argument_and_option_has_its_values() -> None:
    without = set()
    for verb, parameter in _parameters():
        context = click.Context(app.commands[verb], parent=ALONE, info_name=verb, obj=[verb])
        found = parameter.shell_complete(context, "")
        needs_a_file = {"models", "hosts", "ranks", "explained"}  # and have one in tests below
        closure = getattr(parameter._custom_shell_complete, "__closure__", None) or ()
        if not found and not needs_a_file & {cell.cell_contents for cell in closure}:
            without.add(str(parameter.name))
    assert without == FREE


def test_every_verb_and_option_is_offered() -> None:
    assert offers("seatrial ") == list(app.commands)
    for verb, command in app.commands.items():
        named = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
        assert {name for name in named if name.startswith("--")} <= set(offers(f"seatrial {verb} --")), verb


def test_every_table_has_names() -> None:
    for name in TABLES:
        every = [item.value for item in offer(name, ALONE, "")]
        assert len(every) > 1
        assert [item.value for item in offer(name, ALONE, every[-1])][-1] == every[-1]
    assert not FUNCTIONS.keys() & TABLES.keys()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("seatrial ju", ["judge"]),
        ("seatrial check --for", ["--format"]),
        ("seatrial check x --format ", ["text", "json", "github"]),
        ("seatrial run x --on=sl", ["slurm"]),
        ("seatrial run x --engine m", ["maxtext", "megatron"]),
        ("seatrial run x --slurm par", ["partition="]),
        ("seatrial plan x --compile-for b", ["b200"]),
        ("seatrial convert x --to megatron-", ["megatron-env"]),
        ("seatrial judge x --family nanog", ["nanogpt"]),
        ("seatrial judge x --policy last-", ["last-10"]),
        ("seatrial judge x --convention pa", ["palm"]),
        ("seatrial publish x --to p", ["prometheus", "parquet"]),
        ("seatrial history --outcome d", ["died"]),
        ("seatrial history --device h200", ["h200", "h200-nvl"]),
        ("seatrial schema verd", ["verdict"]),
        ("seatrial completion f", ["fish"]),
        ("seatrial check ", ["<file>"]),
        ("seatrial check 'a name with bla", ["<file>"]),
        ("seatrial judge x --against ", ["<file>"]),
        ("seatrial run x --out ", ["<dir>"]),
        ("seatrial data x --tokenizer b", ["byte"]),
        ("seatrial data x --tokenizer t", ["<file>"]),
        ("seatrial check x --no-such ", ["<file>"]),
    ],
)
def test_values(line: str, wanted: list[str]) -> None:
    assert offers(line) == wanted


def test_examples_have_their_descriptions() -> None:
    assert offers("seatrial init ") == list(examples())
    answer = shells.answer(app, {"_SEATRIAL_COMPLETE": "zsh_complete", "COMP_LINE": "seatrial init tiny-"})
    assert answer.startswith("plain\ttiny-text\t1.2 million parameters")


# --- what depends on files ----------------------------------------------------------------------------------------


def test_every_key_of_a_file_is_an_override_that_means_it(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "c.json")
    keys = offers(f"seatrial check {tmp_path}/c.json ")
    leaves = [".".join(path) for path, node in source.walk(source.read(TINY).root) if not node.members and path]
    leaves = [path for path in leaves if "_comment" not in path and not re.search(r"\.\d+(\.|$)", path)]
    assert len(keys) == len(leaves)
    for key in keys:
        done = seatrial("plan", "c.json", "--explain", key.removesuffix("="), cwd=tmp_path)
        assert done.returncode == 0, (key, done.stdout, done.stderr)


def test_keys_of_a_cell_and_of_commands() -> None:
    assert offers(f"seatrial run {CVS} nn") == ["nnodes="]
    assert offers(f"seatrial run {CVS} config.nn") == ["config.nnodes="]
    assert offers(f"seatrial run {ROOT}/configs/maxtext/maxtext-quick.sh per_") == ["per_device_batch_size="]
    assert "num-layers=" in offers(f"seatrial run {ROOT}/configs/megatron/megatron-gpt-345m.sh num-")
    assert offers(f"seatrial plan {TINY} --explain ste") == ["steps"]
    assert offers(f"seatrial judge log --against {TINY} ste") == ["steps="]
    assert offers(f"seatrial check {TINY} no-such-key") == ["<file>"]


def test_cells_hosts_and_ranks(tmp_path: Path) -> None:
    assert offers(f"seatrial check {CVS} --model ") == ["llama3.1-70b"]
    assert offers(f"seatrial check {CVS} --gpu ") == ["mi300x"]
    assert "h200" in offers(f"seatrial check {TINY} --gpu ")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("hosts:\n  - node-a\n  - node-b\n", encoding="utf-8")
    assert offers(f"seatrial run {TINY} --cluster {cluster} --exclude node-") == ["node-a", "node-b"]
    for rank in (0, 3):
        log = tmp_path / "run" / "nodes" / f"h{rank}" / f"rank{rank}.log"
        log.parent.mkdir(parents=True)
        log.touch()
    assert offers(f"seatrial logs {tmp_path}/run --rank ") == ["0", "3"]


def test_run_directories_are_offered_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(tmp_path, "first", "second", "with blank", "with\ttab")
    (tmp_path / "runs" / "no-run").mkdir()
    monkeypatch.chdir(tmp_path)
    for verb in ("report", "attach", "stop", "logs", "compare", "publish", "export"):
        assert offers(f"seatrial {verb} ") == ["runs/with blank", "runs/second", "runs/first"], verb
    assert offers("seatrial compare runs/first s") == ["runs/second"]
    assert offers(f"seatrial report {tmp_path}/runs/f") == [f"{tmp_path}/runs/first"]
    assert offers("seatrial report runs/'with b", in_hand="runs/'with b") == ["runs/with blank"]
    assert offers(r"seatrial report runs/with\ b", in_hand=r"runs/with\ b") == ["runs/with blank"]
    assert offers("seatrial report nowhere/") == ["<dir>"]
    assert offers("seatrial judge f") == ["runs/first"]


def test_a_file_that_cannot_be_read_offers_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": ', encoding="utf-8")
    for line in (f"check {broken} ", f"check {broken} --model ", f"run {broken} --cluster {broken} --exclude "):
        done = _ask(f"seatrial {line}", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _ask(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    asked = {"_SEATRIAL_COMPLETE": "bash_complete", "COMP_LINE": line, "COMP_CUR": ""}
    return subprocess.run(
        [sys.executable, "-m", "seatrial"], env={**os.environ, **asked}, cwd=cwd, capture_output=True, text=True
    )


def test_what_a_shell_completes_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    for line in (f"seatrial init tiny-text --no $(touch {marker})", f"seatrial check `touch {marker}` "):
        _ask(line, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- real shells --------------------------------------------------------------------------------------------------

# How each is started without the person's own settings, made to complete, and given a prompt that a test can wait for.
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(seatrial completion bash)"; PS1="READY"">"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(seatrial completion zsh)"; PROMPT="READY"">"',
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        "seatrial completion fish | source; function fish_prompt; echo -n READY'>'; end",
    ),
}


def _needs(shell: str) -> None:
    if shutil.which(shell) is None:
        if os.environ.get("SEATRIAL_REQUIRE_SHELLS"):
            pytest.fail(f"SEATRIAL_REQUIRE_SHELLS is set, and there is no {shell}")
        pytest.skip(f"needs {shell}")


class Typing:
    """An interactive shell in a terminal. Of the program `seatrial` only completion is real: otherwise it writes down
    the words that the shell started it with."""

    def __init__(self, shell: str, folder: Path) -> None:
        self.words = folder / "words"
        program = folder / "bin" / "seatrial"
        program.parent.mkdir()
        program.write_text(
            '#!/bin/sh\n[ "$1" != completion ] && [ -z "$_SEATRIAL_COMPLETE" ] && '
            f'exec printf "%s\\n" "$@" >"{self.words}"\nexec {sys.executable} -m seatrial "$@"\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
        command, prepare = START[shell]
        kept = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
        environment = {
            **kept, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        self.terminal, other = pty.openpty()
        program_path = shutil.which(command[0])
        assert program_path is not None
        self.shell = subprocess.Popen(
            [sys.executable, "-c", WITH_TERMINAL, program_path, *command[1:]], cwd=folder, env=environment,
            start_new_session=True, stdin=other, stdout=other, stderr=other,
        )  # fmt: skip
        os.close(other)
        os.write(self.terminal, f"{prepare}\n".encode())
        self._wait_for(b"READY>")

    def words_of(self, text: str) -> list[str]:
        """The words with which the program is started when this is typed, then Return."""
        self.words.unlink(missing_ok=True)
        os.write(self.terminal, f"{text}\n".encode())
        self._wait_for(b"READY>")
        return self.words.read_text(encoding="utf-8").splitlines()

    def _wait_for(self, prompt: bytes, seconds: float = 60.0) -> None:
        shown, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.1)[0]:
                shown += os.read(self.terminal, 65536)
            elif prompt in shown and (not shown.startswith(b"seatrial") or b"\n" in shown):
                return
        pytest.fail(f"no prompt after {seconds} s: {shown!r}")

    def close(self) -> None:
        """Ends the shell."""
        os.close(self.terminal)
        self.shell.kill()
        self.shell.wait()


@pytest.mark.parametrize("shell", START)
def test_a_shell_puts_in_what_was_offered(shell: str, tmp_path: Path) -> None:
    _needs(shell)
    shutil.copy(TINY, tmp_path / "tiny.json")
    (tmp_path / "a name with blanks.json").write_text("{}", encoding="utf-8")
    run_in(tmp_path, "first one")
    typing = Typing(shell, tmp_path)
    try:
        for text, words in (
            ("seatrial preflig\t", ["preflight"]),
            ("seatrial init tiny-t\t", ["init", "tiny-text"]),
            ("seatrial check tin\t--str\t", ["check", "tiny.json", "--strict"]),
            ("seatrial check a\t", ["check", "a name with blanks.json"]),
            ("seatrial check tiny.json step\t7", ["check", "tiny.json", "steps=7"]),
            (
                "seatrial run tiny.json --on sl\t--slurm parti\ttop",
                ["run", "tiny.json", "--on", "slurm", "--slurm", "partition=top"],
            ),
            ("seatrial run tiny.json --on=sl\t--rehearse", ["run", "tiny.json", "--on=slurm", "--rehearse"]),
            ("seatrial judge x --against=tin\t", ["judge", "x", "--against=tiny.json"]),
            ("seatrial report runs/fi\t", ["report", "runs/first one"]),
            ("seatrial report 'runs/fi\t", ["report", "runs/first one"]),
            ('seatrial report "runs/fi\t', ["report", "runs/first one"]),
            (r"seatrial report runs/first\ " "\t", ["report", "runs/first one"]),
            ("seatrial convert tiny.json --to nx\t--out new", ["convert", "tiny.json", "--to", "nxdt", "--out", "new"]),
        ):
            assert typing.words_of(text) == words, text
    finally:
        typing.close()
