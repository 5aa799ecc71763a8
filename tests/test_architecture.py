"""The design as a test: who may import whom, who may touch the world, how long a file may be, where things are."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from seatrial.node import AGENT, IN_A_POD, PROBE, UNDER_SLURM

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "seatrial"

# Each module or folder may import only what stands before it.
ORDER = (
    "errors", "source", "spec", "records", "xla_flags", "estimate", "cluster", "command", "console", "capture", "node",
    "check", "dialects", "engines", "shrink", "plan", "parallel", "runs", "events", "recording", "logs", "metrics",
    "verdict", "launch", "report", "history", "contracts", "publish", "serve", "commands", "api", "cli", "__main__",
)  # fmt: skip
TRAIN_MAY_IMPORT = {"errors", "spec", "records", "estimate", "xla_flags", "runs", "events", "train"}

ONLY_IN_TRAIN = {"jax", "jaxlib", "optax", "orbax", "grain", "flax"}
DECIDES_PURELY = ("spec", "estimate", "check", "plan", "shrink", "metrics", "verdict")
READS_ITS_OWN_DATA = {"seatrial.estimate.published"}  # a table that is part of the package
TOUCHES_THE_WORLD = {
    "asyncio", "glob", "io", "multiprocessing", "os", "psutil", "platform", "random", "shutil", "signal", "socket",
    "subprocess", "sys", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
TOUCHES_FILES = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "iterdir", "glob",
    "rglob", "mkdir", "touch", "unlink", "rename", "stat", "cwd", "home", "expanduser", "print",
}  # fmt: skip

MOST_LINES_OF_A_FUNCTION = 80
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "base", "core", "misc"}

SOURCES = sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    """Its dotted module name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path) for path in SOURCES}


def _group(module: str) -> str:
    """The entry of ORDER that a module of seatrial belongs to; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) for every import in the file, wherever it stands: in functions and under TYPE_CHECKING too."""
    name = _name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            source = (above + (node.module or "")).rstrip(".")
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source


def _of_this_package(path: Path) -> Iterator[tuple[int, str]]:
    """(line, group) of the file's imports from seatrial, other than from its own group."""
    own = _group(_name(path))
    for line, module in _imports(path):
        if module.split(".")[0] == "seatrial" and _group(module) not in ("", own):
            yield line, _group(module)


def _show(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


def test_every_module_has_its_place_in_the_order() -> None:
    placed = {*ORDER, "train", ""}
    assert [name for name in sorted(MODULES) if _group(name) not in placed] == []


def test_imports_go_one_way() -> None:
    found = []
    for path in SOURCES:
        own = _group(_name(path))
        if own == "train":
            allowed = TRAIN_MAY_IMPORT
        else:  # the package itself is the public face: it may import everything but the trainer
            allowed = set(ORDER[: ORDER.index(own)] if own else ORDER)
        found += [
            _show(path, line, f"imports {group}") for line, group in _of_this_package(path) if group not in allowed
        ]
    assert found == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {_name(path): {module for _, module in _imports(path) if module in MODULES} for path in SOURCES}
    try:
        TopologicalSorter({name: used - {name} for name, used in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_judging_a_log_needs_no_launcher() -> None:
    """Nor report, nor history: what is there can be judged where nothing can be started."""
    graph = {_name(path): {module for _, module in _imports(path) if module in MODULES} for path in SOURCES}
    reached, waiting = set[str](), ["seatrial.commands.judge", "seatrial.report", "seatrial.history"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    assert sorted(name for name in reached if _group(name) in ("launch", "train")) == []


def test_only_the_trainer_imports_jax() -> None:
    found = [
        _show(path, line, module)
        for path in SOURCES
        if _group(_name(path)) != "train"
        for line, module in _imports(path)
        if module.split(".")[0] in ONLY_IN_TRAIN
    ]
    assert found == []


@pytest.mark.parametrize("together", [AGENT, PROBE, ("relay",), UNDER_SLURM, IN_A_POD], ids=lambda names: names[-1])
def test_what_travels_needs_only_a_python_3_8_and_what_travels_with_it(together: tuple[str, ...]) -> None:
    known = set(sys.stdlib_module_names)
    for name in together:
        path = PACKAGE / "node" / f"{name}.py"
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        assert [_show(path, line, m) for line, m in _imports(path) if not {m, m.split(".")[0]} & known] == []
        known |= {name, f"seatrial.node.{name}"}


@pytest.mark.parametrize("name", DECIDES_PURELY)
def test_what_decides_does_not_touch_the_world(name: str) -> None:
    paths = [path for path in SOURCES if _group(_name(path)) == name and _name(path) not in READS_ITS_OWN_DATA]
    found = []
    for path in paths:
        found += [_show(path, line, m) for line, m in _imports(path) if m.split(".")[0] in TOUCHES_THE_WORLD]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if called in TOUCHES_FILES:
                    found.append(_show(path, node.lineno, f"{called}()"))
    assert paths
    assert found == []


def test_names_say_what_is_inside() -> None:
    folders = {path for path in PACKAGE.rglob("*") if path.is_dir()}
    assert [str(path) for path in {*SOURCES, *folders} if path.stem in SAYS_NOTHING] == []


def test_functions_fit_on_a_screen() -> None:
    found = [
        _show(path, node.lineno, f"{node.name} has {lines} lines")
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert found == []


# Tests of the whole, which mirror no single module.
OF_THE_WHOLE = {"architecture", "contributing", "guides", "peers", "project", "samples", "wording"}
FOLDERS_OF_THE_WHOLE = {"bench", "cluster", "packaging", "tools"}


def test_tests_mirror_the_sources() -> None:
    tests = ROOT / "tests"
    strays = []
    for path in sorted(tests.rglob("test_*.py")):
        folder, subject = path.relative_to(tests).parent, path.stem.removeprefix("test_")
        if folder.parts:
            mirrors = folder.name in FOLDERS_OF_THE_WHOLE or (PACKAGE / folder).is_dir()
        else:
            mirrors = subject in OF_THE_WHOLE or (PACKAGE / f"{subject}.py").is_file() or (PACKAGE / subject).is_dir()
        if not mirrors:
            strays.append(str(path.relative_to(ROOT)))
    assert strays == []


LAYOUT = """
    README.md ARCHITECTURE.md CHANGELOG.md LICENSE Makefile pyproject.toml constraints.txt .ci/run
    configs/native configs/cvs docs/guides docs/howto docs/reference docs/decisions bench/results tests
    src/seatrial/dialects src/seatrial/engines src/seatrial/launch src/seatrial/report src/seatrial/train/data
"""


def test_the_tree_is_laid_out_as_designed() -> None:
    paths = [ROOT / path for path in LAYOUT.split()]
    missing = [path for path in paths if not (path.is_file() or (path.is_dir() and any(path.iterdir())))]
    assert missing == []


def test_help_pays_for_nothing_heavy() -> None:
    program = """
import sys
from seatrial.cli import main
sys.argv = ["seatrial", "--help"]
try:
    main()
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {
        "pydantic", "numpy", "yaml", "jinja2", "rich", "jax", "psutil", "platformdirs", "asyncio", "sqlite3",
        "starlette", "uvicorn",
    }  # fmt: skip
    assert "Usage" in done.stdout
    assert heavy & {module.partition(".")[0] for module in done.stderr.split()} == set()
