"""What is written as a CVS configuration reads back the same, and what cannot be said is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from seatrial import dialects
from seatrial.dialects.cvs import jax as cvs
from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.spec import AXES, RunSpec
from tests.helpers.seeds import COMPLETE, MEGATRON_CELLS, MEGATRON_COMPLETE, SEEDS
from tests.helpers.specs import assert_round_trip, specs

# What every CVS configuration has words for.
ALWAYS_SAID = {
    "steps", "batch.sequence_length", "batch.global_batch_size", "topology.num_nodes", "topology.devices_per_node",
    "precision.compute_dtype", "precision.params_dtype", "checkpoint.enabled", "nic_type",
    "distributed.coordinator_host", "distributed.coordinator_port", "execution.xla_flags", "container.image",
    *(f"parallelism.{part}.{axis}" for part in ("within_node", "across_nodes") for axis in AXES),
}  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_any_run_as_a_jax_configuration(spec: RunSpec) -> None:
    written = assert_round_trip(cvs.write, cvs.read, spec)
    sizes = spec.parallelism.within_node.sizes
    left_open = {f"parallelism.within_node.{axis}" for axis, size in sizes.items() if size == -1}  # CVS needs a number
    left_open |= {
        f"precision.{name}" for name in ("compute_dtype", "params_dtype") if getattr(spec.precision, name) == "float16"
    }  # of which CVS knows nothing
    assert not {note.path for note in written.notes} & ALWAYS_SAID - left_open


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_what_was_read_from_a_jax_configuration_is_written_without_loss(path: Path) -> None:
    spec = dialects.load(path, COMPLETE[path], action="plan").spec
    assert spec is not None
    written = assert_round_trip(cvs.write, cvs.read, spec)
    assert written.notes == ()
    assert list(json.loads(written.text)) == ["config", "model_params"]


@settings(max_examples=100, deadline=None)
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


# Keys that CVS's own code reads without a default: of every file, of a JAX file, and of its cell.
READ = {
    "container_image", "container_name", "hf_token_file", "container_config.device_list",
    "container_config.volume_dict", "container_config.env_dict",
}  # fmt: skip
READ_BY_JAX = {
    "training_steps", "enable_checkpointing", "nnodes", "coordinator_ip", "xla_gpu_executable_warn_stuck_timeout",
    "xla_flags", "env_vars",
}  # fmt: skip
READ_OF_A_CELL = {
    "attention", "remat_policy", "use_iota_embed", "scan_layers", "dataset_type", "hf_path", "hf_train_files",
    "tokenizer_path", "async_checkpointing", "logits_dot_in_fp32", "megablox", "dtype", "quantization",
    "quantize_kvcache", "kv_quant_axis", "kv_quant_dtype", "weight_dtype", "checkpoint_is_quantized",
    "per_device_batch_size", "max_target_length", "skip_first_n_steps_for_profiler", "xla_flags", "base_emb_dim",
    "base_num_query_heads", "base_num_kv_heads", "base_num_decoder_layers", "base_mlp_dim", "head_dim",
    "mlp_activations", "vocab_size", "enable_dropout", "logits_via_embedding", "normalization_layer_epsilon",
    "rope_max_timescale", "decoder_block", "result_dict",
    *(f"{part}_{axis}_parallelism" for part in ("dcn", "ici")
      for axis in ("data", "fsdp", "pipeline", "tensor", "sequence")),
}  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(spec=specs())
def test_every_key_is_there_that_cvs_reads_without_a_default(spec: RunSpec) -> None:
    for write, of_config, of_cell in (
        (cvs.write, READ | READ_BY_JAX, READ_OF_A_CELL), (cvs_megatron.write, READ, {"result_dict"}),
    ):  # fmt: skip
        tree = json.loads(write(spec).text)
        config = tree["config"] | {f"container_config.{name}": 0 for name in tree["config"]["container_config"]}
        cell = tree["model_params"]
        for _ in range(3):
            (cell,) = cell.values()
        assert of_config - config.keys() == set()
        assert of_cell - cell.keys() == set()


def test_the_dimensions_are_those_of_the_cells_name() -> None:
    path = SEEDS[0]
    spec = dialects.load(path, COMPLETE[path], action="plan").spec
    assert spec is not None
    cell = json.loads(cvs.write(spec).text)["model_params"]["single_node"]["llama3.1-70b"]["mi300x"]
    assert (cell["base_emb_dim"], cell["base_num_decoder_layers"], cell["vocab_size"]) == ("8192", "80", "128256")
    assert cell["mlp_activations"] == ["silu", "linear"]
