"""Event batches: columns of events on their way from a source into the pipeline.

An id of a user or an item is UTF-8 text of 1 to 16,384 bytes, kept as it is spelled. A whole number is the text of its
digits: the integer 7 and the text ``7`` are the same id, ``007`` is another. A UUID is its text in lower case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_ID_BYTES = 16_384  # one longer label would be copied with each of its windows, and no report needs it
ID_RULE = f"UTF-8 text of 1 to {MAX_ID_BYTES:,} bytes"
_DIGITS_OF_UUID = [place for place in range(36) if place not in (8, 13, 18, 23)]  # others are dashes

_ID_TYPE = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema([("user", _ID_TYPE), ("item", _ID_TYPE), ("time", pa.int64())])


@dataclasses.dataclass(frozen=True, eq=False)
class EventBatch:
    """n events as columns.

    user, item: pyarrow ``dictionary<int32, string>`` of length n, without nulls: ids.
        An id may be in the dictionary several times.
    time_micros: int64[n], event time in microseconds since 1970 UTC.
    """

    user: pa.DictionaryArray
    item: pa.DictionaryArray
    time_micros: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.user) == len(self.item) == len(self.time_micros):
            raise ValueError(
                "the columns of an EventBatch must have one length, got"
                f" {len(self.user)}, {len(self.item)} and {len(self.time_micros)}."
            )
        for name, column in (("user", self.user), ("item", self.item)):
            if column.type != _ID_TYPE:
                raise ValueError(f"{name} must be {_ID_TYPE}, got {column.type}. Use EventBatch.of_columns(...).")
            if column.null_count or column.dictionary.null_count or not are_ids(column.dictionary):
                raise ValueError(f"each {name} must be {ID_RULE}, none of them null. Leave other events out.")
        if self.time_micros.dtype != np.int64:
            raise ValueError(f"time_micros must be int64, got {self.time_micros.dtype}.")

    @classmethod
    def of_columns(
        cls, user: pa.Array | Sequence[Any], item: pa.Array | Sequence[Any], time_micros: npt.ArrayLike
    ) -> EventBatch:
        """From columns of text or whole numbers, Arrow's of any width and layout, numpy's or lists."""
        times = np.asarray(time_micros)  # of no rows: of no type
        return cls(id_column("user", user), id_column("item", item), times if times.size else times.astype(np.int64))

    def __len__(self) -> int:
        return len(self.time_micros)

    def where(self, rows: npt.NDArray[np.bool_]) -> EventBatch:
        """The events of these rows. rows: bool[n]."""
        if rows.all():
            return self
        kept = pa.array(rows)
        return EventBatch(self.user.filter(kept), self.item.filter(kept), self.time_micros[rows])

    def to_bytes(self) -> bytes:
        """Arrow IPC stream of one record batch."""
        batch = pa.record_batch([self.user, self.item, pa.array(self.time_micros)], schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @classmethod
    def from_bytes(cls, data: bytes) -> EventBatch:
        """Inverse of `to_bytes`. Raises ValueError for anything else."""
        try:
            with pa.ipc.open_stream(data) as reader:
                if reader.schema != _SCHEMA:
                    raise ValueError("the bytes hold another schema than that of an EventBatch.")
                table = reader.read_all().combine_chunks()
                table.validate(full=True)
        except (pa.ArrowException, OSError):  # whose words may hold some of the bytes
            raise ValueError("the bytes are not an EventBatch.") from None
        user, item, time = map(one_chunk, table.columns)
        return cls(user, item, time.to_numpy())


def concatenate(batches: Sequence[EventBatch]) -> EventBatch:
    """At least one batch, joined in order. An id that several of them have is in the dictionary several times: to find
    the distinct ones would take longer than to hash all of them."""
    if len(batches) == 1:
        return batches[0]
    user, item = (_join([getattr(batch, name) for batch in batches]) for name in ("user", "item"))
    return EventBatch(user, item, np.concatenate([batch.time_micros for batch in batches]))


def _join(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    begins = np.cumsum([0, *(len(column.dictionary) for column in columns)], dtype=np.int32)
    indices = [column.indices.to_numpy() + begin for column, begin in zip(columns, begins, strict=False)]
    values = pa.concat_arrays([column.dictionary for column in columns])
    return pa.DictionaryArray.from_arrays(pa.array(np.concatenate(indices), pa.int32()), values, safe=False)


def are_ids(texts: pa.StringArray) -> bool:
    """Whether all of them are ids."""
    lengths = pc.binary_length(texts)
    if len(texts) and not 0 < pc.min(lengths).as_py() <= pc.max(lengths).as_py() <= MAX_ID_BYTES:
        return False
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def id_column(name: str, column: pa.Array | pa.ChunkedArray | Sequence[Any]) -> pa.DictionaryArray:
    """Texts, whole numbers or UUIDs as ids. Raises ValueError for columns of other types; the texts are not checked."""
    try:
        array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column)
        array = one_chunk(array) if isinstance(array, pa.ChunkedArray) else array
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if is_uuid_type(array.type):
            array = uuid_texts(array)
        kinds = (
            *(pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            pa.types.is_null,  # of no rows, or of rows without a value
        )
        if any(is_kind(array.type) for is_kind in kinds):
            return array.cast(pa.string()).dictionary_encode()
    except (pa.ArrowException, TypeError):
        raise ValueError(f"{name} must be one column of text or of whole numbers. Cast it to text.") from None
    raise ValueError(f"{name} must be text or whole numbers, got {array.type}. Cast it to text.")


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def is_uuid_type(column_type: pa.DataType) -> bool:
    return isinstance(column_type, pa.UuidType)


def uuid_texts(column: pa.Array) -> pa.StringArray:
    """UUIDs as text, as Python and DuckDB spell them."""
    count, storage = len(column), column.storage
    cells = memoryview(storage.buffers()[1] or b"")[16 * storage.offset : 16 * (storage.offset + count)]
    digits = cells.hex().encode()
    texts = np.full((count, 36), ord("-"), np.uint8)
    texts[:, _DIGITS_OF_UUID] = np.frombuffer(digits, np.uint8).reshape(count, 32)
    ends = np.arange(count + 1, dtype=np.int32) * 36
    found = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts))
    return pc.if_else(storage.is_valid(), found, None) if storage.null_count else found
