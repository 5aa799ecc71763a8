"""Runs on Kubernetes by the command line, without any pod that runs: refused, waiting, taken away, stopped."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.launch.kubernetes.kubectl import MISSING, REFUSALS, refusal
from tests.helpers.coverage import measured
from tests.helpers.kubernetes_api import serving
from tests.helpers.processes import wait_until
from tests.launch.kubernetes.test_states import SCHEDULER, UNSCHEDULABLE, jobset, pod, terminated, waiting

PROGRAM = Path(__file__).parents[2] / "helpers" / "scripted_kubectl.py"
RECORDED = Path(__file__).parent / "recorded"
CANARY = "canary-7f3e9a"


class Person:
    """Somebody whose kubectl answers what is written down."""

    def __init__(self, folder: Path, *objects: dict[str, Any], kubectl: bool = True) -> None:
        self.out, self.folder, self.config = folder / "run", folder / "cluster", folder / "it.json"
        self.folder.mkdir()
        self.show(*objects)
        programs = folder / "bin"
        programs.mkdir()
        if kubectl:
            words = [sys.executable, str(PROGRAM), str(self.folder)]
            (programs / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (programs / "kubectl").chmod(0o755)
        self.variables = {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "200"}
        document = {
            "name": "it",
            "model": {
                "name": "tiny", "vocab_size": 64, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
                "head_dim": 8, "ffn_dim": 32,
            },
            "batch": {"sequence_length": 16, "global_batch_size": 4, "micro_batch_size": 1},
            "steps": 10,
            "topology": {"num_nodes": 2, "devices_per_node": 1, "device": "h100"},
            "parallelism": {"across_nodes": {"data": 2}},
            "optimizer": {"learning_rate": 1e-3},
            "container": {"image": "ghcr.io/me/jax:1", "environment": {"HF_TOKEN": CANARY}},
        }  # fmt: skip
        self.config.write_text(json.dumps(document))

    def show(self, *objects: dict[str, Any]) -> None:
        """Sets what `get` prints from now on; NAME stands for the JobSet's."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        (self.folder / "get.new").write_text(text.replace("llama-x7k2p", "NAME"))
        (self.folder / "get.new").rename(self.folder / "get.json")

    def fail(self, text: str, *verbs: str) -> None:
        (self.folder / "fail").write_text(text)
        (self.folder / "fails").write_text(" ".join(verbs))

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", "from seatrial.cli import main; main()", *map(str, words)]
        environment = measured("launch/kubernetes") | self.variables
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *options: str) -> subprocess.Popen[str]:
        return self.start("run", self.config, "--on", "kubernetes", "--out", self.out, *options)

    def asked(self, verb: str) -> list[str]:
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{verb} ")]


def over(run: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = run.communicate(timeout=120)
    return run.returncode, " ".join(out.split())


def test_who_waits_for_too_long_is_told_the_schedulers_reason(tmp_path: Path) -> None:
    held = pod(0, "Pending", node="", state=waiting(""), conditions=[UNSCHEDULABLE])
    person = Person(tmp_path, jobset(), held)
    code, told = over(person.run("--queue-deadline", "2s"))
    assert code == 3, told
    assert f"waiting: Unschedulable: {SCHEDULER}" in told
    assert "the limit is 2 s" in told
    assert len(person.asked("delete")) >= 1
    assert CANARY not in told
    assert CANARY not in (person.folder / "asked").read_text()
    kept = [path for path in person.out.rglob("*") if path.is_file() and not path.name.startswith("config.")]
    assert not any(CANARY.encode() in path.read_bytes() for path in kept)


def test_what_belongs_to_a_jobset_is_deleted_with_it(tmp_path: Path) -> None:
    person = Person(tmp_path, jobset(), pod(0, "Pending", state=waiting("InvalidImageName", "couldn't parse image")))
    code, told = over(person.run("--kubernetes", "namespace=ml"))
    assert code == 3, told
    assert "InvalidImageName: couldn't parse image" in told
    made = yaml.safe_load((person.folder / "given-1").read_text())
    kept = yaml.safe_load((person.folder / "given-2").read_text())["items"]
    assert made["metadata"]["namespace"] == "ml"
    assert [each["kind"] for each in kept] == ["ConfigMap", "Secret"]
    for each in kept:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["name"]) == ("5d3c1f0e", made["metadata"]["name"])
    assert made == yaml.safe_load((person.out / "launch/kubernetes/jobset.yaml").read_text())


def test_a_pod_that_was_killed_for_its_memory_is_named(tmp_path: Path) -> None:
    person = Person(tmp_path, jobset(), pod(0), pod(1, "Failed", state=terminated(137, "OOMKilled")))
    code, told = over(person.run())
    assert code == 4, told
    assert "used more memory than its limit, and was killed (OOMKilled, exit code 137)" in told
    events = [json.loads(line) for line in (person.out / "events-launcher.jsonl").read_text().splitlines()]
    fault = next(event for event in events if event["kind"] == "fault")
    assert fault["fault"] == "host_oom"
    assert fault["where"].endswith("-node-0-1")


@pytest.mark.slow
def test_what_a_real_cluster_reported_of_a_drained_node_is_the_verdict(tmp_path: Path) -> None:
    person = Person(tmp_path)
    shutil.copy(RECORDED / "drain.jsonl", person.folder / "reports.jsonl")
    code, told = over(person.run())
    assert code == 130, told
    headline = json.loads((person.out / "verdict.json").read_text())["headline"]
    assert "was evicted by request: its node is drained, perhaps (EvictionByEvictionAPI" in headline


def test_silence_ends_nothing_and_ctrl_c_deletes_what_waits(tmp_path: Path) -> None:
    person = Person(tmp_path, jobset(), pod(0, "Pending", state=waiting("ContainerCreating")))
    run = person.run()
    wait_until(lambda: len(person.asked("get")) > 2, 60)
    person.fail("Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout", "get")
    time.sleep(4)
    assert run.poll() is None
    person.fail("")
    run.send_signal(signal.SIGINT)
    code, told = over(run)
    assert code == 130, told
    assert person.asked("delete")


@pytest.mark.slow
def test_a_jobset_that_waits_is_stopped_and_its_launcher_sees_it(tmp_path: Path) -> None:
    person = Person(tmp_path, jobset(), pod(0, "Pending", state=waiting("ContainerCreating")))
    run = person.run()
    wait_until(lambda: (person.out / "launch/kubernetes/jobset.json").exists() and len(person.asked("get")) > 1, 60)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    code, told = over(person.start("stop", person.out))
    assert code == 0, told
    assert person.asked("delete")
    code, told = over(person.start("attach", person.out))
    assert code == 130, told
    assert "the JobSet was deleted" in told


def test_where_not_all_can_be_created_nothing_is_left(tmp_path: Path) -> None:
    person = Person(tmp_path, jobset())
    person.fail('Error from server (Forbidden): configmaps is forbidden: User "me" cannot create resource', "create-2")
    code, told = over(person.run())
    assert code == 3, told
    assert "you may not do that there" in told
    assert "have a Role bound" in told
    assert len(person.asked("delete")) == 1


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_itself_says_what_a_cluster_lacks(tmp_path: Path) -> None:
    argv = ["kubectl", "create", "--dry-run=client", "--validate=false", "--filename=-"]
    with serving(make(tmp_path / "without"), with_jobset=False) as variables:
        text = json.dumps(jobset())
        done = subprocess.run(argv, input=text, capture_output=True, text=True, env={**os.environ, **variables})
    assert "this cluster has no JobSet: have its controller installed" in refusal("create", done.stderr), done
    person = Person(make(tmp_path / "unreachable"), kubectl=False)
    person.variables |= {"KUBECONFIG": "/dev/null", "HOME": str(tmp_path)}
    code, told = over(person.run())
    assert code == 3, told
    assert "the cluster cannot be reached" in told
    person = Person(make(tmp_path / "context"), kubectl=False)
    person.variables |= variables
    code, told = over(person.run("--kubernetes", "context=elsewhere"))
    assert code == 3, told
    assert "your kubeconfig has no such context" in told


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_without_kubectl_that_is_told(tmp_path: Path) -> None:
    person = Person(tmp_path, kubectl=False)
    person.variables["PATH"] = str(tmp_path)
    code, told = over(person.run())
    assert code == 3, told
    assert MISSING in told


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('error: unable to recognize "STDIN": no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"',
         "no JobSet"),
        ('error: the server doesn\'t have a resource type "jobsets"', "no JobSet"),
        ('Error from server (Forbidden): error when creating "STDIN": jobsets.jobset.x-k8s.io is forbidden: User "me" '
         'cannot create resource "jobsets" in API group "jobset.x-k8s.io" in the namespace "ml"', "you may not do"),
        ('Error from server (Forbidden): secrets "x" is forbidden: exceeded quota: objects, requested: count/secrets=1',
         "quota is used up"),
        ("error: You must be logged in to the server (Unauthorized)", "does not accept who you are"),
        ('Error from server (NotFound): error when creating "STDIN": namespaces "mll" not found', "no such namespace"),
        ('error: context "prod" does not exist', "no such context"),
        ('Error from server: error when creating "STDIN": admission webhook "vjobset.kb.io" denied the request: no',
         "admission control denied it"),
        ('Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed calling '
         'webhook "mjobset.kb.io": failed to call webhook: Post "https://10.9.0.9/x": dial tcp: connection refused',
         "a controller of the cluster does not answer"),
        ('Error from server (AlreadyExists): error when creating "STDIN": jobsets.jobset.x-k8s.io "a" already exists',
         "something of this name"),
        ("Unable to connect to the server: dial tcp: lookup api.example: no such host", "cannot be reached"),
        ("The connection to the server localhost:8080 was refused - did you specify the right host or port?",
         "cannot be reached"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_with_its_fix(said: str, why: str) -> None:
    warning = 'Warning: would violate PodSecurity\nE1125 15:25:46.899315   14175 memcache.go:265] "Unhandled Error"\n'
    told = refusal("create", f"{warning}{said}\n")
    assert why in told
    fixes = [fix for _, _, fix in REFUSALS]
    assert any(told.endswith(fix) for fix in fixes)
    assert "memcache" not in told
    assert not re.search(r"[\n\r]", told)
