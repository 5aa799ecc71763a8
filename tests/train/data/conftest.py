"""A tokenizer of our own, trained on a little text, in the files in which Hugging Face keeps one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from seatrial.spec import RunSpec
from seatrial.train.data import make_sources
from seatrial.train.data.examples import Source

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on: naïve façade, 12 345 words.\n" * 3


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a byte-level BPE tokenizer that adds a begin token by itself, as Llama 3's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.enable_truncation(8)  # must not be obeyed
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": {"content": special[0]}, "eos_token": special[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are kept in the test's own folder."""
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def json_lines(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def make_source(spec: RunSpec) -> Source:
    """The source of training examples alone."""
    return make_sources(spec).train
