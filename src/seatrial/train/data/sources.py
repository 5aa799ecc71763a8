"""A spec's data → the sources of its training and validation examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from seatrial.records.paths import find_files
from seatrial.spec import RunSpec
from seatrial.train.data.arrow import TokenRows
from seatrial.train.data.blend import Blend, normalized
from seatrial.train.data.examples import FIELDS, NO_ENDS, Ends, Example, Located, Source
from seatrial.train.data.files import documents, documents_from_begin, tokenised
from seatrial.train.data.indexed import files_of, read_indexed
from seatrial.train.data.megatron import Megatron
from seatrial.train.data.records import answer_rows, answers, preference_rows, preferences
from seatrial.train.data.rows import Epochs, Pieces, Rows, Windows, split_at
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.data.tokenizer import load_tokenizer

# Where several documents in one sequence do not see each other, without being asked to: as MaxText packs, and as SFT
# should be. Their positions restart, and no document predicts the next.
_APART = ("records", "huggingface", "grain", "tfds", "c4_mlperf")
_NEMO = ("nxdt",)  # dialects whose programs split and mix Megatron's data as NeMo does; all others as Megatron core
_SURPLUS = 1.005  # of each data set of a blend, because its order is a little uneven
_PAIRED = ("dpo", "orpo")  # objectives that compare sequences 2i and 2i + 1


def fields_of(spec: RunSpec) -> tuple[str, ...]:
    """The fields that the batches of a run have."""
    apart = spec.data.packing and spec.data.kind in _APART
    wanted = {
        "positions": apart or spec.data.reset_positions,
        "segments": apart or spec.data.reset_attention,
        "reference": spec.objective.kind == "dpo",
    }
    return tuple(name for name in FIELDS if wanted.get(name, True))


@dataclass(frozen=True)
class Sources:
    """The training data of a run, its validation data (None: none), and notes about them for people."""

    train: Source
    validation: Source | None = None
    notes: tuple[str, ...] = ()


def make_sources(spec: RunSpec) -> Sources:
    """The sources of a spec. Raises ValueError where its files cannot be used."""
    data = spec.data
    if data.kind == "synthetic":
        return Sources(_synthetic(spec, spec.seed), _synthetic(spec, spec.seed + 1))
    notes: dict[str, None] = {}
    paths = data.paths or _folder(data.dataset)
    train = _mixed(spec, "train", paths, data.weights, data.split, notes)
    if train is None:
        raise ValueError(f"data.split: {data.split} leaves nothing for training; give training a larger share")
    if not (spec.evaluation.interval_steps or spec.evaluation.interval_fraction):
        return Sources(train, notes=tuple(notes))
    if data.validation_paths:
        return Sources(train, _mixed(spec, "valid", data.validation_paths, (), None, notes), tuple(notes))
    validation = _mixed(spec, "valid", paths, data.weights, data.split, notes) if data.split else None
    if validation is None:
        raise ValueError("evaluation is on, but there is no validation data; set data.validation_paths "
                         'or data.split (such as "980,10,10"), or turn evaluation off')  # fmt: skip
    return Sources(train, validation, tuple(notes))


def _synthetic(spec: RunSpec, seed: int) -> Source:
    kind = spec.objective.kind
    made = Synthetic(
        spec.model.vocab_size, spec.batch.sequence_length, spec.sequences_per_step, seed,
        ends=_ends(spec), prompts=kind != "pretraining", pairs=kind in _PAIRED,
    )  # fmt: skip
    return _InVocabulary(made, spec)


def _folder(dataset: str | None) -> tuple[str, ...]:
    """A data set's name as a path, if it is one."""
    if dataset and Path(dataset).is_dir():
        return (dataset,)
    named = f"{dataset!r} is no folder on this machine" if dataset else "no data are named"
    raise ValueError(f"data.dataset: {named}, and nothing is downloaded; give local files in data.paths "
                     "(MaxText: hf_train_files), Parquet, Arrow or JSON lines")  # fmt: skip


def _mixed(
    spec: RunSpec, name: str, paths: Sequence[str], weights: Sequence[float], split: str | None, notes: dict[str, None]
) -> Source | None:
    """The examples of some paths for training (`train`) or validation (`valid`); None where the split leaves none.

    With weights, and of Megatron's data always, each path is a source of its own; without weights, Megatron's are mixed
    by their sizes. All others together are one, in which each document comes once.
    """
    is_megatron = spec.data.kind == "megatron"
    separate = bool(weights) or is_megatron
    groups = [[path] for path in paths] if separate else [list(paths)]
    count = _num_examples(spec, name) if separate else 1
    shares = _shares(spec, weights, len(groups))
    counts = _counts(spec, count, shares, len(groups), of_all=split is not None)
    make = _samples if is_megatron else _epochs
    made = [make(spec, name, group, split, n, notes) for group, n in zip(groups, counts, strict=True)]
    sources = [_InVocabulary(source, spec) for source in made if source is not None]
    if len(sources) < len(groups):
        return None
    if len(sources) == 1:
        return sources[0]
    sizes = [source.num_examples or 0 for source in sources]
    total = max(sum(sizes), sum(n or 0 for n in counts))
    if name == "train" and total < count:
        notes[f"data.paths have {total:,} sequences, and the run reads {count:,}: they come again in the same order "
              "(Megatron-LM without weights has one epoch, and stops)"] = None  # fmt: skip
    mixed = normalized(sizes if shares is None else shares)
    return Blend(sources, mixed, total, group=2 if spec.objective.kind in _PAIRED else 1)


def _shares(spec: RunSpec, weights: Sequence[float], number: int) -> list[float] | None:
    """The weights of so many data sets, divided by their sum as the original adds it up; None: their sizes decide."""
    if not weights and (number == 1 or spec.dialect not in _NEMO):
        return None
    weights = weights or (1.0,) * number  # NeMo does not know the sizes
    if not sum(weights) > 0:
        raise ValueError(f"data.weights: the sum of {', '.join(f'{w:g}' for w in weights)} is not above 0")
    from_left = float(np.cumsum(weights)[-1])
    return [weight / from_left for weight in weights] if spec.dialect in _NEMO else normalized(weights).tolist()


def _counts(
    spec: RunSpec, count: int, shares: Sequence[float] | None, number: int, *, of_all: bool
) -> list[int] | list[None]:
    """The examples to make of each of so many data sets, of which a split is taken (`of_all`); None: one epoch.

    Megatron makes a surplus, also for a single data set with a weight, unless that is for training only.
    """
    if number == 1 and not (shares and of_all and spec.data.kind == "megatron"):
        return [count]
    if shares is None:
        return [None] * number
    exact = [count * share for share in shares]
    return [ceil((n if spec.dialect in _NEMO else ceil(n)) * _SURPLUS) for n in exact]


def _num_examples(spec: RunSpec, name: str) -> int:
    """The number of examples that a run reads for training (`train`) or validation (`valid`); at least 1."""
    if spec.steps is None:
        raise ValueError("the samples of these data are counted out for a number of steps: set steps beside epochs")
    evaluations = 1 + spec.steps // (spec.evaluation.interval_steps or spec.steps)
    steps = spec.steps if name == "train" else evaluations * (spec.evaluation.batches or 0)
    return steps * spec.sequences_per_step or 1


def _samples(
    spec: RunSpec, name: str, group: list[str], split: str | None, count: int | None, notes: dict[str, None]
) -> Located | None:
    """`count` of Megatron's samples; None: those of one epoch."""
    data, indexed, ends = spec.data, read_indexed(group[0]), _ends(spec)
    if ends.token is not None and data.tokenizer == "byte" and indexed.tokens.itemsize > 1:
        raise ValueError(f"{group[0]}: tokens are not bytes, so the byte tokenizer cannot tell where documents end; "
                         "set data.tokenizer to the one that made them")  # fmt: skip
    documents = _part(spec, name, split, len(indexed))[: data.max_examples]
    if not documents:
        return None
    prefix = files_of(group[0])[0].with_suffix("")
    folder = Path(data.index_dir).expanduser() if data.index_dir else prefix.parent
    stem = folder / f"{prefix.name}_{name}"
    return Megatron(group[0], indexed, documents, count, spec.batch.sequence_length, spec.seed, ends, stem)


def _epochs(
    spec: RunSpec, name: str, group: list[str], split: str | None, count: int | None, notes: dict[str, None]
) -> Located | None:
    """The rows of everything else: for training shuffled, for validation always the same."""
    key = "data.validation_paths" if name == "valid" and not split else "data.paths"
    rows = _rows(spec, find_files(group, key, folders=spec.data.kind != "text"))
    notes.update(dict.fromkeys(rows.notes))
    if rows.count < rows.group:
        raise ValueError(f"{key}: less than one sequence of {spec.batch.sequence_length} in {', '.join(group)}")
    part = _part(spec, name, split, rows.count // rows.group)
    return Epochs(rows, part, spec.seed if name == "train" else None) if part else None


def _part(spec: RunSpec, name: str, split: str | None, count: int) -> range:
    """The range of `count` things that is for training or validation; without a split, all."""
    first, second, third, _ = split_at(split, count, as_nemo=spec.dialect in _NEMO)
    return range(first, second) if name == "train" or not split else range(second, third)


def _rows(spec: RunSpec, files: list[Path]) -> Rows:
    """The rows of some files, by the kind of data."""
    data, length = spec.data, spec.batch.sequence_length
    if data.kind == "arrow":
        return TokenRows(files, data.max_examples, length, _ends(spec))
    tokenizer = load_tokenizer(data.tokenizer)
    if data.kind == "records" and spec.objective.kind in _PAIRED:
        indexed = tokenised(files, tokenizer, data.index_dir, preferences)
        return preference_rows(indexed, data.max_examples, length, spec.objective)
    if data.kind == "records":
        indexed = tokenised(files, tokenizer, data.index_dir, answers)
        return answer_rows(indexed, data.max_examples, length, data.packing)
    indexed = tokenised(files, tokenizer, data.index_dir, documents_from_begin if data.add_bos else documents)
    if data.kind == "text" or data.packing:
        return Windows(indexed, data.max_examples, length, _ends(spec))
    return Pieces(lambda row: [(indexed[row], 0)], min(len(indexed), data.max_examples or len(indexed)), length)


def _ends(spec: RunSpec) -> Ends:
    """The effects of the ends of documents on sequences that are cut out of many; the tokenizer knows their token."""
    data = spec.data
    fields = tuple(name for name in ("positions", "segments") if name in fields_of(spec))
    masked = data.mask_document_ends or (data.packing and data.kind in _APART)
    if not (fields or masked):
        return NO_ENDS
    return Ends(0 if data.kind == "synthetic" else load_tokenizer(data.tokenizer).end, fields, masked)


@dataclass(frozen=True)
class _InVocabulary:
    """A source none of whose tokens the model has no row for; the device would take another's in silence."""

    source: Located
    spec: RunSpec

    @property
    def num_examples(self) -> int | None:
        return self.source.num_examples

    def examples(self, numbers: np.ndarray) -> Example:
        made = self.source.examples(numbers)
        for name in ("tokens", "targets"):
            wrong = (made[name] < 0) | (made[name] >= self.spec.model.vocab_size)
            if wrong.any():
                row, place = np.argwhere(wrong)[0].tolist()
                where = self.source.where(int(numbers[row]), place + (name == "targets"))
                raise ValueError(
                    f"data.paths: {where} has token {made[name][row, place]}, and model.vocab_size is "
                    f"{self.spec.model.vocab_size}; another tokenizer made these data, or the model is too small"
                )
        return {name: made[name] for name in fields_of(self.spec) if name != "reference"}
