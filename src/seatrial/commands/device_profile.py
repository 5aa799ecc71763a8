"""The profile of a run's device: measured by `seatrial calibrate` where it was, else by published constants."""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.time_profile import Profile
from seatrial.runs.files import write_text
from seatrial.spec import RunSpec

FOLDER = "SEATRIAL_PROFILES"  # a variable that names the folder of profiles; else it is in the user's data
CPU = "cpu"


def folder() -> Path:
    """Where profiles are kept."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    from platformdirs import user_data_path  # late: most commands need none

    return user_data_path("seatrial") / "profiles"


def profile_for(spec: RunSpec) -> Profile | None:
    """The measured profile of the run's device, else the published one; None where neither is known.

    A run that names no device takes this machine's processor, if that was measured.
    """
    device = hardware.find(spec.topology.device)
    if device is None and spec.topology.device not in (None, CPU):
        return None
    return measured(device.name if device else cpu_name()) or time_profile.published(device)


def measured(device: str) -> Profile | None:
    """A profile that `calibrate` has written; one that cannot be read is none."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return time_profile.from_dict(json.loads(_file(device).read_text(encoding="utf-8")))
    return None


def keep(profile: Profile) -> Path:
    """Writes a profile for `profile_for`; its path."""
    path = _file(profile.device)
    write_text(path, json.dumps(time_profile.as_dict(profile), indent=1))
    return path


def _file(device: str) -> Path:
    return folder() / f"{re.sub(r'[^a-z0-9.-]+', '-', device.lower())}.json"


def cpu_name() -> str:
    """This machine's processor and its number of usable cores."""
    model = platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
                break
    return f"{CPU} {model} × {len(os.sched_getaffinity(0))}"
