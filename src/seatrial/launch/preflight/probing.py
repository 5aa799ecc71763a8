"""Asks the nodes of a run for their facts: one question to all at once, then one that takes two sides."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from seatrial.cluster import Host
from seatrial.launch.preflight.answers import Node, read_facts, read_meeting
from seatrial.launch.preflight.needs import Needs
from seatrial.launch.session import Answer, Session
from seatrial.launch.transports import Unreachable
from seatrial.node import of_the_probe
from seatrial.node.facts import Facts

NODE_SECONDS = 30.0  # for a host to answer, login included
LOOK_SECONDS = 14.0  # of those, for the probe itself
MEET_SECONDS = 8.0
_PROBE = of_the_probe()
_ODD = "log in and check what python3 is there"


def examine(session: Session, needs: Needs) -> list[Node]:
    """The answers of every host, in rank order; one that does not answer in time delays no other."""
    nonce = secrets.token_hex(8) if needs.shared else None
    answers = _ask(session, {host: _question(needs, host, nonce) for host in needs.hosts}, "facts")
    nodes = [_with_answer(Node(host=host), "facts", answers[host]) for host in needs.hosts]
    first = nodes[0]
    disk = ((first.facts and first.facts.storage) or {}).get(needs.shared or "")
    files = [disk.nonce] if disk and disk.nonce else []
    try:
        return _meet(session, needs, nodes, files) if needs.meet else nodes
    finally:
        if files:
            _ask(session, {first.host: {"files": files}}, "erase")


def _question(needs: Needs, host: Host, nonce: str | None) -> dict[str, Any]:
    first = host == needs.hosts[0]
    parts: dict[str, Any] = {
        "machine": {}, "name": {"address": host.address}, "network": {}, "cards": {"gid_index": needs.gid_index},
        "devices": {}, "firewall": {},
        "storage": {"paths": needs.paths, "shared": [needs.shared], "nonce": nonce if first else None},
    }  # fmt: skip
    if needs.python:
        parts["trainer"] = {"python": needs.python}
    if needs.runtime:
        parts["engine"] = {"runtime": needs.runtime, "image": needs.image or ""}
    if first and needs.meet:
        parts["port"] = {"port": needs.port}
    return {"parts": parts, "seconds": LOOK_SECONDS}


def _with_answer(node: Node, part: Literal["facts", "meeting"], answer: Answer) -> Node:
    """The node with what it answered, or with the trouble that keeps it from answering."""
    if isinstance(answer, Unreachable):
        return replace(node, trouble=(answer.why, answer.fix))
    found = read_facts(answer) if part == "facts" else read_meeting(answer)
    if isinstance(found, str):
        return replace(node, trouble=(f"its answer makes no sense ({found})", _ODD))
    return replace(node, facts=found) if isinstance(found, Facts) else replace(node, meeting=found)


def _meet(session: Session, needs: Needs, nodes: Sequence[Node], files: Sequence[str]) -> list[Node]:
    """The second question, to those who have answered the first."""
    first, there = nodes[0], [node for node in nodes if node.facts]
    listens = first.facts is not None and not (first.facts.port and not first.facts.port.free)
    questions = {}
    for node in there:
        question: dict[str, Any] = {"seconds": MEET_SECONDS, "files": [] if node is first else list(files)}
        if listens and node is first:
            question |= {"listen": needs.port, "guests": len(there) - 1}
        elif listens:
            question |= {"connect": [first.host.address, needs.port]}
        questions[node.host] = question
    answers = _ask(session, questions, "meet")
    return [_with_answer(node, "meeting", answers[node.host]) if node.host in answers else node for node in nodes]


def _ask(session: Session, questions: Mapping[Host, dict[str, Any]], verb: str) -> dict[Host, Answer]:
    answers = session.ask(list(questions.items()), verb, source=_PROBE, seconds=NODE_SECONDS)
    return dict(zip(questions, answers, strict=True))
