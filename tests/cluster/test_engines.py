"""MaxText and Megatron-LM on nodes with real daemons: stand-ins as strict as the programs, from file to verdict.

They are in the image of the tests, where the real images have the programs. Hosts look as if they had devices of AMD's
and cards of Broadcom's, so that nothing of the configuration has to be left out.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cluster.image import IMAGE, PROGRAMS, PROJECT
from tests.helpers.cluster.nodes import USER_HOME, Cluster, Node
from tests.helpers.cluster.person import CANARY, ENDLESS, Lookout, Person
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.cluster.slurm_user import SlurmUser

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CARDS = ("bnxt_re0", "bnxt_re1")
LIBRARY = "libbnxt_re-rdmav34.so"
PLACE = f"/usr/lib/x86_64-linux-gnu/libibverbs/{LIBRARY}"
STARTED = ("MaxText/train.py", "pretrain_gpt.py", "train_llama3.sh", "launch/agent.py", "conmon", "podman run")
SECONDS = "20"  # that a step says it took: 368 TFLOP/s and 819 tokens/s of a device with MaxText's 70B

# Sysfs with what a plan names, beside the node's own network devices.
HARDWARE = """\
set -e
mkdir -p /run/class
cp -a /sys/class/net /run/class/
for card in $1; do
  port=/run/class/infiniband/$card/ports/1
  mkdir -p $port/gids $port/gid_attrs/types $port/gid_attrs/ndevs
  echo '4: ACTIVE' > $port/state
  echo Ethernet > $port/link_layer
  echo '400 Gb/sec (4X NDR)' > $port/rate
  echo 0000:0000:0000:0000:0000:ffff:0a4d:0001 > $port/gids/3
  echo 'RoCE v2' > $port/gid_attrs/types/3
  echo eth0 > $port/gid_attrs/ndevs/3
  echo 231.2.63.0 > /run/class/infiniband/$card/fw_ver
done
for number in 0 1 2 3 4 5 6 7; do
  device=/run/class/drm/card$number/device
  mkdir -p $device
  echo 206141652992 > $device/mem_info_vram_total
  echo 300000000 > $device/mem_info_vram_used
  echo 0x1002 > $device/vendor
  echo 'AMD Instinct MI300X' > $device/product_name
done
mount --no-mtab --bind /run/class /sys/class
"""


def install(node: Node) -> None:
    """The hardware, and the host's library for its cards."""
    node.run(["bash", "-c", HARDWARE, "bash", " ".join(CARDS)])
    node.path(f"/var/tmp/{LIBRARY}").write_text(f"of {node.name}")


def filled(person: Person, name: str, *, nodes: int, steps: int, bars: Mapping[str, int], **variables: str) -> Path:
    """One of CVS's files with its blanks filled in."""
    document = json.loads((PROJECT / "configs/cvs" / name).read_text())
    config, first = document["config"], person.cluster.nodes[0].address
    (person.home / "token").write_text(f"{CANARY}\n")
    own = {
        "container_image": IMAGE, "nnodes": nodes, "nic_type": "thor2", "nccl_ib_hca_list": ",".join(CARDS),
        "nccl_socket_ifname": "eth0", "gloo_socket_ifname": "eth0", "nccl_ib_gid_index": 3,
        "hf_token_file": person.home / "token", "log_dir": "/var/tmp/logs",
    }  # fmt: skip
    own |= (
        {"coordinator_ip": first, "training_steps": steps, "nccl_ib_hca": ",".join(CARDS)}
        if "training_steps" in config
        else {"master_address": first, "training_iterations": steps}
    )
    config |= {key: str(value) for key, value in own.items()}
    config["container_config"] |= {
        "device_list": ["/dev/null:/dev/kfd"], "volume_dict": {f"/var/tmp/{LIBRARY}": f"{PLACE}.host"},
        "env_dict": {
            **config["container_config"].get("env_dict", {}), "STAND_IN_SECONDS": SECONDS, **variables,
        },
    }  # fmt: skip
    for key in ("JAX_COORDINATOR_IP",):
        if key in config["container_config"]["env_dict"]:
            config["container_config"]["env_dict"][key] = first
    for cells in document["model_params"]["multi_node"].values():
        for cell in cells.values():
            cell["result_dict"] |= {key: str(value) for key, value in bars.items()}
            if "dcn_fsdp_parallelism" in cell:
                cell |= {"dcn_fsdp_parallelism": "1", "dcn_data_parallelism": str(nodes)}
    path = person.home / name
    path.write_text(json.dumps(document))
    return path


def maxtext(
    person: Person, *, nodes: int, steps: int = 20, tflops: int = 360, tokens: int = 800, **variables: str
) -> Path:
    bars = {"tflops_per_sec_per_gpu": tflops, "tokens_per_sec_per_gpu": tokens}
    name = "mi300x_distributed_llama3_1_70b.json"
    return filled(person, name, nodes=nodes, steps=steps, bars=bars, **variables)


def megatron(person: Person, *, nodes: int, steps: int = 20, tflops: int = 1, **variables: str) -> Path:
    bars = {"throughput_per_gpu": tflops, "tokens_per_gpu": 1}
    variables |= {"PATH": f"/usr/local/bin:{sys.prefix}/bin:/usr/bin:/bin"}  # torch's own torchrun takes its time
    return filled(person, "mi3xx_megatron_llama_distributed.json", nodes=nodes, steps=steps, bars=bars, **variables)


OF_8B = ("model=llama3_1_8b", "gpu=mi300x")


def over_ssh(person: Person, config: Path, engine: str, *words: str | Path) -> list[str | Path]:
    where = ["--cluster", person.cluster.cluster_json(), "--on", "ssh", "--engine", engine]
    out = [] if "--out" in words else ["--out", person.out]
    return ["run", config, *where, *out, *words]


def steps_of(out: Path) -> list[int | None]:
    return [process["last_step"] for process in json.loads((out / "status.json").read_text())["processes"]]


def nothing_is_left(cluster: Cluster) -> bool:
    return not any(node.processes(text) for node in cluster.nodes for text in STARTED)


def program(node: Node) -> int:
    """The number of MaxText's process on a node, in its container."""
    (pid,) = [process.pid for process in node.processes("MaxText/train.py") if process.argv[1] == "MaxText/train.py"]
    return pid


def environment(node: Node, pid: int) -> dict[str, str]:
    pairs = node.path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def writers(node: Node, file: str) -> list[int]:
    """The processes of a node that have a file open."""
    told = node.run(["bash", "-c", 'find /proc/[0-9]*/fd -lname "$1" 2>/dev/null || true', "bash", f"*/{file}"])
    return [int(line.split("/")[2]) for line in told.stdout.split()]


@pytest.fixture
def make_person(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Callable[..., Person]:
    def make(nodes: int, **options: Any) -> Person:
        person = Person(make_cluster(nodes, **options), tmp_path)
        for node in person.cluster.nodes:
            install(node)
        return person

    return make


@pytest.fixture
def make_user(make_slurm: Callable[..., Slurm], tmp_path: Path) -> Callable[..., SlurmUser]:
    def make(nodes: int, **options: Any) -> SlurmUser:
        user = SlurmUser(make_slurm(nodes, **options), tmp_path)
        for node in user.cluster.nodes[:nodes]:
            install(node)
        return user

    return make


def test_maxtext_in_containers_meets_its_targets_or_fails_by_them(make_person: Callable[..., Person]) -> None:
    person = make_person(3)
    code, told = person.run(*over_ssh(person, maxtext(person, nodes=3), "maxtext", "--container", "podman"))
    assert code == 0, told
    assert "PASS" in told
    assert steps_of(person.out) == [19, 19, 19]
    assert nothing_is_left(person.cluster)
    for rank, node in enumerate(person.cluster.nodes):
        log = f"nodes/{node.address}/rank{rank}.log"
        text = (person.out / log).read_text()
        assert "left out of XLA_FLAGS, which this jaxlib does not know: --xla_gpu_graph_level=0\n" in text
        assert [text.count(f"completed step: {step}, ") for step in range(20)] == [1] * 20
        assert text == node.path(f"/var/tmp/seatrial-root/run/{log}").read_text()
    again = person.home / "again"
    config = maxtext(person, nodes=3, tflops=500)
    code, told = person.run(*over_ssh(person, config, "maxtext", "--container", "podman", "--out", again))
    assert code == 1, told
    assert "500" in told


def test_the_flags_of_an_image_are_those_of_its_own_jaxlib(make_person: Callable[..., Person]) -> None:
    """The image's jaxlib knows flags that the launcher's does not, and the reverse."""
    person = make_person(2)
    library = person.cluster.shared / "jaxlib"
    library.mkdir()
    (library / "__init__.py").touch()
    (library / "xla_client.py").write_text(
        "import os, sys\n"
        "def make_cpu_client():\n"
        "    given = [word.partition('=')[0] for word in os.environ['XLA_FLAGS'].split()]\n"
        "    unknown = [word for word in given if word[2:] in os.environ['STAND_IN_UNKNOWN'].split()]\n"
        "    if unknown:\n"
        "        sys.exit('F1 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: ' + ' '.join(unknown))\n"
    )
    unknown = ["xla_gpu_enable_cublaslt", "xla_gpu_autotune_level"]
    config = maxtext(person, nodes=2, STAND_IN_UNKNOWN=" ".join(unknown), PYTHONPATH="/image")
    document = json.loads(config.read_text())
    document["config"]["container_config"]["volume_dict"][str(library)] = "/image/jaxlib"
    config.write_text(json.dumps(document))
    code, told = person.run(*over_ssh(person, config, "maxtext", "--container", "podman"))
    assert code == 0, told
    for rank, node in enumerate(person.cluster.nodes):
        text = (person.out / f"nodes/{node.address}/rank{rank}.log").read_text()
        assert "does not know: --xla_gpu_enable_cublaslt=True --xla_gpu_autotune_level=4\n" in text


def test_a_run_of_maxtext_is_found_again_read_and_stopped(make_person: Callable[..., Person]) -> None:
    """Its secret is seen nowhere meanwhile, its log has one writer, and its container the host's library."""
    person = make_person(2)
    config = maxtext(person, nodes=2, steps=1500)  # of 0.05 s, however fast the machine is
    with Lookout(person.cluster.nodes, CANARY) as lookout:
        first = person.start(*over_ssh(person, config, "maxtext", "--container", "podman"))
        person.wait_for_steps(first, 3)
    assert lookout.found == []
    assert {"podman", "conmon", "sh", "python3"} <= lookout.programs
    for rank, node in enumerate(person.cluster.nodes):
        found = environment(node, program(node))
        assert (found["HF_TOKEN"], found["NODE_RANK"], found["NNODES"]) == (CANARY, str(rank), "2")
        assert found["JAX_COORDINATOR_IP"] == person.cluster.nodes[0].address
        (name,) = node.run(["podman", "ps", "--format", "{{.Names}}"]).stdout.split()
        assert CANARY not in node.run(["podman", "inspect", name]).stdout
        assert node.run(["grep", "-rslF", CANARY, "/var/tmp", "/run", "/dev/shm"], check=False).stdout == ""
        assert node.run(["podman", "exec", name, "cat", PLACE]).stdout == f"of {node.name}"
        (writer,) = writers(node, f"rank{rank}.log")
        assert writer in [process.pid for process in node.processes("launch/agent.py")]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = person.start("attach", person.out)
    assert second.stdout is not None
    assert any("/1500" in line for line in second.stdout)  # as far as it had to be read
    code, told = person.run("logs", person.out, "--rank", "1")
    assert (code, "completed step: 1, " in told) == (0, True)
    code, told = person.run("stop", person.out)
    assert code == 0, told
    told, _ = second.communicate(timeout=60)
    assert second.returncode == 130, told
    assert nothing_is_left(person.cluster)
    kept = [path for path in person.out.rglob("*") if path.is_file() and not path.name.startswith("config.")]
    assert not any(CANARY.encode() in path.read_bytes() for path in kept)


def test_megatrons_script_in_containers(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    config = megatron(person, nodes=2)
    code, told = person.run(*over_ssh(person, config, "megatron", "--container", "podman", *OF_8B))
    assert code == 0, told
    assert "PASS" in told
    assert steps_of(person.out) == [None, 19]  # only the last node's process tells
    for node in person.cluster.nodes:
        assert (
            "throughput per GPU"
            in node.path(f"/var/tmp/seatrial-root/run/nodes/{node.address}/megatron/output_perf.log").read_text()
        )
    again = person.home / "again"
    config = megatron(person, nodes=2, tflops=2000)
    code, told = person.run(*over_ssh(person, config, "megatron", "--container", "podman", *OF_8B, "--out", again))
    assert code == 1, told
    assert nothing_is_left(person.cluster)


def own_torchrun(node: Node) -> None:
    """The stand-in, where there is no container: torch's own takes its time."""
    path = node.path(USER_HOME / "bin" / "torchrun")
    path.write_bytes((PROGRAMS / "bin/torchrun").read_bytes())
    path.chmod(0o755)


def nvidia(node: Node) -> None:
    """Eight devices of NVIDIA's."""
    tool = node.path(USER_HOME / "bin" / "nvidia-smi")
    rows = (f"{index}, NVIDIA H100 80GB HBM3, 81559, 512, 0, 560.35.03" for index in range(8))
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    tool.chmod(0o755)


def plain_megatron(person: Person) -> Path:
    """A command of torchrun's for two hosts, whose variables say where Megatron-LM is."""
    text = (PROJECT / "configs/megatron/megatron-llama2-70b-h100.sh").read_text().partition("DATA_ARGS=")[0]
    for before, after in {
        "export NCCL_IB_SL=1": f"export MEGATRON_ROOT={PROGRAMS / 'megatron'}\nexport STAND_IN_SECONDS=100",
        "NNODES=8": "NNODES=2", "--train-iters 1000": "--train-iters 20",
    }.items():  # fmt: skip
        assert before in text
        text = text.replace(before, after)
    start = 'torchrun "${LAUNCHER[@]}" pretrain_gpt.py "${MODEL[@]}" "${PARALLELISM[@]}" $TRAINING --mock-data'
    path = person.home / "pretrain.sh"
    path.write_text(f"{text}{start} --eval-iters 0 --log-interval 1\n")
    return path


H100 = "topology.device=h100-sxm"


def test_torchrun_itself_on_hosts_that_have_the_program(make_person: Callable[..., Person]) -> None:
    person = make_person(2, containers=False)
    for node in person.cluster.nodes:
        nvidia(node)
    code, told = person.run(*over_ssh(person, plain_megatron(person), "megatron", H100))
    assert code == 0, told
    assert steps_of(person.out) == [None, 19]
    assert nothing_is_left(person.cluster)


@pytest.mark.parametrize(
    ("engine", "configured", "words", "last"),
    [
        ("maxtext", maxtext, (), "RESOURCE_EXHAUSTED: Out of memory"),
        ("megatron", megatron, OF_8B, "HIP out of memory"),
    ],
)
def test_who_runs_out_of_memory_is_named(
    make_person: Callable[..., Person], engine: str, configured: Callable[..., Path], words: Sequence[str], last: str
) -> None:
    person = make_person(2)
    config = configured(person, nodes=2, steps=ENDLESS, STAND_IN_FAILS_AT="5")
    code, told = person.run(*over_ssh(person, config, engine, "--container", "podman", *words))
    assert code == 4, told
    assert last in " ".join((person.out / "verdict.json").read_text().split())
    faults = [json.loads(line) for line in (person.out / "events-launcher.jsonl").read_text().splitlines()]
    assert faults[0]["where"] == f"rank 1 on {person.cluster.nodes[1].address}"
    assert nothing_is_left(person.cluster)
    assert all(node.run(["podman", "ps", "--all", "--quiet"]).stdout == "" for node in person.cluster.nodes)


def test_hosts_without_the_cards_that_are_named_are_told(make_person: Callable[..., Person]) -> None:
    person = make_person(3)
    first, second, third = person.cluster.nodes
    first.run(["rm", "-r", "/run/class/infiniband/bnxt_re1"])
    second.path("/run/class/infiniband/bnxt_re0/ports/1/state").write_text("1: DOWN\n")
    third.path("/run/class/infiniband/bnxt_re1/ports/1/gids/3").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    third.path(f"/var/tmp/{LIBRARY}").unlink()
    code, told = person.run(*over_ssh(person, maxtext(person, nodes=3), "maxtext", "--container", "podman"))
    words = " ".join(told.split())
    assert code == 3, told
    assert f"{first.address} why: NCCL_IB_HCA names bnxt_re1, which the host does not have" in words
    assert f"{second.address} why: port 1 of bnxt_re0 is DOWN" in words
    assert f"{third.address} why: bnxt_re1, port 1 has no address at GID index 3" in words
    assert f"{third.address} why: /var/tmp/{LIBRARY}, which the container uses, does not exist" in words


def on_slurm(user: SlurmUser, config: Path, engine: str, *words: str | Path) -> list[str | Path]:
    return ["run", config, "--on", "slurm", "--engine", engine, "--out", user.out, *words]


@pytest.mark.parametrize("container", ["podman", None])
@pytest.mark.parametrize("engine", ["maxtext", "megatron"])
def test_under_slurm(
    make_user: Callable[..., SlurmUser], monkeypatch: pytest.MonkeyPatch, engine: str, container: str | None
) -> None:
    user = make_user(2, containers=container is not None)
    monkeypatch.setenv("STAND_IN_SECONDS", SECONDS)
    words: list[str] = ["--container", container] if container else []
    if engine == "maxtext":
        config = maxtext(user, nodes=2, MAXTEXT_ROOT=str(PROGRAMS / "maxtext"))
    else:
        config = megatron(user, nodes=2, MEGATRON_ROOT=str(PROGRAMS / "megatron"))
        words += [*OF_8B]
        for node in user.cluster.nodes:
            own_torchrun(node)
    code, told = user.run(*on_slurm(user, config, engine, *words))
    assert code == 0, told
    assert "PASS" in told
    assert steps_of(user.out)[-1] == 19
    assert nothing_is_left(user.cluster)


def test_torchrun_under_slurm(make_user: Callable[..., SlurmUser]) -> None:
    user = make_user(2, containers=False)
    for node in user.cluster.nodes:
        own_torchrun(node)
    code, told = user.run(*on_slurm(user, plain_megatron(user), "megatron", H100))
    assert code == 0, told
    assert steps_of(user.out) == [None, 19]
    assert nothing_is_left(user.cluster)
