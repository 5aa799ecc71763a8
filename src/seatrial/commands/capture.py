"""`seatrial capture`: a launch script is run in a sandbox, and what it would start becomes a configuration."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seatrial import capture as sandboxed
from seatrial.capture import Captured, placeholders, training
from seatrial.capture.training import Training
from seatrial.command import masked
from seatrial.console import inert
from seatrial.errors import InputError
from seatrial.runs.files import exists, read_object, write_text

_SHOWN = 96  # characters of a command in the list of what was started
_LAST_LINES, _LAST = 5, 500  # lines of a failed script's output, and characters of them
_UNSET = re.compile(r"(?P<file>[^\n:]*): line (?P<line>\d+): \$?(?P<name>[A-Za-z_]\w*|\d+): (?P<why>[^\n]+)")
_NO_FILE = re.compile(r"(?i)no such file|cannot open|syntax error")  # what a shell makes of <PATH TO DATA>
_ASKED = re.compile(  # in a script's own words
    r"\b(?P<name>[A-Z][A-Z0-9]*_?[A-Z0-9_]+)\b[\w` '\"/-]{0,40}?\b(not set|unset|undefined|required|must be set)\b"
    r"|\b[Ss]et (the )?(?P<other>[A-Z][A-Z0-9_]{2,})\b"
)


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """A script with NAME=value words and arguments, and what to do with what it starts."""

    script: Path
    variables: Sequence[str] = ()
    arguments: Sequence[str] = ()
    folder: Path | None = None
    existing: Sequence[str] = ()
    seconds: float = sandboxed.SECONDS
    pick: int | None = None
    out: Path | None = None
    yes: bool = False
    as_json: bool = False


def capture(request: CaptureRequest) -> str:
    """Runs the script, writes the configuration, and says what was started. Raises InputError where none trains."""
    variables = dict(word.split("=", 1) for word in request.variables if re.match(r"[A-Za-z_]\w*=", word))
    wrong = next((word for word in request.variables if word.partition("=")[0] not in variables), None)
    if wrong is not None:
        fix = "put the script's own arguments behind --, and variables before it, as NAME=value"
        raise InputError.single("not-a-variable", "capture", f"{wrong!r} is not NAME=value", fix)
    asked = sandboxed.Request(
        script=request.script, project=request.folder, arguments=request.arguments, variables=variables,
        existing=request.existing, seconds=request.seconds,
    )  # fmt: skip
    if not exists(request.script, as_file=True):
        why = "this is a folder" if request.script.is_dir() else "there is no such script"
        raise InputError.single("unreadable", str(request.script), why, "name the script that starts the training")
    if not request.yes:
        _consent(asked)
    captured = sandboxed.capture(asked)
    found = training.trainings(captured)
    if not found:
        raise _nothing(captured)
    chosen = _chosen(found, request.pick)
    if chosen is None:
        raise _several(request.script, found)
    document = json.dumps(training.document(captured, chosen), indent=2, ensure_ascii=False)
    if request.as_json:
        return document
    path = _write(document, request.out or Path(f"{request.script.stem}.captured.json"))
    return "\n".join([*_tree(captured, chosen), "", *_notes(captured, chosen), *_next(path)])


def _consent(asked: sandboxed.Request) -> None:
    """Shows the script and asks. Raises InputError where nobody can answer, or the answer is no."""
    if not sys.stdin.isatty():
        why = "the script would be run in a sandbox, and nobody is here to agree to that"
        raise InputError.single("no-consent", "capture", why, "read the script, and give --yes")
    text = asked.script.read_text(encoding="utf-8", errors="replace") if asked.script.is_file() else ""
    click.echo_via_pager("".join(f"{inert(line)}\n" for line in text.splitlines()))
    where = "without network, and with none of your files but a copy of its folder"
    if not click.confirm(f"Run {inert(str(asked.script))} in a sandbox, {where}?"):
        fix = "read it first: it is bash that runs it"
        raise InputError.single("no-consent", "capture", "the script was not run", fix)


def _chosen(found: Sequence[Training], pick: int | None) -> Training | None:
    if pick is not None and not 1 <= pick <= len(found):
        why, fix = f"there are {len(found)} trainings", f"give 1 to {len(found)}"
        raise InputError.single("no-such-training", "--pick", why, fix)
    return found[pick - 1] if pick is not None else found[0] if len(found) == 1 else None


def _several(script: Path, found: Sequence[Training]) -> InputError:
    names = (f"{number}: {masked(each.name) or 'started again'}" for number, each in enumerate(found[:20], start=1))
    why = f"it starts {len(found)} different trainings: {'; '.join(names)}"
    return InputError.single("several-trainings", str(script), why, "choose one of them: --pick 1")


def _write(document: str, path: Path) -> Path:
    """Writes the file; one that `capture` did not write is never replaced. Raises InputError."""
    if path.exists() or path.is_symlink():
        try:
            ours = "captured" in read_object(path)
        except (InputError, OSError, ValueError):
            ours = False
        if not ours:
            why = "there is a file of this name that is no captured configuration"
            raise InputError.single("exists", str(path), why, "remove it, or name another: --out FILE")
    write_text(path, document + "\n")
    return path


# --- what was started -------------------------------------------------------------------------------------------------


def _tree(captured: Captured, chosen: Training) -> Iterator[str]:
    """The commands that were started, each below the one that started it, with its line."""
    depth: dict[str, int] = {}
    for call in captured.calls:
        depth[call.number] = level = depth.get(call.parent, -1) + 1
        if call.kind in ("wrapper", "start") or call is chosen.call:
            mark = "→ " if call is chosen.call else "  "
            words = shlex.join(call.before or call.argv)
            yield f"{mark}{'  ' * level}{_shown(words)}{f'   {inert(call.file)}:{call.line}' if call.file else ''}"


def _shown(text: str) -> str:
    one_line = inert(masked(" ".join(text.split())))
    return one_line if len(one_line) <= _SHOWN else f"{one_line[: _SHOWN - 1]}…"


def _notes(captured: Captured, chosen: Training) -> Iterator[str]:
    for text in training.assumed(captured):
        yield f"assumed: {inert(text)}"
    if chosen.secrets:
        yield f"secret: {', '.join(map(inert, chosen.secrets))} not written: set what the run needs in its shell"
    if captured.ended.exit_code is None:
        yield f"the script was stopped after {captured.request.seconds:.0f} s"
    elif captured.ended.exit_code:
        yield f"the script ended with exit code {captured.ended.exit_code}{_failed(captured)}"


def _next(path: Path) -> list[str]:
    name = shlex.quote(str(path))
    return [f"written: {inert(str(path))}", f"next: seatrial check {name}; seatrial plan {name}"]


# --- why there is none ------------------------------------------------------------------------------------------------


def _nothing(captured: Captured) -> InputError:
    """The error for a script that reached no training: what it asks for, where it ended, or what it started instead."""
    script, ended = captured.request.script, captured.ended
    last = next((step for step in reversed(captured.steps) if step.file and step.line), None)
    place = f" at {inert(last.file)}:{last.line}" if last else ""
    said = _said(ended.output)
    if captured.has_windows_lines:
        why = "lines end as on Windows, and bash reads the carriage return as part of the last word of each"
        return _error("carriage-return", script, f"{why}{said}", "save it with Unix line ends: sed -i 's/\\r$//'")
    if (asked := _asked(captured, place + said)) is not None:
        return asked
    if ended.exit_code is None:
        fix = "look whether it waits for something; --time-limit gives it longer"
        why = f"it started no training within {captured.request.seconds:.0f} s{place}"
        return _error("time-limit", script, why, fix)
    if ended.exit_code:
        fix = "give what it asks for: NAME=value, arguments behind --, or --exists PATH for a path that is not here"
        why = f"it ended with exit code {ended.exit_code}{_failed(captured)}{said}"
        return _error("script-failed", script, why, fix)
    calls = (call for call in captured.calls if call.kind in ("start", "wrapper"))
    others = dict.fromkeys(_shown(shlex.join(call.argv)) for call in calls)
    started = f"it started {'; '.join(list(others)[:5]) or 'nothing'}{said}"
    fix = "name the script that starts train.py, pretrain_gpt.py or MaxText, with the arguments that make it do so"
    return _error("no-training", script, f"no training command was reached: {started}", fix)


def _failed(captured: Captured) -> str:
    """The command that ended a script that failed, with its place; nothing where none did, as with a syntax error."""
    code = captured.ended.exit_code
    for step in reversed(captured.steps):
        has_ended = step.status == code or re.match(r"(exit|return)\b", step.text)
        if step.file and step.line and has_ended:
            verb = f" failed with exit status {step.status}" if step.status else " ended it"
            return f": `{_shown(step.text)}` at {inert(step.file)}:{step.line}{verb}"
    return ""


def _said(output: str) -> str:
    """The last lines of a script's output."""
    lines = [line for line in output.splitlines() if line.strip()]
    return f", and the script said: {inert(masked(' / '.join(lines[-_LAST_LINES:])))[-_LAST:]}" if lines else ""


def _asked(captured: Captured, said: str) -> InputError | None:
    """The error for a script that asks for a placeholder's value, an argument or a variable; None: it asks for none."""
    script, ended = captured.request.script, captured.ended
    again = f"give it: seatrial capture {shlex.quote(str(script))}"
    text = script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""
    if left := list(placeholders.left(text, captured.request.variables)):
        names = list(dict.fromkeys(name for name, _, _ in left))
        why = f"{left[0][0]} is still {inert(left[0][2])} (line {left[0][1]})"
        why += f", and so are {', '.join(names[1:])}" if names[1:] else ""
        return _error("placeholder", script, why, f"{again} {' '.join(f'{name}=…' for name in names)}")
    if (written := placeholders.in_words(text)) and _NO_FILE.search(ended.output):
        why = f"{inert(written[0][1])} is not filled in (line {written[0][0]})"
        more = ", ".join(dict.fromkeys(str(number) for number, _ in written[1:]))
        why += f", and neither are those of lines {more}" if more else ""
        return _error("placeholder", script, why, "write what they stand for into a copy of the script")
    asks = next((match for match in _UNSET.finditer(ended.output) if _is_unset(match["why"])), None)
    if asks is not None and ended.exit_code:
        name, line = asks["name"], f"line {asks['line']}"
        if name.isdigit():
            why = f"it asks for its argument {name} ({line})"
            return _error("missing-argument", script, why, f"{again} -- ARGUMENT…")
        return _error("missing-variable", script, f"it asks for the variable {name} ({line})", f"{again} {name}=…")
    asked = list(_ASKED.finditer(ended.output)) if ended.exit_code else []
    if asked:
        name = asked[-1]["name"] or asked[-1]["other"]
        return _error("missing-variable", script, f"it asks for the variable {name}{said}", f"{again} {name}=…")
    return None


def _is_unset(why: str) -> bool:
    """True if bash says of a name that it is not set, or a script does in its own words: ${NAME:?…}."""
    words = r"\b(unbound variable|not set|requires?|required|must be|needs?|missing|specify|set )\b"
    return bool(re.search(words, why))


def _error(code: str, script: Path, why: str, fix: str) -> InputError:
    return InputError.single(code, inert(str(script)), why, fix)
