"""A launcher's conclusions from what the agents report: pure functions over statuses."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from seatrial.launch.deadlines import Deadlines, deadlines_for
from seatrial.launch.ending import conclude, judge, overdue, with_stopped
from seatrial.launch.progress import Ending, Progress, status_of
from seatrial.node.agent import PEER_LOST, SETTLE_SECONDS
from seatrial.node.processes import describe_exit
from seatrial.spec import Checkpoint, Container, Evaluation, Expectation, Logging, Objective
from seatrial.spec.presets import MODELS
from tests.helpers.streams import make_spec

NOW = 1000.0


def process(rank: int, **fields: Any) -> dict[str, Any]:
    """One process of an agent's status; running, unless said otherwise."""
    given = {
        "rank": rank, "state": "running", "exit_code": None, "signal": None, "stopped": False, "suspended": False,
        "ended": None, "last_step": None, "last_line": "", "sentence": None, **fields,
    }  # fmt: skip
    if given["state"] == "exited":
        given["sentence"] = describe_exit(given["exit_code"], given["signal"])
    return given


def done(rank: int, exit_code: int | None = 0, **fields: Any) -> dict[str, Any]:
    return process(rank, state="exited", exit_code=exit_code, **{"ended": NOW - 10, **fields})


def progress(*hosts: list[dict[str, Any]], ended: bool = False, stop_reason: str | None = None) -> Progress:
    """A progress of a run of 10 steps over hosts h0, h1, …"""
    state = {"state": "ended" if ended else "running", "stop_reason": stop_reason}
    seen = Progress(planned_steps=10, started=NOW - 100)
    seen.see({f"h{i}": {**state, "processes": processes} for i, processes in enumerate(hosts)}, NOW)
    return seen


def test_a_run_goes_on_while_its_processes_do() -> None:
    assert conclude(progress([process(0)], [process(1)]), NOW) is None
    assert conclude(progress([done(0)], [process(1)]), NOW) is None
    assert conclude(progress([done(0)], [done(1)]), NOW) is None  # the agents may still find somebody
    assert conclude(Progress(planned_steps=10), NOW) is None


def test_a_run_is_complete_when_all_ended_well() -> None:
    assert conclude(progress([done(0)], [done(1)], ended=True), NOW) == Ending(reason="completed", exit_code=0)


def test_a_run_is_not_complete_while_nothing_has_been_heard_of_a_host() -> None:
    seen = progress([done(0)], [done(1)], ended=True)
    seen.see({**seen.statuses, "h2": None}, NOW)
    assert conclude(seen, NOW) is None
    assert overdue(seen, LIMITS, seen.started + 59) is None
    late = overdue(seen, LIMITS, seen.started + 61)
    assert "no agent has reported on h2" in str(late)
    seen.unreached = {"h2": "h2: its python3 printed nothing: check that the image has python3"}
    late = overdue(seen, LIMITS, seen.started + 61)
    assert str(late).endswith("; h2: its python3 printed nothing: check that the image has python3")


def test_the_culprit_is_found_across_hosts() -> None:
    killed = done(1, None, signal=9, ended=NOW - 3, last_line="the last words")
    victim = done(0, PEER_LOST, ended=NOW - 2.9)
    ending = conclude(progress([victim], [killed]), NOW)
    assert ending is not None
    assert (ending.reason, ending.exit_code) == ("died", 137)
    (fault,) = ending.faults
    assert (fault.fault, fault.where, fault.process) == ("process_died", "rank 1 on h1", -1)
    assert fault.text.startswith("rank 1 on h1 was ended by SIGKILL (9)")
    assert fault.text.endswith("its last line: the last words")


@pytest.mark.parametrize("code", [2, 125, 126, 127])
def test_what_has_taken_steps_was_started(code: int) -> None:
    early = conclude(progress([done(0, code)], [process(1)]), NOW)
    late = conclude(progress([done(0, code)], [process(1, last_step=3)]), NOW)
    assert early is not None
    assert late is not None
    assert (early.reason, early.faults[0].fault) == ("could_not_run", "start_failed")
    assert (late.reason, late.faults[0].fault) == ("died", "process_died")


@pytest.mark.parametrize(
    ("engine", "code", "outlived", "last_step", "words"),
    [
        ("podman", 127, True, 3, ("after step 3", "(conmon)", "was still alive and was stopped")),
        ("podman", 127, True, None, ("before the first step", "was still alive and was stopped")),
        ("docker", 125, False, 3, ("(containerd-shim or dockerd)", "has died, or its fate is unknown")),
    ],
)
def test_a_container_engine_that_loses_its_container_is_named(
    engine: str, code: int, outlived: bool, last_step: int | None, words: tuple[str, ...]
) -> None:
    lost = done(0, code, contained=engine, outlived=outlived)
    ending = conclude(progress([lost], [process(1, last_step=last_step)]), NOW)
    assert ending is not None
    assert (ending.reason, ending.exit_code) == ("died", code)
    (fault,) = ending.faults
    assert (fault.fault, fault.where) == ("monitor_lost", "rank 0 on h0")
    assert fault.text.startswith(f"{engine} lost the container of rank 0 on h0 ")
    assert all(word in fault.text for word in words), fault.text


@pytest.mark.parametrize(("code", "kind"), [(125, "start_failed"), (127, "start_failed"), (1, "process_died")])
def test_a_container_that_ended_by_itself_has_a_monitor(code: int, kind: str) -> None:
    ending = conclude(progress([done(0, code, contained="podman", outlived=False)], [process(1)]), NOW)
    assert ending is not None
    assert ending.faults[0].fault == kind


def test_who_dies_because_a_rank_is_held_is_not_the_cause() -> None:
    aborted = done(0, None, signal=6)
    ending = conclude(progress([aborted], [process(1, suspended=True)]), NOW)
    assert ending is not None
    assert [(fault.fault, fault.where) for fault in ending.faults] == [
        ("no_progress", "rank 1 on h1"),
        ("peer_stopped", "rank 0 on h0"),
    ]
    seen = progress([aborted], [done(1, None, signal=15, stopped=True, paused=True)], ended=True)
    died = conclude(seen, NOW)
    assert died is not None
    assert died.reason == "died"
    paused = with_stopped(died, seen)
    assert (paused.reason, paused.faults[0].where) == ("no_progress", "rank 1 on h1")
    assert "its container was paused" in paused.faults[0].text


def test_a_symptom_waits_for_its_cause() -> None:
    assert conclude(progress([done(0, PEER_LOST, ended=NOW - 1)], [process(1)]), NOW) is None
    ending = conclude(progress([done(0, PEER_LOST, ended=NOW - 5)], [process(1)]), NOW)
    assert ending is not None
    assert ending.faults[0].where == "rank 0 on h0"


def test_a_symptom_waits_for_nothing_once_all_have_ended() -> None:
    ending = conclude(progress([done(0, PEER_LOST, ended=NOW + 90)], ended=True), NOW)
    assert ending is not None
    assert ending.exit_code == PEER_LOST


@pytest.mark.parametrize(("late", "culprit"), [({"h0": 5.0}, 134), ({"h0": 5.0, "h1": 5.0, "h2": 5.0}, 1), ({}, 1)])
def test_a_host_whose_clock_is_wrong_did_not_die_first(
    late: dict[str, float], culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its clock, the process on h0 died 4 s before the one on h1; h2 looks on."""
    seen = Progress(planned_steps=10)
    for moment in (0.0, 1.0, 2.0):
        monkeypatch.setattr("time.time", lambda moment=moment: NOW + moment + 0.2)
        statuses = {
            f"h{n}": {
                "state": "running",
                "stop_reason": None,
                "processes": processes,
                "heartbeat": NOW + moment - late.get(f"h{n}", 0),
            }
            for n, processes in enumerate(([done(0, 1, ended=NOW - 5)], [done(1, 134, ended=NOW - 1)], [process(2)]))
        }
        seen.see(statuses, moment)
    ending = conclude(seen, NOW + 2)
    assert ending is not None
    assert ending.exit_code == culprit


@pytest.mark.parametrize("exit_code", [2, 127])
def test_what_could_not_start_did_not_die(exit_code: int) -> None:
    ending = conclude(progress([done(0, exit_code)]), NOW)
    assert ending is not None
    assert (ending.reason, ending.faults[0].fault) == ("could_not_run", "start_failed")


def test_processes_that_an_agent_stopped_by_itself_did_not_complete() -> None:
    stopped = done(0, None, signal=15, stopped=True)
    ending = conclude(progress([stopped], ended=True, stop_reason="lease_expired"), NOW)
    assert ending is not None
    assert ending.reason == "interrupted"
    assert "lease_expired" in ending.faults[0].text


LIMITS = Deadlines(start_seconds=60, first_step_seconds=600, step_seconds=60, step_medians=10, shutdown_seconds=30)


def stepping(*, last: int, median: float = 1.0, state: str = "running") -> Progress:
    """A run that has come to step `last`, now, with steps of `median` seconds."""
    seen = progress([process(0, state=state, exit_code=0 if state == "exited" else None)])
    seen.last_step, seen.step_seen, seen.intervals = last, NOW, [median, median, 100 * median, median]
    return seen


@pytest.mark.parametrize(
    ("seen", "after", "limit"),
    [
        (Progress(planned_steps=10, started=NOW), "no agent has reported", 60),
        (progress([process(0)]), "no first step", 600 - 100),
        (stepping(last=3), "no step after step 3", 60),
        (stepping(last=3, median=20.0), "no step after step 3", 200),
        (stepping(last=9), "not all processes have ended after the last step", 30),
        (stepping(last=3, state="exited"), "not all processes have ended after rank 0 ended", 30),
    ],
)
def test_each_phase_has_its_deadline(seen: Progress, after: str, limit: float) -> None:
    assert overdue(seen, LIMITS, NOW + limit - 1) is None
    assert after in str(overdue(seen, LIMITS, NOW + limit + 1))


def seen_at(*moments: tuple[float, list[dict[str, Any]]]) -> Progress:
    """A run of 10 steps on one host, as it looked at some moments."""
    seen = Progress(planned_steps=10, started=0.0)
    for now, processes in moments:
        seen.see({"h0": {"state": "running", "stop_reason": None, "processes": processes}}, now)
    return seen


def test_the_time_to_end_counts_from_the_first_exit_not_from_a_step_long_before_it() -> None:
    left = done(1, last_step=2)
    seen = seen_at(
        (100.0, [process(0, last_step=2), process(1, last_step=2)]), (150.0, [process(0, last_step=2), left])
    )
    assert overdue(seen, LIMITS, 179.0) is None
    seen.see({"h0": {"state": "running", "stop_reason": None, "processes": [process(0, last_step=2), left]}}, 181.0)
    assert "after rank 1 ended for 31 s" in str(overdue(seen, LIMITS, 181.0))


def test_the_time_to_end_counts_from_the_last_step_if_that_came_after_the_first_exit() -> None:
    seen = seen_at(
        (100.0, [process(0, last_step=8), done(1, last_step=8)]), (120.0, [process(0, last_step=9), done(1)])
    )
    assert overdue(seen, LIMITS, 149.0) is None
    assert "after rank 1 ended for 31 s" in str(overdue(seen, LIMITS, 151.0))


def test_a_peer_that_leaves_in_a_long_step_is_no_lack_of_progress() -> None:
    now = time.time()
    left = done(1, PEER_LOST, last_step=2, ended=now)
    seen = seen_at(
        (100.0, [process(0, last_step=2), process(1, last_step=2)]), (150.0, [process(0, last_step=2), left])
    )
    assert judge(seen, [], {}, 0, LIMITS, 150.0) is None  # the cause may still show
    left["ended"] = now - SETTLE_SECONDS - 1
    ending = judge(seen, [], {}, 0, LIMITS, 153.0)
    assert ending is not None
    assert (ending.reason, ending.exit_code, ending.faults[0].where) == ("died", PEER_LOST, "rank 1 on h0")


def test_the_pace_is_taken_from_the_steps_seen() -> None:
    seen = Progress(planned_steps=100)
    for now, step in ((0.0, None), (1.0, 0), (2.0, 0), (3.0, 1), (5.0, 5), (5.5, 4)):
        status = {"state": "running", "stop_reason": None, "processes": [process(0, last_step=step), process(1)]}
        seen.see({"h0": status}, now)
    assert (seen.last_step, seen.step_seen) == (5, 5.0)
    assert seen.intervals == [2.0, 0.5]


def test_a_run_that_evaluates_or_saves_is_given_time_for_it():
    spec = make_spec()
    usual = deadlines_for(spec)
    assert usual == replace(Deadlines(), slow_seconds=usual.slow_seconds)
    saving = deadlines_for(replace(spec, checkpoint=Checkpoint(enabled=True)))
    assert saving.step_seconds == usual.step_seconds  # it saves beside its steps
    assert saving.shutdown_seconds > usual.shutdown_seconds
    assert saving.grace_seconds > usual.grace_seconds
    blocking = Checkpoint(enabled=True, asynchronous=False)
    for changes in ({"evaluation": Evaluation(interval_steps=10)}, {"checkpoint": blocking}):
        assert deadlines_for(replace(spec, **changes)).step_seconds > 10 * usual.step_seconds


def test_steps_of_which_nothing_is_known_may_take_as_long_for_each_that_is_not_logged() -> None:
    """As with Megatron's `--log-interval`, whose default is 100, on devices that nobody names."""
    limits = deadlines_for(make_spec(steps=450, device=None, logging=Logging(interval_steps=100)))
    seen = seen_at((0.0, [process(0)]))
    seen.planned_steps = 450
    assert overdue(seen, limits, 2000.0) is None  # steps of 20 s
    assert "no first step" in str(overdue(seen, limits, 5900.0))
    seen.last_step, seen.step_seen = 100, 2000.0
    assert overdue(seen, limits, 4000.0) is None
    seen.intervals = [0.1]
    assert "no step after step 100" in str(overdue(seen, limits, 2102.0))  # the pace is known by now
    seen.last_step, seen.step_seen, seen.intervals = 400, 8000.0, [20.0]
    assert overdue(seen, limits, 8000.0 + 10 * 100 * 20 + 29) is None  # and the end, which is not logged
    short = deadlines_for(make_spec(steps=5, device=None, logging=Logging(interval_steps=100)))
    assert short.first_step_seconds == Deadlines().first_step_seconds


def test_an_evaluation_may_take_as_long_as_its_batches() -> None:
    """Megatron evaluates 100 batches by default, and at the end as many of validation and of test data."""
    spec = make_spec(steps=500)
    limits = deadlines_for(replace(spec, evaluation=Evaluation(interval_steps=100, batches=100)))
    seen = seen_at((0.0, [process(0, last_step=250)]))
    seen.planned_steps, seen.intervals = 500, [20.0]
    assert overdue(seen, limits, 1600.0) is None
    assert "no step after step 250" in str(overdue(seen, limits, 1700.0))
    seen.last_step = 499
    assert overdue(seen, limits, 2600.0) is None
    assert "after the last step" in str(overdue(seen, limits, 2700.0))
    seen.intervals = [0.05]  # quick steps have quick evaluations
    assert "after the last step" in str(overdue(seen, limits, 700.0))
    whole = deadlines_for(replace(spec, evaluation=Evaluation(interval_steps=100)))
    assert whole.evaluation_steps > limits.evaluation_steps


def test_what_a_run_does_before_its_first_step_is_given_time() -> None:
    spec = make_spec(steps=1000, device=None)
    usual = deadlines_for(spec).first_step_seconds
    dpo = deadlines_for(replace(spec, objective=Objective(kind="dpo")))  # the reference model sees all data first
    assert dpo.first_step_seconds > usual + 1000 * dpo.slow_seconds / 3
    first = deadlines_for(replace(spec, evaluation=Evaluation(interval_steps=100, initial_batches=50)))
    assert first.first_step_seconds > usual + 50 * first.slow_seconds / 3
    for pull, more in (("always", 1800), ("missing", 1800), ("never", 0), (None, 0)):
        pulling = replace(spec, container=Container(image="jax:1", pull=pull))
        assert deadlines_for(pulling).first_step_seconds == usual + more


def test_a_run_of_which_slow_steps_are_expected_is_given_time_for_them() -> None:
    """By its targets, by its device, and by how often it logs."""
    spec = make_spec()
    tokens = spec.tokens_per_step / spec.topology.num_devices
    targets = (Expectation(metric="tokens_per_second_per_device", value=tokens / 120),)
    assert deadlines_for(replace(spec, expectations=targets)).step_seconds == pytest.approx(1200)
    rarely = deadlines_for(replace(spec, expectations=targets, logging=Logging(interval_steps=5)))
    assert (rarely.step_seconds, rarely.step_medians) == (pytest.approx(6000), 50)
    batch = replace(spec.batch, sequence_length=8192)
    large = replace(spec, model=MODELS["llama3.1-405b"], batch=batch)
    assert deadlines_for(large).step_seconds > deadlines_for(spec).step_seconds


def judged(seen: Progress, silent: dict[str, float]) -> Ending | None:
    return judge(seen, [], silent, 0, Deadlines(), NOW)


def test_a_silent_host_is_lost_once_the_others_stand_still() -> None:
    seen = progress([process(0, last_step=3)], [process(1, last_step=3)])
    seen.step_seen = NOW - 25
    assert judged(seen, {"h0": 0.5, "h1": 15}) is None
    ending = judged(seen, {"h0": 0.5, "h1": 21})
    assert ending is not None
    assert (ending.reason, ending.faults[0].fault, ending.faults[0].where) == ("died", "node_lost", "h1")
    seen.step_seen = NOW - 20.5  # a last step that was still under way
    again = judged(seen, {"h0": 0.5, "h1": 21})
    assert again is not None
    assert again.faults[0].where == "h1"
    seen.intervals = [30.0]  # steps take long
    assert judged(seen, {"h0": 0.5, "h1": 21}) is None
    seen.intervals = []
    seen.step_seen = NOW - 2  # the way to it is cut, but not for the others
    assert judged(seen, {"h0": 0.5, "h1": 300}) is None
    seen.step_seen = NOW - 25  # the way is cut to all of them: that is this end
    assert judged(seen, {"h0": 30, "h1": 30}) is None


def test_those_that_die_of_a_lost_host_are_not_blamed() -> None:
    seen = progress([done(0, None, signal=6, ended=NOW - 5)], [process(1, last_step=3)])
    seen.step_seen = NOW - 25
    assert judged(seen, {"h0": 0.5, "h1": 12}) is None
    ending = judged(seen, {"h0": 0.5, "h1": 21})
    assert ending is not None
    assert [fault.where for fault in ending.faults] == ["h1"]
    ending = judged(seen, {"h0": 0.5, "h1": 0.5})
    assert ending is not None
    assert ending.faults[0].where == "rank 0 on h0"


STATUS = {"state": "running", "stop_reason": None, "processes": [{**process(0), "started": 1.0, "lost_bytes": 0}]}


def test_a_status_that_an_agent_wrote_is_taken_as_it_is() -> None:
    assert status_of(json.dumps({**STATUS, "of_a_newer_version": 1})) == {**STATUS, "of_a_newer_version": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"processes": None}, {"processes": {}}, {"processes": [1]}, {"processes": [{}]}, {"state": 5},
        *({"processes": [{**STATUS["processes"][0], name: value}]}
          for name, value in (("rank", "x"), ("rank", True), ("last_step", "7"), ("last_line", None), ("ended", []))),
    ],
    ids=str,
)  # fmt: skip
def test_one_that_no_agent_wrote_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an agent's status"):
        status_of(json.dumps({**STATUS, **damage}))


@pytest.mark.parametrize(
    "text", ['{"state":"running"}', "[]", "5", "null", "", "{", "[" * 100_000], ids=lambda t: t[:9]
)
def test_so_is_what_is_not_even_like_one(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        status_of(text)
