"""The example configurations that come with Seatrial."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from seatrial import source
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.table.written import save
from seatrial.errors import InputError

SUFFIXES = (".json", ".yaml", ".yml", ".sh")
BESIDE = "_threshold"  # targets of the example whose name stands before it; it is copied along


def _folder() -> Path:
    """Where the examples are: in the installed package, or beside the sources in a checkout."""
    package = Path(str(files("seatrial")))
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def examples() -> dict[str, Path]:
    """Every example by its name: the file's, without its suffix. What stands beside one is none of its own."""
    found = [path for path in sorted(_folder().glob("*/*")) if path.suffix in SUFFIXES]
    return {path.stem: path for path in found if not path.stem.endswith(BESIDE)}


def list_examples() -> str:
    """The examples' names, each with the folder it is from and its own description, if it has one."""
    lines = ["Examples; `seatrial init NAME` copies one into this folder:", ""]
    known = examples()
    width = max(map(len, known), default=0)
    for name, path in known.items():
        lines.append(f"  {name:{width}}  {path.parent.name:8}  {_about(path)}".rstrip())
    return "\n".join(lines)


def _about(path: Path) -> str:
    """What an example says of itself: its `_comment`, or the first comment of a shell text."""
    if path.suffix == ".sh":
        lines = path.read_text(encoding="utf-8").splitlines()
        return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
    comment = source.read(path).root.members.get("_comment")
    return comment.text if comment else ""


def copy_example(name: str, folder: Path) -> str:
    """Copies an example into a folder and says so. Raises InputError for an unknown name, and for a file in the way."""
    known = examples()
    path = known.get(name.removesuffix(".json").removesuffix(".yaml").removesuffix(".sh"))
    if path is None:
        why = f"there is no such example; the examples are {', '.join(known)}"
        raise InputError.single("unknown-example", name, why, did_you_mean(name, known))
    beside = path.with_name(f"{path.stem}{BESIDE}{path.suffix}")
    for each in (path, beside) if beside.is_file() else (path,):
        save(folder / each.name, each.read_bytes().decode())
    return f"Wrote {folder / path.name}. Next: seatrial check {path.name}"
