"""A `kubectl` whose cluster is podman on the nodes of a test: what kubelets and the Job controller do, in small.

It makes the pods of a JobSet as the Job controller does (name, host name, index) and starts each by `podman kube play`
on a node of its own; `get` reports what podman says of them; `exec` and `logs` are podman's. Names that the cluster's
name server would know are in the nodes' /etc/hosts.

    python kubectl.py STATE.json …     STATE.json: {"nodes": [{"name", "address", "pid", "hosts"}], "folder"}
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.helpers.cluster.nodes import Node

UID = "5d3c1f0e-7a55-4b0e-9d0b-2f6f4c1f7a10"


def written_for(nodes: Sequence[Node], program: Path, folder: Path) -> Path:
    """Writes this kubectl as a program whose cluster is these nodes; it keeps what it knows in the folder."""
    folder.mkdir()
    known = [{"name": n.name, "address": n.address, "pid": n.pid, "hosts": str(n.folder / "hosts")} for n in nodes]
    (folder / "state.json").write_text(json.dumps({"nodes": known, "folder": str(folder)}))
    words = [sys.executable, str(Path(__file__).resolve()), str(folder / "state.json")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return folder


class Podman:
    """The nodes' podman, one pod on each."""

    def __init__(self, state: Path) -> None:
        given = json.loads(state.read_text())
        self.nodes, self.folder = given["nodes"], Path(given["folder"])

    def enter(self, index: int) -> list[str]:
        pid = self.nodes[index]["pid"]
        return ["nsenter", f"--target={pid}", "--net", "--uts", "--ipc", "--mount", "--pid", "--", "podman"]

    def do(self, index: int, *words: str, given: str = "", check: bool = True) -> str:
        done = subprocess.run([*self.enter(index), *words], capture_output=True, text=True, input=given)
        if check and done.returncode:
            sys.exit(f"podman {' '.join(words)}: {done.stderr}")
        return done.stdout


def create(podman: Podman, text: str) -> dict[str, Any]:
    made = yaml.safe_load(text)
    if made["kind"] == "JobSet":
        made["metadata"] |= {"uid": UID, "namespace": "default"}
        (podman.folder / "jobset.json").write_text(json.dumps(made))
        return made
    jobset = json.loads((podman.folder / "jobset.json").read_text())
    _name(podman, jobset)
    for index in range(len(podman.nodes)):
        _play(podman, jobset, made["items"], index)
    return made


def _name(podman: Podman, jobset: dict[str, Any]) -> None:
    """Acts as the cluster's name server: the nodes, and so pods that share their network, know the pods' names."""
    name, (group,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    lines = ""
    for index, node in enumerate(podman.nodes):
        host = f"{name}-{group['name']}-0-{index}"
        lines += f"{node['address']} {host}.{jobset['spec']['network']['subdomain']} {host}\n"
    for node in podman.nodes:
        with Path(node["hosts"]).open("a") as file:
            file.write(lines)


def _play(podman: Podman, jobset: dict[str, Any], items: list[dict[str, Any]], index: int) -> None:
    """The pod of an index, as the Job controller makes it of the template, started by podman."""
    name, (group,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    host, template = f"{name}-{group['name']}-0-{index}", group["template"]["spec"]["template"]
    spec = template["spec"]
    for container in spec["containers"]:
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{host}-abcde", **template["metadata"]},
        "spec": {**spec, "hostname": host, "subdomain": name},
    }
    for item in items:
        if item["kind"] == "Secret":  # podman 4.3 reads a Secret's data as JSON
            podman.do(index, "secret", "create", item["metadata"]["name"], "-", given=json.dumps(item["data"]))
    names = [{**item, "metadata": {"name": item["metadata"]["name"]}} for item in items]
    configs = [item for item in names if item["kind"] == "ConfigMap"]
    podman.do(index, "kube", "play", "--network=host", "-", given=yaml.safe_dump_all([*configs, pod]))


def get(podman: Podman, kinds: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    path = podman.folder / "jobset.json"
    if "jobsets" in kinds and path.exists():
        jobset = json.loads(path.read_text())
        items = [jobset, *(pod for index in range(len(podman.nodes)) if (pod := _pod(podman, jobset, index)))]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _pod(podman: Podman, jobset: dict[str, Any], index: int) -> dict[str, Any] | None:
    (group,) = jobset["spec"]["replicatedJobs"]
    name = f"{jobset['metadata']['name']}-{group['name']}-0-{index}-abcde"
    shown = podman.do(index, "inspect", f"{name}-seatrial", check=False)
    found = json.loads(shown)[0]["State"] if shown.strip() not in ("", "[]") else None
    if found is None:
        return None
    status: dict[str, Any] = {"phase": "Pending", "conditions": []}
    if found["Running"]:
        status = {"phase": "Running", "containerStatuses": [{"name": "seatrial", "state": {"running": {}}}]}
    elif found["Status"] in ("exited", "stopped"):
        code = found["ExitCode"]
        reason = "OOMKilled" if found["OOMKilled"] else "Completed" if code == 0 else "Error"
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": found["FinishedAt"]}}
        phase = "Failed" if code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{"name": "seatrial", "state": state}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "creationTimestamp": "2026-11-25T15:00:00Z",
        },
        "spec": {"nodeName": podman.nodes[index]["name"]},
        "status": status,
    }


def index_of(pod: str) -> int:
    return int(pod.rsplit("-", 2)[1])


def main(state: str, words: list[str]) -> None:
    podman = Podman(Path(state))
    words = [word for word in words if not word.startswith(("--namespace=", "--context="))]
    verb, *rest = words
    with (podman.folder / "asked").open("a") as file:
        file.write(f"{time.time():.1f} {' '.join(words)}\n")
    if verb == "create":
        print(json.dumps(create(podman, sys.stdin.read())))
    elif verb == "get":
        print(json.dumps(get(podman, rest[0])))
    elif verb == "exec":
        pod = next(word for word in rest if not word.startswith("--"))
        argv = rest[rest.index("--") + 1 :]
        os.execvp("nsenter", [*podman.enter(index_of(pod)), "exec", "--interactive", f"{pod}-seatrial", *argv])
    elif verb == "logs":
        print(podman.do(index_of(rest[0]), "logs", f"{rest[0]}-seatrial"))
    elif verb == "delete":
        for index in range(len(podman.nodes)):
            for pod in podman.do(index, "pod", "ps", "--quiet").split():
                podman.do(index, "pod", "rm", "--force", pod)
        (podman.folder / "jobset.json").unlink(missing_ok=True)
    else:
        sys.exit(f"error: unknown command {verb!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
