"""The container around a command: what becomes the run's own, and that nothing of it is lost without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seatrial.dialects import load
from seatrial.dialects.containers import around
from seatrial.source import of_words
from seatrial.spec import Container, Resolved
from tests.helpers.command_line import seatrial

CANARY = "canary-7c1e"
COMMANDS = {
    "maxtext": "python3 -m MaxText.train MaxText/configs/base.yml steps=5 model_name=llama3-8b",
    "megatron": "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 128 --max-position-embeddings 256 --micro-batch-size 2 --train-iters 100 --lr 1e-3 "
    "--tokenizer-type NullTokenizer --vocab-size 999 --mock-data",
}

# What stands before the program → the run's container.
STARTED_IN: dict[str, dict[str, Any]] = {
    "docker run --rm -it --network=host --ipc host --ulimit memlock=-1 -v /data:/data:ro -v/a:/b --shm-size 64G "
    "--device=/dev/kfd --device /dev/dri --group-add video --cap-add=SYS_PTRACE --security-opt seccomp=unconfined "
    "--privileged --pull always --name mine ghcr.io/x/jax:1": {
        "image": "ghcr.io/x/jax:1", "volumes": (("/data", "/data:ro"), ("/a", "/b")), "shm_size": "64G",
        "devices": ("/dev/kfd", "/dev/dri"), "group_add": ("video",), "cap_add": ("SYS_PTRACE",),
        "security_opt": ("seccomp=unconfined",), "privileged": True, "pull": "always", "name": "mine",
    },
    "sudo podman container run --mount type=bind,src=/a,dst=/b,readonly --volume=/x/train.py:/w/train.py img": {
        "image": "img", "volumes": (("/a", "/b:ro"), ("/x/train.py", "/w/train.py")),
    },
    "docker run --privileged=false --rm=true img": {"image": "img"},
    "srun -N 1 --container-image=nvcr.io#nvidia/jax:24.05 --container-mounts=/d,/e:/f:ro --no-container-mount-home": {
        "image": "nvcr.io/nvidia/jax:24.05", "volumes": (("/d", "/d"), ("/e", "/f:ro")),
    },
    "srun --container-image '$oauthtoken@nvcr.io#nvidia/jax' --container-mounts /d:/e": {
        "image": "nvcr.io/nvidia/jax", "volumes": (("/d", "/e"),),
    },
    "apptainer exec --cleanenv -B /d,/e:/f:ro --add-caps CAP_A,CAP_B docker://x/jax:2": {
        "image": "x/jax:2", "volumes": (("/d", "/d"), ("/e", "/f:ro")), "cap_add": ("CAP_A", "CAP_B"),
    },
    "singularity run --bind=/d:/e docker://x/jax": {"image": "x/jax", "volumes": (("/d", "/e"),)},
    "enroot start --rw -m /a:/b jax.sqsh": {"image": "jax.sqsh", "volumes": (("/a", "/b"),)},
}  # fmt: skip


@pytest.fixture(params=list(COMMANDS))
def command(request: pytest.FixtureRequest) -> str:
    return COMMANDS[request.param]


def read(before: str, command: str, folder: Path) -> Resolved:
    file = folder / "run.sh"
    file.write_text(f"{before} \\\n  {command}\n")
    return load(file, (), action="plan")


def findings(resolved: Resolved) -> set[tuple[str, str, str, str]]:
    """Those about the line before the program: path, severity, code and place."""
    marked = [(p, p.mark) for p in resolved.problems if p.mark is not None]
    return {(p.path, p.severity, p.code, f"{m.line}:{m.column}") for p, m in marked if m.line == 1}


@pytest.mark.parametrize("before", list(STARTED_IN))
def test_what_a_command_is_started_in_is_the_runs_container(before: str, command: str, tmp_path: Path) -> None:
    resolved = read(before, command, tmp_path)
    assert resolved.spec is not None
    assert resolved.spec.container == Container(**STARTED_IN[before])
    assert resolved.spec.execution.environment == {}
    assert {code for _, _, code, _ in findings(resolved)} - {"image-file"} == {"container"}
    assert (origin := resolved.origin("container.image")).kind == "file"
    assert origin.mark is not None
    assert origin.mark.line == 1
    assert resolved.origin("container.group_add").mark is not None or "--group-add" not in before


# What no container of a run has → the finding: its path, severity, code and place.
_WARNED: dict[str, tuple[str, str, str, str]] = {
    "docker run --gpus all img": ("--gpus", "warning", "no-effect", "1:19"),
    "docker run --gpus=all img": ("--gpus", "warning", "no-effect", "1:12"),
    "docker run -w /w img": ("-w", "warning", "no-effect", "1:15"),
    "docker run -itw/w img": ("-w", "warning", "no-effect", "1:12"),
    "docker run --network bridge img": ("--network", "warning", "no-effect", "1:22"),
    "podman run --memory 64g img": ("--memory", "warning", "no-effect", "1:21"),
    "docker run --env-file e.env img": ("--env-file", "warning", "no-effect", "1:23"),
    "docker run --hostname h img": ("--hostname", "info", "no-effect", "1:23"),
    "docker run --volumee=/a:/b img": ("--volumee", "warning", "unknown-option", "1:12"),
    "docker run -v /a img": ("-v", "warning", "no-effect", "1:15"),
    "docker run --pull newer img": ("--pull", "warning", "no-effect", "1:19"),
    "docker --context far run img": ("--context", "warning", "no-effect", "1:8"),
    "srun --container-image=img --container-workdir=/w": ("--container-workdir", "warning", "no-effect", "1:28"),
    "srun --container-image=img --container-frob=1": ("--container-frob", "warning", "unknown-option", "1:28"),
    "apptainer exec --nv docker://img": ("--nv", "warning", "no-effect", "1:16"),
    "apptainer exec img.sif": ("apptainer IMAGE", "warning", "image-file", "1:16"),
    "srun --container-image=a docker run img": ("docker IMAGE", "warning", "contradiction", "1:37"),
}
_NOT_KNOWN: dict[str, tuple[str, str, str, str]] = {
    "docker exec -it there": ("docker exec", "info", "container-not-known", "1:8"),
    "docker compose run trainer": ("docker compose run", "info", "container-not-known", "1:16"),
    "kubectl exec pod --": ("kubectl exec", "info", "container-not-known", "1:9"),
    "enroot start there": ("there", "warning", "container-not-known", "1:14"),
    "apptainer exec instance://there": ("instance://there", "warning", "container-not-known", "1:16"),
    "docker run $IMAGE": ("docker IMAGE", "warning", "container-not-known", "1:12"),
}


@pytest.mark.parametrize("before", [*_WARNED, *_NOT_KNOWN])
def test_what_no_container_of_a_run_has_is_reported_at_its_place(before: str, command: str, tmp_path: Path) -> None:
    resolved = read(before, command, tmp_path)
    assert (_WARNED | _NOT_KNOWN)[before] in findings(resolved)
    assert resolved.spec is not None
    assert (resolved.spec.container is None) == (before in _NOT_KNOWN)


def test_a_mount_of_a_variable_that_is_not_set_is_left_out(command: str, tmp_path: Path) -> None:
    resolved = read("srun --container-image=img --container-mounts=/a:/b,:/c", command, tmp_path)
    assert resolved.spec is not None
    assert resolved.spec.container is not None
    assert resolved.spec.container.volumes == (("/a", "/b"),)
    assert [p.path for p in resolved.problems if p.code == "empty-mount"] == ["--container-mounts"]


def test_a_misspelt_option_gets_its_likely_name(tmp_path: Path) -> None:
    resolved = read("docker run --volumee=/a:/b img", COMMANDS["maxtext"], tmp_path)
    (problem,) = (p for p in resolved.problems if p.code == "unknown-option")
    assert problem.fix.startswith("did you mean --volume")


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ("docker run -e A=1 --env=B=2 -eC=3 img", {"A": "1", "B": "2", "C": "3"}),
        ("docker run -v /x/train.py:/w/train.py -e A=1 img", {"A": "1"}),
        ("A=1 podman run --env A img", {"A": "1"}),
        ("apptainer exec --env A=1,B=2 docker://img", {"A": "1", "B": "2"}),
        ("enroot start -e A=1 img.sqsh", {"A": "1"}),
        ("A=1 srun --container-image=img --container-env=A", {"A": "1"}),
    ],
)
def test_its_variables_reach_every_process(before: str, given: dict[str, str], command: str, tmp_path: Path) -> None:
    resolved = read(before, command, tmp_path)
    assert resolved.spec is not None
    assert resolved.spec.execution.environment == given
    assert resolved.spec.container is not None


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("given", ["-e HF_TOKEN={}", "--env=HF_TOKEN={}", "-eWANDB_API_KEY={}"])
def test_image_and_mounts_are_in_the_plan_and_secrets_are_not(
    given: str, output: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(f"docker run {given.format(CANARY)} -v /here:/there ghcr.io/x/jax:1 {command}\n")
    (tmp_path / "cluster.yaml").write_text("hosts: [a]\n")
    where = ("--on", "ssh", "--cluster", "cluster.yaml", "--container", "docker")
    done = seatrial("plan", "run.sh", *where, "--all", "--format", output, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ghcr.io/x/jax:1" in done.stdout
    assert "/there" in done.stdout
    assert CANARY not in done.stdout + done.stderr
    if output == "json":
        (process,) = json.loads(done.stdout)["plan"]["processes"]
        assert ("--volume", "/here:/there") in list(zip(process["argv"], process["argv"][1:], strict=False))


def test_a_container_stays_when_a_command_is_converted(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"docker run -v /a:/b img {command}\n")
    assert seatrial("convert", "run.sh", "--to", "native", "--out", "run.yaml", cwd=tmp_path).returncode == 0
    spec = load(tmp_path / "run.yaml", (), action="plan").spec
    assert spec is not None
    assert spec.container == Container(image="img", volumes=(("/a", "/b"),))


@pytest.mark.parametrize(
    "words",
    [(), ("docker",), ("docker", "run"), ("docker", "run", "-v"), ("docker", "run", "-"), ("docker", "run", "--"),
     ("srun", "--container-image"), ("srun", "-J", "docker", "python3"), ("enroot", "start", "--"),
     ("docker", "rm", "x"), ("apptainer", "exec", "-B", "")],
)  # fmt: skip
def test_a_command_that_ends_early_has_no_container(words: tuple[str, ...]) -> None:
    argv = of_words(words, file="command line").root.members["argv"].items if words else []
    found = around(argv)
    assert (found.container, found.behind <= len(words)) == (None, True)
    missing = words in (("docker", "run", "-v"), ("srun", "--container-image"))
    assert [p.code for p in found.problems] == (["missing-value"] if missing else [])
