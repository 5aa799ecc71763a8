"""Text → tokens: bytes as they are, or a Hugging Face `tokenizer.json`. Nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.records import DataError, chat
from seatrial.records.paths import content_of

Text = str | bytes

# What tokenizers call these tokens where no file beside them says so; files may leave out the end, as GPT-2's do.
_BEGIN = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
_END = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>")


@dataclass(frozen=True)
class Tokenizer:
    """`encode` adds no special tokens. `begin` stands before a prompt (None: nothing does), `end` after a document.

    `template` makes one text of a conversation.
    """

    fingerprint: str
    vocab_size: int
    begin: int | None
    end: int
    encode: Callable[[Sequence[Text]], list[np.ndarray]]
    template: chat.Template = chat.NO_TEMPLATE

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
    path = chat.tokenizer_file(name)
    if not path.is_file() or path.suffix != ".json":
        why = "no tokenizer.json on this machine" if path.suffix != ".model" else "a SentencePiece model"
        raise DataError(f"{name!r} is {why}", "give the path of a tokenizer.json, or byte", "data.tokenizer")
    from tokenizers import Tokenizer as Encoder

    content = content_of(path, "data.tokenizer")
    try:
        encoder = Encoder.from_str(content.decode())
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path}: cannot be read as a tokenizer ({error}); give another tokenizer.json") from error
    encoder.no_truncation()  # some files ask for it, and would lose text in silence
    encoder.no_padding()

    def encode(texts: Sequence[Text]) -> list[np.ndarray]:
        decoded = [t.decode() if isinstance(t, bytes) else t.encode("utf-8", "replace").decode() for t in texts]
        return [np.array(e.ids, np.int32) for e in encoder.encode_batch_fast(decoded, add_special_tokens=False)]

    beside = chat.configuration(path)
    end = _special(encoder, beside or {}, "eos_token", _END)
    if end is None:
        raise ValueError(
            f"{path}: has no end-of-text token; name it as eos_token in a tokenizer_config.json next to it"
        )
    size = max(encoder.get_vocab(with_added_tokens=True).values()) + 1
    digest = hashlib.sha256(content).hexdigest()
    begin = _special(encoder, beside or {}, "bos_token", _BEGIN if beside is None else ())
    special = {"bos_token": begin, "eos_token": end}
    names = {name: str(encoder.id_to_token(number)) for name, number in special.items() if number is not None}
    template = chat.Template(text=chat.template_text(path, beside), names=names)
    return Tokenizer(digest, size, begin, end, encode, template)


def _special(encoder: Any, beside: Mapping[str, Any], key: str, usual: tuple[str, ...]) -> int | None:
    """The token that a file beside a tokenizer names, perhaps as none; where none does, the first usual one of it."""
    names = (chat.special_token(beside, key),) if key in beside else usual
    found = (encoder.token_to_id(name) for name in names if name is not None)
    return next((number for number in found if number is not None), None)
