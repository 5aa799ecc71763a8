"""Steps of several lines: whatever comes between the lines, the step is whole, and stands before what came after it."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seatrial import logs
from seatrial.events import Fault, RunEnded, Step
from tests.helpers.log_cases import steps

NOISE = (
    "node1:4711:4711 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "/opt/venv/lib/python3.12/site-packages/torch/made_up.py:12: UserWarning: an option is deprecated",
    "    self.value = compute(value)",
    "ValueError: no cached index was found, it is built again",
    "",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
LOSSES = st.lists(
    st.one_of(st.integers(10_000, 99_999).map(lambda n: n / 10_000), st.sampled_from([math.nan, math.inf])),
    min_size=1, max_size=6,
)  # fmt: skip


def olmo(step: int, of: int, loss: float) -> list[str]:
    return [
        f"2026-05-04 09:00:{step:02d}.123\tnode1:0\tolmo.train:966\tINFO\t[step={step}/{of},epoch=0]",
        "    optim/total_grad_norm=1.250",
        f"    train/CrossEntropyLoss={loss:.3f}",
        "    throughput/device/tokens_per_second=12,345",
    ]


def composer(step: int, of: int, loss: float) -> list[str]:
    return [
        f"[batch={step}/{of}]:", f"\t Train time/batch: {step - 1}", f"\t Train loss/train/total: {loss:.4f}",
        "\t Train l2_norm/grad/global: 1.2500", "\t Train throughput/device/tokens_per_sec: 12345.0000",
    ]  # fmt: skip


PROGRAMS = {"olmo": olmo, "composer": composer}


@settings(max_examples=40)
@example([9.9996], "olmo", random.Random(0), False)  # which is printed as 10.000
@given(LOSSES, st.sampled_from(sorted(PROGRAMS)), st.randoms(use_true_random=False), st.booleans())
def test_what_comes_between_the_lines_does_not_matter(
    losses: list[float], program: str, rng: random.Random, prefixed: bool
) -> None:
    lines = []
    for n, loss in enumerate(losses, 1):
        for line in PROGRAMS[program](n, len(losses), loss):
            lines += [f"{'0: ' if prefixed else ''}{line}", *rng.choices(NOISE, k=rng.randrange(3))]
    found = steps(logs.parse(lines))
    places = 3 if program == "olmo" else 4
    assert [step.step for step in found] == list(range(1, len(losses) + 1))
    assert [repr(step.loss) for step in found] == [repr(round(loss, places)) for loss in losses]
    assert {step.grad_norm for step in found} == {1.25}
    assert {step.reported["tokens_per_second_per_device"] for step in found} == {12345.0}


@given(st.randoms(use_true_random=False))
def test_ranks_may_print_at_the_same_time(rng: random.Random) -> None:
    queues = [[f"{rank}: {line}" for n in (1, 2, 3) for line in olmo(n, 3, 5.0 + n)] for rank in (0, 1)]
    lines = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        lines.append(queue.pop(0))
    found = steps(logs.parse(lines))
    assert sorted((step.process, step.step, step.loss) for step in found) == [
        (rank, n, 5.0 + n) for rank in (0, 1) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_fault_comes_after_the_step_before_it(program: str) -> None:
    write = PROGRAMS[program]
    events = [e for e in logs.parse([*write(1, 9, 5.5), *write(2, 9, 5.25), OOM]) if isinstance(e, Step | Fault)]
    assert [type(event) for event in events] == [Step, Step, Fault]
    assert events[-1].wall_time >= events[-2].wall_time


def test_a_step_comes_before_the_end() -> None:
    end = "2026-05-04 09:08:00.123\tnode1:0\ttrain:377\tINFO\tTraining complete"
    events = [e for e in logs.parse([*olmo(1, 9, 5.5), end]) if isinstance(e, Step | RunEnded)]
    assert [type(event) for event in events] == [Step, RunEnded]


def test_the_first_line_alone_is_no_step() -> None:
    """OLMo's other ranks print it, and it ends a log that broke off."""
    assert not steps(logs.parse(olmo(1, 9, 5.5)[:1]))


def test_the_lines_of_a_step_that_has_lost_its_first_are_not_those_of_the_one_before() -> None:
    first, second = olmo(1, 9, 5.5), olmo(2, 9, 5.25)
    (found,) = steps(logs.parse([*first[:-1], *second[1:]]))
    assert (found.step, found.loss, found.reported) == (1, 5.5, {})


def test_deepspeed_counts_only_alone() -> None:
    line = (
        "[2023-06-07 09:00:10,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[1e-05], mom=[0.9]"
    )
    alone = [line.format(n) for n in (10, 20)]
    beside = [
        text
        for n in (10, 20)
        for text in (
            line.format(n),
            f" iteration {n:8d}/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: 2.5E+00 | loss scale: 1.0 |",
        )
    ]
    assert [step.learning_rate for step in steps(logs.parse(alone))] == [1e-05, 1e-05]
    assert [(step.step, step.loss) for step in steps(logs.parse(beside))] == [(10, 2.5), (20, 2.5)]


@pytest.mark.parametrize("broken", [False, True], ids=["completed", "out of memory"])
def test_steps_of_deepspeed_before_the_first_line_of_another_trainer_do_not_count(broken: bool, tmp_path: Path) -> None:
    """DeepSpeed prints every step, Megatron every tenth."""
    lines = []
    for n in range(1, 61):
        lines.append(f"[2023-06-07 09:00:{n % 60:02},123] [INFO] [Rank 0] step={n}, skipped=0, lr=[1e-05], mom=[0.9]")
        if n == 4:
            lines.append("successfully saved checkpoint at iteration       4 to /checkpoints")
        if n % 10 == 0:
            lines.append(
                f" iteration {n:8d}/      60 | elapsed time per iteration (ms): 500.0 | lm loss: {9 - n / 10:.6E} | "
                "loss scale: 1.0 |"
            )
    if broken:
        lines = [*lines[:40], OOM]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    record = logs.read([path])
    assert [step.step for step in steps(record)] == [n for n in range(10, 61, 10) if not broken or n <= 30]
    assert all(step.loss is not None for step in steps(record))
    assert [isinstance(event, Fault) for event in record].count(True) == broken


def test_a_number_of_thousands_of_digits_is_no_step() -> None:
    assert not steps(logs.parse([f"completed step: {'1' * 5000}, seconds: 1.000, loss: 2.000"]))
