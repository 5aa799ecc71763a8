"""Guides that are executed: their files are written, their commands run in order by one bash, their output compared.

In a guide, the lines of a `console` block that begin with `$ ` are commands (a backslash at the end continues one), and
the lines below a command are what it prints, on both streams. A block whose title line is a name in backticks and a
colon is a file. `…` in a line stands for any text in it, and alone on a line for any lines, also none. A command that
ends with another exit code than 0 is followed by `$ echo $?`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ANY = "…"
SECONDS = 900  # on two quiet cores none takes more than 120; a busy machine must not fail a test
_BLOCK = re.compile(r"^(?:`([^`\n]+)`:\n\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A command and what it shows, or a file with a name; `line` is its place, `span` that of the output."""

    line: int
    command: str
    shown: tuple[str, ...] = ()
    span: tuple[int, int] = (0, 0)
    file: str = ""


def steps(text: str, *, guide: bool = True) -> Iterator[Step]:
    """The commands and files of a page, in order. Raises ValueError at a block of a guide that is neither."""
    for block in _BLOCK.finditer(text):
        file, language, body = block.groups()
        line = text.count("\n", 0, block.start(3))
        if file:
            yield Step(line, body, file=file)
        elif not guide and language != "console":
            continue
        elif language != "console" or not body.startswith("$ "):
            raise ValueError(f"line {line}: neither a console block that begins with `$ ` nor a file with a title line")
        else:
            for found in _COMMAND.finditer(body):
                start, end = (block.start(3) + place for place in found.span(2))
                at = line + 1 + body.count("\n", 0, found.start())
                yield Step(at, found[1], tuple(found[2].splitlines()), (start, end))


def execute(page: Sequence[Step], folder: Path, environment: dict[str, str], seconds: float) -> list[tuple[str, int]]:
    """Runs a page in a folder; what each step printed, and its exit code. Raises subprocess.TimeoutExpired."""
    mark, script = "--- end of step: ", ["set -o pipefail"]
    for step in page:
        if step.file:
            assert (folder / step.file).resolve().is_relative_to(folder.resolve()), step.file
            script += [f"mkdir -p {shlex.quote(str(Path(step.file).parent))}"]
            script += [f"printf %s {shlex.quote(step.command)} > {shlex.quote(step.file)}"]
        else:
            script.append(step.command)
        script.append(f"ended=$?; printf '\\n{mark}%s\\n' $ended; (exit $ended)")
    path = folder.parent / "guide.sh"
    path.write_text("\n".join(script) + "\n", encoding="utf-8")
    done = subprocess.run(
        ["/bin/bash", str(path)],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=seconds,
    )  # fmt: skip
    parts = re.split(rf"\n{mark}(\d+)\n", done.stdout)
    assert len(parts) == 2 * len(page) + 1, done.stdout[-2000:]
    return [(text, int(code)) for text, code in zip(parts[:-1:2], parts[1::2], strict=True)]


def alike(shown: str, printed: str) -> bool:
    """One line: `…` is any text."""
    return re.fullmatch(".*".join(map(re.escape, shown.split(ANY))), printed) is not None


def agrees(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """All lines: `…` alone is any lines."""
    reached = {0}  # numbers of printed lines that what was shown so far can stand for
    for line in shown:
        if line == ANY:
            reached = set(range(min(reached, default=len(printed) + 1), len(printed) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(printed) and alike(line, printed[at])}
    return len(printed) in reached


def rewritten(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The printed lines, with the shown lines that still hold in their places, and `…` for what it stood for before."""
    lines: list[str] = []
    at, any_lines = 0, False
    for line in shown:
        found = next((place for place in range(at, len(printed)) if alike(line, printed[place])), None)
        if line == ANY:
            any_lines = True
        elif found is not None:
            lines += [*([ANY] if any_lines else printed[at:found]), line]
            at, any_lines = found + 1, False
    return [*lines, *([ANY] if any_lines else printed[at:])]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a page's commands: the installed `seatrial`, system programs, an empty home, no terminal."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "seatrial"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -P -m seatrial "$@"\n')
    program.chmod(0o755)
    (folder / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}  # programs, compiled once
    return {**kept, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder / "home"), "LANG": "C.UTF-8"}


def shown_as(text: str) -> list[str]:
    """The printed lines as a page shows them: without blanks at the ends of lines or blank lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def follow(path: Path, folder: Path, environment: dict[str, str], page: Sequence[Step] = ()) -> None:
    """Executes a page, or a part of it, and compares; with SEATRIAL_GOLDEN it rewrites what the page shows instead."""
    text, wrong = path.read_text(encoding="utf-8"), list[str]()
    page = page or list(steps(text))
    done = execute(page, folder, environment, SECONDS)
    following = [step.command for step in page[1:]] + [""]
    for step, (output, code), after in [*zip(page, done, following, strict=True)][::-1]:
        printed = shown_as(output)
        if code and after != "echo $?":
            wrong.append(f"{path.name}:{step.line}: $ {step.command}\nended with {code}, and no `$ echo $?` says so")
        if not agrees(step.shown, printed):
            if os.environ.get("SEATRIAL_GOLDEN"):
                lines = "".join(f"{line}\n" for line in rewritten(step.shown, printed))
                text = text[: step.span[0]] + lines + text[step.span[1] :]
            else:
                lines = "\n".join(("shows", *step.shown, "--- prints", *printed))
                wrong.append(f"{path.name}:{step.line}: $ {step.command}\n--- {lines}")
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert not wrong, "\n\n".join(wrong[::-1])
