"""Fixtures: a tokenizer of our own, in the files in which Hugging Face keeps one, and files of records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on: naïve façade, 12 345 words.\n" * 3

# In the manner of Llama 3, ChatML and Mistral: three ways with blanks, a role that is refused, and text of the system.
# Then answers that are marked, as TRL wants them; what is set in the mark ends with it; and JSON as it is asked for.
TEMPLATES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n\n{{ m['content'] | trim }}<|end_of_text|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}",
    "{%- if tools is not none %}\n{{ tools | tojson }}\n{%- endif %}\n"
    "{% for message in messages %}\n    {{- '<' + message.role + '>\\n' + message.content + '</>' }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}",
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[A] ' + m.content + ' [B]' }}{% elif m.role == 'assistant' %}"
    "{{ m.content + eos_token }}{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}",
    "{% set end = '.' %}{%- for m in messages %}\n{{- '<' + m.role + '>\n' }}\n{%- if m.role == 'assistant' %}\n"
    "    {% generation %}\n{% set end = '!' %}{{- m.content + end + loop.index | string }}\n    {% endgeneration %}\n"
    "{%- else %}{{- m.content }}{%- endif %}\n{{- end }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<assistant>\n' }}{%- endif %}",
    "{% for m in messages %}{{ m | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
    "{{ m.content | tojson(False, 1) }}{% endfor %}",
)  # fmt: skip


def messages_of(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)]  # fmt: skip


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


@pytest.fixture
def json_lines(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def with_template(bpe: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(template: str) -> Path:
        folder = tmp_path / "tokenizer"
        shutil.copytree(bpe, folder, dirs_exist_ok=True)
        names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
        return folder

    return make
