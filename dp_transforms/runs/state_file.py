"""The container of a state: an Arrow IPC file, in which each cell is a record batch of one row.

The header is JSON in the metadata of the schema. Each row has the kind of its cell, its bucket, and the SHA-256 of the
cell; the last row, of kind ``end``, has the SHA-256 of the header and of all rows before it. So a file that was cut,
damaged or put together from others is found, and a worker that needs a few cells reads and checks these alone. It is
read and not mapped: a file that is cut while it is open is an error then, and not the end of the process. The cell
of the last row is the *seal*, HMAC-SHA256 of that digest by a key of the run (`fingerprints.sealing_key`): who can
write to the file and does not have the noise key cannot make another state. Every process that begins a part checks it,
and tells its workers the fingerprint of the state.

A file is never changed. A new state is written beside it, synced, and put in its place in one step, by one process at a
time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from dp_transforms.checks import on_one_line
from dp_transforms.core.columns import Packed
from dp_transforms.core.state_chunks import BUCKETS, MOST_CHUNK_BYTES, Kind
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_header import StateHeader, at_path
from dp_transforms.stores.local_files import mode_for_others, new_on_disk, open_regular, sync_folder

_HEADER_KEY = b"shh.state"
_END = "end"
_KINDS = frozenset(Kind)
_DIGEST_BYTES = 32
_MOST_ROWS = 1_000_000  # cells have about 10 MB; far beyond any use
_MODE = 0o600
_FIELDS = [
    pa.field("kind", pa.string(), nullable=False),
    pa.field("bucket", pa.int32(), nullable=False),
    pa.field("sha256", pa.binary(_DIGEST_BYTES), nullable=False),
    pa.field("cell", pa.large_binary(), nullable=False),
]
_DAMAGED = (
    "it is damaged or cut, or not a state of shh. Take it from a backup that was made after the latest report; without"
    " one this run cannot go on: begin a new one with a new state file, which costs its full price."
)
_OTHER_SEAL = (
    "it is not sealed with the noise key of its run: it was changed, or made by somebody who does not have the key."
    " Take it from a backup that was made after the latest report; without one begin a new run with a new state file,"
    " which costs its full price."
)


class Row(NamedTuple):
    """A cell. position: which record batch it is."""

    kind: Kind
    bucket: int
    digest: bytes
    position: int


class StateFile:
    """A state, open for reading until nothing refers to it.

    path: its own path. header: a `StateHeader`. rows: all cells, by kind and bucket. fingerprint: hex SHA-256 of the
    header without the intent, and of all cells: the same for a state before and after its intent is written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises StateError for a file that is missing, open to others, damaged, or of another version."""
        self.path = os.fspath(path)
        try:
            self._reader, heads = _open(self.path)
            text = (self._reader.schema.metadata or {}).get(_HEADER_KEY)
            if text is None or list(self._reader.schema.remove_metadata()) != _FIELDS:
                raise StateError(_DAMAGED)
            self.header = StateHeader.from_json(text)
            self._chain = b""
            self._seal = b""
            self.rows = self._read_rows(text, heads)
        except StateError as error:
            raise at_path(self.path, error) from None
        self.fingerprint = _fingerprint(self.header.with_intent(None).to_json().encode(), self.rows)

    def cell(self, row: Row) -> memoryview:
        """Raises StateError if the cell is not the one that was written."""
        try:
            content = self._content(row.position)
            if hashlib.sha256(content).digest() != row.digest:
                raise StateError(_DAMAGED)
        except StateError as error:
            raise at_path(self.path, error) from None
        return content

    def check_seal(self, key: bytes) -> None:
        """Raises StateError unless the header and the rows are those that somebody sealed who has the key. Cells are
        checked when they are read. key: of `fingerprints.sealing_key`."""
        if not hmac.compare_digest(self._seal, _seal(key, self._chain)):
            raise at_path(self.path, StateError(_OTHER_SEAL))

    def rows_of(self, kind: Kind, buckets: Iterable[int] | None = None) -> list[Row]:
        """The cells of a kind, in these buckets; None: in all."""
        wanted = set(range(BUCKETS) if buckets is None else buckets)
        return [row for row in self.rows if row.kind is kind and row.bucket in wanted]

    def cells_of(self, kind: Kind, buckets: Iterable[int] | None = None) -> Iterator[memoryview]:
        return (self.cell(row) for row in self.rows_of(kind, buckets))

    def _content(self, position: int) -> memoryview:
        _, offsets, content = _batch(self._reader, position).column("cell").buffers()
        length = int.from_bytes(memoryview(offsets)[8:16], "little")
        if length > MOST_CHUNK_BYTES:
            raise StateError(_DAMAGED)
        return memoryview(content or b"")[:length]

    def _read_rows(self, header: bytes, heads: pa.RecordBatchFileReader) -> list[Row]:
        """All rows but the last one, which must fit to them. heads: reads them without their cells."""
        count = heads.num_record_batches
        if not 0 < count <= _MOST_ROWS:
            raise StateError(_DAMAGED)
        chain, rows = _Chain(header), list[Row]()
        for position in range(count):
            kind, bucket, digest = (column[0].as_py() for column in _batch(heads, position).columns)
            if kind == _END:
                self._chain, self._seal = chain.digest(), bytes(self._content(position))
                if position != count - 1 or digest != self._chain or len(self._seal) != _DIGEST_BYTES:
                    raise StateError(_DAMAGED)
                return rows
            if kind not in _KINDS or not 0 <= bucket < BUCKETS:
                raise StateError(_DAMAGED)
            rows.append(Row(Kind(kind), bucket, digest, position))
            chain.add(kind, bucket, digest)
        raise StateError(_DAMAGED)


def write_state(
    path: str | os.PathLike[str], header: StateHeader, cells: Iterable[tuple[Kind, int, Packed]], key: bytes
) -> None:
    """A new file with mode 0600, on the disk when this returns. cells: ``(kind, bucket, cell)``, in order. key: by
    which it is sealed.

    Raises OSError; FileExistsError if the name exists; StateError for a header that is too large, or would be when the
    part that was begun has ended. Then or if `cells` fails, no file remains.
    """
    text = header.to_json().encode()
    if header.intent is not None:
        header.after(header.intent).to_json()
    schema = pa.schema(_FIELDS, metadata={_HEADER_KEY: text})
    chain = _Chain(text)
    with new_on_disk(path, _MODE) as file, pa.ipc.new_file(file, schema) as writer:
        for kind, bucket, cell in cells:
            digest = hashlib.sha256(cell).digest()
            chain.add(kind, bucket, digest)
            writer.write_batch(_row_batch(schema, kind, bucket, digest, bytes(cell)))
        writer.write_batch(_row_batch(schema, _END, 0, chain.digest(), _seal(key, chain.digest())))


def replace_state(draft: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Puts a file of `write_state` in the place of the state, in one step. Raises OSError."""
    os.replace(draft, path)
    sync_folder(pathlib.Path(path))


@contextlib.contextmanager
def hold_state(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the block runs, no other process can hold this state. The lock ends with the process, however it ends.

    The lock is on an empty file beside the state, ``.NAME.lock``, which stays: the state itself is replaced.
    Raises StateError if another process holds it, or the file system has no locks.
    """
    target = pathlib.Path(path)
    lock = target.with_name(f".{target.name}.lock")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock, flags, 0o600)
    except OSError as error:
        reason = f"its lock {lock} cannot be made: {error.strerror}. Check the folder."
        raise at_path(os.fspath(path), StateError(reason)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another process works on it. Wait until it has ended, and try again."
            raise at_path(os.fspath(path), StateError(reason)) from None
        except OSError as error:
            reason = f"its file system has no locks ({error.strerror}). Keep the state on one that has."
            raise at_path(os.fspath(path), StateError(reason)) from None
        yield
    finally:
        os.close(descriptor)


class _Chain:
    """The SHA-256 over a header and the rows after it."""

    def __init__(self, header: bytes) -> None:
        self._hash = hashlib.sha256(len(header).to_bytes(8, "little") + header)

    def add(self, kind: str, bucket: int, digest: bytes) -> None:
        self._hash.update(f"{kind:<16}{bucket:<16}".encode() + digest)

    def digest(self) -> bytes:
        return self._hash.digest()


def _seal(key: bytes, digest: bytes) -> bytes:
    return hmac.digest(key, digest, "sha256")


def _fingerprint(header: bytes, rows: Iterable[Row]) -> str:
    chain = _Chain(header)
    for row in rows:
        chain.add(row.kind, row.bucket, row.digest)
    return chain.digest().hex()


def _row_batch(schema: pa.Schema, *row: object) -> pa.RecordBatch:
    columns = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _open(path: str) -> tuple[pa.RecordBatchFileReader, pa.RecordBatchFileReader]:
    """What reads whole rows, and what reads all of them but the cell."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise StateError(f"it cannot be read: {error.strerror}. Check the path.") from None
    if mode := mode_for_others(file):
        file.close()
        raise StateError(
            f"it can be used by others (mode {mode}), and it is as private as the log. Close it with: chmod 600"
            f" {on_one_line(path)}"
        )
    without_cell = pa.ipc.IpcReadOptions(included_fields=list(range(len(_FIELDS) - 1)))
    try:
        with file:  # Arrow opens it again: a thread of its own that still had one of Python's would abort at the end
            source = pa.OSFile(f"/dev/fd/{file.fileno()}")
        return pa.ipc.open_file(source), pa.ipc.open_file(source, options=without_cell)
    except (pa.ArrowException, OSError, MemoryError):  # whose words may hold some of the bytes
        raise StateError(_DAMAGED) from None


def _batch(reader: pa.RecordBatchFileReader, position: int) -> pa.RecordBatch:
    try:
        batch = reader.get_batch(position)
        if batch.num_rows == 1 and not any(column.null_count for column in batch.columns):
            batch.validate(full=True)
            if not any(column.offset for column in batch.columns):
                return batch
    except (pa.ArrowException, OSError, MemoryError):  # MemoryError: for more bytes than any cell has
        pass
    raise StateError(_DAMAGED)
