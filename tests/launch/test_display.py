"""The display of a run while it goes on, from the events that its processes write."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console

from seatrial import events
from seatrial.launch.display import ROWS, View
from seatrial.launch.progress import Ending, Progress


def progress(num_processes: int = 1, **fields: Any) -> Progress:
    seen = Progress(planned_steps=40)
    processes = [
        {"rank": rank, "state": "running", "suspended": False, "last_step": None, "last_line": "", **fields}
        for rank in range(num_processes)
    ]
    seen.see({f"h{p['rank']}": {"processes": [p]} for p in processes}, 0.0)
    return seen


def show(run_dir: Path, *, terminal: bool, width: int = 80, num_processes: int = 1, name: str = "a-run") -> str:
    """Everything that a view writes for a run of 40 steps, 30 of which are done."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=width, no_color=True, highlight=False)
    writers = [events.Writer(run_dir / f"events-{rank}.jsonl") for rank in range(num_processes)]
    with View(run_dir, name=name, planned_steps=40, console=console) as view:
        view.update(progress(num_processes))
        for rank, writer in enumerate(writers):
            writer.write(
                events.RunStarted(
                    process=rank,
                    num_processes=num_processes,
                    num_devices=8,
                    device_kind="cpu",
                    num_parameters=1_234_567,
                )
            )
        for step in range(30):
            for rank, writer in enumerate(writers):
                seconds = 90.0 if step == 0 else 2.0
                writer.write(events.Step(process=rank, step=step, seconds=seconds, tokens=2048, loss=6 - step / 10))
            view.update(progress(num_processes, last_step=step))
    for writer in writers:
        writer.close()
    return output.getvalue()


def test_without_a_terminal_it_is_a_line_now_and_then(tmp_path: Path) -> None:
    lines = show(tmp_path, terminal=False).splitlines()
    assert lines[0] == "a-run: 1.2 M parameters on 8 × cpu in 1 process"
    assert [line.split()[1] for line in lines[1:]] == [f"{n}/40" for n in (1, 4, 8, 12, 16, 20, 24, 28)]
    assert lines[1] == "step 1/40  loss 6.000"
    assert lines[-1] == "step 28/40  loss 3.300  1,024 tokens/s  2.000 s/step  0:00:24 left"


def test_on_a_terminal_the_display_is_live(tmp_path: Path) -> None:
    shown = show(tmp_path, terminal=True)
    assert "30/40" in shown
    assert "0:00:20 left" in shown
    assert "rank 0" not in shown


def test_more_than_one_process_have_a_row_each(tmp_path: Path) -> None:
    last = show(tmp_path, terminal=True, num_processes=2).rpartition("in 2 processes")[2]
    assert "rank 0 on h0: running, step 30" in last
    assert "rank 1 on h1: running, step 30" in last


def test_of_many_processes_those_that_are_behind_are_shown(tmp_path: Path) -> None:
    seen = progress(1000, last_step=29)
    for rank, changed in ((7, {"state": "exited"}), (500, {"last_step": 28}), (999, {"last_step": None})):
        seen.processes[rank][1].update(changed)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, no_color=True)
    with View(tmp_path, name="a-run", planned_steps=40, console=console) as view:
        view.update(seen)
    ranks = re.findall(r"(?:rank|and) \d[^\x1b\r\n]*\b", output.getvalue())[-ROWS - 1 :]
    assert ranks[:4] == [
        "rank 7 on h7: exited, step 30", "rank 999 on h999: running", "rank 500 on h500: running, step 29",
        "rank 0 on h0: running, step 30",
    ]  # fmt: skip
    assert ranks[-1] == "and 992 more"


@pytest.mark.parametrize("width", [20, 40])
def test_a_narrow_terminal_is_not_overrun(tmp_path: Path, width: int) -> None:
    last = show(tmp_path, terminal=True, width=width, num_processes=2).rpartition("a-run")[2]
    rows = [row for row in last.split("\n")[1:] if "\x1b" not in row]
    assert rows
    assert all(len(row.rstrip("\r")) <= width for row in rows)


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    shown = show(tmp_path, terminal=False, name="evil\x1b]0;owned\x07\x1b[2J[bold]name\nsecond line")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]name\\nsecond line" in shown


def test_that_it_is_being_stopped_is_said_once(tmp_path: Path) -> None:
    output = io.StringIO()
    stopping = progress()
    stopping.ending = Ending(reason="no_progress")
    with View(tmp_path, name="a-run", planned_steps=40, console=Console(file=output)) as view:
        for _ in range(3):
            view.update(stopping)
    assert output.getvalue() == "stopping: no progress\n"


def test_colours_that_are_forced_make_no_terminal_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = io.StringIO()
    stopping = progress()
    stopping.ending = Ending(reason="no_progress")
    with View(tmp_path, name="a-run", planned_steps=40, console=Console(file=output)) as view:
        view.update(stopping)
    assert output.getvalue() == "stopping: no progress\n"


def test_before_the_first_step_it_says_which_phase_of_the_start_it_is(tmp_path: Path) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, no_color=True)
    with View(tmp_path, name="a-run", planned_steps=40, console=console) as view:
        for phase in ("compiling the step", "running the first step"):
            view.update(progress(last_line=f"start-up: now {phase}"))
    assert re.findall(r"^([a-z ]+)  0:00:0\d", output.getvalue(), re.MULTILINE) == [
        "compiling the step", "running the first step",
    ]  # fmt: skip


def test_steps_that_cannot_be_copied_here_are_shown_by_what_their_hosts_report(tmp_path: Path) -> None:
    output = io.StringIO()
    with closing(events.Writer(tmp_path / "events-0.jsonl")) as writer:
        writer.write(events.Step(step=0, seconds=1.0, loss=6.0))
    with View(tmp_path, name="a-run", planned_steps=40, console=Console(file=output, width=200)) as view:
        view.update(progress(last_step=0))
        for step in range(1, 40):
            seen = progress(last_step=step)
            seen.uncopied = {"h0": "no room"} if step < 30 else {}
            view.update(seen)
    lines = output.getvalue().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("step")] == [f"{n}/40" for n in (1, *range(4, 31, 4))]
    assert sum("cannot be copied here: no room." in line for line in lines) == 1
    assert lines[-1] == "all that the hosts have written is copied again"


def printing_to(file: IO[str], run_dir: Path) -> None:
    with View(run_dir, name="a-run", planned_steps=40, console=Console(file=file)) as view:
        view.say("a line")


def test_a_reader_that_has_gone_away_stops_nobody(tmp_path: Path) -> None:
    said = f"""
import sys
from pathlib import Path
from seatrial.launch.display import View
with View(Path({str(tmp_path)!r}), name="a-run", planned_steps=40) as view:
    view.say("a line")
    sys.stdin.read()
    for _ in range(3):
        view.say("another")
sys.exit(7)
"""
    run = subprocess.Popen([sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin
    assert run.stdout
    assert run.stdout.readline() == b"a line\n"
    run.stdout.close()
    run.stdin.close()
    assert run.wait(60) == 7


def test_a_full_disk_behind_what_is_printed_stops_nobody_and_a_closed_terminal_does(tmp_path: Path) -> None:
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails as well
    printing_to(full, tmp_path)
    with suppress(OSError):
        full.close()
    terminal, inside = os.openpty()
    os.close(terminal)
    gone = os.fdopen(inside, "w")
    with pytest.raises(OSError, match="Input/output error"):
        printing_to(gone, tmp_path)
    with suppress(OSError):
        gone.close()
