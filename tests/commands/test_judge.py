"""`seatrial judge` and `seatrial parse` on logs from other trainers, as a user runs them."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from seatrial import events
from seatrial.cli import main
from seatrial.commands.judge import judge_run
from seatrial.commands.report import report_run
from seatrial.events import RunEnded
from seatrial.spec import to_dict
from tests.helpers import launcher_layouts as layouts
from tests.helpers.command_line import seatrial
from tests.helpers.streams import make_spec

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPE = CONFIGS / "native" / "recipe-llama2-70b-h100.yaml"
CVS_MEGATRON = CONFIGS / "cvs" / "mi3xx_megatron_llama_single.json"
MEGATRON = """\
name: megatron-8b
model: llama3.1-8b
batch: {sequence_length: 8192, global_batch_size: 128, micro_batch_size: 2}
steps: 30
topology: {num_nodes: 1, devices_per_node: 8, device: mi300x}
parallelism: {within_node: {data: 8}}
expectations:
  - {metric: tokens_per_second_per_device, value: 6500}
  - {metric: step_seconds, value: 12}
"""
SECONDS = 10.9227
FLOP_PER_TOKEN = 51.47e9  # of Llama 3.1 8B at 8192, causal


def judged(*arguments: str | Path, cwd: Path) -> tuple[int, dict[str, Any]]:
    result = seatrial("judge", *arguments, "--format", "json", cwd=cwd)
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, json.loads(result.stdout)


def megatron(
    steps: int = 30,
    *,
    seconds: Callable[[int], float] = lambda _: SECONDS,
    loss: Callable[[int], str] = lambda step: f"{11 * 0.97**step:.6E}",
    first: int = 1,
) -> list[str]:
    """The log of a sound run by ROCm's Megatron-LM on 8 devices, unless told otherwise."""
    noise = random.Random(5)
    lines = []
    for step in range(first, steps + 1):
        each = seconds(step) * (1 + noise.gauss(0, 0.003)) * (3 if step == first else 1)
        tflops = 128 * 8192 / each / 8 * FLOP_PER_TOKEN / 1e12
        shown = loss(step)
        lines.append(
            f" iteration {step:8d}/      30 | consumed samples: {step * 128:12d} | elapsed time per iteration (ms): "
            f"{each * 1000:.1f} | mem usages: 0.5462 | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} | "
            "learning rate: 1.000000E-05 | global batch size:   128 | "
            + (f"lm loss: {shown} | " if shown else "")
            + "loss scale: 1.0 | grad norm: 2.772 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |"
        )
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "megatron.yaml").write_text(MEGATRON)
    return tmp_path


def write(folder: Path, lines: Iterable[str], name: str = "train.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_recipe_of_the_field_is_recomputed_from_one_line(folder: Path) -> None:
    line = (
        "completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, Tokens/s/device: 1035.970, "
        "total_weights: 524288, loss: 0.000"
    )
    code, report = judged(write(folder, [line]), "--against", RECIPE, cwd=folder)
    speed = report["metrics"]["performance"]
    assert code == 6  # one of fifty lines proves nothing
    assert speed["convention"] == "non_causal"
    assert speed["tokens_per_second_total"] == pytest.approx(66298.43, abs=0.01)
    assert speed["days_to_1t_tokens"] == pytest.approx(174.57, abs=0.01)
    assert speed["estimates"]["mfu"]["value"] == pytest.approx(0.4656, abs=5e-5)
    # The recipe prints 46.54 %, from the 1.82E+15 FLOPs a sequence that it rounds to.
    assert pytest.approx(0.4654, abs=5e-5) == 1.82e15 * 128 / 7.908 / 64 / 989e12
    trend = next(c for c in report["verdict"]["axes"]["numerics"]["checks"] if c["name"] == "loss trend")
    assert trend["status"] == "not_applicable"


def test_a_run_that_is_faster_than_its_bars_passes_and_their_contradiction_is_told(folder: Path) -> None:
    tail = ["throughput per GPU: 612.4", "elapsed time per iteration: 10922.7", "tokens/GPU/s: 12000.1"]
    log = write(folder, [*megatron(), *tail])
    code, report = judged(log, "--against", "megatron.yaml", cwd=folder)
    assert (code, report["verdict"]["outcome"]) == (0, "pass")
    said = seatrial("judge", log, "--against", "megatron.yaml", cwd=folder)
    assert "contradict" in said.stdout + said.stderr or "the bars differ" in said.stdout
    assert "20.16 s" in said.stdout + said.stderr


def test_so_it_is_with_cvs_s_own_configuration_whose_bars_contradict_each_other(folder: Path) -> None:
    """12 000 ms a step of its batch are 10 923 tokens/s and 562 TFLOP/s, and it asks for 6500 and 380."""
    cell = ("gpu=mi300x", "model=llama3_1_8b", "config.nnodes=1", "training_iterations=30")
    log = write(folder, [*megatron(), "throughput per GPU: 612.4", "tokens/GPU/s: 12000.1"])
    code, report = judged(log, *cell, "--against", CVS_MEGATRON, cwd=folder)
    assert (code, report["verdict"]["outcome"]) == (0, "pass")
    said = seatrial("judge", log, *cell, "--against", CVS_MEGATRON, cwd=folder)
    told = " ".join((said.stdout + said.stderr).split())
    assert "the targets differ: 6,500 tokens/s is a step of 20.16 s, 12 s one of 12 s" in told
    assert "warning[contradicting-expectations]" in told
    assert "elapsed_time_per_iteration" in told
    slow = write(folder, megatron(seconds=lambda _: 12.9))
    assert judged(slow, *cell, "--against", CVS_MEGATRON, cwd=folder)[0] == 1


@pytest.mark.parametrize(
    ("log", "code", "named"),
    [
        (megatron(29), 1, "breaks off after step 29"),
        (megatron(loss=lambda step: "" if step > 10 else f"{11 * 0.97**step:.6E}"), 1, "report a loss"),
        (megatron(loss=lambda step: "nan" if step == 20 else f"{11 * 0.97**step:.6E}"), 1, "nan at step 20"),
        (megatron(loss=lambda step: f"{2 * 1.05**step:.6E}"), 1, "rises"),
        (megatron(seconds=lambda _: 12.9), 1, "12.90 s"),
        (
            [*megatron(12), "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
            4,
            "memory",
        ),
        (
            ["E: something else", *megatron(), "[rank0]: Fatal Python error: Segmentation fault"],
            1,
            "TEARDOWN FAILED",
        ),
    ],
    ids=["cut", "no-loss", "nan", "rising", "slow", "oom", "teardown"],
)
def test_what_went_wrong_is_named(folder: Path, log: list[str], code: int, named: str) -> None:
    result = seatrial("judge", write(folder, log), "--against", "megatron.yaml", cwd=folder)
    assert result.returncode == code, result.stdout
    assert named in " ".join(result.stdout.split())


# What tools that users call around a run print when nothing is wrong.
OF_TOOLS = {
    "nvidia-smi": "        Uncorrectable Error               : 0",
    "rocm-smi": "         Block       Status    Correctable Error  Uncorrectable Error",
    "ld.so": "ERROR: ld.so: object 'x' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
    "docker-rm": "Error response from daemon: No such container: tiny-pretrain",
    "docker-inspect": '            "OOMKilled": false,',
    "monitor": "run.sh: line 12:  4711 Killed                  nvidia-smi dmon -s u > gpu.log",
    "store": "[rank3]:[W903 21:19:09.254317555 TCPStore.cpp:106] [c10d] sendBytes failed on Socket(fd=51): Broken pipe",
}


@pytest.mark.parametrize("line", OF_TOOLS.values(), ids=OF_TOOLS)
def test_what_tools_print_around_a_run_is_no_failure_of_it(folder: Path, line: str) -> None:
    code, report = judged(write(folder, [*megatron(), line]), cwd=folder)
    assert (code, report["verdict"]["outcome"]) == (0, "pass")
    oom = [
        "Traceback (most recent call last):",
        '  File "train.py", line 1',
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    said = seatrial("judge", write(folder, [line, *oom]), cwd=folder)
    assert "GPU out of memory" in said.stdout, said.stdout


def test_a_log_alone_is_judged_as_far_as_it_goes(folder: Path) -> None:
    code, report = judged(write(folder, megatron()), cwd=folder)
    assert (code, report["verdict"]["outcome"]) == (0, "pass")
    assert report["verdict"]["axes"]["performance"]["status"] == "not_applicable"


def test_a_judged_log_is_a_run_directory(folder: Path) -> None:
    log = write(folder, megatron())
    first = seatrial("judge", log, "--against", "megatron.yaml", "--out", "runs/tuesday", cwd=folder)
    assert first.returncode == 0, first.stderr
    assert (folder / "runs/tuesday/report.html").stat().st_size < 2_000_000
    assert not (folder / "runs/tuesday/launch").exists()  # nothing was launched
    assert seatrial("judge", "runs/tuesday", cwd=folder).stdout == first.stdout
    for also in (("--against", "megatron.yaml", "steps=100"), (log,)):
        assert seatrial("judge", "runs/tuesday", *also, cwd=folder).returncode == 2
    for kind in ("text", "markdown", "junit", "csv", "json"):
        assert seatrial("report", "runs/tuesday", "--format", kind, cwd=folder).returncode == 0
    slower = write(folder, megatron(seconds=lambda _: 11.5), "slower.log")
    assert seatrial("judge", slower, "--against", "megatron.yaml", "--out", "runs/monday", cwd=folder).returncode == 0
    gate = seatrial("compare", "runs/tuesday", "runs/monday", "--fail-if-slower", "3%", cwd=folder)
    assert gate.returncode == 1, gate.stdout + gate.stderr
    again = seatrial("judge", log, "--out", "runs/tuesday", cwd=folder)
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_the_json_is_the_same_verdict(folder: Path) -> None:
    log = write(folder, megatron(29))
    code, report = judged(log, "--against", "megatron.yaml", cwd=folder)
    assert code == report["verdict"]["exit_code"] == 1


def maxtext(steps: int = 50, seconds: float = 7.0) -> list[str]:
    noise = random.Random(9)
    return [
        f"completed step: {step}, seconds: {seconds * (1 + noise.gauss(0, 0.003)):.3f}, TFLOP/s/device: "
        f"{3640.44 / seconds:.3f}, Tokens/s/device: {8192 / seconds:.3f}, total_weights: 524288, "
        f"loss: {11 * 0.97**step:.3f}"
        for step in range(steps)
    ]


def test_the_nearest_published_results_stand_beside_it(folder: Path) -> None:
    log = write(folder, maxtext())
    arguments = ("judge", log, "--against", RECIPE)
    result = seatrial(*arguments, "--out", "run", cwd=folder)
    assert result.returncode == 0, result.stdout
    assert "published tokens/s per device" in result.stdout
    for kind in ("markdown", "html"):
        shown = seatrial("report", "run", "--format", kind, cwd=folder).stdout
        assert "64 h100-sxm" in (shown if kind == "markdown" else (folder / "run/report.html").read_text())
    assert seatrial(*arguments, "--published", "5%", cwd=folder).returncode == 0
    slow = seatrial("judge", write(folder, maxtext(seconds=9.0)), *arguments[2:], "--published", "5%", cwd=folder)
    assert slow.returncode == 1
    assert "910.2 tokens/s" in slow.stdout  # 8192 / 9


def test_a_run_that_is_judged_again_is_judged_by_the_same_rules(folder: Path) -> None:
    log = write(folder, maxtext(seconds=9.0))
    options = ("--published", "5%", "--policy", "last-10", "--convention", "palm", "--tokens", "15T")
    first = seatrial("judge", log, "--against", RECIPE, *options, "--out", "run", cwd=folder)
    assert first.returncode == 1
    assert "15T tokens" in first.stdout
    again = seatrial("judge", "run", cwd=folder)
    assert (again.returncode, again.stdout) == (1, first.stdout)
    other = seatrial("judge", "run", "--policy", "last", cwd=folder)
    assert other.stdout != first.stdout
    assert seatrial("judge", "run", cwd=folder).stdout == other.stdout


@pytest.mark.parametrize(
    "option", [("--against", RECIPE), ("--out", "other"), ("--cvs-compat",), ("--family", "maxtext")], ids=str
)
def test_options_for_logs_are_refused_beside_a_run_directory(folder: Path, option: tuple[str | Path, ...]) -> None:
    assert seatrial("judge", write(folder, maxtext()), "--out", "run", cwd=folder).returncode in (0, 6)
    answer = seatrial("judge", "run", *option, cwd=folder)
    assert (answer.returncode, answer.stderr.split()[:2]) == (2, ["error[run-directory]", option[0]])
    assert not (folder / "other").exists()


def test_a_run_that_may_not_be_written_is_judged_all_the_same(folder: Path) -> None:
    """A colleague's, or one on a mount for reading; here a folder stands where the verdict would be written."""
    first = seatrial("judge", write(folder, maxtext()), "--out", "run", cwd=folder)
    verdict = folder / "run/metrics.json"
    verdict.unlink()
    (verdict / "x").mkdir(parents=True)
    again = seatrial("judge", "run", cwd=folder)
    assert (again.returncode, again.stdout) == (first.returncode, first.stdout)
    assert "warning[verdict-not-kept] run: the verdict is not kept: " in again.stderr
    of_all = seatrial("judge", ".", cwd=folder)
    assert of_all.stderr.count("verdict-not-kept") == 1


def test_a_price_shows_what_the_run_and_its_tokens_cost(folder: Path) -> None:
    log = write(folder, maxtext(seconds=9.0))
    price = ("--price-per-device-hour", "3")
    first = seatrial("judge", log, "--against", RECIPE, *price, "--out", "run", cwd=folder)
    million = 3 / 3600 / (8192 / 9) * 1e6  # each device makes 8192 tokens in 9 s
    (shown,) = [line.split() for line in first.stdout.splitlines() if "Cost per million tokens" in line]
    assert float(shown[4]) == pytest.approx(million, rel=2e-3)
    assert "Cost per million tokens" in (folder / "run/report.html").read_text(encoding="utf-8")
    kept = seatrial("report", "run", "--format", "text", cwd=folder).stdout
    assert "at 3 an hour each" in kept
    other = seatrial("report", "run", "--format", "text", "--price-per-device-hour", "6", cwd=folder).stdout
    assert "at 6 an hour each" in other
    several = seatrial("report", "run", "run", *price, cwd=folder)
    assert several.returncode == 2
    assert "--price-per-device-hour" in several.stderr


def test_what_cvs_would_have_said_is_kept_with_the_run(folder: Path) -> None:
    log = write(folder, [*megatron(), "throughput per GPU: 612.4", "tokens/GPU/s: 12000.1"])
    result = seatrial("judge", log, "--against", "megatron.yaml", "--cvs-compat", "--out", "run", cwd=folder)
    assert result.returncode == 0
    assert "Its verdict: FAIL" in result.stdout  # a faster run: less is better, and CVS does not know
    assert "Its verdict: FAIL" in seatrial("report", "run", "--format", "text", cwd=folder).stdout
    assert json.loads(seatrial("report", "run", "--format", "json", cwd=folder).stdout)["cvs"]["verdict"] == "fail"


def test_overrides_are_of_the_configuration(folder: Path) -> None:
    """With another batch it is the log of another run, and that is not passed."""
    log = write(folder, megatron())
    result = seatrial("judge", log, "global_batch_size=64", "--against", "megatron.yaml", cwd=folder)
    assert result.returncode in (1, 6)
    assert "128 sequences" in " ".join(result.stdout.split())


def started(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seatrial", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_an_encoding_without_the_signs_of_the_report_shows_the_rest(
    folder: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "argv", ["seatrial", "judge", str(write(folder, megatron()))])
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main()
    out.seek(0)
    assert ended.value.code == 0
    assert "? passed  " in out.read()


def test_parse_prints_events(folder: Path) -> None:
    for result in (
        started("parse", write(folder, megatron(3))),
        started("parse", "-", stdin="\n".join(megatron(3))),
    ):
        events = [json.loads(line) for line in result.stdout.splitlines()]
        assert [event["kind"] for event in events] == ["run_started", "step", "step", "step"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nowhere.log"], "nowhere.log"),
        (["train.log", "--family", "mega"], "one of: auto, maxtext"),
        (["train.log", "--policy", "fast"], "one of: steady"),
        (["train.log", "--convention", "mine"], "one of: causal"),
        (["train.log", "--published", "much"], "10%"),
        (["train.log", "--tokens", "many"], "15T"),
        (["train.log", "--price-per-device-hour", "0"], "above 0"),
        (["train.log", "--price-per-device-hour", "2.5 USD"], "such as 2.5"),
        (["train.log", "--published", "10%"], "--against"),
        (["train.log", "--cvs-compat"], "--against"),
        (["train.log", "--against", "nowhere.yaml"], "nowhere.yaml"),
        (["train.log", "--against", "megatron.yaml", "setps=100"], "setps"),
        (["train.log", "steps=100"], "--against"),
        (["megatron.yaml"], "no line in it"),
        (["train.log", "megatron.yaml"], "--against megatron.yaml"),
        (["train.log", "megatron.yaml", "--against", "megatron.yaml"], "--against megatron.yaml"),
        (["empty"], "no line in it"),
    ],
)
def test_wrong_input_is_told_with_place_and_fix(folder: Path, arguments: list[str], what: str) -> None:
    write(folder, megatron(3))
    (folder / "empty").mkdir()
    result = seatrial("judge", *arguments, cwd=folder)
    assert result.returncode == 2
    assert what in result.stderr
    assert "fix:" in result.stderr
    assert "Traceback" not in result.stderr


def test_text_of_a_hostile_log_stays_text(folder: Path) -> None:
    evil = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[2J\u202e"
    log = write(folder, [*megatron(12), f"[rank3]: RuntimeError: CUDA error: {evil}", "x" * 1_000_000])
    result = seatrial("judge", log, "--against", "megatron.yaml", "--out", "runs/evil", cwd=folder)
    assert result.returncode in (1, 4)
    assert not any(text in result.stdout for text in ("\x1b", "\x07", "\u202e"))
    html = (folder / "runs/evil/report.html").read_text()
    assert "<script>alert" not in html
    assert not any(text in html for text in ("\x1b", "\x07", "\u202e"))


def test_a_log_whose_evaluations_alone_have_a_loss_is_not_passed_and_not_failed(folder: Path) -> None:
    """As many an MLPerf log: nothing says that the loss of a step was finite, and nothing says that it was not."""
    marks: list[tuple[str, Any, dict[str, Any]]] = [("global_batch_size", 32, {}), ("run_start", None, {})]
    for step in range(1, 13):
        marks.append(("tracked_stats", {"throughput": 30.0 + step % 3 / 10}, {"step": step * 3200}))
        marks.append(("eval_accuracy", 6.0 - step / 10, {"samples_count": step * 3200}))
    marks.append(("run_stop", None, {"status": "success"}))
    lines = [
        ":::MLLOG "
        + json.dumps(
            {"time_ms": 1_790_000_000_000 + n, "event_type": "POINT_IN_TIME", "key": k, "value": v, "metadata": m}
        )
        for n, (k, v, m) in enumerate(marks)
    ]
    result = seatrial("judge", write(folder, lines), cwd=folder)
    assert result.returncode == 6, result.stdout
    assert "12 evaluations do" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("clock", "logged_in", "touched"),
    [
        (None, 0.0, 0.0),  # counts seconds
        ("%Y-%m-%d %H:%M:%S,000 ", 0.0, 0.0),
        ("%Y-%m-%d %H:%M:%S,000 ", 9.0, 0.0),  # Tokyo
        ("%Y-%m-%d %H:%M:%S,000 ", -9.5, 0.0),  # the Marquesas
        ("I%m%d %H:%M:%S.000000 7 m.py:1] ", 0.0, 0.0),
        ("I%m%d %H:%M:%S.000000 7 m.py:1] ", -8.0, 0.0),
        ("I%m%d %H:%M:%S.000000 7 m.py:1] ", 5.75, 200.0),  # Nepal; the run directory was copied months later
        ("I%m%d %H:%M:%S.000000 7 m.py:1] ", 0.0, 1000.0),  # or years
    ],
)
@pytest.mark.parametrize("begin", [datetime(2026, 11, 23, 8), datetime(2026, 12, 31, 23, 58)])
def test_a_run_took_as_long_as_its_processes_lived_by_whatever_clock_they_log(
    begin: datetime, clock: str | None, logged_in: float, touched: float, tmp_path: Path
) -> None:
    """A minute until the first step, fifty steps of seven seconds, and a minute until the end is known."""
    run_dir, lines = tmp_path / "run", maxtext(seconds=7.0)
    began = begin.replace(tzinfo=UTC).timestamp()
    ended = began + 60 + 50 * 7 + 60
    (run_dir / "nodes" / "local0").mkdir(parents=True)
    plan = {"v": 1, "engine": "maxtext", "on": "local", "spec": to_dict(make_spec(steps=50)), "rehearsal": None}
    (run_dir / "plan.json").write_text(json.dumps({**plan, "processes": [], "notes": [], "files": {}}))
    process = {"rank": 0, "host": "local0", "started": began, "ended": ended - 60, "last_output": ended - 60}
    for path in (run_dir / "status.json", run_dir / "nodes/local0/status.json"):
        path.write_text(json.dumps({"v": 1, "state": "ended", "started": began, "processes": [process]}))
    ending = RunEnded(process=-1, wall_time=ended, monotonic_time=ended, reason="completed", exit_code=0)
    (run_dir / "events-launcher.jsonl").write_text(events.dumps(ending) + "\n")
    said = [begin + timedelta(hours=logged_in, seconds=60 + 7 * (n + 1)) for n in range(50)]
    log = run_dir / "nodes" / "local0" / "rank0.log"
    log.write_text(
        "".join(f"{time.strftime(clock) if clock else ''}{line}\n" for time, line in zip(said, lines, strict=True))
    )
    os.utime(log, (ended + touched * 86400,) * 2)

    judge_run(run_dir)
    took = json.loads((run_dir / "metrics.json").read_text())["completion"]["wall_seconds"]
    assert ended - began - 70 <= took <= ended - began
    shown = re.search(r"1 process, ([\d,.]+) s", report_run(run_dir, "text"))
    assert shown
    assert float(shown[1].replace(",", "")) == pytest.approx(took, abs=1)


def sized(devices: int, *, seed: int, told: bool = True, completed: bool = True) -> list[str]:
    """A Megatron log of a job of so many devices."""
    size = [f"using world size: {devices}, data-parallel size: {devices}"] if told else []
    lines = megatron(30, loss=lambda step: f"{(11 + seed / 50) * 0.97**step:.6E}")
    return [*size, *lines, *(["[after training is done] datetime: 2026-03-01 11:00:00"] * completed)]


@pytest.mark.parametrize("told", [True, False], ids=["the logs tell their size", "only their losses differ"])
def test_logs_of_several_runs_are_named_and_not_mixed(folder: Path, told: bool) -> None:
    (folder / "logs").mkdir()
    for devices in (64, 128, 256):
        write(folder, sized(devices, seed=devices, told=told), f"logs/llama-{devices}.log")
    named = [f"logs/llama-{devices}.log" for devices in (64, 128, 256)]
    # A folder's files are in the order of their numbers.
    for command, first in ((["judge", *sorted(named)], "llama-128.log"), (["parse", "logs"], "llama-64.log")):
        result = seatrial(*command, cwd=folder)
        assert (result.returncode, result.stdout) == (2, ""), result.stdout
        assert f"these are logs of several runs, not of one: {first}" in result.stderr
        assert f"seatrial judge logs/{first}" in result.stderr
        assert not told or "64 devices" in result.stderr
    assert seatrial("judge", "logs/llama-64.log", cwd=folder).returncode == 0


def test_a_run_that_starts_over_after_a_completed_one_is_another_run(folder: Path) -> None:
    (folder / "logs").mkdir()
    for day in (1, 2):
        stamped = [f" [2026-03-0{day} 10:00:{n:02}]{line}" for n, line in enumerate(megatron())]
        write(folder, stamped, f"logs/day-{day}.log")
    result = seatrial("judge", "logs/day-1.log", "logs/day-2.log", cwd=folder)
    assert result.returncode == 2
    assert "day-1.log (the first), day-2.log (starts over after a completed one)" in " ".join(result.stderr.split())


def test_logs_of_ranks_and_of_attempts_are_logs_of_one_run(folder: Path) -> None:
    for name in ("ranks", "attempts", "chain", "named"):
        (folder / name).mkdir()
    for node in "ab":
        write(folder, sized(64, seed=1), f"ranks/{node}.log")
    whole = sized(64, seed=1)
    write(folder, whole[:21], "attempts/one.log")
    write(folder, ["using world size: 56, data-parallel size: 56", *whole[16:]], "attempts/two.log")  # on fewer devices
    write(folder, [*megatron(15), "[after training is done] datetime: 2026-03-01 11:00:00"], "chain/one.log")
    write(folder, megatron(first=16), "chain/two.log")
    for folder_name in ("ranks", "attempts", "chain"):
        result = seatrial("judge", folder_name, cwd=folder)
        assert result.returncode == 0, result.stdout
    for rank in range(2):
        write(folder, sized(64, seed=rank), f"named/rank{rank}.log")
    result = seatrial("judge", "named", cwd=folder)
    assert result.returncode == 1
    assert "The processes disagree on the loss" in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", ["node{}.log", "{}-worker-out/worker{}.log", "host_{}.out"])
def test_runs_on_more_and_more_nodes_are_not_the_nodes_of_one_run(folder: Path, name: str) -> None:
    names = [name.format(nodes, nodes) for nodes in (1, 2, 4)]
    for nodes, called in zip((1, 2, 4), names, strict=True):
        (folder / called).parent.mkdir(exist_ok=True)
        write(folder, sized(8 * nodes, seed=1), called)
    result = seatrial("judge", *names, cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    told = [f"{Path(called).name} ({8 * nodes} devices)" for nodes, called in zip((1, 2, 4), names, strict=True)]
    assert all(each in " ".join(result.stderr.split()) for each in told)
    assert "rank0.log" not in result.stderr  # which these names are, too


def test_ranks_of_a_run_that_went_on_with_fewer_devices_are_of_one(folder: Path) -> None:
    whole = sized(64, seed=1)
    smaller = ["using world size: 56, data-parallel size: 56", *whole[16:]]
    write(folder, [*whole[:21], *smaller], "rank0.log")
    write(folder, whole[:21], "rank6.log")  # its host is lost
    write(folder, smaller, "rank7.log")  # on a spare host
    result = seatrial("judge", "rank0.log", "rank6.log", "rank7.log", cwd=folder)
    assert "read from 3 logs of megatron" in result.stdout, result.stderr


# --- what is named, and cannot be read as it is ---


def packed(path: Path, how: str) -> None:
    """An archive of two logs of which the first one fails, or the second one compressed."""
    logs = [path.parent / "first.log", write(path.parent, [*megatron(30)], "second.log")]
    broken = megatron(30, loss=lambda step: "NaN" if step > 9 else "9.9")
    logs[0].write_text("".join(f"{line}\n" for line in broken))
    if how.startswith("w"):
        with tarfile.open(path, cast("Any", how)) as tar:
            for log in logs:
                tar.add(log, log.name)
    elif how == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for log in logs:
                archive.write(log, log.name)
    else:
        pack = {"xz": lzma.compress, "bz2": bz2.compress, "zst": lambda text: b"\x28\xb5\x2f\xfd" + text}[how]
        path.write_bytes(pack(logs[1].read_bytes()))


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("logs.tar.gz", "w:gz", "an archive: unpack it"),
        ("logs.gz", "w:gz", "an archive: unpack it"),
        ("logs.log", "w", "an archive: unpack it"),
        ("logs.zip", "zip", "an archive: unpack it"),
        ("train.log.xz", "xz", "compressed, but not with gzip: unpack it"),
        ("train.xz", "xz", "compressed, but not with gzip: unpack it"),
        ("train.log", "bz2", "compressed, but not with gzip: unpack it"),
        ("train.zst", "zst", "compressed, but not with gzip: unpack it"),
        ("events.out.tfevents.1772359810.gpu.7.0", "xz", "TensorBoard's events are not read"),
    ],
)
def test_archives_and_what_is_no_text_are_refused_with_the_reason(
    name: str, how: str, why: str, tmp_path: Path
) -> None:
    packed(tmp_path / name, how)
    for verb in ("judge", "parse"):
        result = seatrial(verb, name, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"error[no-log] {name} why: {why} fix: " in " ".join(result.stderr.split())


# --- what can be read but once ---

OF_MEMORY = [
    "Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    loss.backward()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
]  # fmt: skip
PIPED = {
    "a traceback alone": OF_MEMORY,
    "a family": megatron(30),
    "one that counts only without another": [
        f"[2026-03-02 10:00:{n:02},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05], "
        f"mom=[(0.9, 0.95)]" for n in range(1, 31)
    ],
    "an unknown trainer": layouts.unknown(),
    "a state": layouts.state(),
    "rows": layouts.metrics(),
    "rows of unknown keys": [json.dumps({"upd": n, "my_loss": layouts.loss(n)}) for n in range(1, 41)],
    "a table of unknown keys": ["upd,my_loss", *(f"{n},{layouts.loss(n):.4f}" for n in range(1, 41))],
}  # fmt: skip


@pytest.mark.parametrize("content", PIPED)
def test_a_pipe_says_what_the_file_says(content: str, tmp_path: Path) -> None:
    """As `seatrial judge <(zstdcat train.log.zst)`."""
    text = "".join(f"{line}\n" for line in PIPED[content])
    (tmp_path / "train.log").write_text(text)
    code, whole = judged("train.log", cwd=tmp_path)
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        pipe.write(text)  # less than a pipe holds
        pipe.close()
        found = judged(f"/dev/fd/{reading}", cwd=tmp_path)
    assert found[0] == code
    assert found[1]["verdict"]["headline"] == whole["verdict"]["headline"]
    assert found[1]["verdict"]["outcome"] == whole["verdict"]["outcome"]


def test_cvs_gives_no_answer_to_a_pipe(folder: Path) -> None:
    """It would be one to an empty log."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        pipe.write("".join(f"{line}\n" for line in megatron(30)))
        pipe.close()
        result = seatrial("judge", f"/dev/fd/{reading}", "--against", "megatron.yaml", "--cvs-compat", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert "error[nothing-to-compare] --cvs-compat why: CVS's answer takes another look" in " ".join(
        result.stderr.split()
    )


# --- the planned number of steps, by --steps ---


def nanogpt(steps: Iterable[int]) -> str:
    return "".join(f"iter {n}: loss {2 + 2 * 0.99**n:.4f}, time 250.10ms, mfu 20.00%\n" for n in steps)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ((), 6, "The last step was 50; the planned number of steps is unknown: give it with --steps."),
        (("--steps", "50"), 0, "Completed all 51 steps"),
        (("--steps", "51"), 0, "Completed all 51 steps"),
        (("--steps", "60"), 1, "(51 of 60 done)"),
        (("--steps", "40"), 1, "The run continued to step 50; it was planned to end at step 39."),
    ],
)
def test_the_planned_steps_may_be_given(given: Sequence[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(nanogpt(range(51)), encoding="utf-8")
    exit_code, found = judged("train.log", *given, cwd=tmp_path)
    assert exit_code == code
    assert said in json.dumps(found)


def test_planned_steps_that_are_not_those_of_the_log_fail(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(megatron()) + "\n", encoding="utf-8")
    assert judged("train.log", "--steps", "30", cwd=tmp_path)[0] == 0
    code, found = judged("train.log", "--steps", "20", cwd=tmp_path)
    assert code not in (0, 2, 6)
    assert "steps: 30 by its log, 20 by --steps" in json.dumps(found)


def test_planned_steps_stay_with_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(nanogpt(range(51)), encoding="utf-8")
    assert seatrial("judge", "train.log", "--steps", "50", "--out", "run", cwd=tmp_path).returncode == 0
    assert seatrial("judge", "run", cwd=tmp_path).returncode == 0
    assert seatrial("judge", "run", "--steps", "60", cwd=tmp_path).returncode not in (0, 2, 6)
    assert seatrial("judge", "run", cwd=tmp_path).returncode not in (0, 2, 6)
    for damage in ('"abc"', "[1]"):
        judged_by = tmp_path / "run" / "judged.json"
        judged_by.write_text(re.sub(r'"steps": [^,\n]+', f'"steps": {damage}', judged_by.read_text("utf-8")), "utf-8")
        again = seatrial("judge", "run", cwd=tmp_path)
        assert (again.returncode, "judged.json holds no options" in again.stderr) == (2, True), again.stderr


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--steps", "ten"), ("--steps", "5", "--against", RECIPE)])
def test_planned_steps_that_cannot_be_are_refused(wrong: Sequence[str | Path], tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(nanogpt(range(51)), encoding="utf-8")
    refused = seatrial("judge", "train.log", *wrong, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--steps" in refused.stderr
    assert "Traceback" not in refused.stderr
