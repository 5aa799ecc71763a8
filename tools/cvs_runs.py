"""Has CVS load and start what `convert` writes for it, and compares the values that arrive with the written ones.

    tools/cvs_runs.py CHECKOUT    (of ROCm's cvs, at a commit of 2025-11 or later)

Every configuration under configs/ is written for CVS's JAX and Megatron tests. CVS's own classes read each file, write
their scripts and start them, in a sandbox of bubblewrap without network, where `docker` runs its command at once, SSH
is a local shell, and the trainer's script only keeps its environment. Exit code 1 where CVS stops, or a value differs.

    tools/cvs_runs.py CHECKOUT --shipped

The other way round: CVS starts each cell of the Llama files in CHECKOUT, with its open values filled in, and then what
`convert` writes of our reading of that file. All that it hands on to the trainer is compared; a difference that no
finding of `check` announces is wrong.
"""

from __future__ import annotations

import getpass
import importlib
import json
import os
import re
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
from unittest.mock import MagicMock, patch

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

# Open values of a file: what they are filled with; others are figures of performance.
FILLED = {
    "nnodes": "2", "coordinator_ip": "10.0.0.1", "master_address": "10.0.0.1", "JAX_COORDINATOR_IP": "10.0.0.1",
    "nccl_ib_hca_list": "rdma0", "nccl_ib_hca": "rdma0", "nccl_socket_ifname": "eth0", "gloo_socket_ifname": "eth0",
    "nccl_ib_gid_index": "3", "nic_type": "ainic", "training_iterations": "30",
}  # fmt: skip
# The finding of `check` that announces a difference, by what differs.
ANNOUNCED = {
    r".*:base_\w+": "architecture-contradicts-name",
    r".*:TE_(BF16|FP8)": "misleading-name",
    r".*:(HF_HOME|hf_\w+|tokenizer_path)": "no-effect",
}
OLD_KEYS = r"maxtext_env.sh:(?!HF_HOME)[A-Z]\w+"  # CVS of 2026 takes its own values in their place


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


def _is_new(checkout: Path) -> bool:
    return (checkout / "cvs" / "lib").is_dir()


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
    is_new = _is_new(checkout)
    sys.path.insert(0, str(checkout if is_new else checkout / "lib"))
    names = [f"{'cvs.lib.' if is_new else ''}{name}" for name in ("globals", "utils_lib", f"{kind}_training_lib")]
    _, utilities, library = map(importlib.import_module, names)
    patch("time.sleep").start()  # CVS waits for minutes between its steps; this process ends with it
    document = json.loads(file.read_text(encoding="utf-8"))
    ((topology, models),) = document["model_params"].items()
    ((model, devices),) = models.items()
    hosts = _Hosts(folder, int(document["config"].get("nnodes") or 1))
    cluster = {"username": getpass.getuser(), "node_dict": {host: {} for host in hosts.host_list}}
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
    """The error with which CVS stopped, run in a sandbox; "" if there was none."""
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


def handed_on(folder: Path) -> dict[str, str]:
    """All that CVS hands on to its trainer, by file and name: keys of YAML files, and variables."""
    import yaml

    found: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8").replace(str(folder), "FOLDER")
        if path.suffix == ".yml":
            given = yaml.safe_load(text)
            pairs = [(key, _plain(value)) for key, value in (given if isinstance(given, dict) else {}).items()]
        elif path.name.startswith("environment."):
            pairs = [(name, value) for name, _, value in (pair.partition("=") for pair in text.split("\0")) if name]
        else:
            pairs = re.findall(r"(?:^|[\s;])export (\w+)=(.*?)(?:;|$)", text, re.MULTILINE)
        found |= {f"{path.name}:{key}": value.replace("=''", "=") for key, value in pairs}
    return found


def _plain(value: Any) -> str:
    """A value as text; numbers that are equal are the same text."""
    return str(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _filled(value: Any, key: str = "", *, nodes: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, name, nodes=nodes) for name, each in value.items()}
    if isinstance(value, str) and "<changeme>" in value and not key.startswith("_"):
        return nodes if key == "nnodes" else FILLED.get(key, "100")
    return value


def cells(checkout: Path) -> Iterator[tuple[str, Path, dict[str, Any], tuple[str, str, str]]]:
    """(kind, file, its document filled in, (topology, model, device)) of all that CVS's own tests would start."""
    for kind in KINDS:
        for path in sorted(checkout.glob(f"**/config_file/training/{kind}/*llama*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            topology = "multi_node" if "distributed" in path.name else "single_node"
            document = _filled(document, nodes="2" if topology == "multi_node" else "1")
            for model, devices in document.get("model_params", {}).get(topology, {}).items():
                yield from ((kind, path, document, (topology, model, device)) for device in devices)


def shipped(checkout: Path) -> bool:
    """Prints for each cell what arrives otherwise from our reading of it; true if a finding announces each."""
    files, count, values, announced, wrong = set(), 0, 0, 0, 0
    for kind, path, document, cell in cells(checkout):
        with tempfile.TemporaryDirectory() as name:
            rows, codes = _both_ways(checkout, kind, Path(name), document, cell)
        files.add(path)
        count, values = count + 1, values + len(rows)
        for key, theirs, ours in rows:
            if theirs == ours:
                continue
            known = ANNOUNCED | ({OLD_KEYS: "cvs-differs"} if _is_new(checkout) else {})
            reason = next((code for names, code in known.items() if re.fullmatch(names, key) and code in codes), None)
            announced, wrong = announced + (reason is not None), wrong + (reason is None)
            text = f"{key} is {theirs or 'not there'}, by our reading {ours or 'not there'}"
            click.echo(f"{path.name}, {', '.join(cell)}: {text} ({reason or 'WRONG'})")
    click.echo(f"{len(files)} files, {count} cells, {values} values: {announced} as a finding says, {wrong} wrong")
    return not wrong


def _both_ways(
    checkout: Path, kind: str, folder: Path, document: Mapping[str, Any], cell: tuple[str, str, str]
) -> tuple[list[tuple[str, str, str]], set[str]]:
    """((key, from their file, from ours) of all that is handed on, the codes of the findings)."""
    topology, model, device = cell
    theirs, whole, ours = (folder / f"{name}.json" for name in ("theirs", "whole", "ours"))
    whole.write_text(json.dumps(document, indent=1), encoding="utf-8")
    cut = {topology: {model: {device: document["model_params"][topology][model][device]}}}
    theirs.write_text(json.dumps({"config": document["config"], "model_params": cut}), encoding="utf-8")
    asked = ConfigArguments(config=whole, overrides=(f"topology={topology}",), model=model, gpu=device)
    result = read(asked, action="convert", engine=None)
    if result.spec is None:
        raise click.ClickException(f"{cell} is refused: {result.problems}")
    ours.write_text(TARGETS[KINDS[kind]].write(result.spec).text, encoding="utf-8")
    arrived_from = []
    for file in (theirs, ours):
        run = folder / "run"
        run.mkdir()
        if why := sandboxed(checkout.absolute(), kind, file, run):
            raise click.ClickException(f"CVS stops at {file.stem} of {cell}: {why}")
        arrived_from.append(handed_on(run))
        shutil.rmtree(run)
    first, second = arrived_from
    keys = sorted(first.keys() | second.keys())
    codes = {
        problem.code for problem in result.problems if problem.code != "cvs-differs" or ".xla_flags." in problem.path
    }
    return [(key, first.get(key, ""), second.get(key, "")) for key in keys], codes


@click.command()
@click.option("--shipped", "is_shipped", is_flag=True, help="Start CVS's own files, and our reading of them.")
@click.option("--start", "inside", nargs=3, hidden=True)
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(checkout: Path, inside: tuple[str, str, str] | None, is_shipped: bool) -> None:
    """Start what is written for CVS with the CVS of a CHECKOUT."""
    if inside:
        start(checkout, inside[0], Path(inside[1]), Path(inside[2]))
        return
    if shutil.which("bwrap") is None:
        raise click.ClickException("this needs bubblewrap, as CVS's commands are only run in a sandbox")
    if is_shipped:
        sys.exit(not shipped(checkout))
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
