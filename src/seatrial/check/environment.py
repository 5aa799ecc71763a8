"""Variables and flags: they say what the settings say, and their readers know them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial import xla_flags
from seatrial.check.finder import Finder
from seatrial.errors import Problem

_REPEATED = {
    "NNODES": "topology.num_nodes",
    "JAX_COORDINATOR_IP": "distributed.coordinator_host",
    "JAX_COORDINATOR_PORT": "distributed.coordinator_port",
}


def repeated_variables(finder: Finder) -> Iterator[Problem]:
    """Variables that repeat a setting say the same as the setting, which is what every process is given."""
    spec = finder.spec
    settings = {
        "NNODES": spec.topology.num_nodes,
        "JAX_COORDINATOR_IP": spec.distributed.coordinator_host,
        "JAX_COORDINATOR_PORT": spec.distributed.coordinator_port,
    }
    for path, environment in (
        ("container.environment", spec.container.environment if spec.container else {}),
        ("execution.environment", spec.execution.environment),
    ):
        for name, setting in settings.items():
            if name in environment and setting is not None and environment[name] != str(setting):
                decides = _REPEATED[name]
                yield finder.at(
                    f"{path}.{name}", "warning", "environment-contradicts-config",
                    f"it says {environment[name]}, but {finder.key(decides)} is {setting}{finder.note(decides)}, "
                    "and that is what the processes are given",
                    f"make it say {setting}, or remove it",
                )  # fmt: skip


def variable_names(finder: Finder) -> Iterator[Problem]:
    """What is exported has a name that a shell takes."""
    container = finder.spec.container
    parts = {
        "execution": finder.spec.execution.environment, "container": container.environment if container else {},
    }  # fmt: skip
    for part, variables in parts.items():
        for name in variables:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                why = f"{name!r} is no name of an environment variable"
                fix = "use letters, digits and _ only, and no digit first"
                yield finder.at(f"{part}.environment.{name}", "error", "bad-variable-name", why, fix)


def known_flags(finder: Finder) -> Iterator[Problem]:
    flags = finder.spec.execution.xla_flags
    verdicts = xla_flags.probe(flags) if flags else {}
    if verdicts is None:
        why = "there is no jaxlib here to ask whether it knows these flags"
        yield finder.at(
            "execution.xla_flags", "info", "flags-not-probed", why, "install seatrial[train] to have it asked"
        )
        return
    version = xla_flags.jaxlib_version()
    for name, verdict in verdicts.items():
        path = f"execution.xla_flags.{name}"
        if verdict == "malformed":
            why = "XLA_FLAGS is split at blanks and quotes, so this would not stay one flag"
            yield finder.at(path, "error", "bad-xla-flag", why, "remove blanks and quotes")
        if verdict == "unknown":
            yield finder.at(
                path, "warning", "unknown-xla-flag",
                f"jaxlib {version}, as installed here, does not know it, and XLA ends a process for an unknown flag; "
                "Seatrial's own trainer leaves it out",
                xla_flags.replacement(name),
            )  # fmt: skip
        if verdict == "bad_value":
            yield finder.at(
                path, "warning", "bad-xla-flag",
                f"jaxlib {version}, as installed here, cannot read the value {flags[name]!r}, and XLA ends a process "
                "for that; Seatrial's own trainer leaves the flag out",
                "correct the value",
            )  # fmt: skip
