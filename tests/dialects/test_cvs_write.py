"""A spec that is written as a CVS configuration reads back the same, and what CVS cannot say gets a note."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from seatrial import dialects
from seatrial.dialects.cvs import deviations
from seatrial.dialects.cvs import jax as cvs
from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.spec import AXES, RunSpec
from tests.helpers.seeds import COMPLETE, MEGATRON_CELLS, MEGATRON_COMPLETE, SEEDS
from tests.helpers.specs import assert_round_trip, read_text, specs

# What every CVS configuration has words for.
ALWAYS_SAID = {
    "steps", "batch.sequence_length", "batch.global_batch_size", "topology.num_nodes", "topology.devices_per_node",
    "precision.compute_dtype", "precision.params_dtype", "checkpoint.enabled", "nic_type",
    "distributed.coordinator_host", "distributed.coordinator_port", "container.image",
    *(f"parallelism.{part}.{axis}" for part in ("within_node", "across_nodes") for axis in AXES),
}  # fmt: skip


@settings(max_examples=100)
@given(spec=specs())
def test_any_run_as_a_jax_configuration(spec: RunSpec) -> None:
    written = assert_round_trip(cvs.write, cvs.read, spec)
    sizes = spec.parallelism.within_node.sizes
    left_open = {f"parallelism.within_node.{axis}" for axis, size in sizes.items() if size == -1}  # CVS needs a number
    left_open |= {
        f"precision.{name}" for name in ("compute_dtype", "params_dtype") if getattr(spec.precision, name) == "float16"
    }  # of which CVS knows nothing
    assert not {note.path for note in written.notes} & ALWAYS_SAID - left_open
    again = read_text(cvs.read, written.text, ".json").spec
    assert again is not None
    assert again.execution.xla_flags.items() >= spec.execution.xla_flags.items()  # with those that CVS needs


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_what_was_read_from_a_jax_configuration_is_written_without_loss(path: Path) -> None:
    spec = dialects.load(path, COMPLETE[path], action="plan").spec
    assert spec is not None
    written = assert_round_trip(cvs.write, cvs.read, spec)
    assert written.notes == ()
    assert list(json.loads(written.text)) == ["config", "model_params"]


@settings(max_examples=100)
@given(spec=specs())
def test_any_run_as_a_megatron_configuration(spec: RunSpec) -> None:
    written = assert_round_trip(cvs_megatron.write, cvs_megatron.read, spec)
    always = {path for path in ALWAYS_SAID if not path.startswith(("parallelism", "precision", "execution"))}
    rest = {"checkpoint.enabled", "distributed.coordinator_port"}
    said = always - rest | {"batch.micro_batch_size"}
    assert not {note.path for note in written.notes} & said


@pytest.mark.parametrize(("path", "model", "gpu"), MEGATRON_CELLS)
def test_what_was_read_from_a_megatron_cell_is_written_without_loss(path: Path, model: str, gpu: str) -> None:
    spec = dialects.load(path, MEGATRON_COMPLETE[path], action="plan", model=model, gpu=gpu).spec
    assert spec is not None
    assert assert_round_trip(cvs_megatron.write, cvs_megatron.read, spec).notes == ()


# --- as CVS's own code reads it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Read:
    """A key as a release of CVS reads it, found by tools/cvs_reads.py; the columns are explained there."""

    release: str
    kind: str
    name: str
    how: str
    use: str
    into: str

    def value(self, tree: Mapping[str, Any]) -> Any:
        """The value that it reads of a file with one cell. Raises KeyError or ValueError where CVS would."""
        found: Any = tree["config"]
        if not self.name.startswith("config."):
            (topology,) = tree["model_params"].values()
            (model,) = topology.values()
            (found,) = model.values()
        for part in self.name.removeprefix("config.").split("."):
            found = found[part]
        return {"int": int, "float": float, "any": lambda value: value}[self.use](found)


def _reads() -> list[Read]:
    lines = Path(__file__).with_name("cvs_reads.txt").read_text(encoding="utf-8").splitlines()[1:]
    return [Read(**dict(zip(("release", "kind", "name", "how", "use", "into"), line.split(), strict=True)))
            for line in lines]  # fmt: skip


READS = _reads()
KEYS_OF = {"jax": cvs.KEYS, "megatron": cvs_megatron.KEYS}


def handed_on(tree: Mapping[str, Any], kind: str, release: str, *, across: bool) -> dict[str, str]:
    """Words and the value that follows them in what CVS writes, of all that it reads; KeyError where it would stop."""
    found: dict[str, str] = {}
    for read in READS:
        if (read.kind, read.release) == (kind, release) and (across or read.how != "needed-across"):
            try:
                value = read.value(tree)
            except KeyError:
                if read.how != "default":
                    raise
                continue
            for word in read.into.split(",") if read.into != "-" else ():
                found[word] = str(value)
    return found


@settings(max_examples=20)
@given(spec=specs())
def test_cvs_reads_every_file_that_is_written_for_it(spec: RunSpec) -> None:
    across = spec.topology.num_nodes > 1
    for release in ("2025", "2026"):
        for kind, module in (("jax", cvs), ("megatron", cvs_megatron)):
            tree = json.loads(module.write(spec).text)
            assert handed_on(tree, kind, release, across=across)
            assert all(tree["config"][name] for name in ("container_image", "container_name", "hf_token_file"))
            assert not {"", None} & set(tree["config"]["container_config"])


def test_what_cvs_reads_is_missed_where_it_is_not_there() -> None:
    tree = json.loads(cvs.write(loaded(SEEDS[0])).text)
    for name in ("gpu_max_hw_queues", "nvte_ck_bwd_v3", "container_config"):
        less = {**tree, "config": {key: value for key, value in tree["config"].items() if key != name}}
        with pytest.raises(KeyError):
            handed_on(less, "jax", "2025", across=False)
    odd = {**tree, "config": {**tree["config"], "training_steps": "ten"}}
    with pytest.raises(ValueError, match="ten"):
        handed_on(odd, "jax", "2025", across=False)


def loaded(path: Path, *more: str) -> RunSpec:
    spec = dialects.load(path, (*COMPLETE.get(path, ()), *more), action="plan").spec
    assert spec is not None
    return spec


# A key of MaxText's in the YAML that CVS writes, and the value of the run that it should have.
IN_YAML: Mapping[str, Callable[[RunSpec], Any]] = {
    "steps:": lambda s: s.steps,
    "max_target_length:": lambda s: s.batch.sequence_length,
    "per_device_batch_size:": lambda s: s.batch.global_batch_size / s.topology.num_devices,
    "enable_checkpointing:": lambda s: s.checkpoint.enabled,
    "async_checkpointing:": lambda s: s.checkpoint.asynchronous,
    "scan_layers:": lambda s: s.execution.scan_layers,
    "remat_policy:": lambda s: s.execution.remat,
    "attention:": lambda s: s.execution.attention,
    "dtype:": lambda s: s.precision.compute_dtype,
    "weight_dtype:": lambda s: s.precision.params_dtype,
    "quantization:": lambda s: s.precision.quantization,
    "dataset_type:": lambda s: {"huggingface": "hf"}.get(s.data.kind, s.data.kind),
    **{f"{part}_{word}_parallelism:": lambda s, where=where, axis=axis: getattr(s.parallelism, where).sizes[axis]
       for part, where in (("ici", "within_node"), ("dcn", "across_nodes"))
       for word, axis in {**{axis: axis for axis in AXES if axis != "context"}, "sequence": "context"}.items()},
}  # fmt: skip
# A variable of train_llama3.sh in the command that CVS writes, and the same.
IN_COMMAND: Mapping[str, Callable[[RunSpec], Any]] = {
    "TOTAL_ITERS=": lambda s: s.steps,
    "SEQ_LENGTH=": lambda s: s.batch.sequence_length,
    "BS=": lambda s: s.batch.global_batch_size,
    "MBS=": lambda s: s.batch.micro_batch_size,
    "TP=": lambda s: s.mesh["tensor"],
    "PP=": lambda s: s.mesh["pipeline"],
    "FSDP=": lambda s: int(s.mesh["fsdp"] > 1),
    "RECOMPUTE=": lambda s: int(s.execution.remat != "none"),
    "MODEL_SIZE=": lambda s: 8 if s.model.num_layers == 32 else 70,
    "NNODES=": lambda s: s.topology.num_nodes,
}


@settings(max_examples=30)
@given(spec=specs())
def test_what_cvs_hands_on_is_what_its_file_is_read_as(spec: RunSpec) -> None:
    for kind, module, due in (("jax", cvs, IN_YAML), ("megatron", cvs_megatron, IN_COMMAND)):
        text = module.write(spec).text
        meant = read_text(module.read, text, ".json").spec
        assert meant is not None
        theirs = handed_on(json.loads(text), kind, "2025", across=spec.topology.num_nodes > 1)
        for word, value in due.items():
            mine, found = value(meant), yaml.safe_load(theirs[word])  # CVS writes "" as nothing, which YAML calls null
            assert found == (pytest.approx(mine) if isinstance(mine, float) else mine), word
        environment = meant.execution.environment
        assert {name: theirs[f"{name}="] for name in environment if f"{name}=" in theirs} == {
            name: value for name, value in environment.items() if f"{name}=" in theirs
        }


def test_what_is_said_to_be_unused_is_used_by_no_release() -> None:
    for kind, found in (("jax", deviations.JAX), ("megatron", deviations.MEGATRON)):
        assert {each.key for each in found} <= KEYS_OF[kind].keys()
        unused = {each.key for each in found if each.actual == deviations.UNUSED}
        assert unused
        assert {read.name for read in READS if read.kind == kind and read.into != "-"} & unused == set()


def test_the_dimensions_are_those_of_the_cells_name() -> None:
    path = SEEDS[0]
    spec = dialects.load(path, COMPLETE[path], action="plan").spec
    assert spec is not None
    cell = json.loads(cvs.write(spec).text)["model_params"]["single_node"]["llama3.1-70b"]["mi300x"]
    assert (cell["base_emb_dim"], cell["base_num_decoder_layers"], cell["vocab_size"]) == ("8192", "80", "128256")
    assert cell["mlp_activations"] == ["silu", "linear"]
