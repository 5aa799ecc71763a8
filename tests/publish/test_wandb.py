"""W&B offline: what was written is read back from its file, record by record."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import publishing

pytestmark = pytest.mark.slow

# argv: a .wandb file. It has 7 bytes of its own, then records as in LevelDB's log: blocks of 32 KiB, in which each
# piece has CRC-32 (4 bytes), length (2), kind (1: whole, 2: first, 3: middle, 4: last). They hold W&B's messages.
READER = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
data, place, record = open(sys.argv[1], "rb").read(), 7, b""
out = {"config": {}, "history": [], "summary": {}, "files": []}
assert data[:4] == b":W&B"
while place < len(data):
    left = 32768 - place % 32768
    if left < 7:
        place += left
        continue
    _, length, kind = struct.unpack("<IHB", data[place:place + 7])
    record += data[place + 7:place + 7 + length]
    place += 7 + length
    if kind in (2, 3):
        continue
    message, record = Record.FromString(record), b""
    name = lambda item: item.key or "/".join(item.nested_key)
    if message.HasField("run"):
        out |= {"id": message.run.run_id, "project": message.run.project, "name": message.run.display_name,
                "tags": list(message.run.tags)}
        out["config"] |= {name(item): json.loads(item.value_json) for item in message.run.config.update}
    elif message.HasField("config"):
        out["config"] |= {name(item): json.loads(item.value_json) for item in message.config.update}
    elif message.HasField("history"):
        out["history"].append({name(item): json.loads(item.value_json) for item in message.history.item})
    elif message.HasField("summary"):
        out["summary"] |= {name(item): json.loads(item.value_json) for item in message.summary.update}
    elif message.HasField("request") and message.request.HasField("log_artifact"):
        out["files"] += [entry.path for entry in message.request.log_artifact.artifact.manifest.contents]
    elif message.HasField("artifact"):
        out["files"] += [[entry.path, entry.size] for entry in message.artifact.manifest.contents]
    elif message.HasField("exit"):
        out["exit"] = message.exit.exit_code
print(json.dumps(out))
"""


def written(folder: Path) -> dict[str, Any]:
    """The content of the only file of a run."""
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return dict(json.loads(publishing.python(READER, path)))


def publish(run_dir: Path, folder: Path) -> None:
    publishing.publish(
        run_dir, "--to", "wandb", "--project", "nightly", "--out", folder, cwd=run_dir.parent, WANDB_MODE="offline"
    )


@pytest.mark.parametrize("number", [0, 1], ids=["sound", "diverged"])
def test_a_run_is_written_whole_and_once(tmp_path: Path, number: int) -> None:
    publishing.needed("wandb")
    run_dir = publishing.runs(tmp_path)[number]
    for source in (run_dir, shutil.copytree(run_dir, tmp_path / "copies" / run_dir.name)):
        publish(source, tmp_path / "to")  # the second one takes the place of the first
    one, found = publishing.published(run_dir), written(tmp_path / "to")
    assert (found["id"], found["project"], found["name"]) == (one.id, "nightly", one.title)
    assert set(found["tags"]) == {one.tags[name] for name in ("outcome", "model", "device")}
    assert {path: found["config"][path] for path in one.parameters} == one.parameters
    assert found["config"]["seatrial"]["exit_code"] == one.tags["exit_code"]
    wanted: dict[int, dict[str, float]] = {}
    for point in one.points:
        wanted.setdefault(point.step, {}).update(point.values)
    rows = {row["_step"]: row for row in found["history"]}
    assert sorted(rows) == sorted(wanted)
    for step, values in wanted.items():
        assert {name: rows[step][name] for name in values} == pytest.approx(values, nan_ok=True)
    first = min(one.points, key=lambda point: point.step)
    assert rows[first.step]["_timestamp"] == pytest.approx(first.at)
    for name, figure in one.figures.items():
        assert float(found["summary"][f"run/{name}"]) == pytest.approx(figure, nan_ok=True)
    assert found["summary"]["outcome"] == one.tags["outcome"]
    assert one.report.verdict is not None
    for axis, verdict in one.report.verdict.axes.items():
        assert all(found["summary"][f"{axis}/{check.title}"] == check.status for check in verdict.checks)
    sizes = {name: len(text.encode()) for name, text in one.artefacts().items()}
    assert dict(found["files"]) == sizes
    assert any(math.isnan(row["loss"]) for row in rows.values() if "loss" in row) == (number == 1)


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    publishing.needed("wandb")
    run_dir = publishing.runs(tmp_path)[0]
    one = publishing.published(run_dir)
    others = [f"run-20260101_000000-{one.id}", "offline-run-20260101_000000-abcdef01", f"offline-run-x-{one.id}"]
    for name in others:
        (tmp_path / "wandb" / name).mkdir(parents=True)
    (tmp_path / "wandb" / f"offline-run-20260101_000000-{one.id}").symlink_to(tmp_path)
    publish(run_dir, tmp_path)
    assert all((tmp_path / "wandb" / name).is_dir() for name in others)
    assert written(tmp_path)["id"] == one.id


def test_hostile_text_comes_back(tmp_path: Path) -> None:
    publishing.needed("wandb")
    evil = "a=b\"'<script>{{7*7}}\x1b[31m\n値"
    run_dir = publishing.runs(tmp_path)[0].rename(tmp_path / evil)
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["spec"]["name"] = evil
    (run_dir / "plan.json").write_text(json.dumps(plan))
    publish(run_dir, tmp_path / "to")
    one, found = publishing.published(run_dir), written(tmp_path / "to")
    assert found["name"] == one.title
    assert found["config"]["name"] == one.parameters["name"]
    assert "\x1b" not in found["name"]
