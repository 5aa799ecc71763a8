"""A run that is killed and started again learns what the run would have that was not: of every kind of data."""

from __future__ import annotations

import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seatrial.spec import Batch, Checkpoint, Execution, MeshShape, Optimizer, Parallelism, Topology
from tests.helpers.trainer_runs import committed, finish, losses, resumed_at, start, wait_until
from tests.helpers.training_data import CASES

ELSEWHERE = "megatron"  # also goes on over another mesh


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_goes_on_to_the_bit(filled, tmp_path, name):
    """Forty steps read every example several times."""
    tiny = filled(name)
    spec = replace(
        tiny,
        model=replace(tiny.model, num_layers=1, hidden_dim=32, ffn_dim=48, num_heads=4, num_kv_heads=2, head_dim=8),
        batch=Batch(sequence_length=32, global_batch_size=8, micro_batch_size=8),
        steps=40,
        optimizer=Optimizer(learning_rate=1e-2, warmup_steps=4, decay_steps=100),
        execution=Execution(compile_cache=str(Path(tempfile.gettempdir()) / "seatrial-test-resume")),
        checkpoint=Checkpoint(enabled=True, resume=True, interval_steps=20, keep=3),
    )
    whole, out = tmp_path / "whole", tmp_path / "killed"
    code, text = finish(start(replace(spec, checkpoint=Checkpoint()), whole))
    assert code == 0, text
    expected = losses(whole)
    assert [*expected] == [*range(40)]
    assert len({*expected.values()}) > 30

    process = start(spec, out)
    wait_until(process, lambda: 20 in committed(out))
    process.kill()
    code, text = finish(process)
    assert (code, committed(out)) == (-signal.SIGKILL, [20]), text
    if name == ELSEWHERE:
        shutil.copytree(out, tmp_path / "elsewhere")

    code, text = finish(start(spec, out))
    assert (code, resumed_at(text)) == (0, 20), text
    assert losses(out) == expected
    if name == ELSEWHERE:
        mesh = replace(
            spec,
            topology=Topology(devices_per_node=4),
            parallelism=Parallelism(within_node=MeshShape(fsdp=2, tensor=2)),
            batch=replace(spec.batch, micro_batch_size=4),
        )
        code, text = finish(start(mesh, tmp_path / "elsewhere"))
        assert (code, resumed_at(text)) == (0, 20), text
        found = losses(tmp_path / "elsewhere")
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=0, atol=1e-5)
