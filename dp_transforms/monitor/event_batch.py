"""Event batches: columns of events on their way from a source into the pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.monitor.event_ids import ID_RULE, are_ids, id_column, one_chunk

_ID_TYPE = pa.dictionary(pa.int32(), pa.string())
_FIELDS = (("user", _ID_TYPE), ("item", _ID_TYPE), ("time", pa.int64()))
_MOST_FACET_COLUMNS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class EventBatch:
    """n events as columns.

    user, item: pyarrow ``dictionary<int32, string>`` of length n, without nulls: ids as `event_ids` defines them.
        An id may be in the dictionary several times.
    time_micros: int64[n], event time in microseconds since 1970 UTC.
    facets: int64[n, columns], of a plan with facets: which one each event has in each of their columns, counted from 1
        in `Plan.facets`, 0 for none. With `--weight` its amount, in parts of which `FULL_VALUE` are all that counts.
    """

    user: pa.DictionaryArray
    item: pa.DictionaryArray
    time_micros: npt.NDArray[np.int64]
    facets: npt.NDArray[np.int64] | None = None

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
        facets = self.facets
        if facets is not None and not (facets.ndim == 2 and facets.dtype == np.int64 and len(facets) == len(self.user)):
            raise ValueError("facets must be int64, with a row for each event and a column for each column of facets.")

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
        facets = None if self.facets is None else self.facets[rows]
        return EventBatch(self.user.filter(kept), self.item.filter(kept), self.time_micros[rows], facets)

    def to_bytes(self) -> bytes:
        """Arrow IPC stream of one record batch."""
        numbers = [self.time_micros, *(() if self.facets is None else self.facets.T)]
        schema = _schema(len(numbers) - 1)
        batch = pa.record_batch([self.user, self.item, *map(pa.array, numbers)], schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @classmethod
    def from_bytes(cls, data: bytes) -> EventBatch:
        """Inverse of `to_bytes`. Raises ValueError for anything else."""
        try:
            with pa.ipc.open_stream(data) as reader:
                if not any(reader.schema == _schema(columns) for columns in range(_MOST_FACET_COLUMNS + 1)):
                    raise ValueError("the bytes hold another schema than that of an EventBatch.")
                table = reader.read_all().combine_chunks()
                table.validate(full=True)
        except (pa.ArrowException, OSError):  # whose words may hold some of the bytes
            raise ValueError("the bytes are not an EventBatch.") from None
        user, item, time, *facets = map(one_chunk, table.columns)
        numbers = [column.to_numpy() for column in facets]
        return cls(user, item, time.to_numpy(), np.stack(numbers, axis=1) if numbers else None)


def _schema(facet_columns: int) -> pa.Schema:
    return pa.schema([*_FIELDS, *((f"facet_{number}", pa.int64()) for number in range(facet_columns))])


def concatenate(batches: Sequence[EventBatch]) -> EventBatch:
    """At least one batch, joined in order. An id that several of them have is in the dictionary several times: to find
    the distinct ones would take longer than to hash all of them."""
    if len(batches) == 1:
        return batches[0]
    user, item = (_join([getattr(batch, name) for batch in batches]) for name in ("user", "item"))
    facets = [batch.facets for batch in batches if batch.facets is not None]
    times = np.concatenate([batch.time_micros for batch in batches])
    return EventBatch(user, item, times, np.concatenate(facets) if facets else None)


def _join(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    begins = np.cumsum([0, *(len(column.dictionary) for column in columns)], dtype=np.int32)
    indices = [column.indices.to_numpy() + begin for column, begin in zip(columns, begins, strict=False)]
    values = pa.concat_arrays([column.dictionary for column in columns])
    return pa.DictionaryArray.from_arrays(pa.array(np.concatenate(indices), pa.int32()), values, safe=False)
