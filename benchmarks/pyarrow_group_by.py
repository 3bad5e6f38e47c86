"""``python -m benchmarks.pyarrow_group_by LOG``: a peer without privacy, in one thread of pyarrow.

Reads the three columns of a Parquet log and counts the different users of each item and hour: what a replay with hourly
windows is about, without purses, noise or a report.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MICROS_PER_HOUR = 3_600_000_000


def main(path: str) -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    log = pq.read_table(path, columns=["user", "item", "timestamp"], use_threads=False, pre_buffer=False)
    micros = pc.cast(log["timestamp"].cast(pa.timestamp("us")), pa.int64())
    log = log.append_column("hour", pc.divide(micros, _MICROS_PER_HOUR))
    pairs = log.group_by(["user", "hour", "item"], use_threads=False).aggregate([])
    counts = pairs.group_by(["hour", "item"], use_threads=False).aggregate([("user", "count")])
    print(f"{len(pairs):,} pairs of users, {len(counts):,} items in hours")


if __name__ == "__main__":
    main(sys.argv[1])
