"""The model against Hugging Face's Llama in PyTorch: random weights, float32."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from seatrial.spec import Batch, Execution, ModelSpec, Optimizer, RopeScaling
from seatrial.train.mesh import make_mesh
from seatrial.train.model import hidden_states
from seatrial.train.random import make_key
from seatrial.train.step import make_trainer

from .conftest import make_spec

GQA_SCALED = ModelSpec(
    name="gqa-scaled", vocab_size=96, hidden_dim=48, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=16, ffn_dim=80,
    rope_theta=500_000.0, rope_scaling=RopeScaling(factor=8.0, original_max_positions=32),
)  # fmt: skip
MODELS = {
    "gqa, llama3.1 scaling": GQA_SCALED,
    "plain": replace(GQA_SCALED, rope_scaling=None, num_kv_heads=6, rope_theta=10_000.0, norm_epsilon=1e-6),
    "tied, wide heads": replace(GQA_SCALED, tied_embeddings=True, head_dim=32),
}
B, T = 3, 64


def hugging_face(model: ModelSpec) -> LlamaForCausalLM:
    scaling = model.rope_scaling
    rope = {"rope_type": "default", "rope_theta": model.rope_theta}
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_positions,
        }
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.ffn_dim,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters=rope,
        max_position_embeddings=256,
        tie_word_embeddings=model.tied_embeddings,
        attn_implementation="eager",
    )
    reference = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():  # norms are 1 in a fresh model, which would hide a forgotten scale
        for name, weight in reference.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            else:
                weight.mul_(4)
    return reference


OURS = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def as_params(tensors: dict[str, np.ndarray], model: ModelSpec) -> dict:
    """Hugging Face's tensors ([out, in], a key per layer) as our tree ([in, out], layers stacked)."""
    layers = {
        ours: np.stack([tensors[f"model.layers.{i}.{theirs}.weight"].T for i in range(model.num_layers)])
        for ours, theirs in OURS.items()
    }
    params = {
        "embedding": tensors["model.embed_tokens.weight"],
        "layers": layers,
        "final_norm": tensors["model.norm.weight"],
    }
    return params if model.tied_embeddings else params | {"head": tensors["lm_head.weight"].T}


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


ALONE, SPREAD = {}, {"fsdp": 3, "tensor": 2}
FAST = [
    ("gqa, llama3.1 scaling", "blocks", ALONE),
    ("tied, wide heads", "blocks", SPREAD),
]
ALL = [(name, attention, mesh) for name in MODELS for attention in ("blocks", "reference") for mesh in (ALONE, SPREAD)]


@pytest.mark.parametrize(
    ("name", "attention", "mesh"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST)],
)
def test_logits_loss_and_gradients_equal_transformers(name, attention, mesh, rng):
    model = MODELS[name]
    reference = hugging_face(model)
    tokens = rng.integers(0, model.vocab_size, (B, T + 1)).astype(np.int32)
    logits = reference(torch.tensor(tokens[:, :-1], dtype=torch.long)).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, model.vocab_size), torch.tensor(tokens[:, 1:], dtype=torch.long).reshape(-1)
    )
    loss.backward()
    weights = {key: value.detach().numpy().copy() for key, value in reference.named_parameters()}
    gradients = {key: value.grad.numpy().copy() for key, value in reference.named_parameters()}

    # one step of plain gradient descent in disguise: Adam's first moment after it is (1 - beta1) · gradient
    spec = make_spec(
        mesh,
        model=model,
        batch=Batch(sequence_length=T, global_batch_size=B, micro_batch_size=B // mesh.get("fsdp", 1)),
        execution=Execution(attention=attention, remat="none"),
        optimizer=Optimizer(learning_rate=1e-3, beta1=0.5, clip_norm=None),
    )
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(trainer.init))
    state = jax.device_put(state | {"params": as_params(weights, model)}, trainer.state_shardings)
    arrays = {
        "tokens": tokens[None, :, :-1],
        "targets": tokens[None, :, 1:],
        "weights": np.ones((1, B, T), np.float32),
    }
    batch = {key: jax.device_put(value, trainer.batch_shardings[key]) for key, value in arrays.items()}
    if not mesh:
        h_BTD = hidden_states(state["params"], {"tokens": batch["tokens"][0]}, trainer.decoder, make_key(0))
        head = state["params"]["embedding"].T if model.tied_embeddings else state["params"]["head"]
        assert relative_error(np.asarray(h_BTD @ head), logits.detach().numpy()) < 1e-4
    np.testing.assert_allclose(float(np.divide(*trainer.loss(state["params"], batch))), loss.item(), rtol=1e-5)
    state, numbers = trainer.step(state, batch)
    np.testing.assert_allclose(float(numbers["loss"]), loss.item(), rtol=1e-5)
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradients.values()))
    np.testing.assert_allclose(float(numbers["grad_norm"]), norm, rtol=1e-4)
    expected = as_params(gradients, model)
    for path, ours in jax.tree_util.tree_leaves_with_path(state["slots"]["m"]):
        theirs = expected
        for key in path:
            theirs = theirs[key.key]
        assert relative_error(np.asarray(ours) / 0.5, theirs) < 1e-4, jax.tree_util.keystr(path)
