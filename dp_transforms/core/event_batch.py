"""Event batches: columns of events on their way from a source into the pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.core.event_ids import ID_RULE, are_ids, id_column, one_chunk

_ID_TYPE = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema([("user", _ID_TYPE), ("item", _ID_TYPE), ("time", pa.int64())])


@dataclasses.dataclass(frozen=True, eq=False)
class EventBatch:
    """n events as columns.

    user, item: pyarrow ``dictionary<int32, string>`` of length n, without nulls: ids as `event_ids` defines them.
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
