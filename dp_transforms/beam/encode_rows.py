"""Encode: what is released, as rows with a schema that other languages and formats can read.

Which part of a run an engine finishes first may depend on data that are not released, and rows are written as they
come. So the rows of a run that ends come in one order, that of report files.

Annotations of this module are evaluated, since Beam makes the schema of them; it does not know ``str | None``.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.gather_all import gather_all
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports import decode_report, encode_report
from dp_transforms.reports.records import in_file_order


class HeavyHitterRow(NamedTuple):
    """One item that many users hold in one window.

    The fields are those of `WindowReport` and `HeavyHitter`; window_start and window_end are ISO 8601 text in UTC.
    """

    stream: str
    window_start: str
    window_end: str
    item: str
    zone: Optional[str]  # noqa: UP045
    noisy_count: Optional[int]  # noqa: UP045
    level: Optional[int]  # noqa: UP045
    at_least_users: Optional[int]  # noqa: UP045
    epsilon_total: float
    delta: float
    epsilon_spent: float


beam.coders.registry.register_coder(HeavyHitterRow, beam.coders.RowCoder)


class EncodeRows(beam.PTransform):
    """PCollection of `WindowReport` -> PCollection of `HeavyHitterRow`, one for each heavy item, at the maximal
    timestamp of its window.

    in_order: wait for all reports, which are few, and give their rows as one bundle, in the order of report files.
        False for a stream: then the rows of a window come when it is closed.
    """

    def __init__(self, *, in_order: bool) -> None:
        super().__init__()
        self._in_order = in_order

    def expand(self, reports: beam.PCollection) -> beam.PCollection:
        if not self._in_order:
            return reports | "RowsOfReports" >> beam.FlatMap(rows_of_report).with_output_types(HeavyHitterRow)
        encoded = reports | "EncodeReports" >> beam.Map(_encoded).with_output_types(bytes)
        return gather_all(encoded, "EncodeRows") | "RowsInOrder" >> beam.FlatMap(_rows_in_order).with_output_types(
            HeavyHitterRow
        )


def _encoded(report: WindowReport) -> bytes:
    return encode_report(report).encode()


def _rows_in_order(encoded: Iterable[bytes]) -> Iterator[TimestampedValue]:
    """The rows of all reports. Distinct and sorted first: several of one window are in no order of arrival either."""
    for report in in_file_order(decode_report(line) for line in sorted(set(encoded) - {b""})):
        timestamp = Timestamp(micros=report.window_end - 1)
        for row in rows_of_report(report):
            yield TimestampedValue(row, timestamp)


def rows_of_report(report: WindowReport) -> Iterator[HeavyHitterRow]:
    """One row for each heavy item, in the order of the report."""
    start, end = format_utc(report.window_start), format_utc(report.window_end)
    for item, zone, noisy_count, level, at_least_users in report.heavy_hitters:
        yield HeavyHitterRow(
            stream=report.stream,
            window_start=start,
            window_end=end,
            item=item,
            zone=zone,
            noisy_count=noisy_count,
            level=level,
            at_least_users=at_least_users,
            epsilon_total=report.epsilon_total,
            delta=report.delta,
            epsilon_spent=report.epsilon_spent,
        )
