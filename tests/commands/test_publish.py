"""`seatrial publish` and `--metrics-port` on the command line: each mistake is one message with a fix."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from seatrial import publish as publishing_room
from seatrial.publish import TARGETS
from seatrial.publish.gauges import GAUGES
from tests.helpers import publishing, run_directory, tiny_runs
from tests.helpers.command_line import seatrial

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_directory.write(tmp_path_factory.mktemp("runs") / "run", rehearsing=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "RUN_DIR"),
        ("run", f"one of: {', '.join(TARGETS)}"),
        ("run --to jenkins", "there is no 'jenkins'"),
        ("run --to csv", "--out FOLDER"),
        ("run --to tensorboard", "--out FOLDER"),
        ("run --to junit --url http://x", "junit takes --out"),
        ("run --to mlflow --url http://x --out y", "mlflow takes --url, --project"),
        ("nowhere --to junit", "it is no run directory"),
        (". --to junit", "it is no run directory"),
        ("run run --to junit", "run and run are the same run"),
        ("run copy --to junit", "run and copy are the same run"),
        ("run --to junit --out run", "error[unreadable] run\n  why: Is a directory\n  fix: name a file"),
        ("run --to csv --out run/plan.json", "run/plan.json\n  why: File exists\n  fix: name a place"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message(run_dir: Path, arguments: str, words: str) -> None:
    if "copy" in arguments:
        shutil.copytree(run_dir, run_dir.with_name("copy"), dirs_exist_ok=True)
    done = seatrial("publish", *arguments.split(), cwd=run_dir.parent)
    assert done.returncode == 2
    assert done.stderr.count("error[") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.package])
def test_a_package_that_is_missing_is_named(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        publishing_room, "find_spec", lambda word: None if word == TARGETS[name].package else real(word)
    )
    out = ["--out", tmp_path / "out"] if "out" in TARGETS[name].takes else []
    done = seatrial("publish", run_dir, "--to", name, *out, cwd=run_dir.parent)
    assert done.returncode == 2
    assert f"fix: pip install 'seatrial[{TARGETS[name].extra}]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_and_reference_name_every_target(tmp_path: Path) -> None:
    text = seatrial("publish", "--help", cwd=tmp_path).stdout
    (line,) = re.findall(r"--to TARGET +(.*?)\.\s", text, re.DOTALL)
    assert re.split(r", | or ", " ".join(line.split())) == list(TARGETS)
    page = (ROOT / "docs" / "reference" / "publish.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:4]] for line in page.splitlines() if line.startswith("| `")]
    named = {name: (sorted(re.findall(r"--(\w+)", options)), extra) for name, options, extra in rows}
    assert named == {name: (sorted(target.takes), target.extra) for name, target in TARGETS.items()}


def test_the_reference_names_every_gauge() -> None:
    page = (ROOT / "docs" / "reference" / "publish.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(seatrial_\w+)` \|", page, re.MULTILINE) == list(GAUGES)


def test_every_extra_is_one_of_the_package(run_dir: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {target.extra for target in TARGETS.values() if target.extra}
    assert named <= set(extras)
    assert extras["publish"] == [f"seatrial[{','.join(sorted(named))}]"]


def test_what_was_not_judged_is_judged_first(run_dir: Path, tmp_path: Path) -> None:
    fresh = Path(shutil.copytree(run_dir, tmp_path / "fresh"))
    for name in ("verdict.json", "metrics.json"):
        (fresh / name).unlink()
    done = seatrial("publish", fresh, "--to", "junit", cwd=tmp_path)
    assert done.returncode == 0
    assert "<testsuites" in done.stdout
    assert json.loads((fresh / "verdict.json").read_text())["outcome"] in done.stdout


def test_a_run_that_goes_on_is_not_published(tmp_path: Path) -> None:
    going = run_directory.write(tmp_path / "going")
    status = {"v": 1, "run": "x", "state": "running", "heartbeat": 1e18, "last_step": 3}
    (going / "status.json").write_text(json.dumps(status | {"heartbeat": time.time()}))
    done = seatrial("publish", going, "--to", "junit", cwd=tmp_path)
    assert done.returncode == 2
    assert "this run goes on (running, step 3)" in done.stderr


@pytest.mark.parametrize(
    ("port", "said"), [("http://x", "'http://x' is no port"), ("a..b:9400", "a..b:9400 cannot be served")]
)
def test_a_port_for_metrics_is_checked_before_anything_is_started(port: str, said: str, tmp_path: Path) -> None:
    config = tiny_runs.write_config(tmp_path)
    done = seatrial("run", config, "--out", tmp_path / "run", "--metrics-port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_targets_are_imported_by_those_who_need_them() -> None:
    program = """
import sys
import seatrial.publish, seatrial.publish.live, seatrial.commands.publish, seatrial.commands.run
from importlib import import_module
for name in seatrial.publish.TARGETS:
    import_module(f"seatrial.publish.{name}")
print(*sys.modules)
"""
    modules = publishing.python(program).split()
    tops = {module.partition(".")[0] for module in modules}
    assert {"seatrial", "numpy"} <= tops
    assert tops & {target.package for target in TARGETS.values() if target.package} == set()


def test_the_dashboard_is_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", "publish", "--grafana"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    dashboard = json.loads(done.stdout)
    assert dashboard["title"] == "Seatrial"
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    cells = [(x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])]
    assert len(cells) == len(set(cells))  # no panel lies on another
