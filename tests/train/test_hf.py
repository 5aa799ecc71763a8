"""Hugging Face folders: what is read is what transformers reads, what is written is what was read, to the bit."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from seatrial.spec import Checkpoint, ModelSpec, RopeScaling
from seatrial.train import hf
from seatrial.train.data import make_batch
from tests.helpers.trainer import RandomSource

from .test_checkpoint import Run, spec_of

MODEL = ModelSpec(
    name="small", vocab_size=100, hidden_dim=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, ffn_dim=48,
    rope_theta=500_000.0, rope_scaling=RopeScaling(original_max_positions=32), norm_epsilon=1e-6,
)  # fmt: skip


WINDOW = replace(MODEL, sliding_window=5)


def save_llama(folder: Path, model: ModelSpec = MODEL, dtype: torch.dtype = torch.float32, **saved) -> None:
    """A random Llama, or with a window a random Mistral, saved by transformers itself."""
    torch.manual_seed(3)
    scaling = model.rope_scaling
    kinds = (LlamaForCausalLM, LlamaConfig), (MistralForCausalLM, MistralConfig)
    model_class, config_class = kinds[model.sliding_window is not None]
    made = model_class(
        config_class(
            **({} if model.sliding_window is None else {"sliding_window": model.sliding_window}),
            vocab_size=model.vocab_size, hidden_size=model.hidden_dim, intermediate_size=model.ffn_dim,
            num_hidden_layers=model.num_layers, num_attention_heads=model.num_heads,
            num_key_value_heads=model.num_kv_heads, head_dim=model.head_dim, rms_norm_eps=model.norm_epsilon,
            tie_word_embeddings=model.tied_embeddings, max_position_embeddings=64,
            rope_parameters={"rope_theta": model.rope_theta, "rope_type": "default"} if scaling is None else {
                "rope_theta": model.rope_theta, "rope_type": "llama3", "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            },
        )
    )  # fmt: skip
    for parameter in made.parameters():  # norms are not all alike, and no value is exact in fewer bits
        parameter.data = torch.randn_like(parameter.data)
    made.to(dtype).save_pretrained(folder, **saved)


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}


def assert_same_tensors(a: Path, b: Path) -> None:
    ours, theirs = load_all(a), load_all(b)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, model.config.vocab_size, (2, 17), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model(tokens).logits


def imported(folder: Path, run_dir: Path, mesh: dict[str, int] | None = None, **changes) -> Run:
    asked = Checkpoint(enabled=True, resume_from=str(folder))
    spec = spec_of(mesh, asked, **{"model": MODEL, **changes})
    return Run(spec, run_dir)


@pytest.mark.parametrize(
    ("model", "mesh", "dtype", "shard_bytes"),
    [
        (MODEL, {"fsdp": 2, "tensor": 2}, "float32", hf.SHARD_BYTES),
        (replace(MODEL, tied_embeddings=True, rope_scaling=None), {"data": 2}, "bfloat16", 40_000),
        (WINDOW, None, "float32", hf.SHARD_BYTES),
    ],
)
def test_the_way_there_and_back_is_exact(model, mesh, dtype, shard_bytes, tmp_path):
    original = tmp_path / "original"
    save_llama(original, model, getattr(torch, dtype), max_shard_size=shard_bytes)
    run = imported(original, tmp_path / "run", mesh, model=model)
    restored = run.restore()
    assert (restored.step, restored.examples) == (0, 0)
    casts = [] if dtype == "float32" else ["note: weights are cast from bfloat16 to float32"]
    assert run.said == [*casts, f"resumed from the weights of {original}, because checkpoint.resume_from names it"]
    run.checkpoints.save(1, restored.state, {})
    run.checkpoints.wait()
    hf.export(tmp_path / "run", tmp_path / "back", dtype, shard_bytes)
    assert len([*original.glob("*.safetensors")]) == len([*(tmp_path / "back").glob("*.safetensors")])
    assert_same_tensors(tmp_path / "back", original)
    assert torch.equal(logits(tmp_path / "back"), logits(original))


@pytest.mark.parametrize("model", [MODEL, WINDOW])
def test_the_losses_are_those_of_transformers(model, tmp_path):
    """Of what transformers wrote, and of what is exported; the sequences are longer than the window."""
    save_llama(tmp_path / "theirs", model)
    run = imported(tmp_path / "theirs", tmp_path / "run", model=model)
    restored = run.restore()
    run.checkpoints.save(1, restored.state, {})
    run.checkpoints.wait()
    hf.export(tmp_path / "run", tmp_path / "ours")
    source = RandomSource(MODEL.vocab_size, 32)
    batch = make_batch(source, 0, run.trainer.batch_shape, run.trainer.batch_shardings)
    ours, weight = run.trainer.loss(restored.state["params"], batch)
    tokens, targets = (torch.tensor(np.asarray(batch[name]).reshape(-1, 32)) for name in ("tokens", "targets"))
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            theirs = torch.nn.functional.cross_entropy(loaded(tokens).logits.flatten(0, 1), targets.flatten().long())
        assert float(ours / weight) == pytest.approx(float(theirs), rel=1e-5)


# A value for every field of a model, so that a new one must say what becomes of it.
_ANY_MODEL = st.fixed_dictionaries(
    {
        "name": st.just("any"),
        **{name: st.integers(3, 512) for name in ("vocab_size", "hidden_dim", "num_layers", "ffn_dim")},
        "head_dim": st.integers(1, 128).map(lambda half: 2 * half),
        **{name: st.integers(1, 64) for name in ("num_heads", "num_kv_heads", "vocab_multiple")},
        "rope_theta": st.floats(1, 1e7),
        "rope_scaling": st.none() | st.builds(
            RopeScaling, factor=st.floats(2, 64), low_freq_factor=st.floats(0.5, 2), high_freq_factor=st.floats(3, 8),
            original_max_positions=st.integers(1, 8192),
        ),
        "norm_epsilon": st.floats(1e-8, 1e-3),
        **{name: st.booleans() for name in ("tied_embeddings", "biases")},
        "norm": st.sampled_from(["rmsnorm", "layernorm"]),
        "activation": st.sampled_from(["swiglu", "gelu"]),
        "positions": st.sampled_from(["rope", "learned"]),
        "rotary_fraction": st.sampled_from([1.0, 0.5]),
        **{name: st.none() | st.integers(1, 8192) for name in ("max_positions", "sliding_window")},
    }
)  # fmt: skip
# A label; how tables are padded, which is taken off; and rows of a table that rotary positions have not.
_NOT_SAID = {"name", "vocab_multiple", "max_positions"}
_LLAMAS = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "rotary_fraction": 1.0, "biases": False}


@settings(max_examples=50)
@given(fields=_ANY_MODEL, is_llama=st.booleans())
def test_a_config_says_the_whole_model_or_there_is_none(fields, is_llama):
    assert fields.keys() == {field.name for field in dataclasses.fields(ModelSpec)}
    fields |= _LLAMAS if is_llama else {}
    spec = spec_of(model=ModelSpec(**fields))
    if unlike := [f"model.{name} is {fields[name]!r}" for name in _LLAMAS if fields[name] != _LLAMAS[name]]:
        with pytest.raises(ValueError, match=re.escape(unlike[0])):
            hf.config_of(spec, "float32")
        return
    config = json.loads(json.dumps(hf.config_of(spec, "float32")))
    not_said = {name: fields[name] for name in _NOT_SAID}
    assert ModelSpec(**(_LLAMAS | hf.model_of(config) | not_said)) == spec.model
    theirs = AutoConfig.for_model(**config)
    assert theirs.architectures[0] in ("LlamaForCausalLM", "MistralForCausalLM")
    assert getattr(theirs, "sliding_window", None) == spec.model.sliding_window
    assert theirs.head_dim == spec.model.head_dim
    assert theirs.rope_parameters["rope_theta"] == spec.model.rope_theta
    assert theirs.rope_parameters["rope_type"] == ("default" if spec.model.rope_scaling is None else "llama3")


def test_a_mistral_that_leaves_its_window_out_has_the_one_of_transformers():
    config = hf.config_of(spec_of(model=WINDOW), "float32")
    del config["sliding_window"], config["num_key_value_heads"]
    found, theirs = hf.model_of(config), AutoConfig.for_model(**config)
    assert (found["sliding_window"], found["num_kv_heads"]) == (theirs.sliding_window, theirs.num_key_value_heads)
    assert hf.model_of(config | {"sliding_window": None})["sliding_window"] is None


def test_padding_is_left_out_and_made_again(tmp_path):
    """A vocabulary of 100 is padded here, which a folder of Hugging Face's knows nothing of."""
    save_llama(tmp_path / "theirs", replace(MODEL, num_kv_heads=4, num_heads=8))
    model = replace(MODEL, num_kv_heads=4, num_heads=8)
    run = imported(tmp_path / "theirs", tmp_path / "run", {"tensor": 4}, model=replace(model, vocab_multiple=8))
    params = run.restore().state["params"]
    assert (params["embedding"].shape, params["head"].shape) == ((128, 32), (32, 128))
    assert not np.any(np.asarray(params["embedding"])[100:])
    assert not np.any(np.asarray(params["head"])[:, 100:])
    run.save(1)  # also of a state that was never trained
    hf.export(tmp_path / "run", tmp_path / "ours")
    shapes = {name: tuple(x.shape) for name, x in load_all(tmp_path / "ours").items()}
    assert shapes == {name: tuple(x.shape) for name, x in load_all(tmp_path / "theirs").items()}


def test_a_window_that_differs_is_said_and_the_configuration_counts(tmp_path):
    save_llama(tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run", model=WINDOW)
    run.restore()
    assert "config.json says sliding_window None, and model.sliding_window is 5, which applies" in run.said[0]


def test_rope_that_differs_is_said_and_the_configuration_counts(tmp_path):
    save_llama(tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run", model=replace(MODEL, rope_theta=1e6))
    run.restore()
    assert run.said[0] == (
        f"note: {tmp_path}/theirs/config.json says rope_theta 500000.0, and model.rope_theta is 1000000.0, "
        "which applies"
    )


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])


def break_header(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:8] + b"[" + file.read_bytes()[9:])


def rename_tensor(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.xx_proj", 1))


def narrow_one(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.layers.2.self_attn.k_proj.weight"] = torch.zeros(16, 32)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"model.safetensors is damaged: tensor \S+ ends at byte \d+, and the file at \d+"),
        (break_header, "model.safetensors is damaged: "),
        (
            lambda f: next(f.glob("*.safetensors")).write_bytes(b""),
            "is damaged: its header needs 8 bytes",
        ),
        (rename_tensor, "holds model.layers.1.mlp.xx_proj.weight, which this model does not have"),
        (narrow_one, r"layers.2.self_attn.k_proj.weight is \[32, 16\], and this model needs \[32, 32\] \(in, out\)"),
        (lambda f: change_config(f, hidden_size=64), "config.json says hidden_size 64, and model.hidden_dim is 32"),
        (
            lambda f: change_config(f, tie_word_embeddings=True),
            "tie_word_embeddings True, and model.tied_embeddings is",
        ),
        (
            lambda f: change_config(f, model_type="qwen2"),
            "is of a qwen2 with silu, and only Llama and Mistral with silu",
        ),
        (lambda f: change_config(f, attention_bias=True), "has attention_bias, which Seatrial's Llama does not have"),
        (lambda f: change_config(f, rope_parameters={"rope_type": "yarn"}), "by 'yarn', and only llama3 is supported"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json is not a JSON object"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json nests its brackets too deep"),
        (lambda f: change_config(f, num_attention_heads=0), "config.json has 0 as num_attention_heads"),
        (lambda f: change_config(f, num_attention_heads="8"), "config.json has '8' as num_attention_heads"),
        (lambda f: change_config(f, head_dim=None, hidden_size=[32]), r"config.json has \[32\] as hidden_size"),
        (lambda f: change_config(f, rope_parameters=[1]), r"config.json has \[1\] as rope_parameters"),
        (lambda f: change_config(f, rope_parameters={"rope_type": "llama3"}), "llama3 without factor"),
        (lambda f: (f / hf.INDEX).write_text("[]"), "index.json is not a JSON object"),
        (lambda f: (f / hf.INDEX).write_text('{"weight_map": ["a"]}'), "has no weight_map from tensors to files"),
        (lambda f: (f / hf.INDEX).write_text('{"weight_map": {"a": {}}}'), "has no weight_map from tensors to files"),
        (lambda f: (f / hf.INDEX).write_text("[" * 100_000), "index.json nests its brackets too deep"),
        (
            lambda f: (f / hf.INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "names b.safetensors, which",
        ),
    ],
)
def test_what_cannot_be_read_is_named(damage, message, tmp_path):
    save_llama(tmp_path / "theirs")
    damage(tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        run.restore()


def test_a_model_that_is_no_llama_is_refused(tmp_path):
    run = Run(spec_of(model=replace(MODEL, norm="layernorm")), tmp_path)
    run.save(1)
    with pytest.raises(ValueError, match=r"model.norm is 'layernorm': Hugging Face's Llama"):
        hf.export(tmp_path, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_the_verb(tmp_path):
    run = Run(spec_of(model=MODEL), tmp_path / "run")
    run.save(1)
    command = [sys.executable, "-m", "seatrial", "export", "run", "--to", "out", "--dtype", "bfloat16"]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False) for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, "wrote 30 tensors (0.000 GB, step 1) to out\n")
    assert (second.returncode, second.stderr) == (2, "seatrial export: out exists: name a folder that does not\n")
    assert {str(x.dtype) for x in load_all(tmp_path / "out").values()} == {"torch.bfloat16"}
