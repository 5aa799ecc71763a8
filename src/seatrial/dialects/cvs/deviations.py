"""CVS's keys that do something other than their documentation says, and what Seatrial does with them.

Found in ROCm/cvs at 7afb1ca3, of November 2025, and at dddd9143, of August 2026, beside the tables that document its
training configurations.
"""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.dialects.table.deviations import Deviation

UNUSED = "no release uses it"


def _size(amount: str) -> Deviation:
    return Deviation(key="config.shm_size", documented="the container's shared memory", actual=f"it is always {amount}")


def _unused(decides: str, documented: str, *names: str) -> Iterator[Deviation]:
    yield from (Deviation(key=name, documented=documented, actual=UNUSED, here=decides) for name in names)


_ENABLES = "it makes the training distributed"
_SECTION = "the section single_node or multi_node decides"

_NODES = Deviation(
    key="config.nnodes",
    documented="the tables spell it Nnodes",
    actual="only nnodes is read",
    here="nnodes",
)
_TOKENIZER = "synthetic data needs no tokenizer"


def _assumed(names: str, steps: str, network: str) -> Deviation:
    return Deviation(
        key="config.nnodes", documented=f"{names} are to be filled in",
        actual=f"where they are not given, CVS assumes 2 nodes, 10 {steps}, nic_type thor2, {network} and "
        "nccl_ib_gid_index 3",
        here="nodes and steps are asked for, and of the network NCCL decides what no key says",
    )  # fmt: skip


JAX: tuple[Deviation, ...] = (
    _NODES,
    _assumed("nodes and the names of the network", "training_steps",
             "nccl_ib_hca rdma0 to rdma7, nccl_socket_ifname ens51f1np1"),
    _size("256G"),
    Deviation(
        key="config.xla_python_client_mem_fraction", documented="the fraction of the host's memory that XLA may use",
        actual="JAX takes it for the fraction of each device's memory", here="as JAX does: the variable is passed on",
    ),
    *_unused(_TOKENIZER, "the model whose tokenizer is loaded", "tokenizer_model"),
    *_unused(_SECTION, _ENABLES, "config.distributed_training"),
    *_unused("dataset_type decides", "it makes the data synthetic", "config.mock_data"),
    *_unused("nccl_ib_hca decides", "the network cards of NCCL", "config.nccl_ib_hca_list"),
    Deviation(
        key="config.data_cache_dir", documented="where datasets are kept", here="no effect: synthetic data need none",
        actual="2025: not read; 2026: HF_HOME of a run on several nodes",
    ),
    Deviation(
        key="config.container_config.env_dict.JAX_COORDINATOR_PORT",
        documented="the coordinator's port: 12345 by the tables, 1234 by the files beside them",
        actual="2025: 12345, whatever it says; 2026: this port, or 1234",
    ),
    Deviation(
        key="config.xla_gpu_executable_warn_stuck_timeout", documented="a warning if a kernel runs too long",
        actual="a variable that XLA does not know; the flag of this name is in xla_flags", here="no effect",
    ),
    *(Deviation(key=name, documented=f"the model's shape{wrong}", here="the model's name decides",
                actual="2025: written to a file that nothing reads; 2026: MaxText gets it")
      for name, wrong in {
          "base_emb_dim": ", of the 405B model in the tables of the 70B, too", "vocab_size": ": 128526 for 128256",
          "head_dim": ": 28 for 128 in the tables of several nodes, which spell it head_dim1",
          "base_num_decoder_layers": ", of the 405B model in the tables of the 70B, too, which spell it "
          "base_num_decoder_layers1",
      }.items()),
    Deviation(key="per_device_batch_size", documented="1 in the table of the 405B model, 2 in the file beside it",
              actual="what the file says", here="what the file says"),
    *_unused("per_device_batch_size × devices decides", "the global batch", "batch_size"),
    *_unused("per_device_batch_size decides", "the micro batch", "micro_batch_size"),
    *_unused("max_target_length decides", "the length of sequences", "sequence_length"),
    *_unused("the axes ici_* and dcn_* decide", "degrees of parallelism", "tensor_parallelism", "pipeline_parallelism",
             "fsdp"),
    *_unused("remat_policy decides", "whether activations are recomputed", "recompute"),
    *_unused("dtype and quantization decide", "the format of numbers", "precision"),
    *_unused("the model's name decides", "the size of the model", "model_size"),
)  # fmt: skip

MEGATRON: tuple[Deviation, ...] = (
    _NODES,
    _assumed("nodes, iterations and the names of the network", "training_iterations",
             "nccl_ib_hca_list bnxt_re0 to bnxt_re7, nccl_socket_ifname ensf1np1"),
    _size("128G; the table says 256G, the files 128G"),
    *_unused(_SECTION, _ENABLES, "config.distributed_training"),
    Deviation(key="config.mock_data", documented="it makes the data synthetic", actual="MOCK_DATA is always 1",
              here="the data are synthetic, whatever it says"),
    Deviation(key="config.nccl_ib_hca", documented="the network cards of NCCL",
              actual="NCCL_IB_HCA is nccl_ib_hca_list", here="nccl_ib_hca_list decides"),
    Deviation(key="config.verify_network_errors", documented="it has the counters of the network checked",
              actual="nothing checks them", here="no effect"),
    Deviation(key="tokenizer_model", documented="the tokenizer",
              actual="its name also chooses the script: without llama-3 or llama-2 in it, CVS stops",
              here="train_llama3.sh is what is read"),
    Deviation(key="micro_batch_size", documented="the micro batch of a device", here="as the script means it",
              actual="that of a replica, which tensor and pipeline parallelism make of several devices"),
    Deviation(key="precision", documented="the format of numbers", here="only TE_FP8 is FP8",
              actual="TE_BF16 and TE_F16 are bfloat16, and every other name is FP8, TE_FP16 too"),
    Deviation(key="fsdp", documented="parameters are sharded over replicas", here="as the script does",
              actual="the script resets tensor parallelism to 1 as well, without a word"),
    *(Deviation(key=f"result_dict.{name}", documented="what is expected of a run", here="less is better",
                actual="a run with less of it fails")
      for name in ("elapsed_time_per_iteration", "mem_usage")),
)  # fmt: skip
