"""Hugging Face folders: what is read is what transformers reads, what is written is what was read, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from seatrial.spec import Checkpoint, ModelSpec, RopeScaling
from seatrial.train import hf

from .test_checkpoint import Run, spec_of

MODEL = ModelSpec(
    name="small", vocab_size=100, hidden_dim=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, ffn_dim=48,
    rope_theta=500_000.0, rope_scaling=RopeScaling(original_max_positions=32), norm_epsilon=1e-6,
)  # fmt: skip


def save_llama(folder: Path, model: ModelSpec = MODEL, dtype: torch.dtype = torch.float32, **saved) -> LlamaForCausalLM:
    """A random Llama, saved by transformers itself."""
    torch.manual_seed(3)
    scaling = model.rope_scaling
    made = LlamaForCausalLM(
        LlamaConfig(
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
    model = LlamaForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, model.config.vocab_size, (2, 17), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model(tokens).logits


def imported(folder: Path, run_dir: Path, mesh: dict[str, int] | None = None, **changes) -> Run:
    asked = Checkpoint(enabled=True, resume_from=str(folder))
    spec = spec_of(mesh, asked, **{"model": MODEL, **changes})
    return Run(spec, run_dir)


@pytest.mark.parametrize(
    ("model", "mesh", "dtype", "limit"),
    [
        (MODEL, {"fsdp": 2, "tensor": 2}, "float32", hf.SHARD_BYTES),
        (replace(MODEL, tied_embeddings=True, rope_scaling=None), {"data": 2}, "bfloat16", 40_000),
    ],
)
def test_the_way_there_and_back_is_exact(model, mesh, dtype, limit, tmp_path):
    original = tmp_path / "original"
    save_llama(original, model, getattr(torch, dtype), max_shard_size=limit)
    run = imported(original, tmp_path / "run", mesh, model=model)
    restored = run.restore()
    assert (restored.step, restored.examples) == (0, 0)
    run.checkpoints.save(1, restored.state, {})
    run.checkpoints.close()
    said = hf.export(
        tmp_path / "run", tmp_path / "back", "bfloat16" if limit else None, 40_000 if limit else hf.SHARD_BYTES
    )
    print(run.said, said)
    assert_same_tensors(tmp_path / "back", original)
    assert torch.equal(logits(tmp_path / "back"), logits(original))
