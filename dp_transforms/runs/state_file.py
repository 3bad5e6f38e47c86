"""The state of a run between two of its parts: one sealed file, which is written once, by the part that leaves it.

It has what each user has left and which items are followed, as chunks (`core.state_chunks`), in an Arrow IPC file: each
chunk a record batch of one row with its kind, its bucket and its SHA-256; the header as JSON in the metadata of the
schema. The last row, of kind ``end``, has the SHA-256 of the header and of all rows before it. So a file that was cut,
damaged or put together from others is found, and a worker that needs a few chunks reads and checks these alone. It is
read and not mapped: a file that is cut while it is open is an error then, and not the end of the process. The chunk of
the last row is the *seal*, HMAC-SHA256 of that digest by a key of the run (`fingerprints.sealing_key`): who can write
to the file and does not have the noise key cannot make another state. Every process that begins a part checks it, and
tells its workers the fingerprint of the state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import hmac
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from dp_transforms.checks import on_one_line, without_secrets
from dp_transforms.core.columns import Packed
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.state_chunks import BUCKETS, MOST_CHUNK_BYTES, Kind, join_chunks, unpack_chunk
from dp_transforms.runs.records import StateError
from dp_transforms.stores.local_files import mode_for_others, new_on_disk, open_regular

FORMAT_VERSION = 5
_HEADER_KEY = b"shh.state"
_END = "end"
_KINDS = frozenset(Kind)
_DIGEST_BYTES = 32
_MOST_HEADER_BYTES = 1 << 14
_MOST_ROWS = 1_000_000  # chunks have about 10 MB; far beyond any use
_MODE = 0o600
_FIELDS = [
    pa.field("kind", pa.string(), nullable=False),
    pa.field("bucket", pa.int32(), nullable=False),
    pa.field("sha256", pa.binary(_DIGEST_BYTES), nullable=False),
    pa.field("cell", pa.large_binary(), nullable=False),
]
_BACKUP = (
    " Take it from a backup that was made after the latest report; without one begin a new run with a new state file,"
    " which costs its full price."
)
_DAMAGED = f"it is damaged or cut, or not a state of this version of shh.{_BACKUP}"


@dataclasses.dataclass(frozen=True)
class StateHeader:
    """run_id: of the run, about which its ledger knows all else. closed_through: the windows before this one are
    published. population: under which a shared ledger accounts for the run; "" if its ledger is its own."""

    run_id: str
    closed_through: int
    population: str = ""
    version: int = FORMAT_VERSION


class Row(NamedTuple):
    """A chunk. position: which record batch it is."""

    kind: Kind
    bucket: int
    digest: bytes
    position: int


class StateFile:
    """A state, open for reading until nothing refers to it.

    path: its own path. rows: all chunks, by kind and bucket. fingerprint: hex SHA-256 of the header and all chunks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises StateError for a file that is missing, open to others, damaged, or of another version."""
        self.path = os.fspath(path)
        with self._errors():
            self._reader, heads = _open(self.path)
            text = (self._reader.schema.metadata or {}).get(_HEADER_KEY, b"")
            if list(self._reader.schema.remove_metadata()) != _FIELDS or len(text) > _MOST_HEADER_BYTES:
                raise StateError(_DAMAGED)
            try:
                self.header = msgspec.json.decode(text, type=StateHeader)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                raise StateError(_DAMAGED) from None
            if self.header.version != FORMAT_VERSION or self.header.closed_through < 0:
                raise StateError(_DAMAGED)
            self.rows = self._read_rows(text, heads)

    def cell(self, row: Row) -> memoryview:
        """Raises StateError if the chunk is not the one that was written."""
        with self._errors():
            content = self._content(row.position)
            if hashlib.sha256(content).digest() != row.digest:
                raise StateError(_DAMAGED)
        return content

    def check_seal(self, key: bytes) -> None:
        """Raises StateError unless the header and the rows are those that somebody sealed who has the key. Chunks are
        checked when they are read. key: of `fingerprints.sealing_key`."""
        if not hmac.compare_digest(self._seal, _seal(key, bytes.fromhex(self.fingerprint))):
            with self._errors():
                raise StateError(
                    "it is not sealed with this noise key: its run has another noise key, or the file was changed, or"
                    f" made by somebody who does not have the key.{_BACKUP}"
                )

    def cells_of(self, kind: Kind, buckets: Iterable[int] = range(BUCKETS)) -> Iterator[memoryview]:
        """The chunks of a kind, in these buckets."""
        wanted = set(buckets)
        return (self.cell(row) for row in self.rows if row.kind is kind and row.bucket in wanted)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StateError as error:
            raise at_path(self.path, error) from None

    def _content(self, position: int) -> memoryview:
        _, offsets, content = _batch(self._reader, position).column("cell").buffers()
        length = int.from_bytes(memoryview(offsets)[8:16], "little")
        if length > MOST_CHUNK_BYTES:
            raise StateError(_DAMAGED)
        return memoryview(content or b"")[:length]

    def _read_rows(self, header: bytes, heads: pa.RecordBatchFileReader) -> list[Row]:
        """All rows but the last one, which must fit to them. heads: reads them without their chunks."""
        count = heads.num_record_batches
        if not 0 < count <= _MOST_ROWS:
            raise StateError(_DAMAGED)
        chain, rows = _Chain(header), list[Row]()
        for position in range(count):
            kind, bucket, digest = (column[0].as_py() for column in _batch(heads, position).columns)
            if kind == _END:
                self.fingerprint, self._seal = chain.digest().hex(), bytes(self._content(position))
                if position != count - 1 or digest != chain.digest() or len(self._seal) != _DIGEST_BYTES:
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
    """A new file with mode 0600, on the disk when this returns. cells: ``(kind, bucket, chunk)``, in order. key: by
    which it is sealed.

    Raises OSError; FileExistsError if the name exists. Then or if `cells` fails, no file remains.
    """
    text = msgspec.json.encode(header)
    schema = pa.schema(_FIELDS, metadata={_HEADER_KEY: text})
    chain = _Chain(text)
    with new_on_disk(path, _MODE) as file, pa.ipc.new_file(file, schema) as writer:
        for kind, bucket, cell in cells:
            digest = hashlib.sha256(cell).digest()
            chain.add(kind, bucket, digest)
            writer.write_batch(_row_batch(schema, kind, bucket, digest, bytes(cell)))
        writer.write_batch(_row_batch(schema, _END, 0, chain.digest(), _seal(key, chain.digest())))


def write_next_state(
    path: str | os.PathLike[str],
    header: StateHeader,
    part: RunPart,
    handed_over: Iterable[bytes],
    forget_after: int,
    key: bytes,
) -> None:
    """What a part has changed, joined with the state before it, as the file of the state after it. Raises OSError.

    handed_over: packed by `pack_chunk`. forget_after: followed items that were named longer ago than so many windows
    are forgotten. key: `sealing_key`.

    The file is a function of the header, of the state before and of what the part has changed, whatever the number of
    shards. Chunks that nobody changed are copied.
    """
    changed: dict[tuple[Kind, int], list[Packed]] = {}
    for data in handed_over:
        kind, bucket, cell = unpack_chunk(data)
        changed.setdefault((kind, bucket), []).append(cell)
    write_state(path, header, _joined(part, changed, part.end - forget_after), key)


def _joined(
    part: RunPart, changed: dict[tuple[Kind, int], list[Packed]], named_from: int
) -> Iterator[tuple[Kind, int, Packed]]:
    """All chunks after the part, in order; one bucket at a time. named_from: as in `join_chunks`."""
    state = part.state() if isinstance(part, StoredPart) else None
    rows = [] if state is None else state.rows
    for kind, bucket in sorted({*changed, *((row.kind, row.bucket) for row in rows)}):
        before: list[Packed] = [] if state is None else list(state.cells_of(kind, [bucket]))
        is_copied = (kind, bucket) not in changed and not kind.is_of_items
        cells = before if is_copied else [*before, *changed.get((kind, bucket), [])]
        for cell in cells if is_copied else join_chunks(kind, cells, named_from=named_from):
            yield kind, bucket, cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPart(RunPart):
    """The windows ``first .. end - 1`` of a run, and where the state before them is. Each method raises StateError for
    a file that cannot be used.

    state_path: a file that every worker can read. state_fingerprint: of that state: a worker that finds another one
        refuses it.
    """

    state_path: str
    state_fingerprint: str

    def state(self) -> StateFile:
        """The state before the part."""
        return _opened(self)

    def chunks(self, kind: Kind, buckets: Sequence[int]) -> list[memoryview]:
        return list(self.state().cells_of(kind, buckets))


@functools.lru_cache(maxsize=1)
def _opened(part: StoredPart) -> StateFile:
    """The state that this process read last, so that each of its chunks is checked once and not for each shard."""
    state = StateFile(part.state_path)
    if state.fingerprint != part.state_fingerprint or state.header.closed_through != part.first:
        reason = "it is not the state that this part began with. Do not change it while a part runs."
        raise at_path(part.state_path, StateError(reason))
    return state


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


def at_path(path: str, error: StateError) -> StateError:
    """The error with the path of the file at its head."""
    return StateError(f"the state {on_one_line(without_secrets(path))}: {error}")


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


def _row_batch(schema: pa.Schema, *row: object) -> pa.RecordBatch:
    columns = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _open(path: str) -> tuple[pa.RecordBatchFileReader, pa.RecordBatchFileReader]:
    """What reads whole rows, and what reads all of them but the chunk."""
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
    except (pa.ArrowException, OSError, MemoryError):  # MemoryError: for more bytes than any chunk has
        pass
    raise StateError(_DAMAGED)
