"""An API server that answers what kubectl asks before it reads a manifest: which kinds there are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _kind(plural: str, kind: str, *short: str) -> dict[str, Any]:
    singular = kind.lower()
    return {"name": plural, "singularName": singular, "namespaced": True, "kind": kind, "verbs": _VERBS,
            "shortNames": list(short)}  # fmt: skip


def _group(name: str, version: str) -> dict[str, Any]:
    each = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [each], "preferredVersion": each}


def _kinds(group_version: str, *kinds: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list(kinds)}


CORE = _kinds("v1", _kind("pods", "Pod", "po"), _kind("configmaps", "ConfigMap", "cm"), _kind("secrets", "Secret"))
BATCH = _kinds("batch/v1", _kind("jobs", "Job"))
JOBSET = _kinds("jobset.x-k8s.io/v1alpha2", _kind("jobsets", "JobSet"))


def documents(*, with_jobset: bool) -> dict[str, Any]:
    """Path → what a cluster answers there, with JobSet's kind or without."""
    groups = [_group("batch", "v1")] + [_group("jobset.x-k8s.io", "v1alpha2")] * with_jobset
    found = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        "/api/v1": CORE,
        "/apis/batch/v1": BATCH,
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.4"},
    }
    return found | ({"/apis/jobset.x-k8s.io/v1alpha2": JOBSET} if with_jobset else {})


@contextmanager
def serving(folder: Path, *, with_jobset: bool = True) -> Iterator[dict[str, str]]:
    """Such a server until the block ends; the variables by which kubectl finds it."""
    answers = documents(with_jobset=with_jobset)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": here}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "", "namespace": "ml"}}],
            "current-context": "it",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        try:
            yield {"KUBECONFIG": str(path), "HOME": str(folder)}
        finally:
            server.shutdown()
