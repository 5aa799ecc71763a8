"""When the training state is saved, which checkpoints are kept, and what a run resumes from."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from seatrial import __version__, events
from seatrial.spec import RunSpec, to_dict
from seatrial.train import checkpoint_files, hf
from seatrial.train.params import dotted, layer_order
from seatrial.train.step import State
from seatrial.train.trainer import Trainer

CHUNK_BYTES = 64 << 20  # a mesh that needs other parts than were written reads at most this much too much
METRICS = ("loss", "validation_loss")  # by which the best checkpoints can be kept; lower is better
FULL = (errno.ENOSPC, errno.EDQUOT)
DELETED, DAMAGED, UNFINISHED = ".deleted", ".damaged", "*.orbax-checkpoint-tmp*"
# Parts of a spec that may differ from the run that wrote a checkpoint without changing what is learnt.
_IMMATERIAL = {
    "name", "dialect", "topology", "parallelism", "distributed", "container", "execution", "logging", "checkpoint",
    "expectations", "evaluation", "log_dir", "nic_type", "hf_token_file",
}  # fmt: skip


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint: the state after `step` steps, the examples consumed in them, and the last metrics."""

    state: State
    step: int
    examples: int
    metrics: Mapping[str, float]


def kept(scores: Mapping[int, float], keep: int | None, *, best: bool) -> set[int]:
    """The saved steps to keep: the newest one, and the newest or best `keep` (lowest score; nan last), which may
    include it."""
    if keep is None or not scores:
        return set(scores)

    def rank(step: int) -> tuple[float, int]:
        return (math.inf if math.isnan(scores[step]) else scores[step]) if best else 0.0, -step

    return {max(scores), *sorted(scores, key=rank)[:keep]}


class Checkpoints:
    """The checkpoints of one run. Every process calls the same methods at the same steps."""

    def __init__(
        self,
        spec: RunSpec,
        run_dir: Path,
        trainer: Trainer,
        *,
        emit: Callable[[events.Event], None] = lambda _: None,
        say: Callable[[str], None] = print,
    ) -> None:
        """`emit` receives events, `say` lines to print. Raises ValueError for an unknown metric."""
        self._asked, self._spec, self._trainer, self._emit, self._say = spec.checkpoint, spec, trainer, emit, say
        if self._asked.keep_best not in (None, *METRICS):
            raise ValueError(f"checkpoint.keep_best is {self._asked.keep_best!r}, and can be {' or '.join(METRICS)}")
        where = self._asked.directory
        self.directory = Path(where).expanduser().absolute() if where else run_dir.absolute() / checkpoint_files.FOLDER
        self._first = (0, 0)  # (step, examples) that this process began with
        self._scores: dict[int, float] = {}
        self._last_save = time.monotonic()
        self._writer: Any = None
        self._writing: dict[str, Any] | None = None  # the event of the save under way

    # --- resuming -----------------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """The state to resume from, and prints why that one; None: the run starts from scratch.

        With `resume`, it is the newest readable checkpoint of this run; otherwise the one of `resume_from`. Raises
        ValueError where none can be read, where they are of another model, and where `resume_required` finds none.
        """
        begun, own = time.monotonic(), checkpoint_files.step_folders(self.directory)
        if self._asked.enabled:
            if own and not self._asked.resume:
                steps = ", ".join(folder.name for folder in own)
                raise ValueError(
                    f"{self.directory} holds checkpoints already (of step {steps}): "
                    "set checkpoint.resume to continue from them, or name another checkpoint.directory"
                )
            self._clean()
        chosen = self._choose(own)
        if chosen is not None:
            folder, restored, why = chosen
            step, examples = self._first = restored.step, restored.examples
            what, done = ("", f" (step {step}, {examples} examples)") if step else ("the weights of ", "")
            self._say(f"resumed from {what}{folder}{done}, because {why}")
            size, seconds = sum(x.nbytes for x in jax.tree.leaves(restored.state)), time.monotonic() - begun
            self._event(action="restore", step=step, seconds=seconds, bytes=size)
        _anywhere(False)  # nobody saves before all have read
        return chosen and chosen[1]

    def _choose(self, own: list[Path]) -> tuple[Path, Restored, str] | None:
        """The checkpoint to resume from, its content, and why it is that one; `own` are this run's."""
        asked = self._asked
        if asked.resume and own:
            return self._newest(own, "it is the newest checkpoint of this run")
        if asked.resume_from:
            folder = Path(asked.resume_from).expanduser()
            none = f", and {self.directory} holds no checkpoint of this run" if asked.resume else ""
            why = f"checkpoint.resume_from names it{none}"
            if hf.is_model(folder):
                return folder, self._from_hugging_face(folder), why
            return self._newest(checkpoint_files.find(folder), why)
        if asked.resume and asked.resume_required:
            raise ValueError(
                f"there is no checkpoint to resume from: {self.directory} holds none, and checkpoint.resume_required "
                "says to stop then; set checkpoint.directory to the folder that holds them, name one in "
                "checkpoint.resume_from, or start from scratch without checkpoint.resume_required "
                "(NxDT: resume_ignore_no_checkpoint: True; Megatron: no --exit-on-missing-checkpoint)"
            )
        if asked.resume:
            self._say(f"starts from scratch, because {self.directory} holds no checkpoint")
        return None

    @property
    def resumed(self) -> bool:
        """True if this run resumes from a checkpoint of its own; call it before the first save."""
        return self._asked.resume and bool(checkpoint_files.step_folders(self.directory))

    def first_params(self, state: State) -> Any:
        """The initial parameters of this run, in this process, whose state is `state`, or in an earlier one."""
        if not self.resumed:
            return state["params"]
        begun = replace(self._spec, checkpoint=replace(self._asked, enabled=False, resume=False))
        restored = Checkpoints(begun, self.directory, self._trainer).restore()
        return (restored.state if restored else self._trainer.init())["params"]

    def _clean(self) -> None:
        """Makes the folder, and removes what killed processes left in it."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for left in (*self.directory.glob(UNFINISHED), *self.directory.glob(f"*{DELETED}")):
                if jax.process_index() == 0:
                    shutil.rmtree(left)
        except OSError as error:
            raise ValueError(f"checkpoints cannot be written to {self.directory}: {error.strerror}") from error

    def _newest(self, folders: list[Path], why: str) -> tuple[Path, Restored, str]:
        """The newest readable one: its folder, its content, and why it is that one."""
        own = folders[0].parent == self.directory
        damaged: list[Path] = []
        for folder in reversed(folders):
            found = self._load(folder, fresh=self._asked.weights_only and not own)
            if isinstance(found, Restored):
                break
            self._say(f"warning: the checkpoint {folder} is damaged and left out: {found}")
            why = "it is the newest that can be read"
            damaged.append(folder)
        else:
            raise ValueError(f"of the {len(folders)} checkpoint(s) in {folders[0].parent} none can be read: {found}")
        if own and self._asked.enabled and jax.process_index() == 0:
            for left in damaged:
                aside = left.with_name(left.name + DAMAGED)
                shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
                left.rename(aside)  # its step will be saved again
        if own:
            self._scores = {int(f.name): self._score(f) for f in folders if f not in damaged}
        return folder, found, why

    def _load(self, folder: Path, *, fresh: bool) -> Restored | str:
        """The state from one checkpoint, with `fresh` only its parameters; or what is wrong with it."""
        wanted = self._wanted("params." if fresh else "")
        groups = {name.split(".")[0] for name in wanted}
        wrong, arrays = "", dict[str, jax.Array]()
        try:
            there = checkpoint_files.Stored(folder)
            there.require(wanted, groups)
            metrics = {name: float(value) for name, value in there.facts["metrics"].items()}
            arrays = {name: there.read(name, want) for name, want in wanted.items()}
        except checkpoint_files.Mismatch:
            raise
        except Exception as error:  # whatever it is that reading a damaged file leads to
            wrong = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        if _anywhere(bool(wrong)):
            return wrong or "another process cannot read it"
        casts = set[str]()
        for name, x in arrays.items():
            if checkpoint_files.checksum(x) != there.arrays[name]["checksum"]:  # the same on every process
                return f"the bits of {name} have changed since they were saved"
            if x.dtype != (dtype := wanted[name].dtype):
                casts.add(f"note: the checkpoint's {x.dtype} is cast to {dtype}")
                arrays[name] = x.astype(dtype)
        for note in (*sorted(casts), *_changes(there.facts["spec"], self._spec)):
            self._say(note)
        if fresh:
            return Restored(self._with_fresh(arrays), 0, 0, {})
        return Restored(self._tree(arrays), int(there.facts["step"]), int(there.facts["examples"]), metrics)

    def _from_hugging_face(self, path: Path) -> Restored:
        params = hf.load(path, self._spec.model, self._wanted("params."), self._say)
        return Restored(self._with_fresh(params), 0, 0, {})

    def _wanted(self, prefix: str = "") -> dict[str, checkpoint_files.Wanted]:
        """The arrays of the state whose names begin so."""
        shapes, shardings = jax.eval_shape(self._trainer.init), self._trainer.state_shardings
        wanted = checkpoint_files.wanted_arrays(self._spec, shapes, shardings)
        return {name: want for name, want in wanted.items() if name.startswith(prefix)}

    def _tree(self, arrays: Mapping[str, jax.Array]) -> State:
        state: State = jax.tree_util.tree_map_with_path(
            lambda path, _: arrays[dotted(path)], self._trainer.state_shardings
        )
        return state

    def _with_fresh(self, params: Mapping[str, jax.Array]) -> State:
        """These parameters, with the rest of the state as it is before the first step."""
        return self._tree({**params, **checkpoint_files.named_leaves(self._trainer.rest())})

    # --- saving -------------------------------------------------------------------------------------------------------

    def due(self, step: int, last: int) -> bool:
        """True if to save the state after this many steps; after `last` always."""
        every = self._asked.interval_steps
        return self._asked.enabled and (step == last or (every is not None and step % every == 0))

    def overdue(self, now: float) -> bool:
        """True if `interval_minutes` have passed since the last save, by this process's monotonic clock."""
        minutes = self._asked.interval_minutes
        return self._asked.enabled and minutes is not None and now - self._last_save >= 60 * minutes

    def examples(self, step: int) -> int:
        """The number of examples that this many steps have consumed."""
        step_0, examples_0 = self._first
        return examples_0 + (step - step_0) * self._spec.sequences_per_step

    def save(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Saves the state after this many steps, unless it exists; the state may be donated as soon as this returns.

        `metrics`, METRICS among them, are kept for resuming. Raises OSError where this save, or the one before, could
        not be written.
        """
        self.wait()
        self._last_save = time.monotonic()
        if step in self._scores:
            return
        import orbax.checkpoint as orbax  # late: it takes half a second

        if self._writer is None:
            logging.getLogger("absl").setLevel(logging.CRITICAL)
            self._writer = orbax.AsyncCheckpointer(
                orbax.CompositeCheckpointHandler(),
                async_options=orbax.AsyncOptions(post_finalization_callback=self._committed),
            )
        leaves = checkpoint_files.named_leaves(state)
        self._writing = {"action": "save", "step": step, "bytes": sum(x.nbytes for x in leaves.values())}
        self._scores[step] = metrics.get(self._asked.keep_best or "", math.nan)
        save_args = jax.tree.map(lambda _: orbax.SaveArgs(chunk_byte_size=CHUNK_BYTES), state)
        items = {
            checkpoint_files.STATE: orbax.args.PyTreeSave(state, save_args=save_args),
            checkpoint_files.FACTS: orbax.args.JsonSave(self._facts(step, leaves, metrics)),
        }
        try:
            self._writer.save(self.directory / str(step), args=orbax.args.Composite(**items))
        except OSError as error:
            raise self._unsaved(step, error) from error
        if not self._asked.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Waits until the current save is on disk. Raises OSError where it could not be written."""
        if self._writer is None or self._writing is None:
            return
        try:
            self._writer.wait_until_finished()
        except Exception as error:  # what failed in Orbax's thread, of whatever kind
            raise self._unsaved(self._writing["step"], error) from error
        if "seconds" in self._writing:
            self._event(**self._writing)
        self._writing = None

    def _unsaved(self, step: int, error: Exception) -> OSError:
        """That a checkpoint could not be written; a full disk by its own name, which is far behind in Orbax's text."""
        text, number = str(error), error.errno if isinstance(error, OSError) else None
        full = next((which for which in FULL if number == which or os.strerror(which) in text), None)
        reason = os.strerror(full) if full else text.partition("\n")[0][:300]
        unsaved = OSError(f"the checkpoint of step {step} cannot be written to {self.directory}: {reason}")
        unsaved.errno = full
        return unsaved

    def _event(self, **fields: Any) -> None:
        self._emit(events.Checkpoint(process=jax.process_index(), **fields))

    def _committed(self) -> None:
        """On process 0, in Orbax's thread, when the folder has its name: deletes older ones, each atomically."""
        assert self._writing is not None
        stay = kept(self._scores, self._asked.keep, best=self._asked.keep_best is not None)
        for step in set(self._scores) - stay:
            del self._scores[step]
            folder = self.directory / str(step)
            shutil.rmtree(folder.rename(folder.with_name(folder.name + DELETED)))
        self._writing["seconds"] = time.monotonic() - self._last_save

    def _score(self, folder: Path) -> float:
        """From the metadata of a checkpoint; nan where it has none."""
        try:
            return float(checkpoint_files.Stored(folder).facts["metrics"].get(self._asked.keep_best, math.nan))
        except (OSError, ValueError, KeyError, AttributeError):
            return math.nan

    def _facts(self, step: int, leaves: Mapping[str, jax.Array], metrics: Mapping[str, float]) -> dict[str, Any]:
        # An environment or a container's volumes may hold secrets; training does not depend on them.
        spec = replace(self._spec, execution=replace(self._spec.execution, environment={}), container=None)
        wanted = self._wanted()
        return {
            "v": 1,
            "step": step,
            "examples": self.examples(step),
            "metrics": events.encode(dict(metrics)),
            "wall_time": time.time(),
            "versions": {"seatrial": __version__, "jax": jax.__version__, "orbax": version("orbax-checkpoint")},
            "spec": to_dict(spec),
            "layers": layer_order(self._spec).tolist(),
            "arrays": {
                name: {
                    "shape": list(x.shape),
                    "filled": list(wanted[name].filled),
                    "dtype": str(x.dtype),
                    "checksum": checkpoint_files.checksum(x),
                }
                for name, x in leaves.items()
            },
        }


def _anywhere(flag: bool) -> bool:
    """True if the flag is set on any process; all wait for each other."""
    return bool(np.any(multihost_utils.process_allgather(np.array(flag)))) if jax.process_count() > 1 else flag


def _changes(before: Mapping[str, Any], spec: RunSpec) -> Iterator[str]:
    """A note for each change of the spec since a checkpoint was written that affects what is learnt."""
    now = json.loads(json.dumps(to_dict(spec)))

    def compare(path: str, old: Any, new: Any) -> Iterator[str]:
        if isinstance(old, dict) and isinstance(new, dict):
            for name in new:
                yield from compare(f"{path}.{name}" if path else name, old.get(name), new[name])
        elif old != new:
            yield f"note: since the checkpoint, {path} has changed from {old!r} to {new!r}"

    parts = [name for name in now if name not in _IMMATERIAL]
    yield from compare("", {name: before.get(name) for name in parts}, {name: now[name] for name in parts})
