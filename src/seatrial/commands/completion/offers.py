"""The values that a shell completes an argument or option with.

Each is offered under a name by which the command line asks for it (`options.offered`). Where none of the values begins
as the word does, and a path may stand there, the shell completes paths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from seatrial import source
from seatrial.source import Document, Node

Item = CompletionItem[str]

# Names that are the keys of a table: module, table, and what else may be said.
TABLES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "compile-targets": ("seatrial.estimate.compiled", "TARGETS", ("cpu",)),
    "conventions": ("seatrial.estimate.flops", "CONVENTIONS", ()),
    "devices": ("seatrial.estimate.hardware", "DEVICES", ()),
    "dialects": ("seatrial.dialects.convert", "TARGETS", ()),
    "engines": ("seatrial.engines", "ENGINES", ()),
    "families": ("seatrial.logs", "NAMES", ()),
    "outcomes": ("seatrial.history.summary", "STATES", ()),
    "policies": ("seatrial.metrics", "POLICIES", ()),
    "presets": ("seatrial.spec.presets", "MODELS", ()),
    "publish-targets": ("seatrial.publish", "TARGETS", ()),
}
MOST_RUNS = 200  # of a folder
FOLDER = CompletionItem("", type="dir")
FILE = CompletionItem("", type="file")


def offer(what: str, context: click.Context, word: str) -> list[Item]:
    """The values with this name that begin like the word."""
    if what in TABLES:
        module, table, more = TABLES[what]
        return _beginning(word, (*getattr(import_module(module), table), *more))
    return FUNCTIONS[what](context, word)


def examples(context: click.Context, word: str) -> list[Item]:
    """The names of the examples, with their descriptions."""
    from seatrial.dialects.examples import described

    return [CompletionItem(name, help=about) for name, _, about in described(word)]


def run_directories(context: click.Context, word: str) -> list[Item]:
    """The run directories in the folder that the word names, `runs` without one; else folders."""
    from seatrial.runs.directory import RUNS, is_run

    inside, _, _ = word.rpartition("/")
    folders = [Path(inside or "/")] if "/" in word else [RUNS, Path()]
    found: list[str] = []
    for folder in folders:
        paths = [path for path in _inside(folder) if path.name[:1] != "." and is_run(path)]
        paths = [path for path in paths if str(path).startswith(word) or path.name.startswith(word)]
        found += [str(path) for path in sorted(paths, key=_age)[:MOST_RUNS]]
    return [CompletionItem(name) for name in found] or [FOLDER]


def overrides(context: click.Context, word: str) -> list[Item]:
    """The keys of the given configuration as `key=`, each by the shortest end of its path that is its own.

    Whole paths are offered where the word begins one. Without such a key, files: `check` takes several.
    """
    document = _configuration(context)
    paths = list(dict.fromkeys(_keys(document))) if document else []
    ends = Counter(end for path in paths for end in _ends(path))
    short = [next(end for end in _ends(path) if ends[end] == 1 or end == path) for path in paths]
    keys = dict.fromkeys(key for key in (*short, *(paths if word else ())) if key.startswith(word))
    return [CompletionItem(f"{key}=") for key in keys] or [FILE]


def explained(context: click.Context, word: str) -> list[Item]:
    """The same keys as words."""
    return [CompletionItem(item.value.removesuffix("=")) for item in overrides(context, word) if item.type == "plain"]


def models(context: click.Context, word: str) -> list[Item]:
    """The models of the cells of the given configuration."""
    return _beginning(word, (cell for cell, _ in _cells(context)))


def gpus(context: click.Context, word: str) -> list[Item]:
    """The GPUs of the cells of the given configuration; of one without cells, all that are known."""
    return _beginning(word, (gpu for _, gpu in _cells(context))) or offer("devices", context, word)


def hosts(context: click.Context, word: str) -> list[Item]:
    """The hosts of the given cluster file."""
    from seatrial.dialects import cluster_of

    path = _path(context, "cluster")
    cluster = cluster_of(path)[0] if path else None
    return _beginning(word, (host.name for host in cluster.hosts) if cluster else ())


def ranks(context: click.Context, word: str) -> list[Item]:
    """The ranks whose logs the given run directory has."""
    from seatrial.runs.directory import rank_logs

    run_dir = _path(context, "run_dir")
    return _beginning(word, (str(rank) for rank, _ in rank_logs(run_dir)) if run_dir else ())


def job_options(module: str) -> Callable[[click.Context, str], list[Item]]:
    """The options of a job or a JobSet, which a module has as OPTIONS, as `key=` with the form of their values."""

    def offered(context: click.Context, word: str) -> list[Item]:
        options = import_module(module).OPTIONS
        return [CompletionItem(f"{key}=", help=row.says) for key, row in options.items() if key.startswith(word)]

    return offered


def logs_or_overrides(context: click.Context, word: str) -> list[Item]:
    """Run directories in `runs`, and files; keys of the configuration of --against, where the word begins one."""
    keys = overrides(context, word) if word and _path(context, "against") else [FILE]
    runs = [item for item in run_directories(context, word) if item.type == "plain"] if word else []
    return keys if keys != [FILE] else runs or [FILE]


FUNCTIONS: Mapping[str, Callable[[click.Context, str], list[Item]]] = {
    "examples": examples,
    "explained": explained,
    "files": lambda context, word: [FILE],
    "folders": lambda context, word: [FOLDER],
    "gpus": gpus,
    "hosts": hosts,
    "kubernetes-options": job_options("seatrial.launch.kubernetes.options"),
    "logs-or-overrides": logs_or_overrides,
    "models": models,
    "overrides": overrides,
    "ranks": ranks,
    "run-directories": run_directories,
    "slurm-options": job_options("seatrial.launch.slurm_job"),
    "tokenizers": lambda context, word: _beginning(word, ("byte",)) or [FILE],
}


def _beginning(word: str, names: Iterable[str]) -> list[Item]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(word)]


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _age(path: Path) -> float:
    """The newest sorts first."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _configuration(context: click.Context) -> Document | None:
    """The configuration that stands on the command line."""
    path = _path(context, "config") or _path(context, "against")
    return source.read(path) if path and path.is_file() else None


def _path(context: click.Context, name: str) -> Path | None:
    """The path that an argument or option has so far.

    The parser knows no arguments where the last word is an option that waits for its value: then it reads the words
    before that one, which `shells.answer` gave to the context.
    """
    params = context.params
    if params.get(name) is None:
        before, command = (context.obj or [])[1:-1], context.command
        with command.make_context(context.info_name, before, context.parent, resilient_parsing=True) as earlier:
            params = earlier.params
    return path if isinstance(path := params.get(name), Path) else None


def _cells(context: click.Context) -> list[tuple[str, str]]:
    """(model, GPU) of each cell of the given configuration."""
    document = _configuration(context)
    if document is None or "model_params" not in (document.root.members or {}):
        return []
    from seatrial.dialects.cvs.settings import cells

    return [(cell.model, cell.gpu) for cell in cells(document.root)]


def _keys(document: Document) -> Iterator[str]:
    """The dotted paths of the values of a file; of a command, the names of its variables and arguments."""
    members = document.root.members or {}
    argv = members.get("argv")
    if argv is None or set(members) != {"environment", "argv"}:
        yield from _leaves(document.root, "")
        return
    yield from members["environment"].members or {}
    for word in argv.value if isinstance(argv.value, list) else ():
        if found := re.match(r"--([a-z][\w-]*)|([A-Za-z_]\w*)(?==)", str(word.value)):
            yield found[1] or found[2]


def _leaves(node: Node, path: str) -> Iterator[str]:
    """Walks the sections; a list is a value."""
    waiting = [(path, node)]
    while waiting:
        path, node = waiting.pop()
        if node.members:
            waiting += [(f"{path}.{key}".lstrip("."), child) for key, child in reversed(node.members.items())]
        elif path and not path.rpartition(".")[2].startswith("_"):
            yield path


def _ends(path: str) -> Iterator[str]:
    """`a.b.c` → `c`, `b.c`, `a.b.c`."""
    parts = path.split(".")
    return (".".join(parts[at:]) for at in reversed(range(len(parts))))
