"""Release: rows with a schema in and out, declared by plain values alone: for Beam YAML, and for Java and Go through
Beam's expansion service (docs/other_languages.md).

Which part of a run an engine finishes first may depend on data that are not released, and rows are written as they
come. So the rows of a run that ends come in one order, that of report files.

Annotations of this module are evaluated, since Beam makes the schema of rows of them; it does not know ``str | None``.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.write_reports import Gathered, gather_reports, gathered_reports
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.plan import Plan, plan_for
from dp_transforms.plan.window_schedule import Length, Moment, WindowSchedule, format_utc
from dp_transforms.reports.report_records import in_file_order
from dp_transforms.stores.files import read_file

_MOST_PLAN_BYTES = 1 << 20
_WAYS = "Give plan=PATH, a file of `shh plan --output`, or epsilon, delta, start, end and window."


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


class HeavyHitterRows(beam.PTransform):
    """`ShiftingHeavyHitters` for rows: a PCollection with a schema -> one of `HeavyHitterRow`, one for each heavy item.

    Guarantee: as in `ShiftingHeavyHitters`. All rows together are (epsilon, delta)-DP for adding or removing one user
    with all of its events, over the whole run. Events that cannot be read, or lie outside the range, are left out and
    counted for the operator. The rows of bounded input come in the order of windows, not in that in which an engine
    finishes them: that may depend on data that are not released. Keep that order, or sort what you write.

    plan: path of a plan (`shh plan --output`), with its budget, windows and charge; nothing of these may be given then.
    epsilon, delta: numbers, or the text of numbers: ``1e-9`` is text to a reader of YAML.
    start, end: as in `WindowSchedule.sliding`. Declare them; never take them from the data. window, slide: ``1h`` and
        the like, or seconds. slide defaults to window.
    charge: ``contributions``, the default, or ``hits``; counts: with hits. use: with contributions, ``replay``, the
        default, or ``stream``: which unbounded input needs.
    of_release: ``user``, ``item``, ``time`` and ``time_unit``, by names of fields, and ``noise_key``, ``stream`` and
        ``public_items``, all as in `ShiftingHeavyHitters`; noise_key and public_items are paths.
    run_id: cannot be given. Each pipeline that is built is a run of its own, with noise of its own, also with the same
        noise_key: pipelines in YAML and Java are fixed texts, which run again when their data have changed. Never
        begin one from what an engine stored for another one: windows that both answer would have two answers.

    Raises ValueError, in words that name the argument and the remedy, for one that cannot be used.
    """

    def __init__(
        self,
        plan: str | None = None,
        *,
        epsilon: float | str | None = None,
        delta: float | str | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        window: Length | None = None,
        slide: Length | None = None,
        charge: str | None = None,
        counts: bool = False,
        use: str | None = None,
        run_id: str | None = None,
        **of_release: Any,
    ) -> None:
        super().__init__()
        if run_id is not None:
            raise ValueError(
                "run_id cannot be given: with the same run_id and noise_key over other data two runs would draw the"
                " same noise, and their rows would show what changed. Leave run_id out: a fresh one is drawn."
            )
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "start": start, "end": end, "window": window}
        choices: dict[str, Any] = {"charge": charge, "counts": counts or None, "use": use}
        if plan is not None:
            given = budget | choices | {"slide": slide}
            if beside := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"{', '.join(beside)} cannot be given beside plan, which has them. {_WAYS}")
            self.plan = _read(plan)
        elif missing := [name for name, value in budget.items() if value is None]:
            raise ValueError(f"{', '.join(missing)} must be given. {_WAYS}")
        else:
            schedule = WindowSchedule.sliding(start, end, window, window if slide is None else slide)  # type: ignore[arg-type]
            self.plan = plan_for(epsilon=_number(epsilon), delta=_number(delta), schedule=schedule, **choices)
        self._release = ShiftingHeavyHitters(self.plan, **of_release)

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        reports = (rows | "ShiftingHeavyHitters" >> self._release).reports
        if not rows.is_bounded:  # by and by
            return reports | "EncodeRows" >> beam.FlatMap(rows_of_report).with_output_types(HeavyHitterRow)
        # All rows as one bundle, in the order of report files.
        gathered = gather_reports(reports, "EncodeRows")
        return gathered | "EncodeRows" >> beam.FlatMap(_rows_in_order).with_output_types(HeavyHitterRow)


def rows_of_report(report: WindowReport) -> Iterator[HeavyHitterRow]:
    """One row for each heavy item, in the order of the report."""
    start, end = format_utc(report.window_start), format_utc(report.window_end)
    total = report.epsilon_total, report.delta, report.epsilon_spent
    for heavy_hitter in report.heavy_hitters:
        yield HeavyHitterRow(report.stream, start, end, *heavy_hitter[:5], *total)


def _rows_in_order(group: Gathered) -> Iterator[TimestampedValue]:
    for report in in_file_order(gathered_reports(group)):
        timestamp = Timestamp(micros=report.window_end - 1)
        for row in rows_of_report(report):
            yield TimestampedValue[HeavyHitterRow](row, timestamp)


def _number(value: Any) -> Any:
    """Text that is no number is refused by the plan."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _read(path: str | os.PathLike[str]) -> Plan:
    name = os.fspath(path)
    try:
        return Plan.from_json(read_file(name, _MOST_PLAN_BYTES))
    except OSError as error:
        raise ValueError(f"plan: {name} cannot be read: {error.strerror}. {_WAYS}") from None
    except ValueError as error:
        raise ValueError(f"plan: {name}: {error}") from None
