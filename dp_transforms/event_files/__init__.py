"""Event logs in files: find them, check their schema, read them as columns.

    log_chunk      what is read (EventFields, LogChunk), what comes out (ReadBlock), what goes wrong (EventFileError)
    discovery      find_log_chunks: files, folders and globs, checked and split; read_log_chunk; hint_of_log
    estimate       estimate_log: about how many events, and how much text, for the memory check
    parquet, avro, csv_lines, json_lines     one module per format: find_chunks and read_chunk
    avro_container, avro_schema   the framing of an Avro file and an allow-list of schemas, read with limits
    text_files     plain and compressed text, and how far it is read
    line_blocks    the framing of text: blocks of whole lines, without those that are too long
    csv_rows       which lines of a CSV file are rows
    columns        Arrow columns of any accepted type -> ids in canonical text; rows that cannot be read are set aside
    times          Arrow columns of any accepted type -> microseconds since 1970 UTC

An id is the UTF-8 text of the cell: the whole number 7 and the text ``7`` are the same id, ``007`` is another, and
nothing is normalised. A row without a user, an item or a time is set aside with its place and a reason, and no
reason, error or log line ever contains a cell: the libraries' own messages do, so none of them is passed on.

A row is accepted or set aside by its own bytes and the declared options alone, whatever the other rows of its file are
(docs/guarantee.md, section 7). What cannot be read that way is an EventFileError that ends the run.

Nothing here knows Beam.
"""

from __future__ import annotations

from dp_transforms.event_files.discovery import find_log_chunks, hint_of_log, read_log_chunk
from dp_transforms.event_files.estimate import LogEstimate, estimate_log
from dp_transforms.event_files.log_chunk import EventFields, EventFileError, LogChunk, ReadBlock

__all__ = [
    "EventFields",
    "EventFileError",
    "LogChunk",
    "LogEstimate",
    "ReadBlock",
    "estimate_log",
    "find_log_chunks",
    "hint_of_log",
    "read_log_chunk",
]
