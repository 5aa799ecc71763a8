"""Variables and flags: they agree with the settings, and whoever reads them knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

from seatrial import xla_flags
from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import RunSpec

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_REPEATED = {  # variable → the spec path of the setting that it repeats
    "NNODES": "topology.num_nodes",
    "JAX_COORDINATOR_IP": "distributed.coordinator_host",
    "JAX_COORDINATOR_PORT": "distributed.coordinator_port",
}


def exported(spec: RunSpec, part: str = "") -> Mapping[str, str]:
    """The variables that every process is given; those of one `part`, "execution" or "container", alone."""
    parts = {"execution": spec.execution.environment, "container": spec.container.environment if spec.container else {}}
    return parts[part] if part else {**parts["execution"], **parts["container"]}


def repeated_variables(finder: Finder) -> Iterator[Problem]:
    """Variables that repeat a setting agree with it: every process is given the setting."""
    for part in ("container", "execution"):
        for name, path in _REPEATED.items():
            said, setting = exported(finder.spec, part).get(name), attrgetter(path)(finder.spec)
            if None not in (said, setting) and said != str(setting):
                yield finder.at(
                    f"{part}.environment.{name}", "warning", "environment-contradicts-config",
                    f"it says {said}, but {finder.key(path)} is {setting}{finder.note(path)}, which is what the "
                    "processes are given",
                    f"make it say {setting}, or remove it",
                )  # fmt: skip


def variable_names(finder: Finder) -> Iterator[Problem]:
    """Exported variables have names that a shell accepts."""
    for part in ("execution", "container"):
        for name in exported(finder.spec, part):
            if not (name.isascii() and name.isidentifier()):
                why = f"{name!r} is not a valid name of an environment variable"
                fix = "use letters, digits and _ only, and do not begin with a digit"
                yield finder.at(f"{part}.environment.{name}", "error", "bad-variable-name", why, fix)


def devices_are_visible(finder: Finder) -> Iterator[Problem]:
    """A variable that hides devices leaves as many as a node uses."""
    each = finder.spec.topology.devices_per_node
    for name in VISIBLE:
        text = exported(finder.spec).get(name)
        shown = [device for device in (text or "").split(",") if device.strip()]
        if text is not None and text != "all" and len(shown) != each:
            yield finder.at(
                finder.variable(name), "warning", "environment-contradicts-config",
                f"it shows {len(shown)} devices to a process, but a node uses {each}",
                "remove it: each process is given its devices",
            )  # fmt: skip


def flags_stand_in_one_place(finder: Finder) -> Iterator[Problem]:
    """XLA's flags are not given as a variable beside those that are given by name."""
    spec = finder.spec
    if "XLA_FLAGS" in exported(spec) and spec.execution.xla_flags:
        path = finder.variable("XLA_FLAGS")
        why = "it would replace the flags that are given by name, or be replaced by them"
        yield finder.at(path, "warning", "environment-contradicts-config", why, "put them all in one place")


def known_flags(finder: Finder) -> Iterator[Problem]:
    """The installed jaxlib knows the XLA flags."""
    flags = finder.spec.execution.xla_flags
    if not flags:
        return
    verdicts = xla_flags.probe(flags)
    if verdicts is None:
        why = "there is no jaxlib here to ask whether it knows these flags"
        yield finder.at(
            "execution.xla_flags", "info", "flags-not-probed", why, "install seatrial[train], whose jaxlib can be asked"
        )
        return
    version = xla_flags.jaxlib_version()
    for name, verdict in verdicts.items():
        path = f"execution.xla_flags.{name}"
        if verdict == "malformed":
            why = "XLA_FLAGS is split at blanks and quotes, so this would become several flags"
            yield finder.at(path, "error", "bad-xla-flag", why, "remove blanks and quotes, and -- before the name")
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
