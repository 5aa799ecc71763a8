"""Logs of trainers that nobody knows: what is guessed of them, and what a guess is worth."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial import logs, metrics, verdict
from seatrial.events import Fault, RunEnded, RunStarted
from seatrial.verdict import Verdict
from tests.helpers.log_cases import HERE, steps

N = 40
NOISE = random.Random(9)
CRASH = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "RuntimeError: the loader broke"]


def loss_at(n: int) -> float:
    return 1.5 + 4 * 0.95**n + n % 3 / 1000


# How trainers print: a line → its step, and whether its time in seconds, 1.25, can be read.
LINES: dict[str, tuple[Callable[[int], str], Callable[[int], int], bool]] = {
    "equals": (lambda n: f"step={n} loss={loss_at(n):.4f} dt=1.25s", lambda n: n, True),
    "bars": (lambda n: f"| step {n:6d} | train loss {loss_at(n):.4f} | 1250.00 ms |", lambda n: n, False),
    "words": (lambda n: f"iter {n}; loss {loss_at(n):.4f}; time 1250.00ms; mfu 31.20%", lambda n: n, True),
    "epochs": (lambda n: f"Epoch 1 Step {n * 5}: train_loss={loss_at(n):.4f} lr=1e-4", lambda n: n * 5, False),
    "dated": (
        lambda n: f"2026-01-01 10:{n:02d}:00 INFO [{n * 10}/{N * 10}] Loss: {loss_at(n):.4f} (avg 3.2)",
        lambda n: n * 10, False,
    ),
    "slash": (lambda n: f"{n:05d}/{N:05d}, train_loss: {loss_at(n):.4f}, duration: 1.250s", lambda n: n, True),
    "loss first": (lambda n: f"loss: {loss_at(n):.4f}  grad_norm: 2.5  global_step: {n * 2}", lambda n: n * 2, False),
    "total": (lambda n: f"Training step {n}/{N} - Loss {loss_at(n):.4f} - 1.25 s/it", lambda n: n, False),
    "quoted": (lambda n: f"INFO metrics {{'iteration': {n}, 'ce_loss': {loss_at(n):.4f}}}", lambda n: n, False),
    "json": (
        lambda n: json.dumps({"n": n * 3, "policy loss": loss_at(n), "step_time_ms": 1250.0}), lambda n: n * 3, True,
    ),
    "ranked": (lambda n: f"[rank0]:update {n} | loss {loss_at(n):.4f}", lambda n: n, False),
    "coloured": (lambda n: f"\x1b[32mstep\x1b[0m: {n} \x1b[31mloss\x1b[0m: {loss_at(n):.4f}", lambda n: n, False),
}  # fmt: skip
OTHERS = ("starting up with 8 workers", "saved 3 files in 2.5 s", "validation loss: 2.5", "loss scale: 65536")


def text_of(name: str, first: int = 1, last: int = N) -> list[str]:
    line = LINES[name][0]
    return [text for n in range(first, last + 1) for text in (line(n), *NOISE.sample(OTHERS, n % 2))]


def judged(folder: Path, lines: list[str], family: str = logs.AUTO) -> Verdict:
    path = folder / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return verdict.judge(metrics.measure(logs.read([path], family), None), None, rehearsal="")


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("family", ["auto", "generic"])
def test_steps_and_losses_are_found(name: str, family: str, tmp_path: Path) -> None:
    _, step, timed = LINES[name]
    path = tmp_path / "train.log"
    path.write_text("\n".join(text_of(name) if name != "json" else map(LINES[name][0], range(1, N + 1))) + "\n")
    record = logs.read([path], family)
    assert [each.step for each in steps(record)] == [step(n) for n in range(1, N + 1)]
    assert [each.loss for each in steps(record)] == pytest.approx([loss_at(n) for n in range(1, N + 1)], rel=1e-3)
    assert {each.seconds for each in steps(record)} == {1.25 if timed else None}
    (started,) = [event for event in record if isinstance(event, RunStarted)]
    assert started.facts["family"] == "generic"
    assert started.facts["guessed"].startswith("guessed: ")
    assert started.facts.get("confirmed") is (True if family == "generic" else None)
    assert started.planned_steps == {"dated": N * 10, "total": N, "slash": N}.get(name)


def test_a_guess_is_no_pass_until_it_is_confirmed(tmp_path: Path) -> None:
    found = judged(tmp_path, text_of("total"))
    assert found.outcome == "inconclusive"
    assert "its spelling was guessed" in found.headline
    assert "--family generic" in found.headline
    (spelling,) = [check for check in found.axes["completion"].checks if check.name == "spelling known"]
    assert "'Training step' for the step, 'Loss' for the loss" in spelling.evidence[0]
    assert "Training step 1/40 - Loss" in spelling.evidence[0]
    found = judged(tmp_path, text_of("total"), "generic")
    assert (found.outcome, found.headline.split(",")[0]) == ("pass", "Completed all 40 steps")


def test_what_needs_no_guess_fails_nevertheless(tmp_path: Path) -> None:
    bad = [line.replace(f"{loss_at(20):.4f}", "nan") for line in text_of("equals")]
    found = judged(tmp_path, bad)
    assert (found.outcome, found.headline) == ("fail", "The loss became nan at step 20.")
    found = judged(tmp_path, [*text_of("equals"), *CRASH])
    assert found.outcome == "died"
    assert found.headline.startswith("Exception after step 40: RuntimeError: the loader broke")


def test_a_loss_that_rises_by_a_guess_is_open(tmp_path: Path) -> None:
    rising = [f"step={n} loss={1 + n / 5:.3f}" for n in range(1, N + 1)]
    assert judged(tmp_path, rising).outcome == "inconclusive"
    assert judged(tmp_path, rising, "generic").outcome == "fail"


@pytest.mark.parametrize(
    "lines",
    [
        [f"the loss of node {NOISE.randrange(9)} was {NOISE.random():.3f} at {NOISE.randrange(99)}" for _ in range(60)],
        [f"packet loss {NOISE.random():.2f}% on eth{n}" for n in range(60)],
        [f"step {n} of the installation is done" for n in range(60)],
        [f"step {n} loss scale: 65536.0" for n in range(60)],
        [f"step {NOISE.randrange(1000)} loss {loss_at(n):.4f}" for n in range(60)],
        [f"step {n} loss {n}" for n in range(60)],
        [f"step {n} loss {loss_at(n):.4f}" for n in range(3)],
        [f"step {n / 10} loss {loss_at(n):.4f}" for n in range(60)],
        [f"elapsed {n * 10} loss {loss_at(n):.4f}" for n in range(19)],
        [f"elapsed {n * 10} loss {loss_at(n):.4f}{' rate 3' * (n % 2)}" for n in range(60)],
        [f"packed kl_loss_coef={loss_at(n):.4f}" for n in range(60)],
        [f"Test: [{n}/60] loss: {loss_at(n):.4f}" for n in range(60)],
        ["step loss " * 5000, "loss=" * 30_000, "a " * 30_000 + "loss", "loss 1.5 " * 9000],
        [],
    ],
    ids=range(14),
)  # fmt: skip
@pytest.mark.parametrize("family", ["auto", "generic"])
def test_it_finds_no_step_where_there_is_none(lines: list[str], family: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert steps(logs.read([tmp_path / "log.txt"], family)) == []


def test_logs_of_known_trainers_are_not_guessed() -> None:
    for path in sorted(HERE.glob("*/*/log.txt")):
        assert not any(isinstance(e, RunStarted) and "guessed" in e.facts for e in logs.parse_file(path)), path


def test_times_since_the_start_are_none_of_a_step(tmp_path: Path) -> None:
    for line in ("step={0} loss={1} elapsed={2}s", "step={3} loss={1} time=1.5s", "step={0} loss={1} time={4}"):
        text = [line.format(n, f"{loss_at(n):.3f}", n * 1.5, n * 10, 1.5) for n in range(1, N)]
        (tmp_path / "log.txt").write_text("\n".join(text) + "\n")
        assert {each.seconds for each in steps(logs.read([tmp_path / "log.txt"]))} == {None}, line


def test_beside_a_known_log_nothing_is_guessed(tmp_path: Path) -> None:
    known = [f"completed step: {n}, seconds: 1.000, TFLOP/s/device: 400.000, loss: {loss_at(n):.3f}" for n in range(N)]
    (tmp_path / "rank0.log").write_text("\n".join(known) + "\n")
    (tmp_path / "rank1.log").write_text("\n".join(text_of("equals")) + "\n")
    assert {each.process for each in steps(logs.read([tmp_path]))} == {0}
    (tmp_path / "rank0.log").write_text("\n".join(text_of("equals")) + "\n")
    assert {each.process for each in steps(logs.read([tmp_path]))} == {0, 1}


def test_a_restart_is_another_attempt_and_faults_stay_in_their_order(tmp_path: Path) -> None:
    text = [*text_of("equals", 1, 30), *CRASH, *text_of("equals", 21, N)]
    (tmp_path / "log.txt").write_text("\n".join(text) + "\n")
    record = logs.read([tmp_path / "log.txt"])
    assert [event.attempt for event in record if isinstance(event, RunStarted)] == [1, 2]
    (place,) = [place for place, event in enumerate(record) if isinstance(event, Fault)]
    assert [len(steps(record[:place])), len(steps(record[place:]))] == [30, 20]


def test_standard_input_is_guessed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(text_of("equals")) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert [each.step for each in steps(logs.parse_file(Path("-")))] == list(range(1, N + 1))


@pytest.mark.parametrize("broken", ["loss", "aux loss"])
def test_a_nan_between_words_is_a_value(broken: str, tmp_path: Path) -> None:
    lines = [f"step {n}/{N} loss {loss_at(n):.4f} aux loss 0.125 dt 1.25s" for n in range(1, N + 1)]
    lines[20] = {"loss": f"step 21/{N} loss nan aux loss 0.125 dt 1.25s"}.get(
        broken, f"step 21/{N} loss {loss_at(21):.4f} aux loss nan dt 1.25s"
    )
    found = judged(tmp_path, lines, "generic")
    assert (found.outcome, found.headline) == ("fail", f"{'The ' * (broken == 'loss')}{broken} became nan at step 21.")


@pytest.mark.parametrize("end", ["loss 1.", "loss 1.6", "loss ", "loss", "loss nan"])
def test_a_last_line_that_was_cut_is_no_step(end: str, tmp_path: Path) -> None:
    lines = [f"step {n}/{N} loss {loss_at(n):.4f} dt 1.25s" for n in range(1, N)]
    (tmp_path / "log.txt").write_text("\n".join([*lines, f"step {N}/{N} {end}"]))
    found = steps(logs.read([tmp_path / "log.txt"], "generic"))
    assert [step.step for step in found if step.loss == step.loss] == list(range(1, N))


def test_beside_a_framework_without_losses_they_are_guessed(tmp_path: Path) -> None:
    lines = [
        text
        for n in range(1, N + 1)
        for text in (f"[INFO] [Rank 0] step={n}, skipped=0, lr=[1e-05], mom=[[0.9, 0.999]]", *text_of("total", n, n))
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    found = steps(logs.read([tmp_path / "log.txt"]))
    assert [each.step for each in found] == list(range(1, N + 1))
    assert [each.loss for each in found] == pytest.approx([loss_at(n) for n in range(1, N + 1)], rel=1e-3)
    assert judged(tmp_path, lines).outcome == "inconclusive"
    assert judged(tmp_path, lines, "generic").outcome == "pass"
    (tmp_path / "log.txt").write_text("\n".join(line for line in lines if line.startswith("[INFO]")) + "\n")
    assert [each.loss for each in steps(logs.read([tmp_path / "log.txt"]))] == [None] * N


@pytest.mark.parametrize(
    ("line", "planned"),
    [
        ("Epoch [{epoch}/5], Step [{step}/8], Loss: {loss:.4f}", N),
        ("Epoch:[{epoch}/5]({step}/8) loss:{loss:.3f} lr:0.0005", N),
        ("epoch {epoch} iter {step} loss {loss:.4f}", None),
    ],
)
def test_steps_that_begin_anew_with_each_epoch_are_those_of_the_run(
    line: str, planned: int | None, tmp_path: Path
) -> None:
    text = [line.format(epoch=n // 8 + 1, step=n % 8 + 1, loss=loss_at(n + 1)) for n in range(N)]
    (tmp_path / "log.txt").write_text("\n".join(text) + "\n")
    record = logs.read([tmp_path / "log.txt"], "generic")
    assert [each.step for each in steps(record)] == list(range(1, N + 1))
    assert [(each.attempt, each.planned_steps) for each in record if isinstance(each, RunStarted)] == [(1, planned)]
    assert judged(tmp_path, text, "generic").outcome == ("pass" if planned else "inconclusive")
    assert judged(tmp_path, text[:20], "generic").outcome == ("fail" if planned else "inconclusive")


@pytest.mark.parametrize("stride", [1, 5])
def test_an_epoch_whose_steps_count_from_0_has_one_more_than_its_last_line_says(stride: int, tmp_path: Path) -> None:
    text = [
        f"Epoch: {epoch} | Step: {step} | Loss: {loss_at(epoch * 20 + step):.4f}"
        for epoch in range(3)
        for step in range(0, 20, stride)
    ]
    (tmp_path / "log.txt").write_text("\n".join(text) + "\n")
    record = logs.read([tmp_path / "log.txt"], "generic")
    assert [each.step for each in steps(record)] == list(range(0, 60, stride))
    assert len([each for each in record if isinstance(each, RunStarted)]) == 1


def test_a_line_for_each_epoch_will_do(tmp_path: Path) -> None:
    text = [f"Epoch {n}/{N} | train loss {loss_at(n):.4f} | val loss {loss_at(n):.4f}" for n in range(1, N + 1)]
    assert judged(tmp_path, text).outcome == "inconclusive"
    assert judged(tmp_path, text, "generic").outcome == "pass"
    assert judged(tmp_path, text[:-1], "generic").outcome == "fail"


@pytest.mark.parametrize(
    "end",
    [
        "Training complete!", "[2026-01-01 10:00:00] run complete @ step 40: 12 min", "Finished training",
        "=== fine-tuning has been successfully completed ===", "Training is done.",
        "2026-01-01 10:00:00.123 | INFO     | __main__:fit:88 - Training completed!",
        "2026-01-01 10:00:00.123 | SUCCESS  | lab.loop:fit:88 - training done", "INFO:__main__:Training finished",
        "[10:00:00 loop.py:88] training done", "2026-01-01 10:00:00,123 - lab.loop - INFO - Finetuning complete!",
        "[2026-01-01 10:00:00,123] INFO: [INFO] Training finished", "I0101 10:00:00.123 42 loop.py:88] Run complete",
    ],
)  # fmt: skip
def test_the_word_of_the_program_that_it_is_done_counts_if_the_guess_is_confirmed(end: str, tmp_path: Path) -> None:
    text = text_of("equals")
    assert judged(tmp_path, text, "generic").outcome == "inconclusive"
    assert judged(tmp_path, [*text, end], "generic").outcome == "pass"
    assert judged(tmp_path, [*text, end]).outcome == "inconclusive"
    assert judged(tmp_path, [*text[:-5], end, *text[-5:]], "generic").outcome == "inconclusive"


@pytest.mark.parametrize("end", ["Training finished. All done, run complete.", "RUN COMPLETE; TRAINING DONE, FINISHED"])
def test_a_line_that_says_it_twice_is_one_end(end: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\n".join([*text_of("equals"), end]) + "\n")
    assert sum(isinstance(each, RunEnded) for each in logs.read([tmp_path / "log.txt"])) == 1


@pytest.mark.parametrize(
    "end",
    [
        "Epoch 1 training done", "Training of epoch 3 complete", "it was done by training",
        "INFO:__main__:Epoch 1 training done", "INFO:__main__:waiting until training completed",
        "2026-01-01 10:00:00.123 | INFO     | __main__:fit:88 - Training completed epoch 2",
    ],
)  # fmt: skip
def test_other_words_are_no_end(end: str, tmp_path: Path) -> None:
    assert judged(tmp_path, [*text_of("equals"), end], "generic").outcome == "inconclusive"


@pytest.mark.parametrize(
    ("line", "is_policys"),
    [
        ("rl_loss: {loss}, norm: 0.25", True),
        ("loss: {loss}, mean_reward: 0.5, kl: 0.01", True),
        ("loss: {loss}, advantages: 0.5", True),
        ("loss: {loss}, kl: 0.01", False),  # a distillation
        ("loss: {loss}, reward_chosen: 0.5, reward_rejected: 0.25", False),  # DPO
        ("reward_loss: {loss}, lr: 0.5", False),
        ("loss: {loss}, reward_accuracy: 0.5", False),  # a reward model
    ],
)
def test_a_loss_beside_rewards_is_a_policys(tmp_path: Path, line: str, is_policys: bool) -> None:
    for counted in (True, False):
        step = "" if counted else "step {n} "
        rows = [(step + line).format(n=n, loss=f"{0.004 * (-1) ** n + n / 1e5:.6f}") for n in range(1, 41)]
        path = tmp_path / "train.log"
        path.write_text("\n".join(rows))
        (started,) = (event for event in logs.parse_file(path) if isinstance(event, RunStarted))
        assert (started.facts.get("objective") == "policy") == is_policys


def launched(nodes: int, exited: int) -> list[str]:
    """The log of an older DeepSpeed's launcher with two processes per node, around every tenth of 44 steps."""
    begin = [
        f"[2024-05-02 10:00:00,100] [INFO] [launch.py:131:main] nnodes={nodes}, num_local_procs=2, node_rank={node}"
        for node in range(nodes)
    ]
    rows = [f"step: {n}/44, loss: {loss_at(n):.4f}" for n in range(10, 45, 10)]
    exits = [
        f"[2024-05-02 11:00:00,100] [INFO] [launch.py:350:main] Process {700 + n} exits successfully."
        for n in range(exited)
    ]
    return [*begin, *rows, *exits]


@pytest.mark.parametrize(("nodes", "exited", "ends"), [(1, 2, True), (1, 1, False), (2, 4, True), (2, 2, False)])
def test_all_processes_that_exit_successfully_are_the_end_of_any_program(
    tmp_path: Path, nodes: int, exited: int, ends: bool
) -> None:
    for family in ("generic", "auto"):
        found = str(verdict.to_dict(judged(tmp_path, launched(nodes, exited), family)))
        assert ("and step 40 of 44 is the last one" in found) == ends
        assert ("does not show whether the run got from 40 to 44" in found) != ends


def test_a_loss_beside_rewards_that_is_never_negative_has_to_fall(tmp_path: Path) -> None:
    lines = [f"step {n}/{N} loss: {0.1 + n / 90:.4f} reward: {n / N:.3f}" for n in range(1, N + 1)]
    assert judged(tmp_path, lines, "generic").outcome == "fail"


@pytest.mark.parametrize(
    ("said", "is_known"),
    [
        ("Resuming training from step 120", True),
        ("resumed at step 120", True),
        ("INFO Loaded checkpoint out/last.pt (step 120)", True),
        ("Resuming from epoch 3", True),
        ("Resuming the download from a mirror", False),
        ("Loading tokenizer from step-120.json", False),
    ],
)
def test_what_a_resumed_run_says_of_its_checkpoint(tmp_path: Path, said: str, is_known: bool) -> None:
    noise = random.Random(3)
    rows = [f"step {n}/180 loss {2.5 + noise.gauss(0, 0.01):.4f}" for n in range(121, 181)]
    found = judged(tmp_path, [said, *rows], "generic")
    text = str(verdict.to_dict(found))
    assert ("The log begins at step 121; it does not say" not in text) == is_known
    assert ("The run was resumed after step 120, and the loss stays level" in text) == is_known


def test_a_checkpoint_that_is_loaded_later_does_not_excuse_the_beginning(tmp_path: Path) -> None:
    rows = [f"step {n}/180 loss {2.5 + 90 / n:.4f}" for n in range(121, 181)]
    found = judged(tmp_path, [*rows[:40], "resumed at step 150", *rows[30:]], "generic")
    assert "The log begins at step 121; it does not say" in str(verdict.to_dict(found))


def test_the_loss_of_a_policy_need_not_fall(tmp_path: Path) -> None:
    lines = [f"step {n}/{N} | act_loss: {0.3 - loss_at(N - n) / 9:.4f} | reward 0.5" for n in range(1, N + 1)]
    assert judged(tmp_path, lines, "generic").outcome == "pass"
    others = [line.replace("act_loss", "loss").replace("reward", "score") for line in lines]
    assert judged(tmp_path, others, "generic").outcome == "fail"


def test_the_count_of_epochs_is_no_step(tmp_path: Path) -> None:
    lines = [
        f"Epoch:[0/2]({n * 10}/{N * 10}) loss:{loss_at(n):.3f} lr:0.0005 epoch_Time:4.0min:" for n in range(1, N + 1)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    assert [each.step for each in steps(logs.read([tmp_path / "log.txt"]))] == [n * 10 for n in range(1, N + 1)]


def test_an_mfu_above_1_is_in_percent(tmp_path: Path) -> None:
    lines = [f"step {n} loss {loss_at(n):.4f} mfu {40 + n % 3}.5" for n in range(1, N)]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert steps(logs.read([tmp_path / "log.txt"]))[0].reported["mfu"] == pytest.approx(0.415)


def test_lines_without_any_step_are_counted_and_never_passed(tmp_path: Path) -> None:
    lines = [f"[10:{n:02d}:00] loss: {loss_at(n):.4f}, grad_norm: 2.{n}" for n in range(60)]
    assert judged(tmp_path, [*lines, "Training finished"], "generic").outcome == "inconclusive"
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    assert [each.grad_norm for each in steps(logs.read([tmp_path / "log.txt"]))][:2] == [2.0, 2.1]
    assert judged(tmp_path, [*lines, "[11:00:00] loss: nan, grad_norm: 2.5"]).outcome == "fail"


def test_as_many_lines_as_steps_were_planned_are_one_for_each(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\n".join(f"loss: {loss_at(n):.4f}, grad_norm: 2.{n}" for n in range(60)) + "\n")
    recording = logs.read([tmp_path / "log.txt"], "generic")
    for planned, outcome in ((60, "pass"), (120, "inconclusive"), (30, "inconclusive"), (None, "inconclusive")):
        found = verdict.judge(metrics.measure(recording, None, planned_steps=planned), None, rehearsal="")
        assert found.outcome == outcome


def test_a_bar_without_a_total_is_the_same_step_drawn_again(tmp_path: Path) -> None:
    """Before an epoch's last batch it shows the loss of the epoch before."""
    lines = []
    for n in range(30):
        lines += [f"\rEpoch {n}: : 0it [0{at}:20, ?it/s, loss={loss_at(n - behind):.3f}, v_num=0]"
                  for at, behind in ((4, 1), (8, 0))]  # fmt: skip
    found = judged(tmp_path, lines, "generic")
    assert found.outcome == "inconclusive"
    assert "two losses" not in found.headline
    apart = [re.sub(r": 0it .*it/s, ", " ", line) for line in lines]
    assert "gives two losses" in judged(tmp_path, apart, "generic").headline


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("2026-02-03 04:05:06 - INFO - Max. epochs for training: 30", "pass"),
        ("Total epochs: 30", "pass"),
        ("[setup] number of training epochs = 30", "pass"),
        ("Total epochs: 40", "fail"),
        ("Total steps: 30", "inconclusive"),  # a line is of an epoch
        ("the total epochs: 30 were too few", "inconclusive"),
    ],
)
def test_a_line_says_how_many_there_will_be(said: str, outcome: str, tmp_path: Path) -> None:
    lines = [said, *(f"Epoch: {n:3d} loss: {loss_at(n):.4f}" for n in range(30))]
    assert judged(tmp_path, lines, "generic").outcome == outcome


def bars(epochs: int, *, total: int = N, named: bool = True, loss: Callable[[int], float] = loss_at) -> list[str]:
    """The bars of a notebook, drawn twice at every second count, and those of an evaluation between them."""
    lines = []
    for epoch in range(1, epochs + 1):
        for n in range(2, total + 1, 2):
            said = f"{epoch}/{epochs}" if named else ""
            bar = f"Epoch {said}: {100 * n // total:3d}%|██▌  | {n}/{total} [00:0{n % 9}<01:00,  3.2it/s"
            lines += [f"\r{bar}]", f"\r{bar}, loss={loss(n + (epoch - 1) * total):.4f}]"]
        lines += [f"\rValidating: 50%|██ | {n}/9 [00:01<00:01, 9it/s, loss=9.5]" for n in range(1, 10)]
    return lines


def test_progress_bars_with_a_loss_are_steps(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\n".join(bars(2)) + "\n")
    found = steps(logs.read([tmp_path / "log.txt"], "generic"))
    assert [each.step for each in found] == list(range(2, 2 * N + 1, 2))
    assert [each.loss for each in found[:2]] == [round(loss_at(2), 4), round(loss_at(4), 4)]
    assert judged(tmp_path, bars(2)).outcome == "inconclusive"
    assert judged(tmp_path, bars(2), "generic").outcome == "pass"
    assert judged(tmp_path, bars(2)[:-30], "generic").outcome == "fail"
    assert judged(tmp_path, bars(2, loss=lambda n: max(0.0, 1.5 - n / 40)), "generic").outcome != "pass"


def test_bars_that_begin_again_without_a_word_do_not_say_how_many_steps_there_are(tmp_path: Path) -> None:
    lines = bars(3, named=False)
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    assert [each.step for each in steps(logs.read([tmp_path / "log.txt"]))][-1] == 3 * N
    assert judged(tmp_path, lines, "generic").outcome == "inconclusive"
    assert judged(tmp_path, [*lines, "Training complete"], "generic").outcome == "pass"


EVALUATED = [f"Eval Epoch num {n} | val loss {loss_at(n):.4f} | dice 0.5" for n in range(0, 20, 2)]


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ([*EVALUATED, "Training finished"], "pass"),
        (EVALUATED, "inconclusive"),
        ([*EVALUATED[:5], *(line.split("loss ")[0] + "loss nan | dice 0.5" for line in EVALUATED[5:])], "fail"),
        ([f"Epoch {n} validation loss: {11.86 - n / 5000:.5f}" for n in range(10)] + ["run complete"], "inconclusive"),
        ([f"Epoch {n} validation loss: {4.0 + n % 3 / 50:.5f}" for n in range(10)] + ["run complete"], "inconclusive"),
        ([f"Epoch {n} validation loss: {max(0, 0.4 - n / 9):.4f}" for n in range(9)] + ["run done"], "inconclusive"),
        ([*EVALUATED, "train loss: nan", "Training finished"], "refused"),
    ],
    ids=["falls", "no end", "nan", "hardly", "flat", "zero", "a training loss is nan"],
)  # fmt: skip
def test_evaluations_alone_are_judged_by_their_course(lines: list[str], outcome: str, tmp_path: Path) -> None:
    if outcome == "refused":
        (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
        assert steps(logs.read([tmp_path / "log.txt"], "generic")) == []
    else:
        assert judged(tmp_path, lines, "generic").outcome == outcome
        assert judged(tmp_path, lines).outcome == ("fail" if outcome == "fail" else "inconclusive")


def test_a_dictionary_of_losses_is_read_by_its_total(tmp_path: Path) -> None:
    lines = [
        f"Epoch: {n} [ {n * 40}/10000000], loss: {{'class': 1.5, 'total_loss': {loss_at(n):.4f}}}, LR: [1e-3, 1e-3]"
        for n in range(30)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    found = steps(logs.read([tmp_path / "log.txt"]))
    assert [(each.step, each.loss) for each in found[:2]] == [(0, 5.5), (40, round(loss_at(1), 4))]
    assert judged(tmp_path, lines, "generic").outcome == "inconclusive"  # ten millions are no end


@pytest.mark.parametrize(
    ("asked", "over", "outcome"),
    [
        ("  EPOCHS: 3", "** Epoch [{}] done! Training loss: 0.3 **", "pass"),
        ("num_train_epochs = 3", "Epoch {} finished in 12 s", "pass"),
        ("run.py --epochs 3 --lr 1e-4", "=> epoch {} is complete", "pass"),
        ("", "Epoch {}/3 completed", "pass"),
        ("EPOCHS: 4", "** Epoch [{}] done! **", "inconclusive"),
        ("warmup_epochs: 3", "** Epoch [{}] done! **", "inconclusive"),
        ("", "** Epoch [{}] done! **", "inconclusive"),
    ],
)
def test_the_last_of_the_epochs_that_were_asked_for_is_the_end(
    asked: str, over: str, outcome: str, tmp_path: Path
) -> None:
    lines = [asked]
    for epoch in range(1, 4):
        lines += [f"Epoch: [{epoch}], step: [{n}], loss: {loss_at(n + 20 * epoch):.4f}" for n in range(1, 21)]
        lines.append(over.format(epoch))
    assert judged(tmp_path, lines, "generic").outcome == outcome
    assert judged(tmp_path, lines).outcome == "inconclusive"
    assert judged(tmp_path, lines[:-1], "generic").outcome == "inconclusive"
    assert judged(tmp_path, lines[: 2 + 2 * 21], "generic").outcome == "inconclusive"


def test_deepspeed_chat_s_batches_of_answers_are_its_steps(tmp_path: Path) -> None:
    lines = [f"epoch: 0|step: {n}|ppo_ep: 1|act_loss: {0.3 - n % 7 / 9:.6f}|cri_loss: 0.25" for n in range(N)]
    begins = f"Beginning of Epoch 1/1, Total Generation Batches {N}"
    assert judged(tmp_path, [begins, *lines], "generic").outcome == "pass"
    assert judged(tmp_path, [begins, *lines[:-9]], "generic").outcome == "fail"
    assert judged(tmp_path, [begins.replace("1/1", "1/2"), *lines], "generic").outcome == "inconclusive"


def test_a_run_that_was_interrupted_is_not_done_whatever_its_program_says(tmp_path: Path) -> None:
    text = [*text_of("equals"), "Training interrupted! Saving the state ...", "Training complete!"]
    found = judged(tmp_path, text, "generic")
    assert (found.outcome, "Interrupted after step 40" in found.headline) == ("interrupted", True)


def test_an_epoch_of_many_lines_is_no_step(tmp_path: Path) -> None:
    text = [f"INFO - Epoch {n // 20 + 1} - Batch loss: {loss_at(n):.4f}" for n in range(100)]
    found = judged(tmp_path, text, "generic")
    assert (found.outcome, "two losses" in found.headline) == ("inconclusive", False)


def test_a_time_that_may_be_that_of_an_epoch_is_no_end(tmp_path: Path) -> None:
    assert judged(tmp_path, [*text_of("equals"), "Training took 01:45:11.12"], "generic").outcome == "inconclusive"
