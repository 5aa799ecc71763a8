"""Parquet: runs.parquet, parameters.parquet, checks.parquet and steps.parquet in one folder.

The next publishing replaces each of them. Fields have their `unit` and `meaning` as metadata; NaN is not null.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from seatrial.publish.contract import Destination, Publication
from seatrial.publish.tables import tables
from seatrial.runs.files import write_bytes


def publish(publications: Sequence[Publication], to: Destination) -> str:
    from pyarrow import parquet

    assert to.out is not None  # the table says so
    for name, table in tables(publications).items():
        file = io.BytesIO()
        parquet.write_table(table.to_arrow(), file)
        write_bytes(to.out / f"{name}.parquet", file.getvalue())
    return f"tables: {to.out}/runs.parquet, parameters.parquet, checks.parquet, steps.parquet"
