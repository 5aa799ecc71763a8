"""A spec's data → the sources of its training and validation examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from seatrial.spec import RunSpec
from seatrial.train.data.arrow import TokenRows
from seatrial.train.data.examples import FIELDS, Ends, Example, Source
from seatrial.train.data.files import documents, find_files, tokenised
from seatrial.train.data.indexed import files_of, read_indexed
from seatrial.train.data.megatron import Megatron
from seatrial.train.data.records import answer_rows, answers, preference_rows, preferences
from seatrial.train.data.rows import Blend, Epochs, Pieces, Rows, Windows, shares_of, split_at
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.data.tokenizer import load_tokenizer

# Where several documents in one sequence do not see each other, without being asked to: as MaxText packs, and as SFT
# should be. Their positions begin anew, and no document predicts the next.
_APART = ("records", "huggingface", "grain", "tfds", "c4_mlperf")


def fields_of(spec: RunSpec) -> tuple[str, ...]:
    """The fields that the batches of a run have."""
    apart = spec.data.packing and spec.data.kind in _APART
    wanted = {"positions": apart or spec.data.reset_positions, "segments": apart or spec.data.reset_attention}
    return tuple(name for name in FIELDS if wanted.get(name, True))


@dataclass(frozen=True)
class Sources:
    """What a run learns from, what it is validated on (None: nothing), and what a person should know of them."""

    train: Source
    validation: Source | None = None
    notes: tuple[str, ...] = ()


def make_sources(spec: RunSpec) -> Sources:
    """The sources that a spec asks for. Raises ValueError where its files cannot serve."""
    if spec.data.kind == "synthetic":
        seeds = (spec.seed, spec.seed + 1)
        size, length, batch = spec.model.vocab_size, spec.batch.sequence_length, spec.batch.global_batch_size
        return Sources(*(Synthetic(size, length, batch, seed) for seed in seeds))
    sources = (_megatron if spec.data.kind == "megatron" else _from_rows)(spec)
    if sources.validation is None and _validates(spec):
        raise ValueError("an evaluation is asked for, and there is no validation data; give data.validation_paths "
                         'or a share of the data (data.split="980,10,10"), or no evaluation')  # fmt: skip
    validation = sources.validation and _InVocabulary(sources.validation, spec)
    return replace(sources, train=_InVocabulary(sources.train, spec), validation=validation)


def _validates(spec: RunSpec) -> bool:
    return bool(spec.evaluation.interval_steps or spec.evaluation.interval_fraction)


@dataclass(frozen=True)
class _InVocabulary:
    """A source none of whose tokens the model has no row for; the device would take another's in silence."""

    source: Source
    spec: RunSpec

    @property
    def num_examples(self) -> int | None:
        return self.source.num_examples

    def examples(self, numbers: np.ndarray) -> Example:
        made = self.source.examples(numbers)
        for name in ("tokens", "targets"):
            wrong = (made[name] < 0) | (made[name] >= self.spec.model.vocab_size)
            if wrong.any():
                row, place = np.argwhere(wrong)[0]
                raise ValueError(
                    f"data.paths: example {numbers[row]} has token {made[name][row, place]}, and model.vocab_size is "
                    f"{self.spec.model.vocab_size}; another tokenizer made these data, or the model is too small"
                )
        return {name: made[name] for name in fields_of(self.spec)}


def _ends(spec: RunSpec) -> Ends:
    """What the end of a document means to sequences that are cut out of many; its token is known to the tokenizer."""
    data = spec.data
    apart = data.packing and data.kind in _APART
    fields = tuple(name for name in ("positions", "segments") if name in fields_of(spec))
    masked = apart or data.mask_document_ends
    return Ends(load_tokenizer(data.tokenizer).end if fields or masked else None, fields, masked)


# --- Megatron ---------------------------------------------------------------------------------------------------------


def _megatron(spec: RunSpec) -> Sources:
    data, batch = spec.data, spec.batch.global_batch_size
    evaluations = 1 + spec.steps // (spec.evaluation.interval_steps or spec.steps)
    wanted = {"train": spec.steps * batch, "valid": evaluations * (spec.evaluation.batches or 0) * batch or 1}

    def source(
        name: str, paths: Sequence[str], weights: Sequence[float], split: str | None, part: int
    ) -> Source | None:
        count = wanted[name]
        counts = [ceil(count * share * 1.005) for share in shares_of(weights)] if len(paths) > 1 else [count]
        made = []
        for path, samples in zip(paths, counts, strict=True):
            indexed = read_indexed(path)
            begin, end = split_at(split, len(indexed))[part : part + 2]
            if begin == end:
                return None
            prefix = files_of(path)[0].with_suffix("")
            kept = Path(data.index_dir).expanduser() / prefix.name if data.index_dir else prefix
            chosen = range(begin, min(end, begin + (data.max_examples or end)))
            made.append(
                Megatron(indexed, chosen, samples, spec.batch.sequence_length, spec.seed, _ends(spec), kept, name)
            )
        return made[0] if len(made) == 1 else Blend(made, weights, sum(counts))

    if not data.paths:
        raise ValueError("data.paths: names no data; give the path of Megatron's .bin and .idx files")
    weights = data.weights or (1.0,) * len(data.paths)
    train = source("train", data.paths, weights, data.split, 0)
    if train is None:
        raise ValueError(f"data.split: {data.split} leaves no document for training; give training a larger share")
    if data.validation_paths:
        paths = data.validation_paths
        return Sources(train, source("valid", paths, (1.0,) * len(paths), None, 0) if _validates(spec) else None)
    return Sources(train, source("valid", data.paths, weights, data.split, 1) if _validates(spec) else None)


# --- everything else --------------------------------------------------------------------------------------------------


def _from_rows(spec: RunSpec) -> Sources:
    data, notes = spec.data, []
    paths = data.paths or ((data.dataset,) if data.dataset and Path(data.dataset).is_dir() else ())
    if not paths:
        named = f"{data.dataset!r} is no folder on this machine" if data.dataset else "no data are named"
        raise ValueError(f"data.dataset: {named}, and nothing is downloaded; give local files in data.paths "
                         "(MaxText: hf_train_files), Parquet, Arrow or JSON lines")  # fmt: skip

    def rows(patterns: Sequence[str], key: str) -> Rows:
        made, told = _rows(spec, find_files(patterns, key, folders=data.kind != "text"))
        if made.count < made.group:
            raise ValueError(f"{key}: {', '.join(patterns)} are less than one sequence of {spec.batch.sequence_length}")
        notes.extend(told)
        return made

    # With weights, each path is a source of its own; without, all together are one, and each document comes once.
    parts = [rows([path], "data.paths") for path in paths] if data.weights else [rows(paths, "data.paths")]
    spans = [[row * part.group for row in split_at(data.split, part.count // part.group)] for part in parts]
    train = [Epochs(part, range(*span[:2]), spec.seed) for part, span in zip(parts, spans, strict=True)]
    validation: list[Epochs] = []
    if _validates(spec) and data.validation_paths:
        held_out = rows(data.validation_paths, "data.validation_paths")
        validation = [Epochs(held_out, range(held_out.count), None)]
    elif _validates(spec):
        validation = [Epochs(part, range(*span[1:3]), None) for part, span in zip(parts, spans, strict=True)]
        validation = [source for source in validation if source.num_examples]
    if not all(source.num_examples for source in train):
        raise ValueError(f"data.split: {data.split} leaves nothing for training; give training a larger share")
    count = spec.steps * spec.batch.global_batch_size
    return Sources(
        train=train[0] if len(train) == 1 else Blend(train, data.weights, count),
        validation=None if not validation else validation[0] if len(validation) == 1 else
        Blend(validation, [source.num_examples for source in validation], sum(s.num_examples for s in validation)),
        notes=tuple(notes),
    )  # fmt: skip


def _rows(spec: RunSpec, files: list[Path]) -> tuple[Rows, list[str]]:
    """The rows of some files, by the kind of data."""
    data, length = spec.data, spec.batch.sequence_length
    if data.kind == "arrow":
        return TokenRows(files, data.max_examples, length, _ends(spec)), []
    tokenizer = load_tokenizer(data.tokenizer)
    if data.kind == "records" and spec.objective.kind in ("dpo", "orpo"):
        indexed = tokenised(files, tokenizer, data.index_dir, preferences)
        return preference_rows(indexed, data.max_examples, length, spec.objective), []
    if data.kind == "records":
        indexed = tokenised(files, tokenizer, data.index_dir, answers)
        return answer_rows(indexed, data.max_examples, length, data.packing)
    indexed = tokenised(files, tokenizer, data.index_dir, documents)
    if data.kind == "text" or data.packing:
        return Windows(indexed, data.max_examples, length, _ends(spec)), []
    return Pieces(lambda row: [(indexed[row], 0)], min(len(indexed), data.max_examples or len(indexed)), length), []
