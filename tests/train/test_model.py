"""The model's knobs: against GPT-2 and GPT-NeoX in PyTorch, over meshes, and by their statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from seatrial.spec import Batch, Dropout, Initialization, ModelSpec
from seatrial.train.layers import dropout, rope_tables
from seatrial.train.model import hidden_states
from seatrial.train.params import declare, initialize
from seatrial.train.random import fold, make_key
from seatrial.train.trainer import make_setup
from tests.helpers.trainer import TINY, make_spec, run_steps

D, F, H, K, L, T, V = 48, 80, 6, 8, 2, 32, 101
MEGATRON = ModelSpec(
    name="megatron", vocab_size=V, hidden_dim=D, num_layers=L, num_heads=H, num_kv_heads=H, head_dim=K, ffn_dim=F,
    norm="layernorm", activation="gelu", biases=True,
)  # fmt: skip
GPT2 = replace(MEGATRON, positions="learned", max_positions=40, tied_embeddings=True)
NEOX = replace(MEGATRON, rotary_fraction=0.5)


def gpt2() -> tuple[torch.nn.Module, Any]:
    """The reference, and how its tensors become our parameters: "a.b" → [in, out] arrays."""
    config = GPT2Config(
        vocab_size=V, bos_token_id=0, eos_token_id=0, n_embd=D, n_inner=F, n_head=H, n_layer=L, n_positions=40,
        activation_function="gelu", layer_norm_epsilon=GPT2.norm_epsilon, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip

    def params(tensor: Any) -> dict[str, Any]:
        def layer(i: int) -> dict[str, np.ndarray]:
            at = f"transformer.h.{i}."
            fused = {end: np.split(tensor(f"{at}attn.c_attn.{end}"), 3, -1) for end in ("weight", "bias")}
            maps = {"output": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
            norms = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}
            return (
                {name: fused["weight"][n] for n, name in enumerate(("query", "key", "value"))}
                | {f"{name}_bias": fused["bias"][n] for n, name in enumerate(("query", "key", "value"))}
                | {ours: tensor(f"{at}{theirs}.weight") for ours, theirs in (maps | norms).items()}
                | {f"{ours}_bias": tensor(f"{at}{theirs}.bias") for ours, theirs in (maps | norms).items()}
            )

        return {
            "embedding": tensor("transformer.wte.weight"),
            "positions": tensor("transformer.wpe.weight"),
            "layers": stacked(layer),
            "final_norm": tensor("transformer.ln_f.weight"),
            "final_norm_bias": tensor("transformer.ln_f.bias"),
        }

    return GPT2LMHeadModel(config), params


def neox() -> tuple[torch.nn.Module, Any]:
    config = GPTNeoXConfig(
        vocab_size=V, bos_token_id=0, eos_token_id=0, hidden_size=D, intermediate_size=F, num_attention_heads=H,
        num_hidden_layers=L, hidden_act="gelu", layer_norm_eps=NEOX.norm_epsilon, use_parallel_residual=False,
        attention_dropout=0.0, hidden_dropout=0.0, tie_word_embeddings=False, max_position_embeddings=64,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip

    def params(tensor: Any) -> dict[str, Any]:
        def layer(i: int) -> dict[str, np.ndarray]:
            at = f"gpt_neox.layers.{i}."
            maps = {"output": "attention.dense", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
            norms = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
            weight = tensor(f"{at}attention.query_key_value.weight").reshape(H, 3, K, D)
            bias = tensor(f"{at}attention.query_key_value.bias").reshape(H, 3, K)
            return (
                {name: weight[:, n].reshape(H * K, D).T for n, name in enumerate(("query", "key", "value"))}
                | {f"{name}_bias": bias[:, n].reshape(-1) for n, name in enumerate(("query", "key", "value"))}
                | {ours: tensor(f"{at}{theirs}.weight").T for ours, theirs in (maps | norms).items()}
                | {f"{ours}_bias": tensor(f"{at}{theirs}.bias") for ours, theirs in (maps | norms).items()}
            )

        return {
            "embedding": tensor("gpt_neox.embed_in.weight"),
            "layers": stacked(layer),
            "final_norm": tensor("gpt_neox.final_layer_norm.weight"),
            "final_norm_bias": tensor("gpt_neox.final_layer_norm.bias"),
            "head": tensor("lm_head.weight").T,
        }

    return GPTNeoXForCausalLM(config), params


def stacked(layer: Any) -> dict[str, np.ndarray]:
    layers = [layer(i) for i in range(L)]
    return {name: np.stack([each[name] for each in layers]) for name in layers[0]}


@pytest.mark.parametrize(("model", "reference"), [(GPT2, gpt2), (NEOX, neox)], ids=["gpt-2", "gpt-neox"])
def test_logits_loss_and_gradients_equal_transformers(model, reference, rng):
    torch.manual_seed(6)
    theirs, as_params = reference()
    with torch.no_grad():  # biases are 0 and norms 1 in a fresh model, which would hide forgotten ones
        for weight in theirs.parameters():
            weight.copy_(weight * 4 if weight.ndim > 1 else weight + 0.3 * torch.randn_like(weight))
    tokens = rng.integers(0, V, (3, T + 1)).astype(np.int32)
    logits = theirs(torch.tensor(tokens[:, :-1], dtype=torch.long)).logits
    wanted = torch.tensor(tokens[:, 1:], dtype=torch.long).reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), wanted)
    loss.backward()
    tensors = dict(theirs.named_parameters())

    spec = make_spec(model=model, batch=Batch(sequence_length=T, global_batch_size=3, micro_batch_size=3))
    decoder = make_setup(spec, "cpu").decoder
    params = as_params(lambda name: tensors[name].detach().numpy())
    assert jax.tree.map(lambda p: p.shape, params) == jax.tree.map(lambda d: d.shape, declare(spec))

    @jax.jit
    def ours(params: Any) -> Any:
        def loss_of(params: Any) -> Any:
            h_BTD = hidden_states(params, {"tokens": jnp.asarray(tokens[:, :-1])}, decoder, make_key(0))
            logits = h_BTD @ (params["embedding"].T if model.tied_embeddings else params["head"])
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
            return -chosen.mean(), logits

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    (our_loss, our_logits), gradients = ours(params)
    wanted_logits = logits.detach().numpy()
    np.testing.assert_allclose(our_logits, wanted_logits, rtol=0, atol=1e-4 * np.abs(wanted_logits).max())
    np.testing.assert_allclose(float(our_loss), loss.item(), rtol=1e-5)
    scale = max(float(weight.grad.abs().max()) for weight in tensors.values())  # the key's bias has a gradient of 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(float(np.abs(b).max()), 1e-2 * scale)),
        gradients, as_params(lambda name: tensors[name].grad.numpy()),
    )  # fmt: skip


# --- over meshes ------------------------------------------------------------------------------------------------------

# Two devices do not split 131 words evenly.
KNOBS = replace(
    TINY, vocab_size=131, num_layers=2, norm="layernorm", activation="gelu", biases=True, positions="learned",
    rope_scaling=None, tied_embeddings=True,
)  # fmt: skip
DROPPED = {"model": KNOBS, "dropout": Dropout(hidden=0.2, ffn=0.3)}


@pytest.fixture(scope="module")
def alone():
    return run_steps(make_spec(**DROPPED), 3)


QUARTERS = {"batch": Batch(sequence_length=32, global_batch_size=16, micro_batch_size=4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({"fsdp": 2, "tensor": 2}, {"sequence_parallel": True}),
        ({"data": 2, "tensor": 2}, QUARTERS),
        ({"tensor": 8}, {}),  # two devices share a key/value head, and its biases
        ({"pipeline": 2, "tensor": 2}, QUARTERS),
    ],
    ids=["fsdp+tp+sp", "dp+tp, 2 micro-batches", "copied heads", "pp+tp, 4 micro-batches"],
)
def test_what_is_dropped_and_padded_is_the_same_on_every_mesh(mesh, changes, alone):
    losses, norms, params = run_steps(make_spec(mesh, **DROPPED, **changes), 3)
    np.testing.assert_allclose(losses, alone[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(norms, alone[1], rtol=1e-4)
    assert params["embedding"].shape == (-(-131 // mesh["tensor"]) * mesh["tensor"], 64)
    assert not params["embedding"][131:].any()
    params["embedding"] = params["embedding"][:131]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), params, alone[2])


@pytest.mark.slow
def test_padding_the_vocabulary_changes_nothing_and_dropout_does(alone):
    padded = replace(KNOBS, vocab_multiple=64)
    losses, norms, params = run_steps(make_spec(model=padded, dropout=DROPPED["dropout"]), 3)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-6)
    np.testing.assert_allclose(norms, alone[1], rtol=1e-6)
    assert params["embedding"].shape == (192, 64)
    assert abs(run_steps(make_spec(model=padded), 3)[0][0] - losses[0]) > 1e-3


def test_sequences_longer_than_the_learned_positions_are_named():
    with pytest.raises(ValueError, match="sequence_length = 32 is more than the max_positions = 16 of learned"):
        declare(make_spec(model=replace(KNOBS, max_positions=16)))


def test_half_a_pair_of_rotary_dimensions_is_named():
    with pytest.raises(ValueError, match=r"head_dim 16 × rotary_fraction 0.2 gives 3: make that even"):
        rope_tables(replace(TINY, rotary_fraction=0.2), jnp.zeros((1, 1)))


# --- statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_dropout_keeps_the_mean_and_drops_its_share(rate):
    keys = fold(make_key(3), jnp.arange(8))
    x = dropout(jnp.ones((8, 128, 256)), rate, keys, jnp.arange(128), 0)
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(float((x == 0).mean()) - rate) <= 5 * deviation
    assert abs(float(x.mean()) - 1) <= 5 * deviation / (1 - rate)
    for axis in ((1, 2), (0, 2), (0, 1)):  # no sequence, token or column is dropped more than others
        share = np.asarray((x == 0).mean(axis))
        assert np.abs(share - rate).max() <= 6 * np.sqrt(rate * (1 - rate) * share.size / x.size)


def test_a_part_of_a_tensor_drops_what_the_whole_does(rng):
    keys, x = fold(make_key(3), jnp.arange(2)), jnp.asarray(rng.normal(size=(2, 16, 24)))
    whole = dropout(x, 0.3, keys, jnp.arange(16), 0)
    part = dropout(x[1:, 8:, 12:], 0.3, keys[1:], jnp.arange(8, 16), 12)
    np.testing.assert_array_equal(part, whole[1:, 8:, 12:])


@pytest.mark.parametrize("scaled", [True, False])
def test_parameters_begin_as_wide_as_they_are_told(scaled):
    model = replace(KNOBS, hidden_dim=256, ffn_dim=512, tied_embeddings=False, vocab_multiple=8)
    spec = make_spec(model=model, initialization=Initialization(std=0.05, scaled=scaled))
    declarations = declare(spec)
    params = initialize(declarations, 7, jnp.float32)
    layers = params["layers"]
    for name in ("query", "key", "value", "up"):
        assert np.std(layers[name]) == pytest.approx(0.05, rel=0.02)
    for name in ("output", "down"):
        assert np.std(layers[name]) == pytest.approx(0.05 / (2 if scaled else 1), rel=0.02)  # √(2 · 2 layers)
    assert np.std(params["embedding"][:131]) == pytest.approx(0.05, rel=0.02)
    assert np.std(params["head"][:, :131]) == pytest.approx(0.05, rel=0.02)
    assert not params["head"][:, 131:].any()
    flat = jax.tree_util.tree_leaves_with_path(params)
    assert all((x == 0).all() for path, x in flat if path[-1].key.endswith("_bias"))
    assert all((x == 1).all() for path, x in flat if path[-1].key.endswith("_norm"))
    decayed = {path[-1].key for path, d in jax.tree_util.tree_leaves_with_path(declarations) if d.decay}
    assert decayed == {"embedding", "positions", "head", "query", "key", "value", "output", "up", "down"}
