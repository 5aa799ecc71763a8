"""The trainer against Hugging Face's Llama and AdamW in PyTorch: random weights and tokens, float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_with_min_lr_schedule_with_warmup

from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, RopeScaling, RunSpec
from seatrial.train.mesh import make_mesh
from seatrial.train.model import hidden_states
from seatrial.train.random import make_key
from seatrial.train.step import State
from seatrial.train.trainer import Trainer, make_setup, make_trainer
from tests.helpers.trainer import canonical, make_spec

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


def of_parameters(reference: LlamaForCausalLM, model: ModelSpec, what: str) -> dict:
    """A tensor of every parameter ("data" or "grad") in our tree, copied."""
    return as_params({k: getattr(p, what).numpy().copy() for k, p in reference.named_parameters()}, model)


def begun(spec: RunSpec, params: dict) -> tuple[Trainer, State]:
    """A trainer, and its state before the first step with these parameters."""
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(trainer.init))
    return trainer, jax.device_put(state | {"params": params}, trainer.state_shardings)


def as_batch(trainer: Trainer, **fields: np.ndarray) -> dict[str, jax.Array]:
    """Fields [global batch, T] as a step takes them."""
    A = trainer.batch_shape[0]
    return {
        name: jax.device_put(x.reshape(A, len(x) // A, -1), trainer.batch_shardings[name]) for name, x in fields.items()
    }


def assert_near(ours: dict, theirs: dict, tolerance: float) -> None:
    """The largest difference in each tensor is at most `tolerance` of its largest element."""
    for path, x in jax.tree_util.tree_leaves_with_path(ours):
        expected = theirs
        for key in path:
            expected = expected[key.key]
        assert relative_error(np.asarray(x), expected) < tolerance, jax.tree_util.keystr(path)


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
    loss = cross_entropy(logits.flatten(0, 1), torch.tensor(tokens[:, 1:], dtype=torch.long).flatten())
    loss.backward()

    trainer, state = begun(descent(model, attention, mesh), of_parameters(reference, model, "data"))
    batch = as_batch(trainer, tokens=tokens[:, :-1], targets=tokens[:, 1:], weights=np.ones((B, T), np.float32))
    if not mesh:
        decoder = make_setup(descent(model, attention, mesh), "cpu").decoder
        h_BTD = hidden_states(state["params"], {"tokens": batch["tokens"][0]}, decoder, make_key(0))
        head = state["params"]["embedding"].T if model.tied_embeddings else state["params"]["head"]
        assert relative_error(np.asarray(h_BTD @ head), logits.detach().numpy()) < 1e-4
    np.testing.assert_allclose(float(np.divide(*trainer.loss(state["params"], batch))), loss.item(), rtol=1e-5)
    assert_step_equals(trainer, state, batch, loss.item(), of_parameters(reference, model, "grad"))


def descent(model: ModelSpec, attention: str, mesh: dict[str, int], **changes: Any) -> RunSpec:
    """After a step of it, Adam's first moment is half of the gradient."""
    return make_spec(
        mesh,
        model=model,
        batch=Batch(sequence_length=T, global_batch_size=B, micro_batch_size=B // mesh.get("fsdp", 1)),
        execution=Execution(attention=attention, remat="none"),
        optimizer=Optimizer(learning_rate=1e-3, beta1=0.5, clip_norm=None),
        **changes,
    )


def assert_step_equals(trainer: Trainer, state: State, batch: dict, loss: float, gradients: dict) -> None:
    state, numbers = trainer.step(state, batch)
    np.testing.assert_allclose(float(numbers["loss"]), loss, rtol=1e-5)
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in jax.tree.leaves(gradients)))
    np.testing.assert_allclose(float(numbers["grad_norm"]), norm, rtol=1e-4)
    assert_near(jax.tree.map(lambda m: np.asarray(m) / 0.5, state["slots"]["m"]), gradients, 1e-4)


def packed(rng: np.random.Generator, vocab_size: int) -> dict[str, np.ndarray]:
    """Sequences of two to five documents of random lengths; no loss on what is behind a document's end."""
    lengths = [rng.multinomial(T - 5 * 4, [1 / n] * n) + 20 // n for n in (2, 4, 5)]
    segments = np.stack([np.repeat(np.arange(1, len(each) + 1), each) for each in lengths]).astype(np.int32)
    tokens = rng.integers(0, vocab_size, (B, T + 1)).astype(np.int32)
    is_last = np.diff(segments, append=0, axis=1) != 0
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.where(is_last, 0, rng.choice([0.5, 1.0], (B, T))).astype(np.float32),
        "positions": np.stack([np.concatenate([np.arange(n) for n in each]) for each in lengths]).astype(np.int32),
        "segments": segments,
    }


@pytest.mark.parametrize(
    ("name", "attention", "mesh"),
    [
        ("gqa, llama3.1 scaling", "blocks", ALONE),
        ("tied, wide heads", "reference", {"fsdp": 3, "context": 2}),
    ],
)
def test_packed_documents_equal_transformers_with_a_mask_of_blocks(name, attention, mesh, rng):
    model = MODELS[name]
    reference = hugging_face(model)
    fields = packed(rng, model.vocab_size)
    assert {name: x.shape for name, x in fields.items()} == dict.fromkeys(fields, (B, T))
    theirs = {
        key: torch.tensor(x, dtype=torch.float32 if key == "weights" else torch.long) for key, x in fields.items()
    }
    same = theirs["segments"][:, None, :, None] == theirs["segments"][:, None, None, :]
    hidden = torch.zeros(B, 1, T, T).masked_fill(~(same & torch.ones(T, T).tril().bool()), -torch.inf)
    logits = reference(theirs["tokens"], attention_mask=hidden, position_ids=theirs["positions"]).logits
    for b, row in enumerate(fields["segments"]):  # that is: each document as if it were alone
        where = row == row[-1]
        alone = reference(theirs["tokens"][b, where][None]).logits[0]
        torch.testing.assert_close(logits[b, where], alone, rtol=1e-4, atol=1e-4)
    each = cross_entropy(logits.flatten(0, 1), theirs["targets"].flatten(), reduction="none")
    loss = (each * theirs["weights"].flatten()).sum() / theirs["weights"].sum()
    loss.backward()

    spec = descent(model, attention, mesh, data=Data(reset_positions=True, reset_attention=True))
    trainer, state = begun(spec, of_parameters(reference, model, "data"))
    assert_step_equals(
        trainer, state, as_batch(trainer, **fields), loss.item(), of_parameters(reference, model, "grad")
    )


STEPS = 21  # the first is taken with a rate of 0, as warm-up begins there


@pytest.mark.parametrize(
    ("name", "mesh", "micro_batch_size"),
    [
        ("gqa, llama3.1 scaling", ALONE, 2),
        pytest.param("tied, wide heads", {"fsdp": 2}, 2, marks=pytest.mark.slow),
    ],
)
def test_twenty_steps_equal_transformers_and_torch(name, mesh, micro_batch_size, rng):
    model, length, sequences, clip_norm = MODELS[name], 32, 4, 2.0
    reference = hugging_face(model)
    # With an epsilon of 1e-8, AdamW turns gradients that are nothing but rounding into whole steps: torch in float32 is
    # then up to 2e-5 from torch in float64. Here both are within 3e-6.
    settings = Optimizer(
        learning_rate=3e-3, warmup_steps=4, final_learning_rate_fraction=0.1, clip_norm=clip_norm, epsilon=1e-5
    )
    spec = make_spec(
        mesh,
        model=model,
        steps=STEPS,
        batch=Batch(sequence_length=length, global_batch_size=sequences, micro_batch_size=micro_batch_size),
        execution=Execution(remat="none"),
        optimizer=settings,
    )
    trainer, state = begun(spec, of_parameters(reference, model, "data"))
    reference.double()
    decayed, others = ([p for p in reference.parameters() if p.dim() == dims] for dims in (2, 1))
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), eps=settings.epsilon,
    )  # fmt: skip
    schedule = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 4, STEPS, min_lr_rate=0.1)
    expected, found = [], []
    for _ in range(STEPS):
        # small tokens are more frequent, so that there is something to learn
        tokens = (model.vocab_size * rng.random((sequences, length + 1)) ** 4).astype(np.int32)
        numbers = torch.tensor(tokens, dtype=torch.long)
        loss = cross_entropy(reference(numbers[:, :-1]).logits.flatten(0, 1), numbers[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)
        expected.append((loss.item(), norm.item(), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
        weights = np.ones((sequences, length), np.float32)
        batch = as_batch(trainer, tokens=tokens[:, :-1], targets=tokens[:, 1:], weights=weights)
        state, metrics = trainer.step(state, batch)
        found.append([float(metrics[name]) for name in ("loss", "grad_norm", "learning_rate")])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
    norms = [norm for _, norm, _ in expected]
    assert min(norms) < clip_norm < max(norms)
    params = canonical(jax.tree.map(np.asarray, state["params"]), spec)
    assert_near(params, of_parameters(reference, model, "data"), 1e-5)
