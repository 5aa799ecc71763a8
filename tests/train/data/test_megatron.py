"""Megatron's samples against its formulas, written out as the loops that they are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seatrial.spec import Batch, Data, Evaluation
from seatrial.train.data import blend, make_sources
from seatrial.train.data.blend import BlendingOrder, normalized
from seatrial.train.data.indexed import read_indexed, write_indexed
from seatrial.train.data.megatron import build_samples
from seatrial.train.data.rows import split_at
from seatrial.train.data.tokenizer import load_tokenizer
from seatrial.train.programs import main
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.training_data import make_source

# --- the formulas, one step at a time ---------------------------------------------------------------------------------


def loops_over_samples(sizes, documents, num_samples, length, seed):
    """(doc_idx, sample_idx, shuffle_idx) as in Megatron-LM's gpt_dataset, with one extra token per sample."""
    per_epoch = sum(int(sizes[d]) for d in documents)
    epochs, total = 0, 0
    while True:
        epochs += 1
        total += per_epoch
        if (total - 1) // length >= num_samples:
            break
    separate = False
    if epochs > 1:
        before = ((epochs - 1) * per_epoch - 1) // length
        separate = num_samples - before < int(0.80 * ((per_epoch - 1) // length))
    random = np.random.RandomState(seed=seed)

    def shuffled(times):
        index = np.mgrid[0:times, 0 : len(documents)][1]
        index[:] = documents
        index = index.reshape(-1).astype(np.int32)
        random.shuffle(index)
        return index

    doc_idx = np.concatenate((shuffled(epochs - 1), shuffled(1))) if separate else shuffled(epochs)

    samples, at, offset = [(0, 0)], 0, 0
    for _ in range((total - 1) // length):
        remaining = length + 1
        while remaining != 0:
            left = int(sizes[doc_idx[at]]) - offset
            remaining -= left
            if remaining <= 0:
                offset += remaining + left - 1
                remaining = 0
            else:
                at += 1
                offset = 0
        samples.append((at, offset))

    count = len(samples) - 1
    first = np.arange(before if separate else count, dtype=np.uint32)
    random.shuffle(first)
    last = np.arange(len(first), count, dtype=np.uint32)
    if separate:
        random.shuffle(last)
    return doc_idx, np.array(samples), np.concatenate((first, last))


def loops_over_blend(weights, count):
    taken, order = np.zeros(len(weights), np.int64), []
    for n in range(count):
        best, most = 0, weights[0] * max(n, 1.0) - taken[0]
        for d in range(1, len(weights)):
            error = weights[d] * max(n, 1.0) - taken[d]
            if error > most:
                best, most = d, error
        order.append((best, int(taken[best])))
        taken[best] += 1
    return order


def tokens_of_sample(sequences, doc_idx, sample_idx, shuffle_idx, number, length):
    """Token by token from the offset of the sample on, through the documents that follow."""
    at, offset = sample_idx[shuffle_idx[number]]
    found = []
    while len(found) < length + 1:
        document = sequences[doc_idx[at]]
        found += document[offset : offset + length + 1 - len(found)].tolist()
        at, offset = at + 1, 0
    return found


# --- tests ------------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@settings(max_examples=300)
@given(
    sizes=SIZES, length=st.integers(1, 50), wanted=st.integers(1, 80), seed=st.integers(0, 2**32 - 1), data=st.data()
)
def test_samples_are_those_of_the_formulas(sizes, length, wanted, seed, data):
    first = data.draw(st.integers(0, len(sizes) - 1))
    documents = range(first, data.draw(st.integers(first + 1, len(sizes))))
    assume(sum(sizes[first : documents.stop]) > 0)
    array = np.array(sizes, np.int32)
    expected = loops_over_samples(array, documents, wanted, length, seed)
    got = build_samples(array, documents, wanted, length, seed)
    for name, reference in zip(("doc_idx", "sample_idx", "shuffle_idx"), expected, strict=True):
        np.testing.assert_array_equal(getattr(got, name), reference)
    assert (got.doc_idx.dtype, got.sample_idx.dtype, got.shuffle_idx.dtype) == (np.int32, np.int32, np.uint32)


def test_a_last_epoch_is_on_its_own_below_eighty_percent():
    sizes = np.full(10, 101, np.int32)  # an epoch is 100 samples of 10
    separate, together = (build_samples(sizes, range(10), wanted, 10, 1) for wanted in (179, 180))
    assert sorted(separate.shuffle_idx[:100]) == list(range(100))
    assert sorted(together.shuffle_idx[:100]) != list(range(100))


WEIGHTS = st.lists(st.floats(0.01, 100) | st.integers(1, 9) | st.sampled_from((1e-5, 0.1, 0.3)), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, count=st.integers(0, 20_000), segment=st.sampled_from((1 << 18, 7000)), data=st.data())
def test_blends_are_in_the_order_of_the_formula(weights, count, segment, data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blend, "SEGMENT", segment)
        shares = normalized(normalized(weights))
        expected = loops_over_blend(shares.tolist(), count)
        some = data.draw(st.lists(st.integers(0, max(0, count - 1)), max_size=5)) if count else []
        for asked in (np.arange(count), np.array(some, np.int64)):  # all of them, and a few anywhere
            chosen, numbers = BlendingOrder(shares, count).at(asked)
            assert list(zip(chosen.tolist(), numbers.tolist(), strict=True)) == [expected[n] for n in asked]


def test_a_blend_is_right_where_its_lanes_do_not_come_together(monkeypatch):
    weights, redone, one_by_one = [1.0, 1.0, 1.0, 1e-3, 1e-4, 1e-5], [], blend._one_by_one
    monkeypatch.setattr(blend, "_one_by_one", lambda *args: redone.append(args) or one_by_one(*args))
    monkeypatch.setattr(blend, "_likely_taken", lambda shares, numbers: np.zeros((len(shares), len(numbers))))
    shares = normalized(weights)
    chosen, numbers = BlendingOrder(shares, 30_000).at(np.arange(30_000))
    assert list(zip(chosen.tolist(), numbers.tolist(), strict=True)) == loops_over_blend(shares.tolist(), 30_000)
    assert redone


def test_the_order_of_a_long_blend_is_there_at_once():
    order = BlendingOrder(normalized(range(1, 41)), 400_000_000)
    start = time.monotonic()
    order.at(np.arange(1536))
    assert time.monotonic() - start < 20  # a loop over all of it takes an hour
    assert sum(column.nbytes for made in order._made.values() for column in made) < 2**23


@pytest.mark.parametrize(
    ("split", "count", "of_core", "of_nemo"),
    [
        ("980,10,10", 1000, [0, 980, 990, 1000], [0, 980, 990, 1000]),
        ("969, 30, 1", 100, [0, 97, 100, 100], [0, 97, 100, 100]),
        ("969,30,1", 50, [0, 48, 50, 50], [0, 48, 50, 50]),
        ("969,30,1", 25, [0, 24, 25, 25], [0, 24, 25, 25]),
        ("969,30,1", 550, [0, 533, 549, 550], [0, 533, 549, 550]),
        ("900,50,50", 7, [0, 6, 7, 7], [0, 7, 7, 7]),
        ("1/1", 5, [0, 2, 5, 5], [0, 3, 5, 5]),
        ("1,1,1", 5, [0, 2, 3, 5], [0, 1, 3, 5]),
        (None, 5, [0, 5, 5, 5], [0, 5, 5, 5]),
    ],
)
def test_splits_are_rounded(split, count, of_core, of_nemo):
    assert split_at(split, count) == of_core
    assert split_at(split, count, as_nemo=True) == of_nemo


@given(shares=st.lists(st.integers(0, 1000), min_size=3, max_size=3), count=st.integers(1, 10**9))
def test_splits_are_those_of_the_formulas(shares, count):
    assume(sum(shares))
    split = ",".join(map(str, shares))
    fractions = (np.array(shares, np.float64) / np.sum(shares)).tolist()
    ends = [0.0]
    for fraction in fractions:
        ends.append(ends[-1] + fraction)
    assert split_at(split, count) == [round(end * float(count)) for end in ends]
    index = [0]
    for fraction in fractions:
        index.append(index[-1] + round(fraction * float(count)))
    moved = index[-1] - count
    assert split_at(split, count, as_nemo=True) == [0, *(end - moved for end in index[1:])]


def megatron_spec(length=16, steps=5, batch=4, **data):
    spec = make_spec(model=replace(TINY, vocab_size=1000), steps=steps, seed=1234)
    return replace(
        spec,
        batch=Batch(sequence_length=length, global_batch_size=batch, micro_batch_size=batch),
        data=Data(kind="megatron", **data),
    )


def write(folder, name, rng, count=40, high=1000):
    sequences = [rng.integers(0, high, n) for n in rng.integers(0, 60, count)]
    write_indexed(folder / name, np.uint16, sequences)
    return sequences


@pytest.mark.parametrize("steps", [5, 60])
def test_a_source_gives_the_tokens_of_its_samples(tmp_path, rng, steps):
    sequences = write(tmp_path, "a", rng)
    spec = megatron_spec(steps=steps, paths=(str(tmp_path / "a"),), split="90,10,0")
    index = loops_over_samples(np.array([len(s) for s in sequences]), range(36), steps * 4, 16, 1234)
    source = make_source(spec)
    numbers = rng.permutation(steps * 4)
    got = source.examples(numbers)
    expected = np.array([tokens_of_sample(sequences, *index, n, 16) for n in numbers])
    np.testing.assert_array_equal(got["tokens"], expected[:, :-1])
    np.testing.assert_array_equal(got["targets"], expected[:, 1:])
    assert np.all(got["weights"] == 1)
    assert source.num_examples == (sum(len(s) for s in sequences[:36]) - 1) // 16


def test_index_files_have_the_documented_names_and_are_used_again(tmp_path, rng):
    sequences = write(tmp_path, "a", rng)
    kept = tmp_path / "index"
    spec = megatron_spec(paths=(str(tmp_path / "a"),), index_dir=str(kept))
    tokens = make_source(spec).examples(np.arange(20))["tokens"]
    names = [f"a_train_indexmap_20ns_16sl_1234s_{part}_idx.npy" for part in ("doc", "sample", "shuffle")]
    assert sorted(path.name for path in kept.iterdir()) == names
    index = loops_over_samples(np.array([len(s) for s in sequences]), range(40), 20, 16, 1234)
    for name, expected in zip(names, index, strict=True):
        np.testing.assert_array_equal(np.load(kept / name), expected)

    np.save(kept / names[2], index[2][::-1])  # it fits, so it is read
    np.testing.assert_array_equal(
        make_source(spec).examples(np.arange(20))["tokens"],
        [tokens_of_sample(sequences, index[0], index[1], index[2][::-1], n, 16)[:-1] for n in range(20)],
    )
    for damaged in (names[0], names[1], names[2]):
        (kept / damaged).write_bytes((kept / damaged).read_bytes()[:-5])
        np.testing.assert_array_equal(make_source(spec).examples(np.arange(20))["tokens"], tokens)
    np.save(kept / names[2], index[2][5:])
    np.testing.assert_array_equal(make_source(spec).examples(np.arange(20))["tokens"], tokens)
    other = replace(spec, data=replace(spec.data, split="50,50,0"))  # the name is the same, the documents are not
    make_source(other)
    assert np.load(kept / names[0]).max() < 20


def test_index_files_of_another_split_are_not_used(tmp_path):
    write_indexed(tmp_path / "a", np.int32, [np.full(20, document) for document in range(40)])
    often = Evaluation(interval_steps=2, batches=3)
    for split, documents in (("50,40,10", range(20, 36)), ("40,40,20", range(16, 32))):
        spec = replace(megatron_spec(paths=(str(tmp_path / "a"),), split=split), evaluation=often)
        assert set(make_sources(spec).validation.examples(np.arange(36))["tokens"].flat) == set(documents)


def test_index_files_lie_beside_the_data_or_nowhere(tmp_path, rng):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "a", rng)
    spec = megatron_spec(paths=(str(tmp_path / "data" / "a"),))
    tokens = make_source(spec).examples(np.arange(20))["tokens"]
    assert (tmp_path / "data" / "a_train_indexmap_20ns_16sl_1234s_doc_idx.npy").is_file()
    nowhere = replace(spec, data=replace(spec.data, index_dir="/proc/none"))
    np.testing.assert_array_equal(make_source(nowhere).examples(np.arange(20))["tokens"], tokens)


def test_several_data_sets_are_blended(tmp_path, rng):
    sets = {name: write(tmp_path, name, rng) for name in "abc"}
    weights = (0.5, 3.0, 1.5)
    spec = megatron_spec(steps=25, paths=tuple(str(tmp_path / name) for name in sets), weights=weights)
    order = loops_over_blend([weight / 5 for weight in weights], 100)
    indexes = {
        name: loops_over_samples(np.array([len(s) for s in s_]), range(40), ceil(100 * weight / 5 * 1.005), 16, 1234)
        for (name, s_), weight in zip(sets.items(), weights, strict=True)
    }
    expected = [
        tokens_of_sample(sets["abc"[which]], *indexes["abc"[which]], number, 16)[:-1] for which, number in order
    ]
    numbers = rng.permutation(100)
    np.testing.assert_array_equal(make_source(spec).examples(numbers)["tokens"], np.array(expected)[numbers])
    for name, count in zip("abc", (11, 61, 31), strict=True):
        assert (tmp_path / f"{name}_train_indexmap_{count}ns_16sl_1234s_doc_idx.npy").is_file()


def test_validation_data_in_shares_go_on_behind_their_first_epoch(tmp_path, rng):
    sets = {name: write(tmp_path, name, rng) for name in "ab"}
    paths, weights = tuple(str(tmp_path / name) for name in sets), (1.0, 2.0)
    spec = megatron_spec(steps=20, paths=paths, weights=weights, split="50,50,0")
    spec = replace(spec, evaluation=Evaluation(interval_steps=2, batches=9))
    wanted = (20 // 2 + 1) * 9 * 4
    order = loops_over_blend((np.array(weights) / 3).tolist(), wanted)
    indexes = {
        name: loops_over_samples(
            np.array([len(s) for s in s_]), range(20, 40), ceil(ceil(wanted * weight / 3) * 1.005), 16, 1234
        )
        for (name, s_), weight in zip(sets.items(), weights, strict=True)
    }
    expected = [tokens_of_sample(sets["ab"[which]], *indexes["ab"[which]], n, 16)[:-1] for which, n in order]
    source = make_sources(spec).validation
    assert source.num_examples < wanted
    np.testing.assert_array_equal(source.examples(np.arange(wanted))["tokens"], expected)


SIZES_OF_SETS = {"a": 40, "b": 10, "c": 25}


@pytest.mark.parametrize("name", ["train", "validation"])
def test_data_sets_without_weights_are_mixed_by_their_sizes(tmp_path, rng, name):
    sets = {each: write(tmp_path, each, rng, count) for each, count in SIZES_OF_SETS.items()}
    paths = tuple(str(tmp_path / each) for each in sets)
    spec = megatron_spec(paths=paths if name == "train" else paths[:1], validation_paths=paths)
    spec = replace(spec, evaluation=Evaluation(interval_steps=2, batches=3))
    sizes = {each: np.array([len(s) for s in sequences]) for each, sequences in sets.items()}
    counts = [(int(lengths.sum()) - 1) // 16 for lengths in sizes.values()]  # an epoch of each
    indexes = {each: loops_over_samples(lengths, range(len(lengths)), 1, 16, 1234) for each, lengths in sizes.items()}
    order = loops_over_blend([count / sum(counts) for count in counts], sum(counts))
    expected = [
        tokens_of_sample(sets["abc"[which]], *indexes["abc"[which]], number, 16)[:-1] for which, number in order
    ]
    source = getattr(make_sources(spec), name)
    assert source.num_examples == sum(counts)
    np.testing.assert_array_equal(source.examples(np.arange(sum(counts)))["tokens"], expected)
    np.testing.assert_array_equal(source.examples(np.array([sum(counts) + 1]))["tokens"], expected[1:2])


def test_a_run_longer_than_one_epoch_of_its_data_says_so(tmp_path, rng):
    sets = {name: write(tmp_path, name, rng) for name in "ab"}
    paths = tuple(str(tmp_path / name) for name in sets)
    for steps, is_longer in ((5, False), (500, True)):
        notes = make_sources(megatron_spec(steps=steps, paths=paths)).notes
        assert any("the run reads 2,000" in note for note in notes) is is_longer


def test_an_nxdt_file_has_its_data_split_and_mixed_as_nemo_does(tmp_path, rng):
    sets = {name: write(tmp_path, name, rng, 7) for name in "ab"}
    paths = tuple(str(tmp_path / name) for name in sets)
    spec = replace(megatron_spec(paths=paths, split="900,50,50", weights=(1.0, 1.0)), dialect="nxdt")
    order = loops_over_blend([0.5, 0.5], 20)
    indexes = {n: loops_over_samples(np.array([len(s) for s in s_]), range(7), 11, 16, 1234) for n, s_ in sets.items()}
    expected = [tokens_of_sample(sets["ab"[which]], *indexes["ab"[which]], number, 16)[:-1] for which, number in order]
    np.testing.assert_array_equal(make_source(spec).examples(np.arange(20))["tokens"], expected)


def test_a_single_data_set_with_a_weight_is_made_with_a_surplus_where_all_is_split(tmp_path, rng):
    write(tmp_path, "a", rng)
    for split, count in (("100,0,0", 21), (None, 20)):
        make_source(megatron_spec(paths=(str(tmp_path / "a"),), weights=(2.0,), split=split))
        assert (tmp_path / f"a_train_indexmap_{count}ns_16sl_1234s_doc_idx.npy").is_file()


def test_validation_is_its_own_files_or_a_share(tmp_path, rng):
    sets = {name: write(tmp_path, name, rng) for name in "ab"}
    often = Evaluation(interval_steps=2, batches=3)
    paths = (str(tmp_path / "a"),)
    shared = make_sources(replace(megatron_spec(paths=paths, split="50,40,10"), evaluation=often)).validation
    sizes = {name: np.array([len(s) for s in sequences]) for name, sequences in sets.items()}
    index = loops_over_samples(sizes["a"], range(20, 36), (5 // 2 + 1) * 3 * 4, 16, 1234)
    expected = [tokens_of_sample(sets["a"], *index, n, 16)[:-1] for n in range(12)]
    np.testing.assert_array_equal(shared.examples(np.arange(12))["tokens"], expected)
    assert (tmp_path / "a_valid_indexmap_36ns_16sl_1234s_doc_idx.npy").is_file()

    own = replace(
        megatron_spec(paths=paths, validation_paths=(str(tmp_path / "b"),)), evaluation=Evaluation(interval_steps=2)
    )
    index = loops_over_samples(sizes["b"], range(40), 1, 16, 1234)
    expected = [tokens_of_sample(sets["b"], *index, n, 16)[:-1] for n in range(12)]
    np.testing.assert_array_equal(make_sources(own).validation.examples(np.arange(12))["tokens"], expected)
    with pytest.raises(ValueError, match="there is no validation data"):
        make_sources(replace(megatron_spec(paths=paths), evaluation=often))


def test_ends_of_documents_reset_what_is_asked_for(tmp_path, bpe):
    end = 1  # <|end_of_text|>
    write_indexed(tmp_path / "a", np.int32, [np.array([5, 6, end, 7, end, end, 8, 9, 10])])
    asked = {"reset_positions": True, "reset_attention": True, "mask_document_ends": True}
    source = make_source(megatron_spec(8, 1, 1, paths=(str(tmp_path / "a"),), tokenizer=str(bpe), **asked))
    got = {name: values[0].tolist() for name, values in source.examples(np.arange(1)).items()}
    assert got["tokens"] == [5, 6, end, 7, end, end, 8, 9]
    assert got["targets"] == [6, end, 7, end, end, 8, 9, 10]
    assert got["positions"] == [0, 1, 2, 0, 1, 0, 0, 1]
    assert got["segments"] == [1, 1, 1, 2, 2, 3, 4, 4]
    assert got["weights"] == [1, 1, 0, 1, 0, 0, 1, 1]


def test_what_cannot_serve_is_named(tmp_path, rng):
    write(tmp_path, "a", rng)
    write_indexed(tmp_path / "tiny", np.int32, [np.arange(9)])
    for data, message in (
        ({"paths": (str(tmp_path / "b"),)}, "b.idx: no such file"),
        ({"paths": (str(tmp_path / "tiny"),)}, "tiny_train: 1 documents have 9 tokens, and a sequence needs 17"),
        ({"paths": (str(tmp_path / "a"),), "split": "0,1,0"}, "leaves nothing for training"),
        ({"paths": ()}, "no data are named"),
        ({"paths": (str(tmp_path / "a"),) * 2, "weights": (0.0, 0.0)}, "data.weights: the sum of 0, 0 is not above 0"),
        ({"paths": (str(tmp_path / "a"),), "reset_positions": True}, "set data.tokenizer to the one that made them"),
    ):
        with pytest.raises(ValueError, match=message):
            make_source(megatron_spec(**data))
    source = make_source(replace(megatron_spec(paths=(str(tmp_path / "a"),)), model=TINY))
    with pytest.raises(ValueError, match=r"data.paths: .*a, document \d+ has token \d+, and model.vocab_size is 128"):
        source.examples(np.arange(4))


@pytest.mark.parametrize("place", [0, 7, 29])
def test_a_token_that_the_model_does_not_have_is_named_with_its_document(tmp_path, place):
    documents = [np.full(30, number) for number in range(40)]
    documents[17][place] = 999
    write_indexed(tmp_path / "a", np.int32, documents)
    source = make_source(replace(megatron_spec(steps=40, paths=(str(tmp_path / "a"),)), model=TINY))
    with pytest.raises(ValueError, match=r"a, document 17 has token 999, and model.vocab_size is 128"):
        source.examples(np.arange(160))


def test_text_becomes_such_files(tmp_path, bpe, json_lines):
    (tmp_path / "a.txt").write_text("the lazy dog")
    json_lines("b.jsonl", {"text": "the fox"}, {"text": "jumps"})
    command = [
        sys.executable,
        "-m",
        "seatrial",
        "data",
        "a.txt",
        "b.jsonl",
        "--tokenizer",
        str(bpe),
        "--out",
        "new/set",
    ]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "3 documents" in done.stdout
    got = read_indexed(tmp_path / "new" / "set")
    for i, tokens in enumerate(load_tokenizer(str(bpe)).encode(["the lazy dog", "the fox", "jumps"])):
        assert got[i].tolist() == [*tokens.tolist(), 1]


def test_text_that_is_not_there_is_wrong_input(capsys, monkeypatch):
    arguments = {"text": ["/nonexistent"], "tokenizer": "byte", "out": "x"}
    monkeypatch.setattr("sys.argv", ["programs", "data", json.dumps(arguments)])
    assert main() == 2
    assert "seatrial data: text: no file matches '/nonexistent'" in capsys.readouterr().err
