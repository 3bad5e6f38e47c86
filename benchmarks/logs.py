"""The simulated logs of the benchmarks, made once and kept in a folder outside the repository, and their replays.

Run as a program it derives a log, ``python -m benchmarks.logs KIND SOURCE TARGET ROWS``: in a process of its own, so
that the one that measures stays small.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.processes import run_measured

START = "2026-01-01T00:00:00Z"
DAYS = 16
COMMAND = "dp_transforms.cli.main"
BUDGET = ("--epsilon", "2", "--delta", "1e-9")
USERS_PER_EVENT = 0.1
ITEMS = 50_000
SEED = 7
SKEW = {
    "even": "as it is",
    "one item": "every second event is of one item, which nearly all users have",
    "one user": "a million events are of one user",
    "one partition": "nine tenths of the rows are in one row group",
}
_MANY = 1_000_000
_ROW_GROUP = 250_000


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
            *(COMMAND, "simulate"),
            "--events", str(events), "--users", str(max(1, int(events * users_per_event))),
            "--items", str(items), "--start", START, "--days", str(DAYS), "--seed", str(SEED), "--output", str(path),
        )  # fmt: skip
    return path


def replay(
    log: Path, output: str | Path, *more: str, window: str = "1h", seconds: int = DAYS * 86_400
) -> tuple[str, ...]:
    """`COMMAND` and its words, for a simulated log: over all of its days, or so many seconds of them."""
    start = datetime.datetime.fromisoformat(START)
    end = (start + datetime.timedelta(seconds=seconds)).isoformat()
    words = ("replay", str(log), "--start", START, "--end", end, "--window", window, *BUDGET, *more)
    return (COMMAND, *words, "--output", str(output))


def rows_of(log: Path) -> int:
    """Of a Parquet log."""
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(log).metadata.num_rows)


def derived_log(kind: str, source: Path, rows: int = 0) -> Path:
    """``prefix``: the first rows of a Parquet log. ``shuffled``: all its rows in random order. Or a kind of `SKEW`.
    Kept beside its source."""
    path = source.with_name(f"{source.stem}_{kind.replace(' ', '_')}{rows or ''}.parquet")
    if not path.exists():
        run_measured("benchmarks.logs", kind, str(source), str(path), str(rows))
    return path


def _derive(kind: str, source: str, target: str, rows: int) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    table, large = pq.read_table(source), 0
    if kind == "prefix":
        table = table.slice(0, rows)
    elif kind == "shuffled":
        table = table.take(np.random.default_rng(SEED).permutation(len(table)))
    elif kind == "one item":
        table = _every(table, 2, "item", "everybody's")
    elif kind == "one user":
        table = _every(table, max(1, len(table) // _MANY), "user", "the busy one")
    elif kind == "one partition":
        large = len(table) * 9 // 10
    partial = f"{target}.partial"
    with pq.ParquetWriter(partial, table.schema, compression="zstd") as writer:
        if large:
            writer.write_table(table.slice(0, large), row_group_size=large)
        writer.write_table(table.slice(large), row_group_size=_ROW_GROUP)
    os.replace(partial, target)


def _every(table: Any, step: int, column: str, value: str) -> Any:
    """The table with this value in every so many rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    changed = pc.if_else(pa.array(np.arange(len(table)) % step == 0), value, table[column])
    return table.set_column(table.column_names.index(column), column, changed)


if __name__ == "__main__":
    _derive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
