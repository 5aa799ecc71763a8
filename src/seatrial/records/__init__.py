"""What a run learns from, as it lies on disk: paths → files → rows → prompts and answers. No tokens, and no arrays.

    paths   what a path, folder or glob names      forms   the fields that records may have
    rows    a file's rows, with their places       chat    a conversation → a prompt and its answer
    look    the first records of a run's data, read before anything starts

The trainer reads with it, and so does whoever checks a configuration: it needs neither JAX nor numpy, and pyarrow only
for a file of Parquet or Arrow.
"""

from __future__ import annotations

from seatrial.spec import RunSpec

PIPELINES = ("huggingface", "grain", "tfds", "c4_mlperf")  # MaxText's


class DataError(ValueError):
    """Data that a run cannot learn from: why, how to fix it, and the spec path that it is about, where not a file."""

    def __init__(self, why: str, fix: str, key: str = "") -> None:
        super().__init__(f"{key}: {why}; {fix}" if key else f"{why}; {fix}")
        self.why, self.fix, self.key = why, fix, key


def has_records(spec: RunSpec) -> bool:
    """Whether a run's files hold prompts and answers: records, and what MaxText's pipelines read for fine-tuning."""
    return spec.data.kind == "records" or (spec.data.kind in PIPELINES and spec.objective.kind != "pretraining")
