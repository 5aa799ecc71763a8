"""`seatrial serve` as a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.helpers.coverage import measured
from tests.helpers.processes import wait_until

SERVE = [sys.executable, "-c", "from seatrial.cli import main; main()", "serve"]


@dataclass
class Answer:
    """A server's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Server:
    """One that runs."""

    process: subprocess.Popen[str]
    address: str
    lines: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        match = re.search(r":(\d+)/", self.address)
        assert match
        return int(match[1])

    def ask(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Answer:
        """One request over a connection of its own; `_` in the name of a header is -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, headers=given | ({"Host": host} if host is not None else {}))
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def wait(self, path: str, words: str, seconds: float = 60) -> str:
        """A page as soon as it has these words."""

        def there() -> str:
            text = self.ask(path).text
            return text if words in text else ""

        return str(wait_until(there, seconds))


@contextmanager
def serving(*arguments: str | Path, data: Path) -> Iterator[Server]:
    """A server on a free port, with an index of its own in `data`; afterwards nothing of it is left."""
    environment = measured("serve") | {"XDG_DATA_HOME": str(data)}
    process = subprocess.Popen(
        [*SERVE, *map(str, arguments), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("http://"):
            line = process.stdout.readline()
            assert line, f"it ended: {lines}"
            lines.append(line.rstrip("\n"))
        yield Server(process, lines[-1], lines)
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.communicate(timeout=30)
        _, left = psutil.wait_procs(children, timeout=10)
        for child in left:
            child.kill()
    assert left == [], "processes of the server are left"
