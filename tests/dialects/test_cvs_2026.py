"""CVS's configurations of 2026 and their thresholds: what they mean, which sweep is meant, what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import dialects, source
from seatrial.check import lint
from seatrial.dialects import cvs_2026
from seatrial.dialects.cvs.thresholds import KINDS, TARGETS
from seatrial.dialects.cvs_2026 import megatron as cvs_2026_megatron
from seatrial.dialects.cvs_2026.keys import JAX, MEGATRON
from seatrial.errors import InputError, Problem
from seatrial.report.problems import render_text
from seatrial.spec import METRICS, Batch, Expectation, MeshShape, Resolved, Topology
from tests.helpers.seeds import CVS

MAXTEXT = CVS / "jaxmaxtext_llama3.1-8b_mi300x.json"
MEGATRON_FILE = CVS / "megatron_llama3.1-8b_mi325x.json"
Change = Callable[[Any], None]


def load(path: Path, *overrides: str, action: str = "plan") -> Resolved:
    return dialects.load(path, overrides, action=action)


def copy(tmp_path: Path, path: Path, change: Change | None = None, targets: Change | None = None) -> Path:
    for name, edit in ((path, change), (path.with_name(f"{path.stem}_threshold.json"), targets)):
        tree = json.loads(name.read_text(encoding="utf-8"))
        if edit:
            edit(tree)
        (tmp_path / name.name).write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return tmp_path / path.name


def codes(resolved: Resolved) -> set[tuple[str, str]]:
    return {(p.code, p.path) for p in resolved.problems if p.severity == "error"}


@pytest.mark.parametrize(("path", "table"), [(MAXTEXT, JAX), (MEGATRON_FILE, MEGATRON)], ids=["maxtext", "megatron"])
def test_every_key_is_accounted_for(path: Path, table: dict[str, Any]) -> None:
    sections = tuple(name.removesuffix("*") for name in table if name.endswith(".*"))
    for parts, node in source.walk(source.read(path).root):
        dotted = ".".join(parts)
        if parts and not isinstance(node.value, dict) and not any(p.startswith("_") or p.isdecimal() for p in parts):
            assert dotted in table or dotted.startswith((*sections, "training.sweeps")), dotted


def test_maxtext_in_its_own_words() -> None:
    resolved = load(MAXTEXT)
    spec = resolved.spec
    assert spec is not None
    assert codes(resolved) == set()
    assert (spec.dialect, spec.model.name, spec.steps) == ("cvs-2026", "llama3.1-8b", 30)
    assert spec.topology == Topology(num_nodes=2, devices_per_node=8, device="mi300x")
    assert spec.batch == Batch(sequence_length=8192, global_batch_size=64, micro_batch_size=4)
    assert spec.parallelism.within_node == MeshShape(fsdp=8)
    assert spec.mesh["data"] == 2
    assert spec.execution.environment["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"
    assert spec.execution.xla_flags["xla_gpu_autotune_level"] == "4"
    assert (spec.distributed.coordinator_host, spec.distributed.coordinator_port) == (None, 12346)
    assert spec.distributed.heartbeat_timeout_seconds == 900
    assert spec.container is not None
    assert spec.container.volumes[1] == ("/dev/infiniband", "/dev/infiniband")
    assert spec.container.shm_size == "128G"
    assert spec.container.privileged
    assert spec.nic_type == "cx7"
    assert spec.log_dir is not None
    assert spec.log_dir.endswith("/logs")
    assert "{" not in f"{spec.log_dir}{spec.hf_token_file}{spec.container.volumes}"
    assert spec.expectations == (
        Expectation(metric="tflops_per_second_per_device", value=420.0),
        Expectation(metric="tokens_per_second_per_device", value=8300.0, tolerance=0.04),
    )
    assert {p.code for p in resolved.problems if p.mark and "threshold" in p.mark.file} == {
        "one-side-judged", "not-judged",
    }  # fmt: skip


@pytest.mark.parametrize("wanted", ["FP8", "NNODES=2,PRECISION=FP8,BATCH=4,SEQLEN=8192"])
def test_a_sweep_is_chosen_by_its_name_or_a_part_of_it(wanted: str) -> None:
    spec = load(MAXTEXT, f"sweep={wanted}").spec
    assert spec is not None
    assert spec.precision.quantization == "nanoo_fp8"
    assert [(target.metric, target.value) for target in spec.expectations] == [
        ("tokens_per_second_per_device", 9000.0), ("step_seconds", 3.7),
    ]  # fmt: skip


def test_no_sweep_is_chosen_in_silence(tmp_path: Path) -> None:
    def both(tree: Any) -> None:
        tree["training"]["enabled_sweep_list"] = [sweep["name"] for sweep in tree["training"]["sweeps"]]

    path = copy(tmp_path, MAXTEXT, both)
    assert ("ambiguous-cell", "training.sweeps") in codes(load(path))
    assert ("unknown-cell", "training.sweeps") in codes(load(path, "sweep=int8"))
    assert codes(load(path, "sweep=BF16")) == set()


def test_overrides_go_to_the_sweep_too() -> None:
    spec = load(MAXTEXT, "per_device_batch_size=2", "nnodes=4", "training.steps=7", "env_vars.NCCL_DEBUG=INFO").spec
    assert spec is not None
    assert (spec.batch.global_batch_size, spec.topology.num_nodes, spec.steps) == (64, 4, 7)
    assert spec.execution.environment["NCCL_DEBUG"] == "INFO"
    spec = load(MEGATRON_FILE, "global_batch_size=64", "training_iterations=3", "precision=BF16").spec
    assert spec is not None
    assert (spec.batch.global_batch_size, spec.steps, spec.precision.quantization) == (64, 3, None)


def test_megatron_as_cvs_spelled_it_before() -> None:
    resolved = load(MEGATRON_FILE)
    spec = resolved.spec
    assert spec is not None
    assert codes(resolved) == set()
    before = load(CVS / "mi3xx_megatron_llama_single.json", "model=llama3_1_8b", "gpu=mi325", "config.nnodes=1",
                  "training_iterations=30").spec  # fmt: skip
    assert before is not None
    for part in ("model", "batch", "topology", "parallelism", "precision", "optimizer", "seed", "steps"):
        assert getattr(spec, part) == getattr(before, part), part
    assert {target.metric: target.value for target in spec.expectations} == {
        "tflops_per_second_per_device": 560.0, "tokens_per_second_per_device": 10900.0, "step_seconds": 12.0,
        "memory_fraction": 0.85,
    }  # fmt: skip
    origin = resolved.origin("expectations.step_seconds")
    assert origin.mark is not None
    assert origin.mark.file.endswith("_threshold.json")
    assert resolved.origin("batch.global_batch_size").key.endswith("PRECISION=FP8.global_batch_size")


def test_megatron_with_framework_config_and_targets_in_its_combinations(tmp_path: Path) -> None:
    """The spelling of August 2026."""

    def older(tree: Any) -> None:
        parameters = tree.pop("train_params")
        iterations = parameters.pop("training_iterations")
        tree |= {"schema_version": 1, "framework": "megatron_single", "gpu_arch": tree.pop("gpu_name")}
        tree["config"] = tree.pop("paths") | {
            "training_iterations": iterations, "nnodes": "1", "master_address": "127.0.0.1",
            "verify_network_errors": "False",
        }  # fmt: skip
        tree["model_params"] = parameters
        del tree["container"]["env"], tree["threshold_json"]
        tree["sweep"]["combinations"]["MBS=2,GBS=128,PRECISION=FP8"]["result_dict"] = {
            "throughput_per_gpu": "100", "elapsed_time_per_iteration": "500", "mem_usage": "0",
        }  # fmt: skip

    resolved = load(copy(tmp_path, MEGATRON_FILE, older))
    assert codes(resolved) == set()
    assert resolved.spec is not None
    assert [(target.metric, target.value) for target in resolved.spec.expectations] == [
        ("tflops_per_second_per_device", 100.0), ("step_seconds", 0.5),
    ]  # fmt: skip
    newer = load(MEGATRON_FILE).spec
    assert newer is not None
    assert resolved.spec.batch == newer.batch


def test_nodes_that_are_still_to_be_filled_in_may_be_given(tmp_path: Path) -> None:
    def unfilled(tree: Any) -> None:
        tree["framework"] = "megatron_distributed"
        tree["config"] = tree.pop("paths") | {"nnodes": "<changeme>", "master_address": "10.0.0.1"}

    path = copy(tmp_path, MEGATRON_FILE, unfilled)
    assert ("placeholder", "config.nnodes") in codes(load(path, action="check"))
    given = load(path, "config.nnodes=2", action="check")
    assert ("placeholder", "config.nnodes") not in codes(given)
    assert given.spec is not None
    assert given.spec.topology.num_nodes == 2


def test_empty_mappings_say_nothing(tmp_path: Path) -> None:
    def emptied(tree: Any) -> None:
        tree["training"] |= {"env_vars": {}, "xla_flags": {}, "checkpoint_resume": {"smoke_model_overrides": {}}}
        tree["container"]["env"] = {}

    resolved = load(copy(tmp_path, MAXTEXT, emptied))
    assert codes(resolved) == set()
    assert resolved.spec is not None
    assert set(resolved.spec.execution.environment) <= {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}


def test_thresholds_that_are_not_enforced_are_for_the_record(tmp_path: Path) -> None:
    resolved = load(copy(tmp_path, MEGATRON_FILE, lambda tree: tree.update(enforce_thresholds=False)))
    assert resolved.spec is not None
    assert resolved.spec.expectations == ()
    assert any(p.code == "not-judged" and p.path == "enforce_thresholds" for p in resolved.problems)


@pytest.mark.parametrize("framework", ["torchtitan_single", "vllm_single", "\x1b[31mx", "primus"])
def test_other_frameworks_are_named_with_what_to_use_instead(tmp_path: Path, framework: str) -> None:
    path = copy(tmp_path, MAXTEXT, lambda tree: tree.update(framework=framework))
    with pytest.raises(InputError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert problem.code == "dialect-not-supported-yet"
    assert "jaxmaxtext" in problem.why
    assert "native" in problem.fix
    assert "\x1b" not in render_text(caught.value.problems)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _set(*path: str, to: Any) -> Change:
    def change(tree: Any) -> None:
        for part in path[:-1]:
            tree = tree[part]
        if to is None:
            tree.pop(path[-1])
        else:
            tree[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (_set("training", "stepz", to=3), "unknown-key", "training.stepz"),
        (_set("training", "maxtext_config", "per_device_batchsize", to=3), "unknown-key", "per_device_batchsize"),
        (_set("training", "steps", to="many"), "bad-value", "training.steps"),
        (_set("training", "gpus_per_node", to=0), "bad-value", "training.gpus_per_node"),
        (
            _set("training", "jax_distributed", "coordinator_port", to="99999"),
            "bad-value",
            "training.jax_distributed.coordinator_port",
        ),
        (_set("training", "nccl", "ib_hca", to="<changeme>"), "placeholder", "training.nccl.ib_hca"),
        (_set("enforce_thresholds", to="perhaps"), "bad-value", "enforce_thresholds"),
        (_set("threshold_json", to="nowhere.json"), "no-thresholds", "threshold_json"),
        (_set("training", "sweeps", to=[{"maxtext_overrides": {}}]), "bad-value", "training.sweeps"),
    ],
)
def test_what_is_wrong_with_a_maxtext_file_is_said(tmp_path: Path, change: Change, code: str, path: str) -> None:
    assert (code, path) in codes(load(copy(tmp_path, MAXTEXT, change)))


CELL, TOKENS = "MBS=2,GBS=128,PRECISION=FP8", "training.tokens_per_gpu"


@pytest.mark.parametrize(
    ("target", "code", "path"),
    [
        ({"kind": "max", "value": 1}, "wrong-direction", f"{CELL}.{TOKENS}"),
        ({"kind": "mim", "value": 1}, "bad-value", f"{CELL}.{TOKENS}.kind"),
        ({"value": 1}, "missing-key", f"{CELL}.{TOKENS}"),
        ({"kind": "min"}, "missing-key", f"{CELL}.{TOKENS}"),
        ({"kind": "min", "value": "x"}, "bad-value", f"{CELL}.{TOKENS}.value"),
        ({"kind": "within", "value": 1}, "missing-key", f"{CELL}.{TOKENS}"),
        ({"kind": "within", "value": 1, "tolerance_pct": 100}, "bad-value", f"{CELL}.{TOKENS}.tolerance_pct"),
        ({"kind": "min", "value": 1, "vlaue": 2}, "unknown-key", f"{CELL}.{TOKENS}.vlaue"),
        (7, "bad-value", f"{CELL}.{TOKENS}"),
    ],
)
def test_what_is_wrong_with_a_target_is_said(tmp_path: Path, target: Any, code: str, path: str) -> None:
    resolved = load(copy(tmp_path, MEGATRON_FILE, targets=_set(CELL, TOKENS, to=target)))
    assert codes(resolved) == {(code, path)}


def test_a_metric_or_a_cell_that_nobody_knows_is_no_target_in_silence(tmp_path: Path) -> None:
    resolved = load(
        copy(tmp_path, MEGATRON_FILE, targets=_set(CELL, "training.tokens", to={"kind": "min", "value": 1}))
    )
    assert codes(resolved) == {("unknown-key", f"{CELL}.training.tokens")}
    resolved = load(copy(tmp_path, MEGATRON_FILE, targets=_set(CELL, to=None)))
    (finding,) = [p for p in resolved.problems if p.code == "no-thresholds"]
    assert finding.severity == "warning"
    assert "PRECISION=BF16" in finding.fix


@given(
    metric=st.sampled_from(sorted(TARGETS)), kind=st.sampled_from(sorted(KINDS)), value=st.floats(0.001, 1e6),
    percent=st.floats(0, 99),
)  # fmt: skip
def test_a_target_is_never_read_against_its_direction(
    metric: str, kind: str, value: float, percent: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = {f"training.{metric}": {"kind": kind, "value": value, "tolerance_pct": percent}}
    path = copy(tmp_path_factory.getbasetemp(), MEGATRON_FILE, targets=_set(CELL, to=target))
    resolved = load(path)
    assert resolved.spec is not None
    ours, divisor = TARGETS[metric]
    sides = {"higher": ("min", "min_tok_s", "within"), "lower": ("max", "max_ms", "within")}
    expected = kind in sides[METRICS[ours].better]
    assert [target.metric for target in resolved.spec.expectations] == ([ours] if expected else [])
    if expected:
        assert resolved.spec.expectations[0].value == pytest.approx(value / divisor)
    assert bool(codes(resolved)) == (not expected and kind not in ("info", "min_ratio"))


@given(data=st.data(), path=st.sampled_from([MAXTEXT, MEGATRON_FILE]))
def test_a_mutated_file_never_ends_in_a_traceback(
    data: st.DataObject, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = json.loads(path.read_text(encoding="utf-8"))
    paths = [p for p, _ in source.walk(source.read(path).root) if p and p != ("framework",)]
    for parts in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4)):
        parent: Any = tree
        for part in parts[:-1]:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and parts[-1] in parent:
            scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
            some = st.sampled_from(["<CHANGEME>", "-1", "{x}", "{shared_fs}", [], {}, [[]], [1], {"a": {}}, "a,b"])
            parent[parts[-1]] = data.draw(scalars | some)
    file = tmp_path_factory.getbasetemp() / "mutated.json"
    file.write_text(json.dumps(tree))
    problems: tuple[Problem, ...]
    try:
        problems = lint(load(file, action="run"), action="run").problems
    except InputError as error:
        problems = error.problems
    assert render_text(problems) is not None


def test_it_is_known_by_its_name() -> None:
    assert (cvs_2026.NAME, cvs_2026.KEYS) == ("cvs-2026", JAX)
    assert (cvs_2026_megatron.NAME, cvs_2026_megatron.KEYS) == ("cvs-2026-megatron", MEGATRON)
