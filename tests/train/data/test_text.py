"""Text: the files' own tokens, every window once an epoch, kept once tokenised."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer

from seatrial.records.paths import find_files
from seatrial.spec import Data, Evaluation
from seatrial.train.data import make_sources
from seatrial.train.data.files import documents, documents_from_begin, tokenised
from seatrial.train.data.tokenizer import load_tokenizer
from tests.helpers.record_files import TEXT
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.training_data import make_source

from .test_batches import rows_of

END = 0xFF


def text_spec(length: int = 10, **data):
    spec = make_spec(model=replace(TINY, vocab_size=512))
    return replace(spec, batch=replace(spec.batch, sequence_length=length), data=Data(**{"kind": "text"} | data))


def test_an_epoch_reads_every_window_once(tmp_path, rng):
    content = bytes(rng.integers(0, 255, 1000, dtype=np.uint8)) + bytes([END])
    (tmp_path / "a.txt").write_bytes(content[:-1])
    source = make_source(text_spec(paths=(str(tmp_path / "*.txt"),)))
    assert source.num_examples == 100
    windows = {content[i * 10 : i * 10 + 11] for i in range(100)}
    for epoch in range(3):
        rows = rows_of(source, np.arange(epoch * 100, (epoch + 1) * 100))
        assert {row.astype(np.uint8).tobytes() for row in rows} == windows
    assert not np.array_equal(rows_of(source, np.arange(100)), rows_of(source, np.arange(100, 200)))


def test_it_can_be_read_in_any_order(tmp_path, rng):
    (tmp_path / "a.txt").write_bytes(bytes(rng.integers(0, 256, 5000, dtype=np.uint8)))
    spec = text_spec(16, paths=(str(tmp_path / "a.txt"),))
    numbers = rng.permutation(1500)
    forward = rows_of(make_source(spec), np.arange(1500))
    np.testing.assert_array_equal(rows_of(make_source(spec), numbers), forward[numbers])


def test_documents_are_told_apart_where_that_is_asked_for(tmp_path):
    for name, text in (("a", b"abcd"), ("b", b"ef"), ("c", b"ghijklmn")):
        (tmp_path / name).write_bytes(text)
    asked = {"reset_positions": True, "reset_attention": True, "mask_document_ends": True}
    source = make_source(text_spec(14, paths=(str(tmp_path / "*"),), **asked))
    got = source.examples(np.arange(1))
    assert bytes(got["tokens"][0].astype(np.uint8)) == b"abcd\xffef\xffghijkl"
    assert got["positions"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert got["segments"][0].tolist() == [1] * 5 + [2] * 3 + [3] * 6
    assert got["weights"][0].tolist() == [1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1]


def test_documents_begin_with_a_token_where_that_is_asked_for(tmp_path, bpe):
    for name, text in (("a", b"abcd"), ("b", b"ef"), ("c", b"ghijklmn")):
        (tmp_path / f"{name}.txt").write_bytes(text)
    files = {"paths": (str(tmp_path / "*.txt"),), "add_bos": True}
    got = make_source(text_spec(14, **files)).examples(np.arange(1))
    assert bytes(got["tokens"][0].astype(np.uint8)) == b"\xfeabcd\xff\xfeef\xff\xfeghi"
    tokenizer = {"tokenizer": str(bpe), "index_dir": str(tmp_path / "index")}
    with_begin, without = (
        tokenised(sorted(tmp_path.glob("*.txt")), load_tokenizer(str(bpe)), str(tmp_path / "index"), make)
        for make in (documents_from_begin, documents)
    )
    begin = load_tokenizer(str(bpe)).begin
    expected = [[] if begin is None else [begin]] * 3
    assert [row.tolist() for row in with_begin] == [a + b.tolist() for a, b in zip(expected, without, strict=True)]
    assert begin is not None
    source = make_source(text_spec(4, **files, **tokenizer))
    assert begin in rows_of(source, np.arange(source.num_examples))


def test_tokens_are_those_of_the_tokenizer_and_are_made_once(tmp_path, bpe):
    texts = [TEXT, "the lazy dog " * 50, ""]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    spec = text_spec(8, paths=(str(tmp_path / "*.txt"),), tokenizer=str(bpe), index_dir=str(tmp_path / "index"))
    reference = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    reference.no_truncation()
    end = reference.token_to_id("<|end_of_text|>")
    stream = [token for t in texts for token in [*reference.encode(t, add_special_tokens=False).ids, end]]
    source = make_source(spec)
    assert source.num_examples == (len(stream) - 1) // 8
    windows = {tuple(stream[i * 8 : i * 8 + 9]) for i in range(source.num_examples)}
    assert {tuple(row) for row in rows_of(source, np.arange(source.num_examples)).tolist()} == windows

    (kept,) = (tmp_path / "index").glob("*.bin")
    made = kept.stat().st_mtime_ns
    make_source(replace(spec, seed=1))
    assert kept.stat().st_mtime_ns == made
    (tmp_path / "2.txt").write_text("more")
    make_source(spec)
    assert len(list((tmp_path / "index").glob("*.bin"))) == 2


def test_tables_hold_a_text_in_each_row(tmp_path, json_lines):
    rows = [{"text": f"row {i} \u00e9", "other": i} for i in range(3000)]
    json_lines("a.jsonl", *rows)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write((tmp_path / "a.jsonl").read_text())
    (tmp_path / "c.json").write_text(json.dumps(rows, indent=1).replace("[\n", "[", 1))
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet", row_group_size=700)
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(tmp_path / "e.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    expected = b"".join(row["text"].encode() + b"\xff" for row in rows)
    for name in ("a.jsonl", "b.jsonl.gz", "c.json", "d.parquet", "e.arrow"):
        got = tokenised([tmp_path / name], load_tokenizer("byte"), None)
        assert got.tokens.tobytes() == expected, name
        assert len(got) == 3000


@pytest.mark.parametrize("kind", ["huggingface", "grain", "tfds", "c4_mlperf"])
def test_pipelines_of_maxtext_pack_apart_or_one_by_one(tmp_path, json_lines, kind):
    json_lines("a.jsonl", {"text": "abc"}, {"text": "defgh"}, {"text": "ijklmnop"})
    source = make_source(text_spec(8, kind=kind, paths=(str(tmp_path / "*.jsonl"),), packing=True))
    packed = source.examples(np.arange(source.num_examples))
    assert set(packed) == {"tokens", "targets", "weights", "positions", "segments"}
    order = np.argsort([bytes(row.astype(np.uint8)) for row in packed["tokens"]])
    first = {name: values[order[0]].tolist() for name, values in packed.items()}
    assert bytes(first["tokens"]) == b"abc\xffdefg"
    assert first["segments"] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert first["positions"] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert first["weights"] == [1, 1, 1, 0, 1, 1, 1, 1]

    source = make_source(text_spec(7, kind=kind, paths=(str(tmp_path / "*.jsonl"),)))
    assert source.num_examples == 3
    single = source.examples(np.arange(3))
    assert set(single) == {"tokens", "targets", "weights"}
    found = {
        bytes(t[w > 0].astype(np.uint8)) + bytes(g[w > 0][-1:].astype(np.uint8))
        for t, g, w in zip(single["tokens"], single["targets"], single["weights"], strict=True)
    }
    assert found == {b"abc\xff", b"defgh\xff", b"ijklmnop"}  # the last is cut


def test_weights_mix_the_paths(tmp_path, json_lines):
    for letter in "ab":
        json_lines(f"{letter}.jsonl", *({"text": letter * 40} for _ in range(10)))
    paths = tuple(str(tmp_path / f"{letter}.jsonl") for letter in "ab")
    source = make_source(text_spec(8, kind="grain", paths=paths, weights=(3.0, 1.0)))
    tokens = source.examples(np.arange(40))["tokens"]
    assert np.sum(tokens[:, 0] == ord("a")) == 30


def test_validation_is_its_own_files_or_a_share(tmp_path, rng):
    content = bytes(rng.integers(0, 255, 1000, dtype=np.uint8))
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_bytes(content[::-1])
    paths = (str(tmp_path / "a.txt"),)
    often = Evaluation(interval_steps=2)
    shared = make_sources(replace(text_spec(paths=paths, split="80,10,10"), evaluation=often))
    assert (shared.train.num_examples, shared.validation.num_examples) == (80, 10)
    rows = rows_of(shared.validation, np.arange(20))
    assert rows[:10].astype(np.uint8).tobytes() == b"".join(content[800 + 10 * i : 811 + 10 * i] for i in range(10))
    np.testing.assert_array_equal(rows[:10], rows[10:])
    seen = rows_of(shared.train, np.arange(80)).astype(np.uint8)
    assert {row.tobytes() for row in seen} == {content[10 * i : 10 * i + 11] for i in range(80)}

    own = make_sources(replace(text_spec(paths=paths, validation_paths=(str(tmp_path / "b.txt"),)), evaluation=often))
    assert rows_of(own.validation, np.arange(1))[0].astype(np.uint8).tobytes() == content[::-1][:11]
    assert make_sources(text_spec(paths=paths)).validation is None
    with pytest.raises(ValueError, match="evaluation is on, but there is no validation data"):
        make_sources(replace(text_spec(paths=paths), evaluation=often))


def test_the_standard_library_is_real_text():
    files = find_files(["stdlib:*.py"])
    assert len(files) > 100
    assert all(path.suffix == ".py" for path in files)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"paths": ("/nonexistent/*.txt",)}, "no file matches '/nonexistent/"),
        ({"paths": ("{tmp}/short.txt",)}, "less than one sequence of 32"),
        ({"paths": ("{tmp}/long.txt",), "split": "0,1,0"}, "leaves nothing for training"),
        ({"paths": ("{tmp}/no.jsonl",)}, r"no.jsonl, line 2: has no text in 'text'; there are body"),
        ({"paths": ("{tmp}/number.jsonl",)}, r"number.jsonl, line 1: has '5' instead of text in 'text'"),
        ({"paths": ("{tmp}/bad.jsonl",)}, r"bad.jsonl, line 2: not JSON"),
        ({"paths": ("{tmp}/bad.json",)}, r"bad.json, row 1: not JSON \(Expecting value\)"),
        ({"paths": ("{tmp}/deep.jsonl",)}, r"deep.jsonl, line 1: not JSON"),
        ({"paths": ("{tmp}/cut.jsonl.gz",)}, r"cut.jsonl.gz: cannot be read"),
        ({"paths": ("{tmp}/broken.jsonl.gz",)}, r"broken.jsonl.gz: cannot be read"),
        ({"paths": ("{tmp}/cut.parquet",)}, r"cut.parquet: cannot be read"),
        ({"paths": ("{tmp}/pages.parquet",)}, r"pages.parquet: cannot be read"),
        ({"paths": ("{tmp}/list.jsonl",)}, r"list.jsonl, line 1: '5' is not an object"),
        ({"paths": ("{tmp}/bad.jsonl.gz",)}, r"bad.jsonl.gz: cannot be read"),
        ({"paths": ("{tmp}/bad.parquet",)}, r"bad.parquet: cannot be read"),
        ({"paths": ("{tmp}/bad.arrow",)}, r"bad.arrow: not an Arrow file"),
        ({"paths": ("{tmp}/latin.txt",), "tokenizer": "{bpe}"}, r"latin.txt: byte 100 is not UTF-8"),
        ({"paths": ("{tmp}/long.txt",), "tokenizer": "{bpe}", "index_dir": "/proc/no"}, "give another data.index_dir"),
        ({"paths": ("/proc/self/mem",)}, r"/proc/self/mem: cannot be read \(Input/output error\)"),
        (
            {"paths": ("/proc/self/mem",), "tokenizer": "{bpe}", "index_dir": "{tmp}/kept"},
            "^/proc/self/mem: cannot be",
        ),
        ({"paths": ("{tmp}/long.txt",), "tokenizer": "{tmp}/to.json"}, r"data.tokenizer: .*/to.json: cannot be read"),
        ({"paths": ("{tmp}/empty.jsonl",)}, "less than one sequence of 32"),
        ({"paths": ("{tmp}/empty.jsonl",), "tokenizer": "{bpe}"}, "hold no text"),
        ({"kind": "huggingface", "dataset": "allenai/c4"}, "'allenai/c4' is no folder .* nothing is downloaded"),
    ],
)
def test_what_cannot_serve_is_named(tmp_path, bpe, data, message):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "long.txt").write_text("long " * 100)
    (tmp_path / "to.json").symlink_to("/proc/self/mem")  # which nobody can read from its beginning, not even root
    (tmp_path / "latin.txt").write_bytes(b"a" * 100 + b"\xe9a")
    (tmp_path / "no.jsonl").write_text('{"text": "a"}\n{"body": "a"}\n')
    (tmp_path / "number.jsonl").write_text('{"text": 5}\n')
    (tmp_path / "list.jsonl").write_text("5\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "bad.json").write_text('[{"text": "a"},\n{"text": \n')
    (tmp_path / "deep.jsonl").write_text('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    packed = gzip.compress(b"".join(b'{"text": "%d"}\n' % n**2 for n in range(99)))
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[:-30])
    (tmp_path / "broken.jsonl.gz").write_bytes(packed[:20] + b"\xff" * 20 + packed[40:])
    table = pa.table({"text": [f"{n} of many" for n in range(5000)]})
    pa.parquet.write_table(table, tmp_path / "whole.parquet", use_dictionary=False)
    whole = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-100])
    (tmp_path / "pages.parquet").write_bytes(whole[:4] + b"\xff" * 300 + whole[304:])
    for name in ("bad.parquet", "bad.arrow", "bad.jsonl.gz"):
        (tmp_path / name).write_bytes(b"nothing of the kind" * 10)

    def filled(value):
        if isinstance(value, tuple):
            return tuple(filled(item) for item in value)
        return value.format(tmp=tmp_path, bpe=bpe)

    with pytest.raises(ValueError, match=message):
        make_source(text_spec(32, **{name: filled(value) for name, value in data.items()}))


def test_a_token_that_the_model_does_not_have_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a" * 25 + b"\xc8" + b"a" * 25)
    spec = text_spec(paths=(str(tmp_path / "a.txt"),))
    with pytest.raises(ValueError, match=r"sequence 2 in .* files has token 200, and model.vocab_size is 128"):
        make_source(replace(spec, model=TINY)).examples(np.arange(5))


@pytest.mark.parametrize(
    ("config", "special", "expected"),
    [
        (None, None, ("<|begin_of_text|>", "<|end_of_text|>")),
        ({"model_max_length": 1024}, None, (None, "<|end_of_text|>")),  # as GPT-2's
        ({"model_max_length": 1024}, {"eos_token": {"content": "the"}}, (None, "the")),
        (None, {"bos_token": "the", "eos_token": "the"}, ("the", "the")),
        ({"bos_token": None, "eos_token": "<|end_of_text|>"}, {"bos_token": "the", "eos_token": "the"},
         (None, "<|end_of_text|>")),
        ({"eos_token": None}, None, None),
    ],
)  # fmt: skip
def test_special_tokens_are_those_of_the_files_beside(tmp_path, bpe, config, special, expected):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    content = json.loads((bpe / "tokenizer.json").read_text())
    content["model"]["vocab"]["the"] = len(content["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for name, given in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        if given is not None:
            (folder / name).write_text(json.dumps(given))
    if expected is None:
        with pytest.raises(ValueError, match="has no end-of-text token; name it as eos_token in a tokenizer_config"):
            load_tokenizer(str(folder))
        return
    encoder, found = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tokenizer(str(folder))
    begin, end = (None if name is None else encoder.token_to_id(name) for name in expected)
    assert (found.begin, found.end) == (begin, end)


def test_a_tokenizer_of_the_hub_is_asked_for_as_a_file(tmp_path: Path):
    with pytest.raises(ValueError, match=r"'meta-llama/Llama-3.1-8B' is no tokenizer.json on this machine; give"):
        load_tokenizer("meta-llama/Llama-3.1-8B")
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(ValueError, match="a SentencePiece model"):
        load_tokenizer(str(tmp_path / "tokenizer.model"))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ValueError, match=r"tokenizer.json: cannot be read as a tokenizer"):
        load_tokenizer(str(tmp_path))
