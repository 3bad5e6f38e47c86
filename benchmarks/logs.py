"""The simulated logs of the benchmarks, made once and kept in a folder outside the repository.

Run as a program it derives a log, ``python -m benchmarks.logs prefix|shuffled|grouped SOURCE TARGET ROWS``: in a
process of its own, so that the one that measures stays small.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import run_measured

START = "2026-01-01T00:00:00Z"
DAYS = 16
USERS_PER_EVENT = 0.1
ITEMS = 50_000
SEED = 7
_ROW_GROUP = 500_000


def data_folder() -> Path:
    """Kept between runs: ``SHH_BENCH_DATA``, or a folder among the temporary files."""
    folder = Path(os.environ.get("SHH_BENCH_DATA") or Path(tempfile.gettempdir()) / "shh_bench_data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def simulated_log(
    events: int, ending: str = "parquet", *, users_per_event: float = USERS_PER_EVENT, items: int = ITEMS
) -> Path:
    """``shh simulate``: 16 days from START; by default a tenth as many users as events and 50,000 items; text."""
    usual = (users_per_event, items) == (USERS_PER_EVENT, ITEMS)
    path = data_folder() / f"events_{events}{'' if usual else f'_{users_per_event:g}_{items}'}.{ending}"
    if not path.exists():
        run_measured(
            *("dp_transforms.cli.main", "simulate"),
            "--events", str(events), "--users", str(max(1, int(events * users_per_event))),
            "--items", str(items), "--start", START, "--days", str(DAYS), "--seed", str(SEED), "--output", str(path),
        )  # fmt: skip
    return path


def rows_of(log: Path) -> int:
    """Of a Parquet log."""
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(log).metadata.num_rows)


def derived_log(kind: str, source: Path, rows: int = 0) -> Path:
    """``prefix``: the first rows of a Parquet log. ``shuffled``: all its rows in random order. ``grouped``: in row
    groups of so many."""
    path = source.with_name(f"{source.stem}_{kind}{rows or ''}.parquet")
    if not path.exists():
        run_measured("benchmarks.logs", kind, str(source), str(path), str(rows))
    return path


def _derive(kind: str, source: str, target: str, rows: int) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    table, row_group = pq.read_table(source), _ROW_GROUP
    if kind == "prefix":
        table = table.slice(0, rows)
    elif kind == "grouped":
        row_group = rows
    else:
        table = table.take(np.random.default_rng(SEED).permutation(len(table)))
    partial = f"{target}.partial"
    pq.write_table(table, partial, compression="zstd", row_group_size=row_group)
    os.replace(partial, target)


if __name__ == "__main__":
    _derive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
