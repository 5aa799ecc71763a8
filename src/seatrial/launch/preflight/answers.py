"""The answers of hosts to preflight, read with limits: whoever answers may be broken, or not who we think."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from seatrial.cluster import Host
from seatrial.errors import Problem, Severity
from seatrial.node.facts import Facts, Meeting

MAX_TEXT = 300
MAX_ENTRIES = 4096
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host with its answers, or why there are none: (why, fix)."""

    host: Host
    facts: Facts | None = None
    trouble: tuple[str, str] | None = None
    meeting: Meeting | None = None

    def finding(self, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the host."""
        return Problem(severity=severity, code=code, path=self.host.name, why=why, fix=fix)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def read_facts(answer: dict[str, Any]) -> Facts | str:
    """The facts in a probe's answer, or what is wrong with it."""
    return _read(_FACTS, answer)


def read_meeting(answer: dict[str, Any]) -> Meeting | str:
    """The same for the second question."""
    return _read(_MEETING, answer)


_FACTS, _MEETING = TypeAdapter(Facts), TypeAdapter(Meeting)


def _read(kind: TypeAdapter[T], answer: dict[str, Any]) -> T | str:
    try:
        return kind.validate_python(_bounded(answer))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:MAX_TEXT]
    except ValueError as error:
        return str(error)


def _bounded(data: Any) -> Any:
    """Plain data with its texts cut. Raises ValueError for too many entries, and numbers that no host has."""
    if isinstance(data, str):
        return data[:MAX_TEXT]
    if isinstance(data, (dict, list)) and len(data) > MAX_ENTRIES:
        raise ValueError(f"{len(data):,} entries")
    if isinstance(data, dict):
        return {name[:MAX_TEXT]: _bounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_bounded(value) for value in data]
    if isinstance(data, (int, float)) and not -1e12 <= data < 2**63:  # NaN is not either
        raise ValueError("a number that no host has")
    return data
