"""The table of dialects, each of which reads one way to spell configurations into a RunSpec."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from seatrial import source
from seatrial.dialects import data_files, hiding, hydra
from seatrial.dialects.table import overrides, suggestions
from seatrial.dialects.table.coerce import shown
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override
from seatrial.dialects.table.written import Written
from seatrial.errors import InputError, Problem
from seatrial.source import Document, Node
from seatrial.source.programs import is_gpt_module, is_program, starts_training
from seatrial.spec import NEEDS, Action, Resolved, RunSpec

if TYPE_CHECKING:
    from seatrial.cluster import Cluster


class Reads(Protocol):
    """The interface of a dialect's module: the table of its keys, a reader and a writer."""

    KEYS: Mapping[str, Key]

    def read(self, request: Request) -> Resolved:
        """The spec, origins and problems of a configuration. Raises InputError where there is nothing to read."""

    def write(self, spec: RunSpec) -> Written:
        """The spec as text, with a note for each value that it does not say."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A spelling: how it is recognised by its keys, and the module that reads it, imported when it is needed."""

    name: str
    title: str
    recognise: Callable[[Node], bool]
    module: str
    gpu_key: str = "gpu"  # what --gpu sets

    def load(self) -> Reads:
        """The dialect's module."""
        return cast(Reads, import_module(f"seatrial.dialects.{self.module}"))


def _has(*keys: str, under: str | None = None) -> Callable[[Node], bool]:
    """True if a file has one of some keys, at its root or under a key of it."""

    def recognise(root: Node) -> bool:
        node = root.members.get(under) if under else root
        return node is not None and any(key in node.members for key in keys)

    return recognise


def _cvs(root: Node) -> bool:
    return {"config", "model_params"} <= root.members.keys()


_maxtext = _has(
    "model_name", "per_device_batch_size", "ici_fsdp_parallelism", "run_name", "max_target_length", "remat_policy",
    "base_emb_dim", "dataset_type",
)  # fmt: skip
_native = _has("model", "batch", "steps", "parallelism")
_TELLING = (  # keys by which a dialect is recognised
    "config", "model_params", "trainer", "exp_manager", "distributed_strategy", "base_config", "model_name",
    "per_device_batch_size", "ici_fsdp_parallelism", "run_name", "model", "batch", "steps", "parallelism",
)  # fmt: skip
_SECTIONS = {"batch", "topology", "parallelism", "precision", "optimizer", "data", "execution", "expectations"}


def _command(*programs: str) -> Callable[[Node], bool]:
    """True if a shell text has one of some programs in it; of none, whether it starts nothing at all."""

    def recognise(root: Node) -> bool:
        words = _words(root)
        if words is None or not programs:
            return words == []
        return any(Path(word).name.startswith(programs) for word in words)

    return recognise


def _words(root: Node) -> list[str] | None:
    """The words of a command; None for a text that is none."""
    return [str(word) for word in root.members["argv"].plain()] if "argv" in root.members else None


def _megatron_command(root: Node) -> bool:
    """True if a command starts Megatron-LM: a name or a path of another program's may begin as its scripts do."""
    words = _words(root) or []
    return any(
        is_program(words, at) and (Path(word).name.startswith(MEGATRON_PROGRAMS) or is_gpt_module(words, at))
        for at, word in enumerate(words)
    )


_OF_MAXTEXT = ("M_", "XLA_FLAGS", "LIBTPU_", "JAX_")  # of its variables, that nobody else has


def _maxtext_command(root: Node) -> bool:
    """True if a command starts MaxText, or nothing: a train.py with nothing but --options is another's."""
    words = _words(root) or []
    if not _command(*MAXTEXT_PROGRAMS)(root):
        return _command()(root) and any(name.startswith(_OF_MAXTEXT) for name in root.members["environment"].members)
    behind = words[next(i for i, word in enumerate(words) if Path(word).name.startswith(MAXTEXT_PROGRAMS)) :]
    return any("=" in word or word.endswith((".yml", ".yaml")) for word in behind) or not any(
        word.startswith("--") for word in behind
    )


MEGATRON_PROGRAMS = ("pretrain_gpt.py", "train_llama")
MAXTEXT_PROGRAMS = ("train.py", "maxtext.", "MaxText.", "base.yml")
# What stands at least behind a program that is started.
_REST = {MEGATRON_PROGRAMS: "--num-layers …", MAXTEXT_PROGRAMS: "base.yml model_name=…"}

# The first that recognises a file reads it.
DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        name="megatron", title="a Megatron-LM command", recognise=_megatron_command, module="megatron",
        gpu_key="topology.device",
    ),
    Dialect(
        name="maxtext", title="a MaxText command, or a file that changes its base.yml",
        recognise=lambda root: _maxtext_command(root) or _has("base_config")(root),
        module="maxtext", gpu_key="topology.device",
    ),
    Dialect(
        name="cvs-megatron", title="a CVS Megatron-LM configuration",
        recognise=lambda root: _cvs(root) and _has("training_iterations", "master_address", under="config")(root)
        and not _has("framework")(root),
        module="cvs.megatron",
    ),
    Dialect(
        name="cvs-2026-megatron", title="a CVS Megatron-LM configuration of 2026",
        recognise=lambda root: _has("train_params")(root)
        or (_has("framework")(root) and str(root.members["framework"].value).startswith("megatron"))
        or (_has("threshold_json", "gpu_name")(root) and not _has("framework", "training")(root)),
        module="cvs_2026.megatron",
    ),
    Dialect(
        name="cvs-2026", title="a CVS MaxText configuration of 2026",
        recognise=_has("framework", "threshold_json", "gpu_arch"), module="cvs_2026",
    ),
    Dialect(name="cvs-jax", title="a CVS JAX configuration", recognise=_cvs, module="cvs.jax"),
    Dialect(
        name="nxdt", title="an NxDT or NeMo configuration",
        recognise=_has("trainer", "exp_manager", "distributed_strategy"), module="nxdt", gpu_key="topology.device",
    ),
    Dialect(
        name="native", title="a native configuration",
        recognise=lambda root: len(_SECTIONS & root.members.keys()) > 1 or (_native(root) and not _maxtext(root)),
        module="native", gpu_key="topology.device",
    ),
    Dialect(
        name="maxtext", title="a MaxText configuration", recognise=_maxtext, module="maxtext",
        gpu_key="topology.device",
    ),
)  # fmt: skip


def load(
    path: Path, arguments: Sequence[str], *, action: Action, model: str | None = None, gpu: str | None = None,
    engine: str = "",
) -> Resolved:  # fmt: skip
    """A configuration file, read by the dialect that its keys show.

    `arguments` are overrides, key=value; `action` decides which unfilled values matter; `engine` is what will train,
    where that is said. Instead of a file, the words of a command that starts a training may be given. Raises InputError
    where nothing can be read; everything else that is wrong is among the problems.
    """
    suggestions.reset()
    hidden = hiding.of_text(path)
    try:
        document, arguments = hydra.followed(*_document(path, arguments))
        hidden |= hiding.secrets(document, arguments)
        given = overrides.parse(arguments)
        dialect = _dialect_of(document.root, path)
        flags = [Override(key=key, text=text) for key, text in (("model", model), (dialect.gpu_key, gpu)) if text]
        user, home = _person()
        resolved = dialect.load().read(
            Request(document=document, overrides=[*flags, *given], action=action, user=user, home=home, engine=engine)
        )
    except InputError as error:
        raise InputError(hiding.without(error.problems, hidden)) from None
    missing = data_files.missing(resolved, action) if NEEDS[action].text else ()
    return replace(resolved, problems=hiding.without((*resolved.problems, *missing), hidden))


def _dialect_of(root: Node, path: Path) -> Dialect:
    """The first dialect that recognises a file. Raises InputError where none does."""
    dialect = next((dialect for dialect in DIALECTS if dialect.recognise(root)), None)
    if dialect is None:
        from seatrial.dialects import clusters  # late: only where nothing else is known

        if clusters.is_cluster(root):
            why = "this is a cluster file: it describes hosts, not a training run"
            fix = "name a training configuration; `seatrial check` takes this file by itself"
            raise InputError.single("cluster-file", str(path), why, fix)
        raise InputError.single(*_unknown(root, path))
    return dialect


def configuration_title(path: Path) -> str | None:
    """The kind of configuration that a file is, by its keys; None if it is none or cannot be read."""
    try:
        root = source.read(path).root
    except InputError:
        return None
    return next((dialect.title for dialect in DIALECTS if dialect.recognise(root)), None)


def cluster_of(path: Path) -> tuple[Cluster | None, tuple[Problem, ...]]:
    """The machines that a file names, None where errors left none, and all findings. Raises InputError."""
    from seatrial.dialects import clusters

    user, home = _person()
    return clusters.read_cluster(path, user=user, home=home)


def _unknown(root: Node, path: Path) -> tuple[str, str, str, str]:
    """The error for a text that is no configuration: its code, path, reason and fix."""
    if "argv" in root.members:
        words = [str(word) for word in root.members["argv"].plain()]
        names = [*MEGATRON_PROGRAMS, *MAXTEXT_PROGRAMS[:1]]
        fix = f"give the command that does: one with {', '.join(names)} in it"
        program = next((Path(word).name for i, word in enumerate(words) if is_program(words, i)), None)
        if program is not None:
            why = f"`{program}` trains in a way that is not supported: it is none of Megatron-LM's GPT, nor MaxText"
            return "other-program", str(path), why, fix
        what = f"`{words[0]}` is no training command that Seatrial knows" if words else "no command is in it"
        return "unknown-dialect", str(path), what, fix
    return "unknown-dialect", str(path), *_no_kind(root)


def _no_kind(root: Node) -> tuple[str, str]:
    """The reason that a tree of keys is no configuration, and the fix."""
    fix = "start from an example: `seatrial init`"
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else f"one value, {shown(root.plain())}"
        return f"it holds {what}, not keys with values", fix
    meant = {
        key: found[0]
        for key in list(root.value)[:20]
        if (found := suggestions.suggestions(key, _TELLING)) and key not in _TELLING
    }
    if meant:
        fix = f"did you mean {', '.join(f'{right} for {key}' for key, right in meant.items())}?"
    names = ", ".join(list(root.value)[:3])
    return f"its keys ({names}, …) belong to no known kind of configuration" if names else "it has no keys", fix


def _document(path: Path, arguments: Sequence[str]) -> tuple[Document, Sequence[str]]:
    """The document to read and the overrides that are left; a file that is not here may be a command's first word.

    A word alone, or with overrides, is a file's name. Raises InputError where that is a program's.
    """
    words = [str(path), *arguments]
    starts_one = any(starts_training(each) for each in (words, *(word.split() for word in words if " " in word)))
    starts_one = starts_one or any(Path(word).name.startswith(MAXTEXT_PROGRAMS) for word in words)
    has_more = any(word.startswith("-") or "=" not in word for word in arguments)
    if starts_one and has_more and (path.suffix == ".py" or not path.exists()):
        return source.of_words(words, file="command line"), ()
    if path.suffix == ".py":
        why = "this is a program, not a configuration" if path.exists() else "there is no such file"
        command = next((rest for names, rest in _REST.items() if path.name.startswith(names)), None)
        fix = f", or give the whole command: seatrial … -- python3 {path} {command}" if command else ""
        raise InputError.single("no-configuration", str(path), why, f"name the configuration file{fix}")
    return source.read(path), arguments


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
