"""From the sources that the user names (files, folders, globs) to chunks of checked logs, and to blocks of events.

Large texts are cut, so that many workers have work, and small chunks are joined, so that each message to a shard is
about many events. A message costs as much as some hundred events, whatever it holds, and a block becomes one for each
shard. So events of small blocks wait until half a million are together, and small chunks are read one after the other
as if they were one. What is released does not depend on it: pairs are distinct, and which of them count is decided
where all pairs of a user are (`core.contributions`, `core.steps`).
"""

from __future__ import annotations

import dataclasses
import glob
import importlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dp_transforms.core.event_batch import EventBatch, concatenate
from dp_transforms.logs import id_columns
from dp_transforms.logs.log_chunk import EventFields, EventFileError, FileState, LogChunk, ReadBlock, check_unchanged
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.stores.local_files import open_regular
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile, find_files, is_remote

_TEXTS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
_FORMAT_OF_ENDING = {".parquet": "parquet", ".pq": "parquet", ".avro": "avro", **_TEXTS}
_FORMAT_OF_ENDING |= {f"{ending}.gz": form for ending, form in _TEXTS.items()}
_ENDINGS = ", ".join(_FORMAT_OF_ENDING)
_AT_ONCE = 16  # files whose heads are read at the same time: to look into a stored one takes as long as it answers
_MODULES = {"parquet": "parquet", "avro": "avro", "csv": "csv_lines", "json": "json_lines"}
PARTS_PER_WORKER = 4  # the last part to end keeps the others waiting
_LEAST_BYTES = 4 << 20  # of a part of a text
JOINED_ROWS = 500_000
_JOINED_BYTES = 32 << 20  # of columns: rows may be wide
_BYTES_PER_ROW = 64  # of chunks that do not say how many rows they have: so 32 MB of them at most


def find_log_chunks(sources: Sequence[str], fields: EventFields) -> list[LogChunk]:
    """The chunks of all logs among ``sources``, by path.

    sources: files, folders and globs, local or by URL (`stores.remote_files`). In a folder, hidden files, those that
        begin with ``_`` and those with other endings are ignored. A file that several sources name is read once.
    Logs without events have no chunks, or chunks without rows. That is not an error, because it could depend on one
    user's event. Raises EventFileError for sources without logs and for headers and schemas that cannot be used.
    """

    def look(file: tuple[str, StoredFile | None]) -> list[LogChunk]:
        path, stored = file
        seen = FileState.of(path) if stored is None else None  # before the look: what changes later is noticed
        return [dataclasses.replace(chunk, seen=seen) for chunk in _chunks_of(path, stored, fields)]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [*itertools.chain.from_iterable(pool.map(look, find_log_files(sources)))]


def _chunks_of(path: str, stored: StoredFile | None, fields: EventFields) -> list[LogChunk]:
    try:
        chunks: list[LogChunk] = _module_of(format_of_log(path)).find_chunks(path, fields, stored)
    except RemoteFileError as error:
        raise EventFileError(path, f"it cannot be read: {error.strerror}.") from None
    return chunks


def find_file_chunks(path: str, fields: EventFields) -> list[LogChunk]:
    """The chunks of one local file. Raises EventFileError if it cannot be read."""
    return _chunks_of(_checked_file(path), None, fields)


def read_log_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows of a chunk, in order, in blocks of at most about a million: constant memory for any size. Raises
    EventFileError, also at the end if the file was changed since it was found."""
    try:
        yield from _module_of(chunk.format).read_chunk(chunk, fields)
    except EventFileError:
        check_unchanged([chunk])  # else the damage came of the change
        raise
    check_unchanged([chunk])


def _module_of(format_name: str) -> Any:
    """Only the formats in use are imported."""
    return importlib.import_module(f"dp_transforms.logs.{_MODULES[format_name]}")


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


def find_log_files(sources: Sequence[str]) -> list[tuple[str, StoredFile | None]]:
    """The files of all logs among ``sources`` (as in `find_log_chunks`), without a look into them. Raises
    EventFileError for sources without logs."""
    if not sources:
        raise EventFileError("sources", "none given. Name a file, a folder or a glob.")
    local: dict[str, str] = {}
    stored: dict[str, StoredFile] = {}
    for source in sources:
        if is_remote(source):
            stored |= {file.url: file for file in _stored_logs(source)}
        else:
            for path in sorted(_local_logs(source)):
                local.setdefault(os.path.realpath(path), path)
    return [*((path, None) for path in sorted(local.values())), *sorted(stored.items())]


def format_of_log(path: str) -> str:
    """``parquet``, ``avro``, ``csv`` or ``json``. Raises EventFileError for other endings."""
    if ending := ending_of_log(path):
        return _FORMAT_OF_ENDING[ending]
    raise EventFileError(
        path,
        f"its ending is not that of a known format, {_ENDINGS}. If it is JSON lines, let its name end in .jsonl; of an"
        " access log shh doctor makes CSV; write others as Parquet.",
    )


def ending_of_log(path: str) -> str:
    """All of a file's name that decides how it is read: its format, delimiter and compression; "" for other files."""
    name = os.path.basename(path).lower()
    return max((ending for ending in _FORMAT_OF_ENDING if name.endswith(ending)), key=len, default="")


def is_log_name(path: str) -> bool:
    """Whether a file of this name is read when its folder is a source: not hidden, and with the ending of a format."""
    return not _is_hidden(path) and ending_of_log(path) != ""


def _is_hidden(path: str) -> bool:
    """Hidden, or a name such as ``_SUCCESS`` or ``_temporary``."""
    return os.path.basename(path.rstrip(os.sep)).startswith((".", "_"))


def _local_logs(source: str) -> list[str]:
    if os.path.exists(source) and not os.path.isdir(source):
        return [_checked_file(source)]
    found = [source] if os.path.isdir(source) else glob.glob(source, recursive=True)
    files: list[str] = []
    for path in found:
        if not os.path.isdir(path):
            files += [path] if is_log_name(path) else []
        elif path == source or not _is_hidden(path):
            for parent, folders, names in os.walk(path):
                folders[:] = [name for name in folders if not _is_hidden(name)]
                files += [os.path.join(parent, name) for name in names if is_log_name(name)]
    if not files:
        raise _no_log(source, is_empty=not found)
    return [_checked_file(path) for path in files]


def _stored_logs(source: str) -> list[StoredFile]:
    try:
        found = [*find_files(source)]
    except OSError as error:
        raise EventFileError(source, f"it cannot be read: {error.strerror}.") from None
    if [file.url for file in found] == [source]:
        format_of_log(source)
    logs = [file for file in found if file.url == source or is_log_name(file.url)]
    if not logs:
        raise _no_log(source, is_empty=not found)
    return logs


def _checked_file(path: str) -> str:
    format_of_log(path)
    try:
        open_regular(path).close()
    except OSError as error:
        raise EventFileError(path, f"it cannot be read: {error.strerror}. Name a file that can.") from None
    return path


def _no_log(source: str, *, is_empty: bool) -> EventFileError:
    if is_empty:
        return EventFileError(source, "there is no such file or folder. Check the name, and put a pattern in quotes.")
    return EventFileError(source, f"there is no log in it. Logs end in {_ENDINGS}.")


# ---------------------------------------------------------------------------------------------------------------------
# Chunks for workers
# ---------------------------------------------------------------------------------------------------------------------


def cut_chunks(chunks: Sequence[LogChunk], workers: int) -> list[LogChunk]:
    """The same rows, with the same positions, in chunks for so many workers at once; the same ones each time.

    A text that is not packed is cut if it is more than a quarter of a worker's share, into parts of 4 MB or more. What
    was cut is not cut again.
    """
    if workers < 2:
        return list(chunks)
    share = max(1, sum(chunk.bytes for chunk in chunks) // (PARTS_PER_WORKER * workers))
    return [
        part for chunk in chunks for part in _cut(chunk, min(-(-chunk.bytes // share), chunk.bytes // _LEAST_BYTES))
    ]


def _cut(chunk: LogChunk, parts: int) -> list[LogChunk]:
    if parts < 2 or chunk.span is not None or chunk.is_packed or chunk.format not in _TEXTS.values():
        return [chunk]
    ends = [chunk.bytes * number // parts for number in range(parts + 1)]
    return [dataclasses.replace(chunk, bytes=end - begin, span=(begin, end)) for begin, end in itertools.pairwise(ends)]


@dataclasses.dataclass(frozen=True)
class JoinedChunks:
    """Chunks that one worker reads, one after the other; at least one."""

    chunks: tuple[LogChunk, ...]


def spread_chunks(chunks: Sequence[LogChunk], workers: int) -> list[JoinedChunks]:
    """The same rows, with the same positions, for so many workers at once; the same ones each time.

    Large texts are cut (`cut_chunks`). Neighbours are joined as long as they have half a million rows at most, and a
    quarter of a worker's share.
    """
    share = sum(chunk.bytes for chunk in chunks) // (PARTS_PER_WORKER * workers) if workers > 1 else None
    joined: list[JoinedChunks] = []
    some: list[LogChunk] = []
    rows = size = 0
    for chunk in cut_chunks(chunks, workers):
        rows, size = rows + _rows(chunk), size + chunk.bytes
        if some and (rows > JOINED_ROWS or (share is not None and size > share)):
            joined.append(JoinedChunks(tuple(some)))
            some, rows, size = [], _rows(chunk), chunk.bytes
        some.append(chunk)
    return [*joined, JoinedChunks(tuple(some))] if some else joined


def _rows(chunk: LogChunk) -> int:
    return chunk.bytes // _BYTES_PER_ROW if chunk.events is None else chunk.events


def read_joined(joined: JoinedChunks, fields: EventFields) -> Iterator[ReadBlock]:
    """The blocks of all chunks. Raises EventFileError."""
    blocks = itertools.chain.from_iterable(read_log_chunk(chunk, fields) for chunk in joined.chunks)
    return join_blocks(blocks, JOINED_ROWS)


def join_blocks(blocks: Iterable[ReadBlock], most_rows: int) -> Iterator[ReadBlock]:
    """The same blocks, but events of small ones come later, with those of the next ones, once there are ``most_rows``
    of them or 32 MB of columns. So no batch has twice as much, unless the block that it came with has.

    What else blocks say, such as rejected rows, does not wait: it may take more memory than events.
    """
    waiting: list[EventBatch] = []
    rows = size = 0
    for block in blocks:
        count, width = len(block.batch), _bytes(block.batch)
        if count >= most_rows or width >= _JOINED_BYTES:
            yield block
            continue
        if count:
            waiting.append(block.batch)
            rows, size = rows + count, size + width
        if rows < most_rows and size < _JOINED_BYTES:
            yield block._replace(batch=id_columns.empty_batch())
            continue
        batch = concatenate(waiting)
        waiting, rows, size = [], 0, 0
        yield block._replace(batch=batch)
        del batch  # before the next block is read
    if waiting:
        yield ReadBlock(concatenate(waiting))


def _bytes(batch: EventBatch) -> int:
    return int(batch.user.nbytes + batch.item.nbytes + batch.time_micros.nbytes)


def count_unless_inside(
    chunks: Sequence[LogChunk], fields: EventFields, schedule: WindowSchedule
) -> tuple[int, int] | None:
    """None if an event is inside the range; else how many events there are, and how many rows that cannot be read. All
    of the log is read only to find that none is. Raises EventFileError."""
    events = rejected = 0
    for block in itertools.chain.from_iterable(read_log_chunk(chunk, fields) for chunk in chunks):
        if (schedule.first_window(block.batch.time_micros) >= 0).any():
            return None
        events += len(block.batch)
        rejected += block.rows - len(block.batch)
    return events, rejected
