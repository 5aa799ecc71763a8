"""A place where a system does something else with a key than its own documentation says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A key, what is documented of it, what the system does, and what happens here."""

    key: str
    documented: str
    actual: str
    here: str = "as documented"
