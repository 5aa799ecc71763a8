"""The cost of supervising a run on 1000 hosts over SSH: memory and processor time of the launcher alone.

    python bench/supervise.py [HOSTS]

The hosts are simulated by another process, which speaks as the program does that `seatrial` starts on a host: one
connection a host over a Unix socket, a status file that changes and a log that grows with every step of a second,
events of each process. All above the transport is as in a run: sessions, copies of every file, who is silent or late,
`status.json`. Logging in to 1000 daemons is not measured (`preflight.py` measures 48 of them).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).parents[1]
STEPS, STEP_SECONDS = 60, 1.0
GOAL_BYTES = 300_000_000  # the design's; reported beside the measurement, asserted nowhere


# --- the hosts --------------------------------------------------------------------------------------------------------


async def simulate(socket: str) -> None:
    """Answers as relays on any number of hosts, each with one process, until it is ended."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    running: dict[str, Simulated] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = json.loads(await reader.readline() or "{}")
        if not call:  # it was given up
            return
        writer.write(f"\n{call['mark']}\n".encode())
        given = call["given"]
        if call["verb"] == "begin":
            (process,) = given["job"]["processes"]
            running[given["job"]["directory"]] = Simulated(process["rank"], process["log"].split("/")[-2])
            writer.write(b'{"pid": 2}\n')
        else:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # the launcher has left, or all is over
                await running[f"{given['root']}/nodes/{given['host']}"].tell(writer, given["offsets"])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, socket, limit=1 << 24, backlog=4096)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.close)
    async with server:
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve_forever()
    print(json.dumps({"latest_seconds": max(host.latest for host in running.values())}))


class Simulated:
    """A host with one process, which takes a step a second once all have been started."""

    def __init__(self, rank: int, host: str) -> None:
        self._rank, self._host = rank, host
        self._begin, self._steps = time.monotonic() + 30, 0
        self._log, self._events = f"nodes/{host}/rank{rank}.log", f"events-{rank}.jsonl"
        self._written = {self._log: b"", self._events: b""}
        self.latest = 0.0  # seconds by which it was late to speak

    async def tell(self, writer: asyncio.StreamWriter, told: dict[str, int]) -> None:
        """Writes a relay's reports of the host, from the offsets that the launcher has, until the launcher leaves."""
        ended = False
        while True:
            self._go_on()
            for name, content in self._written.items():
                if new := content[told.get(name, 0) :]:
                    self._frame(writer, name, told.get(name, 0), new)
                    told[name] = len(content)
            over = self._steps == STEPS
            if not ended:
                self._frame(writer, f"nodes/{self._host}/status.json", 0, json.dumps(self._status(over)).encode())
            ended = over
            writer.write(json.dumps({"alive": True, "agent": not over, "more": False}).encode() + b"\n")
            await writer.drain()
            rest = self._begin + self._steps * STEP_SECONDS - time.monotonic()
            wake = time.monotonic() + min(max(rest, 0.0), 1.0)
            await asyncio.sleep(max(wake - time.monotonic(), 1.0 if ended else 0.0))
            self.latest = self.latest if ended else max(self.latest, time.monotonic() - wake)

    def _go_on(self) -> None:
        """Takes the steps that are due, and ends a step's time after the last."""
        due = int((time.monotonic() - self._begin) // STEP_SECONDS) + 1
        for step in range(self._steps, min(due, STEPS)):
            line = f"completed step: {step}, seconds: 1.000, loss: {9 - step / 100:.3f}\n"
            done = {"v": 1, "kind": "step", "process": self._rank, "wall_time": time.time(), "monotonic_time": 1.0}
            done |= {"step": step, "seconds": 1.0, "tokens": 8192, "loss": 9 - step / 100, "grad_norm": 1.0}
            self._written[self._log] += line.encode() * 2
            self._written[self._events] += json.dumps(done).encode() + b"\n"
            self._steps = step + 1

    def _status(self, over: bool) -> dict[str, Any]:
        process = {
            "rank": self._rank, "pid": 3, "state": "exited" if over else "running", "signal": None,
            "exit_code": 0 if over else None, "stopped": False, "started": 1.0, "ended": None,
            "log_bytes": len(self._written[self._log]), "lost_bytes": 0, "last_output": time.time(),
            "last_step_at": time.time(), "last_step": self._steps - 1 if self._steps else None, "log": self._log,
            "suspended": False, "sentence": None, "last_line": "completed step: 1, seconds: 1.000, loss: 8.99",
        }  # fmt: skip
        return {
            "v": 1, "run": "r", "host": self._host, "agent_pid": 2, "state": "ended" if over else "running",
            "started": 1.0, "stop_reason": None, "left_behind": 0, "survivors": [], "heartbeat": time.time(),
            "first_exit": None, "processes": [process],
        }  # fmt: skip

    def _frame(self, writer: asyncio.StreamWriter, name: str, offset: int, content: bytes) -> None:
        writer.write(json.dumps({"file": name, "offset": offset, "size": len(content)}).encode() + b"\n" + content)


# --- the launcher -----------------------------------------------------------------------------------------------------


def supervise(socket: str, hosts: int) -> None:
    """Follows a run on the simulated hosts, and prints what that took."""
    from seatrial import spec as specs
    from seatrial.cluster import Cluster, Host
    from seatrial.launch import channels, live, session, ssh
    from seatrial.launch.deadlines import Deadlines
    from seatrial.launch.where import Where
    from seatrial.plan import Machine, PlanRequest, Site, make_plan
    from seatrial.spec.presets import MODELS

    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))

    class ToSimulated(channels.Ways):
        def __init__(self, cluster: Cluster) -> None:
            super().__init__(cluster, logins=64, known="")

        async def open(self, host: Host, call: bytes, mark: bytes) -> channels.Channel:
            async with self._slots:
                reader, writer = await asyncio.open_unix_connection(socket)

            async def close() -> None:
                writer.close()

            channel = channels.Channel(reader, writer, reader, close)
            await channel.say(call)
            await channel.until(mark, 1 << 20)
            return channel

        async def close(self) -> None:
            return

    channels.TRANSPORTS = {**channels.TRANSPORTS, "simulated": ToSimulated}
    session.TRANSPORTS = channels.TRANSPORTS
    spec = specs.RunSpec(
        name="thousand", dialect="native", model=MODELS["llama3.1-70b"], steps=STEPS,
        batch=specs.Batch(sequence_length=8192, micro_batch_size=1, global_batch_size=8 * hosts),
        topology=specs.Topology(num_nodes=hosts, devices_per_node=8, device="h100-sxm"),
        parallelism=specs.Parallelism(
            within_node=specs.MeshShape(fsdp=8), across_nodes=specs.MeshShape(data=hosts)
        ),
    )  # fmt: skip
    cluster = Cluster(hosts=tuple(Host(name=f"node{n:04}", address=f"10.1.{n >> 8}.{n & 255}") for n in range(hosts)))
    with tempfile.TemporaryDirectory() as folder:
        from pathlib import PurePosixPath

        run_dir, there = Path(folder) / "run", Site(cluster=cluster, root=PurePosixPath("/var/tmp/seatrial/run"))
        plan = make_plan(
            PlanRequest(spec=spec, run_dir=run_dir, machine=Machine(cores=2, memory_bytes=1), on="ssh", site=there)
        )
        (run_dir / "launch").mkdir(parents=True)
        start, cpu = time.monotonic(), time.process_time()
        where = Where(on="ssh", ssh="simulated")
        with live.watched(run_dir, spec, "native", Deadlines()) as following:
            ending = ssh.run(plan, run_dir, following, where=where, site=there, attempt=1)
        took, cpu = time.monotonic() - start, time.process_time() - cpu
        steps = sum(path.read_bytes().count(b'"kind": "step"') for path in run_dir.glob("events-*.jsonl"))
        lines = sum(path.read_bytes().count(b"\n") for path in run_dir.glob("nodes/*/*.log"))
    for fault in ending.faults[:3]:
        print(fault.text, file=sys.stderr)
    told = {
        "hosts": hosts, "ended": ending.reason, "seconds": took, "cpu_seconds": cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "steps_expected": hosts * STEPS, "steps_copied": steps, "lines_copied": lines,
    }  # fmt: skip
    print(json.dumps(told))


def main() -> None:
    if sys.argv[1:2] == ["--simulate"]:
        asyncio.run(simulate(sys.argv[2]))
        return
    if sys.argv[1:2] == ["--supervise"]:
        supervise(sys.argv[2], int(sys.argv[3]))
        return
    hosts = sys.argv[1] if len(sys.argv) > 1 else "1000"
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/hosts"
        simulator = subprocess.Popen([sys.executable, __file__, "--simulate", socket], stdout=subprocess.PIPE)
        try:
            while not Path(socket).exists():
                time.sleep(0.05)
            done = subprocess.run(
                [sys.executable, __file__, "--supervise", socket, hosts], capture_output=True, text=True
            )
        finally:
            simulator.terminate()
            told = simulator.communicate()[0]
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    print(done.stderr, end="")
    measured = json.loads(done.stdout.splitlines()[-1]) | json.loads(told)
    facts = record.machine()
    print(f"{measured['hosts']} hosts, {STEPS} steps of {STEP_SECONDS} s: {measured['ended']}")
    print(f"{measured['peak_bytes'] / 1e6:.0f} MB at most (goal: below {GOAL_BYTES / 1e6:.0f} MB)")
    print(f"{measured['cpu_seconds']:.1f} s of one processor in {measured['seconds']:.1f} s")
    print(f"the simulated hosts themselves were late by up to {measured['latest_seconds']:.1f} s")
    print(f"{measured['steps_copied']} of {measured['steps_expected']} events copied")
    print(f"on {facts['cpu']}, {facts['cores']} cores, load {facts['load_average']}")
    print(f"written: {record.write('supervise', {'goal_bytes': GOAL_BYTES, **measured}).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
