"""Runs under Slurm as far as no Slurm is needed: stand-ins for hosts, what is asked, what the run directory tells."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seatrial.command import Secret
from seatrial.errors import InputError
from seatrial.launch.slurm import RECORD, SCRIPT, SlurmNode, _lay_out, find, site, wished
from seatrial.launch.slurm_queue import Job
from seatrial.launch.targets import scripts
from seatrial.launch.where import Where
from seatrial.node.slurm_node import STAND_IN, fill
from seatrial.plan import Machine, Plan, PlanRequest, make_plan
from seatrial.spec import Batch, Container, MeshShape, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS

RUN_DIR = Path("/shared/runs/it")
SPEC = RunSpec(
    name="it",
    dialect="native",
    model=MODELS["llama3.2-1b"],
    batch=Batch(sequence_length=2048, micro_batch_size=1, global_batch_size=24),
    steps=10,
    topology=Topology(num_nodes=3, devices_per_node=8, device="h100"),
    parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(data=3)),
    container=Container(image="jax:1", volumes=(("/data", "/data"),), environment={"HF_TOKEN": "canary", "A": "1"}),
)


def plan(runtime: str | None) -> Plan:
    there = site(Where(on="slurm", container=runtime), SPEC, RUN_DIR)
    return make_plan(
        PlanRequest(spec=SPEC, run_dir=RUN_DIR, machine=Machine(cores=2, memory_bytes=8 << 30), on="slurm", site=there)
    )


@pytest.mark.parametrize("runtime", [None, "podman", "pyxis"])
def test_a_plan_has_stand_ins_for_hosts_which_a_job_fills_in(runtime: str | None) -> None:
    made = plan(runtime)
    filled = fill(
        json.loads(json.dumps(made.as_dict())), lambda what, n: "10.0.0.7" if what == "address" else f"gpu{n}"
    )
    assert [process["host"] for process in filled["processes"]] == ["gpu0", "gpu1", "gpu2"]
    assert filled["processes"][2]["log"] == "nodes/gpu2/rank2.log"
    argv = filled["processes"][2]["argv"]
    assert argv[argv.index("--coordinator") + 1] == "10.0.0.7:12355"
    assert not STAND_IN.search(json.dumps(filled))


def test_pyxis_starts_the_agent_in_the_container_and_the_agent_sets_its_variables() -> None:
    made = plan("pyxis")
    assert made.container is not None
    assert made.container.volumes == (("/data", "/data"),)
    for process in made.processes:
        assert process.command.argv[0] == "python3"
        assert process.command.environment["A"] == "1"
        assert isinstance(process.command.environment["HF_TOKEN"], Secret)
    assert plan("podman").container is None


@pytest.mark.parametrize(("runtime", "secrets"), [(None, 0), ("podman", 1), ("pyxis", 1)])
def test_the_script_that_a_plan_shows_is_the_one_that_is_submitted(
    runtime: str | None, secrets: int, tmp_path: Path
) -> None:
    where = Where(on="slurm", slurm=("partition=zzz",), container=runtime)
    made = plan(runtime)
    (shown,) = scripts(where, made, tmp_path).values()
    jobs: list[Any] = []
    for processes in made.hosts.values():
        told = [{"environment": dict(process.command.environment), "stdin": None} for process in processes]
        jobs.append(json.loads(json.dumps({"processes": told}, default=str)))
    (tmp_path / "launch").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    hidden: dict[str, str] = {}
    _lay_out(made, tmp_path, jobs, [], wish=wished(where), hidden=hidden)
    submitted = (tmp_path / SCRIPT).read_text()
    assert [line for line in shown.splitlines() if not line.startswith("nonce=")] == [
        line for line in submitted.splitlines() if not line.startswith("nonce=")
    ]
    assert "#SBATCH --partition=zzz" in shown
    assert ("--container-image=" in shown) == (runtime == "pyxis")
    assert len(hidden) == secrets
    assert "canary" not in shown


def test_a_rehearsal_may_have_fewer_nodes_but_a_run_may_not() -> None:
    there = site(Where(on="slurm", slurm=("nodes=2",)), SPEC, RUN_DIR)
    with pytest.raises(InputError, match="3 nodes"):
        make_plan(
            PlanRequest(
                spec=SPEC, run_dir=RUN_DIR, machine=Machine(cores=2, memory_bytes=8 << 30), on="slurm", site=there
            )
        )
    few = replace(SPEC, topology=Topology(num_nodes=2, devices_per_node=8, device="h100"))
    assert len(site(Where(on="slurm"), few, RUN_DIR).cluster.hosts) == 2


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172800)])
def test_durations(text: str, seconds: float) -> None:
    assert wished(Where(on="slurm", queue_deadline=text)).queue_seconds == seconds


@pytest.mark.parametrize("text", ["soon", "-5", "5 minutes", "1e3", "m"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(InputError) as caught:
        wished(Where(on="slurm", queue_deadline=text))
    assert caught.value.problems[0].path == "--queue-deadline"


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


SUBMITTED = {"v": 1, "job": 7, "nodes": 2, "options": {"partition": "debug"}, "log": None}


@pytest.mark.parametrize(
    "record",
    [None, "", "{", "7", [1], {}, SUBMITTED | {"job": "7; id"}, SUBMITTED | {"nodes": None}],
    ids=str,
)
def test_a_run_directory_of_another_kind_is_told(tmp_path: Path, record: Any) -> None:
    if record is not None:
        write(tmp_path / RECORD, record)
    with pytest.raises(InputError, match="not the directory of a run under Slurm"):
        find(tmp_path)


def test_a_job_that_was_submitted_is_found(tmp_path: Path) -> None:
    write(tmp_path / RECORD, SUBMITTED)
    assert asdict(find(tmp_path)) == SUBMITTED


def test_a_host_is_known_when_its_agent_says_so_and_another_one_after_a_restart(tmp_path: Path) -> None:
    watch = SimpleNamespace(job=Job(state="RUNNING"), over=lambda: False)
    node = SlurmNode(0, tmp_path, cast(Any, watch))
    assert (node.name, node.status(), node.silent_seconds()) == ("slurm-node-0.invalid", None, 0.0)
    write(
        tmp_path / "launch/slurm/node-0.json",
        {"host": "gpu7", "hosts": ["gpu7"], "address": "127.0.0.1", "restarts": 0},
    )
    assert (node.name, node.status()) == ("slurm-node-0.invalid", None)
    first, second = ({"state": state, "stop_reason": None, "processes": []} for state in ("running", "stopping"))
    write(tmp_path / "nodes/gpu7/status.json", first)
    assert node.status() == first
    assert node.name == "gpu7"
    write(tmp_path / "nodes/gpu7/status.json", '{"state": "run')  # as a network file system may show it for a moment
    assert node.status() == first
    watch.job = Job(state="PENDING", restarts=1)
    assert node.status() is None  # what was there is over
    write(
        tmp_path / "launch/slurm/node-0.json",
        {"host": "gpu8", "hosts": ["gpu8"], "address": "127.0.0.1", "restarts": 1},
    )
    write(tmp_path / "nodes/gpu8/status.json", second)
    assert node.status() == second
    node.stop(now=False)
    assert (tmp_path / "nodes/gpu8/stop").exists()


@pytest.mark.parametrize(("state", "cancels"), [("starting", 1), ("running", 1), ("exited", 0), ("unstartable", 0)])
def test_an_agent_whose_processes_have_ended_may_clear_away_in_its_own_time(
    tmp_path: Path, state: str, cancels: int
) -> None:
    cancelled: list[int] = []
    watch = SimpleNamespace(job=Job(state="RUNNING"), over=lambda: False, cancel=lambda: cancelled.append(7))
    place = {"host": "gpu7", "hosts": ["gpu7"], "address": "127.0.0.1", "restarts": 0}
    write(tmp_path / "launch/slurm/node-0.json", place)
    unknown = dict.fromkeys(("exit_code", "signal", "started", "ended", "last_step", "sentence"))
    process = {**unknown, "rank": 0, "stopped": False, "suspended": False, "last_line": "", "lost_bytes": 0}
    status = {"state": "stopping", "stop_reason": None, "processes": [{**process, "state": state}]}
    write(tmp_path / "nodes/gpu7/status.json", status)
    node = SlurmNode(0, tmp_path, cast(Any, watch))
    assert node.status() == status
    node.stop(now=True)
    assert len(cancelled) == cancels
