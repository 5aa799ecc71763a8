"""The arguments and options that verbs of the command line share; related ones reach a verb as one value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import reduce, wraps
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click
from click import argument, option

from seatrial.errors import InputError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Any], Any]


class InOrder(click.Group):
    """A group whose --help names the verbs in the order of the file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            if item.value in self.commands:
                item.help = self.commands[item.value].get_short_help_str(limit=80)
        return items


ARGUMENTS = "seatrial.arguments"  # of the context's meta: the words behind --


class WithArguments(click.Command):
    """A verb that passes the words behind `--` on, apart from its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta[ARGUMENTS] = tuple(behind)
        return super().parse_args(ctx, own)


class WithSeveral(click.Command):
    """A verb whose `--with` takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        takes = False
        for word in args:
            repeats = takes and not word.startswith("-") and words[-1] != "--with"
            takes = word == "--with" or (takes and not word.startswith("-"))
            words += ["--with", word] if repeats else [word]
        return super().parse_args(ctx, words)


class _Place(click.Path):
    """The path of a file or a folder; an empty text is not the current folder."""

    def __init__(self, kind: str) -> None:
        super().__init__(path_type=Path)
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            path = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name if param else ""
            code = "run-directory" if path == "--out" else "no-path"
            why, fix = f"it names no {'folder' if self.name == 'directory' else 'file'}", "name one"
            raise InputError.single(code, path, why, f"{fix}, or omit it" if path[:1] == "-" else fix)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="dir" if self.name == "directory" else "file")]


FILE = _Place("file")
FOLDER = _Place("directory")
POSIX = click.Path(path_type=PurePosixPath)


def offered(what: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """For `shell_complete`: the values that `completion.offers` has under a name."""

    def complete(context: click.Context, parameter: click.Parameter, word: str) -> Any:
        from seatrial.commands.completion.offers import offer  # late: only a shell that completes asks

        return offer(what, context, word)

    return complete


def together(*parameters: Decorator) -> Decorator:
    """Several arguments and options as one decorator; they stand in --help in this order."""
    return lambda function: reduce(lambda inner, parameter: parameter(inner), reversed(parameters), function)


def _as_one(name: str, kind: str, fields: str, *parameters: Decorator) -> Decorator:
    """The parameters, of which a verb gets those named in `fields` as one dataclass: `kind` is module:class."""

    def decorate(verb: Any) -> Any:
        @wraps(verb)
        def call(**given: Any) -> Any:
            own = {field: given.pop(field) for field in fields.split()}
            module, _, made = kind.partition(":")
            given[name] = getattr(import_module(module), made)(**own) if own.get("config", 1) else None
            return verb(**given)

        return together(*parameters)(call)

    return decorate


def share(text: str, *, of: str, path: str, code: str) -> float:
    """The fraction that "3%" or "0.03" stands for. Raises InputError for anything else, or from 100% on."""
    match = re.fullmatch(r"\s*\+?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value < 1:
        why, fix = f"{text!r} is no share of {of}", "give a percentage, 10%, or a fraction, 0.1"
        raise InputError.single(code, path, why, fix)
    return value


# --- callbacks: each reads a value before the verb begins, or refuses it ----------------------------------------------


def _engine(context: click.Context, parameter: click.Parameter, name: str) -> str:
    from seatrial.engines import known

    return known(name)


def _published(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    return None if text is None else share(text, of="a published result", path="--published", code="not-a-fraction")


def _slower(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    return None if text is None else share(text, of="the speed", path="--fail-if-slower", code="limit")


def _tokens(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from seatrial.logs.numbers import quantity

    found = re.fullmatch(r"[\d.,_]+(?:e\d+)?[KMBGT]?", text, re.IGNORECASE)
    number = quantity(text.upper().replace("E", "e")) if found else None
    if not number:
        why = f"{text!r} is not a number of tokens"
        raise InputError.single("not-a-number", "--tokens", why, "give a number, such as 15T or 300B")
    return number


def _price(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    value = float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text, re.ASCII) else 0.0
    if not 0 < value < math.inf:
        why, fix = f"{text!r} is no price", "give a number above 0, such as 2.5, in any currency"
        raise InputError.single("not-a-price", "--price-per-device-hour", why, fix)
    return value


# --- what verbs share -------------------------------------------------------------------------------------------------

cell = together(
    option(
        "--model",
        shell_complete=offered("models"),
        help="Which model's cell of the file (CVS); also model=… as an override.",
    ),
    option(
        "--gpu", shell_complete=offered("gpus"), help="Which GPU's cell of the file (CVS); also gpu=… as an override."
    ),
)
_overrides = argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    shell_complete=offered("overrides"),
    help="Overrides, in the spelling of the file; any unique suffix of a key's path will do.",
)
_CONFIGURATION = ("given", "seatrial.commands.check:ConfigArguments", "config overrides model gpu")
configuration = _as_one(
    *_CONFIGURATION, argument("config", type=FILE, help="The configuration file, in any dialect."), _overrides, cell
)
optional_configuration = _as_one(
    *_CONFIGURATION,
    argument("config", type=FILE, required=False, help="The configuration file; without one, any run."),
    _overrides,
    cell,
)
where = _as_one(
    "where",
    "seatrial.launch.where:Where",
    "on cluster container python directory ssh exclude slurm kubernetes queue_deadline",
    option("--on", type=click.Choice(["local", "ssh", "slurm", "kubernetes"]), default="local", help="Where to run."),
    option("--cluster", type=FILE, help="The file that names the hosts: CVS's, or a list of them."),
    option(
        "--container",
        type=click.Choice(["docker", "podman", "pyxis"]),
        help="Container engine for the configuration's image.",
    ),
    option("--python", default="python3", help="The Python of the hosts, or of the container."),
    option(
        "--directory",
        type=POSIX,
        metavar="PATH",
        shell_complete=offered("folders"),
        help="Where run directories are on the hosts (default: /var/tmp/seatrial-USER).",
    ),
    option("--ssh", type=click.Choice(["asyncssh", "system"]), default="asyncssh", help="SSH client."),
    option(
        "--exclude",
        multiple=True,
        metavar="HOST",
        shell_complete=offered("hosts"),
        help="Omit this host of the cluster file.",
    ),
    option(
        "--slurm",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=offered("slurm-options"),
        help="Slurm options: partition=…, account=…, time=…",
    ),
    option(
        "--kubernetes",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=offered("kubernetes-options"),
        help="Kubernetes options: namespace=…, queue=…",
    ),
    option("--queue-deadline", metavar="TIME", help="The longest wait for hosts in the queue: 30m, 2h."),
)
engine = option(
    "--engine",
    default="native",
    callback=_engine,
    shell_complete=offered("engines"),
    help="The trainer: native is Seatrial's own; maxtext and megatron are those of the container or the hosts.",
)
rehearse = option("--rehearse", is_flag=True, help="Shrink model and batch to fit this machine.")
of_a_run = together(  # that `run` starts, and `plan` shows
    configuration,
    where,
    engine,
    rehearse,
    option("--text", is_flag=True, help="In a rehearsal: learn from real text, so that the loss falls visibly."),
    option("--collapse", is_flag=True, help="Shrink only the mesh: same training, fewer devices."),
)


def compiling(verb: Any) -> Any:
    """`--compile` and `--compile-for DEVICE` as one argument `compile_for`: None without them, "" for the run's own."""

    @wraps(verb)
    def call(*, compiles: bool, compile_for: str | None, **given: Any) -> Any:
        return verb(compile_for=compile_for or ("" if compiles or compile_for is not None else None), **given)

    return together(
        option(
            "--compile", "compiles", is_flag=True, help="Compile the step for the run's device, as if it were here."
        ),
        option(
            "--compile-for",
            metavar="DEVICE",
            shell_complete=offered("compile-targets"),
            help="The same for another: h100, h200, b200 or cpu.",
        ),
    )(call)


out = option("--out", type=FOLDER, metavar="DIRECTORY", help="The run directory (default: runs/<name>-<time>).")
family = together(
    option(
        "--family",
        default="auto",
        shell_complete=offered("families"),
        help="The logs' trainer; auto recognises it. generic: a guess is right; metrics: a metrics file.",
    ),
    option("--pattern", type=FILE, help="A file that says how the step lines of another trainer look."),
)
shown = together(
    option("--tokens", callback=_tokens, help="Estimate time-to-train for N tokens, e.g. 15T."),
    option(
        "--price-per-device-hour",
        callback=_price,
        metavar="PRICE",
        help="Show what the run and its tokens cost, in the currency of this price.",
    ),
)
judging = _as_one(
    "options",
    "seatrial.commands.judge:JudgeOptions",
    "steps policy convention published tokens price_per_device_hour",
    option("--steps", type=int, metavar="N", help="The planned number of steps, if the log does not say it."),
    option(
        "--policy",
        shell_complete=offered("policies"),
        help="Which steps count for speed: steady (default), cvs-jax, last-10, …",
    ),
    option(
        "--convention",
        shell_complete=offered("conventions"),
        help="How FLOPs are counted: causal, non_causal, palm (default: as the log does).",
    ),
    option(
        "--published",
        callback=_published,
        metavar="SHARE",
        help="Fail if more than this below the nearest published result: 10%.",
    ),
    shown,
)
fail_if_slower = option(
    "--fail-if-slower", callback=_slower, metavar="SHARE", help="Exit with 1 if B is slower by more than this: 3%."
)


def format_option(*names: str, meaning: str = "text for people, json for scripts.") -> Decorator:
    """--format, of which the first name is the default."""
    return option("--format", "output", type=click.Choice(names), default=names[0], help=meaning)
