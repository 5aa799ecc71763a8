"""Somebody who uses a cluster from this machine, what they run there, and what must not be left of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.helpers.cluster.image import IMAGE, PROJECT
from tests.helpers.cluster.nodes import USER_HOME, Cluster, Node
from tests.helpers.processes import wait_until

CANARY = "canary-7f3e9a"
STEP_SECONDS = 20.0  # after which the launcher of somebody impatient takes a step for overdue, and not after 58
_IMPATIENT = (
    "from seatrial.launch import deadlines, follow",
    f"deadlines.Deadlines.__init__.__kwdefaults__['step_seconds'] = {STEP_SECONDS}",
    "follow.COPY_SECONDS = 5.0",  # and not 20, for room here again when a run is over
)
_MAIN = ("from seatrial.cli import main", "main()")
ENDLESS = 10_000_000  # steps of a run that something is to happen to, however fast the machine is
TOUCH = "touch /tmp/executed"  # whoever executes one of the values leaves this file
HOSTILE = {
    f"HOSTILE_{number}": value
    for number, value in enumerate((
        f"$({TOUCH})", f"`{TOUCH}`", f"; {TOUCH}", f"&& {TOUCH}", f"| tee /tmp/executed; {TOUCH}", f"<({TOUCH})",
        f"'; {TOUCH}; '", f'"; {TOUCH}; "', f"\n{TOUCH}\n", f"> /tmp/executed\r\n{TOUCH}", "$HOME", "${IFS}",
        "$((1+1))", "$'\\x41'", "\\", "'", '"', "two words", "-rf", "--flag", "", " ", "\t", "*", "~", "{a,b}", "!!",
        "#no comment", "%s%n%(x)s", "a=b", "\x1b[31m\x07", "ü€𝄞", "\u202eleft\u200f", "x" * 20_000,
    ))
}  # fmt: skip


class Person:
    """Somebody who uses a cluster from this machine: a home with known hosts, and the command line."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.impatient = False  # how long the usual waits are is shown by the guides
        self.cluster, self.home, self.out = cluster, folder / "home", folder / "run"
        known, ssh = self.home / ".ssh" / "known_hosts", self.home / "bin" / "ssh"
        for path in (known, ssh):
            path.parent.mkdir(parents=True)
        shutil.copy(cluster.known_hosts, known)
        # The system's ssh asks the password file, and not HOME, where somebody's own files are.
        config = cluster.ssh_config.read_text().replace(str(cluster.known_hosts), str(known))
        (self.home / ".ssh" / "config-of-ssh").write_text(config)
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.home}/.ssh/config-of-ssh "$@"\n')
        ssh.chmod(0o755)
        self.variables = {"HOME": str(self.home), "PATH": f"{ssh.parent}:{os.environ['PATH']}"}

    def configuration(self, *, steps: int, nodes: int, variables: Mapping[str, str] = {}, **values: str) -> Path:
        """CVS's file for many nodes, filled in for this cluster."""
        document = json.loads((PROJECT / "configs/cvs/mi300x_distributed_llama3_1_70b.json").read_text())
        config = document["config"]
        config |= {"nnodes": str(nodes), "coordinator_ip": self.cluster.nodes[0].address, "training_steps": str(steps)}
        config |= {"container_image": IMAGE, "nic_type": "cx7", "nccl_ib_hca_list": "mlx5_0", "nccl_ib_hca": "mlx5_0"}
        config |= dict.fromkeys(("nccl_socket_ifname", "gloo_socket_ifname"), "eth0") | {"nccl_ib_gid_index": "3"}
        config |= values
        config["container_config"]["env_dict"] |= variables
        cell = document["model_params"]["multi_node"]["llama3.1-70b"]["mi300x"]
        cell |= {"dcn_fsdp_parallelism": "1", "dcn_data_parallelism": str(nodes)}
        cell["result_dict"] |= {"tflops_per_sec_per_gpu": "380", "tokens_per_sec_per_gpu": "800"}
        path = self.home / "config.json"
        path.write_text(json.dumps(document))
        return path

    def endless(self, *, nodes: int, **changes: Any) -> Path:
        """A run that something is to happen to: no rehearsal, which would end after 50 steps; a step takes no time."""
        document = {
            "name": "endless",
            "model": {
                "name": "tiny", "vocab_size": 64, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
                "head_dim": 8, "ffn_dim": 32,
            },
            "batch": {"sequence_length": 16, "global_batch_size": 2 * nodes, "micro_batch_size": 1},
            "steps": ENDLESS,
            "topology": {"num_nodes": nodes, "devices_per_node": 1},
            "parallelism": {"across_nodes": {"data": nodes}},
            "optimizer": {"learning_rate": 1e-3},
            "execution": {"environment": {"JAX_PLATFORMS": "cpu"}},
            "container": {"image": IMAGE},
        }  # fmt: skip
        path = self.home / "endless.json"
        path.write_text(json.dumps(document | changes))
        return path

    def command(
        self, *arguments: str | Path, variables: Mapping[str, str] = {}
    ) -> tuple[str, list[str], dict[str, str]]:
        """The command line as `os.execve` takes it."""
        program = "; ".join((*(_IMPATIENT if self.impatient else ()), *_MAIN))
        argv = [sys.executable, "-c", program, *map(str, arguments)]
        return sys.executable, argv, {**os.environ, **self.variables, "COLUMNS": "120", **variables}

    def start(self, *arguments: str | Path, variables: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        _, argv, environment = self.command(*arguments, variables=variables)
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.cluster.used_by.append(process)
        return process

    def run(self, *arguments: str | Path, variables: Mapping[str, str] = {}) -> tuple[int, str]:
        with self.start(*arguments, variables=variables) as process:
            out, _ = process.communicate(timeout=240)
        return process.returncode, out

    def over_ssh(self, config: Path, *options: str) -> list[str | Path]:
        return self.on_hosts(config, "--rehearse", *options)

    def on_hosts(self, config: Path, *options: str) -> list[str | Path]:
        where: list[str | Path] = ["--cluster", self.cluster.cluster_json(), "--on", "ssh", "--python", sys.executable]
        return ["run", config, *where, "--out", self.out, *options]

    def begin(self, *options: str, nodes: int = 3) -> subprocess.Popen[str]:
        """An endless run that has taken its first steps."""
        run = self.start(*self.on_hosts(self.endless(nodes=nodes), *options))
        self.wait_for_steps(run, 2)
        return run

    def wait_for_steps(self, run: subprocess.Popen[str], steps: int) -> None:
        wait_until(lambda: self.last_step() >= steps or run.poll() is not None, 200)
        assert run.poll() is None, run.communicate()[0]

    def last_step(self) -> int:
        try:
            return int(json.loads((self.out / "status.json").read_text())["last_step"] or 0)
        except (OSError, ValueError):
            return 0

    def faults(self) -> list[dict[str, Any]]:
        """The faults among the launcher's events."""
        lines = (self.out / "events-launcher.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == "fault"]

    def first_fault(self) -> tuple[str, str]:
        return next(((fault["fault"], fault["where"]) for fault in self.faults()), ("none", ""))

    def ended_in_order(self, rank: int) -> bool:
        """True if a trainer was told once, and so had the time to say that it ends."""
        last = json.loads((self.out / f"events-{rank}.jsonl").read_text().splitlines()[-1])
        return (last["kind"], last.get("reason")) == ("run_ended", "interrupted")


def over(run: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str]:
    """The exit code of a run, and what it has printed."""
    out, _ = run.communicate(timeout=seconds)
    return run.returncode, out


def trainers(node: Node) -> list[int]:
    return [process.pid for process in node.processes("seatrial.train") if "podman" not in process.argv[0]]


def nothing_is_left(cluster: Cluster) -> bool:
    there = ("seatrial.train", "launch/agent.py", "launch/observer.py", "launch/slurm_node.py", "conmon", "podman run")
    return not any(node.processes(text) for node in cluster.nodes for text in there)


def files_with(node: Node, word: str) -> str:
    """The files of a node's own disks that hold a word."""
    disks = ("/tmp", "/var/tmp", "/run", "/dev/shm", str(USER_HOME))  # but not what is mounted there
    pattern = f"[{word[0]}]{word[1:]}"  # so that who looks for it does not show it
    look = ["find", *disks, "-xdev", "-type", "f", "-exec", "grep", "-ls", pattern, "{}", "+"]
    return node.run(look, check=False).stdout


class Lookout:
    """Inside `with`, looks at the command lines of all processes of some nodes, again and again."""

    def __init__(self, nodes: Sequence[Node], *words: str) -> None:
        self._nodes, self._words, self._over = nodes, words, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.programs: set[str] = set()  # that it has seen
        self.found: list[tuple[str, ...]] = []  # command lines with one of the words

    def __enter__(self) -> Lookout:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            for process in (process for node in self._nodes for process in node.processes()):
                self.programs.add(Path(process.argv[0]).name)
                if any(word in part for part in process.argv for word in self._words):
                    self.found.append(process.argv)
            self.looks += 1
