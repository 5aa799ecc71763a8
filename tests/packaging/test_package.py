"""The wheel and the sdist: what is in them and what is not, the same bytes each time, and installed on their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest

import seatrial
from tests.helpers.compiling import quick_variables

ROOT = Path(__file__).parents[2]
SHARED = {
    "share/man/man1/seatrial.1": ROOT / "docs" / "man" / "seatrial.1",
    "share/bash-completion/completions/seatrial": ROOT / "src/seatrial/commands/completion/seatrial.bash",
    "share/zsh/site-functions/_seatrial": ROOT / "src/seatrial/commands/completion/seatrial.zsh",
    "share/fish/vendor_completions.d/seatrial.fish": ROOT / "src/seatrial/commands/completion/seatrial.fish",
}


def build(project: Path, out: Path, *, umask: int = 0o022) -> tuple[Path, Path]:
    """(wheel, sdist), built without a network."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    done = subprocess.run(command, cwd=project, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def test_the_wheel_is_whole_and_has_nothing_else(built: tuple[Path, Path]) -> None:
    package, version = ROOT / "src" / "seatrial", seatrial.__version__
    with zipfile.ZipFile(built[0]) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    sources = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"seatrial/{path.relative_to(package)}": path for path in sources}
    examples = [path for path in (ROOT / "configs").rglob("*") if path.is_file()]
    wanted |= {f"seatrial/configs/{path.relative_to(ROOT / 'configs')}": path for path in examples}
    wanted |= {f"seatrial-{version}.data/data/{name}": path for name, path in SHARED.items()}
    wanted[f"seatrial-{version}.dist-info/licenses/LICENSE"] = ROOT / "LICENSE"
    assert {name: packed.get(name) == path.read_bytes() for name, path in wanted.items()} == dict.fromkeys(wanted, True)
    rest = packed.keys() - wanted.keys()
    assert rest == {
        f"seatrial-{version}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")
    }
    assert {"seatrial/py.typed", "seatrial/__init__.pyi", "seatrial/configs/native/tiny-text.json"} <= wanted.keys()


def test_what_a_registry_shows(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        about = message_from_bytes(archive.read(f"seatrial-{seatrial.__version__}.dist-info/METADATA"))
    assert about["Version"] == seatrial.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert {"train", "gpu", "rocm", "publish"} <= set(about.get_all("Provides-Extra", []))


def test_the_sdist_has_what_its_tests_need_and_no_caches(built: tuple[Path, Path], tmp_path: Path) -> None:
    project = unpacked(built[1], tmp_path)
    names = {path.relative_to(project).parts[0] for path in project.rglob("*")}
    assert names >= {"src", "tests", "tools", "configs", "docs", "container", "Makefile", "LICENSE", "pyproject.toml"}
    assert names & {".venv", "runs", "dist", "site", "bench", ".git"} == set()
    assert [path for path in project.rglob("*") if path.name.endswith((".pyc", "__pycache__", "_cache"))] == []


def test_the_same_bytes_each_time(built: tuple[Path, Path], tmp_path: Path) -> None:
    """From the sdist as from the checkout, at another time, in another folder, with other permissions."""
    project = unpacked(built[1], tmp_path / "elsewhere")
    for path in project.rglob("*"):
        os.utime(path, (0, 0))
    again = build(project, tmp_path / "again", umask=0o077)
    assert [_digest(path) for path in again] == [_digest(path) for path in built]


def _digest(path: Path) -> tuple[str, str]:
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


# --- installed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(built: tuple[Path, Path], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `seatrial …` of the wheel in an empty folder, with an empty home and nothing of the checkout in reach.

    Its requirements are those of this environment, which a file of the new one names: no network is needed.
    """
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--prefix", str(target)]
    subprocess.run([*pip, "--ignore-installed", "--no-warn-script-location", str(built[0])], check=True)
    (site,) = target.rglob("site-packages")
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": f"{target}/bin:/usr/bin:/bin",
        "PYTHONPATH": str(site),
        "LC_ALL": "C.UTF-8",
        **quick_variables(),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [target / "bin" / "seatrial", *arguments], cwd=folder, env=environment, capture_output=True, text=True
        )
        return done

    where = subprocess.run(
        [sys.executable, "-c", "import seatrial; print(seatrial.__file__)"], cwd=folder, env=environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(target)
    return run


@pytest.mark.slow
def test_from_an_example_to_a_verdict(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for words, shown in (
        ("--version", f"seatrial {seatrial.__version__}"),
        ("init", "tiny-text"),
        ("init tiny-text", "Wrote"),
        ("check tiny-text.json", "OK: no errors"),
        ("run tiny-text.json --rehearse --out runs/first", "PASS"),
        ("judge runs/first", "PASS"),
        ("report runs/first", "report.html"),
        ("publish runs/first --to csv --out csv", "steps.csv"),
        ("publish runs/first --to junit --out junit.xml", "junit.xml"),
        ("history", "runs/first"),
        ("completion bash", "complete -o nosort"),
    ):
        done = installed(*words.split())
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert shown in done.stdout


def test_man_finds_the_page_beside_the_program(built: tuple[Path, Path], tmp_path: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("needs man")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--prefix", str(tmp_path)]
    subprocess.run([*pip, "--ignore-installed", "--no-warn-script-location", str(built[0])], check=True)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    found = subprocess.run(["man", "--where", "seatrial"], env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == str(tmp_path / "share" / "man" / "man1" / "seatrial.1")
