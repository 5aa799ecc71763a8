"""A case of every kind of training data."""

from __future__ import annotations

from typing import Any

from seatrial.spec import RunSpec
from seatrial.train.data import make_sources
from seatrial.train.data.examples import Source


def make_source(spec: RunSpec) -> Source:
    """The source of training examples alone."""
    return make_sources(spec).train


CASES: dict[str, dict[str, Any]] = {
    "synthetic": {"kind": "synthetic", "reset_attention": True},
    "text": {"kind": "text", "paths": ("{tmp}/*.txt",), "tokenizer": "{bpe}", "mask_document_ends": True},
    "text, bytes": {"kind": "text", "paths": ("{tmp}/a.txt", "{tmp}/b.txt"), "reset_positions": True},
    "megatron": {"kind": "megatron", "paths": ("{tmp}/a", "{tmp}/b"), "weights": (1.0, 2.0), "reset_positions": True},
    "arrow": {"kind": "arrow", "paths": ("{tmp}/tokens.arrow",), "reset_attention": True},
    "sft": {"kind": "records", "paths": ("{tmp}/sft.parquet",), "packing": True},
    "dpo": {"kind": "records", "paths": ("{tmp}/pairs.arrow",), "tokenizer": "{bpe}"},
    "orpo": {"kind": "records", "paths": ("{tmp}/pairs.jsonl",), "max_examples": 20},
    "huggingface": {"kind": "huggingface", "dataset": "{tmp}/folder", "packing": True, "tokenizer": "{bpe}"},
    "grain": {"kind": "grain", "paths": ("{tmp}/folder/*.parquet", "{tmp}/sft.parquet"), "weights": (0.3, 0.7)},
    "tfds": {"kind": "tfds", "paths": ("{tmp}/rows.json",), "packing": True},
    "c4_mlperf": {"kind": "c4_mlperf", "paths": ("{tmp}/rows.json.gz", "{tmp}/rows.jsonl.gz"), "packing": True},
}


def objective_of(name: str) -> str:
    """The objective that a case's data are for."""
    return name if name in ("sft", "dpo", "orpo") else "pretraining"
