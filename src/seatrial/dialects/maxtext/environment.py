"""The variables that a MaxText command is given: XLA's flags, keys as `M_<KEY>`, the coordinator, and all others."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.command import is_secret
from seatrial.dialects.maxtext.command import entry_of
from seatrial.dialects.maxtext.keys import KEYS
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.entries import NO_CHANGE, Entry
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError, Problem
from seatrial.source import Node
from seatrial.xla_flags import unquoted

FLAGS = "XLA_FLAGS"
PREFIX = "M_"

# Variables that say what a spec path does.
PLACED: dict[str, tuple[str, Reader]] = {
    "JAX_COORDINATOR_IP": ("distributed.coordinator_host", coerce.text),
    "JAX_COORDINATOR_PORT": ("distributed.coordinator_port", coerce.port),
    "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS": ("distributed.initialization_timeout_seconds", coerce.count),
    "JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS": ("distributed.heartbeat_timeout_seconds", coerce.count),
    "NNODES": ("topology.num_nodes", coerce.count),
}
# Variables of which every process is given its own.
_OF_A_PROCESS = ("NODE_RANK", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_NUM_PROCESSES")


@dataclass
class Variables:
    """The variables, by spec path, flag or key, each with the entry that gives it; `rest` is left for the processes."""

    placed: dict[str, tuple[Any, Entry]] = field(default_factory=dict)
    flags: dict[str, tuple[str, Entry]] = field(default_factory=dict)
    rest: dict[str, Entry] = field(default_factory=dict)
    keys: list[tuple[str, Entry]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def is_kept(name: str) -> bool:
    """True if a variable is only handed on, and means nothing to a configuration."""
    return not (name == FLAGS or name in PLACED or name in _OF_A_PROCESS or name.startswith(PREFIX) or is_secret(name))


def is_of_a_process(problem: Problem) -> bool:
    """True if a finding is about the value of a variable that no text can say for all processes."""
    return problem.code == "unknown-variable" and problem.path in _OF_A_PROCESS


def sort_variables(environment: Node | None) -> Variables:
    """Each variable where it belongs."""
    found = Variables()
    for name, node in environment.members.items() if environment else ():
        entry = Entry.of(name, node)
        if is_kept(name):
            found.rest[name] = entry
        elif name == FLAGS:
            _read_flags(found, entry)
        elif is_secret(name):
            why = "its name marks it as a secret: it is not read, and appears in no plan, log or report"
            fix = "remove it here; give hf_token_file, or log in on the machines"
            found.problems.append(entry.key_problem("warning", "secret", why, fix))
        elif name.startswith(PREFIX):
            _read_key(found, name, entry)
        elif name in PLACED:
            path, read = PLACED[name]
            try:
                found.placed[path] = read(str(entry.value)), entry
            except ValueError as error:
                found.problems.append(entry.problem("error", "bad-value", str(error), f"correct {name}"))
        else:
            why = "it has no effect: every process is given its own"
            found.problems.append(entry.problem("info", "no-effect", why, NO_CHANGE))
    return found


def _read_key(variables: Variables, name: str, entry: Entry) -> None:
    """`M_<KEY>`, whose value MaxText reads as YAML."""
    key = name.removeprefix(PREFIX).lower()
    if key not in KEYS:
        why = f"MaxText has no key {key}, and silently ignores the variable"
        fix = did_you_mean(key, tuple(KEYS))
        variables.problems.append(entry.key_problem("warning", "unknown-variable", why, fix))
        return
    with suppress(InputError):
        entry = replace(entry, value=entry_of(name, str(entry.value)).value)
    variables.keys.append((key, entry))


def _read_flags(variables: Variables, entry: Entry) -> None:
    """`--name=value` between blanks; a flag without a value is true."""
    malformed = []
    for word in str(entry.value).split():
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            malformed.append(word)
            continue
        value = unquoted(value) if equals else "true"
        if name in variables.flags and variables.flags[name][0] != value:
            why = f"--{name} is given twice with different values; XLA uses the last one"
            variables.problems.append(entry.problem("warning", "duplicate-flag", why, "keep one of the two"))
        variables.flags[name] = value, replace(entry, key=f"{FLAGS} --{name}")
    if malformed:
        more = f" (nor are {len(malformed) - 1} other words)" if len(malformed) > 1 else ""
        why = f"{coerce.shown(malformed[0])} is not of the form --name=value{more}"
        fix = "write each flag as --name=value, with blanks between them"
        variables.problems.append(entry.problem("error", "bad-xla-flag", why, fix))
