"""Has CVS load and start what `convert` writes for it, and compares the values that arrive with the written ones.

    tools/cvs_runs.py CHECKOUT    (of ROCm's cvs, at a commit of 2025-11 or later)

Every configuration under configs/ is written for CVS's JAX and Megatron tests. CVS's own classes read each file, write
their scripts and start them, in a sandbox of bubblewrap without network, where `docker` runs its command at once, SSH
is a local shell, and the trainer's script only keeps its environment. Exit code 1 where CVS stops, or a value differs.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import click

from seatrial.commands.check import ConfigArguments, read
from seatrial.dialects.convert import TARGETS
from seatrial.dialects.examples import SUFFIXES
from seatrial.errors import InputError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
KINDS = {"jax": "cvs", "megatron": "cvs-megatron"}
SECONDS = 60
# What Megatron's script is to find in its environment, by the key of the cell that says it.
VARIABLES = {
    "BS": "batch_size", "MBS": "micro_batch_size", "TP": "tensor_parallelism", "PP": "pipeline_parallelism",
    "FSDP": "fsdp", "MODEL_SIZE": "model_size", "SEQ_LENGTH": "sequence_length", "RECOMPUTE": "recompute",
}  # fmt: skip
SSH = ("pssh", "paramiko", "scp", "nodescraper", "gevent")
DOCKER = '#!/bin/bash\nif [ "$1" = exec ]; then shift 2; exec "$@"; fi\n'
SCRIPT = "TRAIN_LOG=x\nenv -0 > {folder}/environment.$NODE_RANK\n"
FOLDERS = ("MaxText/configs/models", "src/maxtext/configs/models")


# --- inside the sandbox -----------------------------------------------------------------------------------------------


class _NoSSH(MetaPathFinder, Loader):
    """Modules of SSH clients, of which anything can be asked for."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in SSH else None

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock()
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _Hosts:
    """CVS's handle on its hosts: each command is run here, with /workspace in our folder."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.host_list = folder, [f"h{number}" for number in range(nodes)]

    def _one(self, command: str) -> str:
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder)}
        command = command.replace("/workspace", f"{self.folder}/workspace")
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=environment, cwd=self.folder, timeout=SECONDS
        )
        return done.stdout + done.stderr

    def exec(self, command: str, *_: Any, **__: Any) -> dict[str, str]:
        """The same on every host, which is asked about its network cards as well."""
        said = "hca_id: bnxt_re0" if "ibv_devinfo" in command else self._one(command)
        return dict.fromkeys(self.host_list, said)

    def exec_cmd_list(self, commands: Sequence[str], *_: Any, **__: Any) -> dict[str, str]:
        """One command for each host."""
        return {host: self._one(command) for host, command in zip(self.host_list, commands, strict=True)}


def _prepared(folder: Path) -> None:
    workspace, programs = folder / "workspace", folder / "bin"
    programs.mkdir()
    for name, text in (("docker", DOCKER), ("sudo", '#!/bin/bash\nexec "$@"\n')):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    for name in FOLDERS:
        (workspace / "maxtext" / name).mkdir(parents=True)
    scripts = workspace / "Megatron-LM" / "examples" / "llama"
    scripts.mkdir(parents=True)
    for name in ("train_llama3.sh", "train_llama2.sh"):
        (scripts / name).write_text(SCRIPT.format(folder=folder), encoding="utf-8")


def start(checkout: Path, kind: str, file: Path, folder: Path) -> None:
    """Has CVS load a file and start its training. Raises whatever CVS raises."""
    _prepared(folder)
    sys.meta_path.insert(0, _NoSSH())
    is_new = (checkout / "cvs" / "lib").is_dir()
    sys.path.insert(0, str(checkout if is_new else checkout / "lib"))
    names = [f"{'cvs.lib.' if is_new else ''}{name}" for name in ("globals", "utils_lib", f"{kind}_training_lib")]
    _, utilities, library = map(importlib.import_module, names)
    importlib.import_module("time").sleep = lambda _: None  # type: ignore[attr-defined]
    document = json.loads(file.read_text(encoding="utf-8"))
    ((topology, models),) = document["model_params"].items()
    ((model, devices),) = models.items()
    hosts = _Hosts(folder, int(document["config"].get("nnodes") or 1))
    cluster = {"username": "user", "node_dict": {host: {} for host in hosts.host_list}}
    config, parameters = (
        utilities.resolve_test_config_placeholders(document[name], cluster) for name in ("config", "model_params")
    )
    make = library.JaxTrainingJob if kind == "jax" else library.MegatronLlamaTrainingJob
    job = make(
        hosts, model, config, parameters, "token", next(iter(devices)),
        distributed_training=topology == "multi_node", tune_model_params=False, scripts_dir=str(folder / "scripts"),
    )  # fmt: skip
    if kind == "jax" and is_new:
        root = "/workspace/maxtext/src/maxtext"
        job.get_maxtext_paths = lambda _: {
            "base": root, "config": f"{root}/configs/models", "reference_config": "llama3-70b.yml",
            "train_script": f"{root}/trainers/pre_train/train.py",
        }  # fmt: skip
    job.exec_nic_setup_scripts()
    job.build_training_job_cmd()
    if kind == "megatron":
        job.start_training_job()
        count = len(hosts.host_list) if topology == "multi_node" else 1
        for _ in range(5 * SECONDS):  # it starts its scripts in the background
            if len(list(folder.glob("environment.*"))) == count:
                break
            subprocess.run(["sleep", "0.2"], check=True)
        else:
            raise RuntimeError(f"not all of the {count} scripts were started")


# --- outside ----------------------------------------------------------------------------------------------------------


def sandboxed(checkout: Path, kind: str, file: Path, folder: Path) -> str:
    """Why CVS stopped; "" where it did not."""
    here = [
        str(path) for path in (checkout, Path(__file__).resolve().parents[1], Path(sys.prefix), Path(sys.base_prefix))
    ]
    argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"]
    argv += [word for path in ("/tmp", "/root", "/home") for word in ("--tmpfs", path)]
    argv += [word for path in here for word in ("--ro-bind", path, path)]
    argv += ["--bind", str(folder), str(folder), "--ro-bind", str(file), str(file), "--die-with-parent", "--"]
    argv += [sys.executable, "-m", "tools.cvs_runs", "--start", kind, str(file), str(folder), str(checkout)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        return "it did not end"
    return (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else ""


def arrived(kind: str, document: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str, str]]:
    """(key, written, arrived) of each value that CVS hands on."""
    import yaml

    (models,) = document["model_params"].values()
    (devices,) = models.values()
    (cell,) = devices.values()
    if kind == "megatron":
        for path in sorted(folder.glob("environment.*")):
            pairs = (pair.partition("=") for pair in path.read_text(encoding="utf-8").split("\0"))
            found = {name: value for name, _, value in pairs}
            yield from ((key, cell[key], found.get(name, "")) for name, key in VARIABLES.items())
        return
    for path in sorted(folder.glob("workspace/maxtext/**/*config*.yml")):
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key in cell.keys() & (given if isinstance(given, dict) else {}).keys():
            yield key, str(yaml.safe_load(str(cell[key]) or "null")), str(given[key])


@click.command()
@click.option("--start", "inside", nargs=3, hidden=True)
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(checkout: Path, inside: tuple[str, str, str] | None) -> None:
    """Start what is written for CVS with the CVS of a CHECKOUT."""
    if inside:
        start(checkout, inside[0], Path(inside[1]), Path(inside[2]))
        return
    if shutil.which("bwrap") is None:
        raise click.ClickException("this needs bubblewrap, as CVS's commands are only run in a sandbox")
    loads = values = wrong = 0
    for path in sorted(path for path in CONFIGS.glob("*/*") if path.suffix in SUFFIXES):
        for kind, target in KINDS.items():
            try:
                spec = read(ConfigArguments(config=path), action="convert", engine=None).spec
            except InputError:
                spec = None
            if spec is None:
                continue
            with tempfile.TemporaryDirectory() as name:
                folder, file = Path(name) / "run", Path(name) / "cvs.json"
                folder.mkdir()
                file.write_text(TARGETS[target].write(spec).text, encoding="utf-8")
                why = sandboxed(checkout.absolute(), kind, file, folder)
                rows = list(arrived(kind, json.loads(file.read_text(encoding="utf-8")), folder))
            differ = [row for row in rows if row[1] != row[2]]
            loads, values, wrong = loads + 1, values + len(rows), wrong + len(differ) + bool(why)
            for text in ([why] if why else []) + [f"{key} is {said}, and {got} arrives" for key, said, got in differ]:
                click.echo(f"{path.name}, {kind}: {text}")
    click.echo(f"{loads} loads, {values} values, {wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
