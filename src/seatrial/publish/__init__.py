"""Publishes judged runs to experiment trackers, dashboards, CI servers and data frames: one module a target.

`contract.py` says what a target gets and must keep to. `publication.py` makes that of a run directory; `live.py` serves
the figures of a run that goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from seatrial.errors import InputError
from seatrial.publish.contract import Destination, Publication, Target

__all__ = ["GRAFANA", "TARGETS", "Destination", "Publication", "publish", "require", "require_package"]

TARGETS: dict[str, Target] = {
    "mlflow": Target(
        meaning="a run in an MLflow experiment", takes=("url", "project"), package="mlflow", extra="publish-mlflow"
    ),
    "wandb": Target(
        meaning="a run in a W&B project; without network with WANDB_MODE=offline",
        takes=("out", "project"), package="wandb", extra="publish-wandb",
    ),
    "tensorboard": Target(
        meaning="a folder per run below --out", takes=("out",), needs=("out",), package="tensorboardX",
        extra="publish-tensorboard",
    ),
    "prometheus": Target(
        meaning="a file of node exporter's textfile collector", takes=("out",), package="prometheus_client",
        extra="publish-prometheus",
    ),
    "junit": Target(meaning="a file for CI servers", takes=("out",)),
    "csv": Target(meaning="four tables in the folder --out", takes=("out",), needs=("out",)),
    "parquet": Target(
        meaning="the same four tables", takes=("out",), needs=("out",), package="pyarrow", extra="publish-parquet"
    ),
}  # fmt: skip
GRAFANA = Path(__file__).with_name("grafana.json")  # a dashboard over what `--to prometheus` and --metrics-port give
_OPTIONS = ("out", "url", "project")


def publish(publications: Sequence[Publication], name: str, to: Destination) -> str:
    """Publishes runs to a target of the table. Raises as `require` does, and LaunchError where a target refuses."""
    require(name, to)
    text: str = import_module(f"seatrial.publish.{name}").publish(publications, to)
    return text


def require(name: str, to: Destination) -> None:
    """Raises InputError for an unknown target, options that are not its own, and a package that is not installed."""
    if name not in TARGETS:
        raise InputError.single("unknown-target", "--to", f"there is no {name!r}", f"one of: {', '.join(TARGETS)}")
    target = TARGETS[name]
    for option in _OPTIONS:
        given = getattr(to, option) is not None
        if given and option not in target.takes:
            fix = f"omit it; {name} takes {', '.join(f'--{each}' for each in target.takes)}"
            raise InputError.single("not-an-option", f"--{option}", f"it means nothing to {name}", fix)
        if not given and option in target.needs:
            why, fix = f"{name} writes several files, and nothing says where", f"name a folder: --{option} FOLDER"
            raise InputError.single("no-destination", f"--{option}", why, fix)
    require_package(f"--to {name}", target.package, target.extra)


def require_package(option: str, package: str, extra: str) -> None:
    """Raises InputError where an optional package is not installed."""
    if package and find_spec(package) is None:
        why, fix = f"it needs {package}, which is not installed", f"pip install 'seatrial[{extra}]'"
        raise InputError.single("not-installed", option, why, fix)
