"""The program `kubectl`, with the user's own configuration and sign-in; and a transport to pods through it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.cluster import Cluster, Host
from seatrial.errors import LaunchError
from seatrial.launch.kubernetes.manifest import CONTAINER
from seatrial.launch.transports import MAX_SHOWN, PROGRAM, Piped, Unreachable

ANSWER_SECONDS = 30.0
SUBMIT_SECONDS = 120.0
EXECS = 16  # programs that are being started in pods at the same time

# What kubectl prints where it is refused → why, and how to fix it; the first that matches.
REFUSALS: tuple[tuple[str, str, str], ...] = (
    (r'no matches for kind "JobSet"|server doesn\'t have a resource type "jobsets?',
     "this cluster has no JobSet",
     "have its controller installed (github.com/kubernetes-sigs/jobset, version 0.8 or newer), or name another "
     "cluster: --kubernetes context=CONTEXT"),
    (r"exceeded quota", "the namespace's quota is used up ({said})", "free some of it, or have it raised"),
    (r"[Ff]orbidden", "you may not do that there ({said})",
     "have a Role bound that may create, get, list and delete jobsets, configmaps and secrets, get and list pods, jobs "
     "and events, and create pods/exec; or name another --kubernetes namespace="),
    (r"Unauthorized|must be logged in|[Gg]etting credentials|exec plugin",
     "it does not accept who you are ({said})", "sign in again, as for any kubectl command"),
    (r"namespaces? \"?[^ ]*\"? not found", "there is no such namespace ({said})",
     "name another: --kubernetes namespace="),
    (r"context .* does not exist|context was not found", "your kubeconfig has no such context ({said})",
     "`kubectl config get-contexts` lists them"),
    (r"failed calling webhook", "a controller of the cluster does not answer ({said})",
     "have it looked at: JobSet's or Kueue's, by the webhook's name (`kubectl get pods -A`)"),
    (r"admission webhook .* denied|denied the request", "its admission control denied it ({said})",
     "change what it names"),
    (r"AlreadyExists|already exists", "something of this name is there already ({said})", "start the run once more"),
    (r" is invalid: |ValidationError|strict decoding error|unknown field",
     "the API does not accept the JobSet ({said})", "update the JobSet controller to version 0.8 or newer"),
    (r"[Uu]nable to connect|connection refused|no such host|i/o timeout|TLS handshake|was refused|no configuration",
     "the cluster cannot be reached ({said})",
     "check `kubectl get pods`; KUBECONFIG and --kubernetes context= name the cluster"),
)  # fmt: skip
MISSING = "kubectl is not installed here: install it (kubernetes.io/docs/tasks/tools), or run this where it is"


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """The program for one cluster and namespace; None: those that the user's kubeconfig names."""

    context: str | None = None
    namespace: str | None = None

    def argv(self, *words: str) -> list[str]:
        context = [f"--context={self.context}"] if self.context else []
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return ["kubectl", *context, *namespace, *words]

    def do(self, *words: str, given: str | None = None, seconds: float = ANSWER_SECONDS) -> str:
        """Its output. Raises LaunchError where it fails or is not installed."""
        try:
            done = subprocess.run(
                self.argv(*words), input=given, capture_output=True, timeout=seconds, encoding="utf-8",
                errors="replace", env={**os.environ, "LC_ALL": "C"}, stdin=None if given else subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C would leave behind what it has just made
            )  # fmt: skip
        except FileNotFoundError:
            raise LaunchError(MISSING) from None
        except (OSError, subprocess.SubprocessError) as error:
            said = f"no answer within {seconds:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            raise LaunchError(f"kubectl {words[0]}: {said}: check that the cluster can be reached") from None
        if done.returncode:
            raise LaunchError(refusal(words[0], done.stderr or f"exit code {done.returncode}"))
        return done.stdout

    def objects(self, *words: str) -> list[dict[str, Any]]:
        """The objects that it prints. Raises LaunchError where there is no answer, which says nothing about them."""
        try:
            found = json.loads(self.do(*words, "--output=json"))
        except (ValueError, RecursionError):
            raise LaunchError("kubectl printed no JSON") from None
        items = found.get("items", [found]) if isinstance(found, dict) else []
        return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []

    def create(self, manifest: str) -> dict[str, Any]:
        """Creates what a manifest says; the object, as it is there. Raises LaunchError."""
        made = self.do("create", "--filename=-", "--output=json", given=manifest, seconds=SUBMIT_SECONDS)
        try:
            return dict(json.loads(made))
        except ValueError:
            raise LaunchError(f"kubectl create printed no object: {made[:MAX_SHOWN]!r}") from None

    def delete(self, name: str) -> None:
        """Deletes a JobSet, and with it all that belongs to it. Raises LaunchError."""
        self.do("delete", "jobsets.jobset.x-k8s.io", name, "--ignore-not-found", "--wait=false")


def refusal(verb: str, said: str) -> str:
    """A refusal in one line: why, and how to fix it."""
    lines = [line for line in said.splitlines() if line.strip() and not re.match(r"[EWI]\d{4} |Warning:", line)]
    text = " ".join(" ".join(lines or said.splitlines()).split()).removeprefix("error: ")[-2 * MAX_SHOWN :]
    for pattern, why, fix in REFUSALS:
        if re.search(pattern, said):
            return f"kubectl {verb}: {why.format(said=text)}: {fix}"
    return f"kubectl {verb} was refused: {text}"


# --- programs in pods -------------------------------------------------------------------------------------------------

_PYTHON = "check that the image has python3, 3.8 or newer"
_TROUBLES: Mapping[str, tuple[str, str]] = {
    "waiting": ("its pod does not run", "wait for it, or see `kubectl describe pod`"),
    "forbidden": ("you may not start programs in pods ({said})", "have a Role bound that may create pods/exec"),
    "gone": ("its pod is gone ({said})", "see `kubectl get pods`"),
    "mute": ("its python3 printed nothing", _PYTHON),
    "complains": ("its python3 printed nothing but {said!r}", _PYTHON),
    "odd": ("its output is no answer ({said!r})", _PYTHON),
    "closed": ("no program can be started there ({said})", "check that kubectl is installed"),
    "absent": ("it cannot be reached ({said})", "check `kubectl get pods`"),
    "lost": ("the connection was lost ({said})", "check `kubectl get pods`, then retry"),
    "flood": ("it printed more than is read", _PYTHON),
}
_COMPLAINTS = (
    (r"[Ff]orbidden|cannot create resource \"pods/exec\"", "forbidden"),
    (r"executable file not found|no such file or directory", "complains"),
    (r"not found|container not running|is not running|completed pod|does not exist", "gone"),
    (r"error|Error|refused|timed out|[Uu]nable", "absent"),
)


class PodExec(Piped):
    """Programs in pods by `kubectl exec`; `pod_of` is the pod of a host that runs, or None."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, pod_of: Callable[[str], str | None], python: str) -> None:
        super().__init__(cluster, logins=EXECS, known="")
        self._kubectl, self._pod_of, self._python = kubectl, pod_of, python

    def argv(self, host: Host) -> list[str]:
        pod = self._pod_of(host.name)
        if pod is None:
            raise self.trouble("waiting", host)
        words: Sequence[str] = (self._python, *PROGRAM[1:])
        return self._kubectl.argv("exec", "--stdin", pod, f"--container={CONTAINER}", "--", *words)

    def complaint(self, kind: str, said: str, code: int | None) -> tuple[str, str]:
        if code and kind in ("mute", "complains"):
            return next(((name, said) for pattern, name in _COMPLAINTS if re.search(pattern, said)), (kind, said))
        return kind, said

    def trouble(self, kind: str, host: Host, said: str = "") -> Unreachable:
        why, fix = _TROUBLES.get(kind, _TROUBLES["absent"])
        said = " ".join(said.split())[-MAX_SHOWN:]
        return Unreachable(host, why.format(said=said), fix, may_come=kind == "waiting")
