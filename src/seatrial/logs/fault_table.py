"""The tables of faults: all that can break (`fault_kinds.toml`), and how logs spell it (`fault_patterns.toml`)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

Severity = Literal["fatal", "warning"]
Role = Literal["cause", "symptom", "victim"]
Retry = Literal["never", "elsewhere", "again"]
Cuts = Literal["died", "could_not_run", "no_progress", "interrupted"]

WINDOW = 4000  # characters that patterns are tried on at once


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A kind of fault.

    `severity`: a warning never fails a run by itself. `role`: a symptom has its cause elsewhere, a victim went down
    because of another. `cuts` is what becomes of a run that it ends; "could_not_run" holds before the first step only.
    `retry`: "never" before something is changed, "elsewhere" without the blamed node, "again" as it is.
    `hint`: what to check and to change; empty where the fault's own text says it. `of_others`: a process reports it of
    others, or of the whole job; the rank that prints the line is the reporter, not the one that failed.
    """

    name: str
    title: str
    severity: Severity
    role: Role
    cuts: Cuts
    retry: Retry
    hint: str
    of_others: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """`kind` ← a line with one of `words` that `regex` matches."""

    kind: str
    words: tuple[str, ...]
    regex: re.Pattern[str]


# Lines that say scary words and mean nothing; matched in lower case and without digits.
BENIGN = re.compile(
    r"config param |nccl info |failed call to cuinit|pytorch was not found|exception ignored in|no-op\]"
    r"|rope_parameters|\b(?:user|future|deprecation|runtime|resource)warning\b(?!: detected keyboardinterrupt,)"
    r"|retrying\b|entering retry loop|will retry\b|skipping\b|adjusting timeout"
    r"|(?<!to )(?<!for )\bdebug\b(?! info)|: warning: "
    r"|search for `\w+' in https|(?<!error: )unable to initialize backend"  # JAX tries all that it knows
    r"|nvls\.cc: nccl warn cuda failure"  # NCCL does without
    # An experiment tracker that does not reach its server: training goes on without it.
    r"|\b(?:wandb|comet (?:warning|error)): .*(?:network|connection|timed out|timeout|heartbeat|unreachable)"
    # huggingface_hub's warning of a request to its server, which it repeats; the last one raises an exception.
    r"|' thrown while requesting (?:get|head|post|put|patch|delete) http"
    r"|checkpoint tracker file does not exist"  # verl, which looks whether there is anything to go on from
    # What JAX's coordination says of a start and an end in order.
    r"|polling for error from coordination service|coordination (?:service )?agent has successfully"
    r"|expected (?:upon|during) program shutdown"
    # What the check in the entry of NVIDIA's images says of the driver; what needs the GPU then says so itself.
    r"|cuda_error_system_driver_mismatch\) cuinit\(\)="
    r"|\buc[xc]\s+(?:diag|info|trace|req|data|async|func|poll)\b"  # levels below a warning; what matters is said again
    r"|\binotify_add_watch\b.*no space left"  # the watches of this user are used up, not a disk
    r"|\blibfabric:.*<(?:info|trace)>|\b(?:nvshmem info|nccl trace)\b"
    # What is not loaded, by the loader of programs, Open MPI and TensorFlow: they do without.
    r"|ld\.so: .*\): ignored\.|\(ignored\)\s*$|could not load dynamic library '"
    r"|^(?:/\S+/)?lib(?:cuda|amd_smi)\.(?:so\.?|dylib): cannot open"
    r"|but you(?: have|'ll have) .* which is incompatible"  # pip, of packages beside those that it has installed
    r"|\bcorrectable error\s+uncorrectable error|^# help "  # the head of rocm-smi's table, a metric of Prometheus
    r"|(?:\bsysctl: |/proc/sys/).*read-only file system"  # a setting of the kernel, from inside a container
    r"|\b(?:train|start|initiali[sz])ing (?:\w+ ){0,3}from scratch"
    # The source of a program that prints itself.
    r"|^\s*(?:(?:el)?if|except)\b.*:\s*$|^\s*(?:assert|raise) "
    r"|^(?:\[rank\]:)?\s*frame #: "  # of a C++ stack; what it was for stands above it
)
# A line of an option parser's or a program's banner that only echoes a setting, or of the environment a variable.
ECHO = re.compile(
    r"^[A-Z_][A-Z\d_]*=(?!\s)"
    r"|^\s*(?:export\s+|\+\s*export\s+)?[\w.\-/]+ ?(?:\.{3,}|=|:) ?(?:[\w.\-/]+|'[^']*'|\"[^\"]*\")\s*$"
)


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files("seatrial.logs").joinpath(name).read_text(encoding="utf-8"))


def _kinds() -> dict[str, FaultKind]:
    table, columns = _table("fault_kinds.toml"), ("title", "severity", "role", "cuts", "retry", "hint")
    return {
        name: FaultKind(name=name, of_others=name in table["of_others"], **dict(zip(columns, row, strict=True)))
        for name, row in table["kinds"].items()
    }


KINDS = _kinds()


@cache
def patterns() -> tuple[Pattern, ...]:
    """The spellings in their order, compiled when they are first needed."""
    table = _table("fault_patterns.toml")

    def written_out(found: re.Match[str]) -> str:
        return str(table["shorthands"][found[1]]).replace("rank", found[2] or "rank")

    return tuple(
        Pattern(kind, tuple(words), re.compile(re.sub(r"<([A-Z_]+)(?::(\w+))?>", written_out, "|".join(spellings))))
        for kind, words, *spellings in table["spellings"]["rows"]
    )


def classify(text: str, *, fatal: bool = False) -> str | None:
    """The kind of fault that a text names, None if it names none; with `fatal`, none that is only a warning."""
    lower = text.lower()
    for pattern in patterns():
        if fatal and KINDS[pattern.kind].severity != "fatal":
            continue
        if any(word in lower for word in pattern.words) and pattern.regex.search(text):
            return pattern.kind
    return None


def facts_of(kind: str, text: str) -> dict[str, str]:
    """The facts that the first matching pattern of this kind reads from a text."""
    found = (pattern.regex.search(text) for pattern in patterns() if pattern.kind == kind)
    return next((named_in(match) for match in found if match), {})


def named_in(found: re.Match[str]) -> dict[str, str]:
    """The groups of a pattern that found something; a digit behind a name only tells two groups apart."""
    return {name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value}
