"""Event batches: columns of events on their way from a source into the pipeline."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SCHEMA = pa.schema(
    [
        ("user", pa.dictionary(pa.int32(), pa.string())),
        ("item", pa.dictionary(pa.int32(), pa.string())),
        ("time", pa.int64()),
    ]
)


@dataclasses.dataclass(frozen=True, eq=False)
class EventBatch:
    """n events as columns.

    user, item: pyarrow ``dictionary<int32, string>`` of length n, without nulls or empty strings: the canonical UTF-8
        text of the id (the integer 7 and the text ``7`` are the same id, ``007`` is another).
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

    def __len__(self) -> int:
        return len(self.time_micros)

    def to_bytes(self) -> bytes:
        """Arrow IPC stream of one record batch."""
        batch = pa.record_batch([self.user, self.item, pa.array(self.time_micros, pa.int64())], schema=_SCHEMA)
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
        except pa.ArrowInvalid as error:
            raise ValueError("the bytes are not an EventBatch.") from error
        user, item, time = (_one_chunk(table.column(name)) for name in _SCHEMA.names)
        return cls(user, item, time.to_numpy())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
