"""The arguments and options that verbs of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path, PurePosixPath
from typing import Any

import click
from click import argument, option

from seatrial.errors import InputError


class _Folder(click.Path):
    """The path of a folder, except that nothing is not the current one."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            raise InputError.single("run-directory", "--out", "it names no folder", "name one, or leave --out away")
        return super().convert(value, param, ctx)


def _engine(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Refuses an unknown engine before anything that would end the verb for another reason, such as a missing jax."""
    from seatrial.engines import known

    return known(name)


class InOrder(click.Group):
    """A group whose --help names the verbs in the order of the file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


FILE = click.Path(path_type=Path)
FOLDER = _Folder(path_type=Path)
POSIX = click.Path(path_type=PurePosixPath)


def together(*parameters: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Arguments and options that several verbs share, as one decorator; they stand in --help in this order."""
    return lambda function: reduce(lambda inner, parameter: parameter(inner), reversed(parameters), function)


cell = together(
    option("--model", help="Which model's cell of the file (CVS); also model=… as an override."),
    option("--gpu", help="Which GPU's cell of the file (CVS); also gpu=… as an override."),
)
_overrides = argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Overrides, in the spelling of the file; any unique suffix of a key's path will do.",
)
configuration = together(
    argument("config", type=FILE, help="The configuration file, in any dialect."), _overrides, cell
)
optional_configuration = together(
    argument("config", type=FILE, required=False, help="The configuration file; without one, any run."),
    _overrides,
    cell,
)
where = together(
    option("--on", type=click.Choice(["local", "ssh", "slurm"]), default="local", help="Where to run."),
    option("--cluster", type=FILE, help="The file that names the hosts: CVS's, or a list of them."),
    option(
        "--container",
        type=click.Choice(["docker", "podman", "pyxis"]),
        help="Run in the configuration's container, with this.",
    ),
    option("--python", default="python3", help="What starts Seatrial's own trainer on the hosts, or in the container."),
    option("--directory", type=POSIX, metavar="PATH", help="Of runs, on the hosts; by default /var/tmp/seatrial-USER."),
    option("--ssh", type=click.Choice(["asyncssh", "system"]), default="asyncssh", help="Which SSH client to use."),
    option("--exclude", multiple=True, metavar="HOST", help="Leave this host of the cluster file out."),
    option("--slurm", multiple=True, metavar="KEY=VALUE", help="What to ask of Slurm: partition=…, account=…, time=…"),
    option("--queue-deadline", metavar="TIME", help="How long to wait for hosts at most: 30m, 2h."),
)
engine = option(
    "--engine",
    default="native",
    callback=_engine,
    help="What trains: native is Seatrial's own trainer; maxtext and megatron are those of the container or the hosts.",
)
rehearse = option("--rehearse", is_flag=True, help="Shrink model and batch to fit this machine.")
collapse = option("--collapse", is_flag=True, help="Shrink only the mesh: same training, fewer devices.")
out = option("--out", type=FOLDER, metavar="DIRECTORY", help="The run directory; by default runs/<name>-<time>.")
family = option("--family", default="auto", help="Whose logs these are; auto takes every line for what it is.")


def format_option(*names: str, meaning: str = "text for people, json for scripts.") -> Callable[[Any], Any]:
    """--format, of which the first name is the default."""
    return option("--format", "output", type=click.Choice(names), default=names[0], help=meaning)
