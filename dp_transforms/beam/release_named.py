"""Release: the named items of some windows, and how many users hold the largest -> window reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_counts import counted_rows, draw_counts
from dp_transforms.monitor.named_items import NOT_COUNTED, NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.window_report import WindowReport

NAMED, HOLDERS = "named", "holders"


class ReleaseNamed(beam.PTransform):
    """``{NAMED: (slab, packed NamedItems)}`` -> `WindowReport`, at the maximal timestamp of its window.

    Where items are counted, ``HOLDERS: (slab, packed ItemSums)`` has the users who hold them. Reports are in no
    particular order.
    """

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret) -> None:
        super().__init__()
        self._do_fn = ReleaseNamedDoFn(settings, noise_key)

    def expand(self, parts: dict[str, beam.PCollection]) -> beam.PCollection:
        return (
            parts
            | "GroupByWindows" >> beam.CoGroupByKey()
            | "WriteWindows" >> beam.ParDo(self._do_fn).with_output_types(WindowReport)
        )


class ReleaseNamedDoFn(KeyedDoFn):
    """What was named in some windows by all shards -> their reports, in order."""

    _settings: NamingSettings

    def process(self, group: tuple[int, dict[str, Iterable[bytes]]]) -> Iterator[TimestampedValue]:
        _, parts = group
        named = NamedItems.merge([NamedItems.from_bytes(blob) for blob in parts[NAMED]])
        counts = None
        if self._settings.counts_for:
            rows = counted_rows(named, self._settings.counts_for)
            holders = ItemSums.merge([ItemSums.from_bytes(blob) for blob in parts[HOLDERS]])
            counts = np.full(len(named), NOT_COUNTED)
            counts[rows] = draw_counts(named.select(rows), holders, self._settings, self._keys)
        for window, report in named.window_reports(self._settings, counts):
            yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
