"""The state of a run between two of its parts: one sealed file, which is written once, by the part that leaves it.

It has what each user has left and which items are followed, as chunks (`core.state_chunks`): one behind the other, then
an index as JSON, the length of the index, and the *seal*. The index has the header, and of each chunk its kind, its
bucket, its size and its SHA-256: a worker that needs a few chunks reads and checks these alone, and a file that was
cut, damaged or put together from others is found. The seal is HMAC-SHA256 of the index by a key of the run
(`fingerprints.sealing_key`): who can write to the file and does not have the noise key cannot make another state. Every
process that begins a part checks it, and tells its workers the fingerprint of the state: the SHA-256 of the index.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import hmac
import itertools
import os
import pathlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from dp_transforms.checks import on_one_line, without_secrets
from dp_transforms.core.columns import Packed
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.state_chunks import BUCKETS, MOST_CHUNK_BYTES, Kind, join_chunks, unpack_chunk
from dp_transforms.runs.records import StateError
from dp_transforms.stores.local_files import mode_for_others, new_on_disk, open_regular

FORMAT_VERSION = 6
_SEAL_BYTES, _LENGTH_BYTES = 32, 8
_MOST_INDEX_BYTES = 1 << 27  # of a million chunks, which have about 10 MB: far beyond any use
_MODE = 0o600
_BACKUP = " Take it from a backup made after the latest report, or begin a new run, which pays in full."
_DAMAGED = f"it is damaged or cut, or not a state of this version of shh.{_BACKUP}"


@dataclasses.dataclass(frozen=True)
class StateHeader:
    """run_id: of the run, about which its ledger knows all else. closed_through: the windows before this one are
    published. population: under which a shared ledger accounts for the run; "" if its ledger is its own."""

    run_id: str
    closed_through: Annotated[int, msgspec.Meta(ge=0)]
    population: str = ""
    version: int = FORMAT_VERSION


class Row(NamedTuple):
    """A chunk, as the index has it. sha256: in hex."""

    kind: Kind
    bucket: Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_CHUNK_BYTES)]
    sha256: str


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    header: StateHeader
    chunks: list[Row]


class StateFile:
    """A state, open for reading until nothing refers to it.

    path: its own path. rows: all chunks, by kind and bucket. fingerprint: hex SHA-256 of the header and all chunks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises StateError for a file that is missing, open to others, damaged, or of another version."""
        self.path = os.fspath(path)
        try:
            with open_regular(self.path) as file:
                mode, end = mode_for_others(file), os.fstat(file.fileno()).st_size - _SEAL_BYTES - _LENGTH_BYTES
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise state_error(self.path, f"it cannot be read: {error.strerror}. Check the path.") from None
        weakref.finalize(self, os.close, self._descriptor)
        if mode is not None:
            raise state_error(
                self.path, f"others can use it (mode {mode}), and it is as private as the log. Close it with chmod 600."
            )
        tail = self._read(max(0, end), _LENGTH_BYTES + _SEAL_BYTES)
        length, self._seal = int.from_bytes(tail[:_LENGTH_BYTES], "little"), tail[_LENGTH_BYTES:]
        try:
            text = self._read(max(0, end - length), length if length <= min(end, _MOST_INDEX_BYTES) else 0)
            index = msgspec.json.decode(text, type=_Index)
        except (ValueError, RecursionError):  # whose words may hold some of the bytes
            raise state_error(self.path, _DAMAGED) from None
        self.header, self.rows = index.header, index.chunks
        self.fingerprint = hashlib.sha256(text).hexdigest()
        *begins, chunks_end = itertools.accumulate((row.size for row in self.rows), initial=0)
        self._begins = dict(zip(self.rows, begins, strict=True))
        if self.header.version != FORMAT_VERSION or chunks_end + length != end:
            raise state_error(self.path, _DAMAGED)

    def check_seal(self, key: bytes) -> None:
        """Raises StateError unless the header and the rows are those that somebody sealed who has the key. Chunks are
        checked when they are read. key: of `fingerprints.sealing_key`."""
        if not hmac.compare_digest(self._seal, _seal(key, self.fingerprint)):
            raise state_error(self.path, f"it is not sealed with this noise key, or was changed.{_BACKUP}")

    def chunk(self, row: Row) -> bytes:
        """Raises StateError if it is not the one that was written."""
        content = self._read(self._begins[row], row.size)
        if hashlib.sha256(content).hexdigest() != row.sha256:
            raise state_error(self.path, _DAMAGED)
        return content

    def chunks_of(self, kind: Kind, buckets: Iterable[int] = range(BUCKETS)) -> Iterator[bytes]:
        """The chunks of a kind, in these buckets."""
        wanted = set(buckets)
        return (self.chunk(row) for row in self.rows if row.kind is kind and row.bucket in wanted)

    def _read(self, begin: int, size: int) -> bytes:
        """Fewer bytes where the file was cut. Several threads may read at once."""
        return os.pread(self._descriptor, size, begin)


def write_state(
    path: str | os.PathLike[str], header: StateHeader, chunks: Iterable[tuple[Kind, int, Packed]], key: bytes
) -> None:
    """A new file with mode 0600, on the disk when this returns. chunks: ``(kind, bucket, chunk)``, in order. key: by
    which it is sealed.

    Raises OSError; FileExistsError if the name exists. Then or if `chunks` fails, no file remains.
    """
    rows: list[Row] = []
    with new_on_disk(path, _MODE) as file:
        for kind, bucket, chunk in chunks:
            file.write(chunk)
            rows.append(Row(kind, bucket, len(chunk), hashlib.sha256(chunk).hexdigest()))
        index = msgspec.json.encode(_Index(header, rows))
        seal = _seal(key, hashlib.sha256(index).hexdigest())
        file.write(index + len(index).to_bytes(_LENGTH_BYTES, "little") + seal)


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
        kind, bucket, chunk = unpack_chunk(data)
        changed.setdefault((kind, bucket), []).append(chunk)
    write_state(path, header, _joined(part, changed, part.end - forget_after), key)


def _joined(
    part: RunPart, changed: dict[tuple[Kind, int], list[Packed]], named_from: int
) -> Iterator[tuple[Kind, int, Packed]]:
    """All chunks after the part, in order; one bucket at a time. named_from: as in `join_chunks`."""
    state = part.state() if isinstance(part, StoredPart) else None
    rows = [] if state is None else state.rows
    for kind, bucket in sorted({*changed, *((row.kind, row.bucket) for row in rows)}):
        before: list[Packed] = [] if state is None else list(state.chunks_of(kind, [bucket]))
        is_copied = (kind, bucket) not in changed and not kind.is_of_items
        chunks = before if is_copied else [*before, *changed.get((kind, bucket), [])]
        for chunk in chunks if is_copied else join_chunks(kind, chunks, named_from=named_from):
            yield kind, bucket, chunk


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

    def chunks(self, kind: Kind, buckets: Sequence[int]) -> list[bytes]:
        return list(self.state().chunks_of(kind, buckets))


@functools.lru_cache(maxsize=1)
def _opened(part: StoredPart) -> StateFile:
    """The state that this process read last, so that its index is read once and not for each shard."""
    state = StateFile(part.state_path)
    if state.fingerprint != part.state_fingerprint or state.header.closed_through != part.first:
        reason = "it is not the state that this part began with. Do not change it while a part runs."
        raise state_error(part.state_path, reason)
    return state


@contextlib.contextmanager
def hold_state(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the block runs, no other process can hold this state. The lock ends with the process, however it ends.

    The lock is on an empty file beside the state, ``.NAME.lock``, which stays: the state itself is replaced.
    Raises StateError if another process holds it, or the file system has no locks.
    """
    target = pathlib.Path(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(open(os.open(target.with_name(f".{target.name}.lock"), flags, _MODE), "rb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            reason = f"it cannot be locked ({error.strerror}). Wait until no process works on it, or check its folder."
            raise state_error(os.fspath(path), reason) from None
        yield


def state_error(path: str, problem: str) -> StateError:
    """The path is shown on one line, and without secrets."""
    return StateError(f"the state {on_one_line(without_secrets(path))}: {problem}")


def _seal(key: bytes, fingerprint: str) -> bytes:
    return hmac.digest(key, bytes.fromhex(fingerprint), "sha256")
