"""Logs that are uneven in one respect, made from an even one.

``python -m benchmarks.skewed_logs KIND SOURCE TARGET``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.processes import run_measured

KINDS = {
    "even": "as it is",
    "one item": "every second event is of one item, which nearly all users have",
    "one user": "a million events are of one user",
    "one partition": "nine tenths of the rows are in one row group",
}
_MANY = 1_000_000
_ROW_GROUP = 250_000


def skewed_log(kind: str, source: Path) -> Path:
    """Kept beside its source."""
    path = source.with_name(f"{source.stem}_{kind.replace(' ', '_')}.parquet")
    if not path.exists():
        run_measured("benchmarks.skewed_logs", kind, str(source), str(path))
    return path


def _write(kind: str, source: str, target: str) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    rows = np.arange(len(table))
    if kind == "one item":
        changed = pc.if_else(pa.array(rows % 2 == 0), "everybody's", table["item"])
        table = table.set_column(table.column_names.index("item"), "item", changed)
    elif kind == "one user":
        step = max(1, len(table) // _MANY)
        changed = pc.if_else(pa.array(rows % step == 0), "the busy one", table["user"])
        table = table.set_column(table.column_names.index("user"), "user", changed)
    large = len(table) * 9 // 10 if kind == "one partition" else 0
    partial = f"{target}.partial"
    with pq.ParquetWriter(partial, table.schema, compression="zstd") as writer:
        if large:
            writer.write_table(table.slice(0, large), row_group_size=large)
        writer.write_table(table.slice(large), row_group_size=_ROW_GROUP)
    os.replace(partial, target)


if __name__ == "__main__":
    _write(*sys.argv[1:])
