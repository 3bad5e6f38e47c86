"""Read: log files -> batches of events, and the rows that could not be read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import ClassVar

import apache_beam as beam

from dp_transforms.beam.count_for_operator import operator_counter
from dp_transforms.beam.split_rejected import REJECTED, batches_and_rejected, typed
from dp_transforms.logs import EventFields, JoinedChunks, LogChunk, read_joined, spread_chunks
from dp_transforms.monitor.operator_counts import EVENTS_REJECTED


class ReadProgress:
    """Counts what was read, for a progress bar in this process. What other processes read is not counted."""

    _live: ClassVar[dict[str, ReadProgress]] = {}
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.rows = 0
        self.bytes = 0
        self._live[self.token] = self

    @classmethod
    def advance(cls, token: str | None, rows: int, size: int) -> None:
        with cls._lock:
            progress = cls._live.get(token or "")
            if progress is not None:
                progress.rows += rows
                progress.bytes += size

    def close(self) -> None:
        self._live.pop(self.token, None)


class ReadEvents(beam.PTransform):
    """Reads the chunks of a log. Returns ``(batches, rejected)``: PCollections of `EventBatch` and `RejectedEvents`.

    chunks: from `logs.find_log_chunks`, which has checked that the files exist and have the fields.
    progress: counts rows and bytes, as far as the pipeline runs in this process.
    workers: so many read at once: large chunks are cut and small ones joined for them. None: each chunk by itself.
    windows_per_event: in so many windows an event counts; the more, the smaller the batches.
    """

    def __init__(
        self,
        chunks: Sequence[LogChunk],
        fields: EventFields,
        progress: ReadProgress | None = None,
        *,
        workers: int | None = None,
        windows_per_event: int = 1,
    ) -> None:
        super().__init__()
        if workers is None:
            self._joined = [JoinedChunks((chunk,)) for chunk in chunks]
        else:
            self._joined = spread_chunks(chunks, fields, workers)
        token = progress.token if progress is not None else None
        self._do_fn = ReadChunksDoFn(fields, windows_per_event, token)

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection]:
        return typed(
            begin
            | "Chunks" >> beam.Create(self._joined)
            | "SpreadChunks" >> beam.Reshuffle()
            | "ReadChunks" >> batches_and_rejected(self._do_fn)
        )


class ReadChunksDoFn(beam.DoFn):
    """Adapts `read_joined`."""

    def __init__(self, fields: EventFields, windows_per_event: int, progress_token: str | None) -> None:
        self._fields = fields
        self._windows_per_event = windows_per_event
        self._progress_token = progress_token
        self._rejected = operator_counter(EVENTS_REJECTED)

    def process(self, joined: JoinedChunks) -> Iterator[object]:
        for block in read_joined(joined, self._fields, self._windows_per_event):
            for rejected in block.rejected:
                self._rejected.inc(len(rejected.positions))
                yield beam.pvalue.TaggedOutput(REJECTED, rejected)
            if len(block.batch):
                yield block.batch
            ReadProgress.advance(self._progress_token, block.rows, block.bytes)
