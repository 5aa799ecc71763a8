"""Rules on what a run needs and does: a spec that breaks each, in one way at a time, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.check import lint
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem
from seatrial.estimate import memory
from seatrial.spec import (
    Batch,
    Checkpoint,
    Container,
    Data,
    Distributed,
    Dropout,
    Evaluation,
    Execution,
    Expectation,
    Logging,
    MeshShape,
    Objective,
    Optimizer,
    Origin,
    Parallelism,
    Precision,
    Resolved,
    RunSpec,
    Topology,
)
from seatrial.spec.presets import MODELS
from tests.helpers.checked_specs import SOUND, bars, findings, within
from tests.helpers.specs import specs

NETWORK = {"NCCL_IB_HCA": "bnxt_re0,bnxt_re1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_GID_INDEX": "3"}
SMALL = replace(MODELS["llama3.1-8b"], name="mine", vocab_size=128_000)
OURS = replace(SOUND, name="ours")


def exports(**variables: str) -> Execution:
    return Execution(environment={**NETWORK, **variables})


def batch(global_batch_size: int, micro_batch_size: int = 1, sequence_length: int = 8192) -> Batch:
    return Batch(
        sequence_length=sequence_length, global_batch_size=global_batch_size, micro_batch_size=micro_batch_size
    )


Case = tuple[dict[str, Any], str, str, str, str]
CASES: list[Case] = [
    # the model's positions
    ({"model": replace(SOUND.model, rope_theta=10_000.0)}, "warning", "rotary-base", "model.rope_theta",
     "base of 10000, and llama3.1-8b was trained with 500000"),
    ({"model": replace(SOUND.model, rope_scaling=None)}, "info", "rotary-base", "model.rope_scaling",
     "are not scaled as those of llama3.1-8b"),
    # mesh and batch
    ({"parallelism": within(context=4, tensor=2), "batch": batch(32, 1, 8196)}, "error", "not-divisible",
     "batch.sequence_length", "8196 cannot be split evenly over 2 × context = 8"),
    ({"parallelism": replace(within(context=2, tensor=4), sequence_parallel=True), "batch": batch(32, 1, 8200)},
     "error", "not-divisible", "batch.sequence_length", "over 2 × context × tensor = 16"),
    ({"parallelism": within(pipeline=4, tensor=2), "model": replace(SMALL, num_layers=30)}, "error", "not-divisible",
     "parallelism.within_node.pipeline", "30 layers cannot be split evenly over 4 stages"),
    ({"parallelism": replace(within(pipeline=4, tensor=2), virtual_pipeline=3)}, "error", "not-divisible",
     "parallelism.within_node.pipeline", "32 layers cannot be split evenly over 4 stages × 3 virtual ones"),
    ({"parallelism": replace(within(pipeline=4, tensor=2), virtual_pipeline=2), "batch": batch(36)}, "warning",
     "not-divisible", "parallelism.virtual_pipeline", "in groups of 4, and a step has 18"),
    ({"parallelism": within(pipeline=4, tensor=2), "batch": batch(4)}, "warning", "idle-pipeline",
     "parallelism.within_node.pipeline", "idle 60% of the time"),
    # the model's and the trainer's parts
    ({"model": replace(SMALL, rotary_fraction=0.29)}, "error", "not-divisible", "model.rotary_fraction",
     "dimensions are"),
    ({"execution": Execution(remat="selective", remat_modules=("core_attn", "moe_act"))}, "error",
     "not-supported-yet", "execution.remat_modules", "'moe_act' is not a part of a layer"),
    # memory
    ({"model": MODELS["llama3.1-405b"]}, "error", "out-of-memory", "parallelism.within_node.fsdp",
     "parameters, gradients and optimizer state alone take 661 GiB of each device, and mi300x has 192 GiB"),
    ({"batch": batch(32, 4), "execution": Execution(remat="none", scan_layers=False), "topology": replace(
        SOUND.topology, device="h100-sxm")}, "warning", "out-of-memory", "parallelism.within_node.fsdp",
     "GiB (activations"),
    ({"topology": replace(SOUND.topology, device="tpu-v5e"), "execution": Execution(remat="minimal_with_context")},
     "warning", "out-of-memory", "parallelism.within_node.fsdp", "tpu-v5e has 16 GiB"),
    ({"topology": replace(SOUND.topology, num_nodes=1), "parallelism": Parallelism(within_node=MeshShape(fsdp=8)),
      "execution": Execution(environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"})}, "warning", "out-of-memory",
     "parallelism.within_node.fsdp", "of which XLA_PYTHON_CLIENT_MEM_FRACTION gives 10 GiB"),
    ({"execution": exports(XLA_PYTHON_CLIENT_MEM_FRACTION="95%")}, "error", "bad-variable",
     "execution.environment.XLA_PYTHON_CLIENT_MEM_FRACTION", "'95%' is not a share"),
    # number formats
    ({"name": "llama-fp8-run"}, "warning", "precision-contradicts-name", "name",
     "says fp8, but bfloat16 runs"),
    ({"precision": Precision(params_dtype="bfloat16"), "data": Data(kind="text", paths=("x",))}, "warning",
     "updates-lost", "precision.params_dtype", "cannot be changed by less than 4e-05"),
    # steps
    ({"optimizer": Optimizer(warmup_steps=20, decay_steps=10)}, "warning", "no-decay", "optimizer.decay_steps",
     "ends after 10 steps, within the warm-up of 20"),
    ({"steps": None}, "error", "steps-unknown", "steps", "neither steps nor epochs"),
    ({"optimizer": Optimizer(schedule="step", decay_interval_steps=100)}, "warning", "no-decay",
     "optimizer.decay_interval_steps", "falls every 100 steps, and the run ends after 100"),
    ({"optimizer": Optimizer(schedule="step")}, "warning", "no-decay", "optimizer.schedule",
     "random data has no end"),
    ({"optimizer": Optimizer(learning_rate=3.0)}, "warning", "learning-rate", "optimizer.learning_rate",
     "by about 3, and"),
    ({"optimizer": Optimizer(beta2=1.0)}, "error", "bad-value", "optimizer.beta2", "divides by 0"),
    ({"optimizer": Optimizer(clip_norm=1e-5)}, "warning", "clip-norm", "optimizer.clip_norm", "norm of 1e-05"),
    ({"steps": 8, "expectations": bars(mfu=0.4)}, "warning", "too-few-steps", "steps", "8 steps are too few"),
    # data
    ({"data": Data(split="90,5,x")}, "error", "bad-value", "data.split", "'90,5,x' is not three shares"),
    # bars
    ({"expectations": bars(tokens_per_second_per_device=6500, step_seconds=12), "batch": batch(128),
      "topology": Topology(devices_per_node=8, device="mi300x"), "parallelism": Parallelism(
          within_node=MeshShape(fsdp=8))}, "warning", "contradicting-expectations", "expectations.step_seconds",
     "128 × 8192 tokens a step on 8 devices take 20.165 s at 6500 tokens/s each, but 12 s are asked for, which take "
     "10923 tokens/s"),
    ({"expectations": bars(step_seconds=0.5)}, "warning", "impossible-expectation", "expectations.step_seconds",
     "0.5 s mean 1687 TFLOP/s, and mi300x reaches 1307.4"),
    ({"expectations": bars(step_seconds=600)}, "warning", "weak-expectation", "expectations.step_seconds",
     "600 s mean 2 TFLOP/s"),
    ({"expectations": bars(mfu=0.004)}, "warning", "weak-expectation", "expectations.mfu", "a run at 0.4% of it would"),
    ({"expectations": bars(mfu=0.4, tflops_per_second_per_device=250)}, "warning", "contradicting-expectations",
     "expectations.mfu", "an MFU of 40% means 523 TFLOP/s, but 250 TFLOP/s are expected"),
    ({"expectations": bars(tflops_per_second_per_device=500, step_seconds=10)}, "warning",
     "contradicting-expectations", "expectations.step_seconds", "10 s of llama3.1-8b at 8192 tokens mean 84 (causal)"),
    ({"expectations": (Expectation(metric="mfu", value=0.4, tolerance=0.6),)}, "warning", "weak-expectation",
     "expectations.0.tolerance", "a tolerance of 60%"),
    # network
    ({"distributed": Distributed(coordinator_host="10.0.0.1")}, "info", "network-not-named", "topology.num_nodes",
     "2 nodes exchange gradients, and nothing names their network"),
    ({"distributed": Distributed(coordinator_host="127.0.0.1"), "execution": exports()}, "error",
     "coordinator-unreachable", "distributed.coordinator_host", "on each of the 2 nodes, 127.0.0.1 is the node itself"),
    ({"execution": exports(NCCL_SOCKET_IFNAME="lo")}, "error", "bad-interface",
     "execution.environment.NCCL_SOCKET_IFNAME", "own loopback, and there are 2 nodes"),
    ({"execution": Execution(environment={"NCCL_IB_HCA": "mlx5_0"})}, "warning", "interface-not-given",
     "execution.environment.NCCL_IB_HCA", "which may be docker0"),
    ({"nic_type": "thor2", "execution": Execution(environment={"NCCL_SOCKET_IFNAME": "eth0"})}, "warning",
     "cards-not-given", "nic_type", "NCCL_IB_HCA does not name them"),
    ({"execution": exports(NCCL_IB_DISABLE="1")}, "warning", "contradiction",
     "execution.environment.NCCL_IB_DISABLE", "turns RDMA off"),
    ({"nic_type": "cx7", "execution": exports()}, "warning", "contradiction", "execution.environment.NCCL_IB_HCA",
     "bnxt_re0 is a card of Broadcom for nic_type cx7, whose cards are called mlx5_…"),
    ({"execution": exports(NCCL_IB_HCA="=bnxt_re0:1,bnxt_re0:1")}, "warning", "repeated-card",
     "execution.environment.NCCL_IB_HCA", "bnxt_re0 is listed more than once"),
    ({"execution": exports(NCCL_IB_GID_INDEX="three")}, "error", "bad-variable",
     "execution.environment.NCCL_IB_GID_INDEX", "'three' is not a GID index"),
    ({"nic_type": "thor2", "execution": exports(NCCL_IB_GID_INDEX="0")}, "warning", "gid-index",
     "execution.environment.NCCL_IB_GID_INDEX", "index 0 is a link-local address"),
    # containers and variables
    ({"container": Container(image=" ", volumes=(("/a", "/a"),))}, "error", "missing-key", "container.image",
     "no image is named"),
    ({"container": Container(image="x", volumes=(("/a", "a"),))}, "error", "bad-volume", "container.volumes./a",
     "'a' is not an absolute path"),
    ({"container": Container(image="x", volumes=(("/a", "/c"), ("/b", "/c/")))}, "error", "bad-volume",
     "container.volumes", "two folders are mounted at /c"),
    ({"container": Container(image="x", shm_size="64MB")}, "warning", "small-shared-memory", "container.shm_size",
     "64MB is too little"),
    ({"container": Container(image="x", privileged=True)}, "warning", "privileged", "container.privileged",
     "root of its host"),
    ({"container": Container(image="x", shm_size="much")}, "error", "bad-value", "container.shm_size",
     "'much' is not a memory size"),
    ({"execution": exports(HIP_VISIBLE_DEVICES="0,1,2")}, "warning", "environment-contradicts-config",
     "execution.environment.HIP_VISIBLE_DEVICES", "shows 3 devices to a process, but a node uses 8"),
    ({"execution": Execution(environment={"XLA_FLAGS": "--xla_a=1"},
                             xla_flags={"xla_gpu_autotune_level": "4"})}, "warning", "environment-contradicts-config",
     "execution.environment.XLA_FLAGS", "replace the flags that are given by name"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severity", "code", "path", "said"), CASES)
def test_each_rule_finds_what_breaks_it(change: dict[str, Any], severity: str, code: str, path: str, said: str) -> None:
    found = [p for p in findings(replace(OURS, **change)) if not (p.code == "not-supported-yet" != code)]
    assert [(p.severity, p.code, p.path) for p in found] == [(severity, code, path)]
    assert said in found[0].why
    assert found[0].fix


EVERY_TEN = Evaluation(interval_steps=10)
HUB = Data(kind="huggingface", dataset="a/b")
# What the trainer refuses, by the verbs that it fails; any other has a warning.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"execution": Execution(remat="selective", remat_modules=("moe",))}, "execution.remat_modules", "run rehearse"),
    ({"precision": Precision(quantization="int8")}, "precision.quantization", "run train rehearse"),
    ({"precision": Precision(quantization="fp8"), "parallelism": within(pipeline=2, tensor=4)},
     "precision.quantization", "run"),
    ({"checkpoint": Checkpoint(enabled=True, keep_best="accuracy")}, "checkpoint.keep_best", "run rehearse"),
    ({"parallelism": within(pipeline=2, tensor=4), "batch": batch(2, 1, 8191)}, "batch.sequence_length", "run"),
    ({"epochs": 2}, "epochs", "run train"),
    ({"evaluation": Evaluation(interval_fraction=0.5)}, "evaluation.interval_fraction", "run train"),
    ({"evaluation": EVERY_TEN}, "evaluation.batches", "run train"),
    ({"evaluation": replace(EVERY_TEN, every_epochs=2)}, "evaluation.every_epochs", "run train"),
    ({"evaluation": replace(EVERY_TEN, batches=2, initial_batches=-1)}, "evaluation.batches", "run train"),
    ({"evaluation": EVERY_TEN, "data": HUB}, "evaluation.interval_steps", "run train"),
    ({"objective": Objective(kind="sft"), "data": HUB}, "data.kind", "run train"),
]  # fmt: skip
_ACCEPTED: list[dict[str, Any]] = [
    {"execution": Execution(remat="selective", remat_modules=("core_attn", "mlp"))},
    {"precision": Precision(quantization="te_fp8_currentscaling"), "parallelism": within(pipeline=2, tensor=4)},
    {"checkpoint": Checkpoint(enabled=True, keep_best="loss")},
    {"checkpoint": Checkpoint(resume=True, resume_required=True, directory="/shared/checkpoints")},
    {"checkpoint": Checkpoint(resume=True, resume_required=True, resume_from="/shared/checkpoints")},
    {"epochs": 2, "data": HUB},
    {"evaluation": replace(EVERY_TEN, batches=2)},
    {"evaluation": EVERY_TEN, "data": Data(kind="arrow", paths=("a",), split="9,1")},
    {"evaluation": EVERY_TEN, "data": replace(HUB, validation_paths=("a",))},
    {"objective": Objective(kind="sft"), "data": Data(kind="arrow", paths=("a",))},
    {"model": replace(SMALL, sliding_window=1024), "dropout": Dropout(attention=0.1)},
]


@pytest.mark.parametrize(("change", "path", "verbs"), REFUSED)
def test_what_the_trainer_refuses_fails_what_it_would_run(change: dict[str, Any], path: str, verbs: str) -> None:
    spec = replace(OURS, **change)
    for action in (*verbs.split(), "check", "plan", "judge"):
        (found,) = [p for p in findings(spec, action) if p.code == "not-supported-yet"]
        assert (found.path, found.severity) == (path, "error" if action in verbs else "warning")


@pytest.mark.parametrize("change", _ACCEPTED)
def test_what_the_trainer_does_is_not_refused(change: dict[str, Any]) -> None:
    found = findings(replace(OURS, **change), "run")
    assert [p for p in found if p.code in ("not-supported-yet", "missing-data", "contradiction")] == []


@pytest.mark.parametrize(
    "data",
    [
        Data(kind="text", paths=("a",)), Data(kind="arrow", paths=("a",), split="1"),
        Data(kind="megatron", paths=("a",), split="99,0,1"), Data(kind="records", paths=("a",), test_paths=("b",)),
    ],
)  # fmt: skip
def test_an_evaluation_without_data_fails_what_would_run_it(data: Data) -> None:
    spec = replace(OURS, data=data, evaluation=EVERY_TEN)
    for action, severity in (("run", "error"), ("rehearse", "error"), ("train", "error"), ("check", "warning")):
        (found,) = [p for p in findings(spec, action) if p.code == "missing-data"]
        assert (found.path, found.severity) == ("evaluation.interval_steps", severity)
    for has in (replace(data, validation_paths=("b",)), replace(data, split="90,10")):
        assert [p for p in findings(replace(spec, data=has)) if p.code == "missing-data"] == []


def test_devices_may_share_a_head_which_old_versions_of_megatron_refuse() -> None:
    spec = replace(OURS, parallelism=within(tensor=8), model=replace(SMALL, num_kv_heads=4))
    megatron = replace(spec, dialect="cvs-megatron")
    assert [findings(spec, "run"), findings(spec, "check"), findings(megatron, "run")] == [[], [], []]
    assert "shared-heads" not in [each.code for each in findings(replace(spec, dialect="nxdt"), "check")]
    (finding,) = findings(megatron, "check")
    assert (finding.severity, finding.code, finding.path) == ("warning", "shared-heads", "model.num_kv_heads")
    assert "2 devices of the tensor axis share a key/value head" in finding.why


def test_heads_that_no_megatron_can_share_are_an_error() -> None:
    model = replace(SMALL, num_heads=24, num_kv_heads=3, ffn_dim=192)
    spec = replace(OURS, parallelism=within(tensor=8), model=model, dialect="cvs-megatron")
    found = findings(spec, "check")
    assert [each.path for each in found if each.code == "not-divisible"] == ["model.num_kv_heads"]


# What the trainer cannot do at all, or only with data that it cannot read: then another finding stands beside it.
BESIDE: list[Case] = [
    ({"optimizer": Optimizer(schedule="nemo_cosine", warmup_steps=20, constant_steps=80)}, "warning", "no-decay",
     "optimizer.constant_steps", "80 steps at the final rate leave none for the decay: after the warm-up there "
     "are 80"),
    ({"optimizer": Optimizer(hold_steps=100)}, "warning", "no-decay", "optimizer.hold_steps", "leave none of the 100"),
    ({"evaluation": Evaluation(interval_steps=500)}, "warning", "never-reached", "evaluation.interval_steps",
     "the run ends after 100 steps, before 500"),
    ({"checkpoint": Checkpoint(enabled=True, interval_steps=500)}, "warning", "never-reached",
     "checkpoint.interval_steps", "no checkpoint before the end"),
    ({"checkpoint": Checkpoint(resume=True, resume_required=True)}, "error", "nothing-to-resume",
     "checkpoint.resume_required", "a new run directory holds none"),
    ({"checkpoint": Checkpoint(enabled=True, keep_best="val_loss")}, "warning", "never-reached",
     "checkpoint.keep_best", "which is never measured"),
    ({"logging": Logging(interval_steps=500)}, "warning", "never-reached", "logging.interval_steps", "no step"),
    ({"execution": Execution(profile_from_step=500)}, "warning", "never-reached", "execution.profile_from_step",
     "the profile is never taken"),
    ({"data": Data(kind="megatron")}, "error", "missing-key", "data.paths", "megatron data needs files"),
    ({"data": Data(kind="megatron", paths=("a", "b"), weights=(1.0,))}, "error", "contradiction", "data.weights",
     "1 weights for 2 paths"),
    ({"objective": Objective(kind="dpo")}, "warning", "synthetic-data", "data.kind", "dpo learns nothing from them"),
    ({"objective": Objective(kind="sft"), "data": Data(kind="text", paths=("a",))}, "error", "contradiction",
     "data.kind", "and text data has none"),
    ({"objective": Objective(kind="orpo"), "data": Data(kind="arrow", paths=("a",))}, "error", "contradiction",
     "data.kind", "and arrow data has none"),
    ({"objective": Objective(kind="orpo"), "data": Data(kind="records", paths=("a",), packing=True)}, "error",
     "contradiction", "data.packing", "which packing would mix"),
    ({"objective": Objective(kind="dpo", max_prompt_length=8192), "data": Data(kind="records", paths=("a",))},
     "warning", "sequence-length", "objective.max_prompt_length", "leave no room for an answer in 8192"),
    ({"model": replace(SMALL, positions="learned", max_positions=4096)}, "error", "sequence-length",
     "batch.sequence_length", "only 4096 learned positions"),
    ({"evaluation": Evaluation(interval_steps=10), "data": Data(kind="text", paths=("a",))}, "error",
     "missing-data", "evaluation.interval_steps", "and there is none"),
    ({"topology": replace(SOUND.topology, device="a100-sxm-80gb"), "precision": Precision(quantization="fp8")},
     "warning", "no-fp8", "precision.quantization", "a100-sxm-80gb has no fp8"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "severity", "code", "path", "said"), BESIDE)
def test_what_is_wrong_is_said_of_what_the_trainer_has_not_yet_too(
    change: dict[str, Any], severity: str, code: str, path: str, said: str
) -> None:
    test_each_rule_finds_what_breaks_it(change, severity, code, path, said)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("parallelism.sequence_parallel", {"parallelism": replace(within(fsdp=8), sequence_parallel=True)}),
        ("parallelism.virtual_pipeline", {"parallelism": replace(within(fsdp=8), virtual_pipeline=2)}),
        ("parallelism.context_strategy", {"parallelism": replace(within(fsdp=8), context_strategy="ring")}),
        ("model.sliding_window", {"model": replace(SMALL, sliding_window=8192)}),
        ("parallelism.zero1", {"parallelism": Parallelism(
            within_node=MeshShape(fsdp=8), across_nodes=MeshShape(fsdp=2), zero1=True)}),
        ("execution.remat_modules", {"execution": Execution(remat_modules=("x",))}),
        ("optimizer.momentum", {"optimizer": Optimizer(momentum=0.9)}),
        ("checkpoint.interval_steps", {"checkpoint": Checkpoint(interval_steps=5)}),
        ("checkpoint.resume_required", {"checkpoint": Checkpoint(resume_required=True)}),
        ("data.packing", {"data": Data(packing=True)}),
    ],
)  # fmt: skip
def test_what_is_set_in_vain_is_told_to_who_has_set_it(path: str, change: dict[str, Any]) -> None:
    spec = replace(OURS, **change)
    told = [p for p in findings(spec, **{path: Origin(kind="file", key="x.y")}) if p.code == "no-effect"]
    assert [(p.severity, p.path) for p in told] == [("info", "x.y")]
    assert [p for p in findings(spec) if p.code == "no-effect"] == []


def test_zero1_splits_over_a_context_axis_where_megatron_trains() -> None:
    parallelism = Parallelism(within_node=MeshShape(context=8), across_nodes=MeshShape(pipeline=2), zero1=True)
    spec = replace(OURS, parallelism=parallelism)

    def told(engine: str) -> list[Problem]:
        resolved = Resolved(spec=spec, origins={"parallelism.zero1": Origin(kind="file", key="x.y")}, problems=())
        return [p for p in lint(resolved, action="check", engine=engine).problems if p.code == "no-effect"]

    assert told("megatron") == []
    assert [p.path for engine in ("native", "maxtext") for p in told(engine)] == ["x.y", "x.y"]


def test_a_sound_run_over_a_network_has_no_findings() -> None:
    for card, hca in (("thor2", "bnxt_re0"), ("ainic", "ionic_0"), ("cx7", "mlx5_0"), ("cx7", "rdma0"), (None, "x")):
        spec = replace(
            OURS,
            nic_type=card,
            execution=exports(NCCL_IB_HCA=hca),
            distributed=Distributed(coordinator_host="10.0.0.1"),
        )
        assert findings(spec) == []
    one_node = replace(
        OURS,
        topology=replace(OURS.topology, num_nodes=1),
        distributed=Distributed(coordinator_host="localhost"),
        execution=Execution(environment={"NCCL_IB_HCA": "x", "NCCL_SOCKET_IFNAME": "lo"}),
    )
    assert findings(one_node) == []


@pytest.mark.parametrize(("action", "severity"), [("run", "error"), ("plan", "warning"), ("rehearse", "warning")])
def test_what_only_the_cluster_cannot_do_keeps_nobody_from_a_rehearsal(action: str, severity: str) -> None:
    local = Distributed(coordinator_host="localhost")
    spec = replace(OURS, model=MODELS["llama3.1-405b"], distributed=local, execution=exports())
    assert {(p.code, p.severity) for p in findings(spec, action)} == {
        ("out-of-memory", severity), ("coordinator-unreachable", severity),
    }  # fmt: skip
    assert {p.code for p in findings(spec, "judge")} == {"coordinator-unreachable"}


def test_an_assumed_number_of_nodes_proves_nothing_about_memory() -> None:
    assumed = Origin(kind="default", key="config.nnodes", note="assumed until config.nnodes is filled in")
    spec = replace(OURS, model=MODELS["llama3.1-405b"])
    (finding,) = findings(spec, **{"topology.num_nodes": assumed})
    assert finding.severity == "warning"
    assert "(assumed until config.nnodes is filled in)" in finding.why


def test_padding_makes_a_vocabulary_divisible() -> None:
    odd = replace(SMALL, vocab_size=50_257)
    assert "model.vocab_size" in [p.path for p in findings(replace(OURS, model=odd))]
    padded = replace(odd, vocab_multiple=128)
    assert "model.vocab_size" not in [p.path for p in findings(replace(OURS, model=padded))]


def test_a_model_of_one_s_own_may_have_its_own_base() -> None:
    own = replace(SOUND.model, name="mine", rope_theta=1e6)
    chosen = Origin(kind="file", key="model.rope_theta")
    assert findings(replace(OURS, model=own), **{"model.rope_theta": chosen}) == []
    assert [p.code for p in findings(replace(OURS, model=own))] == ["rotary-base"]


def test_bars_that_tell_the_same_speed_agree() -> None:
    spec: RunSpec = replace(OURS, topology=Topology(devices_per_node=8, device="mi300x"),
                            parallelism=Parallelism(within_node=MeshShape(fsdp=8)))  # fmt: skip
    seconds = spec.tokens_per_step / 8 / 9000
    for factor in (0.92, 1.0, 1.08):
        both = bars(tokens_per_second_per_device=9000, step_seconds=seconds * factor)
        assert findings(replace(spec, expectations=both)) == []


@settings(suppress_health_check=list(HealthCheck))
@given(specs(), st.sampled_from(("check", "run", "plan", "rehearse", "judge", "train")))
def test_every_spec_can_be_looked_at(spec: RunSpec, action: str) -> None:
    """No rule breaks on what a spec can hold; a finding says what, why and how to fix it, in one line each."""
    for problem in findings(replace(spec, execution=replace(spec.execution, xla_flags={})), action):
        assert problem.path
        assert problem.why
        assert problem.fix
        assert "\n" not in problem.fix
    if mesh_is_sound(spec):
        need = memory.per_device(spec, "native")
        assert all(size >= 0 for size in need.parts.values())
        assert 0 < need.state_bytes <= need.total_bytes


@pytest.mark.parametrize(("action", "severity"), [("run", "error"), ("train", "warning"), ("check", "warning")])
def test_a_run_that_can_only_stop_is_not_started(action: Any, severity: str) -> None:
    spec = replace(SOUND, checkpoint=Checkpoint(enabled=True, resume=True, resume_required=True))
    found = lint(Resolved(spec=spec, origins={}, problems=()), action=action).problems
    assert [p.severity for p in found if p.code == "nothing-to-resume"] == [severity]
