"""Seatrial: did this training run, on this cluster, do what it should?

The Python API has its documentation in `seatrial.api`, which is imported when one of its names is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

__all__ = [  # `__init__.pyi` has their types
    "AxisVerdict", "Check", "Comparison", "Findings", "History", "InputError", "LaunchError", "Mark", "Metrics",
    "PastRun", "PlannedRun", "Problem", "Run", "RunSpec", "SeatrialError", "Table", "Verdict", "Where", "__version__",
    "check", "compare", "history", "judge", "load_run", "plan", "run",
]  # fmt: skip


class _Package(ModuleType):
    """Keeps the names of the API free: `check`, `plan` and `history` are modules too, and importing one of these would
    otherwise put it in the place of the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module("seatrial.api"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
