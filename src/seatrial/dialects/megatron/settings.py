"""The settings of a Megatron command, by argument, each with its entry; and words as argparse groups them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from seatrial.command import is_secret
from seatrial.dialects import jobs
from seatrial.dialects.containers import Around
from seatrial.dialects.megatron.arguments import ALIASES, ARGUMENTS, OTHER_ARGUMENTS, flag
from seatrial.dialects.megatron.script import ASSUMED_DEVICES, VARIABLES
from seatrial.dialects.table import settings as table
from seatrial.dialects.table.coerce import NotAChoice, text
from seatrial.dialects.table.entries import NO_CHANGE, Entry
from seatrial.dialects.table.keys import OMIT, Key, to
from seatrial.dialects.table.suggestions import did_you_mean, distance
from seatrial.errors import Mark, Problem, Severity
from seatrial.source import Node
from seatrial.spec import Origin

ALL: Mapping[str, Key] = {**ARGUMENTS, **OTHER_ARGUMENTS}
TORCHRUN = "torchrun."  # before the name of an option of torchrun
OURS: Mapping[str, Key] = {  # what only an override says: --model and --gpu
    "model": to("model", text), "topology.device": to("topology.device", text),
}  # fmt: skip
_LONG_WORD = 8  # characters; a shorter word with two others may well be another
_MOST_LOOKS = 200  # variables whose spelling is checked

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # to argparse, -1e-3 is the name of an argument
# Names that the launcher sets for its processes; like secrets, they are not passed on.
SET_BY_LAUNCHERS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES"))

# What Megatron derives, each with how.
_REPLICAS = "devices ÷ (tensor × context × pipeline), in Megatron's order of ranks"
_DERIVED = {
    "parallelism.within_node.data": _REPLICAS, "parallelism.across_nodes.data": _REPLICAS,
    "batch.global_batch_size": "micro batch × data-parallel replicas", "model.ffn_dim": "from the hidden size",
    "model.head_dim": "hidden size ÷ heads", "model.num_kv_heads": "one for each head",
    "optimizer.decay_steps": "the run's steps",
}  # fmt: skip


def _has_half_moments(s: Settings) -> bool:
    return s.given("bf16") and s["exp-avg-dtype"] == s["exp-avg-sq-dtype"] == "bf16"


def _has_no_files(s: Settings) -> bool:
    return s.given("mock-data") or not (s.given("data-path") or s.given("train-data-path"))


# Arguments that say more than the field of the spec that they go to, and when: Megatron gets them as they stand. A run
# that begins at step 0 with its weights has no use for --no-load-optim.
KEPT: Mapping[str, Callable[[Settings], bool]] = {
    "tensorboard-dir": lambda s: True,
    "no-load-optim": lambda s: not s.given("finetune"),
    **{name: lambda s: s.given("use-precision-aware-optimizer") and not _has_half_moments(s)
       for name in ("use-precision-aware-optimizer", "exp-avg-dtype", "exp-avg-sq-dtype")},
    **dict.fromkeys(("reset-position-ids", "reset-attention-mask", "eod-mask-loss"), _has_no_files),
}  # fmt: skip


@dataclass(kw_only=True)
class Settings(table.Settings):
    """The settings of a command, by argument; options of torchrun have `torchrun.` before their names.

    Of a script, `entries` has its variables, and `values` also the arguments that it comes to.
    """

    SYSTEM: ClassVar[str] = "Megatron-LM"
    VERSIONS: ClassVar[str] = "megatron"
    RELEASE: ClassVar[str] = "core "
    ENGINE: ClassVar[str] = "megatron"

    mark: Mark  # of the command
    script: str = ""  # train_llama3.sh, where that is what is started
    decided_by: dict[str, str] = field(default_factory=dict)  # argument → the variable that it comes from
    environment: dict[str, str] = field(default_factory=dict)
    around: Around = field(default_factory=Around)
    job: Mapping[str, Entry] = field(default_factory=dict)  # what is requested of Slurm, by spec path
    unstated: str = ""  # why the number of devices is assumed, where nothing states it
    has_underscores: bool = False  # whether its arguments are spelled --num_layers, as those of some forks
    of_forks: set[str] = field(default_factory=set)  # arguments that no Megatron-LM has which is known here

    def get(self, name: str, default: Any = OMIT) -> Any:
        """An argument's value by any of its names, or Megatron's default for it."""
        other = ALIASES.get(name)
        return super().get(other if other in self.values and name not in self.values else name, default)

    __getitem__ = get

    def given(self, name: str) -> bool:
        """True if an argument is there; of a flag, whether it is on."""
        return self.values.get(name) not in (None, False, ())

    def place(self, name: str) -> tuple[str, Mark | None]:
        return self.script or (name if name in OURS else f"--{name}"), self.mark

    def unknown(self, name: str, entry: Entry) -> Problem:
        """The finding for an argument that the table does not have; with Megatron as the engine, a fork may have it."""
        if name in self.of_forks:
            why = "no Megatron-LM that is known here has it; it goes to this one as it stands"
            fix = did_you_mean(f"--{name}", tuple(f"--{each}" for each in ALL), otherwise="")
            fix = f"no change is needed, if this one has it{f'; {fix}' if fix else ''}"
            return entry.key_problem("warning", "unknown-argument", why, fix)
        return super().unknown(name, entry)

    def is_for_engine(self, name: str, entry: Entry, error: ValueError) -> bool:
        """A word that no Megatron-LM known here has may be one of its own fork, unless it is a near miss."""
        if isinstance(error, NotAChoice) and not self.script and (same := _in_other_case(error, entry.text)):
            self.values[name] = self.keys[name].read(same)
            self.of_engine.add(name)
            why = f"{self.SYSTEM} spells it {same}, and refuses {entry.text}, which forks have; it is read as that"
            self.problems.append(entry.problem("warning", "spelling", why, f"write {same}, unless this is such a fork"))
            return True
        if self.engine != self.ENGINE or self.script or not _is_of_a_fork(error, entry.text):
            return False
        self.of_engine.add(name)
        why = f"{error}; it goes to {self.SYSTEM} as it stands, and Seatrial's own figures do not count it"
        self.problems.append(entry.problem("warning", "only-of-engine", why, "no change is needed, if this one has it"))
        return True

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        if key.read is flag:
            return "write it alone to turn it on, and omit it to turn it off"
        advice = super().advice(name, key, error)
        if _is_of_a_fork(error, self.entries[name].text) and not self.script:
            return f"{advice}; if this Megatron-LM has it, run it with --engine {self.ENGINE}"
        return advice

    def is_quiet(self, key: Key, value: Any) -> bool:
        is_off = value is False and key.read is flag  # as an override may say
        return is_off or any(_same(value, quiet) for quiet in key.quiet)

    def refuse(self, name: str, key: Key) -> None:
        fix = f"remove {self.entries[name].key}, or run it with --engine {self.ENGINE}"
        self.add(name, "error", self.REJECTED, key.why, fix)

    def origin(self, name: str, note: str = "") -> Origin:
        """The origin of a value: the command, the script, or Megatron's defaults."""
        if name in self.entries:
            return self.entries[name].origin()
        if name in self.values:
            return Origin(kind="default", key=self.decided_by.get(name) or f"--{name}", note=f"{self.script}'s")
        is_flag = self.keys[name].read is flag
        return Origin(kind="default", key=f"--{name}", note="not given" if is_flag else "Megatron-LM's default")

    def origins(self, derived: Mapping[str, Origin] | None = None) -> dict[str, Origin]:
        """The origin of each value; what is derived has a note."""
        rows = sorted(ARGUMENTS.items(), key=lambda row: row[1].default is not OMIT)  # flags before defaults
        rows = [(name, key) for name, key in rows if key.read is flag or key.default is not OMIT]
        absent = {path: self.origin(name) for name, key in rows for path in key.paths}
        notes = {path: Origin(kind="derived", note=note) for path, note in _DERIVED.items()}
        found = super().origins({**absent, **notes, **self.around.origins, **jobs.origins(self.job), **(derived or {})})
        if "model" in self.entries:
            found = {path: origin for path, origin in found.items() if not path.startswith("model.")}
        if self.script and "topology.devices_per_node" not in found:
            note = f"the script asks torch; {ASSUMED_DEVICES} assumed"
            found["topology.devices_per_node"] = Origin(kind="default", key="HIP_VISIBLE_DEVICES", note=note)
        return found

    def report(self, node: Node, path: str, code: str, why: str, fix: str, severity: Severity = "error") -> None:
        """A finding about a word of the command."""
        problem = Problem(severity=severity, code=code, path=path, why=why, fix=fix, mark=node.mark)
        self.problems.append(problem)

    def holds_secret(self, name: str) -> bool:
        """None of Megatron's own arguments does: their tokens are those of a vocabulary."""
        return is_secret(name) and self.version(name) is None

    def engine_keys(self) -> dict[str, str]:
        """The arguments, or the variables of the script, that no field of the spec holds: Megatron gets them so."""
        rows = ((name, self.row(name), entry) for name, entry in self.for_engine() if name not in OURS)
        given = {
            name: entry for name, row, entry in rows
            if row is None or row.disposition != "done" or name in self.of_engine
            or (name in KEPT and self.given(name) and KEPT[name](self))
        }  # fmt: skip
        if self.script:
            return {name: entry.text for name, entry in given.items() if name in VARIABLES.keys() - SET_BY_LAUNCHERS}
        given = {name: entry for name, entry in given.items() if TORCHRUN not in name}
        return {f"--{name}": self._words(name, entry.value) for name, entry in given.items()}

    def _words(self, name: str, value: Any) -> str:
        """The values of an argument as a shell reads them; a flag, which has none, is on."""
        key, known = self.row(name), self.version(name)
        is_flag = key.read is flag if key else known is not None and not known.values
        return "" if is_flag or value is None else shlex.join(value if isinstance(value, list) else [str(value)])

    def report_ignored(self) -> None:
        """One finding for all arguments that have no effect for the same reason."""
        for why, (first, *others) in self.by_reason("ignored").items():
            also = f" (nor do {', '.join(self.entries[name].key for name in others)})" if others else ""
            why = f"it has no effect{also}: {why}"
            self.problems.append(self.entries[first].key_problem("info", "no-effect", why, NO_CHANGE))


def _is_of_a_fork(error: ValueError, word: str) -> bool:
    """True if a value is a word of its own, and not a known one misspelt."""
    if not isinstance(error, NotAChoice) or not word.isascii() or not word.replace("-", "_").isidentifier():
        return False
    errors = 1 if len(word) < _LONG_WORD else 2
    return all(distance(word.lower(), choice.lower()) > errors for choice in error.choices)


def _in_other_case(error: NotAChoice, word: str) -> str:
    """The choice that a word is, but for capitals; "" where it is none."""
    return next((choice for choice in error.choices if choice.lower() == word.lower()), "")


def _same(a: Any, b: Any) -> bool:
    """True if two values are the same, as numbers where they are numbers."""
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return bool(a == b)


# --- words as argparse takes them -------------------------------------------------------------------------------------


def _is_value(word: str) -> bool:
    """True if argparse takes a word for a value, and not for an argument: a blank makes it one, unless it is known."""
    is_known = word.startswith("--") and word[2:].partition("=")[0] in ALL
    return not word.startswith("-") or bool(_NUMBER.fullmatch(word)) or word == "-" or (" " in word and not is_known)


def groups(words: Sequence[Node]) -> Iterator[tuple[Node | None, list[Node]]]:
    """(argument, the words behind it that may be its values); first, without an argument, those before any."""
    option: Node | None = None
    values: list[Node] = []
    for word in words:
        if _is_value(str(word.value)):
            values.append(word)
        else:
            yield option, values
            option, values = word, []
    yield option, values


def is_passed_on(name: str) -> bool:
    """True if a variable is one that reaches the processes as it stands."""
    return name.isascii() and name.isidentifier() and not (is_secret(name) or name in SET_BY_LAUNCHERS)


def misspelt(names: Sequence[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, advice) of the variables that nobody reads, but one wrong character makes of one that is read."""
    for name in names[:_MOST_LOOKS]:
        if name.upper() in known or any(distance(name, other) == 1 for other in known):
            yield name, did_you_mean(name, tuple(known))
