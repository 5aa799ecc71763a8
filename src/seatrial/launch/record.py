"""The file in a run directory by which a target finds its run again."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from seatrial.errors import InputError
from seatrial.runs.files import read_text

T = TypeVar("T")


def read_record(run_dir: Path, name: str, kind: type[T], target: str) -> T:
    """A target's record of a run, as a dataclass. Raises InputError where there is none of that kind."""
    from pydantic import TypeAdapter  # late: only the border pays for it

    try:
        return TypeAdapter(kind).validate_json(read_text(run_dir / name), strict=True)
    except (OSError, ValueError) as error:  # pydantic's is a ValueError
        reason = f": {error.strerror}" if isinstance(error, OSError) else ", or is damaged"
        why = f"it is not the directory of a run {target} ({name} cannot be read{reason})"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that the run printed") from error
