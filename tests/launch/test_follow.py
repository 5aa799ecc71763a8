"""Following a job from its start to its end: when it is stopped, pressed, given up and over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial import events
from seatrial.errors import LaunchError
from seatrial.launch.deadlines import BROKEN_SECONDS, Deadlines
from seatrial.launch.follow import COPY_SECONDS, GONE_SECONDS, Following, Interrupts, Node, follow
from seatrial.launch.launcher import supervise
from seatrial.launch.progress import Ending, Progress, Status

LIMITS = Deadlines(start_seconds=60, lost_seconds=20, deaf_seconds=600, grace_seconds=5)
IN_ORDER = LIMITS.stop_seconds("interrupted")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.began = self.now = time.monotonic()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def passed(self) -> float:
        return self.now - self.began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("seatrial.launch.follow.time.sleep", clock.sleep)
    return clock


class Host(Node):
    """A node with one process, which a test lets go on, end or fall silent; it keeps when it was asked to stop."""

    def __init__(self, clock: Clock, rank: int = 0, **how: Any) -> None:
        self.clock, self.rank, self.how = clock, rank, how
        self.stops: list[tuple[float, bool]] = []
        self.agent = "running"

    @property
    def name(self) -> str:
        return f"h{self.rank}"

    def status(self) -> Status | None:
        ended = self.agent == "ended"
        process = {
            "rank": self.rank, "state": "exited" if ended else "running",
            "exit_code": self.how.get("exit_code", 0) if ended else None, "signal": None, "stopped": bool(self.stops),
            "suspended": False, "started": 0.0, "ended": 1.0 if ended else None,
            "last_step": int(self.clock.passed), "last_line": "", "lost_bytes": 0, "sentence": None,
        }  # fmt: skip
        return {"state": self.agent, "stop_reason": None, "processes": [process]}

    def agent_ended(self) -> bool:
        if self.clock.passed >= self.how.get("ends_at", float("inf")):
            self.agent = "ended"
        return self.agent == "ended"

    def stop(self, *, now: bool) -> None:
        self.stops.append((self.clock.passed, now))
        if now and self.how.get("can_be_stopped", True):
            self.agent = "ended"

    def uncopied(self) -> str:
        return str(self.how.get("uncopied", ""))

    def now(self) -> float:
        return self.clock.now

    def silent_seconds(self) -> float:
        return max(0.0, self.clock.passed - self.how.get("silent_from", float("inf")))


def followed(*hosts: Host, interrupts: Interrupts | None = None, watch: Callable[[], None] | None = None) -> Ending:
    def on_progress(progress: Progress) -> None:
        if watch:
            watch()

    return follow(
        hosts, planned_steps=10_000, deadlines=LIMITS, interrupts=interrupts or Interrupts(), on_progress=on_progress
    )


def test_a_job_that_completes_is_not_stopped(clock: Clock) -> None:
    hosts = [Host(clock, rank, ends_at=5 + rank) for rank in range(2)]
    assert followed(*hosts) == Ending(reason="completed", exit_code=0)
    assert [host.stops for host in hosts] == [[], []]
    assert clock.passed == pytest.approx(6, abs=0.5)


def test_an_interrupt_stops_in_order_and_presses_when_the_grace_is_over(clock: Clock) -> None:
    host, interrupts = Host(clock), Interrupts()
    interrupts.count = 1
    assert followed(host, interrupts=interrupts).reason == "interrupted"
    assert host.stops == [(0, False), (pytest.approx(IN_ORDER, abs=0.5), True)]


def test_a_second_interrupt_presses_at_once(clock: Clock) -> None:
    host, interrupts = Host(clock), Interrupts()

    def watch() -> None:
        interrupts.count = 1 if clock.passed < 3 else 2

    assert followed(host, interrupts=interrupts, watch=watch).reason == "interrupted"
    assert host.stops == [(pytest.approx(0, abs=0.5), False), (pytest.approx(3, abs=0.5), True)]


def test_a_host_that_cannot_be_stopped_is_named(clock: Clock) -> None:
    host, interrupts = Host(clock, can_be_stopped=False), Interrupts()
    interrupts.count = 1
    assert followed(host, interrupts=interrupts).left == ("h0",)
    assert [now for _, now in host.stops] == [False, True]
    assert clock.passed == pytest.approx(IN_ORDER + GONE_SECONDS, abs=0.5)


def test_while_all_hosts_are_silent_nothing_is_overdue_and_then_they_are_left_alone(clock: Clock) -> None:
    host = Host(clock, silent_from=10)
    with pytest.raises(LaunchError, match=r"silent for 600 s.*seatrial attach"):
        followed(host)
    assert host.stops == []


def test_a_host_that_is_lost_stops_the_others_soon(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, other = Host(clock, 0, silent_from=5), Host(clock, 1)
    monkeypatch.setattr(Host, "status", lambda host: {**_status(host), "processes": [_still(host)]})
    ending = followed(lost, other)
    assert (ending.faults[0].fault, ending.faults[0].where) == ("node_lost", "h0")
    (asked, _), (pressed, now) = other.stops
    assert now
    assert pressed - asked == pytest.approx(BROKEN_SECONDS, abs=0.5)


_status = Host.status


def _still(host: Host) -> dict[str, Any]:
    """Its process, which takes no step after the third."""
    status = _status(host)
    assert status is not None
    return {**status["processes"][0], "last_step": min(3, int(host.clock.passed))}


def test_a_run_that_is_over_waits_a_while_for_room_for_its_files(clock: Clock) -> None:
    host = Host(clock, ends_at=5, uncopied="no room")
    assert followed(host).reason == "completed"
    assert clock.passed == pytest.approx(5 + COPY_SECONDS, abs=0.5)


class Again:
    """A queue that puts the job back once: what ends at first is not final."""

    def __init__(self, clock: Clock, host: Host) -> None:
        self.clock, self.host = clock, host

    def waiting(self) -> bool:
        return 5 <= self.clock.passed < 300

    def refused(self) -> Ending | None:
        return None

    def final(self, ending: Ending) -> bool:
        return self.clock.passed > 300

    def explained(self, ending: Ending) -> Ending:
        return ending


def test_a_job_that_goes_back_into_its_queue_is_neither_over_nor_overdue(clock: Clock) -> None:
    host = Host(clock, ends_at=5)
    ending = follow(
        [host], planned_steps=10, deadlines=LIMITS, interrupts=Interrupts(), on_progress=lambda progress: None,
        queue=Again(clock, host),
    )  # fmt: skip
    assert ending.reason == "completed"
    assert clock.passed == pytest.approx(300, abs=1)


def test_a_host_that_could_not_be_asked_to_stop_is_named_where_the_trainer_says_how_it_ended(
    clock: Clock, tmp_path: Path
) -> None:
    (tmp_path / "launch").mkdir()
    writer = events.Writer(tmp_path / "events-0.jsonl")
    writer.write(events.RunEnded(process=0, reason="non_finite_loss", exit_code=4))
    writer.close()
    hosts = Host(clock, ends_at=5, exit_code=4), Host(clock, 1, silent_from=3, can_be_stopped=False)
    said: list[str] = []
    following = Following(LIMITS, lambda progress: None, said.append)
    ending = supervise(
        lambda: (hosts, None), tmp_path, following, name="run", planned_steps=100, root=tmp_path, detached=True
    )
    assert (ending.reason, ending.exit_code, ending.left) == ("non_finite_loss", 4, ("h1",))
    assert said == [f"could not be asked to stop: h1; retry: seatrial stop {tmp_path}"]
