"""The Python API: its names and signatures, its results beside the command line's, its tables in data frames."""

from __future__ import annotations

import ast
import contextlib
import csv
import dataclasses
import inspect
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.api_page import api_page

import seatrial
from seatrial import InputError, LaunchError, Run, Table, Where
from seatrial.report.columns import Column
from seatrial.report.steps import STEPS
from seatrial.verdict import to_dict
from tests.helpers import history_runs
from tests.helpers.command_line import seatrial as command_line
from tests.helpers.seeds import SINGLE_MI300X
from tests.helpers.tiny_runs import write_config

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "tests" / "golden" / "api.txt"
MEGATRON = ROOT / "tests" / "logs" / "megatron"
RECIPE = ROOT / "configs" / "native" / "recipe-llama2-70b-h100.yaml"


@pytest.fixture(autouse=True)
def own_index(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[str]]:
    """A run of the real trainer, and the lines of its progress."""
    folder, said = tmp_path_factory.mktemp("ran"), list[str]()
    config = write_config(folder, steps=20)
    return seatrial.run(config, ["optimizer.learning_rate=0.02"], out=folder / "run", say=said.append), said


def a_log() -> Path:
    return next(path for path in sorted(MEGATRON.rglob("log.txt")) if "nan" not in str(path))


# --- names ------------------------------------------------------------------------------------------------------------


def _surface() -> list[str]:
    """A line for every public name: a function with its signature, a class with its fields and properties."""
    lines = []
    for name in sorted(set(seatrial.__all__) - {"__version__"}):
        found = getattr(seatrial, name)
        if inspect.isfunction(found):
            lines.append(f"{name}{inspect.signature(found)}".replace("'", ""))
            continue
        own = (
            [(field.name, field.type) for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
        )
        lines += [name, *(f"{name}.{field}: {kind}" for field, kind in own)]
        for member, value in sorted(vars(found).items()):
            if isinstance(value, (property, cached_property)):
                getter = value.fget if isinstance(value, property) else value.func
                lines.append(f"{name}.{member} -> {inspect.signature(getter).return_annotation}")
            elif inspect.isfunction(value) and not member.startswith("_"):
                lines.append(f"{name}.{member}{inspect.signature(value)}".replace("'", ""))
    return lines


def test_golden_of_names_and_signatures() -> None:
    """Who changes one of these breaks somebody's notebook: only additions at the end are harmless."""
    text = "\n".join(_surface()) + "\n"
    if os.environ.get("SEATRIAL_GOLDEN"):
        PINNED.write_text(text, encoding="utf-8")
    assert text == PINNED.read_text(encoding="utf-8")


def test_the_package_has_the_names_of_the_api_and_their_types() -> None:
    api = sys.modules["seatrial.api"]
    assert sorted(seatrial.__all__) == sorted([*api.__all__, "__version__"])
    stub = ast.parse((ROOT / "src" / "seatrial" / "__init__.pyi").read_text(encoding="utf-8"))
    typed = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    typed += [node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)]
    assert sorted(typed) == sorted(seatrial.__all__)
    assert set(seatrial.__all__) <= set(dir(seatrial))
    for name in api.__all__:
        assert getattr(seatrial, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        getattr(seatrial, "chek")  # noqa: B009 - as a text, for who checks types


def test_every_public_name_says_what_it_is() -> None:
    for name in sorted(set(seatrial.__all__) - {"__version__"}):
        said = inspect.getdoc(getattr(seatrial, name)) or ""
        assert said, name
        assert not said.startswith(f"{name}("), f"{name} has only the docstring that dataclasses make"


def _fresh(program: str) -> str:
    """The output of a program in a Python process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_module_of_the_same_name_does_not_hide_a_function() -> None:
    """`seatrial.check`, `seatrial.plan` and `seatrial.history` are modules as well; in whichever order."""
    for first in (
        "import seatrial.check, seatrial.plan, seatrial.history.index",
        "import seatrial; seatrial.judge",
        "",
    ):
        program = f"{first}\nimport seatrial\nfrom seatrial import history\n"
        program += "import seatrial.plan\nfrom seatrial.check import lint\n"
        program += "print(*(callable(each) for each in (seatrial.check, seatrial.plan, seatrial.history, history)))"
        assert _fresh(program).split() == ["True"] * 4


def test_importing_the_package_imports_nothing_else() -> None:
    loaded = set(_fresh("import sys, seatrial\nprint(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("seatrial")} == {"seatrial"}
    assert loaded & {"click", "numpy", "pydantic", "rich", "asyncio", "dataclasses"} == set()


def test_judging_loads_neither_launcher_nor_click_nor_jax() -> None:
    program = f"import sys, seatrial\nseatrial.judge({str(a_log())!r})\nprint(*sys.modules)"
    loaded = set(_fresh(program).split())
    assert {name for name in loaded if name.startswith("seatrial.launch.")} <= {"seatrial.launch.where"}
    assert loaded & {"click", "jax", "pyarrow", "pandas"} == set()


# --- beside the command line ------------------------------------------------------------------------------------------


def _json(*arguments: str | Path, cwd: Path) -> Any:
    return json.loads(command_line(*arguments, "--format", "json", cwd=cwd).stdout)


@pytest.mark.parametrize("rehearse", [False, True])
def test_check_finds_what_the_command_line_finds(rehearse: bool, tmp_path: Path) -> None:
    found = seatrial.check(SINGLE_MI300X, ["config.nnodes=1"], rehearse=rehearse)
    option = ["--rehearse"] if rehearse else []
    said = _json("check", SINGLE_MI300X, "config.nnodes=1", *option, cwd=tmp_path)
    assert [problem.as_dict() for problem in found] == said["problems"]
    assert len(found) == len(found.problems) > 5
    assert found.ok
    assert {problem.severity for problem in found.warnings} == {"warning"}
    open_values = seatrial.check(str(SINGLE_MI300X))
    assert not open_values.ok
    assert [problem.path for problem in open_values.errors] == ["config.nnodes"]
    assert open_values.errors[0].mark is not None


def test_a_cluster_file_is_checked_too(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("hosts: [a, b, a]\n")
    assert [problem.code for problem in seatrial.check(cluster).errors] == ["repeated-host"]


def test_plan_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = seatrial.plan(SINGLE_MI300X, ["config.nnodes=1"], rehearse=True)
    said = command_line("plan", SINGLE_MI300X, "config.nnodes=1", "--rehearse", "--format", "json", cwd=tmp_path)
    own = json.dumps(planned.as_dict(), indent=1)
    time = re.compile(r"-\d{8}-\d{6}")  # in the run directory's name
    assert time.sub("", own) == time.sub("", said.stdout.removesuffix("\n"))
    assert planned.plan is not None
    assert planned.spec == planned.plan.spec
    assert planned.plan.rehearsal is not None
    assert all(problem.severity != "error" for problem in planned.problems)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_this_machine_cannot_run_says_what_is_missing() -> None:
    planned = seatrial.plan(SINGLE_MI300X, ["config.nnodes=1"])
    assert planned.plan is None
    assert "accelerator" in planned.missing
    assert planned.spec.model.name
    assert planned.expected["memory_bytes"] > 1e9


def test_judge_gives_the_verdict_of_the_command_line(tmp_path: Path) -> None:
    for log in sorted(MEGATRON.rglob("log.txt"))[:8]:
        assert to_dict(seatrial.judge(log)) == _json("judge", log, cwd=tmp_path)["verdict"]
    against = to_dict(seatrial.judge(a_log(), RECIPE, overrides=["steps=7"], policy="last-10", convention="palm"))
    options = ("--against", RECIPE, "steps=7", "--policy", "last-10", "--convention", "palm")
    assert against == _json("judge", a_log(), *options, cwd=tmp_path)["verdict"]
    assert against["convention"] == "palm"


def test_what_was_judged_can_be_kept_loaded_and_judged_again(tmp_path: Path) -> None:
    verdict = seatrial.judge([a_log()], out=tmp_path / "kept")
    run = seatrial.load_run(tmp_path / "kept")
    assert run.verdict == verdict == seatrial.judge(tmp_path / "kept")
    assert run.spec is None
    assert len(run.steps) == run.metrics.completion.num_steps


def test_a_run_is_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [history_runs.make(tmp_path / name / "runs", seed=seed) for seed, name in enumerate("ab")]
    monkeypatch.chdir(tmp_path / "a")
    one = seatrial.load_run("runs")
    monkeypatch.chdir(tmp_path / "b")
    assert seatrial.compare(one, "runs").runs_a[0].directory == str(runs[0])


def test_a_folder_of_several_runs_is_no_run(tmp_path: Path) -> None:
    for n, log in enumerate(sorted(MEGATRON.rglob("log.txt"))[:2]):
        (tmp_path / f"run-{n}").mkdir()
        (tmp_path / f"run-{n}" / "train.log").write_bytes(log.read_bytes())
    with pytest.raises(InputError) as raised:
        seatrial.judge(tmp_path)
    assert raised.value.problems[0].code == "several-runs"
    assert "run-0" in raised.value.problems[0].why
    assert seatrial.judge(tmp_path / "run-1").headline


def test_compare_and_history_give_what_the_command_line_gives(tmp_path: Path) -> None:
    runs = [history_runs.make(tmp_path / f"runs/{n}", times=1 + n / 10, seed=n) for n in range(3)]
    comparison = seatrial.compare(seatrial.load_run(runs[0]), runs[2])
    said = _json("compare", runs[0], runs[2], cwd=tmp_path)
    assert comparison.sentence == said["sentence"]
    assert comparison.speed is not None
    assert comparison.speed.judgement == "worse"
    assert comparison.speed.change == pytest.approx(1 / 1.2 - 1, abs=0.01)
    several = seatrial.compare(map(str, runs[:2]), [runs[2]])
    assert len(several.runs_a) == 2

    found, listed = seatrial.history(tmp_path / "runs"), _json("history", "--root", "runs", cwd=tmp_path)
    assert [run.id for run in found.runs] == [run["id"] for run in listed["runs"]]
    for run, row in zip(found.runs, listed["runs"], strict=True):
        assert run.step_seconds == row["step_seconds"]
        assert str(run.directory) == row["directory"]
        assert run.versions == row["versions"]
    assert {run.outcome for run in found.runs} == {"pass"}
    assert seatrial.history(tmp_path / "runs", model="no such model").runs == ()
    frame = polars.DataFrame(found.table)
    assert frame["step_seconds"].to_list() == [run.step_seconds for run in found.runs]
    assert frame["num_devices"].dtype == polars.Int64
    (runs[0] / "verdict.json").unlink()
    (runs[0] / "metrics.json").write_text('{"numerics": {"last_loss": "nan"}}')
    changed = {run.directory.name: run for run in seatrial.history(tmp_path / "runs").runs}
    assert changed["0"].outcome == "not_judged"
    assert math.isnan(changed["0"].last_loss or 0)


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_run_is_run_judged_and_loaded(ran: tuple[Run, list[str]]) -> None:
    run, said = ran
    assert run.verdict.outcome == "pass"
    assert run.spec is not None
    assert run.spec.optimizer.learning_rate == 0.02
    assert run.steps["step"] == tuple(range(20))
    assert run.metrics.completion.num_steps == 20
    assert said[0].startswith("run directory: ")
    assert any(line.startswith("step 20/20") for line in said)
    assert (run.directory / "report.html").exists()
    assert seatrial.load_run(str(run.directory)) == run
    assert repr(run).count("\n") == 0
    assert len(repr(run)) < 500


@pytest.mark.slow
def test_a_run_may_be_started_in_a_thread(tmp_path: Path) -> None:
    config, found = write_config(tmp_path, steps=20), list[Any]()

    def start() -> None:
        try:
            found.append(seatrial.run(config, out=tmp_path / "run").verdict.outcome)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(240)
    assert found == ["pass"]


def test_nothing_is_printed(ran: tuple[Run, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even the warnings, to whichever stream; nor by what a run starts."""
    noisy = write_config(tmp_path, steps=4, _note=1, checkpoint={"enabled": True, "interval_steps": 1})
    assert seatrial.check(SINGLE_MI300X, ["config.nnodes=1"]).warnings
    seatrial.plan(SINGLE_MI300X, ["config.nnodes=1"], rehearse=True)
    seatrial.judge(a_log(), RECIPE)
    seatrial.judge(ran[0].directory)
    run = seatrial.run(noisy, out=tmp_path / "run")
    with contextlib.suppress(InputError):
        seatrial.compare(ran[0], run)
    seatrial.history(tmp_path)
    assert capfd.readouterr() == ("", "")


# --- errors -----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("unreadable", "nothing.yaml", lambda folder: seatrial.plan(folder / "nothing.yaml")),
    ("placeholder", "config.nnodes", lambda folder: seatrial.plan(SINGLE_MI300X)),
    ("unknown-engine", "--engine", lambda folder: seatrial.plan(RECIPE, engine="nativ")),
    ("unknown-on", "on", lambda folder: seatrial.plan(RECIPE, where=Where(on="moon"))),
    ("unknown-option", "--ssh", lambda folder: seatrial.plan(RECIPE, where=Where(on="ssh", ssh="telnet"))),
    ("unknown-option", "--container", lambda folder: seatrial.plan(RECIPE, where=Where(on="ssh", container="x"))),
    ("option-target", "--cluster", lambda folder: seatrial.plan(RECIPE, where=Where(cluster=Path("x")))),
    ("two-ways", "--collapse", lambda folder: seatrial.run(RECIPE, rehearse=True, collapse=True)),
    ("retries", "--retries", lambda folder: seatrial.run(RECIPE, retries=-1)),
    ("run-directory-in-use", "--out", lambda folder: seatrial.run(write_config(folder), out=folder)),
    ("no-such-log", "nothing.log", lambda folder: seatrial.judge(folder / "nothing.log")),
    ("no-such-log", "logs", lambda folder: seatrial.judge([])),
    ("overrides", "overrides", lambda folder: seatrial.judge(a_log(), overrides=["steps=1"])),
    ("unknown-option", "--policy", lambda folder: seatrial.judge(a_log(), policy="all")),
    ("unknown-option", "--convention", lambda folder: seatrial.judge(a_log(), convention="all")),
    ("not-a-fraction", "--published", lambda folder: seatrial.judge(a_log(), published=10)),
    ("unknown-family", "--family", lambda folder: seatrial.judge(a_log(), family="megatrno")),
    ("no-run", "", lambda folder: seatrial.compare(folder, folder)),
    ("no-run", "b", lambda folder: seatrial.compare(folder, [])),
    ("no-run", "b", lambda folder: seatrial.compare([], [])),
    ("no-run", "", lambda folder: seatrial.load_run(folder)),
    ("no-run", "nothing", lambda folder: seatrial.load_run(folder / "nothing")),
    ("no-root", "--root", lambda folder: seatrial.history(folder / "nothing")),
    ("unknown-outcome", "--outcome", lambda folder: seatrial.history(folder, outcome="great")),
]


@pytest.mark.parametrize(("code", "path", "do"), WRONG, ids=[f"{n} {code}" for n, (code, _, _) in enumerate(WRONG)])
def test_what_is_wrong_is_an_input_error(code: str, path: str, do: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        do(tmp_path)
    first = next(problem for problem in raised.value.problems if problem.severity == "error")
    assert first.code == code
    assert first.path.endswith(path)
    assert first.why
    assert first.fix


def test_a_damaged_run_is_an_input_error(tmp_path: Path) -> None:
    run = history_runs.make(tmp_path / "run")
    (run / "events-0.jsonl").write_text("{]\n{}\n")
    for do in (seatrial.load_run, seatrial.judge):
        with pytest.raises(InputError) as raised:
            do(run)
        assert raised.value.problems[0].code == "damaged-run"


def test_what_cannot_be_started_is_a_launch_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="accelerator"):
        seatrial.run(SINGLE_MI300X, ["config.nnodes=1"], out=tmp_path / "run")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_steps_are_those_of_the_csv(ran: tuple[Run, list[str]], tmp_path: Path) -> None:
    """The column of each format, read back by Python's csv module."""
    text = command_line("report", ran[0].directory, "--format", "csv", cwd=tmp_path).stdout
    rows = list(csv.DictReader(text.splitlines()))
    assert tuple(rows[0]) == tuple(ran[0].steps) == tuple(column.name for column in STEPS)
    for name, values in ran[0].steps.values.items():
        own = (
            ["yes" if value else "no" for value in values]
            if name == "in_window"
            else ["" if v is None else str(v) for v in values]
        )
        assert own == [row[name] for row in rows], name


def test_data_frames_take_the_steps(ran: tuple[Run, list[str]]) -> None:
    steps = ran[0].steps
    frames: dict[str, Callable[[str], Any]] = {
        "polars": lambda name: polars.DataFrame(steps)[name].to_list(),
        "polars, interchange": lambda name: polars.from_dataframe(steps)[name].to_list(),
        "pandas": lambda name: pandas.DataFrame.from_arrow(steps)[name].to_list(),
        "pyarrow": lambda name: pa.table(steps)[name].to_pylist(),
    }
    for kind, column in frames.items():
        for name in ("step", "attempt", "seconds", "loss", "learning_rate", "phase", "in_window"):
            assert column(name) == list(steps[name]), (kind, name)
    assert polars.DataFrame(steps).filter(polars.col("in_window")).height == sum(steps["in_window"]) > 5
    assert pa.table(steps).schema.field("seconds").metadata[b"unit"] == b"s"


_CELLS = {
    "int64": st.none() | st.integers(-(2**63), 2**63 - 1),
    "float64": st.none() | st.just(math.nan) | st.floats(),
    "string": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    "bool": st.none() | st.booleans(),
}


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(0, 12))
def test_any_table_arrives_as_it_is(data: st.DataObject, size: int) -> None:
    """None is null, which is not NaN; text and numbers are the same to the last digit."""
    columns = [Column(name=kind, type=kind, unit="", meaning="") for kind in _CELLS]
    rows = [tuple(data.draw(cells) for cells in _CELLS.values()) for _ in range(size)]
    table = Table.of_rows(columns, rows)
    assert len(table) == size
    for column in columns:
        expected = [row[list(_CELLS).index(column.name)] for row in rows]
        for found in (
            table[column.name],
            polars.DataFrame(table)[column.name].to_list(),
            pa.table(table)[column.name].to_pylist(),
        ):
            assert _all_same(found, expected)
    by_pandas = pandas.DataFrame.from_arrow(table)
    assert list(by_pandas.columns) == list(table)
    assert by_pandas["float64"].isna().to_list() == [row[1] is None or row[1] != row[1] for row in rows]


def test_a_nan_is_no_missing_value() -> None:
    table = Table.of_rows(
        [Column(name="loss", type="float64", unit="", meaning="")], [(math.nan,), (None,), (math.inf,)]
    )
    for series in (polars.DataFrame(table)["loss"], polars.from_dataframe(table)["loss"]):
        assert series.is_null().to_list() == [False, True, False]
        assert series.is_nan().to_list() == [True, None, False]
    assert pa.table(table)["loss"].null_count == 1


def _all_same(a: Any, b: Any) -> bool:
    """Equal values, of which NaN is one."""
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.usefixtures("without_pyarrow")
def test_columns_need_no_pyarrow() -> None:
    table = Table.of_rows([Column(name="loss", type="float64", unit="", meaning="")], [(1.5,), (None,)])
    assert table["loss"] == (1.5, None)
    assert list(table) == ["loss"]
    for take in (table.to_arrow, table.__arrow_c_stream__, table.__dataframe__):
        with pytest.raises(LaunchError, match="pip install"):
            take()


REFERENCE = ROOT / "docs" / "reference" / "python.md"


def test_golden_page_of_the_api() -> None:
    if os.environ.get("SEATRIAL_GOLDEN"):
        REFERENCE.write_text(api_page(), encoding="utf-8")
    assert api_page() == REFERENCE.read_text(encoding="utf-8")


# --- the guide --------------------------------------------------------------------------------------------------------

GUIDE = ROOT / "docs" / "howto" / "python.md"
_LINE = (
    " [2026-11-20 10:00:{step:02}] iteration {step:8d}/      24 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 3.000000E-04 | global batch size:    64 | "
    "lm loss: {loss} | loss scale: 1.0 | grad norm: 1.204 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)


def a_log_with_a_nan() -> str:
    """As Megatron-LM prints it; the loss of step 18 is NaN."""
    return "".join(
        _LINE.format(step=n, samples=64 * n, ms=812.5 + n % 3, loss="NaN" if n == 18 else f"{9 * 0.96**n:.6E}") + "\n"
        for n in range(1, 25)
    )


def _blocks() -> list[tuple[str, str]]:
    """(code, what it prints) of the guide; as in a notebook, the output follows its cell."""
    found = re.findall(r"^```(python|text)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    cells: list[tuple[str, str]] = []
    for kind, text in found:
        if kind == "python":
            cells.append((text, ""))
        else:
            cells[-1] = (cells[-1][0], text)
    return cells


@pytest.mark.slow
def test_the_guide_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "train.log").write_text(a_log_with_a_nan())
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    cells = _blocks()
    assert len(cells) >= 10
    for code, expected in cells:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "python.md", "exec"), namespace)
        assert out.getvalue() == expected, code
