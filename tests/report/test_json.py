"""The report for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from seatrial import metrics, spec, verdict
from seatrial.report import json as report_json
from seatrial.report.gather import gather
from tests.helpers import run_directory


def test_it_holds_the_whole_run(tmp_path: Path) -> None:
    for name, story in (("sound", run_directory.sound), ("diverged", run_directory.diverged)):
        report = gather(run_directory.write(tmp_path / name, story))
        data = json.loads(report_json.render(report), parse_constant=lambda constant: 1 / 0)  # NaN is not JSON
        assert data["v"] == 1
        assert verdict.from_dict(data["verdict"]) == report.verdict
        assert metrics.to_dict(metrics.from_dict(data["metrics"])) == data["metrics"]
        assert spec.from_dict(data["spec"]) == report.spec
        assert [change["path"] for change in data["rehearsal"]["changes"]] == [c.path for c in report.changes]
        assert len(data["processes"]) == len(report.processes)
        assert [tail["log"] for tail in data["tails"]] == [tail.log for tail in report.tails]


def test_it_says_which_logs_a_run_was_read_from(tmp_path: Path) -> None:
    run = run_directory.write_judged(
        tmp_path / "run", run_directory.from_other_trainer, asked=run_directory.asked_for()
    )
    data = json.loads(report_json.render(gather(run)))
    assert (data["sources"], data["family"], data["against"]) == (["logs/node0.log"], "maxtext", "configs/llama.yml")


def test_what_is_not_there_is_null(tmp_path: Path) -> None:
    data = json.loads(report_json.render(gather(tmp_path)))
    assert (data["verdict"], data["metrics"], data["spec"]) == (None, None, None)
    assert data["missing"]
