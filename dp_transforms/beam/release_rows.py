"""Release: rows with a schema in and out, declared by plain values alone: for Beam YAML, and for Java and Go through
Beam's expansion service (docs/other_languages.md).

Which part of a run an engine finishes first may depend on data that are not released, and rows are written as they
come. So the rows of a run that ends come in one order, that of report files.

Annotations of this module are evaluated, since Beam makes the schema of rows of them; it does not know ``str | None``.
"""

import contextlib
import datetime
import os
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters, fields_of, may_be_mapping
from dp_transforms.beam.write_files import Gathered, gather_reports, gathered_reports
from dp_transforms.checks import shown
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs import EventFields
from dp_transforms.plan.plan import Plan, plan_for
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from dp_transforms.reports.report_records import in_file_order
from dp_transforms.stores.local_files import read_regular
from dp_transforms.stores.remote_files import is_remote, read_stored

_MOST_PLAN_BYTES = 1 << 20
_WAYS = "Give plan=PATH, a file of `shh plan --output`, or epsilon, delta, start, end and window."
_NO_RUN_ID = (
    "run_id cannot be given: with the same run_id and noise_key over other data two runs would draw the same noise, and"
    " their rows would show what changed. Leave run_id out: a fresh one is drawn."
)


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


def _rows_in_order(group: Gathered) -> Iterator[TimestampedValue]:
    """The rows of all reports."""
    for report in in_file_order(gathered_reports(group)):
        timestamp = Timestamp(micros=report.window_end - 1)
        for row in rows_of_report(report):
            yield TimestampedValue[HeavyHitterRow](row, timestamp)


def rows_of_report(report: WindowReport) -> Iterator[HeavyHitterRow]:
    """One row for each heavy item, in the order of the report."""
    start, end = format_utc(report.window_start), format_utc(report.window_end)
    total = report.epsilon_total, report.delta, report.epsilon_spent
    for heavy_hitter in report.heavy_hitters:
        yield HeavyHitterRow(report.stream, start, end, *heavy_hitter[:5], *total)


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
    user, item: names of fields; several of the item, as a list, make one label of their values. time: the field with
        the event time, for bounded input; None: the element's timestamp. time_unit: ``s``, ``ms`` or ``us`` for times
        that are numbers; see `EventFields`.
    noise_key, stream, public_items: as in `ShiftingHeavyHitters`; noise_key and public_items are paths.
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
        start: str | int | datetime.date | None = None,
        end: str | int | datetime.date | None = None,
        window: str | int | None = None,
        slide: str | int | None = None,
        charge: str | None = None,
        counts: bool = False,
        use: str | None = None,
        user: str = "user",
        item: str | list[str] = "item",
        time: str | None = None,
        time_unit: str | None = None,
        noise_key: str | None = None,
        run_id: str | None = None,
        stream: str = "events",
        public_items: str | None = None,
    ) -> None:
        super().__init__()
        if run_id is not None:
            raise ValueError(_NO_RUN_ID)
        declared: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "start": start, "end": end, "window": window}
        declared |= {"slide": slide, "charge": charge, "counts": counts or None, "use": use}
        self.plan = _plan_of(**declared) if plan is None else _read(plan, declared)
        self._fields = None if time is None else EventFields(user, item, time, time_unit)
        self._release = ShiftingHeavyHitters(
            self.plan,
            None,
            user,
            item,
            noise_key,
            time=time,
            time_unit=time_unit,
            stream=stream,
            public_items=public_items,
        )

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        if self._fields is not None:
            _check_fields(self._fields, rows.element_type)
        reports = (rows | "ShiftingHeavyHitters" >> self._release).reports
        encode: Callable[[Any], Iterator[Any]] = rows_of_report
        if rows.is_bounded:  # all rows as one bundle, in the order of report files; else they come by and by
            reports, encode = gather_reports(reports, "EncodeRows"), _rows_in_order
        return reports | "EncodeRows" >> beam.FlatMap(encode).with_output_types(HeavyHitterRow)


def _check_fields(fields: EventFields, element_type: Any) -> None:
    """Raises ValueError unless rows of this type have these fields, and a unit for times that are numbers. Of dicts no
    type says that."""
    types = fields_of(element_type)
    if types is None:
        if may_be_mapping(element_type):
            return
        raise ValueError(f"the input must have a schema, got elements of {element_type!r}. Map them to fields first.")
    of_items = (("item", name) for name in fields.items)
    for argument, name in (("user", fields.user), *of_items, ("time", fields.time)):
        if name not in types:
            raise ValueError(
                f"{argument}={name!r} is not a field of the input, which has {', '.join(types)}. Name one of them."
            )
    numbers = {int, float, np.int64, np.int32, np.int16, np.int8, np.float64, np.float32}
    if fields.time_unit is None and {types[fields.time], *typing.get_args(types[fields.time])} & numbers:
        raise ValueError(f"the field {fields.time!r} has numbers: give time_unit, one of s, ms, us.")


def _plan_of(slide: str | int | None, charge: str | None, counts: bool | None, use: str | None, **budget: Any) -> Plan:
    if missing := [name for name, value in budget.items() if value is None]:
        raise ValueError(f"{', '.join(missing)} must be given. {_WAYS}")
    for name in ("epsilon", "delta"):
        with contextlib.suppress(ValueError):  # text that is no number is refused below
            budget[name] = float(budget[name]) if isinstance(budget[name], str) else budget[name]
    epsilon, delta, start, end, window = budget.values()
    schedule = WindowSchedule.sliding(start, end, window, window if slide is None else slide)
    return plan_for(charge, epsilon=epsilon, delta=delta, schedule=schedule, counts=counts, use=use)


def _read(path: str | os.PathLike[str], others: dict[str, Any]) -> Plan:
    if beside := [name for name, value in others.items() if value is not None]:
        raise ValueError(f"{', '.join(beside)} cannot be given beside plan, which has them. {_WAYS}")
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"plan must be a path, got {shown(path)}. {_WAYS}")
    name = os.fspath(path)
    try:
        text = (read_stored if is_remote(name) else read_regular)(name, _MOST_PLAN_BYTES)
    except OSError as error:
        raise ValueError(f"plan: {name} cannot be read: {error.strerror}. {_WAYS}") from None
    if len(text) > _MOST_PLAN_BYTES:
        raise ValueError(f"plan: {name} is not a plan: it has more than 1 MB. {_WAYS}")
    try:
        return Plan.from_json(text)
    except ValueError as error:
        raise ValueError(f"plan: {name}: {error}") from None
