"""`seatrial judge FOLDER` on the folders that launchers, log writers and trainers leave behind."""

from __future__ import annotations

import json
import lzma
import random
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from seatrial import logs
from seatrial.events import RunStarted, Step
from tests.helpers.command_line import seatrial
from tests.helpers.launcher_layouts import STEPS, lay_out, loss, metrics, state, table, titan, unknown
from tests.helpers.permissions import nobody

Files = Mapping[str, Sequence[str]]


def read(folder: Path, files: Files) -> logs.FolderOfLogs:
    lay_out(folder, files)
    return logs.read_runs(folder)


def numbers(run: logs.RunOfLogs) -> list[int]:
    return [event.step for event in run.events if isinstance(event, Step)]


EIGHT = {"devices": 8}
LAYOUTS: dict[str, tuple[Files, dict[str, int]]] = {
    # Names of runs, and how many processes each has.
    "torchrun --log-dir on two nodes, whose clocks agree": (
        {
            f"none_{node}/attempt_0/{rank}/{stream}.log": titan(jitter=rank, **EIGHT) if stream == "stdout" else []
            for node in ("ab12", "cd34")
            for rank in range(2)
            for stream in ("stdout", "stderr")
        },
        {"none": 4},
    ),
    "torchrun's second attempt": (
        {
            "none_ab12/attempt_0/0/stdout.log": titan(last=20, done=False),
            "none_ab12/attempt_1/0/stdout.log": titan(first=16, begin=600),
        },
        {"none_ab12": 1},
    ),
    "two runs of torchrun with one seed, an hour apart": (
        {
            "none_ab12/attempt_0/0/stdout.log": titan(),
            "none_cd34/attempt_0/0/stdout.log": titan(begin=3600),
        },
        {"none_ab12/attempt_0/0/stdout": 1, "none_cd34/attempt_0/0/stdout": 1},
    ),
    "ranks of one run in one folder": ({f"a/rank{rank}.log": titan(jitter=rank) for rank in range(3)}, {"a": 3}),
    "repeats of one seed, each with its ranks, an hour apart": (
        {f"{run}/rank{rank}.log": titan(begin=b, jitter=rank) for run, b in (("a", 0), ("b", 3600)) for rank in (0, 1)},
        {"a": 2, "b": 2},
    ),
    "repeats of one seed at the same time, each with the logs of all devices": (
        {f"{run}/rank{rank}.log": titan(devices=2, jitter=rank) for run in "ab" for rank in (0, 1)},
        {"a": 2, "b": 2},
    ),
    "one run on two nodes whose folders are named after hosts": (
        {f"gpu{host}/rank{rank}.log": titan(devices=4, jitter=rank) for host in (17, 18) for rank in (0, 1)},
        {"gpu": 4},
    ),
    "local ranks in folders of nodes": (
        {f"node{node}/rank{rank}.log": titan(jitter=rank) for node in (0, 1) for rank in (0, 1)},
        {"node": 4},
    ),
    "repeats of one seed in files of one folder, that name ranks": (
        {f"{run}-rank0.log": titan(begin=b) for run, b in (("a", 0), ("b", 3600))},
        {"a-rank0": 1, "b-rank0": 1},
    ),
    "Slurm's %j.%t.out": ({f"8123.{task}.out": titan(jitter=task) for task in range(12)}, {"8123": 12}),
    "Slurm's log-%x_%n_%j.out": (
        {f"log-gpt_{node}_81234.out": titan() if node == 0 else [] for node in range(2)},
        {"log-gpt": 1},
    ),
    "two jobs, a folder each, with out and err": (
        {
            f"run_{job}/log-{job}_0.{end}": titan(seed=job) if end == "out" else []
            for job in (811, 812)
            for end in ("out", "err")
        },
        {"run_811": 1, "run_812": 1},
    ),
    "MindFormers' folders of ranks": (
        {
            f"log/rank_{rank}/{name}.log": titan(jitter=rank) if name == "info" else []
            for rank in (0, 1)
            for name in ("info", "error")
        },
        {"log": 2},
    ),
    "kubectl's logs of the pods of a JobSet": (
        {f"llama-slice-job-0-{pod}-x7k2q.log": titan(jitter=pod) for pod in range(2)},
        {"llama-slice-job": 2},
    ),
    "ranks that each put the second into the name of their log": (
        {f"rank{rank}_{stamp}.log": titan(devices=2) for rank, stamp in enumerate((20260301105959, 20260301110000))},
        {"rank": 2},
    ),
    "the same, by time.time()": (
        {f"worker{rank}-{1772359810 + rank}.log": titan(devices=3, jitter=rank) for rank in (0, 1, 2)},
        {"worker": 3},
    ),
    "the same, of two runs": (
        {
            f"202603021{hour}000{rank}-rank{rank}.log": titan(devices=2, begin=3600 * hour, jitter=rank)
            for hour in (0, 1)
            for rank in (0, 1)
        },
        {"2026030210000": 2, "2026030211000": 2},
    ),
    "two runs that began in the same minute": (
        {f"2026030210000{n}.log": titan(seed=n) for n in (1, 2)},
        {"20260302100001": 1, "20260302100002": 1},
    ),
    "W&B's files alone": (
        {"wandb/run-20260302_100000-4zq1x7bn/files/output.log": titan(),
         "wandb/run-20260302_100000-4zq1x7bn/logs/debug.log": ["2026-03-02 10:00:00,000 INFO    MainThread:7 setup"]},
        {"wandb/run-20260302_100000-4zq1x7bn": 1},
    ),
    "W&B's files of two runs": (
        {f"wandb/run-20260302_100000-4zq1x7b{n}/files/output.log": titan(seed=n) for n in (1, 2)},
        {f"wandb/run-20260302_100000-4zq1x7b{n}/files/output": 1 for n in (1, 2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout: str, tmp_path: Path) -> None:
    files, runs = LAYOUTS[layout]
    found = read(tmp_path / "logs", files)
    processes = {run.name: len({e.process for e in run.events if isinstance(e, Step)}) for run in found.runs}
    assert processes == runs
    assert not found.unread
    read_once = [path for run in found.runs for path in run.paths]
    assert sorted(read_once) == sorted(tmp_path / "logs" / name for name in files)


def test_repeats_say_how_they_were_told_apart(tmp_path: Path) -> None:
    lay_out(tmp_path / "logs", {f"{run}/rank0.log": titan(begin=b) for run, b in (("a", 0), ("b", 3600))})
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = "a/rank0.log, b/rank0.log are of 2 runs: their clocks show the same steps at other times"
    assert told in " ".join(answer.stdout.split())
    assert json.loads(seatrial("judge", "logs", "--format", "json", cwd=tmp_path).stdout)["told_apart"] == [told]


def test_tasks_have_their_own_numbers_beyond_ten(tmp_path: Path) -> None:
    found = read(tmp_path, {f"8123.{task}.out": titan(jitter=task) for task in range(12)})
    by_process = {e.process: e.facts["source"] for e in found.runs[0].events if isinstance(e, RunStarted)}
    assert all(str(source).endswith(f"8123.{process}.out") for process, source in by_process.items())


ROTATIONS = {
    "numbers, the highest the oldest": ("train.log.2", "train.log.1", "train.log"),
    "compressed": ("train.log.2.gz", "train.log.1.gz", "train.log"),
    "dates": ("train.log-20260301", "train.log-20260302.gz", "train.log"),
    "beyond ten": ("train.log.11", "train.log.2", "train.log"),
}


@pytest.mark.parametrize("names", ROTATIONS.values(), ids=ROTATIONS)
def test_a_rotated_log_is_one(names: Sequence[str], tmp_path: Path) -> None:
    lines = titan()
    cuts = [0, 15, 30, len(lines)]
    pieces = {name: lines[a:b] for name, a, b in zip(names, cuts, cuts[1:], strict=False)}
    found = read(tmp_path / "logs", pieces)
    lay_out(tmp_path / "whole", {"train.log": lines})
    (run,) = found.runs
    assert numbers(run) == list(range(1, STEPS + 1))
    assert len(run.paths) == 3

    def facts(event: object) -> str:
        return str(event).replace(str(tmp_path / "logs"), "").replace(str(tmp_path / "whole"), "")

    whole = logs.read([tmp_path / "whole" / "train.log"])
    assert [*map(facts, run.events)] == [*map(facts, whole)]
    named = logs.read([tmp_path / "logs" / name for name in names])  # also if they are named one by one
    assert [*map(facts, named)] == [*map(facts, whole)]
    assert [*map(facts, logs.read([tmp_path / "logs"]))] == [*map(facts, whole)]


def test_numbers_that_are_no_rotation_are_ranks(tmp_path: Path) -> None:
    (run,) = read(tmp_path, {f"out.log.{rank}": titan(jitter=rank) for rank in range(3)}).runs
    assert len({event.process for event in run.events}) == 3


METRICS = {"metrics.jsonl": metrics(), "csv/metrics.csv": table(), "out/trainer_state.json": state()}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_beside_the_log_do_not_count_twice(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, {"train.log": titan(), name: METRICS[name]})
    (run,) = found.runs
    assert numbers(run) == list(range(1, STEPS + 1))
    assert found.passed_over == {tmp_path / name: "metrics: the log of train counts, whose losses it has"}
    lay_out(
        tmp_path,
        {name: [line.replace(f"{loss(30):.5f}", "NaN").replace(f"{loss(30):.4f}", "NaN") for line in METRICS[name]]},
    )
    other = seatrial("judge", ".", cwd=tmp_path)  # but for a loss that the log does not have
    assert other.returncode == 1, other.stdout
    assert "is NaN" in other.stdout or "nan" in other.stdout.lower()


@pytest.mark.parametrize("name", METRICS)
def test_metrics_alone_are_the_run(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, {name: METRICS[name], "data/train.jsonl": ['{"prompt": "a", "answer": "b"}'] * 9})
    (run,) = found.runs
    assert numbers(run) == list(range(1, STEPS + 1))
    assert found.passed_over == {tmp_path / "data/train.jsonl": "no metrics of steps in it"}


def test_metrics_beside_a_log_without_steps_are_the_steps_of_its_run(tmp_path: Path) -> None:
    fault = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    lay_out(tmp_path / "logs", {"train.log": ["starting", fault], "metrics.jsonl": metrics(last=20)})
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 4, answer.stdout
    assert "ECC" in answer.stdout
    assert numbers(logs.read_runs(tmp_path / "logs").runs[0]) == list(range(1, 21))


def test_metrics_complete_a_log_that_says_all_but_the_steps(tmp_path: Path) -> None:
    lay_out(tmp_path / "logs", {"train.log": titan(last=0), "out/metrics.jsonl": metrics()})
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 6, answer.stdout  # how many steps were planned is in neither
    assert "all steps done" in answer.stdout
    assert "orderly end" in answer.stdout.partition("? ")[0]
    assert "the steps of train are those of out/metrics.jsonl: its log has none" in " ".join(answer.stdout.split())


KEPT = "wandb/run-20260302_100000-4zq1x7bn/files/output.log"  # what the process printed


@pytest.mark.parametrize("name", ["slurm-4711.out", "train.log", "train_20260302.log"])
@pytest.mark.parametrize("lines", [titan(), titan(devices=8), unknown()], ids=["a family", "of a size", "guessed"])
def test_what_weights_and_biases_keeps_of_the_output_is_no_run_of_its_own(
    name: str, lines: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, {name: lines, KEPT: lines, KEPT.replace("_100000-4", "_100001-5"): lines[:30]})
    (run,) = found.runs
    assert (run.paths, numbers(run)) == ((tmp_path / name,), list(range(1, STEPS + 1)))
    assert len({event.process for event in run.events}) == 1
    assert len(found.passed_over) == 2
    why = f"W&B's copy of the output: the log of {run.name} counts, whose losses it has"
    assert found.passed_over[tmp_path / KEPT] == why


def test_what_weights_and_biases_keeps_of_another_run_is_judged(tmp_path: Path) -> None:
    found = read(tmp_path / "other", {"train.log": titan(), KEPT: titan(seed=2)})
    assert [[*map(str, run.paths)] for run in found.runs] == [
        [str(tmp_path / "other" / name)] for name in ("train.log", KEPT)
    ]
    found = read(
        tmp_path / "nan", {"train.log": titan(), KEPT: [re.sub("loss: .*?  ", "loss: nan  ", line) for line in titan()]}
    )
    assert len(found.runs) == 2
    lay_out(
        tmp_path / "died", {"slurm-1.out": ["srun: starting"], KEPT: ["torch.OutOfMemoryError: CUDA out of memory."]}
    )
    assert seatrial("judge", "died", cwd=tmp_path).returncode == 4


def test_links_to_logs_are_read_once(tmp_path: Path) -> None:
    lay_out(
        tmp_path, {"logs/train.log": titan(devices=1), "logs/b/metrics.jsonl": metrics(), "outside.log": titan(seed=2)}
    )
    (tmp_path / "logs/latest.log").symlink_to("train.log")
    (tmp_path / "logs/b/other.log").hardlink_to(tmp_path / "logs/train.log")
    (tmp_path / "logs/slurm-4711.out").symlink_to("../outside.log")
    (tmp_path / "logs/slurm-4712.out").symlink_to("../outside.log")
    found = logs.read_runs(tmp_path / "logs")
    of = {path.name for run in found.runs for path in run.paths}
    assert (len(found.runs), of) == (2, {"other.log", "slurm-4711.out"})
    same = {path.name: why for path, why in found.passed_over.items() if why.startswith("it is the same file as ")}
    assert same == {
        "train.log": "it is the same file as b/other.log",
        "latest.log": "it is the same file as b/other.log",
        "slurm-4712.out": "it is the same file as slurm-4711.out",
    }


def test_states_of_checkpoints_are_those_of_one_run(tmp_path: Path) -> None:
    """Hugging Face's output folder: each checkpoint has the history so far."""
    files = {f"out/checkpoint-{n}/trainer_state.json": state(last=n) for n in (10, 20, 30)}
    found = read(tmp_path, {**files, "out/trainer_state.json": state(), "out/checkpoint-10/config.json": ["{}"]})
    (run,) = found.runs
    assert (run.paths, len(numbers(run))) == ((tmp_path / "out/trainer_state.json",), STEPS)
    assert found.passed_over == dict.fromkeys(
        (tmp_path / name for name in files), "metrics: out/trainer_state has all of it"
    )


def test_two_runs_with_metrics_are_two(tmp_path: Path) -> None:
    found = read(tmp_path, {f"{n}/trainer_state.json": state(seed=n) for n in (1, 2)})
    assert [len(numbers(run)) for run in found.runs] == [STEPS, STEPS]


def test_an_unknown_trainer_beside_a_known_one_is_guessed_and_named(tmp_path: Path) -> None:
    lay_out(tmp_path / "logs", {"train.log": titan(), "other.log": unknown(), "pip.log": ["Collecting numpy"] * 9})
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 6, answer.stdout
    assert "other" in answer.stdout
    assert "guess" in answer.stdout
    runs = logs.read_runs(tmp_path / "logs").runs
    assert [sorted(path.name for path in run.paths) for run in runs] == [["pip.log", "train.log"], ["other.log"]]
    both = read(tmp_path / "same", {"train.log": titan(), "other.log": unknown(seed=1)})
    assert both.passed_over == {tmp_path / "same" / "other.log": "its steps are those of same, by a guess"}
    assert [len(numbers(run)) for run in both.runs] == [STEPS]


def test_what_cannot_be_read_is_named_and_the_rest_judged(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    lay_out(folder, {"a/train.log": titan(), "b/train.log.gz": titan(seed=2), "c/rank0.log": titan(seed=3)})
    whole = (folder / "b/train.log.gz").read_bytes()
    (folder / "b/train.log.gz").write_bytes(whole[:-8] + b"\0" * 8)  # the checksum does not fit
    (folder / "gone.log").symlink_to(folder / "nowhere.log")
    (folder / "broken").mkdir()
    (folder / "broken" / "plan.json").write_text("{}")
    (folder / "broken" / "events-0.jsonl").mkdir()
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 6, answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    text = " ".join(answer.stdout.split())
    for name in ("b/train.log.gz", "gone.log", "broken"):
        assert f"not judged: {name}: " in text
    assert "a/train PASS" in text
    found = json.loads(seatrial("judge", "logs", "--format", "json", cwd=tmp_path).stdout)
    assert {Path(name).name for name in found["not_judged"]} == {"train.log.gz", "gone.log", "broken"}
    assert set(found["runs"]) == {"a/train", "c/rank0"}


def test_folders_and_links_that_lead_nowhere_are_named() -> None:
    """For those who may list a folder, and not enter it, as with mode 744."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        lay_out(
            place, {"logs/a.log": titan(), "logs/x/b.log": titan(seed=2), "logs/x/y/c.log": titan(), "own/d.log": []}
        )
        (place / "logs/link.log").symlink_to("../own/d.log")
        (place / "logs/x").chmod(0o744)
        (place / "own").chmod(0o700)
        try:
            with nobody():
                found = logs.read_runs(place / "logs")
        finally:
            (place / "logs/x").chmod(0o755)
        assert [run.paths for run in found.runs] == [(place / "logs/a.log",)]
        assert found.unread == {
            place / "logs/link.log": "it is a link to a file that cannot be read: Permission denied",
            place / "logs/x": "its files cannot be read: Permission denied",
        }


def test_a_rotated_log_of_which_a_piece_is_broken_is_not_judged(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a.log": titan(), "t.log": titan(first=21), "t.log.1.gz": titan(last=20, done=False)})
    (tmp_path / "t.log.1.gz").write_bytes((tmp_path / "t.log.1.gz").read_bytes()[:-8] + b"\0" * 8)
    found = logs.read_runs(tmp_path)
    assert [run.paths for run in found.runs] == [(tmp_path / "a.log",)]
    assert set(found.unread) == {tmp_path / "t.log", tmp_path / "t.log.1.gz"}
    assert all(why.endswith(" in t.log.1.gz") for why in found.unread.values())


def test_nothing_but_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path / "logs", {"train.log.gz": titan()})
    path = tmp_path / "logs" / "train.log.gz"
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "train.log.gz why: it cannot be read: CRC" in " ".join(answer.stderr.split())


def test_every_file_is_of_one_run_or_named(tmp_path: Path) -> None:
    """Whatever lies in a folder, in whatever names."""
    contents = [titan(), titan(seed=2, begin=99), titan(begin=4000), titan(last=12, done=False), metrics(), table()]
    contents += [metrics(seed=2), state(), state(last=20), unknown(), [], ["x"] * 5, ['{"a":1}'] * 5, ["\x00\xff"] * 3]
    names = [
        "rank{}.log",
        "train.log",
        "train.log.1",
        "train.log.2.gz",
        "m.jsonl",
        "m.csv",
        "trainer_state.json",
        "log.0",
    ]
    names += ["attempt_{}/0/stdout.log", "a/rank{}.log", "b/rank{}.log", "slurm-{}1234.out", "node{}/x.log", "README"]
    names += ["x.err", "out.log.gz", "c/d/e.txt", "7/stdout.log", "7/stderr.log", "events.out.tfevents.1", "job.o4711"]
    rng = random.Random(5)
    for trial in range(40):
        folder = tmp_path / str(trial)
        files = {rng.choice(names).format(rng.randint(0, 3)): rng.choice(contents) for _ in range(rng.randint(1, 9))}
        found = read(folder, files)
        owned = [path for run in found.runs for path in run.paths]
        assert len(set(owned)) == len(owned), files.keys()
        assert {folder / name for name in files} <= {*owned, *found.passed_over, *found.unread}, files.keys()


def test_archives_are_known_by_their_content(tmp_path: Path) -> None:
    lay_out(tmp_path / "logs", {"train.log": titan()})
    with tarfile.open(tmp_path / "logs/older.gz", "w:gz") as tar:
        tar.add(tmp_path / "logs/train.log", "train.log")
    (tmp_path / "logs/copy.log").write_bytes(lzma.compress((tmp_path / "logs/train.log").read_bytes()))
    (tmp_path / "logs/model.bin").write_bytes((tmp_path / "logs/older.gz").read_bytes())  # is never read, and no log
    found = logs.read_runs(tmp_path / "logs")
    assert [run.paths for run in found.runs] == [(tmp_path / "logs/train.log",)]
    assert found.passed_over == {
        tmp_path / "logs/older.gz": "an archive: unpack it",
        tmp_path / "logs/copy.log": "compressed, but not with gzip: unpack it",
    }


def test_what_is_never_read_is_named(tmp_path: Path) -> None:
    names = ("events.out.tfevents.17.gpu.9.0", "run-1.wandb", "old.tar.gz", "train.log.2.zst")
    lay_out(tmp_path / "logs", {"train.log": titan(), **{name: ["x"] for name in (*names, "model.safetensors")}})
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout
    for name in names:
        assert f"passed over: {name}" in answer.stdout
    assert "safetensors" not in answer.stdout
