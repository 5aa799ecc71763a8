"""Values of a CVS file → the parts of a spec that both of its dialects build alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects import placeholders
from seatrial.dialects.cvs.settings import Cell, Settings, cells, gather, select
from seatrial.dialects.cvs.table import ENV, NODES, Table
from seatrial.dialects.table.entries import Entry, Request, below
from seatrial.dialects.table.keys import OMIT
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.typed import as_name
from seatrial.errors import Problem
from seatrial.estimate import hardware
from seatrial.spec import Container, Distributed, Execution, Expectation, Origin, gather_part

SECTIONS_OF_FILE = ("config", "model_params")
SELECTORS = ("topology", "model", "gpu")

NOTHING_KNOWN = "nothing is known about this GPU: there will be no MFU, and no target is compared with its peak"

Placed = dict[str, Any]  # path of the spec → value


def opened(request: Request, table: Table) -> tuple[Settings, Cell | None]:
    """A file's settings and the selected cell, with all findings so far. Raises InputError where there are no cells."""
    root = request.document.root
    problems = [
        Entry.of(name, node).key_problem(
            "error", "unknown-key", "only config and model_params stand here", did_you_mean(name, SECTIONS_OF_FILE)
        )
        for name, node in placeholders.given(root).items()
        if name not in SECTIONS_OF_FILE
    ]
    config = root.members["config"]
    if not isinstance(config.value, dict):
        problems.append(
            Entry.of("config", config).problem("error", "bad-value", "a mapping belongs here", "write { … }")
        )
    wanted = {override.key: override.text for override in request.overrides if override.key in SELECTORS}
    cell, about_it = select(cells(root), wanted, root.members["model_params"].mark)
    if about_it:
        problems.append(about_it)
    overrides = [override for override in request.overrides if override.key not in SELECTORS]
    settings = gather(request, cell, overrides, table)
    settings.problems[:0] = [*request.document.problems, *problems]
    settings.report_versions()
    return settings, cell


def place(settings: Settings) -> tuple[Placed, dict[str, Origin]]:
    """Spec path → value and → origin, for every value that goes somewhere as it is, CVS's defaults included.

    Of a variable that a key and a section give, the section counts: CVS exports its entries last.
    """
    placed, origins = _of_sections(settings)
    exported = set(placed)
    known = {name: key.default for name, key in settings.keys.items() if key.default is not OMIT} | settings.values
    for name, value in known.items():
        row = settings.keys.get(name)
        for path in row.paths if row else ():
            if path in exported and not settings.is_override(name):
                continue
            placed[path], origins[path] = value, settings.origin(name)
    for name, source in settings.table.derived.items():
        if name not in settings.values and source in settings.values and name in settings.entries:
            path = "container.environment." + name.removeprefix(f"{ENV}.")
            placed[path] = str(settings.values[source])
            origins[path] = replace(settings.entries[source].origin(), kind="derived", note=f"from {source}")
    return placed, origins


def _of_sections(settings: Settings) -> tuple[Placed, dict[str, Origin]]:
    placed: Placed = {}
    origins: dict[str, Origin] = {}
    for section, key in settings.sections.items():
        entries = settings.section(section) if key.to else {}
        if entries:
            origins[key.to] = Origin(kind="file", key=settings.path(section))
        placed |= {f"{key.to}.{part}": key.read(entry.value) for part, entry in entries.items()}
        origins |= {f"{key.to}.{part}": entry.origin() for part, entry in entries.items()}
    return placed, origins


def parts(cell: Cell, placed: Placed, **distributed: Any) -> dict[str, Any]:
    """The parts of a spec that every CVS file has alike; `distributed` are defaults of that part."""
    container = None
    if "container.image" in placed:
        container = gather_part(
            Container, "container", placed,
            volumes=tuple(below("container.volumes", placed).items()),
            environment=below("container.environment", placed),
        )  # fmt: skip
    execution = {name: below(f"execution.{name}", placed) for name in ("xla_flags", "environment")}
    targets = below("expectations", placed)
    return {
        "name": as_name(f"{cell.model}-{cell.gpu}-{cell.topology}"),
        "execution": gather_part(Execution, "execution", placed, **execution),
        "distributed": gather_part(Distributed, "distributed", placed, **distributed),
        "container": container,
        "expectations": tuple(Expectation(metric=metric, value=value) for metric, value in targets.items() if value),
        **{name: placed.get(name) for name in ("nic_type", "hf_token_file", "log_dir")},
    }


def made_origins(settings: Settings, cell: Cell, defaults: Mapping[str, str]) -> dict[str, Origin]:
    """The origins of values that no key gives as they are; `defaults`: path → note, for those of what CVS starts."""
    return {path: Origin(kind="default", note=note) for path, note in defaults.items()} | {
        "topology.device": Origin(kind="file", key=cell.path, text=cell.gpu, mark=cell.gpu_mark),
        "execution.environment": Origin(kind="file", key="config", note="the variables that CVS exports"),
        "expectations": Origin(kind="file", key=settings.path("result_dict")),
    }


def nodes(settings: Settings, cell: Cell, placed: Placed, origins: dict[str, Origin]) -> int:
    """The number of nodes; where none is given, one to go on with, so that everything else can be checked."""
    if "topology.num_nodes" not in placed:
        placed["topology.num_nodes"] = 1 if cell.topology == "single_node" else 2
        note = f"assumed until {NODES} is filled in"
        origins["topology.num_nodes"] = Origin(kind="default", key=NODES, note=note)
    elif cell.topology == "single_node" and placed["topology.num_nodes"] > 1:
        settings.add(
            NODES, "error", "not-supported-yet",
            "under single_node CVS starts as many independent jobs of one node each, and looks at the last of them "
            "only; one of them can be run here",
            "give config.nnodes=1, or use a multi_node configuration for one job over all nodes",
        )  # fmt: skip
    return int(placed["topology.num_nodes"])


def device(settings: Settings, cell: Cell) -> str | None:
    """The name of the cell's GPU in `hardware.DEVICES`; None, with a finding, where nothing is known about it."""
    found = hardware.find(cell.gpu)
    if found is None:
        settings.problems.append(
            Problem(
                severity="warning", code="unknown-device", path=cell.path, mark=cell.gpu_mark,
                why=NOTHING_KNOWN, fix=did_you_mean(cell.gpu, hardware.DEVICES),
            )
        )  # fmt: skip
    return found.name if found else None
