"""Encode: what is released, as rows with a schema that other languages and formats can read.

Annotations of this module are evaluated, since Beam makes the schema of them; it does not know ``str | None``.
"""

from collections.abc import Iterator
from typing import NamedTuple, Optional

import apache_beam as beam

from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.window_schedule import format_utc


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
    """PCollection of `WindowReport` -> PCollection of `HeavyHitterRow`, one for each heavy item."""

    def expand(self, reports: beam.PCollection) -> beam.PCollection:
        return reports | "RowsOfReports" >> beam.FlatMap(rows_of_report).with_output_types(HeavyHitterRow)


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
