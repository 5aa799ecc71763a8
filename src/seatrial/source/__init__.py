"""JSON, YAML or shell text → a tree in which every key and every value knows where it was written.

Values are those of JSON (RFC 8259) or of YAML 1.2's core schema, so `3e-4` is a number and `yes` is a string. No reader
recurses, and size, depth and number of values are limited, aliases counted as often as they are used: no text can make
this slow or make it crash. Whatever is wrong with a text ends in an InputError that names the place.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import InputError
from seatrial.source import captured
from seatrial.source.json_text import read_json
from seatrial.source.tree import Builder, Document, Node, Places, walk
from seatrial.source.yaml_text import core_scalar, read_yaml

__all__ = ["MAX_BYTES", "Document", "Node", "core_scalar", "of_words", "parse", "parse_shell", "read", "walk"]

MAX_BYTES = 2_000_000

_SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_COMMAND = r"(?m)\b(pre)?train[\w-]*\.(py|sh)\b|-m\s+[\w.]*[Mm]ax[Tt]ext\b|^\s*(export\s+)?XLA_FLAGS="
_MAPPING = r"\s*(#[^\n]*\n\s*|---\s*\n\s*)*[\"']?[\w./-]+[\"']?\s*:(\s|$)"


def read(path: Path) -> Document:
    """The tree of a file: a shell text, JSON if its name ends in .json or its text begins with `{`, else YAML.

    Raises InputError.
    """
    text = _read_text(path)
    suffix = path.suffix.lower()
    if _is_shell(text, suffix):
        return parse_shell(text, file=str(path))
    is_json = suffix == ".json" or (suffix not in (".yaml", ".yml") and text.lstrip().startswith("{"))
    return parse(text, file=str(path), is_json=is_json)


def parse(text: str, *, file: str, is_json: bool) -> Document:
    """The tree of a text; `file` is the name that its marks carry. Raises InputError."""
    builder = Builder(Places(text, file))
    if text.strip():
        (read_json if is_json else read_yaml)(text, builder)
    if builder.root is None:
        raise builder.places.error(0, "empty", "the file is empty", "write a configuration into it")
    document = Document(file=file, root=builder.root, problems=tuple(builder.problems))
    return captured.placed(document) if captured.is_captured(document.root) else document


def parse_shell(text: str, *, file: str) -> Document:
    """The environment and the words of the one command in a shell text that starts a training. Raises InputError."""
    from seatrial.source.shell_text import read_shell  # late: most configurations are no shell text

    builder = Builder(Places(text, file))
    read_shell(text, builder)
    assert builder.root is not None
    return Document(file=file, root=builder.root, problems=tuple(builder.problems))


def of_words(words: Sequence[str], *, file: str) -> Document:
    """The words of a command, variables before it among them, as the tree of the shell text that they would be.

    `file` is the name that its marks carry. Raises InputError.
    """
    pairs = ((_ASSIGNS.match(word), word) for word in words)
    quoted = ((found[0], word[found.end() :]) if found else ("", word) for found, word in pairs)
    return parse_shell(" ".join(f"{start}{shlex.quote(rest)}" for start, rest in quoted), file=file)


def _is_shell(text: str, suffix: str) -> bool:
    """True if a file is a shell text: by its suffix, its first line, or the command in it."""
    if suffix in (*_SHELL_SUFFIXES, ".json", ".yaml", ".yml"):
        return suffix in _SHELL_SUFFIXES
    if text.startswith("#!"):
        return True
    return bool(re.search(_COMMAND, text)) and text.lstrip()[:1] not in "{[" and not re.match(_MAPPING, text)


def _read_text(path: Path) -> str:
    """A file's text as UTF-8. Raises InputError, with the place of the first byte that is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise InputError.single("unreadable", str(path), f"this is {kind}", "name a configuration file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        fix = "check the path; `seatrial init` lists examples to start from"
        raise InputError.single("unreadable", str(path), "there is no such file", fix) from None
    except (OSError, ValueError) as error:
        why = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError.single("unreadable", str(path), why, "check its path and permissions") from None
    if len(content) > MAX_BYTES:
        why = f"the file is larger than {MAX_BYTES // 10**6} MB, far more than a configuration"
        raise InputError.single("too-large", str(path), why, "name a configuration file, not data")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        why = f"byte 0x{content[error.start]:02x} is not UTF-8"
        places = Places(before, str(path))
        raise places.error(len(before), "not-utf-8", why, "save the file as UTF-8") from None
