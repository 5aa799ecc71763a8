"""The trainings that a launch script starts: bash runs it in a sandbox with stand-ins for all programs that act.

`capture` runs the script, again where a folder or program that it names is not there, until it meets nothing new.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.capture import placeholders, record, sandbox
from seatrial.capture.inside import stand_in
from seatrial.capture.project import temporary
from seatrial.capture.record import Call, Step
from seatrial.capture.sandbox import Missing
from seatrial.errors import InputError

SECONDS = 8.0  # for all runs together
_MAX_RUNS = 8
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_OURS = ("/usr/", "/proc/", "/dev/", "/bin/", "/seatrial")
_NOT_THERE = re.compile(
    r"^(?P<file>[^\n]*?): line (?P<line>\d+): (?P<verb>cd: |pushd: |exec: )?(?P<path>[^\n:]+): "
    r"No such file or directory$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A script, its arguments, the variables of its shell, and paths that it may take for existing ones.

    `project` is the folder that it may read: by default that of its git repository, else its own.
    """

    script: Path
    project: Path | None = None
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    existing: Sequence[str] = ()
    seconds: float = SECONDS


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The record of a script: its calls and commands in order, its end, and the paths that were made for it."""

    request: Request
    project: Path
    calls: Sequence[Call]
    steps: Sequence[Step]
    ended: sandbox.Ended
    missing: Sequence[Missing]

    @property
    def has_windows_lines(self) -> bool:
        """True if lines of the script end as on Windows: bash has the carriage return in the last word of each."""
        return "\r\n" in _text(self.request.script)


def capture(request: Request) -> Captured:
    """Runs a script in the sandbox. Raises InputError where there is none, or no such script."""
    script = request.script.absolute()
    text = _text(script)
    bubblewrap = sandbox.require()
    project = (request.project or _project(script)).absolute()
    missing = [Missing(path=path, kind="folder" if path.endswith("/") else "file") for path in request.existing]
    here = Path.cwd()
    folder = here if here.is_relative_to(project) else script.parent
    name = os.path.relpath(script, folder)
    text = placeholders.filled(text, request.variables)
    nodes = next((request.variables[each] for each in _NODES if request.variables.get(each, "").isdecimal()), "")
    job = ["sbatch", *([f"--nodes={nodes}"] if nodes else [])]  # as Slurm would have set it, for an `sbatch -N`
    command = [*(job if stand_in.directives(text) else ["bash"]), name, *request.arguments]
    until = time.monotonic() + request.seconds
    for _ in range(_MAX_RUNS):
        with temporary() as own:
            scratch = own / "scratch"
            sandbox.prepare(scratch, project, script, text)
            ended = sandbox.run(
                bubblewrap, scratch, project, command, folder=folder, variables=request.variables,
                missing=missing, seconds=max(0.5, until - time.monotonic()),
            )  # fmt: skip
            calls, steps = record.calls(scratch), record.steps(scratch)
        new = {each.path: each for each in _not_there(ended.output, steps)}
        missing = [each for each in missing if each.path not in new or each.kind == new[each.path].kind]
        known = {each.path for each in missing}
        if new.keys() <= known or time.monotonic() > until:
            break
        missing += [each for path, each in new.items() if path not in known]
    return Captured(request=request, project=project, calls=calls, steps=steps, ended=ended, missing=missing)


def _text(script: Path) -> str:
    if not script.is_file():
        raise InputError.single("unreadable", str(script), "there is no such script", "check the path")
    with script.open(
        encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:  # to the byte what bash would read
        return file.read()


def _project(script: Path) -> Path:
    """The folder that the script may need: that of its git repository, or its own."""
    above = [folder for folder in script.parents if (folder / ".git").exists()]
    return above[0] if above else script.parent


def _is_sourced(path: str, steps: Sequence[Step]) -> bool:
    """True if any text that ran reads a path as a script of its own shell: `bash -c "source /cfg/x.sh && …"`."""
    pattern = re.compile(rf"(?:^|[\s;&|'\"(])(?:source|\.)\s+[\"']?{re.escape(path)}")
    return any(pattern.search(step.text) for step in steps)


def _not_there(output: str, steps: Sequence[Step]) -> Iterator[Missing]:
    """The absolute paths for want of which a command of the script has failed, and what each would be."""
    for match in _NOT_THERE.finditer(output):
        place = (match["file"], int(match["line"]))
        here = [step for step in steps if (step.file, step.line) == place]
        written, path = [step.text for step in here], os.path.normpath(match["path"])
        redirects = any(re.search(r">\s*\S", text) for text in written)
        if not path.startswith("/"):
            if not match["verb"] and redirects and "/" in path:
                yield Missing(path=os.path.normpath(f"{here[-1].folder}/{path}/.."), kind="folder")
            continue
        if path.startswith(_OURS) and not path.startswith(sandbox.SETTINGS):
            continue
        if match["verb"] in ("cd: ", "pushd: "):
            yield Missing(path=path, kind="folder")
        elif any(re.match(r"\s*(source|\.)\s", text) for text in written) or _is_sourced(path, steps):
            yield Missing(path=path, kind="file")
        elif redirects:
            yield Missing(path=str(Path(path).parent), kind="folder")
        else:
            yield Missing(path=path, kind="program")
