"""Data as it lies on disk: paths → files → rows → prompts and answers. No tokens, and no arrays.

    paths   what a path, folder or glob names      forms   the fields that records may have
    rows    a file's rows, with their places       chat    a conversation → a prompt and its answer
    look    the first records of a run's data, read before anything starts

The trainer reads with it, and so does whoever checks a configuration: it needs neither JAX nor numpy, and pyarrow only
for a file of Parquet or Arrow.
"""

from __future__ import annotations

import re

from seatrial.spec import RunSpec

# The endings of files with rows.
TABLES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".arrow")


class DataError(ValueError):
    """Data that a run cannot learn from: why, how to fix it, and the spec path that it is about, where not a file."""

    def __init__(self, why: str, fix: str, key: str = "") -> None:
        super().__init__(f"{key}: {why}; {fix}" if key else f"{why}; {fix}")
        self.why, self.fix, self.key = why, fix, key


def can_be_looked_at(spec: RunSpec) -> bool:
    """True if a run reads rows with fields, as records or as texts of tables, and not Megatron's or MaxText's data."""
    data = spec.data
    return data.kind == "records" or (data.kind == "text" and any(map(_may_be_tables, data.paths)))


def _may_be_tables(pattern: str) -> bool:
    end = re.split(r"[]*?]", pattern)[-1]
    return any(end.endswith(table) or table.endswith(end) for table in TABLES)
