"""Sorts the parts of a configuration that another engine cannot express by how much they matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from seatrial.dialects.table import engine_keys
from seatrial.dialects.table.written import Note, shown
from seatrial.errors import InputError, Problem
from seatrial.spec import RunSpec

# Values that make it another training: with them unsaid, there is nothing to hold the run to.
_DECISIVE = (
    "model", "batch", "steps", "objective.kind", "data.kind", "data.paths", "data.weights", "precision.compute_dtype",
    "precision.quantization", "optimizer.algorithm",
)  # fmt: skip
# Schedules that nothing like exists of elsewhere; of the others the nearest is taken, with a note.
_OWN_SCHEDULES = ("step",)
_HARMLESS_IN_MODEL = ("model.name", "model.vocab_multiple", "model.max_positions", "initialization")
# Values that are said in another way, or that are Seatrial's own business.
_SAID_OTHERWISE = (
    "name", "dialect", "container", "nic_type", "expectations", "hf_token_file", "topology", "distributed",
    "execution.environment", "execution.engine_keys", "model.name",
)  # fmt: skip

# What a layout changes, and of that what an engine needs no words for.
_LAYOUT = (
    "parallelism", "batch", "precision.quantization", "execution.remat", "execution.remat_modules",
    "execution.remat_kept", "execution.remat_offloaded",
)  # fmt: skip
_LAYOUT_SAID = {"maxtext": ("parallelism.sequence_parallel",)}


def _is(path: str, prefixes: Iterable[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def left(notes: Sequence[Note], *, besides: Sequence[str] = ()) -> list[Note]:
    """The notes on values that nobody says, without those that `besides` names by the beginnings of their paths.

    A size of -1 is written as what it comes to.
    """
    said = (*_SAID_OTHERWISE, *besides)
    return [
        note
        for note in notes
        if not _is(note.path, said) and not (_is(note.path, ["parallelism"]) and note.value == -1)
    ]


def _decides(note: Note) -> bool:
    """True if it would be another training without this value."""
    has_own_schedule = note.path == "optimizer.schedule" and note.value in _OWN_SCHEDULES
    return has_own_schedule or (_is(note.path, _DECISIVE) and not _is(note.path, _HARMLESS_IN_MODEL))


def told_layout(spec: RunSpec, engine: str) -> tuple[RunSpec, list[str]]:
    """A layout as an engine can be told it, and the paths of its values that cannot be; ours reads the spec itself.

    The keys of the engine that it would refuse with this layout, as one of the overlap on an axis that is not split,
    are left out.
    """
    from seatrial.dialects import maxtext, megatron  # late: few verbs ask

    written = {"maxtext": maxtext.write, "megatron": megatron.write}
    if engine not in written:
        return spec, []
    while True:
        try:
            notes = left(written[engine](spec).notes, besides=_LAYOUT_SAID.get(engine, ()))
        except InputError as error:
            blamed = [problem.path for problem in error.problems]
            keys = {name: text for name, text in spec.execution.engine_keys.items() if name not in blamed}
            if len(keys) == len(spec.execution.engine_keys):
                return spec, blamed
            spec = replace(spec, execution=replace(spec.execution, engine_keys=keys))
        else:
            return spec, [note.path for note in notes if _is(note.path, _LAYOUT)]


def dropped(spec: RunSpec, engine: str) -> list[str]:
    """The stated keys of another engine that bear on speed or memory there, and that this one does not get."""
    from seatrial.dialects import maxtext, megatron  # late: few runs have any

    tables = {"maxtext": maxtext.KEYS, "megatron": megatron.KEYS}
    said = {*maxtext.SAID, *(f"--{name}" for name in megatron.SAID)}  # by a field too, as far as it bears on that
    found = []
    for name in spec.execution.engine_keys:
        owner = engine_keys.owner(name)
        row = tables[owner].get(name.removeprefix("--"))
        if owner != engine and name not in said and (row is None or row.disposition != "ignored"):
            found.append(name)
    return found


def notes_on(notes: Sequence[Note], *, title: str, name: str) -> list[str]:
    """A sentence for each value that the engine does not get. Raises InputError where it would train something else."""
    if refused := [note for note in notes if _decides(note)]:
        fix = "change it, or use --engine native, which does what the configuration says"
        raise InputError(
            Problem(
                severity="error", code="engine-cannot", path=note.path, fix=fix,
                why=f"{title} (--engine {name}) has no setting for {shown(note.path, note.value)}: {note.why}",
            )
            for note in refused
        )  # fmt: skip
    return [f"{title} does not get {note.path} = {shown(note.path, note.value)}: {note.why}" for note in notes]
