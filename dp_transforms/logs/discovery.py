"""From the sources that the user names (files, folders, globs) to chunks of checked logs, and to blocks of events.

Large chunks are cut, so that many workers have work, and small ones are joined, so that each message to a shard is
about many events. A message costs as much as some hundred events, whatever it holds, and a block becomes one for each
shard. So events of small blocks wait until half a million are together, and small chunks are read one after the other
as if they were one. What is released does not depend on it: pairs are distinct, their amounts add up in any order, and
which of them count is decided where all pairs of a user are (`core.contributions`, `core.steps`).
"""

from __future__ import annotations

import dataclasses
import glob
import heapq
import importlib
import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dp_transforms.core.event_batch import EventBatch, concatenate
from dp_transforms.logs import id_columns
from dp_transforms.logs.log_chunk import EventFields, EventFileError, FileState, LogChunk, ReadBlock, unchanged
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile, find_files, is_remote

_TEXTS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
_FORMAT_OF_ENDING = {".parquet": "parquet", ".pq": "parquet", ".avro": "avro", **_TEXTS}
_FORMAT_OF_ENDING |= {f"{ending}.gz": form for ending, form in _TEXTS.items()}
_OF_A_LOG = (
    "If it is JSON lines, let its name end in .jsonl. Else make CSV of it, with names such as user,item,timestamp;"
    " shh doctor {0} says how for an access log."
)
_CONVERTED = {
    **dict.fromkeys((".log", ".log.gz"), _OF_A_LOG),
    ".zip": "Unpack it: unzip {0}",
    ".xlsx": "Save the sheet as CSV (UTF-8) in the spreadsheet.",
    ".xls": "Save the sheet as CSV (UTF-8) in the spreadsheet.",
}
_AT_ONCE = 16  # stored files whose heads are read at the same time
_MODULES = {"parquet": "parquet", "avro": "avro", "csv": "csv_lines", "json": "json_lines"}
PARTS_PER_WORKER = 4  # the last part to end keeps the others waiting
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
    chunks: list[LogChunk] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # to look into a stored file takes as long as the store takes to answer
        for is_local, logs in itertools.groupby(find_log_files(sources), key=lambda log: log[1] is None):
            while some := list(itertools.islice(logs, 64 * _AT_ONCE)):
                paths, stored = zip(*some, strict=True)
                look = map if is_local else pool.map
                chunks += itertools.chain.from_iterable(look(_seen_chunks, paths, stored, itertools.repeat(fields)))
    return chunks


def _seen_chunks(path: str, stored: StoredFile | None, fields: EventFields) -> list[LogChunk]:
    """What is read of a local file must be what was found."""
    seen = FileState.of(path) if stored is None else None
    with unchanged(path, seen):
        chunks = _chunks_of(path, stored, fields)
    if stored is None and seen is None:
        raise EventFileError(path, "it was not there for a moment. Use files that nobody writes to any more.")
    return [dataclasses.replace(chunk, seen=seen) for chunk in chunks]


def _chunks_of(path: str, stored: StoredFile | None, fields: EventFields) -> list[LogChunk]:
    try:
        chunks: list[LogChunk] = module_of_format(format_of_log(path)).find_chunks(path, fields, stored)
    except RemoteFileError as error:
        raise EventFileError(path, f"it cannot be read: {error.strerror}.") from None
    return chunks


def find_log_files(sources: Sequence[str]) -> Iterator[tuple[str, StoredFile | None]]:
    """The files of all logs among ``sources`` (as in `find_log_chunks`), without a look into them. Raises
    EventFileError for sources without logs."""
    if not sources:
        raise EventFileError("sources", "none given. Name a file, a folder or a glob.")
    yield from ((path, None) for path in _find_files([source for source in sources if not is_remote(source)]))
    yield from ((file.url, file) for file in list_stored_logs([source for source in sources if is_remote(source)]))


def format_of_log(path: str) -> str:
    """``parquet``, ``avro``, ``csv`` or ``json``. Raises EventFileError for other endings."""
    found = _format(path)
    remedy = next((words for ending, words in _CONVERTED.items() if path.lower().endswith(ending)), None)
    if remedy is not None:
        raise EventFileError(path, f"it cannot be read as it is. {remedy.format(shlex.quote(path))}")
    if found is None:
        endings = ", ".join(_FORMAT_OF_ENDING)
        raise EventFileError(path, f"its ending is not that of a known format. Let it end in one of {endings}.")
    return found


def list_stored_logs(sources: Sequence[str]) -> Iterator[StoredFile]:
    """The logs among ``sources``, which are URLs, each once, in the order of their URLs; in constant memory."""
    listed = heapq.merge(*map(_stored_logs, sources), key=lambda file: file.url)
    for _, same in itertools.groupby(listed, key=lambda file: file.url):
        yield next(same)


def find_file_chunks(path: str, fields: EventFields) -> list[LogChunk]:
    """The chunks of one file, none if it has no events. Raises EventFileError if it cannot be read."""
    return _chunks_of(_checked_file(path), None, fields)


def is_log_name(path: str) -> bool:
    """Whether a file of this name is read when its folder is a source: not hidden, and with the ending of a format."""
    return not _is_hidden(path) and _format(path) is not None


def read_log_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows of a chunk, in order, in blocks of at most about a million: constant memory for any size. Raises
    EventFileError, also at the end if the file was changed since it was found."""
    with unchanged(chunk.path, chunk.seen):
        yield from module_of_format(chunk.format).read_chunk(chunk, fields)


def module_of_format(format_name: str) -> Any:
    """Only the formats in use are imported."""
    return importlib.import_module(f"dp_transforms.logs.{_MODULES[format_name]}")


def ending_of_log(path: str) -> str:
    """All of a file's name that decides how it is read: its format, delimiter and compression; "" for other files."""
    name = os.path.basename(path).lower()
    return max((ending for ending in _FORMAT_OF_ENDING if name.endswith(ending)), key=len, default="")


def _format(path: str) -> str | None:
    return _FORMAT_OF_ENDING.get(ending_of_log(path))


def _find_files(sources: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for source in sources:
        for path in sorted(_files_of(source)):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _files_of(source: str) -> list[str]:
    if os.path.exists(source) and not os.path.isdir(source):
        return [_checked_file(source)]
    found = [source] if os.path.isdir(source) else glob.glob(source, recursive=True) if glob.has_magic(source) else []
    if not found:
        raise _nothing_there(source)
    files: list[str] = []
    for path in found:
        if not os.path.isdir(path):
            files += [_checked_file(path)] if is_log_name(path) else []
        elif path == source or not _is_hidden(path):
            files += _logs_below(path)
    if not files:
        raise _no_log_in_it(source)
    return files


def _stored_logs(source: str) -> Iterator[StoredFile]:
    """Of one URL. Raises EventFileError if there are none."""
    is_empty, has_log = True, False
    try:
        for file in find_files(source):
            is_empty = False
            if file.url == source:
                format_of_log(source)
            if file.url == source or is_log_name(file.url):
                has_log = True
                yield file
    except OSError as error:
        raise EventFileError(source, f"it cannot be read: {error.strerror}.") from None
    if not has_log:
        raise _nothing_there(source) if is_empty else _no_log_in_it(source)


def _logs_below(folder: str) -> list[str]:
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        files += [_checked_file(os.path.join(parent, name)) for name in names if is_log_name(name)]
    return files


def _is_hidden(path: str) -> bool:
    """Hidden, or a name such as ``_SUCCESS`` or ``_temporary``."""
    return os.path.basename(path.rstrip(os.sep)).startswith((".", "_"))


def _checked_file(path: str) -> str:
    format_of_log(path)
    if not os.path.isfile(path):
        raise EventFileError(path, "it is not a regular file. Copy its content to a file first.")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise EventFileError(path, f"it cannot be read ({error.strerror}). Check its permissions.") from None
    return path


def _nothing_there(source: str) -> EventFileError:
    problem = "there is no such file or folder. Check the name."
    if glob.has_magic(source):
        problem = "the pattern matches no file. Check it, and put it in quotes so that the shell does not expand it."
    return EventFileError(source, problem)


def _no_log_in_it(source: str) -> EventFileError:
    return EventFileError(source, f"there is no log in it. Logs end in {', '.join(_FORMAT_OF_ENDING)}.")


def cut_chunks(chunks: Sequence[LogChunk], workers: int) -> list[LogChunk]:
    """The same rows, with the same positions, in chunks for so many workers at once; the same ones each time.

    A chunk is cut if it is more than a quarter of a worker's share: row groups of more than a million rows, Avro files
    that are not in a store, JSON lines, and CSV without line ends in cells; text that is not packed. What was cut is
    not cut again.
    """
    if workers < 2:
        return list(chunks)
    share = max(1, sum(chunk.bytes for chunk in chunks) // (PARTS_PER_WORKER * workers))
    return [part for chunk in chunks for part in _cut(chunk, -(-chunk.bytes // share), workers)]


def _cut(chunk: LogChunk, parts: int, workers: int) -> list[LogChunk]:
    if chunk.groups is not None:
        parts = min(parts, workers)  # each part of a row group skips what is before it
    if parts < 2 or chunk.span is not None:
        return [chunk]
    cut: list[LogChunk] = module_of_format(chunk.format).cut_chunk(chunk, parts)
    return cut


@dataclasses.dataclass(frozen=True)
class JoinedChunks:
    """Chunks that one worker reads, one after the other; at least one."""

    chunks: tuple[LogChunk, ...]


def spread_chunks(chunks: Sequence[LogChunk], workers: int) -> list[JoinedChunks]:
    """The same rows, with the same positions, for so many workers at once; the same ones each time.

    Large chunks are cut (`cut_chunks`). Neighbours are joined as long as they have half a million rows at most, and a
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
            yield dataclasses.replace(block, batch=id_columns.empty_batch())
            continue
        batch = concatenate(waiting)
        waiting, rows, size = [], 0, 0
        yield dataclasses.replace(block, batch=batch)
        del batch  # before the next block is read
    if waiting:
        yield ReadBlock(concatenate(waiting), (), 0, 0)


def _rows(chunk: LogChunk) -> int:
    return chunk.bytes // _BYTES_PER_ROW if chunk.events is None else chunk.events


def _bytes(batch: EventBatch) -> int:
    return int(batch.user.nbytes + batch.item.nbytes + batch.time_micros.nbytes)
