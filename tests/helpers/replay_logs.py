"""A log for `shh replay` in every format, and a budget at which its heavy items are found for sure."""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers import log_files

START = 1_767_225_600  # 2026-01-01T00:00:00Z
HOURS = 6
BUDGET = [
    *("--start", "2026-01-01", "--end", "2026-01-01T06:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits"),
]


# At this budget the threshold is below 200, so 300 users are found for sure; 5 in one of ten million windows.
MANY, FEW = 300, 5


def log_rows() -> list[tuple[str, str, int]]:
    """(user, item, seconds): in every hour one item of many users, one of few, and in hours 2 and 4 nothing else."""
    rows = []
    for hour in range(HOURS):
        if hour in (2, 4):
            continue
        rows += [(f"user-{n}", f"heavy-{hour}", START + 3600 * hour + n) for n in range(MANY)]
        rows += [(f"user-{n}", "light", START + 3600 * hour + 60 + n) for n in range(FEW)]
    return rows


def write_parquet(path: pathlib.Path, rows: list[tuple[str, str, int]], **options: object) -> None:
    user, item, time = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in time], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"user": user, "item": item, "timestamp": times}), path, **options)


def iso(seconds: int) -> str:
    hour, rest = divmod(seconds - START, 3600)
    return f"2026-01-01T{hour:02d}:{rest // 60:02d}:{rest % 60:02d}Z"


def write_log(path: pathlib.Path) -> None:
    rows = log_rows()
    if path.suffix == ".parquet":
        write_parquet(path, rows, row_group_size=100)
    elif path.suffix == ".avro":
        in_micros = [(user, item, time * 1_000_000) for user, item, time in rows]
        log_files.write_avro(path, in_micros, ("string", "string", log_files.AVRO_MICROS))
    else:
        write = log_files.write_csv if path.suffix == ".csv" else log_files.write_json
        write(path, [(user, item, iso(time)) for user, item, time in rows])
