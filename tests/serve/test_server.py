"""The server as a process: what it answers, to whom, and that hostile directories stay inert; Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest

from seatrial.history import load
from seatrial.history.summary import summarise
from seatrial.serve.table import key_of
from seatrial.verdict import show
from tests.helpers import many_runs, run_directory
from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import make
from tests.helpers.html_pages import HOSTILE, Page, hostile_run
from tests.helpers.many_runs import LiveRun
from tests.helpers.processes import wait_until
from tests.helpers.serving import Server, serving

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many_runs.write(tmp_path_factory.mktemp("served") / "runs", 130, seed=4)


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(runs, data=tmp_path_factory.mktemp("data")) as started:
        started.wait("/", "<b>130</b> runs")
        yield started


class Table(HTMLParser):
    """The cells of the rows of the table of runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text[text.index('<table class="rows over">') :])

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def test_the_first_page_has_the_newest_runs(server: Server, runs: Path) -> None:
    answer = server.ask("/")
    assert answer.status == 200
    _, *rows = Table(answer.text).rows
    expected = sorted((summarise(path) for path in runs.iterdir()), key=lambda row: -float(row["started_at"] or 0))
    assert len(rows) == 100
    for cells, row in zip(rows, expected, strict=False):
        assert cells[2].startswith(Path(str(row["directory"])).name)
        assert cells[8] == ("–" if row["step_seconds"] is None else show(row["step_seconds"]))
    second = server.ask("/?page=2").text
    assert len(Table(second).rows) == 31
    assert "101 to 130 of 130" in second


def test_filters_are_part_of_the_address(server: Server, runs: Path) -> None:
    died = [path for path in runs.iterdir() if summarise(path)["outcome"] == "died"]
    text = server.ask("/?outcome=died").text
    assert len(Table(text).rows) == 1 + len(died)
    assert "No run fits." in server.ask("/?q=no-such-run").text
    one = died[0].name
    assert one in server.ask(f"/?outcome=died&q={one[-15:]}").text


def test_every_report_opens_and_the_run_directory_stays_as_it_was(server: Server, runs: Path) -> None:
    run = next(path for path in runs.iterdir() if summarise(path)["outcome"] == "pass")
    before = {path: path.stat().st_mtime_ns for path in [run, *run.iterdir()]}
    answer = server.ask(f"/runs/{key_of(str(run))}")
    assert answer.status == 200
    assert '<p class="outcome">PASS</p>' in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "; sandbox allow-scripts" in policy
    assert "unsafe" not in policy
    assert {path: path.stat().st_mtime_ns for path in [run, *run.iterdir()]} == before


def test_any_two_can_be_compared(server: Server, runs: Path) -> None:
    rows = [summarise(path) for path in runs.iterdir()]
    passed = [row for row in rows if row["outcome"] == "pass"]
    one = passed[0]
    alike = next(row for row in passed[1:] if row["fingerprint"] == one["fingerprint"])
    other = next(row for row in passed if row["model"] != one["model"])
    keys = {name: key_of(str(row["directory"])) for name, row in (("one", one), ("alike", alike), ("other", other))}
    page = server.ask(f"/compare?run={keys['alike']}&run={keys['one']}")
    assert page.status == 200
    older, newer = sorted((one, alike), key=lambda row: float(row["started_at"] or 0))
    sides = Page(page.text).texts["li"]
    assert load(Path(str(older["directory"]))).directory in sides[0]
    assert str(newer["directory"]) in sides[1]
    refused = server.ask(f"/compare?run={keys['one']}&run={keys['other']}")
    assert refused.status == 422
    (anyway,) = re.findall(r'href="(/compare\?[^"]*anyway=1)"', refused.text)
    assert server.ask(anyway.replace("&amp;", "&")).status == 200
    for query in ("", "?run=x", f"?run={keys['one']}", f"?run={keys['one']}&run={keys['one']}"):
        assert server.ask(f"/compare{query}").status == 400


def test_configurations_have_their_runs(server: Server, runs: Path) -> None:
    text = server.ask("/configurations").text
    groups = re.findall(r'<th scope="row"><a href="(/configurations/[0-9a-f]+)"', text)
    assert len(groups) == len({row["fingerprint"] for row in map(summarise, runs.iterdir())})
    counted = 0
    for group in groups:
        page = server.ask(group).text
        counted += len(Table(page).rows) - 1
    assert counted == 130


def test_it_only_shows(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        answer = server.ask("/", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/", "/configurations", "/events"):
        head = server.ask(path, method="HEAD")
        assert (head.status, head.body) == (200, b"")


def test_every_answer_has_the_policy(server: Server, runs: Path) -> None:
    paths = ["/", "/configurations", "/compare", "/nothing", "/runs/x", "/static/serve.js", "/static/x"]
    for path in paths:
        headers = server.ask(path, Origin="http://evil.test").headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe-inline" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    for path in paths[:3]:
        found = Page(server.ask(path).text)
        assert [
            tag for tag, at in found.elements if tag == "script" and not (at.get("src") or "").startswith("/static/")
        ] == []
        assert [tag for tag, at in found.elements if "style" in at or tag == "style"] == []
        assert not {name for _, at in found.elements for name in at if name.startswith("on")}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd", "/static/..%2f..%2fsite.py", "/static/%2e%2e/site.py", "/runs/..%2f..",
        "/runs/%2Fetc%2Fpasswd", "/configurations/..", "/static/serve.css%00", "//etc/passwd", "/static//etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_out(server: Server, path: str) -> None:
    answer = server.ask(path)
    assert answer.status in (404, 405)
    assert b"root:" not in answer.body
    assert b"Starlette(" not in answer.body


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "", "localhost.evil.test", "a b", "[::2]"]
)
def test_another_name_is_not_answered(server: Server, host: str) -> None:
    answer = server.ask("/", host=host)
    assert answer.status in (400, 421)
    assert b"runs" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:1234", "[::1]:80", "LOCALHOST"])
def test_the_names_of_this_machine_are(server: Server, host: str) -> None:
    assert server.ask("/", host=host).status == 200


def test_the_name_that_is_served_is_answered(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "one")
    with serving(tmp_path / "runs", "--host", "127.0.0.2", data=tmp_path / "data") as server:
        assert urllib.request.urlopen(server.address, timeout=20).status == 200


def test_a_token_is_needed_where_there_is_one(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "one")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(tmp_path / "runs", "--token-file", tmp_path / "token", data=tmp_path / "data") as server:
        assert server.address.endswith(f"/?token={TOKEN}")
        for path in ("/", "/events", "/static/serve.js", "/nothing", "/?token=", "/?token=wrong", "/?token=é"):
            answer = server.ask(path.replace("é", "%C3%A9"))
            assert answer.status == 401
            assert b"<" not in answer.body
        welcome = server.ask(f"/configurations?sort=x&token={TOKEN}")
        assert (welcome.status, welcome.headers["location"]) == (303, "/configurations?sort=x")
        cookie = welcome.headers["set-cookie"]
        assert TOKEN not in cookie
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        value = cookie.partition(";")[0]
        assert server.ask("/", Cookie=value).status == 200
        assert server.ask("/", Cookie=value, host="dashboard.example").status == 200
        assert server.ask("/", Cookie=f"{value[:-1]}{'0' if value[-1] != '0' else '1'}").status == 401
        assert server.ask("/", Cookie="a=\x80; ;;=").status == 401
        assert server.ask("/", Authorization=f"Bearer {TOKEN}").status == 200
        assert server.ask("/", Authorization="Bearer wrong").status == 401
        elsewhere = server.ask(f"//evil.test/?token={TOKEN}")
        assert elsewhere.headers.get("location", "/").startswith("/evil") or elsewhere.status == 401
    with serving(tmp_path / "runs", "--host", "0.0.0.0", data=tmp_path / "data") as server:
        (token,) = re.findall(r"token=(\S+)", server.address)
        assert len(token) >= 32
        assert server.ask("/").status == 401
        assert server.ask(f"/?token={token}").status == 303


def test_hostile_directories_are_shown_inert(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    evil = hostile_run(root / "<img src=x onerror=alert(1)>\x1b[31m")
    status = {
        "v": 1,
        "state": "running",
        "heartbeat": time.time(),
        "last_step": 3,
        "processes": [{"host": "".join(HOSTILE)}],
    }
    (make(root / "live") / "status.json").write_text(json.dumps(status))
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("plan.json", "verdict.json", "metrics.json"):
        (secret / name).write_text(json.dumps({"outcome": "pass", "headline": "top-secret-4711", "v": 1}))
    linked = make(root / "linked")
    (linked / "verdict.json").unlink()
    (linked / "verdict.json").symlink_to(secret / "verdict.json")
    (linked / "nodes").rename(tmp_path / "nodes")
    (linked / "nodes").symlink_to("/etc")
    (root / "away").symlink_to(secret)
    fake = make(root / "fake")
    (fake / "report.html").write_text("<script>document.title = 'owned'</script>")
    fifo = make(root / "fifo")
    (fifo / "metrics.json").unlink()
    os.mkfifo(fifo / "metrics.json")
    huge = make(root / "huge")
    with (huge / "plan.json").open("w") as file:
        file.truncate(1 << 40)  # nothing but a size
    with serving(root, data=tmp_path / "data") as server:
        page = server.wait("/", "<b>6</b> runs")
        began = time.monotonic()
        texts = [page, server.ask("/configurations").text]
        texts += [server.ask(f"/runs/{key_of(str(run))}").text for run in (evil, linked, fake, fifo, huge)]
        texts += [server.ask(f"/compare?run={key_of(str(evil))}&run={key_of(str(fake))}").text]
        assert time.monotonic() - began < 60
        for text in texts:
            assert "top-secret-4711" not in text
            assert "owned" not in text or "window.owned" in text  # escaped
            assert "\x1b" not in text
            elements = Page(text).elements
            assert [tag for tag, _ in elements if tag in ("img", "iframe", "object", "embed")] == []
            assert [at for _, at in elements if "onerror" in at or "onmouseover" in at] == []
        assert "is a link that leads out of the folders of runs" in page
        assert "is not a regular file" in page


def test_live_figures_are_sent_and_a_new_run_appears(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "one")
    with serving(tmp_path / "runs", data=tmp_path / "data") as server:
        server.wait("/", "<b>1</b> runs")
        run = LiveRun(tmp_path / "runs" / "live")
        server.wait("/", "live", 20)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stream:
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = ""

            def receive(words: str) -> str:
                nonlocal received
                while words not in received:
                    part = stream.recv(65536)
                    assert part, received
                    received += part.decode()
                return received

            receive("event: hello")
            assert "text/event-stream" in received
            step = random.Random(1).randint(3, 9)
            for _ in range(step):
                run.step(seconds=28.0)
            receive(f'"steps":"{step} of 1,000"')
            many_runs.put_status(run.directory, state="ended")
            receive('"ended":[["live","not judged"]]')
            server.process.send_signal(signal.SIGINT)
            while stream.recv(65536):
                pass  # the stream is ended in order
        server.process.wait(timeout=20)
        assert server.process.returncode == 0


def test_an_interrupt_ends_everything_with_exit_code_0(tmp_path: Path) -> None:
    many_runs.write(tmp_path / "runs", 30)
    for number in (signal.SIGINT, signal.SIGTERM):
        with serving(tmp_path / "runs", data=tmp_path / "data") as server:
            server.ask("/runs/" + key_of(str(next((tmp_path / "runs").iterdir()))))
            children = psutil.Process(server.process.pid).children(recursive=True)
            assert children
            server.process.send_signal(number)
            assert server.process.wait(timeout=60) == 0
            assert server.process.stdout is not None
            assert server.process.stdout.read() == ("for this machine only; Ctrl-C ends it\n")
            assert psutil.wait_procs(children, timeout=20)[1] == []
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "data"}


@pytest.mark.slow
def test_a_killed_scanner_is_started_again(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "one")
    with serving(tmp_path / "runs", data=tmp_path / "data") as server:
        server.wait("/", "<b>1</b> runs")
        for child in psutil.Process(server.process.pid).children(recursive=True):
            child.kill()
        make(tmp_path / "runs" / "two")
        server.wait("/", "<b>2</b> runs")


@pytest.mark.slow
def test_what_was_read_is_there_at_once_the_next_time(tmp_path: Path) -> None:
    many_runs.write(tmp_path / "runs", 40)
    for _ in range(2):
        with serving(tmp_path / "runs", data=tmp_path / "data") as server:
            server.wait("/", "<b>40</b> runs")
            index = tmp_path / "data" / "seatrial" / "history.sqlite"
            wait_until(index.exists)
            time.sleep(1)
    assert '"total": 40' in seatrial("history", "--root", tmp_path / "runs", "--format", "json", cwd=tmp_path).stdout


def test_wrong_arguments_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("short")
    (tmp_path / "runs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in {
            ("nowhere",): "there is no folder nowhere",
            ("file",): "file is not a folder",
            ("runs", "--port", port): "fix: name another port",
            ("runs", "--host", "host.invalid"): "fix: name an address of this machine",
            ("runs", "--token-file", "nowhere"): "cannot be read",
            ("runs", "--token-file", "file"): "is not one word of 16 ASCII characters",
            ("runs", "--port", "99999"): "fix: give a whole number from 0 to 65535",
        }.items():
            done = seatrial("serve", *arguments, cwd=tmp_path)
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr
            assert "Errno" not in done.stderr


def test_without_the_extra_it_names_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    program = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['seatrial', 'serve']; from seatrial.cli import main"
    )
    program += "; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'seatrial[serve]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_in_another_counts_once(tmp_path: Path) -> None:
    run_directory.write(tmp_path / "runs" / "inner" / "one")
    with serving(tmp_path / "runs", tmp_path / "runs" / "inner", data=tmp_path / "data") as server:
        server.wait("/", "<b>1</b> runs")
        assert server.lines[0] == f"serving {tmp_path / 'runs'}"
