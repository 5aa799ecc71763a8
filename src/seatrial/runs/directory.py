"""The directory of a run: its name, its creation, its inputs."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

from seatrial.command import MASK, is_secret, without_looks
from seatrial.errors import InputError
from seatrial.plan import Plan, without_secrets
from seatrial.runs.files import exists, write_bytes, write_json
from seatrial.spec import Resolved, RunSpec

RUNS = Path("runs")
RESERVE_TRIES = 100
ATTEMPTS = "attempts"  # of a run with retries: what the earlier ones left
# What each attempt leaves; checkpoints are shared by all.
EVIDENCE = ("metrics.json", "verdict.json", "report.html", "launch", "nodes", "events-*.jsonl")
# A folder with one of the first is a run directory, and so is one that has lost it and has two of the others.
MARKS = ("plan.json", "judged.json")
OTHERS = ("spec.json", "verdict.json", "metrics.json", "status.json", "events-0.jsonl", "events-launcher.jsonl")
INPUTS = ("plan.json", "status.json", "spec.json", "config.*")  # which the next attempt has too


def new_directory(spec: RunSpec) -> Path:
    """runs/<name>-<time>, which does not exist yet; only harmless characters of the name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name).strip("-.")[:80] or "run"
    path = RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(p for p in (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 1000))) if not p.exists())


@contextmanager
def reserved(spec: RunSpec) -> Iterator[Path]:
    """A new directory for a run, which no other run takes meanwhile; gone again where nothing has come into it."""
    path, had_parent = new_directory(spec), RUNS.exists()
    for _ in range(RESERVE_TRIES):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:  # another run has begun in the same second
            path = new_directory(spec)
        except OSError:  # `claim` says so
            break
    try:
        yield path
    finally:
        with suppress(OSError):  # it is not empty
            path.rmdir()
            if not had_parent:
                RUNS.rmdir()


def is_run(folder: Path) -> bool:
    """True if a folder is a run directory, of a run or of judged logs, also if parts of it are gone."""
    if any(exists(folder / name, as_file=True) for name in MARKS):
        return True
    return sum(exists(folder / name, as_file=True) for name in OTHERS) > 1


def claim(run_dir: Path) -> None:
    """Creates the run directory for this run. Raises InputError for one that is not empty."""
    if run_dir.exists() and not run_dir.is_dir():
        why = f"{short_path(run_dir)} is {'a file' if run_dir.is_file() else 'no folder'}, and a run needs a folder"
        raise InputError.single("run-directory", "--out", why, "name a folder that does not exist yet")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if any(run_dir.iterdir()):
            raise FileExistsError
        (run_dir / "launch").mkdir()  # fails for the second of two that start here at once
    except FileExistsError:
        why, fix = f"{short_path(run_dir)} is not empty", "name a folder that does not exist yet"
        fix += "" if is_run(run_dir) else ", or remove this one"  # a run may go on in it
        raise InputError.single("run-directory-in-use", "--out", why, fix) from None
    except OSError as error:
        why = f"{short_path(run_dir)} cannot be created: {error.strerror}"
        raise InputError.single("run-directory", "--out", why, "name a folder that can be written to") from error


def write_inputs(resolved: Resolved, config: Path, plan: Plan, run_dir: Path) -> None:
    """Writes the inputs of a run: the configuration as it is, the spec read from it, and the plan."""
    copy_config(config, run_dir)
    write_json(run_dir / "spec.json", {"v": 1, **resolved_as_dict(resolved)})
    write_json(run_dir / "plan.json", plan.as_dict())


def copy_config(config: Path, run_dir: Path) -> None:
    """The user's bytes, unchanged, with no more permissions than the original."""
    content = config.read_bytes()
    write_bytes(run_dir / f"config{config.suffix}", content, mode=stat.S_IMODE(config.stat().st_mode) & 0o666)


def resolved_as_dict(resolved: Resolved) -> dict[str, Any]:
    """The spec, which must exist, the origin of each value, and the findings, as plain data."""
    assert resolved.spec is not None
    origins = {}
    for path, origin in resolved.origins.items():
        mark = vars(origin.mark) if origin.mark else {}
        text = without_looks(origin.text) if origin.text else origin.text
        text = MASK if ".environment." in path and is_secret(path) else text
        origins[path] = {"kind": origin.kind, "key": origin.key, "text": text, "note": origin.note, **mark}
    problems = [problem.as_dict() for problem in resolved.problems]
    return {"spec": without_secrets(resolved.spec), "origins": origins, "problems": problems}


def rank_logs(run_dir: Path) -> list[tuple[int, Path]]:
    """The logs of the processes of a run, by their ranks."""
    # Not Path.glob: before Python 3.13 it fails if a folder disappears meanwhile, as when an attempt is set aside.
    found = (run_dir / name for name in glob("nodes/*/rank*.log", root_dir=run_dir))  # noqa: PTH207 - see above
    named = ((re.fullmatch(r"rank([0-9]+)\.log", path.name), path) for path in found)
    return sorted((int(match[1]), path) for match, path in named if match and path.is_file())


def short_path(path: Path) -> Path:
    """A path as a person would give it: relative to the current folder if it is below."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
