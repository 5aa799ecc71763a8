"""A run's step compiled for its device, in a process of its own with limits, and kept for the next time.

The command line never loads jax: `python -m seatrial.train.compile` does. What it finds is kept in the user's cache, by
the spec, the target and the versions of everything that takes part, the trainer's own sources included.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from seatrial.errors import InputError, LaunchError
from seatrial.estimate import hardware
from seatrial.estimate.compiled import CPU, TARGETS, Compiled, from_dict
from seatrial.runs.files import write_bytes
from seatrial.spec import RunSpec, to_dict
from seatrial.xla_flags import jaxlib_version

TIME_LIMIT_SECONDS = 600.0  # 405B over 2048 devices takes 15; layers that are not scanned take minutes
MEMORY_LIMIT_BYTES = 12 * 2**30  # a scanned step takes 1 GiB
MOST_KEPT = 500  # results in the cache, of a few KiB each

_JAX = ("jax", "jaxlib")
_PLUGIN = ("jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cudnn-cu13")
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-nvvm")  # or an installed CUDA, so that they are not asked for
_INSTALL = "pip install 'seatrial[plan-gpu]'"
_TRAINER = Path(__file__).parents[1] / "train"


def target_of(spec: RunSpec) -> str | None:
    """The target that a run's step can be compiled for; None where no compiler does without the device."""
    device = hardware.find(spec.topology.device)
    return device.name if device and device.name in TARGETS else None


def named_target(name: str) -> str:
    """The target that a user's name means. Raises InputError for any other."""
    device = hardware.find(name)
    target = CPU if name.lower() == CPU else device.name if device else ""
    if target != CPU and target not in TARGETS:
        why = f"XLA has no compiler for {name!r} that does without the device"
        raise InputError.single("compile-target", "--compile-for", why, f"one of: {', '.join(TARGETS)}, {CPU}")
    return target


def why_not(spec: RunSpec) -> str:
    """The reason that `target_of` has no target for a run."""
    known = ", ".join(TARGETS)
    if spec.topology.device is None:
        return f"the run names no device; say which with --compile-for: {known} or {CPU}"
    return (
        f"XLA has no compiler for {spec.topology.device} that does without the device, only for {known} and {CPU}: "
        "for this one there is the arithmetic estimate alone"
    )


def compile_step(spec: RunSpec, target: str) -> Compiled:
    """The step of a run, compiled for a target, or as it was the last time.

    Raises LaunchError where something is not installed, where compiling fails, or where it takes too much.
    """
    versions = _versions(target)
    if (kept := kept_step(spec, target)) is not None:
        return kept
    with TemporaryDirectory(prefix="seatrial-compile-") as folder:
        found = _compiled(spec, target, Path(folder))
    _keep(_file(spec, target, versions), found)
    return from_dict(found, target, versions)


def kept_step(spec: RunSpec, target: str) -> Compiled | None:
    """A step from the cache; None where it is not there, or where the extra is not installed."""
    if not _folder().is_dir():
        return None
    try:
        versions = _versions(target)
        found = json.loads(_file(spec, target, versions).read_text(encoding="utf-8"))
        return from_dict(found, target, versions)
    except (LaunchError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# --- the process ------------------------------------------------------------------------------------------------------


def _compiled(spec: RunSpec, target: str, folder: Path) -> dict[str, object]:
    """Compiles in a process of its own."""
    given, out, errors = folder / "spec.json", folder / "out.json", folder / "stderr"
    given.write_text(json.dumps(_content(spec)), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "seatrial.train.compile", str(given), "--target", target, "--out", str(out)]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        try:
            _wait(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = errors.read_text(encoding="utf-8", errors="replace")
    if process.returncode != 0 or not out.exists():
        why = _reason(said, process.returncode) + _hint(target, process.returncode)
        raise LaunchError(f"the step could not be compiled for {target}: {why}")
    found: dict[str, list[str]] = json.loads(out.read_text(encoding="utf-8"))
    found["notes"] += warnings_in(said)
    return dict(found)


# What XLA warns of while it compiles → what it means.
_WARNINGS = (
    (re.compile(r"Involuntary full rematerialization"),
     "XLA brings a tensor together in full to split it in another way (involuntary full rematerialization)"),
    (re.compile(r"Can't reduce memory use below (?P<below>[\d.]+\w+).*only reduced to (?P<to>[\d.]+\w+)"),
     "the step needs more than XLA plans with on this device: it tried to compute again what it could, and came down "
     "to {to} of temporaries and results"),
    (re.compile(r"size of input/output arguments \((?P<size>\d+)\) exceeds the base limit \((?P<limit>\d+)\)"),
     "what the step takes and returns alone exceeds the four fifths of the device that XLA plans with"),
)  # fmt: skip


def warnings_in(said: str) -> list[str]:
    """XLA's warnings while it compiled, in sentences, each once with its count."""
    found = Counter(text.format(**match.groupdict()) for pattern, text in _WARNINGS for match in pattern.finditer(said))
    return [text + (f", {number} times" if number > 1 else "") for text, number in found.items()]


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until it ends. Raises LaunchError where it takes more than its limits."""
    end = time.monotonic() + TIME_LIMIT_SECONDS
    seen = psutil.Process(process.pid)
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            return
        with suppress(psutil.Error):
            if seen.memory_info().rss > MEMORY_LIMIT_BYTES:
                limit = f"{MEMORY_LIMIT_BYTES / 2**30:.0f} GiB"
                raise LaunchError(f"compiling took more than {limit} of memory and was stopped; {_SMALLER}")
        if time.monotonic() > end:
            raise LaunchError(f"compiling took more than {TIME_LIMIT_SECONDS:.0f} s and was stopped; {_SMALLER}")


_SMALLER = "scanned layers (execution.scan_layers) make the program smaller"


def _reason(said: str, status: int) -> str:
    """The last thing that a process said of its failure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = next((line for line in reversed(lines) if line.startswith("seatrial: ")), None)
    if own:
        return own.removeprefix("seatrial: ")
    last = lines[-1] if lines else "it said nothing"
    return f"{last} (exit status {status})" if status >= 0 else f"killed by signal {-status}: {last}"


def _hint(target: str, status: int) -> str:
    """Advice on a crash of the compiler for a GPU; else ""."""
    if target == CPU or status != -signal.SIGSEGV:
        return ""
    return f"; from jax 0.11 on XLA crashes without CUDA's compiler ({', '.join(_COMPILER)}): {_INSTALL}"


# --- the cache --------------------------------------------------------------------------------------------------------


def _content(spec: RunSpec) -> dict[str, object]:
    """The parts of a spec that the compiled step can depend on; no secrets."""
    execution = dataclasses.replace(spec.execution, environment={}, engine_keys={})
    return to_dict(dataclasses.replace(spec, execution=execution, container=None))


def _versions(target: str) -> dict[str, str]:
    """Those of everything that compiles. Raises LaunchError where one is missing, or where they do not go together."""
    if jaxlib_version() is None:
        raise LaunchError("to compile a step takes jax, which is not installed: pip install 'seatrial[train]'")
    names = _JAX if target == CPU else (*_JAX, *_PLUGIN)
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            why = f"to compile a step for {target} takes {name}, which is not installed: {_INSTALL}"
            raise LaunchError(why) from None
    if target != CPU and found[_PLUGIN[0]] != found["jaxlib"]:
        raise LaunchError(
            f"{_PLUGIN[0]} {found[_PLUGIN[0]]} does not fit jaxlib {found['jaxlib']}: "
            f"pip install '{_PLUGIN[0]}=={found['jaxlib']}' '{_PLUGIN[1]}=={found['jaxlib']}'"
        )
    return found


@cache
def _sources() -> str:
    """A hash of the trainer's sources, and of the descriptions of devices."""
    digest = hashlib.sha256()
    for path in sorted(path for path in _TRAINER.rglob("*") if path.suffix in (".py", ".textproto")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    from platformdirs import user_cache_path  # late: as few as possible pay for it

    return user_cache_path("seatrial") / "compiled"


def _file(spec: RunSpec, target: str, versions: dict[str, str]) -> Path:
    content = _content(spec)
    for indifferent in ("name", "dialect", "expectations", "checkpoint", "hf_token_file", "nic_type"):
        content.pop(indifferent, None)
    key = json.dumps([content, target, versions, _sources(), os.environ.get("XLA_FLAGS", "")], sort_keys=True)
    return _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _keep(path: Path, found: dict[str, object]) -> None:
    """Writes a result for the next time, whole or not at all; a cache that cannot be written is no error."""
    with suppress(OSError):
        write_bytes(path, json.dumps(found).encode(), mode=0o600)
        oldest = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)[:-MOST_KEPT]
        for each in oldest:
            each.unlink(missing_ok=True)
