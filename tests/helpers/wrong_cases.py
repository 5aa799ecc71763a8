"""The folders of wrong configurations, and what it costs to be told what is wrong with one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRONG = Path(__file__).parents[1] / "dialects" / "wrong"
SUFFIXES = (".json", ".yaml", ".yml", ".sh")
EXPECTED = "expected.json"  # of a folder: case → its findings

MAX_CPU_SECONDS = 10.0  # what is worse than linear takes minutes, and a slow machine three times as long as a fast one
MAX_PEAK_BYTES = 200 * 10**6

# A new process's own peak is asked of the process itself: what `wait4` gives for it begins at the size of its parent.
_MEASURED = """
import json, os, re, resource, sys
from pathlib import Path
from typing import Any
target = sys.argv.pop(1)
sys.argv[0] = "seatrial"
from seatrial.cli import main
code = 0
try:
    main()
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
finally:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    Path(target).write_text(json.dumps({"cpu_seconds": cpu, "peak_bytes": peak}))
sys.exit(code)
"""


# The same for many commands, one after another in one process: what each took, and its own peak.
_MEASURED_MANY = """
import contextlib, ctypes, gc, json, os, re, resource, sys
from pathlib import Path
from seatrial.cli import main
target, commands = Path(sys.argv[1]), json.load(sys.stdin)
def spent():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
costs = []
for cwd, arguments in commands:
    os.chdir(cwd)
    sys.argv = ["seatrial", *arguments]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, code = spent(), 0
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    costs.append({"exit_code": code, "cpu_seconds": spent() - before, "peak_bytes": peak})
target.write_text(json.dumps(costs))
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A wrong configuration: the file beside what is said about it, and the arguments that come with it."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def golden(self) -> Path:
        return self.path.with_suffix(".txt")

    @property
    def expected(self) -> list[list[Any]]:
        """Severity, code, path, line and column of each finding."""
        return list(_expected(self.path.parent).get(self.path.stem, []))

    def expect(self, found: list[list[Any]]) -> None:
        """Keeps the findings as those that are expected."""
        everything = _expected(self.path.parent) | {self.path.stem: found}
        cases = (
            f"{json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(finding)}" for finding in findings) + "\n]"
            for name, findings in sorted(everything.items())
        )
        (self.path.parent / EXPECTED).write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")

    @property
    def arguments(self) -> list[str]:
        given = self.path.with_suffix(".args")
        return shlex.split(given.read_text(encoding="utf-8").partition("\n")[0]) if given.is_file() else []


def _expected(folder: Path) -> dict[str, list[list[Any]]]:
    path = folder / EXPECTED
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def cases() -> list[Case]:
    """Every case of every dialect, in order."""
    return [Case(path=path) for path in sorted(WRONG.glob("*/*")) if path.suffix in SUFFIXES and path.name != EXPECTED]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The output of a process, its exit code, and its cost: CPU time, its helpers' included, and its peak memory."""

    exit_code: int
    out: str
    err: str
    cpu_seconds: float
    peak_bytes: int

    def assert_modest(self) -> None:
        assert self.cpu_seconds <= MAX_CPU_SECONDS, f"{self.cpu_seconds:.2f} s of CPU time"
        assert self.peak_bytes <= MAX_PEAK_BYTES, f"{self.peak_bytes / 1e6:.0f} MB at the peak"


def immodest(commands: Mapping[str, tuple[Path, Sequence[str]]], scratch: Path) -> dict[str, str]:
    """Of `seatrial …` by name, (folder, arguments): what costs too much, or does not end with exit code 2."""
    target = scratch / "costs.json"
    given = json.dumps([(str(cwd), list(arguments)) for cwd, arguments in commands.values()])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED_MANY, str(target)], input=given, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for name, row in zip(commands, json.loads(target.read_text()), strict=True):
        cost = Cost(out="", err="", **row)
        try:
            cost.assert_modest()
            assert cost.exit_code == 2, f"exit code {cost.exit_code}"
        except AssertionError as error:
            found[name] = str(error)
    return found


def measured(*arguments: str | Path, cwd: Path, scratch: Path, stdin: int = subprocess.DEVNULL) -> Cost:
    """`seatrial …` in a process of its own, with what it cost."""
    target = scratch / "cost.json"
    target.unlink(missing_ok=True)
    argv = [sys.executable, "-c", _MEASURED, str(target), *map(str, arguments)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        argv, cwd=cwd, env=environment, stdin=stdin, capture_output=True, text=True, errors="replace", timeout=120
    )
    cost = json.loads(target.read_text()) if target.exists() else {"cpu_seconds": float("inf"), "peak_bytes": 0}
    return Cost(exit_code=done.returncode, out=done.stdout, err=done.stderr, **cost)
