"""The JobSet of a plan, for each kind of run: that Kubernetes takes it, and that no value in it is more than one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.errors import InputError
from seatrial.launch.kubernetes.manifest import (
    Manifest,
    Object,
    about,
    as_yaml,
    belongings,
    gpus_of,
    host_name,
    jobset,
    name_of,
    quantity,
)
from seatrial.launch.kubernetes.options import options
from seatrial.launch.kubernetes.target import script_of, site
from seatrial.launch.where import Where
from seatrial.node.pod import RUN, unpacked
from seatrial.plan import Machine, Plan, PlanRequest, make_plan
from seatrial.spec import Batch, Container, MeshShape, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.kubernetes_api import serving

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
CRD = os.environ.get("SEATRIAL_JOBSET_CRD")  # the CRD's file of a checkout of JobSet
KUBERNETES = ("1.30", "1.37")
HOSTILE = "$(touch /tmp/executed)\n'\": {a: b} # \u202e ü\t"


def spec(device: str | None = "h100", nodes: int = 2, **changes: Any) -> RunSpec:
    return replace(
        RunSpec(
            name="llama3.1-70b",
            dialect="native",
            model=MODELS["llama3.2-1b"],
            batch=Batch(sequence_length=2048, micro_batch_size=1, global_batch_size=8 * nodes),
            steps=10,
            topology=Topology(num_nodes=nodes, devices_per_node=8, device=device),
            parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(data=nodes)),
            container=Container(image="ghcr.io/nvidia/jax:maxtext", environment={"NCCL_DEBUG": "INFO"}),
        ),
        **changes,
    )


def planned(run: RunSpec, *given: str) -> tuple[Plan, Where]:
    where = Where(on="kubernetes", kubernetes=given)
    machine = Machine(cores=2, memory_bytes=8 << 30)
    there = site(where, run, Path("/runs/it"))
    return make_plan(
        PlanRequest(spec=run, run_dir=Path("/runs/it"), machine=machine, on="kubernetes", site=there)
    ), where


CVS = Container(
    image="docker://rocm/jax-training:26.5",
    devices=("/dev/kfd", "/dev/dri", "/dev/infiniband"),
    volumes=(("/home/alice", "/home/alice"), ("/mnt/data", "/data:ro")),
    shm_size="256g",
    pull="missing",
    privileged=True,
    cap_add=("SYS_PTRACE", "IPC_LOCK"),
    security_opt=("seccomp=unconfined",),
    group_add=("video", "110"),
)
RUNS: dict[str, tuple[RunSpec, tuple[str, ...]]] = {
    "nvidia": (spec(), ("namespace=ml",)),
    "amd": (spec("mi300x", container=CVS), ()),
    "cpu": (spec(None, nodes=1), ("cpu=4", "memory=16Gi", "shm=1Gi", "time=90m", "ttl=1h")),
    "host-network": (spec(), ("host-network=yes", "runtime-class=nvidia", "priority-class=high")),
    "rdma": (spec(nodes=64), ("rdma=rdma/hca_shared_devices_a:8", "exclude=gpu-07,gpu-11.example.com")),
    "kueue": (
        spec(),
        ("queue=ml-team", "queue-priority=prod", "node-selector=cloud.google.com/gke-accelerator=nvidia-h100-80gb",
         "toleration=dedicated=ml:NoSchedule", "toleration=spot"),
    ),
    "volumes": (spec(), ("pvc=runs", "volume=datasets:/data:ro", "volume=cache:/cache", "service-account=trainer")),
    "secrets": (
        spec(container=Container(image="ghcr.io/nvidia/jax:maxtext", environment={"HF_TOKEN": "canary"})),
        ("secret=WANDB_API_KEY=wandb/api-key", "image-pull-secret=registry"),
    ),
    "hostile": (
        spec(name=HOSTILE, container=Container(image="x:1", environment={"A": HOSTILE, "API_KEY": HOSTILE},
                                               volumes=((f"/{HOSTILE}", f"/{HOSTILE}"),))),
        ("gpu=vendor.example/accelerator", "node-selector=on=yes", "node-selector=size=1e3"),
    ),
}  # fmt: skip


def manifest(name: str) -> Manifest:
    from seatrial.launch.kubernetes.target import manifest_of, wished

    run, given = RUNS[name]
    plan, where = planned(run, *given)
    made = manifest_of(plan, wished(where), where.python)
    fixed = name_of(run.name, "x7k2p")
    return replace(made, name=fixed, root=made.root.with_name(fixed))


def job_of(made: Object) -> Object:
    """The Job that the controller makes of the JobSet."""
    (each,) = made["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "it"}, "spec": each["template"]["spec"]}
    return json.loads(json.dumps(job))


@pytest.mark.parametrize("name", RUNS)
def test_golden_jobset(name: str) -> None:
    path, text = GOLDEN / f"{name}.yaml", as_yaml(jobset(manifest(name)))
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", RUNS)
def test_the_schemas_of_kubernetes_take_what_is_made(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    made = jobset(manifest(name))
    job = job_of(made)
    pod = {"apiVersion": "v1", "kind": "Pod", **job["spec"]["template"]}
    kept = belongings(manifest(name), {"jobs": []}, {"SEATRIAL_SECRET_0": HOSTILE}, {"uid": "1-2-3"})
    for each in (job, pod, *kept["items"]):
        kubernetes_validate.validate(each, version, strict=True)
    del pod["spec"]["containers"][0]["image"]
    pod["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):  # the schemas do say no
        kubernetes_validate.validate(pod, version, strict=True)


# What is used of JobSet v1alpha2: each field with its type.
_NAME: Object = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def _object(**properties: Object) -> Object:
    return {"type": "object", "properties": properties, "additionalProperties": False}


USED = _object(
    apiVersion={"type": "string"},
    kind={"type": "string"},
    metadata={"type": "object"},
    spec=_object(
        network=_object(
            enableDNSHostnames={"type": "boolean"}, publishNotReadyAddresses={"type": "boolean"}, subdomain=_NAME
        ),
        failurePolicy=_object(maxRestarts={"type": "integer"}),
        ttlSecondsAfterFinished={"type": "integer", "minimum": 0},
        replicatedJobs={
            "type": "array",
            "items": _object(name=_NAME, replicas={"type": "integer"}, template={"type": "object"}),
        },
    ),
)


@pytest.mark.parametrize("name", RUNS)
def test_of_jobset_only_its_own_fields_are_used(name: str) -> None:
    jsonschema.validate(jobset(manifest(name)), USED)


@cache
def crd() -> Object:
    """The schema in the CRD's file. Metadata is the API's own, and pods may have more than a name there."""
    document = yaml.load(Path(CRD or "").read_text(), Loader=yaml.CSafeLoader)
    schema: Object = closed(document["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    template = schema["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]["template"]
    template["properties"]["metadata"] = {"type": "object"}
    template["properties"]["spec"]["properties"]["template"]["properties"]["metadata"] = {"type": "object"}
    return schema


def closed(schema: Any) -> Any:
    """A CRD's schema that takes no field which it does not name, and an integer or a text where it says so."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items() if key not in ("description", "format", "default")}
    if made.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if "properties" in made and isinstance(made.get("type"), str):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.skipif(
    not CRD, reason="SEATRIAL_JOBSET_CRD names no file: jobset.x-k8s.io_jobsets.yaml of JobSet's sources"
)
@pytest.mark.parametrize("name", RUNS)
def test_jobsets_own_schema_takes_what_is_made(name: str) -> None:
    made = jobset(manifest(name))
    jsonschema.validate(made, crd())
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostnetwork"] = True
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, crd())


needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")


@needs_kubectl
def test_kubectl_reads_what_is_meant(tmp_path: Path) -> None:
    with serving(tmp_path) as variables:
        for name in RUNS:
            made = jobset(manifest(name))
            assert read_by_kubectl(as_yaml(made), variables) == made | {
                "metadata": made["metadata"] | {"namespace": made["metadata"].get("namespace", "ml")}
            }
            kept = belongings(manifest(name), {"jobs": [HOSTILE]}, {"SEATRIAL_SECRET_0": HOSTILE}, {"uid": "1"})
            assert [read_by_kubectl(as_yaml(each), variables)["data"] for each in kept["items"]] == [
                each["data"] for each in kept["items"]
            ]


@needs_kubectl
@settings(max_examples=6)
@given(
    text=st.lists(
        st.text(st.characters(exclude_categories=("Cs",))) | st.from_regex(r"[0-9a-fA-F_.xeEoOyYnN~:+-]{1,8}"),
        min_size=50,
        max_size=200,
    )
)
def test_no_text_is_taken_for_anything_else(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "it"},
        "data": {f"k{n}": each for n, each in enumerate(text)},
    }
    assert yaml.safe_load(as_yaml(made)) == made
    with serving(tmp_path_factory.mktemp("api")) as variables:
        assert read_by_kubectl(as_yaml(made), variables).get("data", {}) == made["data"]


def read_by_kubectl(text: str, variables: dict[str, str]) -> Object:
    argv = ["kubectl", "create", "--dry-run=client", "--validate=false", "--output=json", "--filename=-"]
    done = subprocess.run(argv, input=text.encode(), capture_output=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr.decode()
    read: Object = json.loads(done.stdout)
    return read


@given(st.text(max_size=200))
def test_any_name_becomes_one_that_services_and_pods_may_have(run: str) -> None:
    name = name_of(run, "x7k2p")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{host_name(name, 9999)}-abcde") <= 63


def test_the_jobset_that_a_plan_shows_is_the_one_that_is_submitted_and_shows_no_secret() -> None:
    plan, where = planned(*[RUNS["secrets"][0]], *RUNS["secrets"][1])
    shown = script_of(plan, where)
    assert "canary" not in shown
    assert "SEATRIAL_SECRET_0" in shown
    made = yaml.safe_load(shown)
    hosts = [process.host for process in plan.processes]
    assert [host.address for host in hosts] == [f"{host.name}.{made['metadata']['name']}" for host in hosts]
    assert [host.name for host in hosts] == [host_name(made["metadata"]["name"], index) for index in (0, 1)]
    argv = plan.processes[1].command.argv
    assert argv[argv.index("--coordinator") + 1] == f"{hosts[0].address}:12355"
    assert plan.processes[1].command.environment["HF_TOKEN"] != "canary"


def test_what_pods_are_given_is_theirs_alone_and_the_same_again() -> None:
    made, run = manifest("secrets"), {"jobs": [{"a": HOSTILE}], "files": {"launch/agent.py": "x"}}
    config, secret = belongings(made, run, {"SEATRIAL_SECRET_0": "canary"}, {"uid": "1-2"})["items"]
    assert unpacked(config["data"][RUN]) == run
    assert belongings(made, run, {}, {"uid": "1-2"})["items"] == [config]
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in (config, secret)} == {"1-2"}
    assert "canary" not in json.dumps([config, secret])  # base64, as the API wants it


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("64g", "64Gi"),
        ("512MB", "512Mi"),
        ("128 GiB", "128Gi"),
        ("1024", "1024"),
        ("lots", None),
        (None, None),
        ("", None),
    ],
)
def test_a_size_of_docker_is_one_of_kubernetes(given: str | None, expected: str | None) -> None:
    assert quantity(given) == expected


def test_what_has_no_counterpart_in_a_pod_is_told() -> None:
    plain = replace(CVS, privileged=False, security_opt=("label=disable",), shm_size="much")
    told = " | ".join(about(plain, options([])))
    for words in (
        "/dev/kfd, /dev/dri, /dev/infiniband",
        "rdma=RESOURCE",
        "video",
        "label=disable",
        "much",
        "/mnt/data",
    ):
        assert words in told
    assert about(Container(image="x"), options([])) == []


def test_a_pod_has_its_own_shared_memory_and_each_path_one_volume() -> None:
    shared = Container(image="x", volumes=(("/dev/shm", "/dev/shm/"), ("/mnt", "/mnt")))
    plan, _ = planned(spec(container=shared))
    assert "pods have a /dev/shm of their own: not mounted is /dev/shm of the nodes" in plan.notes
    made = jobset(replace(manifest("nvidia"), container=shared))
    (pods,) = job_of(made)["spec"]["template"]["spec"]["containers"]
    places = [mount["mountPath"] for mount in pods["volumeMounts"]]
    assert places == ["/seatrial/files", "/seatrial/data", "/dev/shm", "/mnt"]


@pytest.mark.parametrize(
    ("volumes", "given", "path", "why"),
    [
        ((("/x", "/seatrial/data/"),), (), "container.volumes", "Seatrial mounts a volume of its own"),
        ((), ("volume=a:/dev/shm",), "--kubernetes volume", "Seatrial mounts a volume of its own"),
        ((), ("volume=a:/data", "volume=b:/data:ro"), "--kubernetes volume", "mounted twice"),
        ((("/x", "/data:ro"),), ("volume=b:/data",), "--kubernetes volume", "mounted twice"),
    ],
)
def test_two_volumes_at_one_path_are_refused(
    volumes: tuple[tuple[str, str], ...], given: tuple[str, ...], path: str, why: str
) -> None:
    with pytest.raises(InputError) as raised:
        planned(spec(container=Container(image="x", volumes=volumes)), *given)
    (problem,) = raised.value.problems
    assert (problem.code, problem.path) == ("bad-volume", path)
    assert why in problem.why


def test_a_rehearsal_requests_no_gpus_and_an_unknown_device_only_by_name() -> None:
    assert gpus_of(spec(), options([]), rehearsing=False) == {"nvidia.com/gpu": 8}
    assert gpus_of(spec("MI355X"), options([]), rehearsing=False) == {"amd.com/gpu": 8}
    assert gpus_of(spec(), options([]), rehearsing=True) == {}
    assert gpus_of(spec(None), options([]), rehearsing=False) == {}
    assert gpus_of(spec(None), options(["gpu=a.b/c"]), rehearsing=False) == {"a.b/c": 8}
