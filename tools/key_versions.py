"""Writes which versions of a system know which of its keys, from a clone of its repository.

    tools/key_versions.py megatron CLONE    → src/seatrial/dialects/megatron/versions.txt
    tools/key_versions.py maxtext CLONE     → src/seatrial/dialects/maxtext/versions.txt
    tools/key_versions.py nxdt CLONE        → src/seatrial/dialects/nxdt/versions.txt
    tools/key_versions.py cvs CLONE         → src/seatrial/dialects/cvs/versions.txt

Nothing of the clone is executed: arguments and fields are read from the syntax of its files at each version. NxDT and
CVS declare their keys nowhere: of the keys that are known here, a version has those that its files name.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seatrial.dialects import explain

DIALECTS = Path(__file__).resolve().parents[1] / "src" / "seatrial" / "dialects"

Keys = Mapping[str, str]  # how its values are given, by name: "" for a switch, "=" for one value, "*" for several


@dataclass(frozen=True)
class Clone:
    """A git repository, read without a work tree."""

    path: Path

    def git(self, *arguments: str) -> str:
        """The output of git; "" where it fails, as for a file that a version does not have."""
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def text(self, revision: str, *paths: str) -> str:
        """The first of some files that a version has."""
        return next((text for path in paths if (text := self.git("show", f"{revision}:{path}"))), "")

    def commits(self, since: str, *paths: str) -> list[tuple[str, str]]:
        """The commits of the main line that touch some files, oldest first, each with its day."""
        log = self.git(
            "log", "--first-parent", "--reverse", f"--since={since}", "--format=%H %cs", "HEAD", "--", *paths
        )
        return [(commit, day) for commit, _, day in (line.partition(" ") for line in log.splitlines())]


def table(versions: Sequence[tuple[str, Keys]]) -> str:
    """A line a key: its name and how its values are given, the first version that has it, the first that has it not.

    A key that the oldest version has is of all times: `-`. One that the newest still has has no end: `-`.
    """
    (oldest, before), *_, (newest, now) = versions
    rows = []
    for name in sorted({name for _, keys in versions for name in keys}):
        having = [index for index, (_, keys) in enumerate(versions) if name in keys]
        since = "-" if name in before else versions[having[0]][0]
        gone = "-" if name in now else versions[having[-1] + 1][0]
        rows.append(f"{name}{versions[having[-1]][1][name]} {since} {gone}")
    return f"# The keys of {oldest} to {newest}: name, since, gone since. Made by tools/key_versions.py.\n" + "".join(
        f"{row}\n" for row in rows
    )


# --- Megatron-LM: add_argument(…) and the dataclasses that it makes arguments of --------------------------------------

_ARGUMENTS = ("megatron/training/arguments.py", "megatron/arguments.py")
_BEFORE_CORE = ("v2.5", "v2.6", "23.04", "23.06")
_MORE_ARGUMENTS = ("megatron/post_training/arguments.py", "megatron/elastification/arguments.py")


def megatron(clone: Clone) -> list[tuple[str, Keys]]:
    """The arguments of every release of Megatron core, and of the newest commit.

    The oldest are those of all releases before core, from which many forks come.
    """
    oldest: dict[str, str] = {}
    for tag in _BEFORE_CORE:
        oldest |= _arguments(clone, tag)
    tags = re.findall(r"^core_v0\.(\d+)\.0$", clone.git("tag"), re.MULTILINE)
    found = [(f"0.{minor}", _arguments(clone, f"core_v0.{minor}.0")) for minor in sorted(map(int, tags))]
    day = clone.git("log", "-1", "--format=%cs", "HEAD").strip()
    before = [(_BEFORE_CORE[0].removeprefix("v"), oldest)] if oldest else []  # a clone may lack the old tags
    return [*before, *found, (day, _arguments(clone, "HEAD"))]


def _arguments(clone: Clone, revision: str) -> Keys:
    found: dict[str, str] = {}
    for text in (clone.text(revision, *_ARGUMENTS), *(clone.text(revision, path) for path in _MORE_ARGUMENTS)):
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                found |= _added(function) | _generated(clone, revision, function)
    return found


def _added(function: ast.FunctionDef) -> dict[str, str]:
    """The arguments that a function adds itself."""
    found = {}
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            options = {word.arg: word.value for word in call.keywords}
            for name in filter(None, map(_string, call.args)):
                found[name.removeprefix("--")] = _given(_string(options.get("action")), _string(options.get("nargs")))
    return found


def _generated(clone: Clone, revision: str, function: ast.FunctionDef) -> dict[str, str]:
    """The arguments that a function makes of the fields of dataclasses."""
    lists = {
        target.id: _strings(node.value)
        for node in ast.walk(function) if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    found: dict[str, str] = {}
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "ArgumentGroupFactory" and call.args:
            left_out = next((word.value for word in call.keywords if word.arg == "exclude"), None)
            names = lists.get(left_out.id, ()) if isinstance(left_out, ast.Name) else _strings(left_out)
            for field, written in _fields(clone, revision, ast.unparse(call.args[0])):
                found |= {} if field in names else written
    return found


def _fields(clone: Clone, revision: str, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The fields of a dataclass and of those that it extends, each with its arguments."""
    places = clone.git("grep", "-l", f"^class {name}\\b", revision, "--", "megatron").splitlines()
    for place in places[:1]:
        for node in ast.parse(clone.git("show", place)).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                for base in node.bases:
                    yield from _fields(clone, revision, ast.unparse(base))
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        yield line.target.id, _of_field(line)


def _of_field(line: ast.AnnAssign) -> dict[str, str]:
    """The arguments of a field: those that its metadata name, else its own name by Megatron's rule for its type."""
    assert isinstance(line.target, ast.Name)
    stem, default = line.target.id.replace("_", "-"), line.value
    meta: dict[str, ast.expr] = {}
    if isinstance(default, ast.Call):
        options = {word.arg: word.value for word in default.keywords}
        default = options.get("default")
        for node in ast.walk(options.get("metadata", ast.Dict([], []))):
            if isinstance(node, ast.Dict):
                meta |= {_string(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
    action, count = _string(meta.get("action")), _string(meta.get("nargs"))
    kind = ast.unparse(line.annotation)
    names = [name.removeprefix("--") for name in _strings(meta.get("arg_names"))]
    if "type" not in meta and re.match(r"(Optional\[)?bool\b", kind):
        is_on = isinstance(default, ast.Constant) and default.value is not False and default.value is not None
        is_on = is_on or action == "store_false"
        return dict.fromkeys(names or ([f"no-{stem}", f"disable-{stem}"] if is_on else [stem]), "")
    is_list = re.match(r"(Optional\[)?[Ll]ist\b", kind) and "type" not in meta
    return dict.fromkeys(names or [stem], _given(action, count or ("+" if is_list else "")))


def _given(action: str, count: str) -> str:
    return "" if action.startswith("store_") else "*" if count in ("+", "*") else "=" if count != "?" else "?"


def _string(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _strings(node: ast.expr | None) -> list[str]:
    return [_string(item) for item in node.elts] if isinstance(node, ast.List | ast.Tuple) else []


# --- MaxText: base.yml, and since 2025 the fields of types.py ---------------------------------------------------------

_SOURCES = ("MaxText/configs/", "src/MaxText/configs/", "src/maxtext/configs/")
_KEY = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE | re.ASCII)
_FIELD = re.compile(r"^  ([A-Za-z_]\w*): ", re.MULTILINE | re.ASCII)  # in a class; its syntax may be newer than ours


def maxtext(clone: Clone) -> list[tuple[str, Keys]]:
    """The keys of MaxText's base.yml and types.py, by the day of the commit, since 2024."""
    paths = [folder + name for folder in _SOURCES for name in ("base.yml", "types.py")]
    versions: dict[str, Keys] = {}
    for commit, day in clone.commits("2024-01-01", *paths):
        text = clone.text(commit, *paths[::2])
        fields = _FIELD.findall(clone.text(commit, *paths[1::2]))
        if text:
            versions[day] = dict.fromkeys({*_KEY.findall(text), *fields}, "")
    return list(versions.items())


# --- NxDT and CVS: the keys that are known here and that the files of a version name ----------------------------------

_NXDT_VERSION = "src/neuronx_distributed_training/_version.py"
_NXDT = ("src/*.py", "examples/*.py", "examples/*.yaml")
_CVS = ("*/training/*", "*/training/*/*", "*lib/*training*", "*/lib/*/*", "*jax*", "*megatron*")
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"


def nxdt(clone: Clone) -> list[tuple[str, Keys]]:
    """The keys of each version of NxDT, at its last commit."""
    last = {}
    for commit, _ in clone.commits("2024-01-01"):
        if named := re.search(r"\"(\d+(?:\.\d+)+)\"", clone.text(commit, _NXDT_VERSION)):
            last[named[1]] = commit
    return [(version, _named(clone, commit, explain.table("nxdt"), _NXDT)) for version, commit in sorted(last.items())]


def cvs(clone: Clone) -> list[tuple[str, Keys]]:
    """The keys of CVS's training configurations, by the day of the commit, since 2025."""
    last = {day: commit for commit, day in clone.commits("2025-01-01", *_CVS)}
    keys = {name for module in ("cvs.jax", "cvs.megatron") for name in explain.table(module)}
    versions = [(day, _named(clone, commit, keys, _CVS)) for day, commit in last.items()]
    return [(day, found) for day, found in versions if len(found) > 1]  # before, CVS trained nothing


def _named(clone: Clone, revision: str, keys: Iterable[str], paths: Sequence[str]) -> Keys:
    """Those keys all of whose parts are words of some files."""
    words = set(clone.git("grep", "-h", "-o", "-w", "-E", _WORD, revision, "--", *paths).split())
    return dict.fromkeys((name for name in keys if words.issuperset(name.split("."))), "")


SYSTEMS = {"megatron": megatron, "maxtext": maxtext, "nxdt": nxdt, "cvs": cvs}


@click.command()
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(system: str, clone: Path) -> None:
    """Write the versions of a SYSTEM's keys, read from a CLONE of its repository, into its dialect."""
    versions = SYSTEMS[system](Clone(clone))
    if not versions:
        raise click.ClickException(f"{clone} has no version of {system}: name a full clone of its repository")
    path = DIALECTS / system / "versions.txt"
    path.write_text(table(versions), encoding="utf-8")
    click.echo(f"{path}: {len(versions)} versions, {len(path.read_text(encoding='utf-8').splitlines()) - 1} keys")


if __name__ == "__main__":
    main()
