"""Both ways to a host, with programs in the place of trainers: what is said arrives once, and as it is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from seatrial.cluster import Cluster as Hosts
from seatrial.command import Command, in_container
from seatrial.dialects import cluster_of
from seatrial.errors import LaunchError
from seatrial.launch import session, transports
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.follow import Following
from seatrial.launch.progress import Ending, Progress
from seatrial.launch.session import Session
from seatrial.launch.ssh import run
from seatrial.launch.transports import TRANSPORTS, Unreachable
from seatrial.launch.where import Where
from seatrial.plan import Plan, Process, Site
from seatrial.spec import Batch, Container, MeshShape, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.cluster import faults
from tests.helpers.cluster.image import IMAGE
from tests.helpers.cluster.nodes import USER_HOME, Node
from tests.helpers.cluster.person import HOSTILE, Person, nothing_is_left
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.cluster

ROOT = PurePosixPath("/var/tmp/seatrial-root/run")
LINES, DROPS = 20_000, 5


class Programs:
    """A person's own programs, one on each node, run and followed in this process."""

    def __init__(self, person: Person, transport: str) -> None:
        self.person, self.transport = person, transport
        read, _ = cluster_of(person.cluster.cluster_json())
        assert read is not None
        self.hosts: Hosts = read

    def run(self, *commands: Command, steps: int = 1, on_progress: Callable[[Progress], None]) -> Ending:
        """A step is a line that begins with the word and its number."""
        hosts = self.hosts.hosts[: len(commands)]
        spec = RunSpec(
            name="run", dialect="native", model=MODELS["llama3.2-1b"], steps=steps,
            batch=Batch(sequence_length=8, micro_batch_size=1, global_batch_size=len(hosts)),
            topology=Topology(num_nodes=len(hosts), devices_per_node=1),
            parallelism=Parallelism(within_node=MeshShape(), across_nodes=MeshShape(data=len(hosts))),
        )  # fmt: skip
        processes = tuple(
            Process(rank=rank, host=host, command=command, log=f"nodes/{host.name}/rank{rank}.log")
            for rank, (host, command) in enumerate(zip(hosts, commands, strict=True))
        )
        plan = Plan(engine="native", on="ssh", spec=spec, processes=processes, step_pattern=r"^step (\d+)")
        site = Site(cluster=self.hosts, root=ROOT)
        following = Following(Deadlines(), on_progress, say=print)
        return run(plan, self.person.out, following, where=Where(ssh=self.transport), site=site, attempt=1)

    def logs(self) -> list[bytes]:
        """As they are here, which is what they are on the nodes."""
        here = sorted(self.person.out.glob("nodes/*/rank*.log"), key=lambda path: path.name)
        for path, node in zip(here, self.person.cluster.nodes, strict=False):
            assert path.read_bytes() == node.path(str(ROOT / path.relative_to(self.person.out))).read_bytes()
        return [path.read_bytes() for path in here]


@pytest.fixture
def make_programs(make_person: Callable[..., Person], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Programs]:
    def make(nodes: int, *, transport: str = "asyncssh", **options: object) -> Programs:
        person = make_person(nodes, **options)
        for name, value in person.variables.items():
            monkeypatch.setenv(name, value)
        return Programs(person, transport)

    return make


def python(program: str, *arguments: str) -> Command:
    return Command(argv=("/usr/bin/python3", "-c", program, *arguments), environment=HOSTILE)


NUMBERS = f"""
import os, time
for number in range({LINES}):
    print("step", number, "x" * (number * 7919 % 97), flush=number % 20 == 19)
    if number % 20 == 19:
        time.sleep(0.02)
    while number == {LINES - 2000} and not os.path.exists("/tmp/dropped"):
        time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_line_is_lost_or_doubled_by_connections_that_are_killed(
    make_programs: Callable[..., Programs], transport: str
) -> None:
    programs = make_programs(3, transport=transport, containers=False)
    nodes, out = programs.person.cluster.nodes, programs.person.out
    drops: list[list[int]] = [[0, 0, 0]]  # the sizes of the copies at each

    def drop(progress: Progress) -> None:
        copies = [path.stat().st_size for path in sorted(out.glob("nodes/*/rank*.log"), key=lambda path: path.name)]
        if len(drops) > DROPS:
            for node in nodes:
                node.path("/tmp/dropped").touch()
        elif len(copies) == 3 and all(now > before for now, before in zip(copies, drops[-1], strict=True)):
            for node in nodes:
                node.drop_sessions()
            drops.append(copies)

    with faults.slow_link(nodes[2], megabits=2):  # so that frames are cut
        ending = programs.run(*[python(NUMBERS)] * 3, steps=LINES, on_progress=drop)
    assert ending == Ending(reason="completed", exit_code=0)
    assert len(drops) == DROPS + 1
    for log in programs.logs():
        assert [int(line.split()[1]) for line in log.splitlines()] == list(range(LINES))
    assert nothing_is_left(programs.person.cluster)


BANNER = """
echo 'Welcome to $HOSTNAME'
echo '{"error": "no such thing"}'
echo '{"pid": 1, "alive": true, "agent": false}'
echo '{"file": "nodes/x/rank0.log", "offset": 0, "size": 3}'
head -c 200000 /dev/zero
echo 'complaints' >&2
printf 'no newline here: '
"""
SHOW = "import os, sys; print(ascii([sys.argv[1:], {n: v for n, v in os.environ.items() if n.startswith('HOSTILE')}]))"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_travels_arrives_as_it_is_through_a_shell_that_talks(
    make_programs: Callable[..., Programs], transport: str
) -> None:
    programs = make_programs(1, transport=transport, containers=False)
    (node,) = programs.person.cluster.nodes
    node.path(USER_HOME / ".bashrc").write_text(BANNER)
    assert "no such thing" in node.ssh(["true"]).stdout
    ending = programs.run(python(SHOW, *HOSTILE.values()), on_progress=lambda progress: None)
    assert ending == Ending(reason="completed", exit_code=0)
    assert programs.logs() == [f"{[[*HOSTILE.values()], HOSTILE]!a}\n".encode()]
    assert not node.path("/tmp/executed").exists()


def greeted(node: Node) -> socket.socket | None:
    """The connection of somebody who never logs in, once the daemon has taken it."""
    with suppress(OSError):
        connection = socket.create_connection((node.address, 22))
        if connection.recv(4) == b"SSH-":
            return connection
        connection.close()
    return None


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_why_a_host_cannot_be_used_is_told_with_its_fix(
    make_programs: Callable[..., Programs], monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(transports, "THROTTLED_TRIES", 2)
    programs = make_programs(7, transport=transport, containers=False)
    _, unknown, changed, refused, silent, throttled, off = programs.person.cluster.nodes
    file = programs.person.home / ".ssh" / "known_hosts"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if f"{unknown.address}," not in line))
    with ExitStack() as stack:
        stack.enter_context(faults.host_key_changed(changed))
        stack.enter_context(faults.sshd_with(refused, "AuthorizedKeysFile none"))
        stack.enter_context(faults.sshd_stopped(silent))
        stack.enter_context(faults.sshd_with(throttled, "MaxStartups 1:100:1"))
        stack.enter_context(wait_until(lambda: greeted(throttled)))
        stack.enter_context(faults.cable_out(off))
        session = Session(programs.hosts, transport=transport)
        stack.callback(session.close)
        given = {"root": "/var/tmp/seatrial-root/none"}
        source = "import os\ndef main(verb, given): os.write(1, b'{}\\n')"
        answers = session.ask([(host, given) for host in programs.hosts.hosts], "say", source=source, seconds=60)
    assert not isinstance(answers[0], Unreachable)
    told = [(answer.why, answer.fix) for answer in answers[1:] if isinstance(answer, Unreachable)]
    expected = [
        (r"its host key is not in .*known_hosts", "log in once by hand"),
        (r"its host key is not the one in .*known_hosts", rf"ssh-keygen -R {changed.address}"),
        (r"it refuses root with .*key", "add the public key to authorized_keys"),
        (r"nobody listens on port 22", "its SSH daemon is running"),
        (r"its SSH daemon closes connections before they begin", "raise MaxStartups"),
        (r"it cannot be reached \(.+\)", "that it is up"),
    ]
    for (why, fix), (as_why, as_fix) in zip(told, expected, strict=True):
        assert re.search(as_why, why)
        assert re.search(as_fix, fix)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_host_is_found_by_the_system_s_known_hosts_and_the_configuration_s_port(
    make_programs: Callable[..., Programs], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transport: str
) -> None:
    programs = make_programs(2, transport=transport, containers=False)
    _, far = programs.person.cluster.nodes
    folder = programs.person.home / ".ssh"
    known = folder / "known_hosts"
    own, of_all = known.read_text().splitlines(), tmp_path / "ssh_known_hosts"
    entries = [line.split(" ", 1) for line in own if far.address in line]
    of_all.write_text("\n".join(own + [f"[{far.address}]:2222 {key}" for _, key in entries]) + "\n")
    known.unlink()
    monkeypatch.setattr(transports, "KNOWN_HOSTS", (".ssh/known_hosts", str(of_all)))
    port = f"Host {far.address}\n  Port 2222\n"
    (folder / "config").write_text(port)
    usual = (folder / "config-of-ssh").read_text().replace(str(known), str(of_all))
    (folder / "config-of-ssh").write_text(f"{port}Host *\n{usual}")

    def troubles() -> list[str]:
        with closing(Session(programs.hosts, transport=transport)) as session:
            source = "import os\ndef main(verb, given): os.write(1, b'{}\\n')"
            given = [(host, {"root": "/var/tmp/seatrial-root/none"}) for host in programs.hosts.hosts]
            answers = session.ask(given, "say", source=source, seconds=60)
        return [answer.why for answer in answers if isinstance(answer, Unreachable)]

    with faults.sshd_with(far, "Port 2222"):
        assert troubles() == []
    assert troubles() == ["nobody listens on port 2222"]


def test_a_key_with_a_passphrase_is_used_by_way_of_the_agent(
    make_programs: Callable[..., Programs], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = make_programs(1, containers=False)
    own = programs.person.cluster.key
    locked, other, place = tmp_path / "locked", tmp_path / "other", tmp_path / "agent"
    shutil.copy(own, locked)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a phrase", "-f", locked], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    hosts = replace(programs.hosts, key_file=str(locked))

    def answer() -> Any:
        session = Session(hosts, transport="asyncssh")
        try:
            source = "import os\ndef main(verb, given): os.write(1, b'{}\\n')"
            return session.ask([(hosts.hosts[0], {"root": "/var/tmp/none"})], "say", source=source, seconds=60)[0]
        finally:
            session.close()

    with subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL) as agent:
        try:
            wait_until(place.exists)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
            subprocess.run(["ssh-add", "-q", other], check=True)
            without = answer()
            subprocess.run(["ssh-add", "-q", own], check=True)
            assert not isinstance(answer(), Unreachable)
        finally:
            agent.terminate()
    monkeypatch.delenv("SSH_AUTH_SOCK")
    for told in (without, answer()):
        assert isinstance(told, Unreachable)
        assert "passphrase, and no ssh-agent holds it" in told.why
        assert f"ssh-add {locked}" in told.fix


def test_a_run_that_cannot_begin_on_one_host_is_begun_on_none(make_programs: Callable[..., Programs]) -> None:
    programs = make_programs(3, containers=False)
    third = programs.person.cluster.nodes[2]
    of_somebody = third.path(str(ROOT / "nodes" / third.address))  # who runs something of the same name
    third.run(["install", "-d", "-m", "700", str(ROOT.parent), str(ROOT)])
    of_somebody.mkdir(parents=True)
    with pytest.raises(LaunchError, match=f"{third.address}: .*{third.address}: File exists"):
        programs.run(*[python("import time; time.sleep(1000)")] * 3, on_progress=lambda progress: None)
    wait_until(lambda: nothing_is_left(programs.person.cluster), 10)
    assert list(of_somebody.iterdir()) == []


# Bytes that take longer to come over 2 Mbit/s than a process is given to end.
MANY_BYTES = 9_000_000


@pytest.mark.slow
def test_what_was_written_is_waited_for_after_the_end(make_programs: Callable[..., Programs]) -> None:
    programs = make_programs(2, containers=False)
    floods = python(f"print('step 0', flush=True); print('x' * {MANY_BYTES})")
    with faults.slow_link(programs.person.cluster.nodes[1], megabits=2):
        ending = programs.run(floods, floods, on_progress=lambda progress: None)
    assert ending == Ending(reason="completed", exit_code=0)
    assert [len(log) for log in programs.logs()] == [MANY_BYTES + 8] * 2


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_host_is_not_blamed_while_nobody_listens_and_is_left_when_it_says_nothing(
    make_programs: Callable[..., Programs], monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(session, "STALE_SECONDS", 4.0)
    programs = make_programs(2, transport=transport, containers=False)
    listened = threading.Event()
    with closing(Session(programs.hosts, transport=transport)) as listening:
        ranks = {host: [rank] for rank, host in enumerate(programs.hosts.hosts)}
        nodes = listening.listen(ranks, ROOT, programs.person.out)
        wait_until(lambda: all(node.connected and node.silent_seconds() < 1 for node in nodes), 30)
        first = [node.connected for node in nodes]
        listening._loop.call_soon_threadsafe(time.sleep, 6)
        listening._loop.call_soon_threadsafe(listened.set)
        silence = 0.0
        while not listened.wait(0.05):
            silence = max(silence, *(node.silent_seconds() for node in nodes))
        time.sleep(1)
        assert max(silence, *(node.silent_seconds() for node in nodes)) < 3
        assert [node.connected for node in nodes] == first
        second = programs.person.cluster.nodes[1]
        (relay,) = second.processes("import json,sys")
        second.kill(relay.pid, signal.SIGSTOP)
        wait_until(lambda: nodes[1].connected not in (None, first[1]), 30)
        assert nodes[0].connected == first[0]
        wait_until(lambda: nodes[1].silent_seconds() < 1, 10)


# Waits for signals, counts what comes within two seconds of the first, and says how many came.
COUNT = """
import os, select, signal, sys, time
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGTERM, lambda *_: None)
print("up", flush=True)
select.select([reader], [], [])
time.sleep(2)
print("told", len(os.read(reader, 99)), flush=True)
sys.exit(130)
"""


# What podman takes as it is written.
RIGHTS: dict[str, Any] = {
    "privileged": True, "cap_add": ("SYS_PTRACE",), "security_opt": ("seccomp=unconfined",), "group_add": ("44",),
}  # fmt: skip


def test_who_is_told_to_end_is_told_once(make_programs: Callable[..., Programs]) -> None:
    programs = make_programs(3)
    contained = in_container(
        python(COUNT), Container(image=IMAGE, environment={"HF_TOKEN": "some"}, pull="never", **RIGHTS),
        runtime="podman", name="seatrial-count", run="run", mounts=(str(ROOT),),
    )  # fmt: skip
    below_a_shell = Command(argv=("sh", "-c", '"$@"; exit', "sh", *python(COUNT).argv))

    def interrupt(progress: Progress) -> None:
        logs = [path.read_text() for path in programs.person.out.glob("nodes/*/rank*.log")]
        if logs == ["up\n"] * 3 and progress.ending is None:
            os.kill(os.getpid(), signal.SIGINT)

    ending = programs.run(contained, python(COUNT), below_a_shell, on_progress=interrupt)
    assert ending.reason == "interrupted"
    assert programs.logs() == [b"up\ntold 1\n"] * 3
    assert nothing_is_left(programs.person.cluster)
    assert programs.person.cluster.nodes[0].run(["podman", "ps", "--all", "--quiet"]).stdout == ""
