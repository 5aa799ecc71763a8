"""The supervisor: who is blamed, who is stopped, what is kept of the output, and that nothing is left behind."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from seatrial.launch.ending import conclude
from seatrial.launch.progress import Progress
from seatrial.node.agent import PEER_LOST, SETTLE_SECONDS, blame
from tests.helpers.agents import AGENT, Agent
from tests.helpers.cluster.person import HOSTILE as TRAVELLING
from tests.helpers.processes import processes_with, wait_until

Start = Callable[..., Agent]

FOREVER = "import time; print('up'); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"


def up(agent: Agent, ranks: int) -> list[dict[str, Any]]:
    """Waits until every rank has written something; their statuses."""
    wait_until(lambda: all(agent.log(rank) for rank in range(ranks)))
    return wait_until(lambda: [p for p in agent.ranks() if p["pid"]])  # type: ignore[no-any-return]


def test_a_job_that_ends_well(start_agent: Start, mark: str) -> None:
    agent = start_agent(["print('one')", "print('two', end='')"])
    assert agent.wait() == 0
    status = agent.status()
    assert (status["state"], status["stop_reason"], status["first_exit"]) == ("ended", None, None)
    assert [p["exit_code"] for p in status["processes"]] == [0, 0]
    assert [p["state"] for p in status["processes"]] == ["exited", "exited"]
    assert (agent.log(0), agent.log(1)) == (b"one\n", b"two")
    assert [p["log_bytes"] for p in status["processes"]] == [4, 3]
    assert processes_with(mark) == []


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 100 MB."""
    first = Path("/sys/fs/cgroup/memory")  # of the first kind
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
    folder = parent / f"seatrial-test-agent-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text("100M")
    except OSError as error:
        pytest.skip(f"needs control groups of memory: {error}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text().split())
    folder.rmdir()


GREEDY = "print('up'); held = [bytearray(1 << 20) for _ in range(1000)]"


def test_a_process_that_the_kernel_killed_for_its_groups_memory(start_agent: Start, small_group: Path) -> None:
    agent = start_agent([GREEDY, FOREVER], group=small_group)
    assert agent.wait() == 1
    greedy, peer = agent.ranks()
    assert greedy["sentence"].startswith("was ended by SIGKILL (9) (out of memory: ")
    assert (greedy["memory_kills"], peer["memory_kills"]) == (1, 0)
    progress = Progress(planned_steps=10)
    progress.see({"node1": agent.status()}, time.monotonic())
    ending = conclude(progress, time.time())
    assert ending is not None
    assert [fault.fault for fault in ending.faults] == ["host_oom"]


def test_a_killed_process_is_the_culprit_and_its_peers_are_stopped(start_agent: Start, mark: str) -> None:
    agent = start_agent([FOREVER, DEAF, FOREVER])
    ranks = up(agent, 3)
    killed = time.monotonic()
    os.kill(ranks[0]["pid"], signal.SIGKILL)
    assert agent.wait() == 1
    assert time.monotonic() - killed < 10
    status = agent.status()
    assert status["stop_reason"] == "process_failed"
    assert (status["first_exit"]["rank"], status["first_exit"]["signal"]) == (0, signal.SIGKILL)
    assert "SIGKILL (9)" in status["first_exit"]["sentence"]
    assert [(p["signal"], p["stopped"]) for p in status["processes"]] == [(9, False), (9, True), (15, True)]
    assert processes_with(mark) == []


def test_a_symptom_waits_for_its_cause(start_agent: Start) -> None:
    agent = start_agent(
        [f"raise SystemExit({PEER_LOST})", "import time; time.sleep(0.7); raise SystemExit(3)", FOREVER]
    )
    assert agent.wait() == 1
    assert agent.status()["first_exit"]["rank"] == 1


def test_a_symptom_without_a_cause_is_blamed_in_the_end(start_agent: Start) -> None:
    agent = start_agent([f"raise SystemExit({PEER_LOST})", FOREVER])
    assert agent.wait() == 1
    assert agent.status()["first_exit"]["rank"] == 0


def test_two_that_die_at_once_are_both_recorded(start_agent: Start, mark: str) -> None:
    agent = start_agent([FOREVER, FOREVER])
    for rank in up(agent, 2):
        os.kill(rank["pid"], signal.SIGKILL)
    assert agent.wait() == 1
    status = agent.status()
    assert [p["signal"] for p in status["processes"]] == [9, 9]
    assert status["first_exit"]["rank"] in (0, 1)
    assert processes_with(mark) == []


def test_what_cannot_be_started_is_said_and_stops_the_rest(start_agent: Start, tmp_path: Path, mark: str) -> None:
    program = {"rank": 0, "argv": [str(tmp_path / "absent"), mark], "cwd": None, "log": str(tmp_path / "rank0.log")}
    running = {**program, "rank": 1, "argv": [sys.executable, "-c", FOREVER, mark], "log": str(tmp_path / "rank1.log")}
    agent = start_agent([], processes=[program, running])
    assert agent.wait() == 1
    first = agent.status()["first_exit"]
    assert (first["rank"], first["state"], first["exit_code"]) == (0, "unstartable", 127)
    assert b"could not start" in agent.log(0)
    assert b"absent" in agent.log(0)
    assert processes_with(mark) == []


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop file"])
def test_it_stops_when_told(start_agent: Start, tmp_path: Path, mark: str, how: str) -> None:
    agent = start_agent([FOREVER, DEAF])
    up(agent, 2)
    if how == "stop file":
        (tmp_path / "stop").touch()
    else:
        agent.process.send_signal(getattr(signal, how))
    assert agent.wait() == 1
    status = agent.status()
    assert status["stop_reason"] == how.replace(" ", "_")
    assert status["first_exit"] is None
    assert all(p["stopped"] for p in status["processes"])
    assert processes_with(mark) == []


def test_told_twice_it_does_not_wait(start_agent: Start) -> None:
    agent = start_agent([DEAF], grace_seconds=60)
    up(agent, 1)
    agent.process.send_signal(signal.SIGTERM)
    wait_until(lambda: agent.status()["state"] == "stopping")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(5) == 1


def test_a_suspended_process_is_seen_and_stopped(start_agent: Start, mark: str) -> None:
    agent = start_agent([FOREVER], grace_seconds=30)
    os.kill(up(agent, 1)[0]["pid"], signal.SIGSTOP)
    wait_until(lambda: agent.ranks()[0]["suspended"])
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 1
    assert processes_with(mark) == []


def test_what_somebody_has_paused_is_woken_before_it_is_told_to_end(start_agent: Start, tmp_path: Path) -> None:
    """As the engines do: what wakes fails where nothing was paused, and what clears away may fail at first."""
    order = tmp_path / "order"
    program = f"import signal, sys, time\nsignal.signal(15, lambda *_: open({str(order)!r}, 'a').write('told\\n'))\n"
    program += "print('up', flush=True)\nsignal.pause()"

    def held(rank: int) -> dict[str, Any]:
        wake = f"echo wake {rank} >> {order}; exit {rank}"
        clear = f"echo after {rank} >> {order}; mkdir {tmp_path}/failed{rank} && exit 1; exit 0"
        return {
            "rank": rank, "argv": [sys.executable, "-c", program], "log": str(tmp_path / f"rank{rank}.log"),
            "wake": [["sh", "-c", wake]], "after": [["sh", "-c", clear]],
        }  # fmt: skip

    agent = start_agent([], processes=[held(0), held(1)])
    up(agent, 2)
    (tmp_path / "stop").touch()
    agent.wait()
    lines = order.read_text().splitlines()
    assert lines == [*("wake 0", "wake 1", "told", "told"), *("after 0", "after 0", "after 1", "after 1")]
    assert [p["paused"] for p in agent.ranks()] == [True, False]


def test_an_expired_lease_stops_everything(start_agent: Start, tmp_path: Path, mark: str) -> None:
    lease = tmp_path / "lease"
    agent = start_agent([FOREVER], lease_seconds=1, lease_file=str(lease))
    for _ in range(20):  # twice the lease
        lease.touch()
        time.sleep(0.1)
    assert agent.status()["state"] == "running"
    assert agent.wait() == 1
    assert agent.status()["stop_reason"] == "lease_expired"
    assert processes_with(mark) == []


def test_killing_the_agent_kills_its_processes(start_agent: Start, mark: str) -> None:
    agent = start_agent([FOREVER, DEAF])
    up(agent, 2)
    agent.process.kill()
    agent.process.wait()
    wait_until(lambda: not processes_with(mark))


# A child that leaves its parent, its session and its group, and does not listen.
ESCAPE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("escaped", os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("end", ["", "time.sleep(600)"], ids=["after a good end", "while running"])
def test_a_grandchild_in_a_session_of_its_own_is_swept(start_agent: Start, mark: str, end: str) -> None:
    agent = start_agent([ESCAPE + end])
    wait_until(lambda: re.search(rb"escaped \d+\n", agent.log()))
    grandchild = int(agent.log().split()[1])
    if end:
        assert psutil.pid_exists(grandchild)
        agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == (1 if end else 0)
    assert agent.status()["left_behind"] == (0 if end else 1)
    assert not psutil.pid_exists(grandchild)
    assert processes_with(mark) == []


def test_a_flood_without_newlines_does_not_grow_the_agent(start_agent: Start) -> None:
    size = 50 << 20
    agent = start_agent(
        [f"import sys, time\nfor _ in range({size >> 16}): sys.stdout.buffer.write(b'x' * {1 << 16})\ntime.sleep(1)"]
    )
    wait_until(lambda: len(agent.log()) == size, 60)
    assert psutil.Process(agent.process.pid).memory_info().rss < 60 << 20
    assert agent.wait() == 0
    assert agent.ranks()[0]["log_bytes"] == size
    assert len(agent.ranks()[0]["last_line"]) <= 500


CHATTER = "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
SLOW = f"{32 * '*'}\n[Compiling module jit_step for CPU] Very slow compile? If you want to file a bug, …\n{32 * '*'}"


@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n", f"\n{SLOW}\n"])
def test_chatter_is_logged_but_is_no_evidence(start_agent: Start, end: str) -> None:
    output = f"the last words\n\n{CHATTER}{end}"
    agent = start_agent([f"import os; os.write(1, {output.encode()!r})"])
    assert agent.wait() == 0
    assert agent.log() == output.encode()
    assert agent.ranks()[0]["last_line"] == "the last words"


def test_any_bytes_are_kept_as_they_are(start_agent: Start, tmp_path: Path) -> None:
    garbage = random.Random(3).randbytes(300_000) + b"\r\x1b[2J\x00\xff\xfe no newline at the end"
    (tmp_path / "garbage").write_bytes(garbage)
    agent = start_agent(["import sys; sys.stdout.buffer.write(open('garbage', 'rb').read())"])
    assert agent.wait() == 0
    assert agent.log() == garbage
    assert agent.ranks()[0]["last_line"].endswith("no newline at the end")


def test_what_a_full_disk_swallows_is_counted(start_agent: Start, mark: str) -> None:
    program = {"rank": 0, "argv": [sys.executable, "-c", "print('x' * 1000)", mark], "log": "/dev/full"}
    agent = start_agent([], processes=[program])
    assert agent.wait() == 0
    assert (agent.ranks()[0]["log_bytes"], agent.ranks()[0]["lost_bytes"]) == (0, 1001)


HOSTILE = [
    "$(touch {0})", "`touch {0}`", "; touch {0} #", "| touch {0}", "&& touch {0}", "> {0}", "'; touch {0}; '",
    '"; touch {0}; "', "line\nbreak\ntouch {0}", "-rf", "--", "", " ", "*", "~", "\\", "%s%n", "\x1b]0;x\x07",
    "ünïcödé", "\udcff\udc80 not UTF-8", "${{HOME}}", "!!", "{{}}", "\t\r\v",
]  # fmt: skip


def test_hostile_values_arrive_byte_for_byte(start_agent: Start, tmp_path: Path, mark: str) -> None:
    touched = tmp_path / "touched"
    values = [value.replace("{0}", str(touched)) for value in HOSTILE] + list(TRAVELLING.values())
    show = "import os, sys; print(ascii([sys.argv[1:-1], [os.environ[f'V{i}'] for i in range(len(sys.argv) - 2)]]))"
    program = {
        "rank": 0,
        "argv": [sys.executable, "-c", show, *values, mark],
        "environment": {f"V{i}": value for i, value in enumerate(values)},
        "log": str(tmp_path / "rank0.log"),
    }
    agent = start_agent([], processes=[program])
    assert agent.wait() == 0
    assert agent.log().decode().strip() == ascii([values, values])
    assert not touched.exists()
    assert not Path("/tmp/executed").exists()


def test_steps_are_read_from_the_output(start_agent: Start) -> None:
    # In pieces, so that a line arrives in two reads; the last one without its newline.
    agent = start_agent(
        [
            "import time\n"
            "print('completed step: 1, loss', end='', flush=True); time.sleep(0.3); print(' 2')\n"
            "print('x' * 200_000, 'completed step: 7'); print('he said: completed step: 8')\n"
            "time.sleep(0.5); print('completed step: 41', end='')"
        ],
        step_pattern=r"^completed step: (\d+)",
    )
    wait_until(lambda: agent.ranks() and agent.ranks()[0]["last_step"] == 1)
    assert agent.wait() == 0
    assert agent.ranks()[0]["last_step"] == 41


def test_its_heart_beats_while_nothing_happens(start_agent: Start) -> None:
    agent = start_agent([FOREVER])
    up(agent, 1)
    beats = {agent.status()["heartbeat"] for _ in range(25) if time.sleep(0.1) is None}
    assert len(beats) >= 2
    assert time.time() - max(beats) < 2


def test_a_job_of_another_version_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"v": 2, "directory": str(tmp_path), "processes": []}))
    done = subprocess.run([sys.executable, str(AGENT), str(job)], capture_output=True, text=True, check=False)
    assert (done.returncode, "version 1" in done.stderr) == (1, True)


def failure(rank: int, ended: float, exit_code: int | None = None, signal_number: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "ended": ended, "exit_code": exit_code, "signal": signal_number}


@pytest.mark.parametrize(
    ("exits", "now", "culprit"),
    [
        pytest.param([], 0.0, None, id="nobody failed"),
        pytest.param([failure(0, 1.0, 1)], 1.0, 0, id="the only one"),
        pytest.param([failure(0, 1.5, 1), failure(1, 1.0, 1)], 2.0, 1, id="the first"),
        pytest.param([failure(0, 1.0, 134), failure(1, 1.04, None, 9)], 2.0, 1, id="at once: the one killed"),
        pytest.param([failure(0, 1.0, 134), failure(1, 1.5, None, 9)], 2.0, 0, id="later: not even the one killed"),
        pytest.param([failure(0, 1.0, PEER_LOST)], 1.5, None, id="a symptom waits"),
        pytest.param([failure(0, 1.0, PEER_LOST)], 1.0 + SETTLE_SECONDS, 0, id="a symptom alone"),
        pytest.param([failure(0, 1.0, PEER_LOST), failure(1, 1.8, 1)], 1.9, 1, id="a symptom before its cause"),
        pytest.param([failure(0, 1.0, PEER_LOST), failure(1, 0.9, PEER_LOST)], 9.0, 1, id="symptoms only: the first"),
    ],
)
def test_blame(exits: list[dict[str, Any]], now: float, culprit: int | None) -> None:
    for order in itertools.permutations(exits):
        found = blame(order, now)
        assert (found and found["rank"]) == culprit
