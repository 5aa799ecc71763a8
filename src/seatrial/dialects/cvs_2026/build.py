"""Container, targets and device, which both kinds of CVS configurations of 2026 say alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seatrial.dialects.cvs.build import NOTHING_KNOWN
from seatrial.dialects.cvs.thresholds import Targets, read_targets
from seatrial.dialects.cvs_2026.file import File
from seatrial.dialects.cvs_2026.keys import MOVED
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import below
from seatrial.dialects.typed import as_name
from seatrial.estimate import hardware
from seatrial.spec import Container, Resolved, gather_part


def targets(file: File, cells: list[str]) -> Targets:
    """The targets of the threshold file for the first of some cells that it has."""
    return read_targets(file.entries.get("threshold_json"), Path(file.file), cells, enforced=_enforces(file))


def _enforces(file: File) -> bool:
    """True if the verdict judges the targets of the threshold file."""
    return file.get("enforce_thresholds") is not False


def finish(file: File, resolved: Resolved, found: Targets, *, name: str, dialect: str) -> Resolved:
    """The configuration as the other dialect has read it, completed with what only this file says."""
    spec, placed = resolved.spec, file.placed()
    judged = _enforces(file)
    if not judged and found.expectations:
        why = "it says false: the targets of the threshold file are for the record only, and the verdict ignores them"
        file.add("enforce_thresholds", "info", "not-judged", why, "set it to true")
    if spec is not None:
        spec = replace(
            spec, name=as_name(name), dialect=dialect, container=_container(file),
            expectations=tuple(found.expectations) if judged else (),
            **{path: placed[path] for path in ("nic_type", "hf_token_file", "log_dir") if path in placed},
        )  # fmt: skip
    own = {
        path: file.entries[name].origin() for name, key in file.keys.items() if name in file.entries
        for path in key.paths if key.as_is or path == "topology.device"
    }  # fmt: skip
    problems = (*file.problems, *resolved.problems, *found.problems)
    return Resolved(spec=spec, origins={**resolved.origins, **found.origins, **own}, problems=problems)


def _container(file: File) -> Container | None:
    if not file.get("container.image"):
        return None
    arguments = "container.runtime.args"
    volumes = (volume.partition(":") for volume in file.get(f"{arguments}.volumes") or ())
    variables = {**below(f"{arguments}.env", file.entries), **below("container.env", file.entries)}
    moved = {path.rpartition(".")[2] for path in MOVED if path.startswith("container.env.")}
    return gather_part(
        Container, "container", file.placed(), volumes=tuple((here, there or here) for here, _, there in volumes),
        environment={name: coerce.text(e.value) for name, e in variables.items() if name not in moved},
    )  # fmt: skip


def device(file: File) -> str | None:
    """The GPU's name in `hardware.DEVICES`; None, with a finding, where nothing is known about it."""
    name = file.selected.get("gpu") or file.get("gpu_arch") or file.get("gpu_name")
    found = hardware.find(name)
    key = next((key for key in ("gpu_arch", "gpu_name") if key in file.entries), None)
    if name and found is None and key:
        file.add(key, "warning", "unknown-device", NOTHING_KNOWN, "write mi300x, mi325x, mi350x or mi355x")
    return found.name if found else None
