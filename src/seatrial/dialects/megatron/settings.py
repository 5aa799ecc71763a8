"""A Megatron command → the arguments that it gives, by name, each with its entry; what is wrong is reported."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from seatrial.command import is_secret
from seatrial.dialects import jobs
from seatrial.dialects.containers import Around, around
from seatrial.dialects.jobs import EACH, NODES
from seatrial.dialects.megatron.arguments import (
    ALIASES,
    ARGUMENTS,
    LAUNCHER,
    OTHER_ARGUMENTS,
    flag,
    several,
    strategy,
)
from seatrial.dialects.megatron.script import ASSUMED_DEVICES, NETWORK, SCRIPTS, VARIABLES, arguments
from seatrial.dialects.table import settings as table
from seatrial.dialects.table.coerce import text
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import OMIT, Key, to
from seatrial.dialects.table.overrides import Override
from seatrial.dialects.table.suggestions import did_you_mean, distance
from seatrial.dialects.table.versions import Versions, versions
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.source import Node
from seatrial.spec import Origin

ALL: Mapping[str, Key] = {**ARGUMENTS, **OTHER_ARGUMENTS}
TORCHRUN = "torchrun."  # before the name of an option of torchrun
OURS: Mapping[str, Key] = {  # what only an override says: --model and --gpu
    "model": to("model", text), "topology.device": to("topology.device", text),
}  # fmt: skip
_WRITTEN, _OPTIONS = tuple(f"--{name}" for name in ALL), tuple(f"--{name}" for name in LAUNCHER)
_LONG_NAME = 8  # letters; a shorter name with two others may well be another
_MOST_LOOKS = 200  # variables whose spelling is checked

_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")
_HYPHENS = "-\u2010\u2011\u2012\u2013\u2014\u2212"
_LOOKALIKES = {
    **dict.fromkeys(_HYPHENS[1:], "a hyphen"), **dict.fromkeys("\u00a0\u2009\u202f", "a space"),
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "a quote"),
}  # fmt: skip
# Names that the launcher sets for its processes; like secrets, they are not passed on.
_LAUNCHERS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES"))

# What Megatron derives, each with how.
_REPLICAS = "devices ÷ (tensor × context × pipeline), in Megatron's order of ranks"
_DERIVED = {
    "parallelism.within_node.data": _REPLICAS, "parallelism.across_nodes.data": _REPLICAS,
    "batch.global_batch_size": "micro batch × data-parallel replicas", "model.ffn_dim": "from the hidden size",
    "model.head_dim": "hidden size ÷ heads", "model.num_kv_heads": "one for each head",
    "optimizer.decay_steps": "the run's steps",
}  # fmt: skip


@dataclass(kw_only=True)
class Settings(table.Settings):
    """What a command gives, by argument; options of torchrun have `torchrun.` before their names.

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
    of_forks: set[str] = field(default_factory=set)  # arguments that no Megatron-LM has which is known here

    def get(self, name: str, default: Any = OMIT) -> Any:
        """An argument's value by any of its names, or Megatron's default for it."""
        other = ALIASES.get(name)
        return super().get(other if other in self.values and name not in self.values else name, default)

    __getitem__ = get

    def given(self, name: str) -> bool:
        """Whether an argument is there; of a flag, whether it is on."""
        return self.values.get(name) not in (None, False, ())

    def place(self, name: str) -> tuple[str, Mark | None]:
        return self.script or (name if name in OURS else f"--{name}"), self.mark

    def unknown(self, name: str, entry: Entry) -> Problem:
        """What to say of an argument without a row: with Megatron as the engine, its own fork may have it."""
        if name in self.of_forks:
            why = "no Megatron-LM that is known here has it; it goes to this one as it stands"
            fix = did_you_mean(f"--{name}", _WRITTEN, otherwise="")
            fix = f"no change is needed, if this one has it{f'; {fix}' if fix else ''}"
            return entry.key_problem("warning", "unknown-argument", why, fix)
        return super().unknown(name, entry)

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        if key.read is flag:
            return "write it alone to turn it on, and omit it to turn it off"
        return super().advice(name, key, error)

    def is_quiet(self, key: Key, value: Any) -> bool:
        is_off = value is False and key.read is flag  # as an override may say
        return is_off or any(_same(value, quiet) for quiet in key.quiet)

    def refuse(self, name: str, key: Key) -> None:
        fix = f"remove {self.entries[name].key}, or run it with --engine {self.ENGINE}"
        self.add(name, "error", self.REJECTED, key.why, fix)

    def origin(self, name: str, note: str = "") -> Origin:
        """Where a value came from: the command, the script, or Megatron's defaults."""
        if name in self.entries:
            return self.entries[name].origin()
        if name in self.values:
            return Origin(kind="default", key=self.decided_by.get(name) or f"--{name}", note=f"{self.script}'s")
        is_flag = self.keys[name].read is flag
        return Origin(kind="default", key=f"--{name}", note="not given" if is_flag else "Megatron-LM's default")

    def origins(self, derived: Mapping[str, Origin] | None = None) -> dict[str, Origin]:
        """Where each value came from; what is derived has a note."""
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
        given = {name: entry for name, row, entry in rows if row is None or row.disposition != "done"}
        if self.script:
            return {name: entry.text for name, entry in given.items() if name in VARIABLES.keys() - _LAUNCHERS}
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
            self.problems.append(self.entries[first].key_problem("info", "no-effect", why, "no change is needed"))


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same, as numbers where they are numbers."""
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return bool(a == b)


def settings(request: Request) -> Settings:
    """What a command and its overrides give. Raises InputError where it does not start Megatron."""
    members = request.document.root.members
    argv = members["argv"].value if isinstance(members["argv"].value, list) else []
    outside = around(argv)
    place = next((i for i in range(outside.behind, len(argv)) if _is_program(argv, i)), None)
    if place is None:
        why = "the command does not start pretrain_gpt.py, train_llama3.sh or train_llama2.sh"
        at, fix = members["argv"].mark, "give a command that starts one of them"
        raise InputError.single("unknown-program", request.document.file, why, fix, at)
    name = _program(argv[place])
    script = name if name in SCRIPTS else ""
    options = VARIABLES if script else {f"{TORCHRUN}{option}": key for option, key in LAUNCHER.items()}
    found = Settings(
        keys={**ALL, **options, **OURS}, file=request.document.file, mark=argv[place].mark, script=script,
        around=outside, engine=request.engine, job=jobs.requested(argv[:place]),
    )  # fmt: skip
    stated = {name: Entry.of(name, node) for name, node in members["environment"].members.items()}
    if script:
        stated |= _assignments(found, argv[place + 1 :])
        _take_variables(found, stated | _overrides(found, request.overrides))
        return found
    _take_launcher(found, argv[:place])
    for option, values in _groups(argv[place + 1 :]):
        _take_argument(found, option, values)
    for name, entry in _overrides(found, request.overrides).items():
        found.take(name, entry)
        if found.values.get(name) is False:
            del found.values[name], found.entries[name]
    _take_environment(found, stated)
    found.report_ignored()
    found.report_versions()
    return found


def _program(word: Node) -> str:
    return str(word.value).rpartition("/")[2]


def _is_program(argv: Sequence[Node], place: int) -> bool:
    is_module = place > 0 and argv[place - 1].value == "-m" and str(argv[place].value).endswith("pretrain_gpt")
    return is_module or _program(argv[place]) in ("pretrain_gpt.py", *SCRIPTS)


# --- words as argparse takes them -------------------------------------------------------------------------------------


def _is_value(word: str) -> bool:
    """Whether argparse takes a word for a value, and not for an argument: a blank makes it one, unless it is known."""
    is_known = word.startswith("--") and word[2:].partition("=")[0] in ALL
    return not word.startswith("-") or bool(_NUMBER.fullmatch(word)) or word == "-" or (" " in word and not is_known)


def _groups(words: Sequence[Node]) -> Iterator[tuple[Node | None, list[Node]]]:
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


def _take_argument(found: Settings, option: Node | None, values: Sequence[Node]) -> None:
    """Takes one argument with its values; words that are left over are stray."""
    if option is None:
        _stray(found, values)
        return
    name, equals, value = str(option.value).removeprefix("--").partition("=")
    key = ALL.get(name) if str(option.value).startswith("--") else None
    known = found.version(name) if str(option.value).startswith("--") else None
    if key is None and known is None and _is_of_a_fork(found, str(option.value).partition("=")[0]):
        found.of_forks.add(name)
        known = Versions(values="*", since="", gone="")
    if key is None and known is None:
        _unknown_argument(found, option)
        return
    if name in found.entries:
        why = f"it is given here and at {found.entries[name].key_mark}; only the last one counts"
        found.report(option, f"--{name}", "given-twice", why, "keep one of the two", "warning")
    is_flag = key.read is flag if key else known is not None and not known.values
    is_several = key.read in (several, strategy) if key else known is not None and known.values in ("*", "?")
    taken = 0 if equals or is_flag else len(values) if is_several else 1
    if taken > len(values):
        found.report(option, f"--{name}", "missing-value", "its value is missing", "write it after the argument")
        return
    texts = [value] if equals else [str(word.value) for word in values[:taken]]
    given: Any = texts if is_several else f"={value}" if is_flag and equals else next(iter(texts), None)
    mark = values[0].mark if taken else option.mark
    found.take(name, Entry(key=f"--{name}", value=given, text=" ".join(texts), mark=mark, key_mark=option.mark))
    _stray(found, values[taken:], option, has_value=bool(taken))


def _is_sound(word: str) -> bool:
    """Whether a word could be an argument of some program's."""
    return re.fullmatch(r"--[A-Za-z][\w-]*", word) is not None


def _is_of_a_fork(found: Settings, word: str) -> bool:
    """Whether an argument may be one of the program's own that trains, which another Megatron-LM does not have."""
    return found.engine == found.ENGINE and _is_sound(word) and not _is_misspelt(word)


def _is_misspelt(word: str) -> bool:
    """Whether a mistake or two make a known argument of another, rather than an author who named one of his own."""
    name = word.lower().replace("_", "-").strip("-")
    most = 1 if len(name) < _LONG_NAME else 2
    known = (*ALL, *versions("megatron"))
    return any(abs(len(each) - len(name)) <= most and distance(name, each) <= most for each in known)


def _stray(found: Settings, words: Sequence[Node], option: Node | None = None, *, has_value: bool = False) -> None:
    """A finding about words that no argument takes, behind one that has taken what it takes."""
    if words and not str(words[0].value)[:1].isascii():
        _unknown_argument(found, words[0])
    elif words:
        before = f"{option.value} before it takes {'one value' if has_value else 'none'}" if option else ""
        why = f"{before or 'no argument precedes it'}, and pretrain_gpt.py takes no positional arguments"
        fix = "remove it, or add the argument that it belongs to"
        fix += '; values with blanks need quotes, and arrays of them "${ARGS[@]}"' if option and has_value else ""
        found.report(words[0], str(words[0].value), "stray-word", why, fix)


def _unknown_argument(found: Settings, node: Node) -> None:
    word = str(node.value)
    is_argument = word.startswith("--")
    name = word.partition("=")[0] if is_argument else word
    odd = next((character for character in name if character in _LOOKALIKES), None)
    why = "pretrain_gpt.py has no such argument" if is_argument else "arguments begin with two hyphens"
    why = f"U+{ord(odd):04X} only looks like {_LOOKALIKES[odd]}" if odd else why
    fix = did_you_mean(f"--{name.lstrip(_HYPHENS)}", _WRITTEN)
    if not odd and _is_sound(name) and not _is_misspelt(name):
        why = "no pretrain_gpt.py that is known here has such an argument"
        fix += f"; if this one has it, run it with --engine {found.ENGINE}"
    found.report(node, name, "unknown-argument", why, fix)


# --- overrides --------------------------------------------------------------------------------------------------------


def _overrides(found: Settings, overrides: Sequence[Override]) -> dict[str, Entry]:
    """The settings that are overridden, by name; those that only an override can say are kept at once."""
    entries = {}
    for override in overrides:
        entry = Entry(key=override.key, value=override.text, text=override.text)
        name = _meant(found.script, override.key)
        if name in OURS:
            found.take(name, entry)
        elif name:
            entries[name] = entry
        else:
            known = [*VARIABLES, *ARGUMENTS] if found.script else [*ALL, *LAUNCHER]
            known = [*VARIABLES, *known] if override.key.isupper() else known
            why, fix = "the command has no setting of this name", did_you_mean(entry.key, known)
            found.problems.append(entry.problem("error", "unknown-override", why, fix))
    return entries


def _meant(script: str, key: str) -> str:
    """The name of a setting as overrides give it: `TP`, `train-iters`, `--train_iters`, `nnodes`; else nothing."""
    name = key.removeprefix("--").replace("_", "-")
    if key in OURS:
        return key
    if script:
        return key.upper() if key.upper() in VARIABLES else ""
    option = name.replace("-", "_")
    return name if name in ALL or name in versions("megatron") else f"{TORCHRUN}{option}" if option in LAUNCHER else ""


# --- launchers --------------------------------------------------------------------------------------------------------

_TORCHRUN = ("torchrun", "torch.distributed.launch", "torch.distributed.run")


def _take_launcher(found: Settings, words: Sequence[Node]) -> None:
    """The options of torchrun before the program; without it, those of srun that say how many processes there are."""
    start = next((i for i, word in enumerate(words) if _program(word) in _TORCHRUN), None)
    if start is None:
        for path, name in ((NODES, "nnodes"), (EACH, "nproc_per_node")):
            if path in found.job:
                found.take(f"{TORCHRUN}{name}", replace(found.job[path], value=found.job[path].text))
        _take_mpirun(found, words)
        return
    for option, values in _groups(words[start + 1 :]):
        if option is not None:  # else it is an interpreter or a wrapper
            _take_torchrun(found, option, values)


_ALL_PROCESSES = ("-np", "--np", "-n", "-c")
_OF_A_NODE = ("-npernode", "--npernode", "-N", "-ppn", "-perhost")


def _take_mpirun(found: Settings, words: Sequence[Node]) -> None:
    """How many processes mpirun starts, one for each device, and how many of them on a node: all, where it says not."""
    start = next((i for i, word in enumerate(words) if _program(word) in ("mpirun", "mpiexec")), None)
    if start is None:
        return
    pairs = list(zip(words[start + 1 :], words[start + 2 :], strict=False))

    def number(names: tuple[str, ...]) -> Node | None:
        return next((value for name, value in pairs if name.value in names and str(value.value).isdecimal()), None)

    total, each = number(_ALL_PROCESSES), number(_OF_A_NODE)
    if total is None:
        return
    processes, of_a_node = int(str(total.value)), int(str((each or total).value))
    if of_a_node and processes % of_a_node == 0:
        for name, value, node in (
            ("nnodes", processes // of_a_node, total),
            ("nproc_per_node", of_a_node, each or total),
        ):
            entry = Entry(key="mpirun -np", value=str(value), text=str(value), mark=node.mark, key_mark=node.mark)
            found.take(f"{TORCHRUN}{name}", entry)


def _take_torchrun(found: Settings, option: Node, values: Sequence[Node]) -> None:
    word = str(option.value)
    written, equals, value = word.lstrip("-").partition("=")
    name = "module" if word == "-m" else written.replace("-", "_")
    if name not in LAUNCHER:
        why, fix = "torchrun has no such option", did_you_mean(f"--{name}", _OPTIONS)
        if written in ALL:
            why, fix = f"{why}: it is one of pretrain_gpt.py's", "write it after the program"
        found.report(option, word.partition("=")[0], "unknown-argument", why, fix)
    elif LAUNCHER[name].read is not flag:
        is_behind = bool(values) and not equals
        node, value = (values[0], str(values[0].value)) if is_behind else (option, value)
        entry = Entry(key=f"--{written}", value=value, text=value, mark=node.mark, key_mark=node.mark)
        found.take(f"{TORCHRUN}{name}", entry)


def _take_environment(found: Settings, stated: Mapping[str, Entry]) -> None:
    """What the processes get of the variables that are not the script's."""
    for name, entry in stated.items():
        if is_secret(name):
            why = "it looks like a secret, so it is neither stored nor passed on"
            found.problems.append(entry.key_problem("info", "secret", why, "put it into a file, and name that"))
        elif name not in _LAUNCHERS:
            found.environment[name] = entry.text
    for name, fix in _misspelt([name for name in found.environment if name not in NETWORK], NETWORK):
        why = "it reaches every process as it is, but looks misspelt"
        found.problems.append(stated[name].key_problem("warning", "misspelt-variable", why, fix))


def is_passed_on(name: str) -> bool:
    """Whether a variable is one that reaches the processes as it stands."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and not (is_secret(name) or name in _LAUNCHERS)


def _misspelt(names: Sequence[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, advice) of the variables that nobody reads, but one wrong character makes of one that is read."""
    for name in names[:_MOST_LOOKS]:
        if name.upper() in known or any(distance(name, other) == 1 for other in known):
            yield name, did_you_mean(name, tuple(known))


# --- ROCm's scripts ---------------------------------------------------------------------------------------------------


def _assignments(found: Settings, words: Sequence[Node]) -> dict[str, Entry]:
    """The variables behind a script's name."""
    entries: dict[str, Entry] = {}
    was_stray = False
    for word in words:
        name, equals, value = str(word.value).partition("=")
        is_stray = not equals or not name.isidentifier()
        if not is_stray:
            entries[name] = Entry(key=name, value=value, text=value, mark=word.mark, key_mark=word.mark)
        elif not was_stray:  # of several in a row, the first
            why = f"only KEY=VALUE may follow {found.script}"
            found.report(word, str(word.value), "stray-word", why, "write it as KEY=VALUE, without spaces")
        was_stray = is_stray
    return entries


def _take_variables(found: Settings, entries: Mapping[str, Entry]) -> None:
    """The variables of a script, those behind its name before those of the environment."""
    others = {name: entry for name, entry in entries.items() if name not in VARIABLES}
    for name, entry in entries.items():
        if name in VARIABLES and (entry.text or name == "DATA_PATH"):  # else empty is the same as absent
            found.take(name, entry)
    unknown = [name for name in others if not (name in _LAUNCHERS or is_secret(name))]
    for name, fix in _misspelt(unknown, VARIABLES):
        severity: Severity = "error" if len(name) > 2 else "warning"  # CC is not CP, but looks like it
        why = f"{found.script} has no such variable, and would use its default"
        found.problems.append(others[name].key_problem(severity, "unknown-variable", why, fix))
    passed = [name for name, entry in entries.items() if name in others or (name in NETWORK and entry.text)]
    _take_environment(found, {name: entries[name] for name in passed})
    found.report_ignored()
    _derive_arguments(found, entries)


def _derive_arguments(found: Settings, entries: Mapping[str, Entry]) -> None:
    """The arguments that a script's variables come to, each with the entry of the variable that decides it."""
    for argument, value, variable in list(arguments(found.script, found.values)):
        found.values[argument], found.decided_by[argument] = value, variable
        found.entries.pop(argument, None)
        if variable in entries:
            found.entries[argument] = entries[variable]
