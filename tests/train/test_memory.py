"""The estimate of memory against what XLA reserves for the trainer's own step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from seatrial.estimate import layer_memory, memory, own_memory
from seatrial.spec import Batch, Dropout, Execution, ModelSpec
from seatrial.train.mesh import make_mesh
from seatrial.train.precision import PRODUCTS
from seatrial.train.remat import REMAT
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import make_spec

SMALL = ModelSpec(
    name="small", vocab_size=1024, hidden_dim=128, num_layers=4, num_heads=8, num_kv_heads=4, head_dim=16, ffn_dim=352
)  # fmt: skip
KNOBS = replace(
    SMALL, num_kv_heads=2, norm="layernorm", activation="gelu", positions="learned", max_positions=200, biases=True,
    tied_embeddings=True, vocab_multiple=200,
)  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        pytest.param({}, {}, marks=pytest.mark.slow),
        pytest.param({"fsdp": 4}, {}, marks=pytest.mark.slow),
        pytest.param({"data": 4}, {"zero1": True}, marks=pytest.mark.slow),
        pytest.param({"fsdp": 2, "tensor": 2}, {"execution": Execution(remat="minimal")}, marks=pytest.mark.slow),
        pytest.param(  # four devices share two heads
            {"tensor": 4}, {"model": KNOBS, "dropout": Dropout(hidden=0.1, ffn=0.1)}, marks=pytest.mark.slow
        ),
        ({"pipeline": 2, "context": 2}, {"batch": Batch(sequence_length=32, global_batch_size=16, micro_batch_size=4)}),
    ],
)
def test_what_is_held_at_rest_is_exact_and_the_whole_is_near(mesh: dict[str, int], changes: dict[str, Any]) -> None:
    """The state is exact but for norms and counters; the CPU's programs hold up to twice of the rest."""
    spec = make_spec(mesh, **{"model": SMALL} | changes)
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    state = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(trainer.init),
        trainer.state_shardings,
    )
    batch = {
        name: jax.ShapeDtypeStruct(trainer.batch_shape, dtype, sharding=place)
        for (name, place), dtype in zip(trainer.batch_shardings.items(), ("int32", "int32", "float32"), strict=True)
    }
    compiled = trainer.step.lower(state, batch).compile().memory_analysis()
    expected = memory.per_device(spec, "native")
    held = expected.parameters_bytes + expected.optimizer_bytes
    assert held == pytest.approx(compiled.argument_size_in_bytes, rel=0.02)
    whole = compiled.argument_size_in_bytes + compiled.temp_size_in_bytes
    assert 0.5 * whole < expected.total_bytes < 1.25 * whole


def test_the_tables_are_the_trainer_s() -> None:
    assert {*layer_memory.KEPT, "none"} == set(REMAT)
    assert PRODUCTS["gpu"].logits_tokens == own_memory.CHUNK_TOKENS
