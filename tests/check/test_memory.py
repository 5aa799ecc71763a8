"""A run is counted as its engine trains, and held against what a process of that engine gets of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seatrial.check import lint
from seatrial.errors import Problem
from seatrial.spec import Execution, Resolved, RunSpec
from tests.helpers.compiled import spec_of

# Some 80 GiB, and with our own trainer 84, of the 96 that a device has.
TIGHT = spec_of("llama3.1-8b", 3, 7680, "minimal", scan=False, fsdp=8)
TIGHT = replace(TIGHT, topology=replace(TIGHT.topology, device="h20"))


def found(spec: RunSpec, engine: str | None = None, action: str = "plan") -> list[Problem]:
    return list(lint(Resolved(spec=spec, origins={}, problems=()), action=action, engine=engine).problems)


def exporting(**environment: str) -> RunSpec:
    return replace(TIGHT, execution=replace(TIGHT.execution, environment=environment))


def test_jax_takes_three_quarters_unless_it_is_given_more() -> None:
    (problem,) = found(TIGHT, "maxtext")
    assert (problem.code, problem.severity) == ("out-of-memory", "warning")
    assert "each device needs about 80 GiB" in problem.why
    assert "h20 has 96 GiB, of which JAX gives a process 72 GiB" in problem.why
    assert problem.fix.startswith("export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, or recompute more")
    assert found(exporting(XLA_PYTHON_CLIENT_MEM_FRACTION="0.95"), "maxtext") == []
    assert found(exporting(XLA_CLIENT_MEM_FRACTION="0.95"), "maxtext") == []
    assert found(exporting(XLA_PYTHON_CLIENT_ALLOCATOR="platform"), "maxtext") == []
    (problem,) = found(exporting(XLA_CLIENT_MEM_FRACTION="0.8"), "native")
    assert "of which XLA_CLIENT_MEM_FRACTION gives 77 GiB" in problem.why
    assert problem.fix.startswith("export XLA_CLIENT_MEM_FRACTION=0.95, or ")


def test_who_is_not_jax_gets_all_of_it_and_our_own_trainer_takes_more() -> None:
    assert found(TIGHT, "megatron") == []
    assert found(TIGHT, "native") == []


@pytest.mark.parametrize(
    ("dialect", "codes"),
    [("native", []), ("maxtext", ["out-of-memory"]), ("cvs-jax", ["out-of-memory"]), ("cvs-2026", ["out-of-memory"]),
     ("megatron", []), ("cvs-megatron", []), ("nxdt", [])],
)  # fmt: skip
def test_where_nobody_says_what_trains_it_is_whose_configuration_it_is(dialect: str, codes: list[str]) -> None:
    assert [problem.code for problem in found(replace(TIGHT, dialect=dialect), action="check")] == codes


def test_a_pipeline_of_our_own_is_counted_alike_in_every_verb() -> None:
    """70B over pp8 × fsdp8 with 64 micro-batches: the compiler needs 139.9 GiB, of which others would hold 35."""
    spec = spec_of("llama3.1-70b", 1, 8192, accumulate=64, fsdp=8, pipeline=8)
    spec = replace(spec, topology=replace(spec.topology, device="h200"))
    for action in ("check", "plan", "run", "rehearse", "train"):
        (problem,) = found(spec, "native" if action in ("plan", "run") else None, action)
        assert "each device needs about 137 GiB" in problem.why
        assert "h200 has 141 GiB, of which JAX gives a process 127 GiB" in problem.why
    assert found(spec, "megatron", "run") == []


def test_a_share_is_given_once() -> None:
    both = exporting(XLA_CLIENT_MEM_FRACTION="0.9", XLA_PYTHON_CLIENT_MEM_FRACTION="0.9")
    (problem,) = found(both, "native")
    assert (problem.code, problem.severity) == ("bad-variable", "error")
    assert problem.path == "execution.environment.XLA_PYTHON_CLIENT_MEM_FRACTION"
    (problem,) = found(replace(TIGHT, execution=Execution(environment={"XLA_CLIENT_MEM_FRACTION": "2"})), "maxtext")
    assert "'2' is not a share of a device's memory" in problem.why
    assert found(both, "megatron") == []
