"""Several launches in one log: only what ended the last one is blamed, and no rank or restart is taken for a launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.metrics import Diagnosis
from seatrial.verdict import Verdict
from tests.helpers.blame_cases import Case, judged, read_case, write

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB."
NOHUP = "nohup: ignoring input"
WORLD = "using world size: 4, data-parallel size: 4, tensor-model-parallel size: 1"
AGENT = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system"
FAILED = "E0301 10:00:30.000000 41 api.py:874] failed (exitcode: 1) local_rank: 2 (pid: 812) of binary: /bin/python"
STEPS = "@megatron 1-9 10:00:00"


def traceback(last: str, *, line: int = 40, call: str = "main()", file: str = "/app/train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line {line}, in <module>\n    {call}\n{last}'


def summary(pid: int, *, rank: int = 2, host: str = "node4", at: str = "10:00:30") -> str:
    return f"""torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{"=" * 60}
Root Cause (first observed failure):
[0]:
  time      : 2026-03-01_{at}
  host      : {host}
  rank      : {rank} (local_rank: {rank})
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
{"=" * 60}"""


def device(pid: int, *, at: str = "10:00:00", number: int = 0) -> str:
    return f"W0301 {at}.465924  {pid} gpu_context.cc:61] Please NOTE: device: {number}, GPU Compute Capability: 8.0"


def listens(pid: int) -> str:
    return f"I0301 10:00:00.000001  {pid} tcp_utils.cc:181] The server starts to listen on IP_ANY:5301"


def broken(file: str = "/app/model.py") -> str:
    return (
        f'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    import model\n'
        f"  File \"{file}\", line 31\n    else\n        ^\nSyntaxError: expected ':'"
    )


KEY, VALUE = traceback("KeyError: 'mask'"), traceback("ValueError: 7 is too many")
ANOTHER = {
    "nohup": (NOHUP, traceback(OOM), NOHUP, KEY),
    "nohup, first time": (traceback(OOM), NOHUP, KEY),
    "deepspeed": (traceback(OOM), "[2026-03-01 10:00:00,123] [INFO] [runner.py:568:main] cmd = /bin/python -u x", KEY),
    "megatron": (WORLD, traceback(OOM), WORLD, KEY),
    "megatron under torchrun": (AGENT, WORLD, traceback(OOM), FAILED, AGENT, WORLD, KEY),
    "megatron after its summary": (WORLD, traceback(OOM), FAILED, summary(812), WORLD, KEY, FAILED, summary(912)),
    "torchrun": (traceback(OOM), summary(812), KEY, summary(912, at="10:30:00")),
    "torchrun, two hosts": (
        traceback(OOM), summary(812), summary(77, rank=5, host="node5"), KEY, summary(912, at="10:30:00"),
        summary(99, rank=5, host="node5", at="10:30:00"),
    ),
    "paddle": (listens(21), traceback(OOM), listens(22), KEY),
    "paddle, one device": (device(21), traceback(OOM), device(22, at="10:05:00"), KEY),
    "edited": (traceback(OOM), traceback("KeyError: 'mask'", line=44)),
    "mended": (broken(), KEY),
    "broken": (KEY.replace("KeyError: 'mask'", OOM), broken()),
}  # fmt: skip
THE_SAME = {
    "a late node's agent": (AGENT, traceback(OOM), FAILED, AGENT, KEY),
    "a restart by torchrun": (AGENT, WORLD, traceback(OOM), FAILED, WORLD, KEY, summary(812)),
    "a restart that is told": (WORLD, traceback(OOM), "INFO: [default] will restart worker group", WORLD, KEY),
    "other ranks": (WORLD, traceback(OOM), KEY, summary(812), summary(77, rank=5, host="node5")),
    "the same summary": (traceback(OOM), summary(812), KEY, summary(812)),
    "a first banner of another rank": (traceback(OOM), WORLD, KEY),
    "paddle's devices": (device(21), device(22, number=1), traceback(OOM), device(23, at="10:05:00"), KEY),
    "paddle's hosts": (device(21), traceback(OOM), device(22, at="10:00:09"), KEY),
    "two calls": (VALUE, traceback(OOM, line=44), VALUE, traceback(OOM, line=44), KEY),
    "an error of syntax in data": (traceback("SyntaxError: expected ':'", call="eval(text)"), KEY),
}


def diagnosed(parts: tuple[str, ...], folder: Path) -> tuple[Diagnosis | None, Verdict]:
    text = "\n".join(("==> train.log <==", *parts, ""))
    path = folder / "case.txt"
    path.write_text(text, encoding="utf-8")
    case: Case = read_case(path)
    write(case, folder / "logs")
    metrics, verdict = judged(folder / "logs")
    return metrics.completion.diagnosis, verdict


@pytest.mark.parametrize("name", ANOTHER)
@pytest.mark.parametrize("before", [(), (STEPS,)])
def test_only_the_last_launch_counts(name: str, before: tuple[str, ...], tmp_path: Path) -> None:
    found, verdict = diagnosed((*before, *ANOTHER[name]), tmp_path)
    assert found is not None
    assert found.kind == "exception", verdict.headline
    assert verdict.outcome != "pass"


@pytest.mark.parametrize("name", THE_SAME)
def test_ranks_and_restarts_are_no_launches(name: str, tmp_path: Path) -> None:
    found, verdict = diagnosed((STEPS, *THE_SAME[name]), tmp_path)
    expected = "exception" if name in ("two calls", "an error of syntax in data") else "device_oom"
    assert found is not None
    assert found.kind == expected, verdict.headline


def test_a_launch_that_trains_to_its_end_passes(tmp_path: Path) -> None:
    found, verdict = diagnosed((NOHUP, traceback(OOM), NOHUP, "@megatron 1-20 10:00:00"), tmp_path)
    assert found is None
    assert verdict.outcome == "pass"
    assert "CUDA out of memory" in "".join(
        text for axis in verdict.axes.values() for check in axis.checks for text in check.evidence
    )


def test_a_failure_behind_the_last_step_is_not_passed_over(tmp_path: Path) -> None:
    found, verdict = diagnosed(("@megatron 1-20 10:00:00", traceback(OOM), NOHUP, "evaluating"), tmp_path)
    assert found is not None
    assert verdict.outcome == "teardown_failed"


def test_a_last_launch_without_a_failure_has_no_cause(tmp_path: Path) -> None:
    found, verdict = diagnosed((STEPS, traceback(OOM), NOHUP, "loading"), tmp_path)
    assert found is None
    assert verdict.outcome == "fail"


def test_every_launch_has_its_own_faults(tmp_path: Path) -> None:
    """Of what recurs, most is left out; what the last launch says for the first time is not."""
    parts = [part for number in range(7) for part in (NOHUP, traceback(f"ValueError: launch {number}"))]
    found, _ = diagnosed((*parts, traceback("KeyError: 'x'")), tmp_path)
    assert found is not None
    assert "launch 6" in found.cause.text


# --- tracebacks that a logger printed ---


def logged(last: str, *, pid: int = 71, name: str = "tools") -> list[str]:
    lines = (
        "ERROR:2026-03-01 10:00:30,700:Traceback (most recent call last):",
        f'  File "/app/{name}.py", line 3, in parse',
    )
    return [f"(Rollout pid={pid}) {text}" for text in (*lines, "    left, right = text", last)]


def spoken(count: int = 25, *, pid: int = 71, text: str = "answer was read") -> list[str]:
    return [f"(Rollout pid={pid}) {text}" for _ in range(count)]


TYPE = "TypeError: cannot unpack non-iterable NoneType object"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((*logged(TYPE), *spoken()), None),
        ((*logged(TYPE), *spoken(), *logged(TYPE)), None),  # the last one is like those that ended nothing
        ((*logged(TYPE), *spoken(), *logged(TYPE, pid=72)), None),
        ((*logged(TYPE), *spoken(), traceback(OOM)), "device_oom"),
        ((*logged(TYPE), *spoken(), *logged("KeyError: 'x'", name="train")), "exception"),
        (tuple(logged(TYPE)), "exception"),
        ((*logged(TYPE), *spoken(pid=72)), "exception"),  # another process
        ((*logged(TYPE), *spoken(3)), "exception"),
        ((*logged(TYPE), *spoken(text="wandb: Run history")), "exception"),
        ((*logged(TYPE), *spoken(text="ERROR shutting down")), "exception"),
        ((traceback("TypeError: x"), *spoken()), "exception"),  # nobody's logger
    ],
)
def test_a_process_that_goes_on_was_not_ended(parts: tuple[str, ...], kind: str | None, tmp_path: Path) -> None:
    found, verdict = diagnosed((STEPS, *parts), tmp_path)
    assert (found.kind if found else None) == kind, verdict.headline
    assert verdict.outcome != "pass"


# --- what XLA takes back ---


def waits(rank: int, *, name: str = "Initialize clique") -> str:
    return (
        f"E0301 10:00:30.159988     407 rendezvous.cc:108] [id=3] This thread has been waiting for `[{rank}] "
        f"[rank={rank}] [run_id=2012] {name}: devices=2:[0,1]` for 10 seconds and may be stuck. All 2 threads joined."
    )


def unstuck(rank: int, *, name: str = "Initialize clique") -> str:
    return (
        f"E0301 10:00:55.101290     395 rendezvous.cc:130] [id=6] This thread is unstuck waiting for `[{rank}] "
        f"[rank={rank}] [run_id=2012] {name}: devices=2:[0,1]` after 32.9s. Warning above was a false-positive."
    )


OLD = "E0301 10:00:30.1 407 nccl_utils.cc:97] This thread has been waiting for 10s and may be stuck:"
OLD_UNSTUCK = "E0301 10:00:40.1 407 nccl_utils.cc:109] Thread is unstuck! Warning above was a false-positive."


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((waits(0), waits(1), unstuck(1), unstuck(0)), None),
        ((waits(0),), "collective_timeout"),
        ((waits(0), unstuck(0, name="Execute")), "collective_timeout"),
        ((waits(0), unstuck(0), waits(1)), "collective_timeout"),
        ((OLD, OLD_UNSTUCK), None),
        ((OLD, OLD_UNSTUCK, OLD), "collective_timeout"),
    ],
)
def test_what_xla_takes_back_ended_nothing(parts: tuple[str, ...], kind: str | None, tmp_path: Path) -> None:
    found, verdict = diagnosed((STEPS, *parts), tmp_path)
    assert (found.kind if found else None) == kind, verdict.headline
    assert verdict.outcome != "pass"
