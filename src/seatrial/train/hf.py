"""Hugging Face folders of Llama models (config.json and safetensors): read onto a mesh, written from a checkpoint.

A Mistral is a Llama that may have a sliding window, which Hugging Face's Llama would leave out in silence.

Tensors are read and written where they lie in the files, a part at a time, so neither way needs memory for the model.
There a matrix is [out, in], and layers are tensors of their own; both sides split query and key heads in halves for
rotary positions, so nothing is permuted.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seatrial.runs.files import read_object
from seatrial.spec import ModelSpec, RopeScaling, RunSpec, from_dict
from seatrial.train.checkpoint_files import Index, Stored, Wanted, find, on_devices

NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layers.attention_norm": "model.layers.{}.input_layernorm.weight",
    "layers.query": "model.layers.{}.self_attn.q_proj.weight",
    "layers.key": "model.layers.{}.self_attn.k_proj.weight",
    "layers.value": "model.layers.{}.self_attn.v_proj.weight",
    "layers.output": "model.layers.{}.self_attn.o_proj.weight",
    "layers.ffn_norm": "model.layers.{}.post_attention_layernorm.weight",
    "layers.gate": "model.layers.{}.mlp.gate_proj.weight",
    "layers.up": "model.layers.{}.mlp.up_proj.weight",
    "layers.down": "model.layers.{}.mlp.down_proj.weight",
}
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
Shapes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # of tensors, by name
SHARD_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"
# `model_type` → its class, and the defaults of transformers that are not those of a Llama.
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"num_key_value_heads": 8, "sliding_window": 4096}),
}
# What both are, where a ModelSpec could be something else.
_LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "rotary_fraction": 1.0, "biases": False}
_SIZES = {
    "vocab_size": "vocab_size", "hidden_dim": "hidden_size", "ffn_dim": "intermediate_size",
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim", "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
_SCALING = {
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_max_positions": "original_max_position_embeddings",
}  # fmt: skip


def is_model(folder: Path) -> bool:
    """True if a folder looks like a model of Hugging Face's."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


# --- config.json ------------------------------------------------------------------------------------------------------


def config_of(spec: RunSpec, dtype: str) -> dict[str, Any]:
    """The config.json of a run's model. Raises ValueError for a model that is no Llama."""
    model = spec.model
    _require_llama(model)
    scaling = model.rope_scaling
    stretch = {theirs: getattr(scaling, ours) for ours, theirs in _SCALING.items()} if scaling else {}
    longest = int(scaling.factor * scaling.original_max_positions) if scaling else spec.batch.sequence_length
    is_llama = model.sliding_window is None and model.hidden_dim % model.num_heads == 0  # else its class will not load
    kind = "llama" if is_llama else "mistral"
    return {
        "architectures": [_KINDS[kind][0]],
        "model_type": kind,
        **({} if is_llama else {"sliding_window": model.sliding_window}),
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_scaling": {"rope_type": "llama3", **stretch} if scaling else None,
        "max_position_embeddings": max(longest, spec.batch.sequence_length),
        "initializer_range": spec.initialization.std,
        "torch_dtype": dtype,
    }


def model_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ModelSpec that a config.json gives. Raises ValueError for what is no Llama or Mistral."""
    kind, activation = str(config.get("model_type")), config.get("hidden_act", "silu")
    if kind not in _KINDS or activation != "silu":
        raise ValueError(f"is of a {kind} with {activation}, and only Llama and Mistral with silu are read")
    config = _KINDS[kind][1] | dict(config)
    if biased := [name for name in ("attention_bias", "mlp_bias") if config.get(name)]:
        raise ValueError(f"has {biased[0]}, which Seatrial's Llama does not have")
    heads = _whole(config, "num_attention_heads", 32)
    rope = {"rope_theta": config.get("rope_theta", 10_000.0)}
    for key in ("rope_scaling", "rope_parameters"):  # transformers 4 and 5
        if not isinstance(said := config.get(key) or {}, dict):
            raise ValueError(f"has {said!r} as {key}, which is not an object")
        rope |= said
    if (scaling := rope.get("rope_type", rope.get("type", "default"))) not in ("default", "llama3"):
        raise ValueError(f"scales rotary positions by {scaling!r}, and only llama3 is supported")
    found = {ours: config.get(theirs) for ours, theirs in _SIZES.items()} | {
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or _whole(config, "hidden_size", 4096) // heads,
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None,
        "sliding_window": config.get("sliding_window") if kind == "mistral" else None,
    }
    if scaling == "llama3":
        if missing := [theirs for theirs in _SCALING.values() if theirs not in rope]:
            raise ValueError(f"has rotary positions of llama3 without {missing[0]}")
        found["rope_scaling"] = RopeScaling(**{ours: rope[theirs] for ours, theirs in _SCALING.items()})
    return found


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    """A positive whole number of a config.json. Raises ValueError for anything else."""
    value = config.get(name, default)
    if type(value) is not int or value < 1:
        raise ValueError(f"has {value!r} as {name}, which is not a positive whole number")
    return value


def _require_llama(model: ModelSpec) -> None:
    for name, value in _LLAMA.items():
        if getattr(model, name) != value:
            raise ValueError(
                f"model.{name} is {getattr(model, name)!r}: Hugging Face's Llama, which is read and written here, "
                f"has {value!r}"
            )


# --- safetensors ------------------------------------------------------------------------------------------------------


def tensors_in(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder by name, mapped and not read. Raises ValueError, naming the file that is damaged."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        index = read_object(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise ValueError(f"{folder}: {INDEX} has no weight_map from tensors to files")
        named = set(index.values())
        if missing := named - {file.name for file in files}:
            raise ValueError(f"{folder}: {INDEX} names {min(missing)}, which is not there")
        files = [folder / name for name in sorted(named)]
    return {name: tensor for file in files for name, tensor in _tensors_of(file)}


def _tensors_of(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 + length:
            raise ValueError(f"{file} is damaged: its header needs {8 + length} bytes, and it has {size}")
        try:
            header = json.loads(opened.read(length))
            header.pop("__metadata__", None)
            begins = 8 + length
            content = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
            for name, found in header.items():
                start, end = found["data_offsets"]
                if begins + end > size:
                    raise ValueError(f"tensor {name} ends at byte {begins + end}, and the file at {size}")
                if found["dtype"] not in DTYPES:
                    raise ValueError(f"tensor {name} is of the type {found['dtype']}; known: {', '.join(DTYPES)}")
                yield name, content[begins + start : begins + end].view(DTYPES[found["dtype"]]).reshape(found["shape"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error


# --- reading ----------------------------------------------------------------------------------------------------------


def load(
    folder: Path, model: ModelSpec, wanted: Mapping[str, Wanted], say: Callable[[str], None]
) -> dict[str, jax.Array]:
    """The parameters of a folder, cast to the types wanted; `say` prints what differs and does no harm.

    Raises ValueError, naming file or tensor and both shapes, where the folder is damaged or of another model.
    """
    _require_llama(model)
    _compare(folder / "config.json", model, say)
    tensors = tensors_in(folder)
    names = {name: _names(name, model.num_layers) for name in wanted}
    known = {NAMES["head"], *itertools.chain(*names.values())}
    if strange := [name for name in tensors if name not in known and not name.endswith("rotary_emb.inv_freq")]:
        raise ValueError(f"{folder} holds {strange[0]}, which this model does not have")
    types = {(tensors[each].dtype, wanted[name].dtype) for name in names for each in names[name] if each in tensors}
    if casts := sorted(f"{theirs} to {ours}" for theirs, ours in types if theirs != ours):
        say(f"note: weights are cast from {', '.join(casts)}")
    return {name: _read(folder, tensors, name, names[name], want) for name, want in wanted.items()}


def _compare(path: Path, model: ModelSpec, say: Callable[[str], None]) -> None:
    """Raises ValueError where a config.json is of a model of other sizes; what else differs is only said."""
    try:
        config = read_object(path)
    except ValueError as error:
        raise ValueError(f"{path.parent}: {error}") from error
    try:
        theirs = model_of(config)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    for name, value in theirs.items():
        if value != getattr(model, name):
            differs = f"{path} says {_SIZES.get(name, name)} {value}, and model.{name} is {getattr(model, name)}"
            if name in _SIZES:
                raise ValueError(differs)
            say(f"note: {differs}, which applies")


def _read(folder: Path, tensors: Mapping[str, np.ndarray], name: str, names: list[str], want: Wanted) -> jax.Array:
    """A parameter of ours from its tensors, `names`: one, or one for each layer."""
    filled = want.filled if want.rows is None else want.filled[1:]
    for each in names:
        if each not in tensors:
            raise ValueError(f"{folder} holds no {each}")
        if (shape := _turned(name, tensors[each]).shape) != filled:
            raise ValueError(f"{folder}: {each} is {list(shape)}, and this model needs {list(filled)} (in, out)")

    def part(index: Index) -> np.ndarray:
        if want.rows is None:
            return _turned(name, tensors[names[0]])[index].astype(want.dtype)
        layers = [_turned(name, tensors[names[row]])[index[1:]] for row in want.rows[index[0]]]
        return np.stack(layers).astype(want.dtype)

    return on_devices(want.shape, want.sharding, part)


def _names(name: str, num_layers: int) -> list[str]:
    """Their names for a parameter of ours ("params.…"): one, or one a layer. Raises ValueError where it has none."""
    theirs = NAMES.get(name.removeprefix("params."))
    if theirs is None:
        raise ValueError(f"Hugging Face's Llama has no {name}")
    return [theirs.format(layer) for layer in range(num_layers)] if "{}" in theirs else [theirs]


def _turned(name: str, matrix: np.ndarray) -> np.ndarray:
    """Ours from theirs, or theirs from ours: all but the embedding are transposed."""
    return matrix if name == "params.embedding" else matrix.T


# --- writing ----------------------------------------------------------------------------------------------------------


def export(source: Path, folder: Path, dtype: str | None = None, shard_bytes: int = SHARD_BYTES) -> str:
    """Writes a checkpoint's weights as a Hugging Face folder, and says what was done.

    `source` is what `resume_from` may be; of several steps, the newest. `dtype`: None keeps that of the checkpoint.
    Raises ValueError where the checkpoint is damaged, its model neither Llama nor Mistral, the disk too small, or the
    folder there.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists: name a folder that does not")
    stored = Stored(find(source)[-1])
    spec = from_dict(stored.facts["spec"])
    arrays = {name: found for name, found in stored.arrays.items() if name.startswith("params.")}
    kinds = {name: jnp.dtype(dtype or found["dtype"]) for name, found in arrays.items()}
    config = config_of(spec, str(kinds["params.embedding"]))
    names = {name: _names(name, spec.model.num_layers) for name in arrays}
    shapes: Shapes = {}
    for name, found in arrays.items():
        filled = found["filled"][1:] if "layers." in name else found["filled"]
        shape = tuple(filled if name == "params.embedding" else reversed(filled))
        shapes |= dict.fromkeys(names[name], (kinds[name], shape))
    unfinished = folder.with_name(folder.name + ".unfinished")
    tensors = _make_files(unfinished, shapes, shard_bytes)
    for name in arrays:
        _copy(stored, name, [tensors[each] for each in names[name]])
    (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    unfinished.rename(folder)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return f"wrote {len(tensors)} tensors ({size / 1e9:.3f} GB, step {stored.facts['step']}) to {folder}"


def _copy(stored: Stored, name: str, tensors: list[np.ndarray]) -> None:
    """An array of a checkpoint into its tensors, one chunk after the other. Raises ValueError where it is damaged."""
    array, order, stacked, total = stored.open(name), np.asarray(stored.facts["layers"]), "layers." in name, 0
    steps = array.chunk_layout.read_chunk.shape
    for corner in itertools.product(*(range(0, n, step) for n, step in zip(array.shape, steps, strict=True))):
        index = tuple(slice(c, min(c + step, n)) for c, step, n in zip(corner, steps, array.shape, strict=True))
        block = array[index].read().result()
        total += int(block.view(f"uint{8 * block.itemsize}").sum(dtype=np.uint64))
        for row, value in zip(order[index[0]], block, strict=True) if stacked else [(0, block)]:
            place = _turned(name, tensors[row])[index[1:] if stacked else index]
            place[...] = value[tuple(slice(n) for n in place.shape)].astype(place.dtype)
    if total % 2**32 != stored.arrays[name]["checksum"]:
        raise ValueError(f"{stored.folder} is damaged: the bits of {name} have changed since they were written")


def _make_files(folder: Path, shapes: Shapes, shard_bytes: int) -> dict[str, np.ndarray]:
    """Files with their headers and room for all tensors, and the tensors mapped, to be written to."""
    files: list[dict[str, Any]] = []
    used = needed = 0
    for name, (kind, shape) in shapes.items():
        size = math.prod(shape) * kind.itemsize
        if not files or (used and used + size > shard_bytes):
            files.append({})
            used = 0
        letters = next(code for code, known in DTYPES.items() if jnp.dtype(known) == kind)
        files[-1][name] = {"dtype": letters, "shape": shape, "data_offsets": [used, used + size]}
        used, needed = used + size, needed + size
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:  # found out while a mapped file is written, it would end the process
        raise ValueError(f"{folder.parent} has {free / 1e9:.3f} GB free, and {needed / 1e9:.3f} GB are needed")
    mapped: dict[str, np.ndarray] = {}
    where: dict[str, str] = {}
    for number, tensors in enumerate(files, 1):
        one = len(files) == 1
        file = folder / ("model.safetensors" if one else f"model-{number:05}-of-{len(files):05}.safetensors")
        header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
        header += b" " * (-len(header) % 8)
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        for name, found in tensors.items():
            start = 8 + len(header) + found["data_offsets"][0]
            mapped[name] = np.memmap(file, shapes[name][0], "r+", start, found["shape"])  # makes the file longer
            where[name] = file.name
    if len(files) > 1:
        index = {"metadata": {"total_size": needed}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return mapped
