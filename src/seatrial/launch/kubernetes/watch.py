"""Asks Kubernetes about a run's JobSet and pods, in a thread of its own; no answer says nothing about them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial.errors import LaunchError
from seatrial.launch.ending import seen_fault
from seatrial.launch.kubernetes.kubectl import Kubectl
from seatrial.launch.kubernetes.manifest import CONTAINER, RUN_LABEL
from seatrial.launch.kubernetes.states import Meaning, Observed, explain, meaning, read
from seatrial.launch.progress import Ending
from seatrial.runs.files import write_json, write_text

POLL_SECONDS, SLOW_POLL_SECONDS = 1.0, 5.0  # in the first minute and near the end, and later
UNANSWERED_SECONDS = 60.0  # longest pause after questions without an answer
EVENTS_SECONDS = 15.0  # between two looks at the events of the namespace
SETTLE_SECONDS = 3.0  # after a pod's end, for the last of what it sent to be here
END_SECONDS = 15.0  # for Kubernetes to report what became of pods that are gone
NODES = "launch/kubernetes/nodes.json"  # host → node of the cluster

# Asked in this order: whoever deletes pods because their Job has failed says so in the Job first.
_KINDS = "pods,jobs.batch,jobsets.jobset.x-k8s.io"


class Watch:
    """The last report of Kubernetes on a JobSet, as `follow` and the nodes ask for it."""

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        uid: str,
        hosts: Sequence[str],
        *,
        run_dir: Path,
        queued: bool = False,
        deadline_seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name, self.hosts = name, tuple(hosts)
        self._index_of = {host: index for index, host in enumerate(hosts)}
        self.seen: Observed | None = None
        self._kubectl, self._uid, self._queued = kubectl, uid, queued
        self._run_dir, self._deadline, self._say = run_dir, deadline_seconds, say
        self._began = self._waiting_since = time.monotonic()
        self._events: list[dict[str, Any]] = []
        self._events_at = float("-inf")
        self._begun: set[int] = set()  # pods that have run
        self._over_since: dict[int, float] = {}
        self._stuck_since: float | None = None  # in a state without much hope
        self._nodes: dict[str, str] = {}
        self._said: tuple[str, set[str]] = ("", set())  # the phase, and what of it was printed
        self._refusal = ""
        self._cancelled = False
        self._before: Observed | None = None  # what was reported before we deleted it
        self._telling: Observed | None = None  # the last report that says what was done to it; pods vanish afterwards
        self.is_deleted = False  # on our side: Kubernetes has accepted it
        self._ended = threading.Event()
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        unanswered = 0
        while not self._ended.is_set():
            young = time.monotonic() - self._began < 60 or self._cancelled or self.means.phase == "over"
            pause = POLL_SECONDS if young else SLOW_POLL_SECONDS
            if self._ended.wait(min(UNANSWERED_SECONDS, pause * 2**unanswered)):
                return
            unanswered = 0 if self._look() else min(unanswered + 1, 6)

    def _look(self, *more: dict[str, Any]) -> bool:
        """Takes in what is reported now; whether there was an answer."""
        selector = f"--selector={RUN_LABEL}={self.name}"
        try:
            objects = self._kubectl.objects("get", _KINDS, selector)
        except LaunchError as error:
            self._refusal = str(error)
            return False
        if self._queued:
            objects += self._others("workloads.kueue.x-k8s.io", f"--selector=kueue.x-k8s.io/job-uid={self._uid}")
        self.seen = seen = read([*objects, *self._events, *more])
        self._begun |= {index for index, pod in seen.pods.items() if pod.is_running or pod.is_over}
        if self.means.phase == "waiting" and time.monotonic() - self._events_at > EVENTS_SECONDS:
            self._events_at = time.monotonic()
            self._events = self._others("events", "--field-selector=type=Warning")
            self.seen = read([*objects, *self._events, *more])
        if not self._cancelled and self._means(seen).fault and self._means(seen).phase == "over":
            self._telling = seen
        self._note_nodes(seen)
        return True

    def _others(self, *words: str) -> list[dict[str, Any]]:
        """Objects that tell more; none where there is no answer, perhaps because the user may not see them."""
        with suppress(LaunchError):
            return self._kubectl.objects("get", *words)
        return []

    def _note_nodes(self, seen: Observed) -> None:
        """Writes down which node a pod was on: a retry may have to do without it."""
        nodes = {self.hosts[n]: pod.node for n, pod in sorted(seen.pods.items()) if pod.node and n < len(self.hosts)}
        if nodes and nodes != self._nodes:
            with suppress(OSError):
                write_json(self._run_dir / NODES, nodes, below=self._run_dir)
                self._nodes = nodes

    @property
    def means(self) -> Meaning:
        if self.seen is None:
            return Meaning("waiting", self._refusal or "no answer from the cluster yet")
        return self._means(self._telling or self.seen)

    def _means(self, seen: Observed) -> Meaning:
        return meaning(seen, self.hosts, begun=bool(self._begun))

    # --- what the nodes ask ---

    def pod_of(self, host: str) -> str | None:
        """The name of the pod that runs for a host."""
        pod = self.seen.pods.get(self._index_of[host]) if self.seen else None
        return pod.name if pod and pod.is_running else None

    def pod_is_over(self, host: str) -> bool:
        """True if a host's pod has ended or is gone, and what it sent has had time to arrive."""
        if self.seen is None:
            return False
        index = self._index_of[host]
        pod = self.seen.pods.get(index)
        gone = pod is None and (index in self._begun or not self.seen.jobset)
        if not (gone or (pod and pod.is_over)):
            self._over_since.pop(index, None)
            return False
        return time.monotonic() - self._over_since.setdefault(index, time.monotonic()) > SETTLE_SECONDS

    def cancel(self) -> None:
        """Deletes the JobSet on our side, once."""
        if self.is_deleted:
            return
        self._cancelled, self._before = True, self._before or self.seen
        try:
            self._kubectl.delete(self.name)
            self.is_deleted = True
        except LaunchError as error:
            self._say(str(error))

    # --- what `follow` asks ---

    def waiting(self) -> bool:
        """True if not all pods run yet. Prints the state when it has changed."""
        means = self.means
        says = means.says
        if means.phase == "running" and self.seen:
            nodes = dict.fromkeys(pod.node for _, pod in sorted(self.seen.pods.items()) if pod.node)
            says = f"on {', '.join(list(nodes)[:8])}{', …' if len(nodes) > 8 else ''}" if nodes else ""
        if means.phase != self._said[0]:
            self._said = means.phase, set()
        alike = re.sub(r'"[^"]*"', "", says)  # but for names of pods, each of which is a new one
        if alike not in self._said[1] and not self._cancelled:  # some reasons alternate
            self._said[1].add(alike)
            self._say(f"JobSet {self.name}: {means.phase}{f': {says}' if says else ''}")
        if means.phase != "waiting":
            self._waiting_since = time.monotonic()
        return means.phase == "waiting"

    def refused(self) -> Ending | None:
        """The end of a run whose pods wait for too long, or in a state that nobody expects to end."""
        means, now = self.means, time.monotonic()
        if means.phase != "waiting" or self._cancelled:
            return None
        if means.hopeless_seconds is None:
            self._stuck_since = None
        else:
            self._stuck_since = now if self._stuck_since is None else self._stuck_since
            if now - self._stuck_since >= means.hopeless_seconds:
                return Ending(reason="could_not_run", faults=(seen_fault(means.fault, means.where, means.says),))
        waited = now - self._waiting_since
        if self._deadline is None or waited <= self._deadline:
            return None
        text = f"its pods have waited for {waited:.0f} s ({means.says}); the limit is {self._deadline:.0f} s"
        return Ending(reason="could_not_run", faults=(seen_fault("launch_failed", f"JobSet {self.name}", text),))

    def final(self, ending: Ending) -> bool:
        """Always: a JobSet of ours does not restart its pods."""
        return True

    def explained(self, ending: Ending) -> Ending:
        """The ending with what Kubernetes knows about it; keeps the output of pods that have ended."""
        if ending.reason == "completed":
            return ending
        if ending.reason == "interrupted" and not ending.faults and self._telling is None:  # at somebody's request
            return ending
        if not self._cancelled:
            deadline = time.monotonic() + END_SECONDS
            self._look_at_all()
            while not self._is_settled() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                self._look_at_all()
            self._keep_output()
        begun = any(self._run_dir.glob("nodes/*/status.json"))
        seen = self._telling or self._before or self.seen
        return explain(ending, seen, self.hosts, begun=begun) if seen else ending

    def close(self) -> None:
        self._ended.set()

    def _is_settled(self) -> bool:
        """True if it is known what became of every pod."""
        seen, means = self.seen, self.means
        if seen is None or (means.phase == "over" and means.fault):
            return True
        return all(n in seen.pods and seen.pods[n].is_running for n in self._begun)

    def _look_at_all(self) -> None:
        """Looks at the nodes of the pods, too, where the user may."""
        nodes = sorted({pod.node for pod in self.seen.pods.values() if pod.node}) if self.seen else []
        self._look(*(self._others("nodes", *nodes) if nodes else []))

    def _keep_output(self) -> None:
        """The output of pods that cannot be asked for their files any more."""
        for index, pod in self.seen.pods.items() if self.seen else ():
            if pod.is_over and index < len(self.hosts):
                with suppress(LaunchError, OSError):
                    text = self._kubectl.do("logs", pod.name, f"--container={CONTAINER}")
                    write_text(self._run_dir / "nodes" / self.hosts[index] / "pod.log", text, below=self._run_dir)
