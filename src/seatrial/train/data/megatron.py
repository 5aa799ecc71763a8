"""Megatron's samples: which tokens make up sample n of a run, by the index arithmetic of Megatron-LM and NeMo.

Documents, repeated for as many epochs as the run needs, are shuffled (doc_idx), laid end to end and cut into sequences
(sample_idx: each one's place in doc_idx and offset in that document), and the sequences are shuffled (shuffle_idx).
One RandomState of the seed shuffles both. A last epoch that is less than 80 % needed is shuffled on its own, so that
what precedes it is seen completely.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seatrial.train.data.examples import Ends, Example, shifted
from seatrial.train.data.indexed import Indexed


@dataclass(frozen=True)
class Samples:
    """doc_idx [epochs · documents], sample_idx [samples + 1, 2], shuffle_idx [samples]."""

    doc_idx: np.ndarray
    sample_idx: np.ndarray
    shuffle_idx: np.ndarray


def build_samples(sizes: np.ndarray, documents: range, num_samples: int, length: int, seed: int) -> Samples:
    """The index of at least `num_samples` sequences of `length` + 1 tokens, which overlap by one.

    Raises ValueError where the documents have no token for them.
    """
    tokens = int(sizes[documents.start : documents.stop].sum(dtype=np.int64))
    if tokens < 1:
        raise ValueError(f"documents {documents.start} to {documents.stop} hold no tokens")
    epochs = max(1, -(-(num_samples * length + 1) // tokens))
    total, per_epoch = (epochs * tokens - 1) // length, (tokens - 1) // length
    before_last = ((epochs - 1) * tokens - 1) // length
    separate = epochs > 1 and num_samples - before_last < int(0.80 * per_epoch)

    random = np.random.RandomState(seed)
    parts = []
    for repeats in (epochs - 1, 1) if separate else (epochs,):
        part = np.tile(np.arange(documents.start, documents.stop, dtype=np.int32), repeats)
        random.shuffle(part)
        parts.append(part)
    doc_idx = np.concatenate(parts)

    ends = np.cumsum(sizes[doc_idx], dtype=np.int64)
    starts = np.arange(total + 1, dtype=np.int64) * length
    places = np.searchsorted(ends, starts, side="right")  # the document that holds the token; empty ones hold none
    offsets = starts - np.where(places > 0, ends[places - 1], 0)
    small = max(len(doc_idx), int(offsets.max())) <= np.iinfo(np.int32).max
    sample_idx = np.stack([places, offsets], axis=1).astype(np.int32 if small else np.int64)
    sample_idx[0] = 0  # the first sequence begins with the first document, even if that is empty

    order = np.arange(total, dtype=np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64)
    for part in (order[:before_last], order[before_last:]) if separate else (order,):
        random.shuffle(part)
    return Samples(doc_idx, sample_idx, order)


def cached_samples(prefix: Path, name: str, build: Callable[[], Samples], fits: Callable[[Samples], bool]) -> Samples:
    """What stands in `<prefix>_<name>_{doc,sample,shuffle}_idx.npy`, if it fits; else it is built and kept.

    The names do not say which documents were split off, nor whether the data have changed since: hence `fits`.
    """
    paths = [prefix.with_name(f"{prefix.name}_{name}_{part}_idx.npy") for part in ("doc", "sample", "shuffle")]
    try:
        samples = Samples(*(np.load(path, mmap_mode="r", allow_pickle=False) for path in paths))
        if fits(samples):
            return samples
    except (OSError, ValueError, EOFError):  # not there, or not whole
        pass
    samples = build()
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, (samples.doc_idx, samples.sample_idx, samples.shuffle_idx), strict=True):
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            with part.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            part.replace(path)
    except OSError:  # a place that is read-only costs the time to build it again, no more
        pass
    return samples


class Megatron:
    """The samples of some documents of one data set."""

    def __init__(
        self,
        indexed: Indexed,
        documents: range,
        num_samples: int,
        length: int,
        seed: int,
        ends: Ends,
        prefix: Path,
        name: str,
    ) -> None:
        self._indexed, self._ends = indexed, ends
        tokens = int(indexed.sizes[documents.start : documents.stop].sum(dtype=np.int64))
        if tokens <= length:
            what = f"{prefix}: its {len(documents)} documents for {name} have {tokens} tokens"
            raise ValueError(f"{what}, and a sequence of {length} needs {length + 1}; add data, or a share")

        def fits(samples: Samples) -> bool:
            doc_idx, (place, offset) = samples.doc_idx, samples.sample_idx[-1].tolist()
            epochs = max(1, -(-(num_samples * length + 1) // tokens))
            count = (epochs * tokens - 1) // length
            return (
                len(doc_idx) == epochs * len(documents)
                and samples.sample_idx.shape == (count + 1, 2)
                and samples.shuffle_idx.shape == (count,)
                and documents.start <= doc_idx.min() <= doc_idx.max() < documents.stop
                and int(indexed.sizes[doc_idx[:place]].sum(dtype=np.int64)) + offset == count * length
            )

        self._samples = cached_samples(
            prefix,
            f"{name}_indexmap_{num_samples}ns_{length}sl_{seed}s",
            lambda: build_samples(indexed.sizes, documents, num_samples, length, seed),
            fits,
        )
        self.num_examples = (tokens - 1) // length  # of an epoch

    def _sequence(self, number: int) -> np.ndarray:
        samples, indexed = self._samples, self._indexed
        place = int(samples.shuffle_idx[number % len(samples.shuffle_idx)])
        (first, skipped), (last, end) = samples.sample_idx[place : place + 2].tolist()
        documents = samples.doc_idx[first : last + 1]
        begins, stops = indexed.starts[documents], indexed.starts[documents] + indexed.sizes[documents]
        stops[-1] = begins[-1] + end + 1
        begins[0] += skipped
        lengths = stops - begins
        places = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return indexed.tokens[places].astype(np.int32)

    def examples(self, numbers: np.ndarray) -> Example:
        return self._ends.mark(shifted(np.stack([self._sequence(number) for number in numbers.tolist()])))
