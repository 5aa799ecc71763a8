"""Files of docker's log driver, and of containerd's, are read as what they hold."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs
from seatrial.events import Fault, Step
from seatrial.logs.docker_logs import unwrapping
from tests.helpers.log_cases import steps

STEPS = [
    f" iteration {n:8d}/      50 | elapsed time per iteration (ms): 1000.0 | lm loss: {11 * 0.97**n:.6E} |"
    for n in range(1, 9)
]
RAISED = [
    "Traceback (most recent call last):", '  File "/app/train.py", line 3, in <module>', "    main()",
    "ValueError: the shard is empty",
]  # fmt: skip


def entry(text: str, second: int = 0, stream: str = "stderr") -> str:
    time = f"2026-02-03T04:05:{second:02d}.123456789Z"
    return json.dumps({"log": text, "stream": stream, "time": time}, separators=(",", ":"))


def written(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "4f1c-json.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_exception_is_quoted_and_steps_have_times(tmp_path: Path, end: str) -> None:
    lines = [entry(text + end, second) for second, text in enumerate([*STEPS, *RAISED])]
    events = list(logs.read([written(tmp_path, lines)]))
    assert [event.step for event in steps(events)] == list(range(1, 9))
    assert [event.wall_time % 60 for event in events if isinstance(event, Step)] == pytest.approx(
        [n + 0.123456 for n in range(8)], abs=1e-3
    )
    (fault,) = [event for event in events if isinstance(event, Fault)]
    assert (fault.fault, fault.line) == ("exception", 12)
    assert fault.text.endswith("ValueError: the shard is empty")


def test_so_it_is_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(entry(f"{line}\n") for line in [*STEPS, *RAISED])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    (fault,) = [event for event in logs.read([Path("-")]) if isinstance(event, Fault)]
    assert fault.text.endswith("ValueError: the shard is empty")


def test_containerd_s_prefix_hides_no_exception(tmp_path: Path) -> None:
    lines = [f"2026-02-03T04:05:{n:02d}.123456789Z stderr F {line}" for n, line in enumerate([*STEPS, *RAISED])]
    (fault,) = [event for event in logs.read([written(tmp_path, lines)]) if isinstance(event, Fault)]
    assert fault.text.endswith("ValueError: the shard is empty")


def test_rows_of_metrics_are_rows(tmp_path: Path) -> None:
    rows = [entry(json.dumps({"step": n, "total_steps": 4, "loss": 3 + 1 / n}) + "\n") for n in range(1, 5)]
    assert [event.step for event in steps(logs.read([written(tmp_path, rows)]))] == [1, 2, 3, 4]


def unwrapped(*blocks: list[str]) -> list[str]:
    return [line for block in unwrapping(lambda _: iter(blocks))(Path("x")) for line in block]


def test_lines_that_were_cut_are_put_together_and_others_stay_as_they_are() -> None:
    time = "2026-02-03T04:05:00.123456789Z"
    assert unwrapped(
        [entry("a long "), entry("of the other\n", stream="stdout"), entry("line\n"), '{"log":"cut off'],
        ["7", entry("10%\r20%\r\n"), entry("no end")],
    ) == [f"{time} of the other", f"{time} a long line", '{"log":"cut off', "7", f"{time} 10%", "\r20%", "no end"]
    assert unwrapped() == []
    assert unwrapped(["a", entry("b\n")]) == ["a", entry("b\n")]  # a program that prints such objects itself


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=80), min_size=1))
def test_any_text_is_what_it_was(texts: list[str]) -> None:
    assert unwrapped([entry(f"{text}\n") for text in texts]) == [
        text if text.startswith("{") else f"2026-02-03T04:05:00.123456789Z {text}" for text in texts
    ]
