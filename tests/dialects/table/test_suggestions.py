"""Suggestions for the key that was meant: by a typing error, in a wrong place, or by another trainer's name."""

from __future__ import annotations

import random
import string
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.dialect_pages import PAGES

from seatrial.dialects.explain import table
from seatrial.dialects.spec_fields import schema
from seatrial.dialects.table import suggestions
from seatrial.dialects.table.suggestions import NOTHING, did_you_mean, distance

KNOWN = {
    "native": tuple(dict.fromkeys(path for path, _ in schema())),
    "cvs": (
        "config.nnodes", "config.nccl_ib_hca", "config.nccl_ib_hca_list", "config.nccl_ib_tc", "config.nccl_ib_sl",
        "config.training_steps", "config.container_config.env_dict.NNODES", "ici_tensor_parallelism",
        "dcn_tensor_parallelism", "ici_data_parallelism", "per_device_batch_size", "max_target_length", "dtype",
        "weight_dtype", "result_dict.tflops_per_sec_per_gpu", "result_dict.tokens_per_sec_per_gpu", "base_mlp_dim",
    ),
    "nxdt": (
        "name", "seed", "trainer.devices", "trainer.num_nodes", "trainer.max_steps", "trainer.gradient_clip_val",
        "distributed_strategy.tensor_model_parallel_size", "distributed_strategy.pipeline_model_parallel_size",
        "distributed_strategy.zero1", "data.micro_batch_size", "data.global_batch_size", "data.seq_length",
        "model.encoder_seq_length", "model.num_layers", "model.optim.name", "model.optim.lr", "model.optim.sched.name",
        "model.optim.sched.min_lr", "model.optim.sched.warmup_steps", "exp_manager.name", "precision.type",
    ),
    "maxtext": ("learning_rate", "steps", "ici_tensor_parallelism", "dcn_tensor_parallelism", "max_target_length"),
    "megatron": ("--tensor-model-parallel-size", "--lr", "--min-lr", "--train-iters", "--seq-length", "--swiglu",
                 "TP", "SEQ_LENGTH", "TOTAL_ITERS", "MODEL_SIZE", "MBS"),
}  # fmt: skip


def reference(a: str, b: str) -> int:
    """Optimal string alignment by its definition."""
    table = {(i, -1): i + 1 for i in range(-1, len(a))} | {(-1, j): j + 1 for j in range(-1, len(b))}
    for i in range(len(a)):
        for j in range(len(b)):
            choices = [
                table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i] != b[j]),
            ]  # fmt: skip
            if i and j and a[i] == b[j - 1] and a[i - 1] == b[j]:
                choices.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(choices)
    return table[len(a) - 1, len(b) - 1]


@given(st.text("abc_", max_size=12), st.text("abc_", max_size=12))
def test_distance_is_that_of_its_definition(a: str, b: str) -> None:
    assert distance(a, b) == reference(a, b)


def wrong_by_one(word: str, source: random.Random) -> list[str]:
    """A deletion, an insertion, a substitution and a swap of neighbours, each at a random place."""
    place, letter = source.randrange(len(word)), source.choice(string.ascii_lowercase + "_")
    swap = source.randrange(max(1, len(word) - 1))
    return [
        word[:place] + word[place + 1 :],
        word[:place] + letter + word[place:],
        word[:place] + letter + word[place + 1 :],
        word[:swap] + word[swap : swap + 2][::-1] + word[swap + 2 :],
    ]


@pytest.mark.parametrize("dialect", KNOWN)
@pytest.mark.parametrize("whole", [True, False], ids=["anywhere in the path", "in the last name"])
def test_one_wrong_character_still_finds_the_key(dialect: str, whole: bool) -> None:
    known, source = KNOWN[dialect], random.Random(4)
    right = total = 0
    for key in known:
        parent, _, name = key.rpartition(".")
        for _ in range(5):
            for typo in wrong_by_one(key if whole else name, source):
                if typo in known or f"{parent}.{typo}" in known or not typo:
                    continue
                found = suggestions.suggestions(typo, known, path="" if whole else parent)
                total += 1
                right += found[:1] == [key]
    assert right / total >= 0.95


@pytest.mark.parametrize(
    ("dialect", "key", "path", "meant"),
    [
        ("nxdt", "tensor_parallelism", "distributed_strategy", ["distributed_strategy.tensor_model_parallel_size"]),
        ("nxdt", "ici_tensor_parallelism", "", ["distributed_strategy.tensor_model_parallel_size"]),
        ("nxdt", "per_device_train_batch_size", "data", ["data.micro_batch_size"]),
        ("nxdt", "optimizer.learning_rate", "", ["model.optim.lr"]),
        ("nxdt", "seqence_length", "model", ["model.encoder_seq_length", "data.seq_length"]),  # a typing error as well
        ("nxdt", "max_steps", "model", ["trainer.max_steps"]),  # in the wrong place
        ("nxdt", "name", "model.optim.schd", ["model.optim.sched.name"]),  # a parent with a typing error
        ("maxtext", "--lr", "", ["learning_rate"]),
        ("maxtext", "tensor_model_parallel_size", "", ["ici_tensor_parallelism"]),
        ("maxtext", "Max_Target_Length", "", ["max_target_length"]),
        ("megatron", "learning_rate", "", ["--lr"]),
        ("megatron", "--tensor_model_parallel_size", "", ["--tensor-model-parallel-size"]),
        ("megatron", "max_steps", "", ["--train-iters"]),
        ("native", "tensor_parallel_degree", "parallelism", ["parallelism.within_node.tensor"]),
        ("native", "hidden_size", "model", ["model.hidden_dim"]),
        ("cvs", "ici_tensor_paralellism_size", "", ["ici_tensor_parallelism"]),  # it only looks alike
    ],
)
def test_what_was_meant_is_found(dialect: str, key: str, path: str, meant: list[str]) -> None:
    assert suggestions.suggestions(key, KNOWN[dialect], path=path)[: len(meant)] == meant


@pytest.mark.parametrize("key", ["zzz", "x" * 100_000, "", "\x00", "🜛", "." * 50])
def test_what_looks_like_nothing_is_not_guessed_at(key: str) -> None:
    assert did_you_mean(key, KNOWN["nxdt"]) == NOTHING
    assert did_you_mean(key, []) == NOTHING


def test_only_so_many_keys_are_looked_at_closely() -> None:
    suggestions.reset()
    alike = [f"distributed_strategy_{n}" for n in range(suggestions.CLOSE_LOOKS + 1)]
    known = ["distributed_strategy"]
    assert [bool(suggestions.suggestions(key, known)) for key in alike] == [True] * suggestions.CLOSE_LOOKS + [False]
    assert suggestions.suggestions("distributed_stratgy", known) == known  # one wrong character is always found
    suggestions.reset()
    assert suggestions.suggestions(alike[-1], known) == known


def test_most_keys_are_understood_in_every_other_spelling() -> None:
    """A key of one dialect, given in another, is answered by a key for the same path of the run."""
    tables = {name: table(page.module) for name, page in PAGES.items()}
    right = total = 0
    for one, other in permutations(tables, 2):
        known = tuple(tables[other])
        names = {key.rpartition(".")[2] for key in known}
        for key, row in tables[one].items():
            name = key.rpartition(".")[2]
            meant = {k for k, r in tables[other].items() if set(r.to.split(", ")) & set(row.to.split(", ")) - {""}}
            if not meant or name in names or "*" in key:
                continue
            total += 1
            right += bool(meant.intersection(suggestions.suggestions(name, known)[:1]))
    assert total > 500
    assert right / total >= 0.8


def test_every_row_has_two_names_and_no_name_twice() -> None:
    for spellings in suggestions.synonyms():
        assert len(spellings) >= 2
        assert len(spellings) == len(set(spellings))
