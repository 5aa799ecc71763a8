"""The first process of a pod: starts the agent, repeats its logs, and keeps the pod until a launcher has its files.

    python3 -I FOLDER/pod.py FOLDER ROOT

The folder is a ConfigMap's. Its file `run` is JSON, compressed and in base64: {"jobs": one for each pod, "files":
{relative: text}, "port", "coordinator", "keep_seconds"}. JOB_COMPLETION_INDEX is the pod's place. Secrets
come as variables that the job names.

SIGTERM, by which Kubernetes evicts, preempts and deletes, lets the processes save and stop. A pod that has ended cannot
be asked for its files any more: so it ends when a launcher releases it, or after `keep_seconds`; with the agent's code.
"""

from __future__ import annotations

import base64
import glob
import gzip
import json
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from seatrial.node import relay
    from seatrial.node.job_secrets import with_secrets
else:  # in a pod, where they lie beside this
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import relay
    from job_secrets import with_secrets

RUN = "run"
TURN_SECONDS = 0.2
NAME_SECONDS = 60.0  # for the name of the first pod to be known to the others
READ_BYTES = 1 << 16


def packed(run: dict[str, Any]) -> str:
    """The file `run`, as it lies in the ConfigMap; the same for the same run."""
    return base64.b64encode(gzip.compress(json.dumps(run).encode(), mtime=0)).decode()


def unpacked(text: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(base64.b64decode(text))))


class Pod:
    """A pod whose agent runs."""

    def __init__(self, agent: int, directory: str, keep_seconds: float) -> None:
        self.agent, self.directory, self.keep_seconds = agent, directory, keep_seconds
        self.repeated: dict[str, int] = {}  # bytes of each log
        self.code: int | None = None  # of the agent, when it has ended
        self.ended = 0.0
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def stop(self, number: int, frame: object) -> None:
        """Asks the agent to let its processes save and stop."""
        open(os.path.join(self.directory, "stop"), "w").close()

    def run(self) -> int:
        """Returns the pod's exit code when nothing keeps it any more."""
        while self.code is None or not self._may_end():
            self._reap()
            self._repeat()
            time.sleep(TURN_SECONDS)
        self._repeat()
        return 0 if self.code == 0 else 1

    def _may_end(self) -> bool:
        released = os.path.exists(os.path.join(self.directory, relay.RELEASED))
        return released or time.monotonic() - self.ended > self.keep_seconds

    def _reap(self) -> None:
        """Takes in the deaths of the agent, and of whoever else is left to the first process of a pod."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.agent:
                    self.code, self.ended = status, time.monotonic()
        except ChildProcessError:
            if self.code is None:
                raise

    def _repeat(self) -> None:
        """Prints whole lines of what the processes have printed, so that `kubectl logs` shows it too."""
        for path in sorted(glob.glob(os.path.join(glob.escape(self.directory), "*.log"))):
            with open(path, "rb") as file:
                file.seek(self.repeated.get(path, 0))
                chunk = file.read(READ_BYTES)
            end = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) == READ_BYTES else 0)
            self.repeated[path] = self.repeated.get(path, 0) + end
            relay.put(chunk[:end])


def _wait_for_name(host: str) -> None:
    """Until the cluster's name server knows the first pod; where it never does, the trainer says so."""
    deadline = time.monotonic() + NAME_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError:
            time.sleep(1)


def main(arguments: list[str]) -> int:
    """Runs what a pod is for; its exit code."""
    folder, root = arguments
    with open(os.path.join(folder, RUN), encoding="utf-8") as file:
        run = unpacked(file.read())
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    job = with_secrets(run["jobs"][index], os.environ)
    if index > 0 and run["coordinator"]:
        _wait_for_name(run["coordinator"])
    port = run["port"] if index == 0 else None
    given = {"root": root, "files": run["files"], "job": job, "attempt": 1, "port": port}
    return Pod(relay.start(given).pid, job["directory"], run["keep_seconds"]).run()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit("seatrial: %s: %s: %s" % (socket.gethostname(), type(error).__name__, error))
