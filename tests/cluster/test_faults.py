"""Faults during a run over SSH, on nodes with real daemons: each is named in time, and nothing is left of the run."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from seatrial.engines import DEFAULT_PORT
from seatrial.launch.transports import TRANSPORTS
from tests.helpers.cluster import faults
from tests.helpers.cluster.image import IMAGE
from tests.helpers.cluster.nodes import Node
from tests.helpers.cluster.person import STEP_SECONDS, Person, files_with, nothing_is_left, over, trainers
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HANG_SECONDS = STEP_SECONDS + 2  # of a run whose steps take no time


def containers(node: Node) -> list[str]:
    return node.run(["podman", "ps", "--all", "--format", "{{.Names}}"]).stdout.split()


def by_podman(node: Node) -> None:
    (name,) = containers(node)
    node.run(["podman", "kill", name])


def by_its_first_process(node: Node) -> None:
    (name,) = containers(node)
    node.kill(int(node.run(["podman", "inspect", "--format", "{{.State.Pid}}", name]).stdout))


@pytest.mark.parametrize("kill", [by_podman, by_its_first_process])
def test_a_container_that_is_killed_is_named_and_its_peers_end(
    make_person: Callable[..., Person], kill: Callable[[Node], None]
) -> None:
    person = make_person(3)
    nodes, token = person.cluster.nodes, "canary-of-a-container"
    config = person.endless(nodes=3, container={"image": IMAGE, "environment": {"HF_TOKEN": token}})
    run = person.start(*person.on_hosts(config, "--container", "podman"))
    person.wait_for_steps(run, 2)
    kill(nodes[1])
    killed = time.time()
    wait_until(lambda: not any(map(trainers, nodes)), 10)
    code, told = over(run)
    assert (code, person.first_fault()) == (4, ("process_died", f"rank 1 on {nodes[1].address}")), told
    assert person.faults()[0]["wall_time"] - killed <= 2
    assert f"rank 1 on {nodes[1].address} ended as if by SIGKILL" in " ".join(told.split())
    assert nothing_is_left(person.cluster)
    assert [containers(node) for node in nodes] == [[], [], []]
    assert [files_with(node, token) for node in nodes] == ["", "", ""]


def test_a_link_that_loses_what_goes_one_way_is_found_by_the_steps_that_do_not_come(
    make_person: Callable[..., Person],
) -> None:
    person = make_person(3, containers=False)
    person.impatient = True
    _, second, third = person.cluster.nodes
    run = person.begin()
    with faults.dropped_from(third, second):
        code, told = over(run, 200)
    (fault, *_) = person.faults()
    steps = (json.loads(line) for line in (person.out / "events-0.jsonl").read_text().splitlines())
    last = max(event["wall_time"] for event in steps if event["kind"] == "step")
    assert fault["wall_time"] - last <= HANG_SECONDS
    assert (code, fault["fault"], fault["where"]) == (5, "no_progress", "all ranks"), told
    wait_until(lambda: nothing_is_left(person.cluster), 30)


def test_a_way_that_is_cut_to_all_hosts_ends_no_run(make_person: Callable[..., Person]) -> None:
    person = make_person(1, containers=False)
    person.impatient = True
    (node,) = person.cluster.nodes
    config = person.endless(nodes=1)
    run = person.start(*person.on_hosts(config))
    person.wait_for_steps(run, 2)
    with faults.sshd_stopped(node):
        node.drop_sessions()
        time.sleep(HANG_SECONDS + 15)
        assert run.poll() is None, over(run)
    seen = person.last_step()
    wait_until(lambda: person.last_step() > seen or run.poll() is not None, 60)
    assert run.poll() is None, over(run)
    with faults.sshd_stopped(node):
        node.drop_sessions()
        time.sleep(25)
        run.send_signal(signal.SIGINT)
        code, told = over(run)
    words = " ".join(told.split())
    assert code == 130, told
    assert words.count(f"nothing is heard from {node.address}; waiting") == 2, told
    assert words.count("all hosts are heard again") == 1
    assert f"could not be asked to stop: {node.address}; retry: seatrial stop" in words
    assert trainers(node)
    assert person.run("stop", person.out)[0] == 0
    wait_until(lambda: nothing_is_left(person.cluster), 60)


def port_taken(person: Person) -> tuple[AbstractContextManager[None], Node]:
    first = person.cluster.nodes[0]
    return faults.port_taken(first, DEFAULT_PORT), first


def image_missing(person: Person) -> tuple[AbstractContextManager[None], Node]:
    second = person.cluster.nodes[1]
    return faults.image_missing(second), second


def disk_full(person: Person) -> tuple[AbstractContextManager[None], Node]:
    third = person.cluster.nodes[2]
    return faults.disk_full(third, "/var/tmp"), third


@pytest.mark.parametrize(
    ("fault", "found", "code", "said"),
    [
        (port_taken, "port-taken", 3, f"the coordinator's port {DEFAULT_PORT} cannot be used"),
        (image_missing, "image-missing", 3, "ended with exit code 125"),
        (disk_full, "disk-full", 3, "/var/tmp/seatrial-root/again: No space left on device"),
    ],
)
def test_what_keeps_a_run_from_starting_is_found_before_or_named_by_the_run(
    make_person: Callable[..., Person],
    fault: Callable[[Person], tuple[AbstractContextManager[None], Node]],
    found: str,
    code: int,
    said: str,
) -> None:
    person = make_person(3)
    config = person.endless(nodes=3)
    happens, culprit = fault(person)
    with happens:
        exit_code, told = person.run(*person.on_hosts(config, "--container", "podman"))
        words = " ".join(told.split())
        assert exit_code == 3, told
        assert f"error[{found}] {culprit.address} why: " in words, told
        assert "nothing was started" in words
        assert nothing_is_left(person.cluster)
        person.out = person.out.with_name("again")
        exit_code, told = person.run(*person.on_hosts(config, "--container", "podman", "--no-preflight"))
    assert exit_code == code, told
    assert culprit.address in told
    assert said in " ".join(told.split()), told
    wait_until(lambda: nothing_is_left(person.cluster), 10)
    assert [containers(node) for node in person.cluster.nodes] == [[], [], []]


def test_a_disk_that_becomes_full_is_named_with_its_host(make_person: Callable[..., Person]) -> None:
    person = make_person(3, containers=False)
    third = person.cluster.nodes[2]
    run = person.begin()
    with faults.disk_full(third, "/var/tmp"):
        code, told = over(run, 200)
    assert code == 4
    assert person.first_fault() == ("process_died", f"rank 2 on {third.address}"), told
    assert "No space left on device" in told
    assert nothing_is_left(person.cluster)


@pytest.fixture
def make_person_with_a_small_disk(
    make_person: Callable[..., Person], tmp_path: Path
) -> Iterator[Callable[[int], Person]]:
    """Somebody whose run directory is on a disk of its own, which nothing else is on."""
    with ExitStack() as stack:
        disk = stack.enter_context(faults.small_disk(tmp_path / "disk", megabytes=24))

        def make(nodes: int) -> Person:
            person = make_person(nodes, containers=False)
            person.impatient = True
            person.out = disk / "run"
            stack.callback(person.cluster.__exit__)  # what writes there ends first
            return person

        yield make


STEPS = 8000  # a quick machine takes some seconds for them, longer than it takes to break something


def test_a_disk_that_is_full_here_for_a_while_costs_a_run_on_hosts_nothing(
    make_person_with_a_small_disk: Callable[[int], Person],
) -> None:
    person = make_person_with_a_small_disk(3)
    run = person.begin()
    (person.out / "events-0.jsonl").chmod(0o600)  # it is the file that goes on, not another
    with faults.filled(person.out.parent):
        seen = person.last_step()
        wait_until(lambda: person.last_step() > seen + 5 or run.poll() is not None, 60)
        copied = (person.out / "events-0.jsonl").stat().st_size
        time.sleep(HANG_SECONDS + 10)  # longer than a run may take no step
        assert run.poll() is None, over(run)
        assert (person.out / "events-0.jsonl").stat().st_size <= copied + 4096
    wait_until(lambda: (person.out / "events-0.jsonl").stat().st_size > copied + 8192, 60)
    run.send_signal(signal.SIGINT)
    code, told = over(run)
    words = " ".join(told.split())
    assert code == 130, told
    assert "what the hosts write cannot be copied here" in words
    assert "No space left on device, 0 KiB free: make room there" in words
    assert "all that the hosts have written is copied again" in words
    assert "could not be asked" not in words
    events = [json.loads(line) for line in (person.out / "events-0.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["kind"] == "step"]
    assert steps == list(range(len(steps)))
    assert person.ended_in_order(0)
    assert nothing_is_left(person.cluster)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.filled, "No space left on device, 0 KiB free: make room there"),
        (faults.read_only, "Read-only file system: mount it for writing again"),
        (faults.removed, "has been removed: put it back"),
    ],
    ids=["full", "read-only", "removed"],
)
def test_a_run_that_ends_while_nothing_can_be_written_here_is_judged_once_it_can(
    make_person_with_a_small_disk: Callable[[int], Person],
    fault: Callable[[Path], AbstractContextManager[None]],
    said: str,
) -> None:
    person = make_person_with_a_small_disk(1)
    run = person.start(*person.on_hosts(person.endless(nodes=1, steps=STEPS)))
    person.wait_for_steps(run, 2)
    with fault(person.out.parent):
        code, told = over(run, 200)
        words = " ".join(told.split())
        assert code == 3, told
        assert "the run is over (completed), but it is not judged, because not all that its hosts wrote" in words
        assert f"{said}; then: seatrial attach {person.out}" in words
        assert not list(person.out.parent.glob("run/verdict.json"))
        if fault is not faults.removed:
            code, told = person.run("judge", person.out)
            assert code == 2, told
            if fault is faults.filled:  # else even this could not be written
                assert f"seatrial attach {person.out}" in " ".join(told.split())
    code, told = person.run("attach", person.out)
    assert code == 0, told
    assert f"Completed all {STEPS:,} steps" in told
    assert nothing_is_left(person.cluster)


def test_a_disk_that_is_full_from_the_beginning_starts_nothing(
    make_person_with_a_small_disk: Callable[[int], Person],
) -> None:
    person = make_person_with_a_small_disk(1)
    config = person.endless(nodes=1)
    with faults.filled(person.out.parent):
        code, told = person.run(*person.on_hosts(config))
    assert code in (2, 3), told
    assert "No space left on device" in told
    assert "Traceback" not in told
    assert not person.cluster.nodes[0].path("/var/tmp/seatrial-root/run").exists()


def test_a_run_on_this_machine_that_fills_its_disk_has_died_of_that(
    make_person_with_a_small_disk: Callable[[int], Person],
) -> None:
    person = make_person_with_a_small_disk(1)
    run = person.start("run", person.endless(nodes=1), "--out", person.out)
    person.wait_for_steps(run, 2)
    with faults.filled(person.out.parent):
        code, told = over(run)
        words = " ".join(told.split())
        assert code == 3, told
        assert "the run is over (died: rank 0 on local0 " in words
        assert f"make room there; then: seatrial judge {person.out}" in words
    code, told = person.run("judge", person.out)
    assert code == 4, told
    assert "No space left on device" in told


def test_a_container_whose_monitor_is_killed_has_died_and_not_failed_to_start(
    make_person: Callable[..., Person],
) -> None:
    person = make_person(2)
    run = person.begin("--container", "podman", nodes=2)
    node = person.cluster.nodes[1]
    (monitor,) = [process.pid for process in node.processes("conmon") if process.argv[0].endswith("conmon")]
    node.kill(monitor)
    code, told = over(run)
    assert (code, person.first_fault()) == (4, ("monitor_lost", f"rank 1 on {node.address}")), told
    (fault, *_) = person.faults()
    assert f"podman lost the container of rank 1 on {node.address} after step " in fault["text"]
    assert "its monitor (conmon) was killed or died" in fault["text"]
    assert "the training in it was still alive and was stopped" in fault["text"]
    assert "could not be started" not in told
    assert nothing_is_left(person.cluster)
    assert [containers(node) for node in person.cluster.nodes] == [[], []]


@pytest.mark.parametrize("ends", ["by itself", "stop"])
def test_a_paused_container_is_named_and_not_left_behind(make_person: Callable[..., Person], ends: str) -> None:
    person = make_person(2)
    person.impatient = True
    run = person.begin("--container", "podman", nodes=2)
    node = person.cluster.nodes[1]
    (name,) = containers(node)
    node.run(["podman", "pause", name])
    if ends == "stop":
        assert person.run("stop", person.out)[0] == 0
    code, told = over(run, 200)
    if ends == "stop":
        assert code == 130, told
        assert person.ended_in_order(1), told
    else:
        assert (code, person.first_fault()) == (5, ("no_progress", f"rank 1 on {node.address}")), told
        assert "its container was paused" in " ".join(told.split())
    assert nothing_is_left(person.cluster)
    assert [containers(node) for node in person.cluster.nodes] == [[], []]


@pytest.mark.parametrize("when", ["before its directory is there", "while it looks at its hosts"])
def test_a_run_that_is_only_being_started_is_stopped(make_person: Callable[..., Person], when: str) -> None:
    person = make_person(2, containers=False)
    run = person.start(*person.on_hosts(person.endless(nodes=2)))
    if when == "while it looks at its hosts":
        wait_until(lambda: (person.out / "status.json").exists() or run.poll() is not None, 60)
    else:
        assert not person.out.exists()
    code, told = person.run("stop", person.out)
    assert code == 0, told
    code, told = over(run)
    assert code == 130, told
    assert json.loads((person.out / "status.json").read_text())["reason"] == "interrupted"
    assert nothing_is_left(person.cluster)


@contextmanager
def in_a_terminal(person: Person, *arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process in a terminal of its own, which is closed at the end, and what stands for its keys and screen."""
    terminal, inside = pty.openpty()
    _, argv, environment = person.command(*arguments)
    # Not in Python: JAX, which is loaded here, forbids to fork. Who started the tests may have ignored SIGHUP.
    logged_in = ["env", "--default-signal=HUP", "setsid", "--ctty", *argv]
    process = subprocess.Popen(logged_in, env=environment, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    over = threading.Event()

    def read() -> None:  # who does not read a terminal stops what writes to it
        with suppress(OSError):  # nobody has it open any more
            while not over.is_set():
                if select.select([terminal], [], [], 0.1)[0]:
                    os.read(terminal, 1 << 16)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, terminal
    finally:
        over.set()
        reader.join()
        os.close(terminal)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_closed_terminal_leaves_a_run_on_hosts_alone_and_ctrl_c_ends_it(
    make_person: Callable[..., Person], transport: str
) -> None:
    person = make_person(1, containers=False)
    (node,) = person.cluster.nodes
    config = person.endless(nodes=1)
    with in_a_terminal(person, *person.on_hosts(config, "--ssh", transport)) as (first, _):
        wait_until(lambda: person.last_step() >= 2, 200)
    first.wait(20)
    seen = person.last_step()
    assert trainers(node)
    with in_a_terminal(person, "attach", person.out) as (again, terminal):
        wait_until(lambda: person.last_step() > seen, 60)
        os.write(terminal, b"\x03")
        assert again.wait(60) == 130
    assert person.ended_in_order(0)
    assert nothing_is_left(person.cluster)
