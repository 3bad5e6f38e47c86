"""Replay a table: what `shh replay` does with the files of a log, for a table in memory, in one call."""

from __future__ import annotations

import itertools
import re
import secrets
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dp_transforms.checks import check_names
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.local.pool import ThisProcess
from dp_transforms.local.replay import LocalReplay
from dp_transforms.logs import id_columns
from dp_transforms.logs.discovery import JOINED_ROWS, join_blocks
from dp_transforms.logs.log_chunk import (
    MAX_BLOCK_ROWS,
    EventFields,
    EventFileError,
    ReadBlock,
    check_fields_present,
)
from dp_transforms.logs.rejected_events import MOST_REJECTED, RejectedEvents
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import Report, ReportHeader
from dp_transforms.reports.report_records import checked_report

# Tables in memory as logs: DataFrames of pandas, and whatever hands out its rows as Arrow (PyCapsules).

_TABLE = "table"  # its name in errors, and as the source of rejected rows
_TAKEN = (
    "Give a DataFrame of pandas or polars, a table or batches of pyarrow, a relation of DuckDB, another object with"
    " __arrow_c_stream__ (of a lazy one what it collects), or a list of them. Files: shh replay."
)


def read_table(table: Any, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows, in order, as those of a file: rejected ones have their number, counted from 1. Raises EventFileError.

    table: or a list of tables or batches, in which no one is no row. A column has one type for all rows of a table; one
        whose columns cannot be user, item and time is not read at all.
    """
    return join_blocks(_blocks(table, fields), JOINED_ROWS)


def _blocks(table: Any, fields: EventFields) -> Iterator[ReadBlock]:
    row, parts = 1, table if isinstance(table, (list, tuple)) else [table]
    for columns in itertools.chain.from_iterable(_columns(part, fields) for part in parts):
        for begin in range(0, len(columns[0]), MAX_BLOCK_ROWS):
            some = [column.slice(begin, MAX_BLOCK_ROWS) for column in columns]
            yield id_columns.block_of_rows(_TABLE, id_columns.event_columns(some, fields), row)
            row += len(some[0])


def _columns(table: Any, fields: EventFields) -> Iterator[Sequence[pa.Array]]:
    """The columns of `EventFields.names`, piece by piece."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        check_fields_present(_TABLE, map(str, table.columns), fields, has_schema=True)
        table = table[list(dict.fromkeys(fields.names))]  # others may be of no type of Arrow
    if not hasattr(table, "__arrow_c_stream__"):
        raise EventFileError(_TABLE, f"a {type(table).__name__} is no table that can be read. {_TAKEN}")
    try:
        reader = pa.RecordBatchReader.from_stream(table)
        check_fields_present(_TABLE, reader.schema.names, fields, has_schema=True)
        types = [reader.schema.field(name).type for name in fields.names]
        id_columns.check_event_types(_TABLE, types, [str(each)[:80] for each in types], fields)
        for batch in reader:
            yield [batch.column(name) for name in fields.names]
    except EventFileError:
        raise
    except Exception as error:  # of the library that makes the rows: its words may hold a cell
        raise EventFileError(
            _TABLE, f"its rows cannot be read ({type(error).__name__}). Each column must hold values of one type."
        ) from None


def replay(
    table: Any,
    plan: Plan,
    *,
    user: str = "user",
    item: str | Sequence[str] = "item",
    time: str = "timestamp",
    time_unit: str | None = None,
    time_format: str | None = None,
    time_zone: str | None = None,
    stream: str = "events",
    public_items: PublicItems | None = None,
    allow_empty: bool = False,
    rejected: list[RejectedEvents] | None = None,
) -> Report:
    """Which items many users had in each window, under differential privacy for each user over all windows together.

    Guarantee: the report is (plan.epsilon, plan.delta)-DP for adding or removing one user with all its rows. It is what
    `shh replay` makes of the same rows with the same plan, key and run id; each call is a run of its own, whose key is
    drawn for it and forgotten. Errors, warnings and ``rejected`` are for the operator and are not covered.

    table: a row for each event. A DataFrame of pandas or polars, a table or batches of pyarrow, a relation of DuckDB,
        any object with the Arrow PyCapsule interface (``__arrow_c_stream__``), or a list of these. Its events must fit
        into memory.
    plan: of `Plan.for_contributions` or `Plan.for_hits`.
    user, item, time: names of columns; several of the item, such as ``["country", "page"]``, make one label of their
        values. time_unit, time_format, time_zone: how times are read; a timestamp without a zone is UTC. All as in
        `EventFields`.
    stream: name in the report. public_items: of a plan with public items, at most 5 MB.
    allow_empty: make a report where no event is in the range, or most rows cannot be read: an empty one too spends the
        whole budget. Then whether there is a report does not depend on the rows, which may be one user's.
    rejected: a list that gets the rows that cannot be read: their numbers, from 1, and why. A warning says how many.

    Raises ValueError for arguments and columns that cannot be used, and, unless allow_empty, if most rows
    cannot be read or no event is in the range. Then nothing is drawn. A column of Arrow's type null, as an empty frame
    of pandas has it, is one whose cells are all missing.
    """
    fields = EventFields(user, item, time, time_unit, time_format=time_format, time_zone=time_zone)
    check_names(stream=stream)
    run = PlannedRun(plan=plan, stream=stream, run_id=fresh_run_id())
    source = PublicItemsSource.of_plan(public_items, plan)
    replayed = LocalReplay(run, ThisProcess(secrets.token_bytes(32)), public_items=source)
    try:
        blocks = list(read_table(table, fields))
    except EventFileError as error:
        raise ValueError(_in_arguments(str(error))) from None
    batches = [block.batch for block in blocks if len(block.batch)]
    bad = [part for block in blocks for part in block.rejected]
    if rejected is not None:
        rejected.extend(bad)
    _check_rows(batches, bad, plan, allow_empty=allow_empty)
    made = replayed.take(batches)
    return Report(ReportHeader.of_plan(plan, run.run_id, stream), tuple(map(checked_report, made.reports)))


def _check_rows(batches: Sequence[EventBatch], bad: Sequence[RejectedEvents], plan: Plan, *, allow_empty: bool) -> None:
    """Warns of what does not count. Raises ValueError for rows of which nothing may, or need, be drawn."""
    inside = sum(int((plan.schedule.first_window(batch.time_micros) >= 0).sum()) for batch in batches)
    outside = sum(map(len, batches)) - inside
    reasons: Counter[str] = Counter()
    for part in bad:
        reasons[part.reason] += len(part.positions)
    rows = inside + outside + reasons.total()
    words = [f"{outside:,} of {rows:,} rows are outside of the declared range"] if outside else []
    if reasons:
        why = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common())
        words.append(f"{reasons.total():,} of {rows:,} rows cannot be read ({why})")
    found = "; ".join(words) or "the table has no rows"
    if reasons.total() > MOST_REJECTED * rows and not allow_empty:
        raise ValueError(
            f"{found}; no report was made. Give a list as rejected to see which. Check how times are read (time_unit,"
            " time_format), and mend or leave out such rows; or give allow_empty=True, which spends the whole budget."
        )
    if not inside and not allow_empty:
        raise ValueError(
            f"no event is in the range: {found}. No report was made, and nothing is spent. Check the range and how"
            " times are read (time_unit, time_zone), or give allow_empty=True, which spends the whole budget."
        )
    if words:
        warnings.warn(f"{found}, and do not count. (For the operator, not covered by the guarantee.)", stacklevel=3)


def _in_arguments(message: str) -> str:
    """The message of a reader of files, with arguments in the place of options."""
    message = re.sub(r"--(user|item|time)-field\b", r"\1=", message)
    message = re.sub(r"--time-format(?= (?:s|ms|us)\b)", "time_unit=", message)
    return message.replace("--time-format", "time_format=")
