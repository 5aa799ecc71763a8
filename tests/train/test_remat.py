"""The tensors that each row of recomputation keeps, and that none of the rows changes a number."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seatrial.estimate import layer_memory, memory
from seatrial.spec import Batch, Dropout, Execution
from seatrial.train.model import Decoder, run_layers, surroundings
from seatrial.train.params import declare, initialize
from seatrial.train.random import make_key
from seatrial.train.remat import PARTS, REMAT, make_remat
from seatrial.train.trainer import make_setup
from tests.helpers.trainer import TINY, make_spec

SPEC = make_spec(model=replace(TINY, num_layers=1), dropout=Dropout(hidden=0.1, ffn=0.2))
SHAPES = {
    "query": "2,32,8,16", "key": "2,32,4,16", "value": "2,32,4,16", "out": "2,32,64", "gate": "2,32,96",
    "up": "2,32,96",
}  # fmt: skip
SELECTIVE = [(part,) for part in PARTS] + [("core_attn", "layernorm", "mlp_act")]
CUSTOM = Execution(
    remat="custom", remat_kept=("query", "gate", "down", "out"), remat_offloaded=("key", "up", "out", "input")
)
EXECUTIONS = [CUSTOM, *(Execution(remat=row) for row in REMAT if row != "none")] + [
    Execution(remat="selective", remat_modules=parts) for parts in SELECTIVE
]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return make_setup(SPEC, "cpu").decoder


@pytest.fixture(scope="module")
def operands() -> tuple[jax.Array, Any]:
    x_BTD = jnp.asarray(np.random.default_rng(4).normal(size=(2, 32, 64)), jnp.float32)
    return x_BTD, initialize(declare(SPEC), 3, jnp.float32)["layers"]


def loss_of(decoder: Decoder, execution: Execution, *, scan: bool) -> Any:
    row = replace(decoder, remat=make_remat(execution), scan_layers=scan)
    around = surroundings({"tokens": jnp.zeros((2, 32), jnp.int32)}, row, make_key(0), 0)
    return lambda x_BTD, layers: jnp.sum(run_layers(x_BTD, layers, around, row) @ jnp.cos(jnp.arange(64.0)))


def kept_by(decoder: Decoder, execution: Execution, operands: Any, capsys: Any) -> tuple[set[str], list[str], str]:
    """The named tensors that are kept, the shapes of those that wait in the host's memory, and JAX's whole account."""
    jax.ad_checkpoint.print_saved_residuals(loss_of(decoder, execution, scan=False), *operands)
    text = capsys.readouterr().out
    return set(re.findall(r"named '(\w+)'", text)), sorted(re.findall(r"<host>\[(\S+)\]", text)), text


@pytest.mark.parametrize("row", REMAT)
def test_a_row_keeps_what_it_names(row, decoder, operands, capsys):
    named, in_host, text = kept_by(decoder, Execution(remat=row), operands, capsys)
    if row.endswith("_offloaded"):
        names = ("query", "key", "value", *(("out", "gate", "up") if row == "minimal_offloaded" else ()))
        assert (named, in_host) == (set(), sorted(SHAPES[name] for name in names))
    elif row == "none":
        assert named >= {"query", "key", "value", "context", "gate", "up"}
    else:
        assert (named, in_host) == ({*layer_memory.KEPT[row]}, [])
    assert text.count("rms_norm") == 0 or row == "none"


def test_custom_keeps_what_it_names_where_it_says(decoder, operands, capsys):
    assert kept_by(decoder, Execution(remat="custom"), operands, capsys) == kept_by(
        decoder, Execution(remat="full"), operands, capsys
    )
    named, in_host, _ = kept_by(decoder, CUSTOM, operands, capsys)
    assert named == {"query", "gate"}  # of the last product, nothing is needed
    assert in_host == sorted([*(SHAPES[name] for name in ("key", "up", "out")), "2,32,64"])


def test_selective_recomputes_the_parts_that_it_names_and_no_other(decoder, operands, capsys):
    everything = kept_by(decoder, Execution(remat="none"), operands, capsys)

    def gone(*parts: str) -> tuple[set[str], bool]:
        execution = Execution(remat="selective", remat_modules=parts)
        named, _, text = kept_by(decoder, execution, operands, capsys)
        assert "silu" not in text  # what is inside of the activation is always computed again
        return everything[0] - named, text.count("rsqrt") < everything[2].count("rsqrt")

    assert gone() == (set(), False)
    assert gone("core_attn") == ({"context"}, False)
    assert gone("mlp") == ({"gate", "up"}, False)
    assert gone("mlp_act") == (set(), False)
    assert gone("layernorm") == (set(), True)
    assert gone("rope") == (set(), False)
    assert gone("layer") == (everything[0], True)


ESTIMATED = (
    [Execution(remat="custom", remat_kept=("query", "up", "context")), CUSTOM]
    + [Execution(remat=row) for row in REMAT if not row.endswith("offloaded")]
    + [
        Execution(remat="selective", remat_modules=parts)
        for parts in (("mlp",), ("layernorm",), ("mlp_act", "layernorm"), ("layer",))
    ]
)


@pytest.mark.parametrize("execution", ESTIMATED, ids=lambda e: "+".join((e.remat, *e.remat_modules)))
def test_the_estimate_counts_what_is_kept(execution, decoder, operands, capsys):
    text = kept_by(decoder, execution, operands, capsys)[2]
    shapes = re.findall(r"^(f32|bool|i1)\[(2,32,[\d,]+)\]", text, re.MULTILINE)  # parameters have others
    kept = sum((4 if kind == "f32" else 1) * np.prod([int(n) for n in shape.split(",")]) for kind, shape in shapes)
    spec = replace(SPEC, execution=execution, batch=Batch(sequence_length=32, global_batch_size=2, micro_batch_size=2))
    assert memory.per_device(spec, "native").activations_bytes == pytest.approx(kept, rel=0.1)


@pytest.fixture(scope="module")
def expected(decoder, operands):
    return jax.value_and_grad(loss_of(decoder, Execution(remat="none"), scan=False), (0, 1))(*operands)


@pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda e: "+".join((e.remat, *e.remat_modules)))
def test_recomputation_changes_nothing(execution, decoder, operands, expected):
    found = jax.value_and_grad(loss_of(decoder, execution, scan=False), (0, 1))(*operands)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max()), found, expected)


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        (
            Execution(remat="selective", remat_modules=("moe",)),
            "'moe' is not a part of a layer",
        ),
        (Execution(remat="auto"), "execution.remat: unknown policy 'auto'; known: none, full"),
    ],
)
def test_what_there_is_not_is_named(execution, message):
    with pytest.raises(ValueError, match=message):
        make_remat(execution)


def test_the_estimate_knows_the_same_parts():
    assert set(layer_memory.PARTS) == set(PARTS)
