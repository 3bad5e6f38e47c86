"""The peer: Beam's own count of elements, ``python -m benchmarks.beam_elements LOG WINDOW_SECONDS``.

It counts events per window and item, without distinct users, bounds or noise: less than a replay does. Rows are read
and windowed as Beam's users do it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue

_COLUMNS = ["item", "timestamp"]


def _item_at_its_time(row: dict[str, Any]) -> TimestampedValue:
    return TimestampedValue(row["item"], row["timestamp"].timestamp())


def main(log: str, window_seconds: int) -> None:
    logging.disable(logging.CRITICAL)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        rows = pipeline | beam.io.ReadFromParquet(log, columns=_COLUMNS)
        elements = rows | beam.Map(_item_at_its_time) | beam.WindowInto(FixedWindows(window_seconds))
        _ = elements | beam.combiners.Count.PerElement()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
