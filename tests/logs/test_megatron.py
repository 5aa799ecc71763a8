"""Megatron's relatives: a case for every spelling and every way to spoil a log, and random lines from a formatter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs
from seatrial.events import Checkpoint, RunEnded, RunStarted, Step
from tests.helpers import log_cases
from tests.helpers import log_cases as case_folders
from tests.helpers.log_cases import both, same, steps, values

FOLDERS = [*log_cases.folders("megatron"), *log_cases.folders("nanotron")]
TFLOPS, TOKENS = "tflops_per_second_per_device", "tokens_per_second_per_device"


# --- random segments --------------------------------------------------------------------------------------------------

# What a number may look like on the page, and behind it the running mean that is none of this line's.
_MEANS = ("{}", "{}/{mean}", "{} (avg {mean})", "{}  ")
# The name of a figure → the keys that it goes by, how it is printed, what the print is divided by.
SEGMENTS: Mapping[str, tuple[tuple[str, ...], str, int]] = {
    "seconds": (("elapsed time per iteration (ms)",), ".1f", 1000),
    TFLOPS: (
        ("throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)", "TFLOPs", "throughput (TFLOP/s/GPU)"),
        ".1f",
        1,
    ),
    TOKENS: (
        (
            "tokens per GPU (tokens/s/GPU)",
            "tokens/s/GPU inst/harmonic mean",
            "Tokens per second per GPU (Tok/s/GPU)",
            "tokens per gpu per second (tgs)",
        ),
        ".1f",
        1,
    ),
    "samples_per_second_total": (("samples per second",), ".3f", 1),
    "energy_per_device": (("energy per GPU (J/iter/GPU)",), ".1f", 1),
    "power_per_device": (("power per GPU (W/GPU)",), ".1f", 1),
    "consumed_samples": (("consumed samples",), "12.0f", 1),
    "consumed_tokens": (("consumed tokens",), "12.0f", 1),
    "global_batch_size": (("global batch size",), "5.0f", 1),
    "learning_rate": (("learning rate",), ".6E", 1),
    "loss": (("lm loss", "lm_loss", "loss"), ".6E", 1),
    "loss_scale": (("loss scale",), ".1f", 1),
    "grad_norm": (("grad norm",), ".3f", 1),
    "params_norm": (("params norm",), ".3f", 1),
    "memory_fraction": (("mem usages",), ".4f", 1),
    "skipped_steps": (("number of skipped iterations",), "3.0f", 1),
}
OTHERS = (
    "load_balancing_loss",
    "mtp_1 loss",
    "num zeros",
    "skipped samples",
    "decoupled learning rate",
    "z_loss",
    "ünd 7",
)
PREFIXES = (
    "",
    " ",
    " [2026-02-03 04:05:06] ",
    " [2026-02-03 04:05:06.123456] ",
    "15: [rank15]: ",
    "[default3]:",
    "[20260203 04:05:06][rank-15/16][INFO ] [--------trainer.py:2488] :  ",
    "\x1b[32mINFO\x1b[0m [\x1b[32m20260203 04:05:06\x1b[0m][\x1b[36mrank-15/16\x1b[0m][DEBUG]  [---utils.py:4] : ",
)
NON_FINITE = ("nan", "inf", "-inf")


@st.composite
def written_logs(draw: st.DrawFn) -> tuple[list[str], list[dict[str, float]]]:
    """Lines of one program, and what they say."""
    rng = draw(st.randoms(use_true_random=False))
    names = rng.sample(sorted(SEGMENTS), rng.randrange(1, len(SEGMENTS)))
    names += [] if "seconds" in names else ["seconds"]
    order = [*names, "nan_steps", *rng.sample(OTHERS, rng.randrange(len(OTHERS)))]
    rng.shuffle(order)
    keys = {name: rng.choice(SEGMENTS[name][0]) for name in names}
    shapes = {name: rng.choice(_MEANS) for name in names}
    prefix, thousands = rng.choice(PREFIXES), rng.random() < 0.2
    step, lines, said = rng.randrange(1000), [], []
    for _ in range(rng.randrange(1, 8)):
        step += rng.choice((1, 1, 1, 10))
        line, says = f"{prefix}iteration {step:8d}/   99999 |", {"step": float(step)}
        for name in order:
            if name in keys and not (name == "loss" and rng.random() < 0.1):  # a loss that is NaN is left out
                form, per = SEGMENTS[name][1:]
                number = rng.choice((rng.random(), 1e3 * rng.random(), 1e6 * rng.random()))
                text = format(number, form.replace(".", ",.") if thousands and "E" not in form else form)
                if rng.random() < 0.03:
                    text = rng.choice(NON_FINITE)
                mean = f"{rng.random() * 1000:.1f}"
                line += f" {keys[name]}: {shapes[name].format(text, mean=mean)} |"
                exact = Decimal(text.replace(",", "").strip())
                says[name] = float(exact / per) if exact.is_finite() else float(exact)
            elif name == "nan_steps":
                line += " number of nan iterations:   0 |"
                says[name] = 0.0
            elif name in OTHERS:
                line += f" {name}: {rng.random() * 10:.3f} |"
        lines.append(line)
        said.append(says)
    return lines, said


@given(written_logs())
def test_what_is_printed_is_read_back(log: tuple[list[str], list[dict[str, float]]]) -> None:
    lines, said = log
    found = [values(step) for step in steps(both(lines))]
    assert len(found) == len(said)
    for one, expected in zip(found, said, strict=True):
        assert same(one, expected), (one, expected)


# --- spoilt logs ------------------------------------------------------------------------------------------------------


def _lines(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text(encoding="utf-8").split("\n")


def _spoil(line: str, rng: random.Random) -> str:
    """A line with a few characters lost, doubled, put in or changed; or cut."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(line) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            line = line[:at] + line[at + rng.randrange(1, 30) :]
        elif kind == 1:
            line = line[:at] + line[max(0, at - rng.randrange(1, 30)) :]
        elif kind == 2:
            line = line[:at] + rng.choice("0123456789.,:|/ -+_eEn%KMG\x1b\r\tü٣") + line[at:]
        elif kind == 3:
            line = line[:at] + rng.choice("0123456789.,:|/ -+_eEn%KMG\x1b\r\tü٣") + line[at + 1 :]
        else:
            line = line[:at]
    return line


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_fast_path_and_tables_agree_on_spoilt_lines(folder: Path) -> None:
    rng = random.Random(folder.name)
    lines = _lines(folder)
    for _ in range(4):
        spoilt = [text for line in lines for text in (line, _spoil(line, rng) if rng.random() < 0.5 else line)]
        both(spoilt)


@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_line_cut_anywhere_says_nothing_new(folder: Path, apart: int) -> None:
    """Every value of what is left of the last step line is one of the whole line's."""
    lines = [line for line in _lines(folder) if "lm loss" in line and "\r" not in line and "Step Time" not in line]
    if not lines:
        return
    line = lines[-1]
    whole = [values(step) for step in steps(logs.parse(lines))]
    for end in range(0, len(line), apart):
        found = [values(step) for step in steps(logs.parse([*lines[:-1], line[:end]]))]
        assert len(found) <= len(whole)
        for says, expected in zip(found, whole, strict=False):
            assert same(says, {name: expected[name] for name in says}), line[:end]
            assert "loss" in says or "loss" not in expected, line[:end]


def test_a_line_of_a_million_characters() -> None:
    (line,) = (line for line in _lines(case_folders.HERE / "megatron" / "swiss") if line)
    noise = "x" * 1_000_000
    found = steps(logs.parse([noise + line, line.replace(" 40/", " 41/") + noise, noise]))
    assert [(step.step, step.loss, step.seconds) for step in found] == [(40, 2.5, 8.125), (41, 2.5, 8.125)]


# --- one sentence each ------------------------------------------------------------------------------------------------


def _line(step: int, total: int = 10, seconds: float = 1.0, loss: str = "2.5", at: str = "") -> str:
    return (
        f"{at} iteration {step:8d}/{total:8d} | elapsed time per iteration (ms): {1000 * seconds:.1f} | "
        f"lm loss: {loss} | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _parse(*lines: str) -> Sequence[object]:
    return list(logs.parse(lines))


def test_validation_timers_and_stragglers_are_no_steps() -> None:
    others = (
        " validation loss at iteration 100 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 | ",
        "time (ms) | forward-compute: 11.25 | optimizer: 3.50",
        "    forward-compute ................................: (11.25, 12.50)",
        "[2026-01-01 00:00:00] | MnRtt/Rnk: 4.81ms/3 | MnEtpt/Rnk: 19.84TF/5 | MxEtpt/Rnk: 20.77TF/3",
        "[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.0 | reserved: 3.0 | max reserved: 4.0",
        "throughput per GPU: 560.5",
        "elapsed time per iteration: 10100.25",
    )
    assert not [event for event in _parse(*others) if isinstance(event, Step)]


def test_a_checkpoint_that_was_only_begun_is_none() -> None:
    begun = "saving checkpoint at iteration      10 to /ckpt in torch_dist format"
    done = "  successfully saved checkpoint from iteration      10 to /ckpt [ t 1/2, p 1/1 ]"
    assert [e for e in _parse(_line(10, 20), begun) if isinstance(e, Checkpoint)] == []
    (saved,) = [e for e in _parse(_line(10, 20), begun, done, done) if isinstance(e, Checkpoint)]
    assert (saved.action, saved.step) == ("save", 10)


def test_a_run_whose_third_attempt_plans_more_has_not_ended() -> None:
    events = _parse(
        *(_line(step, total) for step, total in ((9, 10), (10, 10), (11, 20), (12, 20), (13, 40), (20, 40)))
    )
    assert [e.planned_steps for e in events if isinstance(e, RunStarted)] == [10, 20, 40]
    assert not [e for e in events if isinstance(e, RunEnded)]


def test_without_a_clock_a_line_of_every_tenth_step_stands_for_ten() -> None:
    found = steps(logs.parse([_line(1, 99, 20.0), _line(10, 99, 2.0), _line(20, 99, 3.0)]))
    assert [step.wall_time for step in found] == [20.0, 38.0, 68.0]


ARGUMENTS: Sequence[tuple[str, Callable[[RunStarted], object], object]] = (
    ("  train_iters ..................................... 500", lambda run: run.facts.get("planned_steps"), None),
    ("  world_size ...................................... 64", lambda run: run.num_devices, 64),
    ("  seq_length ...................................... 4096", lambda run: run.facts["sequence_length"], 4096),
    ("  decoder_seq_length .............................. 77", lambda run: run.facts.get("sequence_length"), None),
    ("  num_layers ...................................... 32", lambda run: run.facts["num_layers"], "32"),
    ("  fp8 ............................................. None", lambda run: run.facts.get("fp8"), None),
    ("  seq_length ............ 2048..................updated", lambda run: run.facts["sequence_length"], 2048),
)  # fmt: skip


@pytest.mark.parametrize(("line", "of", "expected"), ARGUMENTS)
def test_arguments_are_facts(line: str, of: Callable[[RunStarted], object], expected: object) -> None:
    (started,) = [event for event in _parse(line, _line(1)) if isinstance(event, RunStarted)]
    assert of(started) == expected
    assert started.planned_steps == 10  # the step line's own total


def test_time_does_not_count_while_the_batch_grows() -> None:
    arguments = (
        "  global_batch_size ............................... 64",
        "  rampup_batch_size ............................... ['16', '16', '96']",
    )
    sizes = (16, 32, 32, 48, 64, 64)
    lines = [_line(n + 1).replace("lm loss", f"global batch size: {size} | lm loss") for n, size in enumerate(sizes)]
    assert [step.phase for step in steps(logs.parse([*arguments, *lines]))] == ["batch_rampup"] * 4 + [""] * 2
    assert {step.phase for step in steps(logs.parse([arguments[0], *lines]))} == {""}
