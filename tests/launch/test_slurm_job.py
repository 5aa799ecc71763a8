"""The script of a job: what it is for three kinds of runs, and that no value becomes more than a value in it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import InputError
from seatrial.launch.slurm_job import NOT_SHARED, OPTIONS, Script, enroot_image, options, outside, render, submission
from seatrial.spec import Container

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
ROOT = PurePosixPath("/shared/runs/llama-1")
IMAGE = Container(
    image="ghcr.io/nvidia/jax:maxtext",
    devices=("/dev/infiniband",),
    volumes=(("/data", "/data"), ("/home/alice/cache", "/cache")),
    environment={"NCCL_DEBUG": "INFO"},
)
MANY = [
    *("partition=batch", "account=ml", "qos=high", "time=1:00:00", "gpus-per-node=8", "exclude=node[07,11-12]"),
    *("reservation=acceptance", "constraint=h100&ib", "signal=TERM@120", "requeue=yes"),
]
SCRIPTS = {
    "bare": Script(name="llama3.1-70b", root=ROOT, nonce="6e6f6e6365", nodes=3),
    "podman": Script(
        name="llama3.1-70b",
        root=ROOT,
        nonce="6e6f6e6365",
        nodes=64,
        options=options(MANY),
        secrets=("SEATRIAL_SECRET_0",),
    ),
    "pyxis": Script(
        name="llama3.1-70b", root=ROOT, nonce="6e6f6e6365", nodes=2, container=IMAGE, secrets=("SEATRIAL_SECRET_0",)
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_golden_script(name: str) -> None:
    path, text = GOLDEN / f"{name}.sh", render(SCRIPTS[name])
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("there", "mount"),
    [("/b", "/a:/b"), ("/b:ro", "/a:/b:ro"), ("/b:z,ro", "/a:/b:ro"), ("/b:rw", "/a:/b"), ("/b:Z", "/a:/b")],
)
def test_of_a_mounts_options_pyxis_gets_that_it_is_only_read(there: str, mount: str) -> None:
    container = Container(image="jax:1", volumes=(("/a", there),))
    text = render(Script(name="run", root=ROOT, nonce="00", nodes=1, container=container))
    assert f"--container-mounts={ROOT}:{ROOT},{mount} " in text


@given(st.sampled_from(sorted(OPTIONS)), st.text())
def test_what_is_accepted_stays_one_word_of_one_line(key: str, value: str) -> None:
    try:
        found = options([f"{key}={value}"])
    except InputError:
        return
    script = Script(name="run", root=ROOT, nonce="00", nodes=1)
    before = render(script).splitlines()
    after = render(Script(name="run", root=ROOT, nonce="00", nodes=1, options=found)).splitlines()
    assert len(after) - len(before) in (0, 1)
    added = [line for line in after if line not in before]
    assert all(line.startswith("#SBATCH --") and len(line.split()) == 2 for line in added)
    assert not any(set(line) & set("'\"\\`$;") for line in added)


@pytest.mark.parametrize(
    "word",
    [
        "partition=batch\n#SBATCH --uid=0", "partition=a b", "account=$(id)", "time=soon", "time=", "time", "qos=-x",
        "exclude=node1;ls", "constraint=`id`", "gpus-per-node=all", "signal=TERM@never", "partition=a'b", "mem=8 G",
    ],
)  # fmt: skip
def test_what_is_no_value_is_told(word: str) -> None:
    with pytest.raises(InputError) as caught:
        options([word])
    assert caught.value.problems[0].path == "--slurm"


def test_an_unknown_option_is_told_with_what_it_may_have_meant() -> None:
    with pytest.raises(InputError) as caught:
        options(["partitoin=batch"])
    assert "partition" in caught.value.problems[0].fix
    assert options(["gpus_per_node=8", "--exclude=node1"]) == {"gpus-per-node": "8", "exclude": "node1"}


@pytest.mark.parametrize("root", ["/shared/my runs", "/shared/%j", "/shared/a'b", "/shared/$HOME", "relative"])
def test_a_folder_that_slurm_would_read_otherwise_is_refused(root: str) -> None:
    with pytest.raises(InputError):
        render(Script(name="run", root=PurePosixPath(root), nonce="00", nodes=1))


@given(st.text())
def test_a_run_of_any_name_is_a_job(name: str) -> None:
    lines = render(Script(name=name, root=ROOT, nonce="00", nodes=1)).splitlines()
    (line,) = [line for line in lines if line.startswith("#SBATCH --job-name=")]
    assert len(line.split()) == 2
    assert line.isascii()


@pytest.mark.parametrize(
    ("image", "enroot"),
    [
        ("rocm/jax:1", "rocm/jax:1"),
        ("docker://rocm/jax:1", "rocm/jax:1"),
        ("ghcr.io/nvidia/jax:1", "ghcr.io#nvidia/jax:1"),
        ("localhost:5000/a/b", "localhost:5000#a/b"),
        ("nvcr.io#nvidia/jax", "nvcr.io#nvidia/jax"),
        ("images/jax.sqsh", "./images/jax.sqsh"),
        ("/images/jax.sqsh", "/images/jax.sqsh"),
    ],
)
def test_images_are_named_as_enroot_does(image: str, enroot: str) -> None:
    assert enroot_image(image) == enroot


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path: Path) -> None:
    text = render(Script(name="run", root=PurePosixPath(tmp_path), nonce="00", nodes=1))
    (assignment,) = [line for line in text.splitlines() if line.startswith("on_each=")]
    (on_each,) = shlex.split(assignment.removeprefix("on_each="))
    done = subprocess.run(["sh", "-c", on_each, "seatrial", str(tmp_path), "00"], capture_output=True, text=True)
    assert done.returncode == NOT_SHARED
    assert f"does not see {tmp_path}" in done.stderr


def test_sbatch_gets_secrets_by_their_names_and_each_option_where_no_variable_wins_over_it() -> None:
    script = SCRIPTS["podman"]
    program, parsable, export, *flags, path = submission(Path("/shared/job.sh"), script)
    assert (program, parsable, export) == ("sbatch", "--parsable", "--export=ALL,SEATRIAL_SECRET_0")
    assert path == "/shared/job.sh"
    assert [f"#SBATCH {flag}" for flag in flags] == [x for x in render(script).splitlines() if x.startswith("#SBATCH")]
    assert {"--time=1:00:00", "--exclusive", "--requeue", "--signal=B:TERM@120"} <= set(flags)


def test_a_job_inherits_nothing_of_the_job_in_which_it_is_submitted() -> None:
    shell = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "ml", "CUDA_HOME": "/cuda"}
    of_a_job = {"SLURM_GPUS_PER_NODE": "4", "SLURM_RESTART_COUNT": "1", "SLURM_CONF_X": "", "SRUN_CPUS_PER_TASK": "2"}
    devices = {"SBATCH_GPUS_PER_NODE": "4", "SBATCH_GPUS": "4", "SBATCH_GRES": "gpu:4"}
    variables = {**shell, **of_a_job, **devices}
    assert outside(variables, SCRIPTS["bare"]) == {**shell, **devices}
    assert outside(variables, SCRIPTS["podman"]) == shell
