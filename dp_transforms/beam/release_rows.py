"""Release: rows with a schema in and out, declared by plain values alone: for Beam YAML, and for Java and Go through
Beam's expansion service (docs/other_languages.md).

Which part of a run an engine finishes first may depend on data that are not released, and rows are written as they
come. So the rows of a run that ends come in one order, that of report files.

Annotations of this module are evaluated, since Beam makes the schema of rows of them; it does not know ``str | None``.
"""

import datetime
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import EncodeRejected
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters, fields_of, may_be_mapping
from dp_transforms.beam.write_files import Gathered, gather_reports, gathered_reports
from dp_transforms.checks import check_names, shown
from dp_transforms.logs import EventFields
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.stored import as_float
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc, parse_duration
from dp_transforms.reports.report_records import in_file_order
from dp_transforms.stores.local_files import read_regular
from dp_transforms.stores.remote_files import is_remote, read_stored

_MOST_PLAN_BYTES = 1 << 20
_WAYS = "Give plan=PATH, a file of `shh plan --output`, or epsilon, delta, start, end and window."
_NO_RUN_ID = (
    "run_id cannot be given: each pipeline that is built is a run of its own. With the same run_id and noise_key over"
    " other data both runs would draw the same noise, and their rows would show what changed. Leave run_id out: a fresh"
    " one is drawn."
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

    plan: path of a plan (`shh plan --output`), which has budget, windows and mode. Else epsilon, delta, start, end,
        window, slide and mode make one, as in `declared_plan`. Declare start and end; never take them from the data.
    user, item: names of fields; several of the item, as a list, make one label of their values. time: the field with
        the event time, for bounded input; None: the element's timestamp.
    time_unit: ``s``, ``ms`` or ``us`` for times that are numbers; see `EventFields`.
    noise_key, stream, domain: as in `ShiftingHeavyHitters`; noise_key and domain are paths.
    run_id: cannot be given. Each pipeline that is built is a run of its own, with noise of its own, also with the same
        noise_key: pipelines in YAML and Java are fixed texts, which run again when their data have changed. Never
        begin one from what an engine stored for another one: windows that both answer would have two answers.

    error_handling: ``{"output": NAME}``, as in Beam YAML: a second output of this name has a row for each event that
        cannot be read (`EncodeRejected`), for the operator alone; the first one is then ``good``.

    Raises ValueError for an argument that cannot be used.
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
        mode: str | None = None,
        user: str = "user",
        item: str | list[str] = "item",
        time: str | None = None,
        time_unit: str | None = None,
        noise_key: str | None = None,
        run_id: str | None = None,
        stream: str = "events",
        domain: str | None = None,
        error_handling: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        if time is None and time_unit is not None:
            raise ValueError("time_unit is the unit of the field time: give time too, or leave time_unit out.")
        items = item if isinstance(item, (list, tuple)) and item else [item]
        for name, value in (("user", user), *(("item", each) for each in items)):
            if not (isinstance(value, str) and value):
                raise ValueError(f"{name} must be the name of a field, got {value!r}.")
        if run_id is not None:
            raise ValueError(_NO_RUN_ID)
        check_names(stream=stream)
        self.plan = declared_plan(
            plan, epsilon=epsilon, delta=delta, start=start, end=end, window=window, slide=slide, mode=mode
        )
        self._fields = None if time is None else EventFields(user, item, time, time_unit)
        self._user, self._item, self._error_output = user, item, _error_output(error_handling)
        self._arguments: dict[str, Any] = {"noise_key": noise_key, "stream": stream, "domain": domain}

    def expand(self, rows: beam.PCollection) -> Any:
        time: dict[str, Any] = {}
        if self._fields is not None:
            _check_fields(self._fields, rows.element_type)
            time = {"time": self._fields.time, "time_unit": self._fields.time_unit}
        release = ShiftingHeavyHitters(self.plan, user=self._user, item=self._item, **time, **self._arguments)
        released = rows | "ShiftingHeavyHitters" >> release
        reports = released.reports
        encode: Callable[[Any], Iterator[Any]] = rows_of_report
        if rows.is_bounded:  # all rows as one bundle, in the order of report files; else they come by and by
            reports, encode = gather_reports(reports, "EncodeRows"), _rows_in_order
        found = reports | "EncodeRows" >> beam.FlatMap(encode).with_output_types(HeavyHitterRow)
        if self._error_output is None:
            return found
        return {"good": found, self._error_output: released.rejected | "EncodeRejected" >> EncodeRejected()}


def _error_output(error_handling: Mapping[str, str] | None) -> str | None:
    if error_handling is None:
        return None
    output = error_handling.get("output") if isinstance(error_handling, Mapping) else None
    if not isinstance(output, str) or output in ("", "good") or len(error_handling) > 1:
        raise ValueError("error_handling must be {output: NAME}, with another name than good.")
    return output


def _check_fields(fields: EventFields, element_type: Any) -> None:
    """Raises ValueError unless rows of this type have these fields, and a unit for times that are numbers. Of dicts no
    type says that."""
    types = fields_of(element_type)
    if types is None and may_be_mapping(element_type):
        return
    if types is None:
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


def declared_plan(
    plan: str | os.PathLike[str] | None = None,
    *,
    epsilon: float | str | None = None,
    delta: float | str | None = None,
    start: str | int | datetime.date | None = None,
    end: str | int | datetime.date | None = None,
    window: str | int | None = None,
    slide: str | int | None = None,
    mode: str | None = None,
) -> Plan:
    """The plan of a file, or the one that `Plan.calibrate` makes of a budget.

    plan: path of a plan as JSON text. Nothing else may be given beside it.
    epsilon, delta: numbers, or the text of numbers: ``1e-9`` is text to a reader of YAML.
    start, end: ISO 8601 text, seconds since 1970 UTC, or dates and times, to which readers of YAML turn such text. UTC
        unless they have a zone. window, slide: ``1h`` and the like, or seconds. slide defaults to window.

    Raises ValueError, in words that name the argument and the remedy.
    """
    budget = {"epsilon": epsilon, "delta": delta, "start": start, "end": end, "window": window}
    if plan is not None:
        beside = [name for name, value in {**budget, "slide": slide, "mode": mode}.items() if value is not None]
        if beside:
            raise ValueError(f"{', '.join(beside)} cannot be given beside plan, which has them. {_WAYS}")
        return _read(plan)
    missing = [name for name, value in budget.items() if value is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given. {_WAYS}")
    length = _seconds("window", window)
    schedule = WindowSchedule.sliding(
        _moment("start", start), _moment("end", end), length, length if slide is None else _seconds("slide", slide)
    )
    return Plan.calibrate(
        epsilon=_number("epsilon", epsilon), delta=_number("delta", delta), schedule=schedule, mode=mode
    )


def _read(path: str | os.PathLike[str]) -> Plan:
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


def _number(name: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {shown(value)}.") from None
    return as_float(name, value)


def _moment(name: str, value: Any) -> str | int:
    if isinstance(value, datetime.date):  # a datetime is one
        return value.isoformat()
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be an ISO 8601 time such as 2026-01-01T00:00:00Z, got {shown(value)}.")


def _seconds(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be a duration such as 1h, or whole seconds, got {shown(value)}.")
