"""Metrics against an independent recount, and each rule of the record by itself."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence

import pytest

from seatrial import events, metrics, recording
from seatrial.metrics import show_ranges
from seatrial.spec import Batch, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers import streams
from tests.helpers.streams import START, falling, make_spec, rising, whole_run


def random_run(rng: random.Random) -> tuple[list[events.Step], int]:
    """Steps of one process in some attempts, with times, losses and norms that may be missing or not finite."""
    spec = make_spec(steps=rng.randrange(1, 120))
    made: list[events.Step] = []
    position, at = 0, 0.0
    for _ in range(rng.choice([1, 1, 2, 3])):
        last = rng.randrange(position, spec.steps)
        base = rng.uniform(0.05, 5)
        for number in range(position, last + 1):
            at += 10
            made.append(
                events.Step(
                    process=0, wall_time=START + at, monotonic_time=at, step=number,
                    seconds=rng.choice([None] + [base * rng.uniform(0.98, 1.02)] * 15),
                    loss=rng.choice([None, math.nan, math.inf] + [rng.uniform(1, 9)] * 30),
                    grad_norm=rng.choice([None, math.inf] + [rng.uniform(0.5, 2)] * 30),
                )
            )  # fmt: skip
        if last == 0:
            break
        position = rng.randrange(0, last)
    return made, spec.steps


def test_random_streams_against_a_recount() -> None:
    rng = random.Random(7)
    for _ in range(200):
        made, planned = random_run(rng)
        spec = make_spec(steps=planned)
        result = metrics.measure(made, spec)

        latest: dict[int, events.Step] = {}
        attempts: list[list[events.Step]] = [[]]
        for step in made:
            if attempts[-1] and step.step <= attempts[-1][-1].step:
                attempts.append([])
                latest = {number: s for number, s in latest.items() if number < step.step}
            attempts[-1].append(step)
            latest[step.step] = step
        record = [latest[number] for number in sorted(latest)]
        completion, numerics, times = result.completion, result.numerics, result.performance.step_times
        assert [a.num_steps for a in completion.attempts] == [len(a) for a in attempts]
        assert (completion.num_steps, completion.last_step) == (len(record), record[-1].step)
        assert completion.processes[0].missing_steps == ()

        losses = [s.loss for s in record if s.loss is not None]
        finite = [x for x in losses if math.isfinite(x)]
        bad = [s.step for s in record if s.loss is not None and not math.isfinite(s.loss)]
        assert numerics.num_losses == len(losses)
        assert numerics.min_loss == (min(finite) if finite else None)
        assert [n for first, last in numerics.non_finite_steps for n in range(first, last + 1)] == bad
        assert numerics.first_bad_step == (bad[0] if bad else None)

        timed = [[s for s in a if s.seconds] for a in attempts]
        enough = [a for a in timed if len(a) >= 10]
        complete = [a for a, all_steps in zip(timed, attempts, strict=True) if a and all_steps[-1].step == planned - 1]
        choices = [a for a in enough if a in complete], enough, complete, [a for a in timed if a]
        chosen = next((choice[-1] for choice in choices if choice), None)
        if chosen is None:
            assert times is None
            continue
        assert times is not None
        window = [s.seconds for s in chosen if s.step >= times.first_step and s.seconds]
        assert len(chosen) - len(window) >= min(3, len(chosen) // 2)
        assert 2 * len(window) >= len(chosen)
        assert times.n == len(window)
        assert times.median == pytest.approx(statistics.median(window))
        assert times.mad == pytest.approx(statistics.median(abs(s - times.median) for s in window))
        assert times.low <= times.median <= times.high
        if len(window) > 1:
            assert times.cv == pytest.approx(statistics.stdev(window) / statistics.mean(window))
        tokens = result.performance.estimates["tokens_per_second_per_device"].value
        assert tokens == pytest.approx(16 * 128 / times.median / 4)
        assert result.performance.tokens_per_second_total == pytest.approx(16 * 128 / times.median)


@pytest.mark.slow
def test_the_interval_holds_the_true_median() -> None:
    rng = random.Random(5)
    spec, hits = make_spec(steps=40), 0
    for _ in range(300):
        times = metrics.measure(streams.steps(spec, seconds=lambda _: rng.lognormvariate(0, 0.02)), spec).performance
        assert times.step_times is not None
        hits += times.step_times.low <= 1.0 <= times.step_times.high
    assert hits >= 0.92 * 300


def test_the_recipes_line() -> None:
    # NVIDIA's Llama-2-70B recipe on 64 H100 takes the last of 50 steps; all that is recorded here is that one.
    spec = make_spec(
        steps=50,
        model=MODELS["llama2-70b"],
        batch=Batch(sequence_length=4096, global_batch_size=128, micro_batch_size=2),
        topology=Topology(num_nodes=8, devices_per_node=8, device="h100"),
        precision=Precision(compute_dtype="bfloat16"),
    )
    line = [events.Step(step=49, seconds=7.908, tokens=524_288, loss=0.0)]
    speed = metrics.measure(line, spec, convention="non_causal").performance
    assert speed.tokens_per_second_total == pytest.approx(66298.43, abs=0.005)
    assert speed.sequences_per_second_total == pytest.approx(128 / 7.908)
    assert speed.days_to_1t_tokens == pytest.approx(174.5754, abs=5e-5)
    assert speed.estimates["tokens_per_second_per_device"].value == pytest.approx(1035.91, abs=0.005)
    assert speed.estimates["tflops_per_second_per_device"].value == pytest.approx(460.45, abs=0.005)
    assert speed.estimates["mfu"].value == pytest.approx(0.465576, abs=5e-7)  # exact; 46.54 % with FLOPs rounded
    assert speed.peak is not None
    assert speed.peak.flops_per_second == 989e12
    assert "H100" in speed.peak.source
    causal = metrics.measure(line, spec).performance
    assert causal.convention == "causal"
    assert causal.estimates["mfu"].value / speed.estimates["mfu"].value == pytest.approx(0.9638, abs=5e-5)


def test_warmup_is_left_out_until_the_step_time_settles() -> None:
    spec = make_spec(steps=40)
    compiling = {0: 20.0, 1: 0.01, 2: 3.0, 3: 2.0, 4: 1.0, 5: 0.8, 6: 0.7, 7: 0.6}
    times = metrics.measure(whole_run(spec, seconds=lambda n: compiling.get(n, 0.5)), spec).performance.step_times
    assert times is not None
    assert times.steady
    assert times.first_step == 6  # the first at which the median of five is 0.5
    assert (times.warmup, times.impossible) == (((0, 0), (2, 5)), ((1, 1),))
    assert (times.median, times.mad) == (0.5, 0.0)
    assert times.rule == (
        "Steps 6–39. Left out: the first 5 as warm-up (at least 3, until the median of 5 is within 3%, or one MAD, "
        "of the final one; never more than half); step 1, dispatched, but not done in that time."
    )


def test_noise_is_no_warmup() -> None:
    rng = random.Random(17)
    spec = make_spec(steps=80)
    for _ in range(50):
        times = metrics.measure(whole_run(spec, seconds=lambda n: rng.lognormvariate(0, 0.25)), spec).performance
        assert times.step_times is not None
        assert times.step_times.first_step <= 15


def test_a_step_time_that_never_settles_is_said_to() -> None:
    spec = make_spec(steps=40)
    times = metrics.measure(whole_run(spec, seconds=lambda n: 0.5 * 1.05**-n), spec).performance.step_times
    assert times is not None
    assert not times.steady
    assert times.n == 20
    assert "never became steady" in times.rule


def test_steps_with_a_checkpoint_or_an_evaluation_are_left_out() -> None:
    spec = make_spec(steps=40)
    run = whole_run(spec, seconds=lambda n: 4.0 if n in (11, 21) else 0.5)
    saved = [
        events.Checkpoint(wall_time=START + 12, action="save", step=10),
        events.Eval(wall_time=START + 17, step=20),
    ]
    times = metrics.measure(recording.merge([run, saved]), spec).performance.step_times
    assert times is not None
    assert times.disturbed == ((10, 11), (20, 21))
    assert times.p95 == 0.5
    assert "steps 10–11, 20–21, because of an evaluation or a checkpoint" in times.rule

    every_step = [events.Checkpoint(wall_time=START, action="save", step=n) for n in range(40)]
    times = metrics.measure(recording.merge([run, every_step]), spec).performance.step_times
    assert times is not None
    assert times.n == 37  # leaving all of them out would leave nothing


def test_a_restart_begins_an_attempt_and_replaces_what_it_repeats() -> None:
    spec = make_spec(steps=30)
    again = [streams.started(spec), *streams.steps(spec, last=19, loss=lambda n: math.nan if n > 15 else 5.0)]
    again += [streams.started(spec, at=100), *streams.steps(spec, first=10, seconds=lambda _: 0.25, at=110)]
    result = metrics.measure([*again, streams.ended()], spec)
    assert [(a.first_step, a.last_step) for a in result.completion.attempts] == [(0, 19), (10, 29)]
    assert result.completion.num_steps == 30
    assert result.numerics.num_non_finite == 0  # the NaNs were repeated
    assert result.performance.step_times is not None
    assert result.performance.step_times.attempt == 2
    assert result.performance.step_times.median == 0.25


def test_speed_comes_from_the_last_attempt_with_enough_steps() -> None:
    spec = make_spec(steps=30)
    run = [*streams.steps(spec, last=25), *streams.steps(spec, first=20, last=24, seconds=lambda _: 9.0, at=100)]
    times = metrics.measure(run, spec).performance.step_times
    assert times is not None
    assert times.attempt == 1


def test_a_line_that_comes_twice_counts_once() -> None:
    spec = make_spec(steps=30)
    once = streams.steps(spec)
    twice = [step for step in once for _ in range(2)]
    assert metrics.measure(twice, spec) == metrics.measure(once, spec)


def missing(run: Sequence[events.Event], spec: RunSpec) -> metrics.Ranges:
    return metrics.measure(run, spec).completion.processes[0].missing_steps


def test_missing_steps_are_listed_and_a_sparse_log_has_none() -> None:
    spec = make_spec(steps=30)
    holes = [step for step in streams.steps(spec) if step.step not in (0, 1, 7, 8, 20)]
    assert missing(holes, spec) == ((0, 1), (7, 8), (20, 20))
    every_fifth = [step for step in streams.steps(spec, first=1) if step.step % 5 == 0]
    assert missing(every_fifth, spec) == ()
    resumed = [events.Checkpoint(wall_time=START, action="restore", step=11), *streams.steps(spec, first=12)]
    assert missing(resumed, spec) == ()


def test_a_record_of_our_own_has_every_step() -> None:
    spec = make_spec(steps=30)
    every_second = [step for step in streams.steps(spec) if step.step % 2 == 0]
    assert missing(every_second, spec) == ()
    assert missing([streams.started(spec), *every_second], spec) == tuple((n, n) for n in range(1, 28, 2))
    ends = [step for step in streams.steps(spec) if step.step in (0, 29)]
    for run in (ends, [streams.started(spec), *ends]):
        assert missing(run, spec) == ((1, 28),)
    late = [step for step in streams.steps(spec) if step.step >= 10 and step.step % 5 == 0]
    assert missing(late, spec) == ((0, 9),)  # what came before it may have been another attempt, but nothing says so
    holed = [step for step in streams.steps(spec) if step.step % 5 == 0 and step.step != 15]
    assert missing(holed, spec) == ((15, 15),)


def test_a_step_number_costs_nothing() -> None:
    spec = make_spec(steps=30)
    far = [*streams.steps(spec), events.Step(step=10**15)]
    assert missing(far, spec) == ((30, 10**15 - 1),)


def test_steps_may_be_counted_from_one() -> None:
    spec = make_spec(steps=30)
    from_one = metrics.measure(streams.steps(spec, first=1, last=30), spec).completion
    assert from_one.all_steps_done
    assert not metrics.measure(streams.steps(spec, first=1, last=29), spec).completion.all_steps_done


def test_processes_are_held_against_the_first_one() -> None:
    spec = make_spec(processes=2)
    agreed = metrics.measure(whole_run(spec), spec).numerics
    assert (agreed.num_compared, agreed.disagreement) == (30, 0.0)
    other = streams.steps(spec, 1, loss=lambda n: streams.falling(n) * (1.25 if n == 17 else 1))
    apart = metrics.measure(recording.merge([streams.steps(spec), other]), spec).numerics
    assert apart.disagreement == pytest.approx(0.2)
    assert apart.disagreement_step == 17
    lost = streams.steps(spec, 1, loss=lambda n: math.nan if n == 9 else streams.falling(n))
    found = metrics.measure(recording.merge([streams.steps(spec), lost]), spec).numerics
    assert found.first_bad_step == 9
    assert found.disagreement == math.inf


@pytest.mark.parametrize(
    ("loss", "trend"),
    [
        (streams.falling, "falling"),
        (rising, "rising"),
        (lambda n: 5.0, "flat"),
        (lambda n: 5.0 + 0.01 * math.sin(7 * n), "flat"),
        (lambda n: 5.0 + 1e-5 * n, "flat"),  # rises at every step, but by nothing that matters
        (lambda n: 900.0 if n == 2 else streams.falling(n), "falling"),
    ],
)
def test_trend(loss: object, trend: str) -> None:
    spec = make_spec(steps=30)
    assert metrics.measure(streams.steps(spec, loss=loss), spec).numerics.trend == trend


def test_a_few_steps_have_a_trend_only_if_they_diverge() -> None:
    spec = make_spec(steps=9)
    for loss, trend in ((falling, "too_short"), (rising, "too_short"), (lambda n: 5.0 * 1.2**n, "rising")):
        assert metrics.measure(streams.steps(spec, loss=loss), spec).numerics.trend == trend


@pytest.mark.parametrize(("losses", "repeated"), [([3.0], 1), ([3.0, 2.0, 2.0], 2), ([2.0] * 5, 5), ([2.0, 3.0], 1)])
def test_repeated_losses(losses: list[float], repeated: int) -> None:
    spec = make_spec(steps=len(losses))
    assert metrics.measure(streams.steps(spec, loss=losses.__getitem__), spec).numerics.repeated_at_end == repeated


@pytest.mark.slow
def test_noise_has_no_trend() -> None:
    rng = random.Random(11)
    spec = make_spec(steps=60)
    found = [
        metrics.measure(streams.steps(spec, loss=lambda _: rng.gauss(5, 0.2)), spec).numerics.trend for _ in range(300)
    ]
    assert found.count("flat") >= 0.97 * len(found)


def test_gradient_norms() -> None:
    spec = make_spec(steps=30)
    norms = {4: math.inf, 9: 40.0}
    found = metrics.measure(streams.steps(spec, grad_norm=lambda n: norms.get(n, 1.0)), spec).numerics
    assert found.non_finite_grad_steps == ((4, 4),)
    assert found.grad_norm_spikes == ((9, 9),)


def test_what_is_not_reported_is_none() -> None:
    spec = make_spec(device=None)
    bare = [events.Step(step=n) for n in range(30)]
    result = metrics.measure(bare, spec)
    numerics, speed = result.numerics, result.performance
    assert (numerics.first_loss, numerics.min_loss, numerics.num_grad_norms) == (None, None, 0)
    assert speed.step_times is None
    assert speed.tokens_per_second_total is None
    assert speed.estimates == {}
    assert speed.unavailable["mfu"] == "no step has a time"
    assert result.completion.reason is None
    assert result.completion.differences is None


def test_an_unknown_device_has_no_mfu() -> None:
    spec = make_spec(device="h100")
    run = [streams.started(spec, device_kind="cpu"), *streams.steps(spec)]
    speed = metrics.measure(run, spec).performance
    assert speed.peak is None
    assert "mfu" not in speed.estimates
    assert speed.unavailable["mfu"] == "no peak is known for 'cpu'"
    assert "tflops_per_second_per_device" in speed.estimates


def test_impossible_times_give_no_speed() -> None:
    # MaxText's step 1: dispatched, not done
    spec = make_spec()
    run = [streams.started(spec), *streams.steps(spec, seconds=lambda _: 1e-9)]
    speed = metrics.measure(run, spec).performance
    assert speed.tokens_per_second_total is None
    assert "of the device's peak" in speed.unavailable["tokens_per_second_per_device"]


def test_memory_by_the_compilers_account() -> None:
    spec = make_spec()
    gibibytes = {"argument_bytes": 30, "output_bytes": 30, "alias_bytes": 30, "temp_bytes": 9, "code_bytes": 1}
    memory = {name: size * 2**30 for name, size in gibibytes.items()}  # of an H100's 80
    run = [streams.started(spec, memory=memory), *streams.steps(spec)]
    assert metrics.measure(run, spec).performance.estimates["memory_fraction"].value == 0.5


def test_nothing_at_all_is_measured_too() -> None:
    result = metrics.measure([], make_spec())
    assert result.completion.last_step is None
    assert result.numerics.num_steps == 0
    assert result.performance.step_times is None


def test_a_clock_that_is_set_back_is_no_restart() -> None:
    spec = make_spec()
    early, late = streams.steps(spec, last=14, at=50), streams.steps(spec, first=15, at=20)
    merged = recording.merge([[*early, *late], [streams.ended(process=-1)]])
    assert len(metrics.measure(merged, spec).completion.attempts) == 1


def test_the_first_fault_that_can_be_a_cause_is_the_culprit() -> None:
    spec = make_spec(processes=2)
    run = [
        streams.started(spec),
        streams.fault("step_failed", "rank 0", "peer closed the connection", process=0, at=5),
        streams.fault("process_died", "rank 1 on local1", "rank 1 on local1 was killed by SIGKILL (9)", at=6),
        streams.fault("peer_stopped", "rank 0 on local0", "", at=7),
        streams.ended("died", -1, exit_code=137, at=8),
    ]
    completion = metrics.measure(run, spec).completion
    assert completion.culprit is not None
    assert completion.culprit.where == "rank 1 on local1"
    assert (completion.reason, completion.exit_code) == ("died", 137)
    assert [fault.seconds for fault in completion.faults] == [5, 6, 7]


def test_the_file_holds_everything() -> None:
    spec = make_spec(processes=2)
    run = whole_run(spec, loss=lambda n: math.nan if n > 20 else streams.falling(n))
    measured = metrics.measure(run, spec)
    text = json.dumps(metrics.to_dict(measured), allow_nan=False)
    assert json.loads(text)["v"] == 1
    again = metrics.from_dict(json.loads(text))
    assert again.completion == measured.completion
    assert again.performance == measured.performance
    assert math.isnan(again.numerics.first_bad_value or 0.0)
    assert json.dumps(metrics.to_dict(again)) == text


def test_ranges_for_a_reader() -> None:
    assert show_ranges(((3, 3),)) == "step 3"
    assert show_ranges(((3, 5), (9, 9))) == "steps 3–5, 9"
    assert show_ranges(tuple((n, n) for n in range(0, 20, 2))) == "steps 0, 2, 4, 6, 8, …"
