"""Data: it is there, of the kind that the objective learns from, and in a form that fits the model."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import Data

FROM_FILES = ("text", "megatron", "arrow", "records")


def data_is_there(finder: Finder) -> Iterator[Problem]:
    """There are files for the kind of data that needs them."""
    data, model = finder.spec.data, finder.spec.model
    if data.kind in FROM_FILES and not data.paths:
        why = f"{data.kind} data needs files, and none are given"
        yield finder.at("data.paths", "error", "missing-key", why, f"add {finder.name('data.paths')}")
    if data.kind == "synthetic" and data.paths:
        why = "synthetic data reads no files"
        yield finder.at("data.paths", "warning", "no-effect", why, 'set data.kind to "text", or remove the paths')
    if data.kind == "text" and data.tokenizer == "byte" and model.vocab_size < 256:
        why = f"the byte tokenizer makes 256 tokens, and the model has {model.vocab_size}"
        yield finder.at("model.vocab_size", "error", "vocabulary-too-small", why, "use 256 or more")
    if data.weights and len(data.weights) != len(data.paths):
        why = f"{len(data.weights)} weights for {len(data.paths)} paths"
        yield finder.at("data.weights", "error", "contradiction", why, "give one weight per path, or none")


def data_fits_the_objective(finder: Finder) -> Iterator[Problem]:
    """An objective has data that it can learn from."""
    spec = finder.spec
    kind, objective = spec.data.kind, spec.objective
    without = ("text", "megatron") if objective.kind == "sft" else ("text", "megatron", "arrow")
    if objective.kind != "pretraining" and kind in without:
        why = f"{objective.kind} learns from prompts and answers, and {kind} data has none"
        yield finder.at("data.kind", "error", "contradiction", why, "give records, or an objective of pretraining")
    if objective.kind != "pretraining" and kind == "synthetic":
        why = f"random tokens stand in for prompts and answers, so that {objective.kind} learns nothing from them"
        yield finder.at("data.kind", "warning", "synthetic-data", why, "give records, unless that is meant")
    if objective.kind in ("dpo", "orpo") and spec.data.packing:
        why = f"{objective.kind} compares the two answers of an example, which packing would mix with others"
        yield finder.at("data.packing", "error", "contradiction", why, "turn packing off")
    longest = objective.max_prompt_length
    if longest is not None and longest >= spec.batch.sequence_length:
        why = f"prompts of {longest} tokens leave no room for an answer in {spec.batch.sequence_length}"
        yield finder.at("objective.max_prompt_length", "warning", "sequence-length", why, "use half of it, for example")


def sequences_fit_the_model(finder: Finder) -> Iterator[Problem]:
    """A model with learned positions has one for every token of a sequence."""
    model, length = finder.spec.model, finder.spec.batch.sequence_length
    if model.positions == "learned" and model.max_positions is not None and length > model.max_positions:
        why = f"a sequence has {length} tokens, and the model has only {model.max_positions} learned positions"
        yield finder.at("batch.sequence_length", "error", "sequence-length", why, "shorten it, or add positions")


def evaluations_have_data(finder: Finder) -> Iterator[Problem]:
    """Evaluations have validation data."""
    evaluation, data = finder.spec.evaluation, finder.spec.data
    path = "evaluation.interval_steps" if evaluation.interval_steps else "evaluation.interval_fraction"
    if evaluation.is_on and data.kind in FROM_FILES and not has_validation(data):
        why = "an evaluation needs validation data, and there is none: neither files nor a share of the data"
        fix = "give validation data, or no interval"
        yield finder.at(path, "error" if finder.needs.trainer else "warning", "missing-data", why, fix)
    if data.split and not _shares(data.split):
        why = f"{data.split!r} is not three shares: training, validation and test"
        yield finder.at("data.split", "error", "bad-value", why, "write them like 980,10,10")


def has_validation(data: Data) -> bool:
    """True if a part of the data, or files of their own, are for validation."""
    shares = _shares(data.split) if data.split else ()
    return bool(data.validation_paths) or (len(shares) > 1 and shares[1] > 0)


def _shares(text: str) -> tuple[float, ...]:
    """The shares of training, validation and test; none where the text gives none."""
    try:
        shares = tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        return ()
    return shares if 1 <= len(shares) <= 3 and min(shares) >= 0 and sum(shares) > 0 else ()
