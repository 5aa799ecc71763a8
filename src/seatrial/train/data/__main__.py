"""`python -m seatrial.train.data TEXT… --tokenizer T --out PREFIX`: text → Megatron's PREFIX.bin and PREFIX.idx."""

from __future__ import annotations

import argparse
import sys

from seatrial.train.data.files import documents, find_files
from seatrial.train.data.indexed import files_of, write_indexed
from seatrial.train.data.tokenizer import load_tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(prog="seatrial data", description="Tokenise text once, for Megatron's data.")
    parser.add_argument("text", nargs="+", help="files or globs: text, or tables with a column 'text'")
    parser.add_argument("--tokenizer", default="byte", help="byte, or the path of a tokenizer.json")
    parser.add_argument("--out", required=True, help="PREFIX of the files PREFIX.bin and PREFIX.idx")
    arguments = parser.parse_args()
    try:
        tokenizer = load_tokenizer(arguments.tokenizer)
        files = find_files(arguments.text, "text")
        index, content = files_of(arguments.out)
        index.parent.mkdir(parents=True, exist_ok=True)
        made = (tokens for path in files for tokens in documents(path, tokenizer))
        number, tokens = write_indexed(arguments.out, tokenizer.dtype, made)
    except (ValueError, OSError) as error:
        told = f"{error.filename}: {error.strerror}; choose another place" if isinstance(error, OSError) else error
        print("seatrial data:", told, file=sys.stderr)
        return 2
    print(f"{number} documents of {tokens} tokens: {content}, {index}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
