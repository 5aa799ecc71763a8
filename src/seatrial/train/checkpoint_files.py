"""A checkpoint on disk, for reading: a folder named by its step, with two things in it.

`state` holds the arrays, as Orbax writes them (zarr in OCDBT, by their dotted path in the state), and `run/metadata`
the facts as JSON: step, examples consumed, metrics, the run's spec, and of each array its shape, type and checksum.
The folder has its name only once it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from seatrial.errors import InputError
from seatrial.runs.documents import Documents
from seatrial.runs.files import read_object
from seatrial.spec import RunSpec
from seatrial.train.params import declare, dotted, layer_order

STATE, FACTS = "state", "run"
FOLDER = "checkpoints"  # of a run directory
Index = tuple[slice, ...]


class Mismatch(ValueError):
    """The checkpoint is sound, but of something else."""


def step_folders(folder: Path) -> list[Path]:
    """The committed checkpoints of a folder, by step."""
    names = [entry for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
    return sorted(names, key=lambda entry: int(entry.name))


def find(path: Path) -> list[Path]:
    """The checkpoints at a path, by step: of a run directory, a folder of checkpoints, or the path itself.

    Raises ValueError where there are none.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder, so it holds no checkpoint: name the directory that a run printed")
    if (path / STATE).is_dir():
        return [path]
    found = step_folders(path) or step_folders(path / FOLDER)
    if not found and (path / "spec.json").is_file():
        raise ValueError(f"{path} is a run that saved no checkpoint{_cure(path)}")
    if not found:
        raise ValueError(
            f"{path} is neither a run directory with checkpoints, nor a folder of them, nor a checkpoint of one step, "
            "nor a Hugging Face folder with config.json and safetensors"
        )
    return found


def _cure(run_dir: Path) -> str:
    """The advice on a run directory without checkpoints, behind that word."""
    with suppress(InputError):  # there may be no plan any more
        spec = Documents(run_dir).spec()
        if spec and spec.checkpoint.enabled:
            return "; while it goes on, `seatrial stop` saves one"
    asked = "checkpoint.enabled, MaxText's enable_checkpointing, Megatron's --save"
    return f": turn them on in its configuration ({asked}), and run it again"


def named_leaves(tree: Any) -> dict[str, Any]:
    """Dotted path → leaf, as the arrays of a checkpoint are called."""
    return {dotted(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


@dataclass(frozen=True)
class Wanted:
    """An array of the state as this run needs it; the rest of `shape` behind `filled` is padding, which holds 0."""

    shape: tuple[int, ...]
    filled: tuple[int, ...]
    dtype: Any
    sharding: jax.sharding.Sharding
    rows: np.ndarray | None  # the layer of the model that lies at each place of the first dimension; None: no layers


def wanted_arrays(spec: RunSpec, shapes: Any, shardings: Any) -> dict[str, Wanted]:
    """Every array of a run's state by name; `shapes` and `shardings` are trees like the state."""
    declared = named_leaves(declare(spec))
    order = layer_order(spec)
    where = named_leaves(shardings)

    def describe(name: str, x: Any) -> Wanted:
        declaration = declared.get(name.split(".", 2 if name.startswith("slots.") else 1)[-1])
        return Wanted(
            shape=x.shape,
            filled=tuple(map(min, getattr(declaration, "filled", None) or x.shape, x.shape)),  # slots may have ones
            dtype=x.dtype,
            sharding=where[name],
            rows=order if ".layers." in name else None,
        )

    return {name: describe(name, x) for name, x in named_leaves(shapes).items()}


@jax.jit
def _sum_of_words(x: jax.Array) -> jax.Array:
    words = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)


def checksum(x: jax.Array) -> int:
    """The sum of an array's bits as words, modulo 2³²: the same on every mesh, whatever the order and the padding.

    Waits for the sum: of several that are under way, processes may take another first, and wait for each other forever.
    """
    return int(np.asarray(_sum_of_words(x).addressable_data(0)))


def on_devices(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding, part: Callable[[Index], np.ndarray]
) -> jax.Array:
    """A global array of the parts that this process's devices hold; one part at a time is in the host's memory.

    `part` may give less than it is asked for: the rest is padding, 0.
    """
    indices = sharding.addressable_devices_indices_map(shape)
    arrays: dict[jax.Device, jax.Array] = {}
    for each in dict.fromkeys(map(repr, indices.values())):
        devices = [device for device, index in indices.items() if repr(index) == each]
        index = tuple(slice(*s.indices(size)) for s, size in zip(indices[devices[0]] or (), shape, strict=True))
        value = part(index)
        missing = [(0, s.stop - s.start - n) for s, n in zip(index, value.shape, strict=True)]
        value = np.pad(value, missing) if any(after for _, after in missing) else value
        arrays |= {device: jax.block_until_ready(jax.device_put(value, device)) for device in devices}
    return jax.make_array_from_single_device_arrays(shape, sharding, [arrays[device] for device in indices])


class Stored:
    """One step's folder. Raises ValueError or OSError where its facts cannot be read."""

    def __init__(self, folder: Path) -> None:
        import tensorstore  # late: a run without checkpoints does not pay for it

        self.folder = folder
        self.facts: Mapping[str, Any] = read_object(folder / FACTS / "metadata")
        if not {"step", "examples", "arrays", "spec"} <= self.facts.keys():
            raise ValueError("its metadata is incomplete")
        self.arrays: Mapping[str, Any] = self.facts["arrays"]
        self._tensorstore = tensorstore
        self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 1 << 28}})

    def require(self, wanted: Mapping[str, Wanted], groups: Collection[str]) -> None:
        """Raises Mismatch, naming the first array of these groups of the state that is not as wanted, or not wanted."""
        here = {name: list(want.filled) for name, want in wanted.items()}
        there = {name: found["filled"] for name, found in self.arrays.items() if name.split(".")[0] in groups}
        for name in [*here, *there]:
            if here.get(name) != there.get(name):
                states = [f"is {x[name]}" if name in x else "does not exist" for x in (there, here)]
                what = "another optimizer" if name.startswith("slots.") else "another model"
                raise Mismatch(f"{self.folder} is of {what}: {name} {states[0]} there, and {states[1]} in this run")

    def open(self, name: str) -> Any:
        """An array as a tensorstore."""
        files = {"driver": "file", "path": f"{(self.folder / STATE).resolve()}/"}  # a URL would read %, # and ? in it
        base = {"driver": "ocdbt", "base": files, "path": f"{name}/"}
        spec = {"driver": "zarr", "kvstore": base, "fill_missing_data_reads": False}
        return self._tensorstore.open(spec, context=self._context, read=True).result()

    def read(self, name: str, wanted: Wanted) -> jax.Array:
        """An array onto the devices, in the type in which it was saved; no process waits for another."""
        array = self.open(name)

        def part(index: Index) -> np.ndarray:
            bounds = zip(index, array.shape, strict=True)
            have: list[Any] = [slice(s.start, max(s.start, min(s.stop, n))) for s, n in bounds]
            if wanted.rows is not None:  # where these layers of the model lie in the stacked array
                have[0] = np.argsort(self.facts["layers"])[wanted.rows[index[0]]]
            return np.asarray(array[tuple(have)].read().result())

        return on_devices(wanted.shape, wanted.sharding, part)
