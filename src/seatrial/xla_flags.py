"""Asks the installed jaxlib which XLA flags it accepts, because nothing else can tell.

XLA ends the process for one flag that it does not know, flags come and go with every release, and no list of them can
be had (`--help` is cut off). So a process is started with the flags and does nothing but read them. Its answers are
kept by jaxlib version, so that only a flag or value never seen before costs the quarter of a second.

The trainer asks where it runs, just before it loads jax: neither the jaxlib nor the CPU there need be the launcher's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal

Verdict = Literal["ok", "unknown", "bad_value", "malformed"]

# Flags that configurations still carry, and what their authors want today.
REPLACEMENTS = {
    "xla_gpu_graph_level": "for 0 write xla_gpu_enable_command_buffer with an empty value (no CUDA or HIP graphs)",
    "xla_gpu_enable_async_all_gather": "remove it: collectives are asynchronous by default",
    "xla_gpu_enable_async_all_reduce": "remove it: collectives are asynchronous by default",
    "xla_gpu_enable_async_reduce_scatter": "remove it: collectives are asynchronous by default",
    "xla_gpu_enable_async_collectives": "remove it: collectives are asynchronous by default",
    "xla_gpu_simplify_all_fp_conversions": "remove it: XLA does this by itself",
    "xla_gpu_enable_triton_softmax_fusion": "remove it: XLA does this by itself; some ROCm builds still know it",
    "xla_gpu_enable_custom_fusions": "remove it: the option is gone",
    "xla_gpu_enable_address_computation_fusion": "remove it: the option is gone",
    "xla_gpu_pipeline_all_gather": "use jaxlib 0.11 or newer, or remove it",
}

# XLA:CPU hands matrix products to a library that is made for CPUs with products of bfloat16. On one without them, XLA's
# own way takes 0.6 of the time of bfloat16's products, 0.85 of float32's, and 0.7 of a whole step in bfloat16. The
# one hang of virtual devices that had threads enough (MaxText, jaxlib 0.11.1) ran that library beside collectives; that
# it was the cause is not proven.
PLAIN_CPU_FLAGS = {"xla_cpu_experimental_ynn_fusion_type": ""}
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names it; the last is Arm's

# Each collective that a virtual device waits in holds a thread of XLA:CPU's pool. The pool has as many threads as there
# are devices or cores, so that two collectives that need not wait for each other may share them out and wait for ever.
# XLA takes the size of its pool from the variable NPROC, or PJRT_NPROC.
THREADS_PER_DEVICE = 8

# What says which share of an accelerator's memory JAX takes; it ends a process that is given both. Without them it
# takes three quarters. Of what is left here, the runtime and the buffers of its collectives get theirs.
SHARE_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
OWN_SHARE = 0.9

_NAME = re.compile(r"[A-Za-z_]\w*")
_VALUE = re.compile(r"""[^\s'"\x00]*|'[^\s'"\x00]*'|"[^\s'"\x00\\]*\"""")
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_BAD_VALUE = re.compile(r"Couldn't interpret value .* for flag (\w+)\.")
_PROGRAM = "from jaxlib import xla_client; xla_client.make_cpu_client()"
_TIMEOUT_SECONDS = 60


def jaxlib_version() -> str | None:
    """The version of the installed jaxlib, which is not imported; None if there is none."""
    from importlib.metadata import PackageNotFoundError, version  # late: only configurations with flags pay for it

    try:
        return version("jaxlib")
    except PackageNotFoundError:
        return None


def flags_of(text: str) -> dict[str, str]:
    """The flags of a text as XLA_FLAGS holds them, name → value; of one that is given twice, the last counts."""
    words = (word.removeprefix("--").partition("=") for word in text.split())
    return {name: unquoted(value) if given else "true" for name, given, value in words}


def given_in(variables: Mapping[str, str]) -> str:
    """The flags of an environment as text: XLA_FLAGS, or what is in the file that it names, as XLA takes it."""
    text = variables.get("XLA_FLAGS", "")
    if text.lstrip().startswith("-"):
        return text
    try:
        return Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text
    except (OSError, ValueError):
        return text


def unquoted(value: str) -> str:
    """A flag's value without the quotes around it, as XLA takes it: '' is empty."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def as_text(flags: Mapping[str, str]) -> str:
    """The flags as XLA_FLAGS holds them."""
    return " ".join(f"--{name}={value}" for name, value in flags.items())


def settle(*, cpu_devices: int | None, configured: Mapping[str, str] = MappingProxyType({})) -> None:
    """Makes this process's XLA_FLAGS, before jax is loaded, of those in its environment and then the configured ones.

    What its jaxlib does not accept is left out and reported. On a CPU, the flags with which this machine's is fastest
    come before, so that others override them; and several devices get enough threads.
    """
    if cpu_devices is not None and cpu_devices > 1:
        os.environ.setdefault("NPROC", str(THREADS_PER_DEVICE * cpu_devices))
    given = {**flags_of(given_in(os.environ)), **configured}
    flags = {**(_for_this_cpu() if cpu_devices else {}), **given}
    accepted = known(flags)
    os.environ["XLA_FLAGS"] = as_text({name: value for name, value in flags.items() if name in accepted})
    if left := as_text({name: value for name, value in given.items() if name not in accepted}):
        print(f"left out of XLA_FLAGS, which this jaxlib does not accept: {left}", flush=True)


def settle_share() -> None:
    """Gives this process its share of each accelerator's memory, unless its environment says which; before jax is."""
    if not any(os.environ.get(name) for name in SHARE_VARIABLES):
        os.environ[SHARE_VARIABLES[-1]] = str(OWN_SHARE)


def _for_this_cpu() -> Mapping[str, str]:
    """None where the kind of the CPU is unknown."""
    try:
        features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return {}
    return {} if features & _BFLOAT16 else PLAIN_CPU_FLAGS


def known(flags: Mapping[str, str]) -> set[str]:
    """The names of the flags that may be given to the installed jaxlib with these values.

    Where there is no jaxlib to ask, or no answer, all of them: nothing here can run them then.
    """
    verdicts = probe(flags)
    return set(flags) if verdicts is None else {name for name, verdict in verdicts.items() if verdict == "ok"}


def probe(flags: Mapping[str, str]) -> dict[str, Verdict] | None:
    """The installed jaxlib's verdict on each flag; None if there is no jaxlib, or if it gives no answer."""
    version = jaxlib_version()
    if version is None:
        return None
    sound = {name: value for name, value in flags.items() if is_sound(name, value)}
    malformed: dict[str, Verdict] = {name: "malformed" for name in flags if name not in sound}
    cached = _cached(version)
    new = {name: value for name, value in sound.items() if f"{name}={value}" not in cached}
    if new:
        answers = _ask(new)
        if answers is None:
            return None
        cached |= {f"{name}={new[name]}": verdict for name, verdict in answers.items()}
        _keep(version, cached)
    return malformed | {name: cached[f"{name}={value}"] for name, value in sound.items()}


def is_sound(name: str, value: str) -> bool:
    """True if a flag stays one flag in XLA_FLAGS, which is split at blanks; all of a value may be in quotes."""
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def replacement(name: str) -> str:
    """The fix for a flag that is not known."""
    return REPLACEMENTS.get(name, "remove it, or correct its name")


def _ask(flags: Mapping[str, str]) -> dict[str, Verdict] | None:
    """Starts jaxlib with the flags, again without those whose values it cannot read, until it is content."""
    verdicts: dict[str, Verdict] = {}
    while len(verdicts) < len(flags):
        rest = {name: value for name, value in flags.items() if name not in verdicts}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _PROGRAM],
                env={**os.environ, "XLA_FLAGS": as_text(rest)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        bad = _BAD_VALUE.findall(done.stderr)
        unknown = {name for line in _UNKNOWN.findall(done.stderr) for name in flags_of(line)}
        verdicts |= {name: "bad_value" for name in bad if name in rest}
        if bad:
            continue  # before it has read all values, it does not look for unknown names
        if done.returncode != 0 and not unknown & rest.keys():
            return None
        verdicts |= {name: "unknown" if name in unknown else "ok" for name in rest}
    return verdicts


# --- answers that are kept --------------------------------------------------------------------------------------------


def _cache_file(version: str) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("seatrial") / f"xla-flags-{version}.json"


def _cached(version: str) -> dict[str, Verdict]:
    """The answers of this version so far; none where the file is missing, broken or not readable."""
    try:
        answers = json.loads(_cache_file(version).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(answers, dict):
        return {}
    return {flag: said for flag, said in answers.items() if said in ("ok", "unknown", "bad_value")}


def _keep(version: str, answers: Mapping[str, Verdict]) -> None:
    """Writes the answers for the next time, whole or not at all; a cache that cannot be written is no error."""
    from tempfile import NamedTemporaryFile  # late: only a flag never seen before is written down

    path = _cache_file(version)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
            json.dump(answers, file, indent=1, sort_keys=True)
        Path(file.name).replace(path)
