"""`python -m seatrial.train.programs NAME ARGUMENTS`: what `seatrial data` and `seatrial export` become.

ARGUMENTS are those of the function of this name, as a JSON object; the command line declares and checks them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from seatrial.errors import InputError


def data(text: list[str], tokenizer: str, out: str) -> str:
    """Text → Megatron's OUT.bin and OUT.idx. Raises ValueError for text that cannot be read."""
    from seatrial.records.paths import find_files
    from seatrial.train.data.files import documents
    from seatrial.train.data.indexed import files_of, write_indexed
    from seatrial.train.data.tokenizer import load_tokenizer

    try:
        encoder, files, (index, content) = load_tokenizer(tokenizer), find_files(text, "text"), files_of(out)
        index.parent.mkdir(parents=True, exist_ok=True)
        made = (tokens for path in files for tokens in documents(path, encoder))
        number, tokens = write_indexed(out, encoder.dtype, made)
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}; choose another place") from error
    return f"{number} documents of {tokens} tokens: {content}, {index}"


def export(source: str, to: str, dtype: str | None) -> str:
    """A checkpoint's weights → a Hugging Face folder. Raises ValueError or OSError where that is not possible."""
    from seatrial.train import hf

    return hf.export(Path(source), Path(to), dtype)


PROGRAMS: dict[str, Callable[..., str]] = {"data": data, "export": export}


def main() -> int:
    name, arguments = sys.argv[1:]
    try:
        print(PROGRAMS[name](**json.loads(arguments)))
    except (ValueError, OSError) as error:
        print(f"seatrial {name}: {error}", file=sys.stderr)
        return InputError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
