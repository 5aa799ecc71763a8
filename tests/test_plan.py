"""A plan is a function of the spec and the machine: commands, environment, placement, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from seatrial.cluster import Cluster, Host, Transport
from seatrial.command import is_secret
from seatrial.errors import InputError, LaunchError
from seatrial.plan import Machine, Plan, PlanRequest, Site, choose_remat, collapsed_to_fit, make_plan
from seatrial.shrink.collapse import collapse
from seatrial.shrink.rehearsal import rehearse
from seatrial.spec import Batch, Checkpoint, Container, Execution, MeshShape, Parallelism, RunSpec, Topology, from_dict
from seatrial.spec.presets import MODELS
from tests.helpers.compiled import spec_of

LAPTOP = Machine(cores=2, memory_bytes=8 << 30)
EIGHT_GPUS = Machine(cores=96, memory_bytes=1 << 40, vendor="nvidia", accelerators=tuple(str(n) for n in range(8)))
RUN_DIR = Path("/runs/it")


def make_spec(nodes: int = 1, devices: int = 8, device: str | None = None, **execution: Any) -> RunSpec:
    return RunSpec(
        name="it",
        dialect="native",
        model=MODELS["llama3.2-1b"],
        batch=Batch(sequence_length=2048, micro_batch_size=1, global_batch_size=nodes * devices),
        steps=10,
        topology=Topology(num_nodes=nodes, devices_per_node=devices, device=device),
        parallelism=Parallelism(within_node=MeshShape(fsdp=devices), across_nodes=MeshShape(data=nodes)),
        execution=Execution(**execution),
    )


def plan(spec: RunSpec, machine: Machine = LAPTOP, **options: Any) -> Plan:
    return make_plan(PlanRequest(spec=spec, run_dir=RUN_DIR, machine=machine, **options))


def test_a_process_is_the_trainers_command_line() -> None:
    made = plan(make_spec(nodes=2, devices=4), coordinator="127.0.0.1:4711")
    assert [process.host.name for process in made.processes] == ["local0", "local1"]
    assert [process.log for process in made.processes] == ["nodes/local0/rank0.log", "nodes/local1/rank1.log"]
    argv = made.processes[1].command.argv
    assert argv[argv.index("-m") :] == (
        *("-m", "seatrial.train", "/runs/it/launch/trainer-spec.json", "--out", "/runs/it"),
        *("--process-id", "1", "--num-processes", "2", "--coordinator", "127.0.0.1:4711", "--cpu-devices", "4"),
    )
    assert from_dict(json.loads(made.files["launch/trainer-spec.json"])) == made.spec


def test_a_run_that_a_scheduler_may_restart_resumes_then_and_only_then() -> None:
    spec = dataclasses.replace(make_spec(nodes=2, devices=4), checkpoint=Checkpoint(enabled=True))
    made, fixed = plan(spec, restarts=True), plan(spec)
    assert fixed.restart == ()
    assert made.processes == fixed.processes
    assert [(each.host, each.log) for each in made.restart] == [(each.host, each.log) for each in made.processes]
    first, again = "/runs/it/launch/trainer-spec.json", "/runs/it/launch/trainer-spec-restart.json"
    for process, restarted in zip(made.processes, made.restart, strict=True):
        assert restarted.command.argv == tuple(again if w == first else w for w in process.command.argv)
    specs = {path: from_dict(json.loads(text)).checkpoint.resume for path, text in made.files.items()}
    assert specs == {"launch/trainer-spec.json": False, "launch/trainer-spec-restart.json": True}


def test_a_restarted_run_of_another_engine_is_told_to_resume() -> None:
    spec = dataclasses.replace(make_spec(device="h100"), checkpoint=Checkpoint(enabled=True))
    made = plan(spec, machine=EIGHT_GPUS, engine="megatron", restarts=True)
    (first,), (again,) = ((each.command.argv for each in starts) for starts in (made.processes, made.restart))
    assert set(again) - set(first) == {"--load"}


@pytest.mark.parametrize("address", ["fd00::1", "[fd00::1]"])
def test_an_ipv6_address_has_brackets_before_a_port_and_none_without(address: str) -> None:
    hosts = tuple(Host(name=f"n{n}", address=address.replace("::1", f"::{n + 1}")) for n in range(2))
    there = Site(cluster=Cluster(hosts=hosts, transport="ssh"), root=PurePosixPath("/r"))
    spec = make_spec(nodes=2, device="h100")
    argv = plan(spec, on="ssh", site=there).processes[1].command.argv
    assert argv[argv.index("--coordinator") + 1] == "[fd00::1]:12355"
    torchrun = plan(spec, on="ssh", site=there, engine="megatron").processes[1].command.argv
    assert "--master_addr=fd00::1" in torchrun


def test_a_single_process_needs_no_coordinator() -> None:
    assert "--coordinator" not in plan(make_spec()).processes[0].command.argv


def test_virtual_devices_get_the_environment_of_a_cpu() -> None:
    environment = plan(make_spec(environment={"NCCL_PROTO": "Simple"})).processes[0].command.environment
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["NCCL_PROTO"] == "Simple"
    assert environment["PYTHONUNBUFFERED"] == "1"
    tunables = str(environment["GLIBC_TUNABLES"]).split(":")
    assert {"glibc.malloc.tcache_count=0", "glibc.malloc.hugetlb=1"} <= {*tunables}


FLAGS = {"xla_a": "1", "xla_b": "2"}


def test_flags_of_the_shell_come_first_and_the_configuration_wins() -> None:
    """Only where its shell is the processes' own: no flag of this machine is sent to another."""
    shell = {"XLA_FLAGS": "--xla_b=1 --xla_c", "UNRELATED": "x"}
    for spec, used in (
        (make_spec(xla_flags=FLAGS), "--xla_b=2 --xla_c=true --xla_a=1"),
        (make_spec(), "--xla_b=1 --xla_c=true"),
        (make_spec(environment={"XLA_FLAGS": "--xla_b=3"}, xla_flags={"xla_d": "4"}),
         "--xla_b=3 --xla_c=true --xla_d=4"),
    ):  # fmt: skip
        here = plan(spec, shell=shell)
        environment = here.processes[0].command.environment
        assert environment["XLA_FLAGS"] == used
        assert "UNRELATED" not in environment
        assert any("XLA_FLAGS of this shell are used" in note and "--xla_b=1 --xla_c" in note for note in here.notes)
    silent = plan(make_spec(xla_flags=FLAGS))
    assert silent.processes[0].command.environment["XLA_FLAGS"] == "--xla_a=1 --xla_b=2"
    assert not any("XLA_FLAGS" in note for note in silent.notes)
    assert "XLA_FLAGS" not in plan(make_spec()).processes[0].command.environment


@pytest.mark.parametrize(
    ("transport", "runtime", "said"),
    [("ssh", None, "not sent to the hosts"), ("slurm", None, "sbatch hands"), ("slurm", "docker", "not sent")],
)
def test_no_flag_is_put_in_the_place_of_another_host_s_own(
    transport: Transport, runtime: str | None, said: str
) -> None:
    """There, the trainer puts the configuration's, which its spec holds, behind what it finds."""
    site = Site(
        cluster=Cluster(hosts=(Host(name="a", address="a"),), transport=transport),
        root=PurePosixPath("/runs/it"), runtime=runtime,
    )  # fmt: skip
    spec = dataclasses.replace(make_spec(xla_flags=FLAGS), container=Container(image="image"))
    made = plan(spec, site=site, on=transport, shell={"XLA_FLAGS": "--xla_c=3"})
    command = made.processes[0].command
    assert "XLA_FLAGS" not in command.shell()
    assert "xla_c" not in command.shell() + "".join(made.files.values())
    assert from_dict(json.loads(made.files["launch/trainer-spec.json"])).execution.xla_flags == FLAGS
    assert any(said in note for note in made.notes)


def test_tunables_of_the_shell_come_after_those_for_virtual_devices() -> None:
    shell = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=4:glibc.malloc.check=3"}
    words = str(plan(make_spec(), shell=shell).processes[0].command.environment["GLIBC_TUNABLES"]).split(":")
    assert {"glibc.malloc.tcache_count=4", "glibc.malloc.check=3", "glibc.malloc.hugetlb=1"} <= {*words}
    assert "glibc.malloc.tcache_count=0" not in words
    asked = make_spec(environment={"GLIBC_TUNABLES": "glibc.malloc.check=0"})
    assert plan(asked, shell=shell).processes[0].command.environment["GLIBC_TUNABLES"] == "glibc.malloc.check=0"


def test_accelerators_are_shared_out_in_order() -> None:
    made = plan(make_spec(nodes=2, devices=2), EIGHT_GPUS)
    assert [p.command.environment["CUDA_VISIBLE_DEVICES"] for p in made.processes] == ["0,1", "2,3"]
    for process in made.processes:
        assert "--cpu-devices" not in process.command.argv
        assert "JAX_PLATFORMS" not in process.command.environment


def test_one_process_of_several_machines_uses_its_own_accelerators() -> None:
    made = plan(make_spec(nodes=4, devices=8), EIGHT_GPUS, nodes_here=1)
    assert {p.command.environment["CUDA_VISIBLE_DEVICES"] for p in made.processes} == {"0,1,2,3,4,5,6,7"}


def test_a_run_that_names_no_accelerator_may_have_virtual_devices() -> None:
    made = plan(make_spec())
    assert made.processes[0].command.argv[-2:] == ("--cpu-devices", "8")
    assert any("virtual CPU devices" in note for note in made.notes)


@pytest.mark.parametrize(
    ("spec", "machine", "says"),
    [
        (make_spec(device="mi300x"), LAPTOP, "1 × 8 devices (mi300x), but this machine has no accelerator"),
        (make_spec(nodes=2, device="h100-sxm"), EIGHT_GPUS, "but this machine has 8 nvidia accelerators"),
        (make_spec(nodes=64), LAPTOP, "64 × 8 devices (any)"),
    ],
)
def test_what_the_machine_has_not_is_refused_with_a_way_out(spec: RunSpec, machine: Machine, says: str) -> None:
    with pytest.raises(LaunchError) as refused:
        plan(spec, machine)
    assert refused.value.exit_code == 3
    assert says in str(refused.value)
    assert "--rehearse" in str(refused.value)


@pytest.mark.parametrize("machine", [LAPTOP, EIGHT_GPUS])
def test_a_rehearsal_runs_its_own_spec_on_virtual_devices(machine: Machine) -> None:
    spec = make_spec(nodes=64, device="mi300x")
    rehearsal = rehearse(spec, cores=machine.cores, memory_bytes=machine.memory_bytes)
    made = plan(spec, machine, rehearsal=rehearsal)
    assert made.spec == rehearsal.spec
    assert [p.command.argv[-2:] for p in made.processes] == [("--cpu-devices", "4")] * 2
    written = json.loads(json.dumps(made.as_dict()))
    assert from_dict(written["spec"]) == rehearsal.spec
    assert {change["path"] for change in written["rehearsal"]["changes"]} >= {"topology.num_nodes", "model.num_layers"}


def test_a_collapsed_mesh_runs_on_the_accelerators_that_are_there() -> None:
    spec = make_spec(nodes=2, device="h100-sxm")
    made = plan(spec, EIGHT_GPUS, rehearsal=collapse(spec, num_devices=8))
    assert [p.command.environment["CUDA_VISIBLE_DEVICES"] for p in made.processes] == ["0,1,2,3,4,5,6,7"]
    assert made.spec.accumulation_steps == 2
    assert made.as_dict()["rehearsal"]["collapsed"]


def test_secrets_are_in_the_environment_and_nowhere_else() -> None:
    canary = "canary-4d1c"
    made = plan(make_spec(environment={"HF_TOKEN": canary, "WANDB_API_KEY": canary, "NCCL_DEBUG": "INFO"}))
    command = made.processes[0].command
    shown = [json.dumps(made.as_dict()), repr(made.processes), command.shell(), *made.files.values()]
    assert not any(canary in text for text in shown)
    assert made.as_dict()["processes"][0]["environment"]["HF_TOKEN"] == "***"
    assert made.as_dict()["spec"]["execution"]["environment"] == {
        "HF_TOKEN": "***", "WANDB_API_KEY": "***", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    assert getattr(command.environment["HF_TOKEN"], "reveal")() == canary  # noqa: B009


def test_an_unknown_engine_is_the_users_error() -> None:
    with pytest.raises(InputError, match="there is no engine 'maxtxt'"):
        plan(make_spec(), engine="maxtxt")


def test_a_plan_is_data() -> None:
    made = plan(make_spec())
    assert dataclasses.replace(made) == made
    assert made.as_dict() == plan(make_spec()).as_dict()


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("HF_TOKEN", True), ("wandb_api_key", True), ("DB_PASSWORD", True), ("TOKENIZERS_PARALLELISM", False),
     ("TOKENIZER_MODEL", False), ("NCCL_DEBUG", False)],
)  # fmt: skip
def test_names_of_secrets(name: str, is_one: bool) -> None:
    assert is_secret(name) == is_one


LARGE = spec_of("llama3.1-8b", 1, 8192, fsdp=8)
LARGE = dataclasses.replace(LARGE, topology=dataclasses.replace(LARGE.topology, device="h100-sxm"))
SMALL_MACHINE = Machine(cores=2, memory_bytes=24 << 30)
LARGE_MACHINE = Machine(cores=96, memory_bytes=512 << 30)


def gpus(number: int, gib: int | None) -> Machine:
    names = tuple(str(n) for n in range(number))
    return dataclasses.replace(LARGE_MACHINE, vendor="nvidia", accelerators=names, accelerator_bytes=gib and gib << 30)


@pytest.mark.parametrize(
    ("machine", "engine", "collapse", "rehearse"),
    [
        (SMALL_MACHINE, "native", False, True),  # 16 bytes for each of 8e9 parameters
        (LARGE_MACHINE, "native", True, True),
        (gpus(4, 80), "native", True, True),
        (gpus(4, 24), "native", False, True),
        (gpus(1, None), "native", False, True),  # as much as an H100
        (SMALL_MACHINE, "megatron", False, False),
    ],
)
def test_only_what_fits_this_machine_is_suggested(
    machine: Machine, engine: str, collapse: bool, rehearse: bool
) -> None:
    with pytest.raises(LaunchError, match="this machine has") as error:
        make_plan(PlanRequest(spec=LARGE, run_dir=Path("/run"), machine=machine, engine=engine))
    assert ("--collapse" in str(error.value), "--rehearse" in str(error.value)) == (collapse, rehearse)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (SMALL_MACHINE, "needs about 125.8 GiB of its memory, and there are 24.0 GiB"),
        (gpus(4, 24), "needs about 40.6 GiB of each of its 4 nvidia accelerators, and there is 21.6 GiB"),
    ],
)
def test_a_collapse_that_cannot_fit_is_refused(machine: Machine, why: str) -> None:
    with pytest.raises(LaunchError, match="the collapsed run does not fit on this machine: it ") as error:
        collapsed_to_fit(LARGE, machine, "native")
    assert why in str(error.value)
    assert error.value.exit_code == 3
    small, _ = collapsed_to_fit(LARGE, LARGE_MACHINE, "native")
    assert small.collapsed


@pytest.mark.parametrize(
    ("device", "micro", "row", "fits"),
    [
        ("h200", 1, "none", "the least that fits: each device needs about 12."),
        ("h200", 96, "save_dot_with_context_except_mlp", "the least that fits"),
        ("h200", 240, "full", "the least that fits"),
        ("tpu-v5e", 16, "full", "and not even that surely fits"),
        (None, 8, "minimal_with_context", "the least that fits"),
    ],
)
def test_auto_recomputes_as_little_as_fits(device: str | None, micro: int, row: str, fits: str) -> None:
    """By the device's memory; one that the run does not name has its part of the machine's."""
    spec = make_spec(devices=2, device=device, remat="auto", scan_layers=False)
    batch = dataclasses.replace(spec.batch, micro_batch_size=micro, global_batch_size=2 * micro)
    spec = dataclasses.replace(spec, batch=batch)
    machine = Machine(cores=2, memory_bytes=64 << 30, vendor="nvidia", accelerators=("0", "1"))
    chosen, why = choose_remat(spec, machine, "native")
    assert chosen == dataclasses.replace(spec, execution=dataclasses.replace(spec.execution, remat=row))
    assert why[0].startswith(f"execution.remat is auto: {row}, {fits}")
    assert plan(chosen, machine, remat_notes=why).notes == tuple(why)
    assert choose_remat(chosen, machine, "native") == (chosen, [])
