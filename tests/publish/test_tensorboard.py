"""TensorBoard: scalars and texts, read back by TensorBoard's own reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seatrial.report import markdown
from tests.helpers import publishing

pytestmark = pytest.mark.slow

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
found.Reload()
tags = found.Tags()
print(json.dumps({
    "scalars": {tag: [[s.step, s.wall_time, s.value] for s in found.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: [tensor_util.make_ndarray(t.tensor_proto).item().decode() for t in found.Tensors(tag)]
              for tag in tags["tensors"]},
}))
"""


def read(folder: Path) -> dict[str, Any]:
    return dict(json.loads(publishing.python(READER, folder)))


@pytest.mark.parametrize("number", [0, 1], ids=["sound", "diverged"])
def test_scalars_and_texts_are_there_once(tmp_path: Path, number: int) -> None:
    publishing.needed("tensorboard", "tensorboardX")
    run_dir, out = publishing.runs(tmp_path)[number], tmp_path / "out"
    for source in (run_dir, shutil.copytree(run_dir, tmp_path / "copies" / run_dir.name)):
        assert publishing.publish(source, "--to", "tensorboard", "--out", out, cwd=tmp_path) == (
            f"tensorboard --logdir {out}\n"
        )
    one = publishing.published(run_dir)
    (folder,) = out.iterdir()
    assert folder.name.startswith(run_dir.name)
    found = read(folder)
    names = {name for point in one.points for name in point.values}
    assert set(found["scalars"]) == names | {f"run/{name}" for name in one.figures}
    for name in names:
        wanted = [
            (point.step, point.at, np.float32(point.values[name])) for point in one.points if name in point.values
        ]
        for scalar, (step, at, value) in zip(found["scalars"][name], wanted, strict=True):
            assert (scalar[0], scalar[1]) == (step, pytest.approx(at, abs=1e-3))
            assert np.array_equal(np.float32(scalar[2]), value, equal_nan=True)
    (text,) = found["texts"]["verdict/text_summary"]
    assert text == markdown.render(one.report)
    (text,) = found["texts"]["parameters/text_summary"]
    assert f"    outcome = {one.tags['outcome']}" in text.splitlines()
    assert f"    optimizer.learning_rate = {one.parameters['optimizer.learning_rate']}" in text.splitlines()
    assert (folder / "report.html").read_text() == one.artefacts()["report.html"]


def test_names_of_any_length_and_kind(tmp_path: Path) -> None:
    publishing.needed("tensorboard", "tensorboardX")
    run_dir = publishing.runs(tmp_path)[0].rename(tmp_path / ("値\x1b[31m\n=" + "x" * 240))
    publishing.publish(run_dir, "--to", "tensorboard", "--out", tmp_path / "out", cwd=tmp_path)
    (folder,) = (tmp_path / "out").iterdir()
    assert "\x1b" not in folder.name
    assert len(read(folder)["scalars"]["loss"]) == 30
