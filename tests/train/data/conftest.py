"""A case of every kind of data."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seatrial.spec import Data, Objective, RunSpec
from seatrial.train.data.indexed import write_indexed
from tests.helpers.record_files import bpe as bpe
from tests.helpers.record_files import json_lines as json_lines
from tests.helpers.record_files import with_template as with_template
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.training_data import CASES, objective_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are kept in the test's own folder."""
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def filled(tmp_path: Path, bpe: Path, rng: np.random.Generator) -> Callable[[str], RunSpec]:
    """Files for every case; a function from a case's name to its spec."""

    def words(n: int) -> str:
        return " ".join(rng.choice(["fox", "dog", "jumps", "lazy", "naïve", "12 345"], n))

    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(words(500))
        write_indexed(tmp_path / name, np.uint8, [rng.integers(0, 256, n) for n in rng.integers(0, 60, 50)])
    (tmp_path / "folder").mkdir()
    pairs = {name: [words(3) + " " for _ in range(60)] for name in ("prompt", "chosen", "rejected")}
    rows = [{"text": words(n % 40)} for n in range(60)]
    tables: dict[str, dict[str, list[Any]]] = {
        "tokens.arrow": {"input_ids": rng.integers(0, 256, (60, 64)).tolist()},
        "sft.parquet": {name: [words(n % 5 + 1) for n in range(60)] for name in ("input", "output", "text")},
        "pairs.arrow": pairs,
        "folder/a.parquet": {"text": [words(n % 40) for n in range(60)]},
    }
    for name, columns in tables.items():
        table = pa.table(columns)
        if name.endswith(".parquet"):
            pa.parquet.write_table(table, tmp_path / name)
        else:
            with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    for name in ("rows.json.gz", "rows.jsonl.gz"):
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": words(n % 40)}) + "\n" for n in range(60))
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps(dict(zip(pairs, row, strict=True))) + "\n" for row in zip(*pairs.values(), strict=True))
    )

    def fill(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(fill(item) for item in value)
        return value.format(tmp=tmp_path, bpe=bpe) if isinstance(value, str) else value

    def spec(name: str) -> RunSpec:
        data = Data(**{key: fill(value) for key, value in CASES[name].items()})
        kind: Any = objective_of(name)
        return make_spec(model=replace(TINY, vocab_size=512), data=data, objective=Objective(kind=kind))

    return spec
