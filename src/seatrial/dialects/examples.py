"""The example configurations that come with Seatrial."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from seatrial import source
from seatrial.console import row_width, table
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.table.written import save
from seatrial.errors import InputError

SUFFIXES = (".json", ".yaml", ".yml", ".sh")
# CVS's own files, kept byte by byte: they say nothing of themselves.
_CVS_FILES = {
    "mi300x_distributed_llama3_1_70b": "CVS: MaxText, Llama 3.1 70B on several nodes of MI300X",
    "mi300x_distributed_llama_3_1_405b": "CVS: MaxText, Llama 3.1 405B on several nodes of MI300X",
    "mi300x_singlenode_llama3_1_70b": "CVS: MaxText, Llama 3.1 70B on one node of MI300X; `make demo` rehearses it",
    "mi35x_megatron_llama_single": "CVS: Megatron-LM, Llama 3.1 8B and 70B on one node of MI350 or MI355",
    "mi35x_singlenode_llama_3_1_70b": "CVS: MaxText, Llama 3.1 70B on one node of MI355X",
    "mi3xx_megatron_llama_distributed": "CVS: Megatron-LM, Llama 3.1 8B and 70B on several nodes of MI300X or MI325X",
    "mi3xx_megatron_llama_single": "CVS: Megatron-LM, Llama 3.1 8B and 70B on one node of MI300X or MI325X",
}
BESIDE = "_threshold"  # targets of the example whose name stands before it; it is copied along


def _folder() -> Path:
    """The folder of the examples: in the installed package, or beside the sources in a checkout."""
    package = Path(str(files("seatrial")))
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def examples() -> dict[str, Path]:
    """Every example by its name: the file's, without its suffix. What stands beside one is none of its own."""
    found = [path for path in sorted(_folder().glob("*/*")) if path.suffix in SUFFIXES]
    return {path.stem: path for path in found if not path.stem.endswith(BESIDE)}


def described(beginning: str = "") -> list[tuple[str, str, str]]:
    """(name, the dialect's folder, a description) of each example whose name begins so."""
    return [(name, path.parent.name, _about(path)) for name, path in examples().items() if name.startswith(beginning)]


def list_examples() -> str:
    """The examples' names, each with the dialect's folder and a description of it."""
    title = "Examples; `seatrial init NAME` copies one into this folder:"
    return f"{title}\n\n{table(described(), columns=row_width(), whole=(0, 1))}"


def _about(path: Path) -> str:
    """The description of an example: its `_comment`, its first comment, or for CVS's own files, ours."""
    comment = None if path.suffix == ".sh" else source.read(path).root.members.get("_comment")
    if comment is not None:
        return comment.text
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), _CVS_FILES.get(path.stem, ""))


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
    return f"Wrote {folder / path.name}. Next: seatrial check {path.name}; then seatrial run {path.name} --rehearse"
