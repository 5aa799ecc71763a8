"""The keys that a configuration gives, read by a table of rows; and everything that is wrong with them, collected.

A dialect derives its own settings from these: the class attributes say how it speaks of its keys, and fields hold what
only it has. It calls `take` for each entry, then derives the spec from `get`, and adds findings with `add`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from seatrial.command import is_secret
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import NO_CHANGE, Entry, is_within
from seatrial.dialects.table.keys import OMIT, Disposition, Key
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.table.versions import Versions, contradiction, in_order, versions
from seatrial.errors import Mark, Problem, Severity, some
from seatrial.spec import Action, Origin

MOST_NAMES = 12  # keys that one finding lists

Finding = tuple[str, Severity, str, str, str]  # key, severity, code, why, fix


@dataclass(kw_only=True)
class Settings:
    """`entries` holds what is given, by key; `values` what was read, so that a wrong value is in `entries` only."""

    SYSTEM: ClassVar[str] = ""  # whose keys and defaults these are, as in "MaxText's default"
    UNKNOWN: ClassVar[str] = "there is no such key"  # why an unknown key is an error
    REJECTED: ClassVar[str] = "not-supported"  # the code of a rejected key; "": the dialect reports them itself
    VERSIONS: ClassVar[str] = ""  # the folder of the dialect that has a table of versions
    RELEASE: ClassVar[str] = ""  # before a version: "core " of Megatron's
    ENGINE: ClassVar[str] = ""  # the engine whose keys these are

    keys: Mapping[str, Key]
    sections: Mapping[str, Key] = field(default_factory=dict)  # mappings whose keys are the user's own
    action: Action = "plan"
    engine: str = ""  # what will train; empty: not said
    file: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    of_engine: set[str] = field(default_factory=set)  # keys whose values only the engine understands

    # --- values -------------------------------------------------------------------------------------------------------

    def row(self, name: str) -> Key | None:
        """The row of a key, or of the section that it stands in."""
        if name in self.keys:
            return self.keys[name]
        return next((key for section, key in self.sections.items() if name.startswith(f"{section}.")), None)

    def get(self, name: str, default: Any = OMIT) -> Any:
        """The value of a key; where it is not given or wrong, the default, or else that of its row, or else None."""
        if name in self.values:
            return self.values[name]
        if default is OMIT:
            row = self.keys.get(name)
            default = row.default if row else OMIT
        return None if default is OMIT else default

    def has(self, prefix: str) -> bool:
        """True if a key is given, or any key of a section."""
        return any(is_within(name, prefix) for name in self.entries)

    def wrong(self, *names: str) -> bool:
        """True if any of some keys is given with a value that cannot be used."""
        return any(name in self.entries and name not in self.values for name in names)

    @property
    def has_errors(self) -> bool:
        """True if any finding so far is an error."""
        return any(problem.severity == "error" for problem in self.problems)

    def placed(self) -> dict[str, Any]:
        """Path of the spec → value, of the rows whose value goes there as it is; given, or the row's default."""
        rows = ((name, key) for name, key in self.keys.items() if key.as_is)
        return {key.to: self.get(name) for name, key in rows if name in self.values or key.default is not OMIT}

    # --- reading ------------------------------------------------------------------------------------------------------

    def take(self, name: str, entry: Entry) -> None:
        """Keeps an entry and reads its value by the row, or adds what is wrong with it."""
        self.entries[name] = entry
        self.values.pop(name, None)  # of an earlier entry, which no longer counts
        key = self.row(name)
        if key is None:
            self.problems.append(self.unknown(name, entry))
            return
        if not self.is_filled(name, key, entry):
            return
        try:
            value = key.read(entry.value)
        except ValueError as error:
            if not self.is_for_engine(name, entry, error):
                self.problems.append(entry.problem("error", "bad-value", str(error), self.advice(name, key, error)))
            return
        self.values[name] = value
        if self.REJECTED and key.disposition == "rejected" and not self.is_quiet(key, value):
            if self.engine and self.engine == self.ENGINE:
                self.problems.append(entry.key_problem(*self.unknown_here(self.version(name))))
            else:
                self.refuse(name, key)

    def version(self, name: str) -> Versions | None:
        """The versions of the system that have a key; None: none has it, or nothing is known of them."""
        return versions(self.VERSIONS).get(name) if self.VERSIONS else None

    def unknown(self, name: str, entry: Entry) -> Problem:
        """The finding for a key that the table does not have."""
        known = self.version(name)
        if known is None:
            return entry.key_problem("error", "unknown-key", self.UNKNOWN, did_you_mean(name, tuple(self.keys)))
        if known.gone:
            why = f"{self.SYSTEM} no longer has it: it is gone since {self.RELEASE}{known.gone}; it has no effect here"
            return entry.key_problem("warning", "removed-key", why, "remove it")
        return entry.key_problem(*self.unknown_here(known))

    def unknown_here(self, known: Versions | None) -> tuple[Severity, str, str, str]:
        """(severity, code, why, fix) for a key that its system has, and that Seatrial's own trainer does not know."""
        if self.engine == self.ENGINE:
            why = f"it goes to {self.SYSTEM} as it stands, and Seatrial's own figures do not count it"
            return "info", "only-of-engine", why, NO_CHANGE
        since = f" since {self.RELEASE}{known.since}" if known and known.since else ""
        why = f"{self.SYSTEM} has it{since}, Seatrial's own trainer has not, and trains without it"
        return "warning", "not-known-here", why, f"remove it, or run it with --engine {self.ENGINE}"

    def is_before(self, version: str) -> bool:
        """True if a key is given that is gone since a version."""
        found = (known.gone for name in self.entries if (known := self.version(name)) and known.gone)
        return any(in_order(gone) <= in_order(version) for gone in found)

    def report_versions(self) -> None:
        """Adds that no version of the system has all of the given keys, and which known ones the newest has no more."""
        known = {name: found for name in self.entries if (found := self.version(name))}
        for name in [name for name, each in known.items() if each.gone and name in self.values]:
            why = f"{self.SYSTEM} no longer has it: it is gone since {self.RELEASE}{known[name].gone}"
            self.add(name, "info", "removed-key", why, "no change is needed for an older version")
        why = contradiction(known, {name: entry.key for name, entry in self.entries.items()}, self.RELEASE)
        if why:
            first = next(name for name, each in known.items() if each.gone)
            self.add(first, "warning", "versions", f"no version of {self.SYSTEM} has all keys: {why}", "remove one")

    def holds_secret(self, name: str) -> bool:
        """True if a key's value is kept out of the spec."""
        return is_secret(name)

    def for_engine(self) -> Iterator[tuple[str, Entry]]:
        """The given keys that mean something to their own system; those with a wrong value aside, and secrets."""
        for name, entry in self.entries.items():
            row = self.row(name)
            is_note = row is not None and row.effective is not None  # it repeats what another key decides
            is_read = row is None or name in self.values or name in self.of_engine
            if not is_note and not self.holds_secret(name) and is_read:
                yield name, entry

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if a value is there to be read, and no placeholder; a dialect that has placeholders reports them."""
        return True

    def is_for_engine(self, name: str, entry: Entry, error: ValueError) -> bool:
        """True if a value that cannot be read here goes to the engine all the same, with a finding."""
        return False

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        """The fix for a value that a reader refused."""
        return getattr(error, "fix", "") or coerce.advice(key.read)

    def is_quiet(self, key: Key, value: Any) -> bool:
        """True if no effect is expected of a value."""
        return value in key.quiet

    def refuse(self, name: str, key: Key) -> None:
        """Adds the error about a rejected key."""
        also = [value for value in key.quiet if value is not None]
        shown = "it" if is_secret(name) else coerce.shown(self.entries[name].value)
        fix = f"remove it, or make it {coerce.shown(also[0])}" if also else "remove it"
        fix += f", or run it with --engine {self.ENGINE}" if self.ENGINE else ""
        self.add(name, "error", self.REJECTED, f"{shown} is not supported: {key.why}", fix)

    # --- findings -----------------------------------------------------------------------------------------------------

    def place(self, name: str) -> tuple[str, Mark | None]:
        """(path, mark) of a finding about a key that is not given."""
        return name, None

    def add(self, name: str, severity: Severity, code: str, why: str, fix: str) -> None:
        """Adds a finding about a key, at its place if it has one."""
        if name in self.entries:
            self.problems.append(self.entries[name].problem(severity, code, why, fix))
        else:
            path, mark = self.place(name)
            self.problems.append(Problem(severity=severity, code=code, path=path, why=why, fix=fix, mark=mark))

    def missing(self, name: str, why: str = "the run needs it, and it is not given") -> None:
        """Adds an error about a key that is not given, or null; none where its value is wrong anyway."""
        if name not in self.entries or (name in self.values and self.values[name] is None):
            self.add(name, "error", "missing-key", why, f"add it, or give {name}=… on the command line")

    def loud(self, disposition: Disposition, *, aside: Iterable[str] = ()) -> Iterator[tuple[str, Key]]:
        """(name, row) of the given keys of a disposition of which an effect may be expected."""
        for name, value in self.values.items():
            key = self.row(name)
            if key and key.disposition == disposition and name not in aside and not self.is_quiet(key, value):
                yield name, key

    def by_reason(self, disposition: Disposition, *, aside: Iterable[str] = ()) -> dict[str, list[str]]:
        """The names of the same keys by their reason, without those that repeat what another key decides."""
        reasons: dict[str, list[str]] = {}
        for name, key in self.loud(disposition, aside=aside):
            if key.effective is None:
                reasons.setdefault(key.why, []).append(name)
        return reasons

    def without_effect(self, *, together: bool = True, aside: Iterable[str] = ()) -> None:
        """Adds what is ignored, in one finding for all of it or one for each key."""
        reasons = self.by_reason("ignored", aside=aside)
        whys = {name: why for why, names in reasons.items() for name in names}
        if together and len(whys) > 1:
            each = "; ".join(f"{listed(names)} ({why})" for why, names in reasons.items())
            first = min(whys, key=list(self.values).index)
            self.add(first, "info", "no-effect", f"{len(whys)} keys have no effect here: {each}", NO_CHANGE)
            return
        for name, why in whys.items():
            self.add(name, "info", "no-effect", f"it has no effect here: {why}", NO_CHANGE)

    # --- origins ------------------------------------------------------------------------------------------------------

    def origin(self, name: str, note: str = "") -> Origin:
        """The origin of a key's value."""
        if name in self.values:
            return self.entries[name].origin(note)
        return Origin(kind="default", key=name, note=f"{self.SYSTEM}'s default{f'; {note}' if note else ''}")

    def origins(self, derived: Mapping[str, Origin] | None = None) -> dict[str, Origin]:
        """Path of the spec → origin: a key that is given, else what the dialect derived it from, else a row's default.

        Of several keys for one path the last counts, but null says nothing where another says something.
        """
        rows = ((name, key) for name, key in self.keys.items() if key.as_is and key.default is not OMIT)
        found = {key.to: self.origin(name) for name, key in rows}
        found |= derived or {}
        given: set[str] = set()
        for name, value in self.values.items():
            key = self.row(name)
            for path in key.paths if key else ():
                if value is not None or path not in given:
                    found[path] = self.origin(name)
                    given.add(path)
        return found


def listed(names: Iterable[str]) -> str:
    """Some keys by their last names, and how many more there are."""
    return some([name.rpartition(".")[2] for name in names], MOST_NAMES)
