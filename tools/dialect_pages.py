"""The reference pages of the dialects, as Markdown, from their tables: no row of them is written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from seatrial.dialects.explain import table
from seatrial.dialects.fields import FIELDS
from seatrial.dialects.spec_fields import SpecField, fields_of, schema
from seatrial.dialects.table.keys import OMIT, Disposition, Key, spelling
from seatrial.dialects.table.versions import Versions, versions
from seatrial.spec import METRICS, RunSpec

VERSIONED = ("maxtext", "megatron", "nxdt", "cvs")  # the dialects that have a table of versions
MADE = "<!-- Made from the tables of the code by `make golden`; do not edit. -->"


@dataclass(frozen=True, kw_only=True)
class Page:
    """A dialect's page: the module that holds its table, and what stands above the table."""

    title: str
    module: str
    intro: str
    others: str = "Any other key is an error."


_CONTAINER = (
    "Of the `docker run`, `podman run`, `apptainer exec`, `enroot start` or `srun --container-image=…` that stands "
    "before the program, image, mounts, devices, rights and the size of shared memory become the run's `container`, "
    "in which `--container` starts it; what a run's container lacks is reported."
)
_CELLS = "Keys of `config` are written with it; all others stand in a cell, `model_params.<topology>.<model>.<gpu>`."
PAGES: dict[str, Page] = {
    "cvs-jax": Page(
        title="CVS, JAX", module="cvs.jax",
        intro=f"A configuration of ROCm's Cluster Validation Suite for MaxText. {_CELLS} What a cell does not say is "
        "[MaxText](maxtext.md)'s own default.",
    ),
    "cvs-megatron": Page(
        title="CVS, Megatron-LM", module="cvs.megatron",
        intro=f"A configuration of ROCm's Cluster Validation Suite for Megatron-LM's `train_llama3.sh`. {_CELLS}",
    ),
    "cvs-2026": Page(
        title="CVS of 2026, MaxText", module="cvs_2026",
        intro="The newer form of a CVS configuration: one file, and beside it `*_threshold.json` with the targets. "
        "`x.*` stands for the keys of a mapping; those of `maxtext_config` are MaxText's.",
    ),
    "cvs-2026-megatron": Page(
        title="CVS of 2026, Megatron-LM", module="cvs_2026.megatron",
        intro="The newer forms of a CVS configuration for Megatron-LM: `framework`, `config` and `model_params`, or "
        "`train_params` and `paths`; beside it `*_threshold.json` with the targets. `x.*` stands for a mapping's keys.",
    ),
    "maxtext": Page(
        title="MaxText", module="maxtext",
        intro="A command (`train.py base.yml key=value …`), a YAML file of the same keys, or variables `M_<KEY>`. What "
        f"is not said is MaxText's own default. {_CONTAINER}",
    ),
    "megatron": Page(
        title="Megatron-LM", module="megatron",
        intro="A command that starts `pretrain_gpt.py`, with its arguments (here without `--`), or the variables (in "
        "capitals) of ROCm's `train_llama3.sh`. How many nodes and devices there are, its launcher says: torchrun, "
        "DeepSpeed's runner, `accelerate launch`, srun, mpirun or horovodrun, and the file that `--hostfile` or "
        f"accelerate's `--config_file` names, where it is there. {_CONTAINER}",
    ),
    "nxdt": Page(
        title="NxDT", module="nxdt",
        intro="A YAML configuration of AWS's NeuronX Distributed Training, with OmegaConf's interpolations: `${trainer."
        "max_steps}`, `${.x}`, `${..x}`, `${multiply:a,b}`, `${sum:a,b}`. `${oc.env:NAME}` is read where the command "
        "line allows it by name: `allow_env=NAME,OTHER`. Two keys are Seatrial's own, and no part of NxDT: "
        "`model.vocab_size`, `topology.device`.",
        others="Another key in `data` or `model`, but for `model.optim`, is the user's own: a note says that nothing "
        "here reads it, and one that looks like a known key is reported. Any other key is an error.",
    ),
}  # fmt: skip

# How each kind of keys is counted, what stands above it, and what its last column says.
_SECTIONS: dict[Disposition, tuple[str, str, str]] = {
    "done": ("Make the run:", "What makes the run", "goes to"),
    "equivalent": ("the same result whatever they say:", "The same result whatever they say", "why"),
    "ignored": ("without effect here:", "Without effect here", "why"),
    "rejected": ("refused unless they say what happens anyway:", "Refused", "why"),
}
_ENTRIES = {
    "execution.environment": "The environment variable of this name, of every process.",
    "container.environment": "The environment variable of this name, of the container.",
    "execution.xla_flags": "The XLA flag of this name.",
}


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of every page."""
    tables = {name: table(page.module) for name, page in PAGES.items()}
    yield "native.md", _native()
    for name, page in PAGES.items():
        yield f"{name}.md", _page(page, tables[name])
    yield "dialects.md", _names(tables)


def _page(page: Page, keys: Mapping[str, Key]) -> str:
    system = page.module.partition(".")[0]
    known = versions(system) if system in VERSIONED else {}
    counts = Counter(key.disposition for key in keys.values())
    said = ", ".join(f"{words} {counts[each]}" for each, (words, _, _) in _SECTIONS.items() if counts[each])
    parts = [f"# {page.title}", MADE, page.intro, f"{len(keys)} keys. {said}. {page.others}"]
    for disposition, (_, title, last) in _SECTIONS.items():
        lines = [_row(name, row, known.get(name)) for name, row in keys.items() if row.disposition == disposition]
        heads = ("key", "meaning", "default", "versions", last)
        columns = [n for n, _ in enumerate(heads) if any(line[n] for line in lines)]  # none without a word in it
        if lines:
            shown = ([line[n] for n in columns] for line in lines)
            parts += [f"## {title}", _table([heads[n] for n in columns], shown)]
    parts += _deviations(page)
    return "\n\n".join(parts) + "\n"


def _row(name: str, row: Key, known: Versions | None) -> tuple[str, str, str, str, str]:
    meaning = _cell(row.meaning or (_meaning(row.paths[0]) if row.paths else ""))
    said = {"since": known.since, "gone since": known.gone} if known else {}
    held = ", ".join(f"{word} {version}" for word, version in said.items() if version)
    if row.disposition == "done":
        default = "" if row.default is OMIT else _code(row.shown or _shown(row.default))
        return _code(name), meaning, default, held, ", ".join(map(_code, row.paths)) or _cell(row.why)
    quiet = ", ".join(_code(_shown(value)) for value in row.quiet)
    accepted = f"; accepted: {quiet}" if row.disposition == "rejected" and quiet else ""
    return _code(name), meaning, "", held, _cell(row.why) + accepted


def _meaning(path: str) -> str:
    field = FIELDS.get(path) or FIELDS.get(path.rpartition(".")[0])
    if path.startswith("expectations.") and path.rpartition(".")[2] in METRICS:
        kind = METRICS[path.rpartition(".")[2]]
        return f"{kind.title} that the run must reach [{kind.unit}]; {kind.better} is better."
    return _described(path) if path in FIELDS else _ENTRIES.get(path.rpartition(".")[0], field.meaning if field else "")


def _described(path: str) -> str:
    field = FIELDS[path]
    return f"{field.meaning.removesuffix('.')} [{field.unit}]." if field.unit else field.meaning


def _deviations(page: Page) -> list[str]:
    """The places where the original does something else than its documentation says."""
    deviations = getattr(import_module(f"seatrial.dialects.{page.module}"), "DEVIATIONS", ())
    if not deviations:
        return []
    lines = ((_code(each.key), *map(_cell, (each.documented, each.actual, each.here))) for each in deviations)
    said = "What the documentation says, and what the code does; the last column is what holds here."
    if any(getattr(each, "touches", None) for each in deviations):
        said += " `seatrial check` warns where a file meets one of these."
    heads = ("key", "documented", "what it does", "here")
    return ["## Documented and done", said, _table(heads, lines)]


# --- native -----------------------------------------------------------------------------------------------------------


def _native() -> str:
    intro = (
        "Seatrial's own configuration, YAML or JSON: every field of a run by its name. Everything with a default may "
        "be omitted; keys that begin with `_` are notes. `seatrial schema` prints this as a JSON Schema, which "
        "editors use ([how](../howto/convert.md))."
    )
    parts = ["# Native", MADE, intro]
    fields = fields_of(RunSpec)
    parts.append(_table(_HEADS, (_field(field, name) for name, field in fields.items() if not _has_table(field))))
    for name, field in fields.items():
        if _has_table(field):
            parts += [f"## {name}", _described(name), _table(_HEADS, _fields(field, name))]
    parts += ["## expectations", "Each item:", _table(_HEADS, _fields(fields["expectations"], "expectations"))]
    return "\n\n".join(parts) + "\n"


_HEADS = ("key", "meaning", "value", "default")


def _has_table(field: SpecField) -> bool:
    return field.part is not None and not field.is_list


def _fields(part: SpecField, path: str) -> Iterator[tuple[str, ...]]:
    if f"{path}.preset" in FIELDS:
        yield _code(f"{path}.preset"), _cell(_described(f"{path}.preset")), "a name", ""
    assert part.part is not None
    for name, field in fields_of(part.part).items():
        below = f"{path}.{name}"
        if _has_table(field):
            yield _code(below), _cell(_described(below)), "mapping" + ", or null" * field.is_optional, ""
            yield from _fields(field, below)
        else:
            yield _field(field, below)


def _field(field: SpecField, path: str) -> tuple[str, ...]:
    default = "**needed**" if field.is_needed else "" if field.name == "name" else _code(_shown(field.default))
    return _code(path), _cell(_described(path)), _kind(field) + ", or null" * field.is_optional, default


def _kind(field: SpecField) -> str:
    if field.is_list:
        items = {str: "texts", float: "numbers", int: "whole numbers", tuple: "pairs of texts"}
        return f"list of {items.get(field.kind, 'mappings')}"
    if field.words:
        return ", ".join(map(_code, field.words))
    if field.limits:
        return f"{'whole number' if field.kind is int else 'number'} {field.limits}"
    return {bool: "true or false", str: "text"}.get(field.kind, "mapping of names to texts")


# --- all together -----------------------------------------------------------------------------------------------------


def _names(tables: Mapping[str, Mapping[str, Key]]) -> str:
    """One quantity a line, with its keys in each dialect."""
    intro = (
        "What a value of a run is called in each dialect; several keys may say the same. The first column is its path "
        "in a [native](native.md) configuration, and what `seatrial plan CONFIG --explain KEY` knows it by."
    )
    links = [f"[{PAGES[name].title}]({name}.md)" for name in tables]
    lines = []
    for path, _ in schema():
        names = [", ".join(map(_code, spelling(keys, path)[:4])) for keys in tables.values()]
        if any(names):
            lines.append((_code(path), *names))
    return "\n\n".join(["# One quantity, many names", MADE, intro, _table(("native", *links), lines)]) + "\n"


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    made = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in made)


def _code(text: str) -> str:
    return f"`{_escaped(text)}`" if text else "empty"


def _cell(text: str) -> str:
    """Text that Markdown shows as it is; what looks like a tag stays text."""
    return _escaped(text).replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shown(value: Any) -> str:
    """A value as a configuration has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
