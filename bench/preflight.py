"""The time that `seatrial preflight` takes on 48 hosts, and how much of that is connecting.

    python bench/preflight.py [HOSTS]

The hosts are those of the tests: namespaces on this machine with an sshd each, so that both sides of every connection
share its processors. That needs root and OpenSSH's daemon. Wall time of the whole command in a fresh process, five
times; of connecting alone, logging in to all and starting nothing, by the same transport, five times.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster import needs  # noqa: E402
from tests.helpers.cluster.nodes import Cluster  # noqa: E402

RUNS = 5
GOAL_SECONDS = 10.0  # the design's, of 48 hosts on two processors; reported beside the measurement, asserted nowhere
CONNECT = """
import asyncio
import sys, time
from pathlib import Path
from seatrial.dialects import cluster_of
from seatrial.launch.transports import AsyncSsh

async def main():
    cluster, _ = cluster_of(Path(sys.argv[1]))
    import asyncssh
    ways, start = AsyncSsh(cluster), time.perf_counter()
    await asyncio.gather(*(ways._connect(host) for host in cluster.hosts))
    print(time.perf_counter() - start)
asyncio.run(main())
"""


def _run(argv: list[str], home: Path) -> tuple[float, str]:
    """Wall seconds, and what was printed."""
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "HOME": str(home)})
    elapsed = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(argv[-4:])} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return elapsed, done.stdout


def main() -> None:
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 48
    if why := needs.missing(needs.NODES):
        print(f"not measured: a cluster on one machine {why}")
        return
    with tempfile.TemporaryDirectory() as folder, Cluster(hosts, containers=False, disk_size="128m") as cluster:
        home, file = Path(folder), cluster.cluster_json()
        (home / ".ssh").mkdir()
        shutil.copy(cluster.known_hosts, home / ".ssh" / "known_hosts")
        look = [sys.executable, "-c", "from seatrial.cli import main; main()", "preflight", "--cluster", str(file)]
        look += ["--python", sys.executable, "--format", "json"]
        connect = [sys.executable, "-c", CONNECT, str(file)]
        told = json.loads(_run(look, home)[1])  # warms the caches
        assert [host["trouble"] for host in told["hosts"]] == [None] * hosts
        looks, connects = [], []
        for _ in range(RUNS):
            looks.append(_run(look, home)[0])
            connects.append(float(_run(connect, home)[1]))

    facts = record.machine()
    print(f"   median  fastest  slowest   of {RUNS} runs each, {hosts} hosts")
    for what, times in (("seatrial preflight", looks), ("connecting alone", connects)):
        print(*(f"{value:7.2f} s" for value in (statistics.median(times), min(times), max(times))), f" {what}")
    print(f"goal for preflight: {GOAL_SECONDS:.0f} s")
    print(f"on {facts['cpu']}, {facts['cores']} cores, load {facts['load_average']}")
    measured = {
        "hosts": hosts, "goal_seconds": GOAL_SECONDS,
        "preflight": {"median_seconds": statistics.median(looks), "seconds": looks},
        "connecting": {"median_seconds": statistics.median(connects), "seconds": connects},
    }  # fmt: skip
    print(f"written: {record.write('preflight', measured).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
