"""Event logs in files: find them, check their schema, read them as columns.

    log_chunk      what is read (EventFields, LogChunk), how it is opened, what comes out (ReadBlock); EventFileError
    discovery      find_log_chunks: files, folders and globs, checked and split; spread_chunks: large texts cut for many
                   workers, and small chunks together; read_joined: blocks of many events; count_unless_inside
    parquet, avro, csv_lines, json_lines     one module per format: find_chunks, read_chunk
    avro_schema    the Avro schemas that are read, and the Arrow types of their fields
    text_files     plain and compressed text, or a part of it, in blocks of whole lines
    event_ids      values -> ids, and why a value is none; one label of several fields
    id_columns     Arrow columns -> ids (see `event_ids`) and batches; rows that cannot be read are rejected
    rejected_events  rows that could not be read, for the operator
    times          Arrow columns of any accepted type -> microseconds since 1970 UTC
    time_formats   times in a declared form, and local times of a declared zone
    streams        a package: partitions that grow, and how far each one is

A row without a valid user, item or time is rejected with its position and a reason. No reason, error or log line ever
contains a cell. The libraries' own messages do, so they are never passed on.

Whether a row is accepted depends only on its own bytes and the declared options, not on other rows of its file
(docs/guarantee.md, "Which rows are events"). Anything that cannot be read that way raises an EventFileError, which
ends the run.

What is read of a file is what was found: of a stored one a version, of a local one (`log_chunk.FileState`) that nobody
has changed meanwhile, else an EventFileError.

Nothing here imports Beam.
"""

from __future__ import annotations

from dp_transforms.logs.discovery import (
    JoinedChunks,
    count_unless_inside,
    ending_of_log,
    find_log_chunks,
    read_joined,
    spread_chunks,
)
from dp_transforms.logs.log_chunk import EventFields, EventFileError, LogChunk, check_unchanged

__all__ = [
    "EventFields",
    "EventFileError",
    "JoinedChunks",
    "LogChunk",
    "check_unchanged",
    "count_unless_inside",
    "ending_of_log",
    "find_log_chunks",
    "read_joined",
    "spread_chunks",
]
