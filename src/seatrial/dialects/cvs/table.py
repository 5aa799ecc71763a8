"""The form of CVS's tables, and the keys of `config` that all of its configurations have.

What CVS does with each key was read from its own code (ROCm/cvs 7afb1ca3, lib/*_training_lib.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.dialects.placeholders import stands_for_itself
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.keys import OMIT, Key
from seatrial.spec import Container, RunSpec

NODES = "config.nnodes"
VOLUMES = "config.container_config.volume_dict"
ENV = "config.container_config.env_dict"

# Keys that CVS wants to be there, and that may say nothing.
MAY_BE_EMPTY = (
    "config.coordinator_ip", "hf_path", "hf_train_files", "tokenizer_path",
    "config.xla_gpu_executable_warn_stuck_timeout",
)  # fmt: skip
TOKEN_FILE = "/home/{user-id}/.hf_token"  # CVS's own, which it always reads


@dataclass(frozen=True, kw_only=True)
class Table:
    """The keys of one kind of file; those of `config` carry that prefix, the others are those of a cell.

    `sections` are mappings whose keys are the user's own: each entry goes where its section goes. `groups` only group
    keys. `derived` are variables that repeat a key of `config`; unfilled, they take its value. `defaults` are CVS's own
    for keys that a cell omits, as a file would have them. `needed` are keys without which CVS stops, each with the
    value of CVS's own files; those of `between_nodes` it needs on several nodes only.
    """

    title: str
    keys: Mapping[str, Key]
    sections: Mapping[str, Key]
    groups: tuple[str, ...] = ("config", "config.container_config", "result_dict")
    derived: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    needed: Mapping[str, str] = field(default_factory=dict)
    between_nodes: Mapping[str, str] = field(default_factory=dict)

    def is_open(self, path: str) -> bool:
        """True if a mapping holds keys, and is no value."""
        return path in self.groups or path in self.sections


def exported(variable: str) -> Key:
    """A key whose value every process gets as an environment variable."""
    path = f"execution.environment.{variable}"
    return keys.to(path, coerce.text, write=lambda spec: spec.execution.environment.get(variable, OMIT))


def target(metric: str, read: Reader, meaning: str, write: Callable[[float], Any] = lambda value: value) -> Key:
    """A key with a target of the run."""

    def written(spec: RunSpec) -> Any:
        return next((write(each.value) for each in spec.expectations if each.metric == metric), OMIT)

    return keys.to(f"expectations.{metric}", read, meaning, write=written)


def user_keys(entries: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of the user's own keys and values that mean themselves; a key that begins with _ is a note."""
    return {key: value for key, value in entries if key and key[0] != "_" and all(map(stands_for_itself, (key, value)))}


def _of_container(entries: Callable[[Container], Iterable[tuple[str, str]]]) -> keys.FromSpec:
    return lambda spec: user_keys(entries(spec.container)) if spec.container else {}


def named_billions(name: str) -> str | None:
    """The size in a model's name ("llama3.1-70b" → "70"); None where it has none."""
    found = re.search(r"-(\d+)b", name)
    return found.group(1) if found else None


# Precisions as CVS names them → the format of the matrix products.
PRECISIONS = {"TE_FP8": "fp8", "TE_BF16": "bfloat16", "TE_FP16": "bfloat16", "TE_F16": "bfloat16"}

CONFIG: dict[str, Key] = {
    "config.container_image": keys.as_is("container.image", coerce.text),
    "config.container_name": keys.as_is("container.name", coerce.text),
    "config.shm_size": keys.as_is(
        "container.shm_size", coerce.text, "the container's shared memory (docker --shm-size)"
    ),
    "config.container_config.device_list": keys.as_is(
        "container.devices", coerce.texts, write=lambda spec: list(spec.container.devices) if spec.container else [],
    ),
    NODES: keys.as_is("topology.num_nodes", coerce.count, required=True),
    "config.distributed_training": keys.repeats(
        "CVS does not use it: the section single_node or multi_node decides",
        coerce.boolean, lambda spec: spec.topology.num_nodes > 1, needs_nodes=True,
    ),
    "config.nic_type": keys.as_is("nic_type", coerce.text, "the network card: ainic, thor2, cx7, …"),
    **{f"config.{name}": exported(name.upper())
       for name in ("nccl_socket_ifname", "gloo_socket_ifname", "nccl_ib_gid_index", "nccl_debug")},
    "config.hf_token_file": keys.as_is("hf_token_file", coerce.text),
    "config.log_dir": keys.as_is("log_dir", coerce.text),
}  # fmt: skip

SECTIONS: dict[str, Key] = {
    VOLUMES: keys.to("container.volumes", coerce.text, "folders of the host → folders in the container",
                     write=_of_container(lambda container: container.volumes)),
    ENV: keys.to("container.environment", coerce.text, "variables in the container",
                 write=_of_container(lambda container: container.environment.items())),
    "config.dataset_source": keys.ignored("synthetic data needs no files", coerce.anything),
}  # fmt: skip
