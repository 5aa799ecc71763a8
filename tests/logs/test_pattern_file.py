"""A user's own family of logs: the example of the documentation, the fields, and what can be wrong with the file."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from seatrial import logs
from seatrial.errors import InputError
from seatrial.events import Checkpoint, Eval, RunEnded, RunStarted
from seatrial.logs import pattern_file, time_limit
from tests.helpers.command_line import seatrial
from tests.helpers.log_cases import HERE, steps, values

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "judge-a-log.md"
STEP = r"step = 'step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+) dt (?P<milliseconds>[\d.]+)ms'"


def pattern(folder: Path, *lines: str, name: str = 'name = "mine"') -> Path:
    (folder / "pattern.toml").write_text("\n".join((name, *lines)) + "\n")
    return folder / "pattern.toml"


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """Its files are written as they stand there, its commands run, and its log judged."""
    section = HOWTO.read_text().partition("## A trainer that is not known")[2].partition("\n## ")[0]
    (toml,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (text,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    (tmp_path / "minitrain.toml").write_text(toml)
    (tmp_path / "train.log").write_text(text)
    (command,) = re.findall(r"^\$ seatrial (judge .*--pattern.*)$", section, re.MULTILINE)
    done = seatrial(*command.split(), "--format", "json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"]["outcome"]) == (0, "pass"), done.stdout + done.stderr
    record = logs.read([tmp_path / "train.log"], logs.read_pattern(tmp_path / "minitrain.toml"))
    assert [step.step for step in steps(record)] == [1, 2, 3, 4]
    assert all(step.seconds and step.loss and step.grad_norm for step in steps(record))
    assert [event.loss for event in record if isinstance(event, Eval)] != []


def test_all_kinds_of_lines(tmp_path: Path) -> None:
    path = pattern(
        tmp_path,
        STEP,
        r"pair = '(\w[\w/]*)=(\S+)'",
        "counted_from = 0",
        r"start = 'minitrain begins: (?P<planned_steps>\d+) steps on (?P<num_devices>\d+) devices'",
        "end = 'minitrain is done'",
        r"eval = 'eval at (?P<step>\d+): (?P<loss>\S+)'",
        r"checkpoint = 'saved (?P<step>\d+)'",
        "[fields]",
        'gn = "grad_norm"',
        '"tok/s" = "tokens_per_second_per_device"',
    )
    text = [
        "[rank0]:minitrain begins: 3 steps on 8 devices",
        *(f"2026-01-01 10:00:0{n} step {n}/3 loss {3 - n / 2} dt 1250.0ms gn=2.5 tok/s=12.5K x=1" for n in range(3)),
        "eval at 2: 2.25", "saved 2", "minitrain is done",
    ]  # fmt: skip
    (tmp_path / "log.txt").write_text("\n".join(text) + "\n")
    record = logs.read([tmp_path / "log.txt"], logs.read_pattern(path))
    assert values(steps(record)[1]) == {
        "step": 1, "seconds": 1.25, "loss": 2.5, "grad_norm": 2.5, "tokens_per_second_per_device": 12_500.0
    }  # fmt: skip
    (started,) = [event for event in record if isinstance(event, RunStarted)]
    assert (started.num_devices, started.planned_steps, started.facts["counted_from"]) == (8, 3, 0)
    assert (started.facts["family"], started.facts["clock"]) == ("mine", "log")
    assert [event.reason for event in record if isinstance(event, RunEnded)] == ["completed"]
    assert [(event.step, event.loss) for event in record if isinstance(event, Eval)] == [(2, 2.25)]
    assert [event.step for event in record if isinstance(event, Checkpoint)] == [2]


def test_a_pattern_reads_what_the_family_of_the_same_lines_reads(tmp_path: Path) -> None:
    path = pattern(
        tmp_path,
        r"step = 'iteration +(?P<step>\d+)/ +(?P<total>\d+) \|'",
        r"pair = '(?<=\|) ([^|:]+): +([^|]*)\|'",
        "[fields]",
        '"elapsed time per iteration (ms)" = "milliseconds"',
        '"lm loss" = "loss"',
        '"grad norm" = "grad_norm"',
        '"learning rate" = "learning_rate"',
    )
    log = HERE / "megatron" / "core_v0_6_moe" / "log.txt"
    mine, known = (steps(logs.read([log], family)) for family in (logs.read_pattern(path), "megatron"))
    names = ("step", "seconds", "loss", "grad_norm", "learning_rate")
    assert len(mine) > 1
    assert [[getattr(step, name) for name in names] for step in mine] == [
        [getattr(step, name) for name in names] for step in known
    ]


@pytest.mark.parametrize(
    ("lines", "line", "path", "why", "fix"),
    [
        (["step = 'a"], 1, "pattern.toml", "no TOML", "single quotes"),
        ([r'step = "a\d"'], 2, "pattern.toml", "no TOML", "single quotes"),
        ([], 1, "pattern.toml", "it has no step", "add step = "),
        ([r"step = 'a(?P<step>\d+'"], 2, "step", "no regular expression", "backslash"),
        ([r"step = '(?P<stp>\d+)'"], 2, "step", "no group step", r"(?P<step>"),
        ([r"step = '(?P<step>\S+)'"], 2, "step", "of digits alone", r"(?P<step>\d+)"),
        ([r"step = '(?P<step>\d+)/(?P<total>\w+)'"], 2, "step", "of digits alone", r"(?P<total>\d+)"),
        ([r"step = '(?P<step>\d+) (?P<los>\d+)'"], 2, "step", "no field is called los", "did you mean loss?"),
        (["stpe = ''", STEP], 2, "stpe", "no 'stpe'", "did you mean step?"),
        ([STEP, "pair = '(a)'"], 3, "pair", "1 groups", "two"),
        ([STEP, "counted_from = 2"], 3, "counted_from", "2 is not", "0 or 1"),
        ([STEP, 'counted_from = "1"'], 3, "counted_from", "a number", "example"),
        ([STEP, "eval = 'eval'"], 3, "eval", "no group loss", "(?P<loss>"),
        ([STEP, "end = 'x*'"], 3, "end", "empty line", "has in it"),
        ([STEP, "[fields]", 'a = "lss"'], 4, "fields.a", "no field is called lss", "did you mean loss?"),
        ([STEP, "[fields]", "a = 3"], 4, "fields.a", "no field is called 3", "known are"),
        ([STEP, 'example = "step 1/2"'], 3, "example", "does not match", "correct step"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    lines: list[str], line: int, path: str, why: str, fix: str, tmp_path: Path
) -> None:
    file = pattern(tmp_path, *lines)
    with pytest.raises(InputError) as caught:
        logs.read_pattern(file)
    (problem,) = caught.value.problems
    assert problem.path.endswith(path)
    assert why in problem.why
    assert fix in problem.fix
    assert (problem.mark.line if problem.mark else 1) == line


@pytest.mark.parametrize("name", ["name = ''", "name = 'megatron'", "name = 'a b'", "name = 3", ""])
def test_a_family_needs_a_name_of_its_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name"):
        logs.read_pattern(pattern(tmp_path, STEP, name=name))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"x" * 200_000, None):
        if content is None:
            (tmp_path / "pattern.toml").unlink()
        else:
            (tmp_path / "pattern.toml").write_bytes(content)
        done = seatrial("parse", "-", "--pattern", "pattern.toml", cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "pattern.toml" in done.stderr


@pytest.mark.parametrize("step", [r"(?:step (?P<step>\d+) )?", r"(?:step )?(?P<step>\d*) ?"])
def test_a_line_in_which_the_pattern_finds_no_step_is_none(step: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("".join(f"step {n} loss {4 - n / 9:.3f}\n" for n in range(1, 9)) + "loss 3.1\n")
    record = logs.read(
        [tmp_path / "log.txt"], logs.read_pattern(pattern(tmp_path, f"step = '{step}loss (?P<loss>\\S+)'"))
    )
    assert [event.step for event in steps(record)] == list(range(1, 9))


def test_a_start_behind_the_last_step_keeps_a_log_from_passing(tmp_path: Path) -> None:
    ran = [f"step {n}/20 loss {5 - n / 9:.3f} dt 1000.{n % 5}ms" for n in range(1, 21)]
    pattern(tmp_path, STEP, "start = 'minitrain begins'", "end = 'minitrain is done'")
    for behind, code in (([], 0), (["minitrain begins"], 6), (["minitrain begins", "minitrain is done"], 0)):
        (tmp_path / "train.log").write_text("\n".join(["minitrain begins", *ran, *behind, ""]))
        done = seatrial("judge", "train.log", "--pattern", "pattern.toml", cwd=tmp_path)
        assert done.returncode == code, done.stdout


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = pattern(tmp_path, STEP)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert logs.read_pattern(path).families[0].name == "mine"
    path.write_bytes(path.read_bytes() + b"stpe = ''\n")
    with pytest.raises(InputError) as caught:
        logs.read_pattern(path)
    assert str(caught.value.problems[0].mark) == f"{path}:3:1"


@pytest.mark.parametrize("step", [r"step (?P<step>\d+) (\w+\s?)*$", r"(?P<step>\d+) (.*.*)*#", r"(?P<step>\d+)(a|a)*$"])
def test_a_pattern_that_never_ends_is_refused(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "SECONDS", 0.5)
    (tmp_path / "log.txt").write_text("step 1 " + "aaaa " * 40 + "!\nstep 1" + "a" * 60 + "!\n")
    began = time.process_time()
    with pytest.raises(InputError, match="takes too long") as caught:
        logs.read([tmp_path / "log.txt"], logs.read_pattern(pattern(tmp_path, f"step = '{step}'")))
    assert time.process_time() - began < 5
    (problem,) = caught.value.problems
    assert problem.mark is not None
    assert problem.mark.line == 2
    slow = [f"step = '{step}'", f"example = 'step 1 {'aaaa ' * 40}!'"]
    with pytest.raises(InputError):
        logs.read_pattern(pattern(tmp_path, *slow))


def test_every_field_is_one_of_the_events() -> None:
    assert {"loss", "seconds", "milliseconds", "mfu"} <= pattern_file.FIELDS.keys()
    assert pattern_file.FIELDS["milliseconds"].per == 1000


def test_it_is_a_family_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("x\n")
    pattern(tmp_path, STEP)
    done = seatrial("judge", "log.txt", "--pattern", "pattern.toml", "--family", "megatron", cwd=tmp_path)
    assert (done.returncode, "two-families" in done.stderr) == (2, True)
