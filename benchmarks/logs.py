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

from benchmarks.processes import run_measured

START = "2026-01-01T00:00:00Z"
DAYS = 16
COMMAND = "dp_transforms.cli.main"
BUDGET = ("--epsilon", "2", "--delta", "1e-9")
ITEMS = 50_000
SEED = 7
_ROW_GROUP = 250_000


def data_folder() -> Path:
    """Kept between runs: ``SHH_BENCH_DATA``, or a folder among the temporary files."""
    folder = Path(os.environ.get("SHH_BENCH_DATA") or Path(tempfile.gettempdir()) / "shh_bench_data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def simulated_log(events: int, ending: str = "parquet") -> Path:
    """``shh simulate``: 16 days from START; a tenth as many users as events and 50,000 items; text."""
    path = data_folder() / f"events_{events}.{ending}"
    if not path.exists():
        run_measured(
            *(COMMAND, "simulate"),
            "--users", str(max(1, events // 10)), "--items", str(ITEMS), "--days", str(DAYS), "--seed", str(SEED),
            "--output", str(path),
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


def derived_log(kind: str, source: Path, rows: int = 0) -> Path:
    """``prefix``: the first rows of a Parquet log. ``shuffled``: all in random order. Kept beside its source."""
    path = source.with_name(f"{source.stem}_{kind}{rows or ''}.parquet")
    if not path.exists():
        run_measured("benchmarks.logs", kind, str(source), str(path), str(rows))
    return path


def _derive(kind: str, source: str, target: str, rows: int) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    if kind == "prefix":
        table = table.slice(0, rows)
    elif kind == "shuffled":
        table = table.take(np.random.default_rng(SEED).permutation(len(table)))
    partial = f"{target}.partial"
    with pq.ParquetWriter(partial, table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
    os.replace(partial, target)


if __name__ == "__main__":
    _derive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
