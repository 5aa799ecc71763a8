"""Text → tokens: bytes as they are, or a Hugging Face `tokenizer.json`. Nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.runs.files import read_object

Text = str | bytes

# What tokenizers call these tokens where no tokenizer_config.json says so.
_BEGIN = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
_END = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>")


@dataclass(frozen=True)
class Tokenizer:
    """`encode` adds no special tokens. `begin` stands before a prompt (None: nothing does), `end` after a document.

    `template` makes one text of a conversation ("": there is none), with `names` of special tokens, such as bos_token.
    """

    fingerprint: str
    vocab_size: int
    begin: int | None
    end: int
    encode: Callable[[Sequence[Text]], list[np.ndarray]]
    template: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> type[np.integer[Any]]:
        """The smallest type for its tokens."""
        return np.uint8 if self.vocab_size <= 1 << 8 else np.uint16 if self.vocab_size <= 1 << 16 else np.int32


def _bytes(texts: Sequence[Text]) -> list[np.ndarray]:
    return [np.frombuffer(t if isinstance(t, bytes) else t.encode("utf-8", "replace"), np.uint8) for t in texts]


# Token = byte, so any file will do; the two that UTF-8 never uses are begin and end.
BYTES = Tokenizer("byte", 256, 0xFE, 0xFF, _bytes)


def load_tokenizer(name: str) -> Tokenizer:
    """`byte`, or the path of a tokenizer.json or of its folder. Raises ValueError where there is none, or no end."""
    if name == "byte":
        return BYTES
    path = Path(name).expanduser()
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file() or path.suffix != ".json":
        why = "no tokenizer.json on this machine" if path.suffix != ".model" else "a SentencePiece model"
        raise ValueError(f"data.tokenizer: {name!r} is {why}; give the path of a tokenizer.json, or byte")
    from tokenizers import Tokenizer as Encoder

    content = path.read_bytes()
    try:
        encoder = Encoder.from_str(content.decode())
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path}: cannot be read as a tokenizer ({error}); give another tokenizer.json") from error
    encoder.no_truncation()  # some files ask for it, and would lose text in silence
    encoder.no_padding()

    def encode(texts: Sequence[Text]) -> list[np.ndarray]:
        decoded = [t.decode() if isinstance(t, bytes) else t.encode("utf-8", "replace").decode() for t in texts]
        return [np.array(e.ids, np.int32) for e in encoder.encode_batch_fast(decoded, add_special_tokens=False)]

    beside = _beside(path)
    end = _special(encoder, beside, "eos_token", _END)
    if end is None:
        raise ValueError(f"{path}: has no end-of-text token; add a tokenizer_config.json with eos_token next to it")
    size = max(encoder.get_vocab(with_added_tokens=True).values()) + 1
    digest = hashlib.sha256(content).hexdigest()
    begin = _special(encoder, beside, "bos_token", _BEGIN)
    special = {"bos_token": begin, "eos_token": end}
    names = {name: str(encoder.id_to_token(number)) for name, number in special.items() if number is not None}
    return Tokenizer(digest, size, begin, end, encode, _template(path, beside), names)


def _beside(path: Path) -> Mapping[str, Any] | None:
    """The configuration that lies beside a tokenizer, if there is one."""
    file = path.with_name("tokenizer_config.json")
    try:
        return read_object(file) if file.is_file() else None
    except ValueError as error:
        raise ValueError(f"{file}: not a JSON object ({error})") from error


def _special(encoder: Any, beside: Mapping[str, Any] | None, key: str, usual: tuple[str, ...]) -> int | None:
    """The token that the configuration beside a tokenizer names, else, without one, the first usual one of it."""
    names: Sequence[Any] = usual
    if beside is not None:
        named = beside.get(key)
        names = [named["content"] if isinstance(named, dict) and "content" in named else named]
    found = (encoder.token_to_id(name) for name in names if isinstance(name, str))
    return next((number for number in found if number is not None), None)


def _template(path: Path, beside: Mapping[str, Any] | None) -> str:
    """The template of a chat: a file of its own, or in the configuration, alone or named `default` among several."""
    file = path.with_name("chat_template.jinja")
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = (beside or {}).get("chat_template")
    if isinstance(given, list):
        given = next((t.get("template") for t in given if isinstance(t, dict) and t.get("name") == "default"), None)
    return given if isinstance(given, str) else ""
