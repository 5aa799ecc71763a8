"""The profile of a run's device: measured by `seatrial calibrate` where it was, else by published constants."""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from seatrial.errors import InputError, Problem, reason_of
from seatrial.estimate import hardware, time_profile
from seatrial.estimate.time_profile import Profile
from seatrial.runs.files import write_text
from seatrial.spec import RunSpec

FOLDER = "SEATRIAL_PROFILES"  # a variable that names the folder of profiles; else it is in the user's data
CPU = "cpu"


def folder() -> Path:
    """The folder of the profiles."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    from platformdirs import user_data_path  # late: most commands need none

    return user_data_path("seatrial") / "profiles"


def profile_for(spec: RunSpec) -> Profile | None:
    """The measured profile of the run's device, else the published one; None where neither is known.

    A run that names no device takes this machine's processor, if that was measured.
    """
    device, name = hardware.find(spec.topology.device), _name(spec)
    return (measured(name)[0] if name else None) or time_profile.published(device)


def unused(spec: RunSpec) -> tuple[Problem, ...]:
    """A warning where the run's device was measured, and its profile cannot be used."""
    name = _name(spec)
    return measured(name)[1] if name else ()


def _name(spec: RunSpec) -> str | None:
    """That of the run's device in its profile; None for one that is not known."""
    if device := hardware.find(spec.topology.device):
        return device.name
    return cpu_name() if spec.topology.device in (None, CPU) else None


def measured(device: str) -> tuple[Profile | None, tuple[Problem, ...]]:
    """A profile that `calibrate` has written for this version; of one that cannot be read, a warning."""
    path, why = _file(device), "it is no profile"
    try:
        return time_profile.from_dict(json.loads(path.read_text(encoding="utf-8"))), ()
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    except time_profile.OtherVersion as error:
        why = str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    again = f"seatrial calibrate{' --cpu' if device.startswith(CPU) else ''}"
    why += f", and is not used until `{again}` has measured again"
    return None, (Problem(severity="warning", code="device-profile", path=str(path), why=why, fix=f"run {again}"),)


def check_folder() -> None:
    """Makes the folder of the profiles. Raises InputError where none can be written there."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder()):
            pass
    except OSError as error:
        why, fix = f"no profile can be kept there: {reason_of(error)}", f"name another folder by {FOLDER}"
        raise InputError.single("unwritable", str(folder()), why, fix) from None


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
