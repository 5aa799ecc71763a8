"""A step that is the description of a progress bar: its loss is drawn again each time that the bar moves."""

from __future__ import annotations

from pathlib import Path

from seatrial import logs
from seatrial.metrics import measure
from seatrial.verdict import judge


def test_a_step_with_a_bar_of_its_own_parts_may_be_drawn_again(tmp_path: Path) -> None:
    """The loss before tqdm's bar is a running mean, which two runs that write into one log would not give."""
    steps = [
        (f"Epoch: [{epoch}/60] Loss: {4 - epoch / 40 + part / 1000:.4f}", part)
        for epoch in range(40)
        for part in (3, 6, 9)
    ]
    texts = {
        "drawn": [f"{step}: {part * 10}%|## | {part}/10 [00:01<00:09, 1.1it/s]" for step, part in steps],
        "plain": [step for step, _ in steps],
    }
    names = {}
    for name, lines in texts.items():
        path = tmp_path / f"{name}.log"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        verdict = judge(measure(logs.read([path], "generic"), None), None, rehearsal="")
        names[name] = {check.name for axis in verdict.axes.values() for check in axis.checks}
    assert "one loss per step" not in names["drawn"]
    assert "one loss per step" in names["plain"]
