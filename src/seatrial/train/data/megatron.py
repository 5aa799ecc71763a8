"""Megatron's samples: which tokens make up sample n of a run, by the index arithmetic of Megatron-LM and NeMo.

Documents, repeated for as many epochs as the run needs, are shuffled (doc_idx), laid end to end and cut into sequences
(sample_idx: each one's place in doc_idx and offset in that document), and the sequences are shuffled (shuffle_idx).
One RandomState of the seed shuffles both. A last epoch that is less than 80 % needed is shuffled on its own, so that
what precedes it is seen completely.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seatrial.train.data.examples import Ends, Example, shifted
from seatrial.train.data.indexed import Indexed


class Samples(NamedTuple):
    """[epochs · documents], [samples + 1, 2] and [samples]."""

    doc_idx: np.ndarray
    sample_idx: np.ndarray
    shuffle_idx: np.ndarray


def _extent(sizes: np.ndarray, documents: range, num_samples: int, length: int) -> tuple[int, int]:
    """The tokens of an epoch, and how many epochs there are."""
    tokens = int(sizes[documents.start : documents.stop].sum(dtype=np.int64))
    return tokens, max(1, -(-(num_samples * length + 1) // tokens))


def build_samples(sizes: np.ndarray, documents: range, num_samples: int, length: int, seed: int) -> Samples:
    """At least `num_samples` sequences of `length` + 1 tokens, which overlap by one; `sizes` of all documents."""
    tokens, epochs = _extent(sizes, documents, num_samples, length)
    total, before_last, per_epoch = ((n * tokens - 1) // length for n in (epochs, epochs - 1, 1))
    separate = epochs > 1 and num_samples - before_last < int(0.80 * per_epoch)

    random = np.random.RandomState(seed)
    parts = []
    for repeats in (epochs - 1, 1) if separate else (epochs,):
        parts.append(np.tile(np.arange(documents.start, documents.stop, dtype=np.int32), repeats))
        random.shuffle(parts[-1])
    doc_idx = np.concatenate(parts)

    ends = np.cumsum(sizes[doc_idx], dtype=np.int64)
    starts = np.arange(total + 1, dtype=np.int64) * length
    places = np.searchsorted(ends, starts, side="right")  # the document that holds the token; empty ones hold none
    offsets = starts - np.where(places > 0, ends[places - 1], 0)
    fits = max(len(doc_idx), int(offsets.max())) <= np.iinfo(np.int32).max
    sample_idx = np.stack([places, offsets], axis=1).astype(np.int32 if fits else np.int64)
    sample_idx[0] = 0  # the first sequence begins with the first document, even if that is empty

    order = np.arange(total, dtype=np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64)
    for part in (order[:before_last], order[before_last:]) if separate else (order,):
        random.shuffle(part)
    return Samples(doc_idx, sample_idx, order)


def _are_of(samples: Samples, sizes: np.ndarray, documents: range, num_samples: int, length: int) -> bool:
    """True if samples that were kept are of these documents; their files' names do not tell."""
    tokens, epochs = _extent(sizes, documents, num_samples, length)
    total = (epochs * tokens - 1) // length
    shapes = (epochs * len(documents),), (total + 1, 2), (total,)
    if tuple(array.shape for array in samples) != shapes:
        return False
    place, offset = samples.sample_idx[-1].tolist()
    are_there = bool(documents.start <= samples.doc_idx.min() and samples.doc_idx.max() < documents.stop)
    return are_there and int(sizes[samples.doc_idx[:place]].sum(dtype=np.int64)) + offset == total * length


def kept_samples(stem: Path, sizes: np.ndarray, documents: range, num_samples: int, length: int, seed: int) -> Samples:
    """`build_samples`, or what stands in the three files `<stem>…_{doc,sample,shuffle}_idx.npy`, written if need be."""
    name = f"{stem.name}_indexmap_{num_samples}ns_{length}sl_{seed}s"
    paths = [stem.with_name(f"{name}_{part}_idx.npy") for part in ("doc", "sample", "shuffle")]
    with suppress(OSError, ValueError, EOFError):  # not there, or not whole
        samples = Samples(*(np.load(path, mmap_mode="r", allow_pickle=False) for path in paths))
        if _are_of(samples, sizes, documents, num_samples, length):
            return samples
    samples = build_samples(sizes, documents, num_samples, length, seed)
    with suppress(OSError):  # a place that is read-only costs the time to build it again, no more
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, samples, strict=True):
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            with part.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            part.replace(path)
    return samples


class Megatron:
    """The samples of some documents of a data set, called `name`; their index is kept by a `stem`.

    `num_examples`: of one epoch, which is also what there is where `num_samples` is None.
    """

    def __init__(
        self, name: str, indexed: Indexed, documents: range, num_samples: int | None, length: int, seed: int,
        ends: Ends, stem: Path,
    ) -> None:  # fmt: skip
        tokens = int(indexed.sizes[documents.start : documents.stop].sum(dtype=np.int64))
        if tokens <= length:
            what = f"{stem}: {len(documents)} documents have {tokens} tokens, and a sequence needs {length + 1}"
            raise ValueError(f"{what}; add data, or give them a larger share")
        self._name, self._indexed, self._ends = name, indexed, ends
        self.num_examples = (tokens - 1) // length
        wanted = self.num_examples if num_samples is None else num_samples
        self._samples = kept_samples(stem, indexed.sizes, documents, wanted, length, seed)

    def _documents(self, number: int) -> tuple[list[int], int, int]:
        """The documents of a sample, the tokens that it skips of the first, and the place where it ends in the last."""
        samples = self._samples
        place = int(samples.shuffle_idx[number % len(samples.shuffle_idx)])
        (first, skipped), (last, end) = samples.sample_idx[place : place + 2].tolist()
        return samples.doc_idx[first : last + 1].tolist(), skipped, end

    def where(self, number: int, place: int) -> str:
        documents, skipped, _ = self._documents(number)
        ends = np.cumsum(self._indexed.sizes[documents], dtype=np.int64)
        return f"{self._name}, document {documents[int(np.searchsorted(ends, skipped + place, side='right'))]}"

    def _sequence(self, number: int) -> np.ndarray:
        documents, skipped, end = self._documents(number)
        parts = [self._indexed[document] for document in documents]
        parts[-1] = parts[-1][: end + 1]
        parts[0] = parts[0][skipped:]
        return np.concatenate(parts).astype(np.int32)

    def examples(self, numbers: np.ndarray) -> Example:
        return self._ends.mark(shifted(np.stack([self._sequence(number) for number in numbers.tolist()])))
