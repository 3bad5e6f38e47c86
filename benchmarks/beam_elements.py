"""The peer: Beam's own count of elements, ``python -m benchmarks.beam_elements LOG WINDOW_SECONDS [columns]``.

It counts events per window and item, without distinct users, bounds or noise: less than a replay does. Rows are read
and windowed as Beam's users do it; with ``columns`` a batch of rows is read at once, and windows are found in pyarrow
and counted as a part of the element: the fastest way to `Count.PerElement` that we know.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue

_COLUMNS = ["item", "timestamp"]


def _item_at_its_time(row: dict[str, Any]) -> TimestampedValue:
    return TimestampedValue(row["item"], row["timestamp"].timestamp())


def _items_in_windows(batch: pa.Table, window_seconds: int) -> Iterator[tuple[int, str]]:
    micros = pc.cast(batch["timestamp"].cast(pa.timestamp("us")), pa.int64())
    windows = pc.divide(micros, 1_000_000 * window_seconds)
    return zip(windows.to_pylist(), batch["item"].to_pylist(), strict=True)


def main(log: str, window_seconds: int, by_columns: bool) -> None:
    logging.disable(logging.CRITICAL)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        if by_columns:
            batches = pipeline | beam.io.ReadFromParquetBatched(log, columns=_COLUMNS)
            elements = batches | beam.FlatMap(_items_in_windows, window_seconds)
        else:
            rows = pipeline | beam.io.ReadFromParquet(log, columns=_COLUMNS)
            elements = rows | beam.Map(_item_at_its_time) | beam.WindowInto(FixedWindows(window_seconds))
        _ = elements | beam.combiners.Count.PerElement()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), by_columns=sys.argv[3:] == ["columns"])
