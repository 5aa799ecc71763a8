"""The seven CVS configurations that the project was given, and what each needs to be complete."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
CVS = ROOT / "configs" / "cvs"

SINGLE_MI300X = CVS / "mi300x_singlenode_llama3_1_70b.json"
SINGLE_MI355X = CVS / "mi35x_singlenode_llama_3_1_70b.json"
MULTI_70B = CVS / "mi300x_distributed_llama3_1_70b.json"
MULTI_405B = CVS / "mi300x_distributed_llama_3_1_405b.json"

NETWORK = (
    "config.nnodes=2",
    "coordinator_ip=10.0.0.1",
    "nccl_ib_hca_list=bnxt_re0,bnxt_re1",
    "nccl_ib_hca=bnxt_re0,bnxt_re1",
    "nccl_socket_ifname=ens51f1np1",
    "gloo_socket_ifname=ens51f1np1",
    "nccl_ib_gid_index=3",
    "result_dict.tflops_per_sec_per_gpu=380",
)
COMPLETE: dict[Path, tuple[str, ...]] = {
    SINGLE_MI300X: ("config.nnodes=1",),
    SINGLE_MI355X: ("config.nnodes=1",),
    MULTI_70B: (*NETWORK, "result_dict.tokens_per_sec_per_gpu=800"),
    MULTI_405B: (*NETWORK, "result_dict.tokens_per_sec_per_gpu=145"),
}
SEEDS = tuple(COMPLETE)

MEGATRON_SINGLE = CVS / "mi3xx_megatron_llama_single.json"
MEGATRON_SINGLE_MI35X = CVS / "mi35x_megatron_llama_single.json"
MEGATRON_MULTI = CVS / "mi3xx_megatron_llama_distributed.json"

MEGATRON_COMPLETE: dict[Path, tuple[str, ...]] = {
    MEGATRON_SINGLE: ("config.nnodes=1", "training_iterations=30"),
    MEGATRON_SINGLE_MI35X: ("config.nnodes=1", "training_iterations=30"),
    MEGATRON_MULTI: (
        "config.nnodes=4", "training_iterations=30", "master_address=10.0.0.1", "nic_type=thor2",
        "nccl_ib_hca_list=bnxt_re0,bnxt_re1", "nccl_socket_ifname=ens51f1np1", "gloo_socket_ifname=ens51f1np1",
        "nccl_ib_gid_index=3", "throughput_per_gpu=610", "tokens_per_gpu=12000",
    ),
}  # fmt: skip
# What each of their cells is called: topology, model, GPU.
MEGATRON_CELLS: tuple[tuple[Path, str, str], ...] = tuple(
    (path, model, gpu)
    for path, gpus in (
        (MEGATRON_SINGLE, ("mi300x", "mi325")),
        (MEGATRON_SINGLE_MI35X, ("mi350", "mi355")),
        (MEGATRON_MULTI, ("mi300x", "mi325")),
    )
    for model in ("llama3_1_8b", "llama3_1_70b")
    for gpu in gpus
)
