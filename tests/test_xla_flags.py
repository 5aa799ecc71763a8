"""The installed jaxlib is asked about flags, for real; its answers are kept, and a broken store is no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial import xla_flags
from seatrial.xla_flags import REPLACEMENTS, jaxlib_version, known, probe, replacement

FLAGS = {
    "xla_gpu_autotune_level": "4",
    "xla_gpu_graph_level": "0",
    "xla_gpu_enable_cublaslt": "True",
    "xla_gpu_all_gather_combine_threshold_bytes": "a lot".replace(" ", "_"),
    "xla_no_such_flag": "",
    "xla_gpu_enable_command_buffer": "''",
    "xla dump": "1",
    "xla_dump_to": "a b",
}
VERDICTS = {
    "xla_gpu_autotune_level": "ok",
    "xla_gpu_graph_level": "unknown",
    "xla_gpu_enable_cublaslt": "ok",
    "xla_gpu_all_gather_combine_threshold_bytes": "bad_value",
    "xla_no_such_flag": "unknown",
    "xla_gpu_enable_command_buffer": "ok",
    "xla dump": "malformed",
    "xla_dump_to": "malformed",
}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file in which answers are kept during a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seatrial" / f"xla-flags-{jaxlib_version()}.json"


def test_every_flag_gets_its_verdict_and_jaxlib_agrees() -> None:
    assert probe(FLAGS) == VERDICTS
    names = known(FLAGS)
    assert names == {name for name, verdict in VERDICTS.items() if verdict == "ok"}
    program = "import jax; print(jax.devices('cpu')[0].platform)"
    given = " ".join(f"--{name}={FLAGS[name]}" for name in names)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"XLA_FLAGS": given, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "cpu\n")


def settled(monkeypatch: pytest.MonkeyPatch, given: str, *, on_cpu: bool) -> str:
    monkeypatch.setenv("XLA_FLAGS", given)
    xla_flags.settle(cpu_devices=1 if on_cpu else None)
    return os.environ["XLA_FLAGS"]


def test_a_process_is_left_the_flags_that_its_jaxlib_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--xla_gpu_autotune_level=4 --xla_gpu_graph_level=0 --xla_gpu_enable_cublaslt"
    left = "--xla_gpu_autotune_level=4 --xla_gpu_enable_cublaslt=true"
    assert settled(monkeypatch, given, on_cpu=False) == left
    told = "left out of XLA_FLAGS, which this jaxlib does not accept: --xla_gpu_graph_level=0\n"
    assert capsys.readouterr().out == told


def test_the_variable_may_name_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flags"
    file.write_text("--xla_gpu_autotune_level=4\n--xla_gpu_enable_cublaslt=false\n")
    left = "--xla_gpu_autotune_level=4 --xla_gpu_enable_cublaslt=false"
    assert settled(monkeypatch, str(file), on_cpu=False) == left
    assert capsys.readouterr().out == ""
    assert settled(monkeypatch, f"{file}s", on_cpu=False) == ""
    assert "left out of XLA_FLAGS" in capsys.readouterr().out


def test_the_flags_of_a_configuration_come_after_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4  --xla_gpu_enable_cublaslt=false")
    configured = {"xla_gpu_enable_cublaslt": "true", "xla_gpu_graph_level": "0"}
    xla_flags.settle(cpu_devices=None, configured=configured)
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=4 --xla_gpu_enable_cublaslt=true"
    assert "does not accept: --xla_gpu_graph_level=0\n" in capsys.readouterr().out


def test_a_process_is_given_what_suits_its_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"xla_cpu_enable_fast_math": "1", "xla_no_such_flag": ""}
    monkeypatch.setattr(xla_flags, "PLAIN_CPU_FLAGS", flags)
    monkeypatch.setattr(xla_flags, "_BFLOAT16", set())
    assert settled(monkeypatch, "", on_cpu=False) == ""
    assert settled(monkeypatch, "", on_cpu=True) == "--xla_cpu_enable_fast_math=1"
    other = "--xla_cpu_enable_fast_math=0"
    assert settled(monkeypatch, other, on_cpu=True) == other, "the configuration has the last word"
    monkeypatch.setattr(xla_flags, "_BFLOAT16", {"flags", "Features"})  # words that every /proc/cpuinfo has
    assert settled(monkeypatch, "", on_cpu=True) == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("devices", "threads"), [(None, None), (1, None), (2, "16"), (8, "64")])
def test_virtual_devices_get_threads_that_collectives_cannot_use_up(
    monkeypatch: pytest.MonkeyPatch, devices: int | None, threads: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {"XLA_FLAGS": ""})
    xla_flags.settle(cpu_devices=devices)
    assert os.environ.get("NPROC") == threads
    os.environ["NPROC"] = "3"
    xla_flags.settle(cpu_devices=devices)
    assert os.environ["NPROC"] == "3", "who has set it has the last word"


def test_answers_are_kept_and_only_new_flags_are_asked_about(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(FLAGS)
    assert store.is_file()
    assert probe({"xla_gpu_autotune_level": "3"}) == {"xla_gpu_autotune_level": "ok"}
    monkeypatch.setattr(sys, "executable", "/bin/false")  # nobody answers any more
    assert probe(FLAGS) == VERDICTS
    assert probe({"xla_gpu_autotune_level": "2"}) is None


@pytest.mark.parametrize("content", ["", "[", "[]", '{"xla_gpu_graph_level=0": "ok!"}', '{"xla_gpu_graph_level=0": 3}'])
def test_a_broken_store_is_ignored_and_mended(store: Path, content: str) -> None:
    store.parent.mkdir(parents=True)
    store.write_text(content)
    assert probe({"xla_gpu_graph_level": "0"}) == {"xla_gpu_graph_level": "unknown"}
    assert "unknown" in store.read_text()


def test_a_store_that_cannot_be_written_is_no_error(store: Path) -> None:
    store.parent.parent.mkdir(parents=True)
    store.parent.write_text("in the way")
    assert probe({"xla_gpu_graph_level": "0"}) == {"xla_gpu_graph_level": "unknown"}


def test_without_an_answer_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert probe({"xla_gpu_graph_level": "0"}) is None
    assert known({"xla_gpu_graph_level": "0"}) == {"xla_gpu_graph_level"}


def test_where_there_is_no_jaxlib_nobody_is_asked(tmp_path: Path) -> None:
    program = "from seatrial import xla_flags; print(xla_flags.jaxlib_version(), xla_flags.probe({'xla_x': '1'}))"
    source = Path(xla_flags.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": str(source)}, capture_output=True, text=True
    )
    assert done.stdout == "None None\n"


def test_no_replacement_names_a_flag_that_the_jaxlib_here_refuses() -> None:
    assert replacement("xla_gpu_graph_level") == REPLACEMENTS["xla_gpu_graph_level"]
    assert probe({"xla_gpu_enable_command_buffer": ""}) == {"xla_gpu_enable_command_buffer": "ok"}
    assert "correct its name" in replacement("xla_no_such_flag")


@pytest.mark.parametrize("given", [{}, {"XLA_CLIENT_MEM_FRACTION": "0.5"}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".97"}])
def test_the_trainer_takes_more_of_a_device_than_jax_unless_it_is_told_how_much(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX ends a process that is given both variables."""
    for name in xla_flags.SHARE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    xla_flags.settle_share()
    told = {name: os.environ[name] for name in xla_flags.SHARE_VARIABLES if name in os.environ}
    assert told == (given or {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"})


def test_nothing_asked_is_nothing_answered() -> None:
    assert probe({}) == {}
    assert known({}) == set()


def test_quotes_around_a_value_are_not_part_of_it() -> None:
    """XLA takes them off, so that '' is an empty value; jaxlib accepts that as a list of nothing."""
    flags = xla_flags.flags_of("""--xla_a='' --xla_b="2" --xla_c='3 --xla_d=' --xla_e""")
    assert flags == {"xla_a": "", "xla_b": "2", "xla_c": "'3", "xla_d": "'", "xla_e": "true"}
