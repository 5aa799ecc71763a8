"""Checkpoints: what is saved comes back, on any mesh; what is damaged does not; what is kept is what was asked for."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CoroutineType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seatrial import events
from seatrial.spec import Batch, Checkpoint, Execution, Optimizer, Precision, RunSpec
from seatrial.train.checkpoint import Checkpoints, Restored, kept
from seatrial.train.checkpoint_files import find
from seatrial.train.mesh import make_mesh
from seatrial.train.step import State
from seatrial.train.trainer import Trainer, make_trainer
from tests.helpers.trainer import TINY, canonical, make_spec

SMALL = replace(TINY, num_layers=2)
TRAINERS: dict[str, Trainer] = {}  # of runs that differ in nothing but their checkpoints
RESUME = Checkpoint(enabled=True, resume=True, keep=None)


def spec_of(mesh: dict[str, int] | None = None, checkpoint: Checkpoint = RESUME, **changes) -> RunSpec:
    return make_spec(mesh, **{"model": SMALL, "checkpoint": checkpoint, **changes})


class Run:
    """A run's checkpoints, with what they said and told."""

    def __init__(self, spec: RunSpec, run_dir: Path) -> None:
        self.spec = spec
        key = repr(replace(spec, checkpoint=Checkpoint()))
        if key not in TRAINERS:
            TRAINERS[key] = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
        self.trainer = TRAINERS[key]
        self.said: list[str] = []
        self.events: list[events.Event] = []
        self.checkpoints = Checkpoints(spec, run_dir, self.trainer, emit=self.events.append, say=self.said.append)

    def state(self) -> State:
        """A state of random numbers, so that nothing is alike by chance; `init` would take seconds to compile."""
        numbers = np.random.default_rng(0)

        def draw(x: jax.ShapeDtypeStruct, place: jax.sharding.Sharding) -> jax.Array:
            return jax.device_put(numbers.random(x.shape, np.float32).astype(x.dtype), place)

        return jax.tree.map(draw, jax.eval_shape(self.trainer.init), self.trainer.state_shardings)

    def save(self, *steps: int, **metrics: float) -> State:
        state = self.state()
        for step in steps:
            state["step"] = jax.device_put(np.int32(step), state["step"].sharding)
            self.checkpoints.save(step, state, metrics)
        self.checkpoints.wait()
        return state

    def restore(self) -> Restored:
        restored = self.checkpoints.restore()
        assert restored is not None
        return restored

    def values(self, state: State) -> dict[str, np.ndarray]:
        """Every array of a state by name, its layers in the model's order, without the padding of tables."""
        state = jax.tree.map(np.asarray, state)
        trees = {"params": state["params"], **state["slots"]}
        flat = {
            f"{group}{jax.tree_util.keystr(path)}": x
            for group, tree in trees.items()
            for path, x in jax.tree_util.tree_flatten_with_path(canonical(tree, self.spec))[0]
        }
        flat = {name: x[: SMALL.vocab_size] if "embedding" in name else x for name, x in flat.items()}
        return {name: x[:, : SMALL.vocab_size] if "head" in name else x for name, x in flat.items()}


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, Run, State]:
    """A run directory with checkpoints of steps 10 and 20, made on two devices."""
    run_dir = tmp_path_factory.mktemp("saved")
    run = Run(spec_of({"fsdp": 2}), run_dir)
    assert run.checkpoints.restore() is None
    return run_dir, run, run.save(10, 20)


def copy(run_dir: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    subprocess.run(["cp", "-r", f"{run_dir}/.", to], check=True)
    return to


def test_what_was_measured_goes_on_with_the_state(tmp_path: Path) -> None:
    Run(spec_of(), tmp_path).save(3, loss=2.5, validation_loss=float("nan"), evaluations_since_best=2.0)
    found = Run(spec_of(), tmp_path).restore().metrics
    assert str(dict(found)) == "{'loss': 2.5, 'validation_loss': nan, 'evaluations_since_best': 2.0}"


# --- there and back ---------------------------------------------------------------------------------------------------

FOUR = replace(SMALL, num_layers=4, vocab_size=100)


@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({"fsdp": 2}, {}),
        ({"data": 2, "tensor": 4}, {"zero1": True}),  # tables are padded
        ({"pipeline": 2, "data": 2}, {"virtual_pipeline": 2}),  # layers lie in another order
    ],
)
def test_any_mesh_goes_on_from_any_other(mesh, changes, tmp_path):
    one, other = Run(spec_of(model=FOUR), tmp_path), Run(spec_of(mesh, model=FOUR, **changes), tmp_path)
    there = one.save(3)
    restored = other.restore()
    assert (restored.step, restored.examples) == (3, 48)
    assert_same(other.values(restored.state), one.values(there))
    assert jax.tree.map(lambda x: x.sharding, restored.state) == other.trainer.state_shardings
    other.checkpoints.save(4, restored.state, {})
    other.checkpoints.wait()
    back = Run(spec_of(model=FOUR), tmp_path)
    assert_same(back.values(back.restore().state), one.values(there))


def test_what_it_says_and_tells(saved):
    run_dir, run, state = saved
    again = Run(run.spec, run_dir)
    assert again.restore().step == 20
    assert again.said == [
        f"resumed from {run_dir}/checkpoints/20 (step 20, 320 examples), "
        "because it is the newest checkpoint of this run"
    ]
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    assert [(e.action, e.step, e.bytes) for e in run.events] == [("save", 10, size), ("save", 20, size)]
    assert [(e.action, e.step, e.bytes) for e in again.events] == [("restore", 20, size)]
    assert all(e.seconds > 0 for e in (*run.events, *again.events))


def test_what_is_saved_may_be_overwritten_at_once(tmp_path):
    run = Run(spec_of(), tmp_path)
    state = run.state()
    before = run.values(state)
    run.checkpoints.save(1, state, {})
    overwrite = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    for _ in range(20):
        state = overwrite(state)
    run.checkpoints.wait()
    assert_same(run.values(Run(spec_of(), tmp_path).restore().state), before)


def test_another_precision_is_cast_and_said(saved):
    run_dir, run, state = saved
    precision = Precision(params_dtype="bfloat16", optimizer_dtype="bfloat16")
    other = Run(spec_of({"data": 2}, precision=precision), run_dir)
    restored = other.restore()
    expected = {name: x.astype(jnp.bfloat16) for name, x in run.values(state).items()}
    assert_same(other.values(restored.state), expected)
    assert other.said[0] == "note: the checkpoint's float32 is cast to bfloat16"
    assert "note: since the checkpoint, precision.params_dtype has changed from 'float32' to 'bfloat16'" in other.said


def test_another_batch_size_goes_on_behind_the_same_example(saved):
    run_dir, run, _ = saved
    half = Batch(sequence_length=32, global_batch_size=8, micro_batch_size=4)
    other = Run(replace(run.spec, batch=half), run_dir)
    assert other.restore().examples == 320
    assert other.checkpoints.examples(21) == 328


def test_facts_hold_no_environment(tmp_path):
    run = Run(spec_of(execution=Execution(environment={"HF_TOKEN": "abracadabra"})), tmp_path)
    run.save(1)
    files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert not [path for path in files if b"abracadabra" in path.read_bytes()]


def test_a_run_without_checkpoints_does_not_pay_for_them():
    heavy = "{'orbax', 'tensorstore'} & set(sys.modules)"
    code = f"import sys, seatrial.train.checkpoint; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- which is taken ---------------------------------------------------------------------------------------------------


def test_without_resume_nothing_is_overwritten(saved):
    run_dir, run, _ = saved
    run = Run(replace(run.spec, checkpoint=Checkpoint(enabled=True)), run_dir)
    with pytest.raises(ValueError, match=r"holds checkpoints already \(of step 10, 20\): set checkpoint.resume"):
        run.checkpoints.restore()


@pytest.mark.parametrize(("path", "step"), [(".", 20), ("checkpoints", 20), ("checkpoints/10", 10)])
def test_resume_from_takes_a_run_its_folder_or_a_step(path, step, saved, tmp_path):
    run_dir, run, state = saved
    asked = Checkpoint(enabled=True, resume=True, resume_from=str(run_dir / path))
    other = Run(replace(run.spec, checkpoint=asked), tmp_path)
    restored = other.restore()
    assert (restored.step, restored.examples) == (step, 16 * step)
    assert_same(other.values(restored.state), run.values(state))
    assert f"because checkpoint.resume_from names it, and {tmp_path}/checkpoints holds no checkpoint" in other.said[-1]


@pytest.mark.parametrize("name", ["exp#3", "lr 3e-4 50%", "a%20b", "was?", "a&b=ü"])
def test_a_folder_may_have_any_name(name, saved, tmp_path):
    run_dir, run, state = saved
    other = Run(run.spec, copy(run_dir, tmp_path / name))
    restored = other.restore()
    assert restored.step == 20
    assert_same(other.values(restored.state), run.values(state))


def test_where_a_checkpoint_is_required_the_run_does_not_start_from_scratch(saved, tmp_path):
    run_dir, *_ = saved
    required = replace(RESUME, resume_required=True)
    with pytest.raises(ValueError, match=rf"no checkpoint to resume from: {tmp_path}/checkpoints holds none"):
        Run(spec_of(checkpoint=required), tmp_path).checkpoints.restore()
    for where in (
        replace(required, directory=str(run_dir / "checkpoints")),
        replace(required, resume_from=str(run_dir)),
    ):
        restored = Run(spec_of(checkpoint=replace(where, enabled=False)), tmp_path).restore()
        assert restored.step == 20
    assert Run(spec_of(checkpoint=replace(required, resume=False)), tmp_path).checkpoints.restore() is None


def test_the_runs_own_checkpoint_comes_before_resume_from(saved, tmp_path):
    run_dir, run, _ = saved
    asked = Checkpoint(enabled=True, resume=True, resume_from=str(run_dir))
    Run(replace(run.spec, checkpoint=asked), tmp_path).save(7)
    again = Run(replace(run.spec, checkpoint=asked), tmp_path)
    assert again.restore().step == 7
    assert "because it is the newest checkpoint of this run" in again.said[-1]


def test_weights_only_begins_at_step_0(saved, tmp_path):
    run_dir, run, state = saved
    asked = Checkpoint(resume_from=str(run_dir), weights_only=True)
    sgd = Optimizer(algorithm="sgd", momentum=0.9)  # of which the checkpoint has no slots
    other = Run(spec_of({"data": 2}, asked, optimizer=sgd), tmp_path)
    restored = other.restore()
    assert (restored.step, restored.examples, int(restored.state["step"])) == (0, 0, 0)
    expected = {name: x for name, x in run.values(state).items() if name.startswith("params")}
    assert_same({n: x for n, x in other.values(restored.state).items() if n.startswith("params")}, expected)
    assert all(not np.any(x) for x in jax.tree.leaves(restored.state["slots"]))
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": replace(SMALL, ffn_dim=128)},
            r"params.layers.down is \[2, 96, 64\] there, and is \[2, 128, 64\] in this run",
        ),
        ({"model": replace(SMALL, tied_embeddings=True)}, "params.head is .* there, and does not exist in this run"),
        ({"optimizer": Optimizer(algorithm="sgd", momentum=0.9)}, "is of another optimizer: slots"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(changes, message, saved):
    run_dir, run, _ = saved
    with pytest.raises(ValueError, match=message):
        Run(replace(run.spec, **changes), run_dir).restore()


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_where_there_is_no_checkpoint_is_said(path, tmp_path):
    asked = Checkpoint(resume_from=str(tmp_path / path))
    with pytest.raises(ValueError, match=r"is not a folder|is neither a run directory with checkpoints"):
        Run(spec_of(None, asked), tmp_path / "run").restore()


def test_of_a_run_without_checkpoints_it_is_said_how_to_have_them(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match=r"saved no checkpoint: turn them on .*checkpoint\.enabled"):
        find(tmp_path)


# --- damage -----------------------------------------------------------------------------------------------------------


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "array data cut short": lambda folder: cut(largest(folder / "state")),
    "array data missing": lambda folder: largest(folder / "state").unlink(),
    "one bit of an array": lambda folder: flip(largest(folder / "state")),
    "index missing": lambda folder: (folder / "state" / "manifest.ocdbt").unlink(),
    "facts missing": lambda folder: (folder / "run" / "metadata").unlink(),
    "facts cut short": lambda folder: cut(folder / "run" / "metadata"),
    "facts of something else": lambda folder: folder.joinpath("run", "metadata").write_text("[]"),
    "empty": lambda folder: subprocess.run(["rm", "-r", folder / "state", folder / "run"], check=True),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage, saved, tmp_path, capfd):
    run_dir, run, state = saved
    copy(run_dir, tmp_path)
    copy(run_dir / "checkpoints" / "20", tmp_path / "checkpoints" / "20.damaged")  # it has happened before
    DAMAGE[damage](tmp_path / "checkpoints" / "20")
    again = Run(run.spec, tmp_path)
    assert again.restore().step == 10
    assert again.said[0].startswith(f"warning: the checkpoint {tmp_path}/checkpoints/20 is damaged and left out: ")
    assert again.said[1].endswith("(step 10, 160 examples), because it is the newest that can be read")
    assert capfd.readouterr() == ("", "")
    again.save(20)  # its place is free
    assert_same(run.values(Run(run.spec, tmp_path).restore().state), run.values(state))


def test_where_none_can_be_read_nothing_is_touched(saved, tmp_path):
    run_dir, run, _ = saved
    copy(run_dir, tmp_path)
    for step in ("10", "20"):
        cut(largest(tmp_path / "checkpoints" / step / "state"))
    with pytest.raises(ValueError, match=r"of the 2 checkpoint.* none can be read: "):
        Run(run.spec, tmp_path).restore()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]


def test_what_was_not_committed_is_removed(saved, tmp_path):
    run_dir, run, _ = saved
    folder = copy(run_dir, tmp_path) / "checkpoints"
    (folder / "20").rename(folder / "20.orbax-checkpoint-tmp")
    again = Run(run.spec, tmp_path)
    assert again.restore().step == 10
    assert [path.name for path in folder.iterdir()] == ["10"]


def test_a_place_that_cannot_be_written_to_is_named(saved, tmp_path):
    _, run, _ = saved
    (tmp_path / "file").touch()
    asked = Checkpoint(enabled=True, directory=str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError, match=rf"cannot be written to {tmp_path}/file/below: Not a directory"):
        Run(replace(run.spec, checkpoint=asked), tmp_path).checkpoints.restore()


def test_a_save_that_fails_is_an_error_of_the_file_system(tmp_path):
    run = Run(spec_of(None, replace(RESUME, asynchronous=False)), tmp_path)
    assert run.checkpoints.restore() is None
    run.save(1)
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").touch()
    with pytest.raises(OSError, match=r"the checkpoint of step 2 cannot be written to .*/checkpoints: "):
        run.checkpoints.save(2, run.state(), {})
    # Where a save fails, Orbax leaves coroutines to a thread that waits five minutes for what does not come, and then
    # another test would be told that nobody awaited them.
    for left in gc.get_objects():
        if type(left) is CoroutineType:
            left.close()


@pytest.mark.parametrize(
    ("error", "reason", "number"),
    [
        (ValueError("x" * 600 + " failed: No space left on device [28]"), "No space left on device", 28),
        (ValueError("Error writing\nDisk quota exceeded"), "Disk quota exceeded", errno.EDQUOT),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device", 28),
        (OSError(errno.EROFS, "Read-only file system", "/there"), "[Errno 30] Read-only file system: '/there'", None),
        (RuntimeError("first line\nsecond"), "first line", None),
    ],
)  # fmt: skip
def test_a_full_disk_is_named_as_such(tmp_path, error, reason, number):
    """Orbax tells of it behind hundreds of letters."""
    unsaved = Run(spec_of(), tmp_path).checkpoints._unsaved(7, error)
    assert str(unsaved) == f"the checkpoint of step 7 cannot be written to {tmp_path}/checkpoints: {reason}"
    assert unsaved.errno == number


# --- when, and which are kept -----------------------------------------------------------------------------------------


def test_when_a_checkpoint_is_due(tmp_path):
    asked = Checkpoint(enabled=True, interval_steps=10, interval_minutes=2.0)
    checkpoints = Run(spec_of(None, asked), tmp_path).checkpoints
    assert [step for step in range(1, 36) if checkpoints.due(step, 35)] == [10, 20, 30, 35]
    begun = checkpoints._last_save
    assert [checkpoints.overdue(begun + seconds) for seconds in (0, 119, 121)] == [False, False, True]
    off = Run(spec_of(None, replace(asked, enabled=False)), tmp_path).checkpoints
    assert not off.due(10, 35)
    assert not off.overdue(begun + 1e6)
    only_last = Run(spec_of(None, Checkpoint(enabled=True)), tmp_path).checkpoints
    assert [step for step in range(1, 36) if only_last.due(step, 35)] == [35]


SCORES = {1: 3.0, 2: 1.0, 3: 2.0, 4: math.nan, 5: 4.0}


@pytest.mark.parametrize(
    ("keep", "best", "expected"),
    [
        (None, False, {1, 2, 3, 4, 5}),
        (2, False, {4, 5}),
        (1, True, {2, 5}),
        (3, True, {1, 2, 3, 5}),
        (5, True, {1, 2, 3, 4, 5}),
    ],
)
def test_which_are_kept(keep, best, expected):
    assert kept(SCORES, keep, best=best) == expected


def test_the_best_stay_and_the_newest(tmp_path):
    spec = spec_of(None, Checkpoint(enabled=True, resume=True, keep=1, keep_best="validation_loss", asynchronous=False))
    losses = {1: 2.0, 2: 1.0, 3: 3.0, 4: 4.0}
    for part in ((1, 2), (3, 4)):  # a resumed run knows how good those before were
        run = Run(spec, tmp_path)
        run.checkpoints.restore()
        for step in part:
            run.checkpoints.save(step, run.state(), {"validation_loss": losses[step], "loss": 0.0})
        run.checkpoints.wait()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4"]
    facts = json.loads((tmp_path / "checkpoints" / "2" / "run" / "metadata").read_text())
    assert facts["metrics"] == {"validation_loss": 1.0, "loss": 0.0}


def test_a_metric_that_there_is_not(tmp_path):
    with pytest.raises(ValueError, match="keep_best is 'beauty', and can be loss or validation_loss"):
        Run(spec_of(None, Checkpoint(enabled=True, keep_best="beauty")), tmp_path)
