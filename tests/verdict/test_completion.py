"""Completion of logs from other trainers, from text to verdict: what is cut, restarted or broken, and what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import events, logs, metrics, recording, verdict
from seatrial.metrics import Metrics
from seatrial.spec import RunSpec
from seatrial.verdict import Check, Verdict
from tests.helpers import mlperf_logs, streams
from tests.helpers.streams import falling, make_spec

OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has no more."
MARKER = "[after training is done] datetime: 2026-03-01 11:00:00"
PEER = (
    "[rank3]:[W301 11:00:01.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer"
)
TAKEN_DOWN = (
    "[rank6]:[E301 11:00:01.1 ProcessGroupNCCL.cpp:684] [Rank 6] Some NCCL operations have failed or timed out. "
    "To avoid data inconsistency, we are taking the entire process down."
)
TRIED_AGAIN = [
    "Traceback (most recent call last):",
    '  File "/opt/venv/wandb/sdk/lib/retry.py", line 131, in __call__',
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out.",
    "wandb: Network error (ReadTimeout), entering retry loop.",
]
EXIT_0, EXIT_1 = "EXIT_CODE=0", "EXIT_CODE=1"


def megatron(first: int, last: int, total: int, *, every: int = 1) -> list[str]:
    """Counted from 1; the line names its total."""
    return [
        f" [2026-03-01 10:{n // 60:02}:{n % 60:02}] iteration {n:8d}/{total:8d} | consumed samples: {n * 16:12d} | "
        f"elapsed time per iteration (ms): 1000.0 | learning rate: 1.0E-04 | global batch size:    16 | "
        f"lm loss: {falling(n):.6E} | loss scale: 1.0 | grad norm: 1.000 | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |"
        for n in range(first, last + 1)
        if n % every == 0 or n == 1
    ]


def maxtext(first: int, last: int) -> list[str]:
    """Counted from 0; no line names the total."""
    return [
        f"completed step: {n}, seconds: 0.500, total_weights: 2048, loss: {falling(n):.3f}"
        for n in range(first, last + 1)
    ]


MEGATRON_STARTS = [
    "using world size: 4, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 1",
    "------------------------ arguments ------------------------",
    "  train_iters ..................................... 50",
    "-------------------- end of arguments ---------------------",
]
TRAINS = "[before the start of training step] datetime: 2026-03-01 11:20:00"
WHOLE = [*MEGATRON_STARTS, *megatron(1, 50, 50), MARKER]
MAXTEXT_STARTS = ["System Information: Jax Version: 0.7.0", "Num_devices: 4, shape (1, 4)", "Config param steps: 50"]
RESTORED = "restoring from this run's directory step {}"
NANOCHAT_STARTS = "2025-10-16 20:17:42,749 - nanochat.common - INFO - Distributed world size: 8"


def begins(pid: int) -> list[str]:
    """The first lines of a job, of which no trainer's table knows any."""
    return [
        "+ torchrun --nproc_per_node 4 --master_port 29500 train.py --config run.yaml",
        "> initializing torch distributed ...",
        f"node4:{pid}:{pid} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>",
        "NCCL version 2.21.5+cuda12.4",
        f"wandb: Run data is saved locally in /runs/wandb/run-20260301_{pid}-ab1cd2ef",
        "loading the tokenizer and 12 shards of tokens",
    ]


SHOWN = [
    "Fri Mar 14 10:12:01 2026",
    "+---------------------------------------------------------+",
    "| NVIDIA-SMI 570.86      Driver Version: 570.86           |",
    "|=================================+=======================|",
    "|   0  NVIDIA H100 80GB HBM3   On | 00000000:19:00.0  Off |",
    "+---------------------------------------------------------+",
    "SLURM_JOB_ID=4711",
    "SLURM_NODELIST=gpu[01-02]",
    "SLURM_NNODES=2",
    "host: gpu01",
    "======",
]
EVALUATES = ["***** evaluation *****", "  num examples: 400", "  batches of 8", "the evaluation loss is 3.021"]
PARTS = ["saving the weights to /runs/final", "wandb: Run summary:", "wandb: loss 0.42", "wandb: Synced 4 files"]


def nanochat(steps: int) -> list[str]:
    """Its scripts, which one shell script runs one after the other, all print the line that they start with."""
    return [
        NANOCHAT_STARTS,
        f"Calculated number of iterations from target data:param ratio: {steps}",
        *(
            f"step {n:05d}/{steps:05d} ({n / steps:.2%}) | loss: {falling(n):.6f} | lrm: 1.00 | dt: 500.10ms | "
            f"tok/sec: 1,048,366 | mfu: 46.91 | total time: {n / 120:.2f}m"
            for n in range(steps)
        ),
    ]


def main_log(last: int, *, every: int = 20, end: bool = True) -> list[str]:
    """llm.c's `main.log`: it evaluates every so many steps, and after the last."""
    text = ["s:0 tel:10.9000"]
    for n in range(last + 1):
        text.append(f"s:{n} trl:{falling(n):.4f} lr:1.00e-04 norm:1.00")
        if (n + 1) % every == 0 or (end and n == last):
            text.append(f"s:{n + 1} tel:{falling(n):.4f}")
    return text


def judged(lines: Iterable[str], spec: RunSpec | None = None) -> tuple[Metrics, Verdict]:
    measured = metrics.measure(list(logs.parse(lines, source="run.log")), spec)
    return measured, verdict.judge(measured, spec, rehearsal=False)


def check(found: Verdict, name: str) -> Check:
    return next(check for axis in found.axes.values() for check in axis.checks if check.name == name)


OF_50 = make_spec(steps=50)
CASES: dict[str, tuple[str, list[str], RunSpec | None]] = {
    # name: outcome, log, configuration
    "all steps, end marker": ("pass", [*megatron(1, 50, 50), MARKER], OF_50),
    "all steps, the log knows its total": ("pass", megatron(1, 50, 50), None),
    "all steps, no end marker": ("pass", maxtext(0, 49), OF_50),
    "all steps, exit code 0": ("pass", [*maxtext(0, 49), EXIT_0], OF_50),
    "no word on how many steps": ("inconclusive", maxtext(0, 49), None),
    "counted from 0, last line lost": ("fail", maxtext(0, 48), OF_50),
    "counted from 0, first and last line lost": ("fail", maxtext(1, 48), OF_50),
    "counted from 0, first line lost": ("inconclusive", maxtext(1, 49), OF_50),
    "counted from 1, last line lost": ("fail", megatron(1, 49, 50), OF_50),
    "counted from 1, first lines lost": ("inconclusive", megatron(4, 50, 50), OF_50),
    "counted from 1, first lines and last line lost": ("fail", megatron(4, 49, 50), None),
    "another total than asked for": ("fail", megatron(1, 40, 40), OF_50),
    "exit code 0, but steps missing": ("fail", [*maxtext(0, 30), EXIT_0], OF_50),
    "end marker, but steps missing": ("fail", [*megatron(1, 30, 50), MARKER], OF_50),
    "exit code 1 after all steps": ("teardown_failed", [*maxtext(0, 49), EXIT_1], OF_50),
    "out of memory after all steps": ("teardown_failed", [*maxtext(0, 49), OOM], OF_50),
    "crash after the end marker": (
        "teardown_failed", [*megatron(1, 50, 50), MARKER, "Aborted (core dumped)"], OF_50,
    ),
    "connections are closed after the end marker": ("pass", [*megatron(1, 50, 50), MARKER, PEER], OF_50),
    "a connection is lost after all steps, without a marker": ("teardown_failed", [*megatron(1, 50, 50), PEER], OF_50),
    "srun sees a task fail after all steps": (
        "teardown_failed", [*maxtext(0, 49), "srun: error: gpu-03: task 3: Exited with exit code 1"], OF_50,
    ),
    "out of memory in the middle, and no more": ("died", [*maxtext(0, 20), OOM], OF_50),
    "out of memory before the first step": ("died", [OOM], OF_50),
    "out of memory in a log whose steps cannot be read": ("died", ["[step=7/50,epoch=0] loss=2.5", OOM], OF_50),
    "no failure in a log whose steps cannot be read": (
        "inconclusive", ["[step=50/50,epoch=0] loss=2.5", "WARNING: the writer said ValueError: closed already"], OF_50,
    ),
    "wrong configuration": (
        "could_not_run", ["MAXTEXT CONFIG ERROR: no such key: stepz", EXIT_1], OF_50,
    ),
    "container": ("could_not_run", ["slurmstepd: error: pyxis: failed to import docker image"], None),
    "a module is missing after some steps": (
        "died", [*maxtext(0, 20), "ModuleNotFoundError: No module named 'wandb'", EXIT_1], OF_50,
    ),
    "a fault that the run survived": ("pass", [*maxtext(0, 20), OOM, *maxtext(21, 49)], OF_50),
    "a tracker's time-out that was tried again": ("pass", [*maxtext(0, 49), *TRIED_AGAIN], OF_50),
    "a tracker's time-out that was not": ("teardown_failed", [*maxtext(0, 49), *TRIED_AGAIN[:-1]], OF_50),
    "a tracker's time-out, and the next steps": (
        "pass", [*maxtext(0, 20), *TRIED_AGAIN[:-1], *maxtext(21, 49)], OF_50,
    ),
    "a client's time-out that ended the run": (
        "died", [*maxtext(0, 20), *TRIED_AGAIN[:-1], *maxtext(21, 21)], OF_50,
    ),
    "the watchdog takes the process down": ("died", [*maxtext(0, 20), TAKEN_DOWN], OF_50),
    "an error that means nothing, at the end": (
        "pass", [*maxtext(0, 49), "WARNING: the writer said ValueError: closed already"], OF_50,
    ),
    "restart to the end": (
        "pass", [*megatron(1, 20, 50), OOM, *megatron(11, 50, 50), MARKER], OF_50,
    ),
    "restart that is cut": ("fail", [*megatron(1, 20, 50), OOM, *megatron(11, 40, 50)], OF_50),
    "restart that dies again": ("died", [*megatron(1, 20, 50), OOM, *megatron(11, 40, 50), OOM], OF_50),
    "profile run, then the run": ("pass", [*megatron(1, 15, 15), *megatron(1, 50, 50)], OF_50),
    "profile run, then half of the run": ("fail", [*megatron(1, 15, 15), *megatron(1, 25, 50)], None),
    "the whole run, then half of another": ("fail", [*megatron(1, 50, 50), *megatron(1, 25, 50)], OF_50),
    "the whole run, then a start": ("inconclusive", [*WHOLE, *MEGATRON_STARTS], None),
    "the whole run, then a start, as was configured": ("inconclusive", [*WHOLE, *MEGATRON_STARTS], OF_50),
    "the whole run, then a start, of MaxText": ("inconclusive", [*maxtext(0, 49), *MAXTEXT_STARTS], OF_50),
    "the whole run, then a start that counts samples": (
        "inconclusive", [*WHOLE, *(line.replace(" 50", " None") for line in MEGATRON_STARTS), TRAINS], None,
    ),
    "the whole run, then a start with more steps left": (
        "inconclusive", [*maxtext(0, 49), *MAXTEXT_STARTS, RESTORED.format(30)], None,
    ),
    "the whole run, then a start with nothing left to do": (
        "pass", [*maxtext(0, 49), *MAXTEXT_STARTS, RESTORED.format(49)], OF_50,
    ),
    "the whole run, then a start that fails": ("died", [*WHOLE, *MEGATRON_STARTS, OOM], None),
    "the whole run, then a start that says so": ("died", [*WHOLE, *MEGATRON_STARTS, EXIT_1], None),
    "the whole run, then a start of something else": (
        "inconclusive", [*maxtext(0, 49), "Config param steps: 150001", "Num_devices: 1, shape (1, 1)"], OF_50,
    ),
    "the whole run, then MaxText's decode.py": (
        "pass", [*MAXTEXT_STARTS, *maxtext(0, 49), *MAXTEXT_STARTS, "Input `The ship` -> ` sails on`"], None,
    ),
    "the whole run, then MaxText's decode.py, and a start": (
        "inconclusive",
        [*MAXTEXT_STARTS, *maxtext(0, 49), *MAXTEXT_STARTS, "Input `The ship` -> ` sails`", *MAXTEXT_STARTS], None,
    ),
    "the whole run, then a start and its end": ("pass", [*WHOLE, *MEGATRON_STARTS, MARKER], None),
    "the whole run, a start and its end, and another start": (
        "inconclusive", [*WHOLE, *MEGATRON_STARTS, MARKER, *MEGATRON_STARTS], None,
    ),
    "the whole run, twice": ("pass", [*WHOLE, *WHOLE], None),
    "half of the run, then a start": ("fail", [*megatron(1, 25, 50), *MEGATRON_STARTS], None),
    "the whole run, then a tool that converts its checkpoint": (
        "pass", [*WHOLE, *(line.replace(" 50", " None") for line in MEGATRON_STARTS)], None,
    ),
    "the whole run, then programs that evaluate it": ("pass", [*nanochat(50), NANOCHAT_STARTS, NANOCHAT_STARTS], None),
    "the whole run, then its first lines again": ("inconclusive", [*begins(811), *WHOLE, *begins(952)], None),
    "the whole run, then some of its first lines again": (
        "inconclusive", [*begins(811), *maxtext(0, 49), *PARTS, *begins(952)[:3]], OF_50,
    ),
    "the whole run, then its first lines, and an error": (
        "died", [*begins(811), *maxtext(0, 49), *begins(952), OOM], OF_50,
    ),
    "the whole run, then its first lines, and that it failed": (
        "died", [*begins(811), *maxtext(0, 49), *begins(952), EXIT_1], OF_50,
    ),
    "the whole run, then its first lines, and its end": (
        "pass", [*begins(811), *WHOLE, *begins(952), MARKER], None,
    ),
    "the whole run, then two of its first lines again": (
        "pass", [*begins(811), *maxtext(0, 49), *begins(952)[:2]], OF_50,
    ),
    "the whole run, between two looks at the devices and the job": (
        "pass", [*SHOWN, *begins(811), *maxtext(0, 49), *SHOWN], OF_50,
    ),
    "the whole run, then a program that begins as it does": (
        "pass", [*begins(811), *maxtext(0, 49), *begins(952), *EVALUATES], OF_50,
    ),
    "a restart, and then its first lines again": (
        "inconclusive", [*begins(811), *maxtext(0, 30), OOM, *begins(952), *maxtext(20, 49), *begins(963)], OF_50,
    ),
    "an evaluation before, between and behind the steps": (
        "pass", [*begins(811), *EVALUATES, *maxtext(0, 24), *EVALUATES, *maxtext(25, 49), *EVALUATES], OF_50,
    ),
    "an evaluation before and behind the steps": (
        "pass", [*begins(811), *EVALUATES, *maxtext(0, 49), *EVALUATES], OF_50,
    ),
    "main.log with an evaluation out of turn": ("pass", main_log(49), None),
    "main.log with evaluations in turn": ("inconclusive", main_log(39), None),
    "main.log that is cut": ("inconclusive", main_log(49, end=False), None),
    "main.log whose last steps are not in it": (
        "inconclusive", [*main_log(44, end=False), "s:50 tel:3.0000"], None,
    ),
    "main.log that goes on": ("inconclusive", [*main_log(49), *main_log(59, end=False)[53:]], None),
    "every tenth step": ("pass", megatron(1, 50, 50, every=10), OF_50),
    "every tenth step, and no last line": ("fail", megatron(1, 40, 50, every=10), OF_50),
    "every tenth step of 55, end marker": (
        "pass", [*megatron(1, 55, 55, every=10), MARKER], make_spec(steps=55),
    ),
    "every tenth step of 55, no end marker": (
        "inconclusive", megatron(1, 55, 55, every=10), make_spec(steps=55),
    ),
    "every tenth step of 55, cut": ("fail", [*megatron(1, 40, 55, every=10), MARKER], make_spec(steps=55)),
    "time limit": (
        "died",
        [*maxtext(0, 20), "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T11:00:00 DUE TO TIME LIMIT ***"],
        OF_50,
    ),
    "cancelled": (
        "interrupted",
        [*maxtext(0, 20), "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T11:00:00 ***"], OF_50,
    ),
    "a watchdog at the end": (
        "no_progress",
        [*maxtext(0, 20), "[rank1]:[E301 11:00:00.1 P.cpp:6] [Rank 1] Watchdog caught collective operation timeout: "
         "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."],
        OF_50,
    ),
    "heartbeats for hours": (
        "no_progress",
        [*maxtext(0, 20),
         *["The node 'n1_2_0' has failed to send a keep-alive heartbeat to the rendezvous 'x' due to an error"] * 500],
        OF_50,
    ),
    "loss NaN, and the program stopped": (
        "fail", [*maxtext(0, 20), "Aborting training due to NaN loss.", EXIT_1], OF_50,
    ),
    "nothing but noise": ("fail", ["hello", "world"], OF_50),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_right_outcome(name: str) -> None:
    outcome, lines, spec = CASES[name]
    _, found = judged(lines, spec)
    assert found.outcome == outcome, found.headline
    if outcome != "pass":
        assert found.exit_code != 0


@pytest.mark.parametrize("last", [0, 2, 3, 6])
def test_a_long_log_that_ends_as_it_began(last: int, tmp_path: Path) -> None:
    """Its steps are read many at once, and some lines of its beginning come between them as well."""
    body = [line for n in range(0, 300, 50) for line in (*megatron(n + 1, n + 50, 300), begins(n)[1], "a word")]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*begins(811), *body, *begins(952)[:last], ""]), encoding="utf-8")
    measured = metrics.measure(logs.read([path]), None)
    assert measured.completion.perhaps_idle == (last > 3)  # the second of them is none that tells


def test_a_log_that_is_cut_anywhere_never_passes() -> None:
    for whole in ([*megatron(1, 50, 50), MARKER], [*maxtext(0, 49), EXIT_0]):
        assert judged(whole, OF_50)[1].outcome == "pass"
        steps = len(whole) - 1
        for cut in range(steps):
            assert judged(whole[:cut], OF_50)[1].outcome == "fail"
        for cut in range(1, steps):
            assert judged(whole[cut:], OF_50)[1].outcome != "pass"
            assert judged([*whole[:cut], OOM], OF_50)[1].outcome == "died"
            assert judged([*whole[:cut], *whole[cut + 1 :]], OF_50)[1].outcome != "pass"


def test_without_an_end_marker_the_last_step_decides() -> None:
    _, found = judged(maxtext(0, 49), OF_50)
    ending = check(found, "orderly end")
    assert (ending.status, ending.evidence) == ("pass", ("the log has no end marker",))


def test_the_evidence_is_the_line_of_the_log() -> None:
    _, found = judged([*maxtext(0, 20), OOM], OF_50)
    evidence = check(found, "orderly end").evidence
    assert evidence[0].startswith("run.log:22: device_oom · [rank2]: torch.OutOfMemoryError")
    assert any(line.startswith("what to do: ") for line in evidence)
    assert found.headline.startswith("GPU out of memory on rank 2 after step ")
    assert "micro batch" in found.headline
    _, survived = judged([*maxtext(0, 20), OOM, *maxtext(21, 49)], OF_50)
    assert check(survived, "orderly end").evidence[0].startswith("survived · run.log:22: ")


def test_a_budget_of_tokens_ends_a_run_before_the_steps_that_it_prints() -> None:
    done = "[after training is done] datetime: 2026-03-01 10:02:00 "
    lines = [line.replace("| elapsed", f"| consumed tokens: {100 * (n + 1):12d} | elapsed") for n, line in enumerate(
        megatron(1, 20, 50))]  # fmt: skip

    def outcome(budget: int, *, ended: bool = True, last: int = 20) -> str:
        asked = f"  train_tokens .................................... {budget}"
        return judged([asked, *lines[:last], *([done] if ended else [])], None)[1].outcome

    assert [outcome(1950), outcome(2000)] == ["pass", "pass"]
    assert [outcome(1850), outcome(2050), outcome(1950, ended=False), outcome(1950, last=18)] == ["fail"] * 4


@pytest.mark.parametrize("said", ["Resuming training from out", "nothing of it"])
def test_nanogpt_says_that_it_goes_on_from_its_checkpoint(said: str) -> None:
    lines = [f"iter {n}: loss {3.5 + math.sin(n) / 90:.4f}, time 44.51ms, mfu 12.45%" for n in range(200, 301, 2)]
    _, found = judged(["Overriding: max_iters = 300", said, *lines], None)
    assert found.outcome == ("pass" if said.startswith("Resuming") else "inconclusive")
    assert ("The run was resumed after step 199" in check(found, "loss trend").sentence) == (found.outcome == "pass")


def test_a_log_that_begins_later_is_told_so() -> None:
    loaded = " successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 20"
    measured, resumed = judged([loaded, *megatron(21, 50, 50)], OF_50)
    assert resumed.outcome == "pass"
    assert resumed.headline.startswith("Completed the last of 50 steps; the log begins at step 21")
    assert measured.completion.wall_seconds < 60  # what stands before the first time has none
    _, holed = judged([loaded, *megatron(31, 50, 50)], OF_50)
    assert holed.outcome == "inconclusive"
    assert "21–30" in holed.headline
    for every in (1, 5):
        _, open_ = judged(megatron(21, 50, 50, every=every), OF_50)
        assert open_.outcome == "inconclusive"
        assert open_.headline.startswith(f"The log begins at step {20 + every}; it does not say")
    assert judged(megatron(21, 40, 50), OF_50)[1].headline.startswith("The record breaks off after step 40 of 50")


def test_attempts_are_listed_each_with_its_own_plan() -> None:
    measured, found = judged([*megatron(1, 15, 15), *megatron(1, 50, 50)])
    attempts = [(a.first_step, a.last_step, a.planned_steps) for a in measured.completion.attempts]
    assert attempts == [(1, 15, 15), (1, 50, 50)]
    assert check(found, "all steps done").evidence == (
        "attempt 1: steps 1–15 of 15 planned", "attempt 2: steps 1–50",
    )  # fmt: skip


def from_other_trainer(events_: Sequence[events.Event], **facts: object) -> list[events.Event]:
    """The same events as a reader of logs from other trainers gives them."""
    return [
        replace(e, facts={"family": "maxtext", "clock": "log", "counted_from": 0, **facts})
        if isinstance(e, events.RunStarted)
        else e
        for e in events_
    ]


def test_one_process_may_speak_for_all_of_a_log_of_another_trainer() -> None:
    spec = make_spec(processes=4)
    run = from_other_trainer([streams.started(spec), *streams.steps(spec)])
    found = verdict.judge(metrics.measure(run, spec), spec, rehearsal=False)
    assert found.outcome == "pass"
    assert check(found, "processes together").sentence == "One process reports for all."
    behind = [*run, *from_other_trainer([streams.started(spec, 1), *streams.steps(spec, 1, last=20)])]
    assert verdict.judge(metrics.measure(behind, spec), spec, rehearsal=False).outcome == "fail"


def test_a_restart_without_a_step_is_not_complete() -> None:
    spec = make_spec()
    run = [streams.started(spec), *streams.steps(spec), streams.started(spec, at=500), streams.ended()]
    for made in (run, from_other_trainer(run)):
        measured = metrics.measure(made, spec)
        assert not measured.completion.all_steps_done
        assert verdict.judge(measured, spec, rehearsal=False).outcome == "fail"


def test_a_fault_without_a_time_leaves_a_finished_run_open() -> None:
    spec = make_spec()
    run = from_other_trainer([streams.started(spec), *streams.steps(spec)], clock="counted")
    untimed = events.Fault(process=7, wall_time=0.0, monotonic_time=0.0, fault="gpu_ecc", where="rank 7", text="ECC")
    for made in ([untimed, *run], [*run, untimed]):
        found = verdict.judge(metrics.measure(made, spec), spec, rehearsal=False)
        assert found.outcome == "inconclusive"
        assert "without a time" in check(found, "orderly end").sentence
    cut = [*from_other_trainer([streams.started(spec), *streams.steps(spec, last=9)], clock="counted"), untimed]
    assert verdict.judge(metrics.measure(cut, spec), spec, rehearsal=False).outcome == "died"


def titan(*steps: int, of: int) -> list[str]:
    at = "[rank0]:[titan] 2026-05-14 08:50:{:02d},381 - root - INFO - "
    batch = "local batch size 2, global batch size 16, gradient accumulation steps 1, sequence length 4096"
    lines = [at.format(0) + f"Trainer is initialized with {batch}, total steps {of} (warmup 2)"]
    for n in steps:
        figures = f"loss: {falling(n):.5f}  grad_norm:  4.3205  memory:  7.95GiB(25.34%)  tps: 3,210  tflops: 9.01"
        lines += [at.format(n % 60) + f"step: {n:2}  {figures}  mfu: 2.51%"]
    return [*lines, at.format(59) + "Training completed"]


@pytest.mark.parametrize(
    ("lines", "of", "missing"),
    [
        ((1, 10, 20), 20, []),
        ((1, 10, 20, 30), 30, []),
        ((1, 10, 20), 25, []),
        ((10, 20), 20, []),
        ((*range(1, 11), 200, 400, 600), 600, []),
        ((*range(1, 11), 200, 400, 450), 450, []),
        ((1, 20), 20, [(2, 19)]),
        ((1, 10, 30), 30, [(2, 9), (11, 29)]),
        ((1, 3, 6), 6, [(2, 2), (4, 5)]),
        ((*range(1, 11), 12, 14, 16, 18), 18, [(11, 11), (13, 13), (15, 15), (17, 17)]),
    ],
)
def test_first_steps_that_are_printed_beside_every_nth_one(
    lines: tuple[int, ...], of: int, missing: list[tuple[int, int]]
) -> None:
    measured, found = judged(titan(*lines, of=of))
    assert [*measured.completion.processes[0].missing_steps] == missing
    assert check(found, "record complete").status == ("inconclusive" if missing else "pass")
    assert check(found, "all steps done").status == "pass"


@pytest.mark.parametrize("seconds", ["", "'step_time': 2.0, "])
def test_a_date_in_a_log_without_times_is_not_how_long_the_run_took(seconds: str) -> None:
    lines = [f"{{'loss': {falling(n):.4f}, {seconds}'epoch': 0.02, 'step': {n}}}" for n in range(1, 30)]
    cancelled = "slurmstepd: error: *** JOB 310529 ON gpu-1 CANCELLED AT 2026-10-30T05:33:43 DUE TO PREEMPTION ***"
    measured, found = judged([*lines, cancelled])
    assert (found.outcome, measured.completion.wall_seconds) == ("interrupted", 0)
    assert [fault.seconds for fault in measured.completion.faults] == [0]
    dated = []
    for n in range(1, 10):
        dated += [f"2026-10-30 05:0{n}:00.000\thost:0\tolmo.train:9\tINFO\t[step={n}/40,epoch=0]"]
        dated += [f"    train/CrossEntropyLoss={falling(n):.3f}"]
    assert judged([*dated, cancelled])[0].completion.wall_seconds == 32 * 60 + 43


def test_a_fault_is_placed_by_the_steps_of_its_own_file() -> None:
    """Without a clock, another file's fault has no place; one in a file with steps has, whatever its rank."""
    spec = make_spec()
    first = from_other_trainer([streams.started(spec), *streams.steps(spec)], clock="counted", source="a.log")
    second = from_other_trainer([streams.started(spec, 1), *streams.steps(spec, 1)], clock="counted", source="b.log")
    run = [*first, *second]
    for source, process, at, outcome in (
        ("a.log", 5, 9, "pass"),
        ("a.log", 0, len(first), "teardown_failed"),
        ("b.log", 1, len(first) + 9, "pass"),
        ("b.log", 7, len(run), "teardown_failed"),
        ("c.err", 0, 9, "inconclusive"),
        ("c.err", 7, len(run), "inconclusive"),
    ):
        broken = events.Fault(
            process=process, wall_time=streams.START + 11, monotonic_time=11, fault="gpu_ecc", text="ECC",
            facts={"source": source},
        )  # fmt: skip
        measured = metrics.measure([*run[:at], broken, *run[at:]], spec)
        assert verdict.judge(measured, spec, rehearsal=False).outcome == outcome


def test_a_log_of_another_trainer_is_held_against_what_it_says_of_itself() -> None:
    spec = make_spec()
    start = streams.started(spec)
    rounded = replace(start, num_parameters=int(start.num_parameters * 1.02) if start.num_parameters else None)
    nothing = replace(start, num_devices=None, planned_steps=None, tokens_per_step=None, num_parameters=None)
    for begin, status in (
        (rounded, "pass"),
        (nothing, "not_applicable"),
        (replace(start, num_devices=8), "fail"),
        (replace(nothing, num_devices=4), "pass"),
    ):
        found = verdict.judge(
            metrics.measure(from_other_trainer([begin, *streams.steps(spec)]), spec), spec, rehearsal=False
        )
        assert check(found, "ran as configured").status == status


def test_numerics_come_before_a_failed_teardown() -> None:
    spec = make_spec()
    run = [
        streams.started(spec),
        *streams.steps(spec, loss=lambda n: math.nan if n == 20 else falling(n)),
        streams.fault("process_died", "rank 0", "killed"),
    ]
    assert verdict.judge(metrics.measure(run, spec), spec, rehearsal=False).outcome == "fail"


def test_a_process_that_broke_before_the_others_is_told_with_its_own_step() -> None:
    of_two = [
        *logs.parse(megatron(1, 50, 50), process=0, source="logs/node0.log"),
        *logs.parse([*megatron(1, 30, 50), OOM.partition(": ")[2]], process=1, source="logs/node1.log"),
    ]
    measured = metrics.measure(recording.merge([of_two[:52], of_two[52:]]), OF_50)
    found = verdict.judge(measured, OF_50, rehearsal=False)
    assert found.headline.startswith("GPU out of memory in node1.log after step 30 of 50: torch.OutOfMemoryError")


def unhealthy(*tasks: str) -> list[str]:
    """The lines of a JAX process about tasks that its coordinator no longer hears from."""
    head = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
    return [
        f"E0301 11:00:00.4   22 coordination_service.cc:1549] [77] The error goes to all tasks: {head}",
        *tasks,
        "The tasks have crashed. Look at their logs. [type.googleapis.com/tensorflow.CoordinationServiceError='']",
        "E0301 11:00:00.5   23 coordination_service_agent.cc:289] Polled an error from coordination service.",
        f"F0301 11:00:00.6   23 client.h:80] Terminating process: another task died. absl::Status: {head}",
        *tasks,
        "The tasks have crashed. Look at their logs.",
        "",
        "RPC: /xla.coordination.CoordinationService/PollForError",
        "Fatal Python error: Aborted",
    ]


TASK = "/job:jax_worker/replica:0/task:"
STAMPS = {
    "alone": "", "srun -l": "{}: ", "kubectl": "2026-03-01T11:00:00.123456Z ", "brackets": "[2026-03-01 11:00:00] ",
    "kubectl and srun -l": "2026-03-01T11:00:00.123456Z {}: ", "Ray": "(Worker pid=7{}, ip=10.0.0.{}) ",
}  # fmt: skip


@pytest.mark.parametrize("stamp", STAMPS.values(), ids=STAMPS)
@pytest.mark.parametrize("tasks", [(f"{TASK}2",), (f"{TASK}2", f"{TASK}5"), ("2",), ("2", "5")], ids=str)
@pytest.mark.parametrize("reporters", [(0,), (0, 1, 3)], ids=str)
def test_a_lost_heartbeat_is_that_of_the_tasks_named(
    stamp: str, tasks: tuple[str, ...], reporters: tuple[int, ...]
) -> None:
    said = [stamp.format(rank, rank) + line for rank in reporters for line in unhealthy(*tasks)]
    steps = [stamp.format(0, 0) + line for line in maxtext(0, 20)]
    measured, found = judged([*steps, *said], OF_50)
    lost = [f"rank {task.removeprefix(TASK)}" for task in tasks]
    assert found.outcome == "no_progress"
    assert found.headline.startswith(f"No heartbeat from {', '.join(lost)} after step 20")
    diagnosis = measured.completion.diagnosis
    assert diagnosis is not None
    assert list(diagnosis.suspects) == list(diagnosis.exclude) == lost
    oom = stamp.format(2, 2) + OOM.removeprefix("[rank2]: ") + " RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."
    for lines in ([*steps, oom, *said], [*steps, *said, oom]):
        measured, found = judged(lines, OF_50)
        diagnosis = measured.completion.diagnosis
        assert diagnosis is not None
        assert diagnosis.kind == "device_oom"
        assert "rank 0" not in str((diagnosis.suspects, diagnosis.exclude, diagnosis.victims, diagnosis.what))


def test_what_others_print_at_the_end_is_not_the_end_of_the_one_that_is_named() -> None:
    after = [
        "srun: error: gpu-00: task 0: Aborted (core dumped)",
        "srun: error: gpu-01: task 1: Exited with exit code 134",
        "[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:9000",
        "slurmstepd: error: *** STEP 7.0 ON gpu-00 CANCELLED AT 2026-03-01T11:00:01 ***",
    ]
    said = [f"0: {line}" for line in unhealthy("2")]
    for lines in ([*said, *after], [*after[::-1], *said]):
        measured, found = judged([*(f"0: {line}" for line in maxtext(0, 20)), *lines], OF_50)
        assert found.headline.startswith("No heartbeat from rank 2 after step 20")
        assert measured.completion.diagnosis is not None
        assert measured.completion.diagnosis.exclude == ("rank 2",)


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("STEP 4.0 ON gpu-1 CANCELLED AT 2026-03-01T11:00:01 DUE TO TIME LIMIT", "time_limit", "Time limit after"),
        ("STEP 4.0 ON gpu-1 CANCELLED AT 2026-03-01T11:00:01 DUE TO PREEMPTION", "preempted", "Preempted after"),
        ("STEP 4.0 ON gpu-1 CANCELLED AT 2026-03-01T11:00:01", "step_cancelled", "Job step cancelled after"),
        ("JOB 4 ON gpu-1 CANCELLED AT 2026-03-01T11:00:01", "cancelled", "Cancelled after"),
    ],
)
def test_what_happens_to_a_whole_job_is_blamed_on_no_rank(line: str, kind: str, said: str) -> None:
    steps = [f"0: {line}" for line in maxtext(0, 20)]
    measured, found = judged([*steps, f"0: slurmstepd: error: *** {line} ***"], OF_50)
    diagnosis = measured.completion.diagnosis
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.cause.where) == (kind, "")
    assert list(diagnosis.suspects) == list(diagnosis.exclude) == []
    assert found.headline.startswith(f"{said} step 20")


LOGS_OF_OTHERS = {
    "fairseq": [
        "2026-03-01 10:00:01 | INFO | train_inner | epoch 001:    120 / 1000 loss=6.801, ppl=111.5, num_updates=120",
    ],
    "chat_sft": ["Step 00120/00701 | Training loss: 1.680100| lrm: 0.800000| num_tokens: 10,112"],
}


@pytest.mark.parametrize("name", LOGS_OF_OTHERS)
@pytest.mark.parametrize("spec", [None, OF_50], ids=["alone", "against"])
def test_of_a_log_whose_steps_cannot_be_read_nobody_says_that_there_were_none(name: str, spec: RunSpec | None) -> None:
    for end in ([OOM], [TAKEN_DOWN], ["[rank2]: Traceback (most recent call last):", "[rank2]: KeyError: 'text'"]):
        _, found = judged([*LOGS_OF_OTHERS[name], *end], spec)
        steps = check(found, "all steps done")
        assert found.outcome == "died"
        assert "(no step was recognised in the log)" in found.headline
        assert steps.status == "inconclusive"
        assert "No step was recognised in the log" in steps.sentence
        assert "before the first step" not in found.headline


@pytest.mark.parametrize("spec", [None, OF_50], ids=["alone", "against"])
def test_lines_of_steps_without_a_number_count_as_lines(spec: RunSpec | None) -> None:
    lines = ["{'loss': 1.62, 'grad_norm': 0.71, 'learning_rate': 2e-05, 'epoch': 0.12}"]
    _, found = judged([*lines, OOM], spec)
    assert found.outcome == "died"
    assert found.headline.startswith("GPU out of memory on rank 2 after 1 line of steps")
    assert check(found, "all steps done").status == "inconclusive"
    assert "does not say how many steps each stands for" in check(found, "all steps done").sentence
    many = [f"{{'loss': {5 - n / 10}, 'epoch': {n / 10}}}" for n in range(1, 21)]
    _, found = judged(many, spec)
    assert found.outcome == "inconclusive"  # 20 lines are no 20 steps of 50
    _, found = judged([*many, "{'loss': nan, 'epoch': 2.1}"], spec)
    assert (found.outcome, check(found, "loss finite").status) == ("fail", "fail")


def test_a_run_that_was_watched_died_before_its_first_step() -> None:
    """The launcher that started it knows what a step looks like."""
    fault = events.Fault(process=0, fault="device_oom", text="out of memory", facts={"source": "rank0.log"})
    measured = metrics.measure([fault, events.RunEnded(process=-1, reason="died", exit_code=1)], OF_50)
    found = verdict.judge(measured, OF_50, rehearsal=False)
    assert found.headline.startswith("GPU out of memory before the first step")
    assert check(found, "all steps done").sentence == "None of the 50 steps was completed."


@pytest.mark.parametrize(("restored", "outcome"), [(50, "inconclusive"), (40, "fail")])
def test_a_run_that_is_started_again_after_its_last_step_has_none_left(restored: int, outcome: str) -> None:
    record = [
        events.Checkpoint(process=0, action="restore", step=restored),
        events.RunStarted(process=0, planned_steps=50),
        events.RunEnded(process=0, reason="completed", exit_code=0),
        events.RunEnded(process=-1, reason="completed", exit_code=0),
    ]
    found = verdict.judge(metrics.measure(record, OF_50), OF_50, rehearsal=False)
    assert (found.outcome, check(found, "all steps done").status) == (outcome, outcome)


mlperf = pytest.mark.parametrize("written", mlperf_logs.GRAMMARS, ids=lambda grammar: grammar.__name__)


@mlperf
def test_mlperf_s_success_passes_in_every_spelling(written: Callable[..., list[str]]) -> None:
    measured, found = judged(written())
    assert found.outcome == "pass", found.headline
    assert found.headline.startswith("An evaluation ended the run after 88 steps")
    assert len(measured.completion.attempts) == 1
    assert check(found, "target reached").status == "pass"
    assert found.axes["performance"].status == "not_applicable"


@mlperf
def test_mlperf_s_time_to_train_is_that_from_its_start_to_its_success(written: Callable[..., list[str]]) -> None:
    for evaluations in ((0.9,), (1.2, 0.92), (1.5, 1.1, 0.95, 0.92)):
        took = mlperf_logs.seconds_to_train(evaluations)
        whole = written(evaluations=evaluations)
        measured, _ = judged(whole)
        assert measured.completion.time_to_train_seconds == pytest.approx(took, abs=1e-3)
        losses = evaluations if written is not mlperf_logs.only_evaluations else [2 + e * 0.74 for e in evaluations]
        assert measured.completion.evaluations == tuple(zip((40, 56, 72, 88), losses, strict=False))
        assert metrics.from_dict(metrics.to_dict(measured)) == measured
        end = next(line for line in whole if "run_stop" in line)
        late = [*whole, end.replace('"time_ms": 1790', '"time_ms": 1791')]  # of another rank, long after
        assert judged(late)[0].completion.time_to_train_seconds == pytest.approx(took, abs=1e-3)
        assert judged(written(evaluations=evaluations, status="aborted"))[0].completion.time_to_train_seconds is None
    assert judged(written(evaluations=(1.5, 0.94)))[0].completion.time_to_train_seconds is None  # missed its target
    start = next(line for line in written() if "run_start" in line)
    without = [line for line in written() if line != start]
    assert judged(without)[0].completion.time_to_train_seconds is None


@mlperf
def test_mlperf_s_run_passes_by_its_last_word_alone(written: Callable[..., list[str]]) -> None:
    assert judged(written(status="aborted"))[1].outcome == "fail"
    whole = written()
    end = next(place for place, line in enumerate(whole) if "run_stop" in line)
    for cut in range(end):
        assert judged(whole[:cut])[1].outcome in ("inconclusive", "fail")
    assert judged([*whole[:end], *whole[end + 1 :]])[1].outcome == "inconclusive"


@mlperf
def test_what_mlperf_calls_a_success_has_to_have_reached_its_target(written: Callable[..., list[str]]) -> None:
    _, found = judged(written(evaluations=(1.5, 1.1, 0.95, 0.94)))
    assert (found.outcome, check(found, "target reached").status) == ("fail", "fail")
    assert judged(written(evaluations=(1.5, 1.1, math.nan, 0.92)))[1].outcome == "fail"


@mlperf
def test_of_two_mlperf_runs_in_one_file_the_last_decides(written: Callable[..., list[str]]) -> None:
    whole = written()
    later = [line.replace('"time_ms": 1790', '"time_ms": 1791') for line in whole]
    measured, found = judged([*whole[:-4], OOM, *later])
    assert (found.outcome, len(measured.completion.attempts)) == ("pass", 2)
    assert judged([*whole, *(line.replace("success", "aborted") for line in later)])[1].outcome == "fail"


@mlperf
def test_what_ranks_print_when_an_mlperf_run_is_over_is_no_failure(written: Callable[..., list[str]]) -> None:
    whole = written()
    assert judged([*whole, PEER])[1].outcome == "pass"
    cancelled = "slurmstepd: error: *** STEP 4.0 ON gpu-1 CANCELLED AT 2026-09-21T14:13:20 DUE TO TIME LIMIT ***"
    assert judged([*whole, cancelled])[1].outcome == "teardown_failed"


@pytest.mark.parametrize(
    ("last", "ends", "says", "outcome"),
    [
        (50, True, 10, "pass"), (45, True, 4, "fail"), (50, False, 10, "fail"), (40, True, 10, "pass"),
        (50, True, None, "pass"), (51, True, None, "fail"), (50, False, None, "fail"), (40, True, None, "pass"),
    ],
)  # fmt: skip
def test_olmo_goes_on_for_some_steps_behind_its_last_one(last: int, ends: bool, says: int | None, outcome: str) -> None:
    config = f"2026-03-01 10:00:00.000\thost:0\ttrain:98\tINFO\tTrainConfig(extra_steps_after_cancel={says}, x=1)"
    lines = [config] if says is not None else []
    for n in range(1, last + 1):
        lines += [f"2026-03-01 10:00:{n:02}.000\thost:0\tolmo.train:9\tINFO\t[step={n}/40,epoch=0]"]
        lines += [f"    train/CrossEntropyLoss={falling(n):.3f}"]
    lines += ["2026-03-01 10:01:00.000\thost:0\ttrain:377\tINFO\tTraining complete"] * ends
    assert judged(lines)[1].outcome == outcome
