"""Slurm on the nodes of a cluster: munge everywhere, slurmctld on a node of its own, slurmd on each of the others.

Jobs that have ended are in `scontrol` for `MINUTES_REMEMBERED` and in `completed_jobs` for good. `sacct` knows them
only where there is accounting, for which slurmdbd and a database run beside slurmctld.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.cluster.nodes import SEARCH_PATH, Cluster, Node
from tests.helpers.processes import wait_until

CONTROLLER = 253  # last number of its address
DEVICES = 8  # GPUs that each node says it has
MINUTES_REMEMBERED = 5

_SETTINGS = """\
ClusterName=seatrial
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir=/var/tmp/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile=/var/tmp/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/{accounting}
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed_jobs
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge={remembered}
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=200000,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
TaskProlog={folder}/variables.sh
Epilog={folder}/epilog.sh
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
"""

_ACCOUNTS = """\
DbdHost=controller
DbdAddr={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
LogFile={folder}/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=slurm
StorageUser=root
CommitDelay=1
"""
_DATABASE = ("--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables", "--skip-log-bin")
_SMALL = ("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0")


class Slurm:
    """A cluster whose nodes Slurm manages; between `with` and its end."""

    def __init__(self, nodes: int, *, accounting: bool = False, clearing_seconds: float = 0, **options: Any) -> None:
        """`accounting`: sacct works; `clearing_seconds`: of the epilog; other options as of `Cluster`."""
        self.accounting, self.clearing_seconds = accounting, clearing_seconds
        self.cluster = Cluster(nodes, **options)

    def __enter__(self) -> Slurm:
        self.cluster.__enter__()
        try:
            self._make()
        except BaseException as error:
            error.add_note(self.logs())
            self.cluster.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()

    def _make(self) -> None:
        self.nodes = list(self.cluster.nodes)
        self.folder = self.cluster.folder / "slurm"
        self.munge = self.folder / "munge"  # every node has its own there; this machine shares the controller's
        self.completed_jobs = self.folder / "completed_jobs"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}  # for sbatch and others on this machine
        (self.folder / "slurmctld").mkdir(parents=True)
        self.munge.mkdir(mode=0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.controller,) = self.cluster.add([(CONTROLLER, "controller")])
        lines = [
            f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} CPUs=8 RealMemory=4000 "
            f"Gres=gpu:{DEVICES} State=UNKNOWN"
            for node in self.nodes
        ]
        storage = "none"
        if self.accounting:  # its "password" is where munge is
            host = f"AccountingStorageHost={self.controller.address}"
            storage = f"slurmdbd\n{host}\nAccountingStoragePass={self.munge}/socket"
        (self.folder / "slurm.conf").write_text(
            _SETTINGS.format(
                controller=self.controller.address, munge=self.munge, folder=self.folder,
                remembered=60 * MINUTES_REMEMBERED, nodes="\n".join(lines), accounting=storage,
            )
        )  # fmt: skip
        variables = (f"export {name}={value}" for name, value in self.cluster.compiling.items())
        prolog = self.folder / "variables.sh"  # what it prints, the tasks of a job have in their environment
        prolog.write_text("\n".join(["#!/bin/sh", "cat <<'END'", *variables, "END", ""]))
        prolog.chmod(0o755)
        epilog = self.folder / "epilog.sh"
        epilog.write_text(f"#!/bin/sh\nexec sleep {self.clearing_seconds}\n")
        epilog.chmod(0o755)
        for number in range(DEVICES):
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # counts as a GPU
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{DEVICES - 1}]\n")
        self._start_munge(self.controller)
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            node.run(["mount", "-t", "tmpfs", "tmpfs", str(self.munge)])
            self._start_munge(node)
            self.start_slurmd(node)
        self.wait_for_nodes("idle")

    def _start_munge(self, node: Node) -> None:
        here = [f"--socket={self.munge}/socket", f"--key-file={self.folder}/munge.key", "--pid-file=/run/munged.pid"]
        rest = ["--log-file=/run/munged.log", "--seed-file=/run/munged.seed", "--force", "--num-threads=2"]
        node.run(["/usr/sbin/munged", *here, *rest])

    def _start_accounting(self) -> None:
        settings = self.folder / "slurmdbd.conf"
        settings.touch(mode=0o600)
        settings.write_text(_ACCOUNTS.format(controller=self.controller.address, munge=self.munge, folder=self.folder))
        data = self.controller.folder / "database"
        self.controller.run(["mkdir", "/run/mysqld", str(data)])
        where = [f"--datadir={data}", "--socket=/run/mysqld/mysqld.sock", f"--log-error={self.folder}/database.log"]
        serve = ["setsid", "--fork", "/usr/sbin/mariadbd", *_DATABASE, *_SMALL, *where]
        self.controller.run(serve)
        wait_until(self.controller.path("/run/mysqld/mysqld.sock").exists)
        self._daemon(self.controller, "slurmdbd")
        add = ["sacctmgr", "--immediate", "add", "cluster", "seatrial"]
        wait_until(lambda: self.run(add, check=False).returncode == 0)

    # --- the daemons ---

    def start_controller(self) -> None:
        self._daemon(self.controller, "slurmctld")

    def stop_controller(self) -> None:
        """Ends slurmctld as its administrator would; jobs go on without it."""
        _end(self.controller, "slurmctld", signal.SIGTERM)

    def restart_controller(self) -> None:
        self.stop_controller()
        self.start_controller()

    def start_slurmd(self, node: Node) -> None:
        self._daemon(node, "slurmd")

    def kill_slurmd(self, node: Node) -> None:
        """Kills the daemon of a node; its jobs' steps go on, until Slurm takes the node for dead."""
        _end(node, "slurmd", signal.SIGKILL)

    def _daemon(self, node: Node, name: str) -> None:
        node.run(["env", f"SLURM_CONF={self.folder}/slurm.conf", f"/usr/sbin/{name}"])

    # --- what a user does on this machine ---

    def run(self, argv: Sequence[str], *, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs sbatch, squeue, scontrol … here, in the folder that all nodes share."""
        environment = {**os.environ, **self.environment, "PATH": SEARCH_PATH}
        done = subprocess.run(
            list(argv), cwd=self.cluster.shared, env=environment, capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode:
            raise AssertionError(f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def node_states(self) -> dict[str, str]:
        """The state of each node as Slurm reports it: idle, allocated, down*, drained …"""
        lines = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], check=False).stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def wait_for_nodes(self, state: str, seconds: float = 30) -> None:
        """Waits until all nodes are in a state."""
        deadline = time.monotonic() + seconds
        while set((states := self.node_states()).values()) != {state}:
            if time.monotonic() > deadline:
                raise AssertionError(f"not all nodes are {state} after {seconds} s: {states}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        places = [*self.folder.glob("*.log"), *(node.path("/var/tmp/slurmd.log") for node in self.nodes)]
        return "\n".join(f"{path}:\n{_end_of(path)}" for path in places)


def _end_of(path: Path) -> str:
    return path.read_text(errors="replace")[-1500:] if path.exists() else "(none)"


def _end(node: Node, program: str, signal_number: int) -> None:
    """Ends a daemon of a node and waits until it is gone."""
    (pid,) = (process.pid for process in node.processes() if process.argv[0] == f"/usr/sbin/{program}")
    node.kill(pid, signal_number)
    wait_until(lambda: all(process.pid != pid for process in node.processes()))
    with contextlib.suppress(FileNotFoundError):
        node.path(f"/run/{program}.pid").unlink()
