"""How configurations are spelled: a table of dialects, each of which reads one spelling into a RunSpec."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial import source
from seatrial.dialects import cvs, data_files, native, overrides
from seatrial.dialects.entries import Request
from seatrial.errors import InputError
from seatrial.source import Node
from seatrial.spec import Resolved

READS_DATA = ("run", "rehearse", "train")  # the actions that do, and do it on this machine


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A spelling: how it is recognised by its keys, and how it is read (None: not yet)."""

    title: str
    recognise: Callable[[Node], bool]
    read: Callable[[Request], Resolved] | None
    gpu_key: str = "gpu"  # what --gpu sets


def _has(*keys: str, under: str | None = None) -> Callable[[Node], bool]:
    """Whether a file has one of some keys, at its root or under a key of it."""

    def recognise(root: Node) -> bool:
        node = root.members.get(under) if under else root
        return node is not None and any(key in node.members for key in keys)

    return recognise


def _cvs(root: Node) -> bool:
    return {"config", "model_params"} <= root.members.keys()


# The first that recognises a file reads it.
DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        title="a CVS Megatron-LM configuration",
        recognise=lambda root: _cvs(root) and _has("training_iterations", "master_address", under="config")(root),
        read=None,
    ),
    Dialect(title="a CVS JAX configuration", recognise=_cvs, read=cvs.read),
    Dialect(title="a CVS configuration of 2026 (schema_version, framework)", recognise=_has("framework"), read=None),
    Dialect(
        title="an NxDT or NeMo configuration",
        recognise=_has("trainer", "exp_manager", "distributed_strategy"),
        read=None,
    ),
    Dialect(
        title="a MaxText configuration",
        recognise=_has("base_config", "model_name", "per_device_batch_size", "ici_fsdp_parallelism", "run_name"),
        read=None,
    ),
    Dialect(
        title="a native configuration",
        recognise=_has("model", "batch", "steps", "parallelism"),
        read=native.read,
        gpu_key="topology.device",
    ),
)


def load(
    path: Path, arguments: Sequence[str], *, action: str, model: str | None = None, gpu: str | None = None
) -> Resolved:
    """A configuration file, read by the dialect that its keys show.

    `arguments` are overrides, key=value; `action` ("run", "plan", "rehearse" or "train") decides which unfilled values
    matter. Raises InputError where nothing can be read; everything else that is wrong is among the problems.
    """
    document = source.read(path)
    given = overrides.parse(arguments)
    dialect = next((dialect for dialect in DIALECTS if dialect.recognise(document.root)), None)
    if dialect is None:
        why = "its keys are those of no configuration that is known here"
        raise InputError.single("unknown-dialect", str(path), why, "start from an example: `seatrial init`")
    if dialect.read is None:
        why = f"this is {dialect.title}, which cannot be read yet"
        raise InputError.single("dialect-not-supported-yet", str(path), why, "give a CVS JAX or a native configuration")
    flags = [overrides.Override(key=key, text=text) for key, text in (("model", model), (dialect.gpu_key, gpu)) if text]
    user, home = _person()
    request = Request(document=document, overrides=[*flags, *given], action=action, user=user, home=home)
    resolved = dialect.read(request)
    if action not in READS_DATA:
        return resolved
    return replace(resolved, problems=(*resolved.problems, *data_files.missing(resolved)))


def _person() -> tuple[str, Path]:
    """Who runs this; in a container, often a number without a name or a home."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    try:
        return user, Path.home()
    except RuntimeError:
        return user, Path("/")
