"""The commands that start MaxText and Megatron-LM: every byte of them, on two hosts, with and without a container."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from seatrial import command
from seatrial.cluster import Cluster, Host
from seatrial.command import Secret
from seatrial.dialects import load
from seatrial.engines import Commands, Ground, Placement, engine, maxtext, megatron, nics
from seatrial.errors import InputError, LaunchError
from seatrial.plan import Machine, Plan, PlanRequest, Site, make_plan
from seatrial.shrink.rehearsal import Rehearsal, rehearse
from seatrial.spec import Container, MeshShape, Parallelism, RunSpec, Topology
from tests.helpers.command_line import seatrial

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "engines"
HERE = Machine(cores=2, memory_bytes=1 << 33)
CLUSTER = Cluster(hosts=(Host(name="a", address="10.0.0.1"), Host(name="b", address="10.0.0.2")), transport="ssh")
CANARY = "hf_canary_4d1c"

NETWORK = ["nccl_socket_ifname=eth0", "gloo_socket_ifname=eth0", "nccl_ib_gid_index=3"]
JAX = ["coordinator_ip=10.0.0.1", "nccl_ib_hca=bnxt_re0,bnxt_re1", *NETWORK, "nnodes=2"]
MEGATRON = ["master_address=10.0.0.1", "nccl_ib_hca_list=bnxt_re0,bnxt_re1", *NETWORK, "nnodes=2"]
ALONE = ["nnodes=1"]
EIGHT = [*ALONE, "training_iterations=50", "model=llama3_1_8b"]
H100 = ["topology.device=h100", "topology.devices_per_node=8"]
CASES = {
    "mi300x_distributed_llama3_1_70b": ("maxtext", "cvs/{}.json", JAX),
    "mi300x_distributed_llama_3_1_405b": ("maxtext", "cvs/{}.json", JAX),
    "mi300x_singlenode_llama3_1_70b": ("maxtext", "cvs/{}.json", [*ALONE, "coordinator_ip=localhost"]),
    "mi35x_singlenode_llama_3_1_70b": ("maxtext", "cvs/{}.json", [*ALONE, "coordinator_ip=localhost"]),
    "mi3xx_megatron_llama_distributed": (
        "megatron", "cvs/{}.json",
        [*MEGATRON, "training_iterations=30", "nic_type=ainic", "model=llama3_1_70b", "gpu=mi300x"],
    ),
    "mi3xx_megatron_llama_single": ("megatron", "cvs/{}.json", [*EIGHT, "gpu=mi300x"]),
    "mi35x_megatron_llama_single": ("megatron", "cvs/{}.json", [*EIGHT, "gpu=mi350"]),
    "maxtext-llama3-8b": ("maxtext", "maxtext/{}.yaml", ["topology.device=h100"]),
    "maxtext-llama2-7b-h100": ("maxtext", "maxtext/{}.sh", H100),
    "maxtext-quick": ("maxtext", "maxtext/{}.sh", ["topology.num_nodes=2", *H100]),
    "megatron-llama3-8b-mi300x": ("megatron", "megatron/{}.sh", ["NNODES=2"]),
    "megatron-llama2-70b-h100": ("megatron", "megatron/{}.sh", ["--nnodes=2", "topology.device=h100"]),
    "megatron-tiny": ("megatron", "megatron/{}.sh", []),
}  # fmt: skip


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some files name a home by their user."""
    monkeypatch.setenv("LOGNAME", "somebody")


def read(name: str) -> tuple[str, RunSpec]:
    trainer, path, overrides = CASES[name]
    resolved = load(ROOT / "configs" / path.format(name), overrides, action="check")
    assert resolved.spec is not None, [(p.path, p.why) for p in resolved.problems if p.severity == "error"]
    return trainer, resolved.spec


def plan(spec: RunSpec, trainer: str, *, runtime: str | None = None, **options: Any) -> Plan:
    site = Site(cluster=CLUSTER, root=PurePosixPath("/var/tmp/run"), runtime=runtime)
    return make_plan(
        PlanRequest(spec=spec, run_dir=Path("/run"), machine=HERE, on="ssh", engine=trainer, site=site, **options)
    )


def shown(made: Plan) -> str:
    """Commands, files and notes; the fixed text for the shell by its name."""
    commands = "\n".join(f"# {process.host.name}\n{process.command.shell()}\n" for process in made.processes)
    for name, text in (("START", maxtext.START), ("START", megatron.START), ("PROBE", maxtext.PROBE)):
        commands = commands.replace(shlex.quote(text), name)
    files = "".join(f"\n# {path}\n{text}" for path, text in made.files.items())
    return commands + files + "".join(f"\nnote: {note}" for note in made.notes) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_golden_plan(name: str) -> None:
    trainer, spec = read(name)
    text = shown(plan(spec, trainer))
    if spec.container:
        text += f"\n\n##### in a container\n\n{shown(plan(spec, trainer, runtime='docker'))}"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


# Names that a shell, a YAML reader or an argument parser could take for something else.
HOSTILE = (
    "$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "a\nb: c", "-rf", "--help", "a b", "*",
    "back\\slash", "é☃", "$HOME", "%s%n", "&& touch pwned", "| touch pwned", "# no", "{a: b}", "[x", "no", "~", "1e3",
    "<touch>pwned", "a=b", "!!python/object", "x;touch pwned", "$IFS", "\t", "'", '"', "--=",
)  # fmt: skip
SHELL_TEXTS = {maxtext.START, megatron.START, command._WITH_SECRETS}
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def shell_texts(argv: Sequence[str]) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv[:-1]) if word == "-c"]


def start(made: Commands, cwd: Path) -> tuple[list[str], dict[str, str], str]:
    """The arguments, the environment and the folder with which the program was started in the end."""
    first = made.each[0]
    variables = {
        key: value.reveal() if isinstance(value, Secret) else value for key, value in first.environment.items()
    }
    done = subprocess.run(
        first.argv, env={"PATH": f"{cwd / 'bin'}:{os.environ['PATH']}"} | variables, cwd=cwd, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    arguments, environment, folder = json.loads(done.stdout)
    return arguments, environment, folder


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_arrive_as_they_are(value: str, tmp_path: Path) -> None:
    """In folders, environment, arguments and files; and nothing of them is ever part of a shell's text."""
    _, spec = read("megatron-tiny")
    root = tmp_path / value
    for program in ("pretrain_gpt.py", "MaxText/train.py"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).write_text(ECHO)
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "torchrun").write_text(f"#!{sys.executable}\n{ECHO}")
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    variables = {"MEGATRON_ROOT": str(root), "MAXTEXT_ROOT": str(root), "ANY": value}
    spec = replace(
        spec, name=value, log_dir=f"/logs/{value}", execution=replace(spec.execution, environment=variables),
        data=replace(spec.data, kind="megatron", paths=(f"./{value}",)),
        checkpoint=replace(spec.checkpoint, enabled=True, directory=value),
        container=Container(image="image", environment={"GIVEN": value}, volumes=((value, value),)),
    )  # fmt: skip
    ground = Ground(hosts=["a"], placements=[Placement()], run_dir=PurePosixPath("/run"), python=sys.executable)

    made = megatron.commands(spec, ground)
    arguments, environment, folder = start(made, tmp_path)
    assert (environment["ANY"], folder) == (value, str(root))
    assert arguments[arguments.index("--train-data-path") + 1] == f"./{value}"
    assert value in arguments or f"--save={value}" in arguments

    made = maxtext.commands(replace(spec, data=replace(spec.data, kind="synthetic", paths=())), ground)
    arguments, environment, folder = start(made, tmp_path)
    assert (arguments, environment["ANY"], folder) == (["/run/launch/maxtext.yml"], value, str(root))
    config = yaml.safe_load(made.each[0].files[maxtext.CONFIG_FILE])
    assert config["base_output_directory"] == f"/logs/{value}"
    assert config.get("run_name", value) == value

    for engine_name in ("maxtext", "megatron"):
        pod = replace(spec, data=replace(spec.data, kind="synthetic", paths=()))
        for process in plan(pod, engine_name, runtime="podman").processes:
            assert set(shell_texts(process.command.argv)) <= SHELL_TEXTS
            assert f"GIVEN={value}" in process.command.argv
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("runtime", [None, "podman"])
@pytest.mark.parametrize(
    "name", ["mi300x_distributed_llama3_1_70b", "mi3xx_megatron_llama_distributed", "megatron-tiny"]
)
def test_secrets_are_in_no_argument_file_or_plan(name: str, runtime: str | None) -> None:
    trainer, spec = read(name)
    variables = {**spec.execution.environment, "WANDB_API_KEY": CANARY}
    container = replace(spec.container or Container(image="image"), environment={"OTHER_TOKEN": CANARY})
    spec = replace(spec, execution=replace(spec.execution, environment=variables), container=container)
    made = plan(spec, trainer, runtime=runtime, secrets={"HF_TOKEN": Secret(CANARY)})
    assert CANARY not in json.dumps(made.as_dict()) + repr(made.processes) + shown(made)
    for process in made.processes:
        assert CANARY not in "".join(process.command.argv)
        held = [value for value in process.command.environment.values() if isinstance(value, Secret)]
        revealed = process.command.stdin.reveal() if process.command.stdin else ""
        assert (len(held), revealed.count(CANARY)) == ((2, 0) if runtime is None else (0, 3))


@pytest.mark.parametrize(
    ("name", "other", "says"),
    [
        (
            "mi3xx_megatron_llama_single",
            "maxtext",
            "precision.quantization: MaxText (--engine maxtext) has no setting for fp8",
        ),
        ("maxtext-llama3-8b", "megatron", None),
    ],
)
def test_what_another_engine_cannot_do_is_refused_or_told(name: str, other: str, says: str | None) -> None:
    _, spec = read(name)
    if says is None:
        assert any(
            "Megatron-LM does not get execution.remat = save_qkv_proj" in note for note in plan(spec, other).notes
        )
        return
    with pytest.raises(InputError) as refused:
        plan(spec, other)
    assert says in str(refused.value)


@pytest.mark.parametrize("other", ["maxtext", "megatron"])
def test_a_rate_that_falls_in_steps_is_refused_by_engines_without_one(other: str) -> None:
    _, spec = read("maxtext-llama3-8b")
    falling = replace(spec, optimizer=replace(spec.optimizer, schedule="step", decay_interval_steps=5))
    with pytest.raises(InputError) as refused:
        plan(falling, other)
    assert "optimizer.schedule: " in str(refused.value)
    assert "has no setting for step" in str(refused.value)


def test_megatron_computes_on_no_cpu() -> None:
    _, spec = read("megatron-tiny")
    small = rehearse(spec, cores=2, memory_bytes=1 << 33)
    with pytest.raises(InputError, match="a rehearsal computes on CPUs"):
        plan(spec, "megatron", rehearsal=small)
    with pytest.raises(LaunchError, match="this machine has no accelerator"):
        make_plan(PlanRequest(spec=spec, run_dir=Path("/run"), machine=HERE, engine="megatron"))


def nodes(count: int, each: int, within: dict[str, int], across: dict[str, int], **parallelism: Any) -> RunSpec:
    """A run on nodes of whatever devices there are."""
    _, spec = read("maxtext-quick")
    return replace(
        spec,
        topology=Topology(num_nodes=count, devices_per_node=each),
        batch=replace(spec.batch, micro_batch_size=1, global_batch_size=count * each),
        parallelism=Parallelism(within_node=MeshShape(**within), across_nodes=MeshShape(**across), **parallelism),
    )


def mesh_of(made: Plan) -> dict[str, dict[str, int]]:
    """The sizes other than 1 in MaxText's file, by the part of the mesh and the axis."""
    config = yaml.safe_load(made.files[maxtext.CONFIG_FILE])
    found: dict[str, dict[str, int]] = {"ici": {}, "dcn": {}}
    for key, size in config.items():
        if (match := re.fullmatch(r"(ici|dcn)_(\w+)_parallelism", key)) and size != 1:
            found[match[1]][match[2]] = size
    return found


def here(spec: RunSpec, machine: Machine = HERE) -> Plan:
    return make_plan(
        PlanRequest(spec=spec, run_dir=Path("/run"), machine=machine, engine="maxtext", coordinator="127.0.0.1:5000")
    )


@pytest.mark.parametrize(
    ("within", "across", "mesh", "is_another"),
    [
        ({"fsdp": 2}, {"data": 4}, {"data": 4, "fsdp": 2}, False),
        ({"fsdp": 2}, {"fsdp": 4}, {"fsdp": 8}, False),
        ({"fsdp": 2}, {"fsdp": -1}, {"fsdp": 8}, False),
        ({"tensor": 2}, {"data": 2, "fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}, False),
        ({"tensor": 2}, {"pipeline": 2, "tensor": 2}, {"pipeline": 2, "tensor": 4}, False),
        ({"fsdp": 2}, {"tensor": 4}, {"fsdp": 2, "tensor": 4}, True),
        ({"data": 2}, {"fsdp": 4}, {"data": 2, "fsdp": 4}, True),
    ],
)
def test_on_cpus_and_on_one_machine_the_axes_across_nodes_are_within_maxtexts_only_slice(
    within: dict[str, int], across: dict[str, int], mesh: dict[str, int], is_another: bool
) -> None:
    spec = nodes(4, 2, within, across)
    eight = Machine(cores=2, memory_bytes=1 << 33, vendor="nvidia", accelerators=tuple("01234567"))
    hosts = tuple(Host(name=f"n{n}", address=f"10.0.0.{n}") for n in range(4))
    site = Site(cluster=Cluster(hosts=hosts, transport="ssh"), root=PurePosixPath("/var/tmp/run"))
    small = Rehearsal(spec=spec, changes=())
    on_hosts = make_plan(
        PlanRequest(spec=spec, run_dir=Path("/run"), machine=HERE, engine="maxtext", site=site, rehearsal=small)
    )
    for made in (here(spec), here(spec, eight), on_hosts):
        assert mesh_of(made) == {"ici": mesh, "dcn": {}}
        assert any("other axes cross the nodes" in note for note in made.notes) is is_another


def test_between_machines_each_node_is_a_slice() -> None:
    assert mesh_of(plan(nodes(2, 4, {"fsdp": 4}, {"fsdp": -1}), "maxtext")) == {"ici": {"fsdp": 4}, "dcn": {"fsdp": 2}}


def test_on_cpus_maxtext_has_no_ring() -> None:
    spec = nodes(2, 2, {"context": 2}, {"data": 2}, context_strategy="ring")
    assert "context_parallel_strategy: ring" in plan(spec, "maxtext").files[maxtext.CONFIG_FILE]
    made = here(spec)
    assert "ring" not in made.files[maxtext.CONFIG_FILE]
    assert any("on CPUs MaxText has no ring" in note for note in made.notes)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("mi3") and "megatron" not in name])
def test_a_rehearsal_keeps_what_maxtext_has_built_in(name: str) -> None:
    _, spec = read(name)
    assert spec.model.rope_scaling is not None
    small = rehearse(spec, cores=2, memory_bytes=1 << 33, fixed=maxtext.FIXED)
    assert small.spec.model.rope_scaling == spec.model.rope_scaling
    assert small.spec.model.hidden_dim < spec.model.hidden_dim
    assert not [change for change in small.changes if "rope" in change.path]
    made = make_plan(
        PlanRequest(spec=small.spec, run_dir=Path("/run"), machine=HERE, engine="maxtext", rehearsal=small)
    )
    assert "rope_type: llama3.1" in made.files[maxtext.CONFIG_FILE]


def test_megatron_saves_into_the_run_directory_unless_it_is_told_where() -> None:
    _, spec = read("megatron-tiny")
    saving = replace(spec, checkpoint=replace(spec.checkpoint, enabled=True, directory=None, interval_steps=10))
    argv = plan(saving, "megatron").processes[0].command.argv
    assert argv[argv.index("--save") + 1] == "/var/tmp/run/checkpoints"


def test_megatron_that_is_nowhere_says_so(tmp_path: Path) -> None:
    _, spec = read("megatron-tiny")
    ground = Ground(hosts=["a"], placements=[Placement()], run_dir=PurePosixPath("/run"))
    argv = megatron.commands(spec, ground).each[0].argv
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "pretrain_gpt.py is in none of the folders where Megatron-LM is looked for; set MEGATRON_ROOT" in done.stderr


def test_network_cards_set_what_they_need_over_several_nodes_and_the_configuration_has_the_last_word() -> None:
    _, spec = read("mi300x_distributed_llama3_1_70b")
    assert nics.environment(replace(spec, nic_type="ainic"))["NCCL_IB_GID_INDEX"] == "1"
    assert nics.environment(replace(spec, nic_type="Broadcom Thor2")) == {"NCCL_IB_GID_INDEX": "3"}
    assert nics.environment(replace(spec, nic_type="cx7")) == nics.environment(replace(spec, nic_type="tin")) == {}
    assert nics.environment(replace(spec, topology=replace(spec.topology, num_nodes=1))) == {}
    given = replace(spec.execution, environment={"NCCL_IB_GID_INDEX": "5"})
    made = plan(replace(spec, nic_type="ainic", execution=given), "maxtext")
    assert made.processes[0].command.environment["NCCL_IB_GID_INDEX"] == "5"


def test_the_library_of_a_card_should_be_the_hosts() -> None:
    _, spec = read("mi300x_distributed_llama3_1_70b")
    assert spec.container is not None
    said = "is used by way of the image's own libbnxt_re-rdmavN.so, which has to fit the host's driver"
    bare = replace(spec, container=replace(spec.container, volumes=()))
    for given, runtime, expected in ((spec, "docker", False), (bare, "docker", True), (bare, None, False)):
        assert any(said in note for note in plan(given, "maxtext", runtime=runtime).notes) is expected
    for place in ("/usr/lib/libbnxt_re-rdmav34.so", "/usr/lib/libbnxt_re-rdmav59.so.host"):
        container, told = nics.mounted(replace(spec.container, volumes=(("/lib/x.so", place),)), "thor2")
        assert container.volumes == (("/lib/x.so", place.removesuffix(".host")),)
        assert bool(told) is place.endswith(".host")
    other = replace(spec.container, volumes=(("/a", "/etc/b.host"),))
    assert nics.mounted(other, "thor2") == (other, [])


@pytest.mark.parametrize("value", [value for value in HOSTILE if re.search(r"[^\w./@%+=:,-]", value)])
def test_what_a_shell_could_take_for_more_is_not_given_to_the_script(value: str) -> None:
    """The script puts its variables into a text that it evaluates."""
    _, spec = read("mi3xx_megatron_llama_single")
    assert plan(spec, "megatron").processes[0].command.argv[-1] == "examples/llama/train_llama3.sh"
    odd = replace(spec, data=replace(spec.data, index_dir=f"/cache/{value}"))
    made = plan(odd, "megatron")
    assert "torchrun" in made.processes[0].command.argv
    assert any("whose shell would take DATA_CACHE_PATH=" in note for note in made.notes)


def test_a_run_that_the_script_would_refuse_is_one_for_torchrun() -> None:
    path = ROOT / "configs" / "maxtext" / "maxtext-llama2-7b-h100.sh"
    resolved = load(path, ["max_target_length=65536"], action="check")
    assert resolved.spec is not None
    topology = replace(resolved.spec.topology, device="mi300x", devices_per_node=8)
    made = plan(replace(resolved.spec, topology=topology), "megatron")
    assert "--seq-length" in made.processes[0].command.argv
    assert "whose variables cannot say the run as it is" in " ".join(made.notes)


def test_engines_are_what_the_table_says() -> None:
    """Each has what the protocol asks for, and finds the steps of its family's log."""
    lines = {"maxtext": "completed step: 7, seconds: 1", "megatron": " [x] iteration        7/      30 | consumed"}
    for name, line in lines.items():
        trains = engine(name)
        found = re.search(trains.STEP_PATTERN, line)
        assert found
        assert found[1] == "7"
        assert name == trains.FAMILY


def test_command_line_shows_it_with_the_token_masked(tmp_path: Path) -> None:
    """The token is read where the run is started; the file that holds it is the configuration's."""
    (tmp_path / "token").write_text(f"{CANARY}\n")
    (tmp_path / "cluster.json").write_text('{"hosts": ["a", "b"]}')
    config = ROOT / "configs" / "cvs" / "mi300x_distributed_llama3_1_70b.json"
    given = [*JAX, "tflops_per_sec_per_gpu=380", "tokens_per_sec_per_gpu=800", f"hf_token_file={tmp_path / 'token'}"]
    where = ["--engine", "maxtext", "--on", "ssh", "--cluster", "cluster.json", "--container", "podman"]
    for form in ("text", "json"):
        done = seatrial("plan", config, *given, *where, "--all", "--format", form, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert CANARY not in done.stdout + done.stderr
        assert "base_config: base.yml" in done.stdout
        assert "--interactive" in done.stdout  # how a secret gets into a container
