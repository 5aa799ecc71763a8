"""What both kinds of CVS configurations of 2026 say beside the words of the system that they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects.cvs.thresholds import Bars
from seatrial.dialects.cvs_2026.file import File
from seatrial.dialects.cvs_2026.keys import MOVED
from seatrial.dialects.table import coerce
from seatrial.dialects.typed import as_name
from seatrial.errors import Mark
from seatrial.estimate import hardware
from seatrial.spec import Container, Resolved


def finish(
    file: File, resolved: Resolved, bars: Bars, *, name: str, dialect: str, extra: Mapping[str, Any]
) -> Resolved:
    """What the other dialect has read, with what only this file says."""
    spec = resolved.spec
    judged = file.value("enforce_thresholds") is not False
    if not judged and bars.expectations:
        why = "it says false: the bars of the threshold file are for the record only, and nothing is held to them"
        file.problems.append(file.entries["enforce_thresholds"].problem("info", "not-judged", why, "set it to true"))
    if spec is not None:
        spec = replace(
            spec, name=as_name(name), dialect=dialect, container=_container(file), **extra,
            expectations=tuple(bars.expectations) if judged else (),
        )  # fmt: skip
    problems = (*file.problems, *resolved.problems, *bars.problems)
    origins = {**resolved.origins, **bars.origins}
    for path, key in (
        ("container.image", "container.image"), ("container.name", "container.name"), ("log_dir", "paths.log_dir"),
        ("hf_token_file", "paths.hf_token_file"), ("topology.device", "gpu_arch"), ("topology.device", "gpu_name"),
        ("container.privileged", "container.runtime.args.privileged"), ("nic_type", "training.nic_type"),
        ("topology.devices_per_node", "training.gpus_per_node"),
    ):  # fmt: skip
        if key in file.entries:
            origins[path] = file.entries[key].origin()
    return Resolved(spec=spec, origins=origins, problems=problems)


def _container(file: File) -> Container | None:
    image = file.value("container.image")
    if not image:
        return None
    arguments = "container.runtime.args"
    volumes = []
    for volume in file.value(f"{arguments}.volumes") or ():
        host, _, inside = volume.partition(":")
        volumes.append((host, inside or host))
    variables = {**file.below(f"{arguments}.env"), **file.below("container.env")}
    moved = {path.rpartition(".")[2] for path in MOVED if path.startswith("container.env.")}
    return Container(
        image=image, name=file.value("container.name"), devices=tuple(file.value(f"{arguments}.devices") or ()),
        volumes=tuple(volumes), environment={k: coerce.text(e.value) for k, e in variables.items() if k not in moved},
        shm_size=file.value(f"{arguments}.shm-size") or file.value(f"{arguments}.shm_size"),
        privileged=bool(file.value(f"{arguments}.privileged")),
        cap_add=tuple(file.value(f"{arguments}.cap_add") or ()),
        security_opt=tuple(file.value(f"{arguments}.security_opt") or ()),
        group_add=tuple(file.value(f"{arguments}.group_add") or ()),
    )  # fmt: skip


def device(file: File) -> str | None:
    """The GPU's name in `hardware.DEVICES`; None, with a finding, where nothing is known about it."""
    name = file.selected.get("gpu") or file.value("gpu_arch") or file.value("gpu_name")
    found = hardware.find(name)
    entry = file.entries.get("gpu_arch") or file.entries.get("gpu_name")
    if name and found is None and entry:
        why = "nothing is known about this GPU: there will be no MFU, and no bar is compared with its peak"
        file.problems.append(entry.problem("warning", "unknown-device", why, "write mi300x, mi325x, mi350x or mi355x"))
    return found.name if found else None


def here(file: File) -> Mark:
    """The beginning of the file, for what stands nowhere in it."""
    return Mark(file=file.request.document.file, line=1, column=1)
