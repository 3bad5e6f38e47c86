"""Tables in memory as logs: DataFrames of pandas, and whatever hands out its rows as Arrow (PyCapsules)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dp_transforms.logs import id_columns
from dp_transforms.logs.discovery import JOINED_ROWS, join_blocks
from dp_transforms.logs.log_chunk import (
    MAX_BLOCK_ROWS,
    EventFields,
    EventFileError,
    ReadBlock,
    check_fields_present,
)

_TABLE = "table"  # its name in errors, and as the source of rejected rows
_TAKEN = (
    "Give a DataFrame of pandas or polars, a table or batches of pyarrow, a relation of DuckDB, another object with"
    " __arrow_c_stream__, or a list of them. Files: shh replay."
)
# What makes a table of an object that has none yet, as a LazyFrame, a data set and others: the first that it has.
_MAKES_TABLE = ("to_arrow_table", "to_table", "toArrow", "toPandas", "to_frame", "collect")


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
            yield from id_columns.blocks_of_rows(_TABLE, id_columns.event_columns(some, fields), row, 0)
            row += len(some[0])


def _columns(table: Any, fields: EventFields) -> Iterator[Sequence[pa.Array]]:
    """The columns of `EventFields.names`, piece by piece."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        table = _of_pandas(table, fields)
    if not hasattr(table, "__arrow_c_stream__"):
        made = next((name for name in _MAKES_TABLE if callable(getattr(table, name, None))), None)
        remedy = _TAKEN if made is None else f"Make one of it: its .{made}()."
        raise EventFileError(_TABLE, f"a {type(table).__name__} is no table that can be read. {remedy}")
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
            _TABLE, f"its rows cannot be read ({type(error).__name__}). Read it with its own library to see why."
        ) from None


def _of_pandas(frame: Any, fields: EventFields) -> pa.Table:
    """The columns of events alone: others may be of no type of Arrow. They may also be in the index."""
    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    check_fields_present(_TABLE, map(str, [*frame.columns, *levels]), fields, has_schema=True)
    if levels:
        frame = frame.reset_index(level=levels)
    columns = {}
    for name in fields.names:
        try:
            column = pa.Array.from_pandas(frame[name])
        except Exception:  # whose words hold a cell
            words = f'the column {name!r} holds values of several types. Make them text: df[{name!r}].astype("string").'
            raise EventFileError(_TABLE, words) from None
        columns[name] = column
    return pa.table(columns)
