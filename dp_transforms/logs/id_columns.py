"""Arrow columns of ids and times -> an EventBatch, and the rows that are rejected.

Work on text is done once for each distinct value of a block; work on rows is numpy on integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.core.event_batch import EventBatch, is_uuid_type, uuid_texts
from dp_transforms.logs import times
from dp_transforms.logs.event_ids import (
    MISSING,
    as_binary,
    escaped,
    fault_reason,
    ids_of_values,
    is_text_type,
    joined_labels,
)
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    ReadBlock,
)
from dp_transforms.logs.rejected_events import RejectedEvents, Rows, reject
from dp_transforms.logs.times import TimeColumn, parse_times

_LOOKED_AT_ROWS = 1 << 14
_MOSTLY_DISTINCT = 0.75

BROKEN_LINE = "broken line"
WRONG_NUMBER_OF_CELLS = "wrong number of cells"


class IdColumn(NamedTuple):
    """n ids.

    values: pa.StringArray, canonical texts, some perhaps twice (where a fault refers to one, it may be empty).
    indices: int32[n] into values; without meaning where there is a fault.
    faults: uint8[n], see `event_ids`.
    """

    values: pa.StringArray
    indices: npt.NDArray[np.int32]
    faults: npt.NDArray[np.uint8]


class Columns(NamedTuple):
    """Of n rows."""

    user: IdColumn
    item: IdColumn
    time: TimeColumn


def check_event_types(
    path: str, types: Sequence[pa.DataType | None], shown: Sequence[str], fields: EventFields
) -> None:
    """Raises EventFileError unless columns of these types can be user, item and time. Any can be of type null, which
    writers give to a column without a value: whether it has one may depend on one user, so rows are rejected one by
    one.

    types: None for a type that no event has. shown: the types in the words of the format.
    """
    for name, column_type, words in zip(fields.names, types, shown, strict=True):
        kind, is_time = column_type, name == fields.time
        if kind is not None and pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind is None or not _may_be(kind, is_time=is_time):
            wanted = "an id must be text or a whole number"
            if is_time:
                wanted = "a time must be a timestamp, a date, ISO 8601 text or a number"
            problem = f"has type {words}; {wanted}. Convert it, or name another one with {fields.flag(name)}."
            raise EventFileError(path, f"the field {name!r} {problem}")
        if is_time and times.is_number_type(kind) and fields.time_unit not in times.MICROS_PER_UNIT:
            problem = "holds numbers without a unit. Give the unit with --time-format s, ms or us."
            raise EventFileError(path, f"the field {name!r} {problem}")


def _may_be(kind: pa.DataType, *, is_time: bool) -> bool:
    if is_text_type(kind) or pa.types.is_null(kind):
        return True
    return times.is_typed(kind) if is_time else bool(pa.types.is_integer(kind)) or is_uuid_type(kind)


def encode_ids(array: pa.Array) -> IdColumn:
    """Ids from a column of a type that may be an id (`check_event_types`). Raises ValueError if an index is
    outside of its dictionary."""
    if is_uuid_type(array.type):
        array = uuid_texts(array)
    if pa.types.is_dictionary(array.type):
        encoded = array
    elif pa.types.is_integer(array.type):
        encoded = array.dictionary_encode()
    else:
        encoded = _encode_text(as_binary(array))
    indices = encoded.indices
    if len(indices) > indices.null_count:  # readers of files do not check them
        bounds = pc.min_max(indices)
        if bounds["min"].as_py() < 0 or bounds["max"].as_py() >= len(encoded.dictionary):
            raise ValueError("an index outside of its dictionary")
    values, faults_of_values = ids_of_values(encoded.dictionary)
    if not len(values):
        return IdColumn(values, np.zeros(len(indices), np.int32), np.full(len(indices), MISSING, np.uint8))
    index = indices.fill_null(0).to_numpy().astype(np.int32, copy=False)
    faults = faults_of_values[index] if faults_of_values.any() else np.zeros(len(index), np.uint8)
    if indices.null_count:
        faults[indices.is_null().to_numpy(zero_copy_only=False)] = MISSING
    return IdColumn(values, index, faults)


def _encode_text(array: pa.BinaryArray) -> pa.DictionaryArray:
    """A dictionary of the distinct values; of all cells if most differ, since to find the distinct ones takes long."""
    looked_at = array[:_LOOKED_AT_ROWS]
    if len(array) > _LOOKED_AT_ROWS and pc.count_distinct(looked_at).as_py() > _MOSTLY_DISTINCT * _LOOKED_AT_ROWS:
        return pa.DictionaryArray.from_arrays(pa.array(np.arange(len(array), dtype=np.int32)), array)
    return array.dictionary_encode()


def event_columns(arrays: Sequence[pa.Array], fields: EventFields) -> Columns:
    """arrays: of `EventFields.names`, as a format has them."""
    user, item, time, *more = arrays
    items = join_items([encode_ids(each) for each in (item, *more)])
    return Columns(encode_ids(user), items, parse_times(time, *fields.time_reading))


def join_items(columns: Sequence[IdColumn]) -> IdColumn:
    """The labels of several fields; of one field as they are. A row has the fault of the first field that has one, or
    that of a label that is too long."""
    item, *more = columns
    if not more:
        return item
    faults, indices, texts = item.faults, item.indices.astype(np.int64), escaped(item.values)
    for column in more:
        faults = np.where(faults != 0, faults, column.faults)
        count = max(1, len(column.values))
        pairs = pa.array(indices * count + column.indices, mask=faults != 0).dictionary_encode()
        firsts, seconds = map(pa.array, np.divmod(pairs.dictionary.to_numpy(), count))
        texts = joined_labels(texts.take(firsts), escaped(column.values).take(seconds))
        indices = pairs.indices.fill_null(0).to_numpy().astype(np.int64)
    labels, of_labels = ids_of_values(texts)
    if len(labels):
        faults = np.where(faults != 0, faults, of_labels[indices])
    return IdColumn(labels, indices.astype(np.int32), faults)


def events_of(
    source: str,
    columns: Columns,
    rows: Rows,
    broken: Mapping[str, Rows],
    positions_of: Callable[[Rows], Rows],
) -> tuple[ReadBlock, Rows]:
    """The good records as a batch, the others by reason; and the numbers of the good ones, rising from 0. A record with
    several faults is reported for the first one.

    columns: of the records that could be decoded. rows: their numbers. broken: by reason, the numbers of the others.
    positions_of: numbers of records -> their positions in the source.
    """
    user, item, time = columns
    reasons = {reason: others for reason, others in broken.items() if len(others)}
    for name, faults in (("user", user.faults), ("item", item.faults), ("time", time.faults)):
        for fault in np.unique(faults[faults != 0]).tolist() if faults.any() else ():
            reasons[fault_reason(fault, name)] = rows[faults == fault]
    users, items, micros = user.indices, item.indices, time.micros
    rejected: tuple[RejectedEvents, ...] = ()
    if reasons:
        count = len(rows) + sum(map(len, broken.values()))
        rejected, left = reject(source, count, reasons, positions_of)
        good = np.searchsorted(rows, left)
        users, items, micros, rows = users[good], items[good], micros[good], left
    batch = EventBatch(_dictionary_array(user.values, users), _dictionary_array(item.values, items), micros)
    return ReadBlock(batch, rejected), rows


def block_of_rows(path: str, columns: Columns, first_row: int) -> ReadBlock:
    """Of a format whose records are numbered, and can all be decoded. first_row: the number of the first one."""
    return events_of(path, columns, np.arange(len(columns.time.faults)), {}, functools.partial(np.add, first_row))[0]


def _dictionary_array(values: pa.StringArray, indices: npt.NDArray[np.int32]) -> pa.DictionaryArray:
    """A dictionary that holds only the values in use, without faulty values and those of other rows."""
    used = np.zeros(len(values), np.bool_)
    used[indices] = True
    if not used.all():
        new_index = np.cumsum(used, dtype=np.int32) - np.int32(1)
        values, indices = values.filter(pa.array(used)), new_index[indices]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values, safe=False)


def empty_batch() -> EventBatch:
    empty = _dictionary_array(pa.array([], pa.string()), np.zeros(0, np.int32))
    return EventBatch(empty, empty, np.zeros(0, np.int64))
