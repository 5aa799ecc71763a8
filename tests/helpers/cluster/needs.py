"""The requirements of this machine for making clusters on it."""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.helpers.cluster.nodes import SEARCH_PATH

REQUIRED = bool(os.environ.get("SEATRIAL_REQUIRE_CLUSTER"))  # then tests fail rather than skip

# Each program with Debian's package that has it; `.ci/run` installs them.
NODES = {
    "catatonit": "catatonit", "dpkg-query": "dpkg", "findmnt": "mount", "ip": "iproute2", "nft": "nftables",
    "nsenter": "util-linux", "podman": "podman", "runc": "runc", "setpriv": "util-linux", "ssh": "openssh-client",
    "sshd": "openssh-server", "tc": "iproute2", "unshare": "util-linux",
}  # fmt: skip
SLURM = {
    "mariadbd": "mariadb-server-core", "munged": "munge", "sbatch": "slurm-client", "slurmctld": "slurmctld",
    "slurmd": "slurmd", "slurmdbd": "slurmdbd",
}  # fmt: skip


def missing(programs: dict[str, str]) -> str:
    """The first requirement that the machine does not meet, in one line; "" if it meets all."""
    if os.geteuid() != 0:
        return "needs root, which alone may make namespaces and run sshd in them"
    packages = {package for program, package in programs.items() if not shutil.which(program, path=SEARCH_PATH)}
    if packages:
        return f"needs Debian's packages {', '.join(sorted(packages))}"
    alone = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(alone, capture_output=True, text=True)
    return f"needs namespaces, and this machine says {done.stderr.strip()}" if done.returncode else ""
