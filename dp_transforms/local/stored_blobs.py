"""Where packed columns lie between two steps: outside of any heap, in two files that all processes of a replay have.

One is in memory (Linux: memfd), one on disk. Neither has a name: nobody else can open them, and the system takes them
back when the processes end, however they end. What is read travels as a *handle*, a few bytes that say where it lies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
from multiprocessing import reduction
from typing import Any, NamedTuple

from dp_transforms.errors import PoolError

_MAGIC = b"SHHB"  # packed columns begin with another word (`core.columns`)
_HANDLE = struct.Struct("<4s?qq")
_LEAST_STORED = 4096  # smaller blobs travel themselves
_LEAST_MAPPED = 1 << 20  # smaller ones are read faster than mapped
_PAGE = mmap.PAGESIZE


class _Place(NamedTuple):
    on_disk: bool
    offset: int
    length: int


class BlobStore:
    """The two files. most_bytes: so much is in memory, about; the rest goes to the folder for temporary files (TMPDIR).

    It can be pickled for a process that is being started, which then has the same files. Raises OSError.
    """

    def __init__(self, most_bytes: int) -> None:
        on_disk = _file_without_name()
        in_memory = os.memfd_create("shh", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _file_without_name()
        self._files, self._most_bytes = (in_memory, on_disk), most_bytes

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (self._most_bytes, *map(reduction.DupFd, self._files))

    @property
    def bytes_in_memory(self) -> int:
        """Of all that is stored now."""
        return os.fstat(self._files[False]).st_blocks * 512

    @property
    def bytes_on_disk(self) -> int:
        """Of all that was ever stored."""
        return os.fstat(self._files[True]).st_size

    def put(self, blob: bytes) -> bytes:
        """A handle of the blob, or the blob itself if it is small. Raises PoolError if there is no space."""
        if len(blob) < _LEAST_STORED:
            return blob
        on_disk = self.bytes_in_memory + len(blob) > self._most_bytes
        file = self._files[on_disk]
        try:
            offset = _take_space(file, len(blob))
            rest = memoryview(blob)
            while rest:
                rest = rest[os.pwrite(file, rest, offset + len(blob) - len(rest)) :]
        except OSError as error:
            where = f"in {tempfile.gettempdir()} (TMPDIR)" if on_disk else "in memory"
            raise PoolError(
                f"what lies between two steps cannot be stored {where}: {error.strerror}; nothing was published. Give"
                f" {'TMPDIR a folder with more space, or more' if on_disk else 'less'} --memory."
            ) from None
        return _HANDLE.pack(_MAGIC, on_disk, offset, len(blob))

    def get(self, blob: bytes) -> bytes | memoryview:
        """What `put` was given. Raises OSError or ValueError if it is not there any more.

        A large one is a view of its file, and takes no memory of this process: pages of a file on disk are the
        system's, which takes them back when it needs them."""
        place = _place_of(blob)
        if place is None:
            return blob
        file = self._files[place.on_disk]
        if place.length >= _LEAST_MAPPED:
            return memoryview(mmap.mmap(file, place.length, access=mmap.ACCESS_READ, offset=place.offset))
        found = os.pread(file, place.length, place.offset)
        if len(found) < place.length:
            raise ValueError("a stored blob is not there any more.")
        return found

    def free(self, blob: bytes) -> None:
        """Gives its space back, where the system can. It reads as zeros from then on, which are no packed columns."""
        place = _place_of(blob)
        if place is None or not hasattr(mmap, "MADV_REMOVE"):
            return
        file, length = self._files[place.on_disk], _whole_pages(place.length)
        with contextlib.suppress(OSError), mmap.mmap(file, length, offset=place.offset) as view:
            view.madvise(mmap.MADV_REMOVE)  # not every file system has holes

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def _received(most_bytes: int, *files: Any) -> BlobStore:
    store = BlobStore.__new__(BlobStore)
    in_memory, on_disk = (file.detach() for file in files)
    store._files, store._most_bytes = (in_memory, on_disk), most_bytes
    return store


def _file_without_name() -> int:
    with tempfile.TemporaryFile() as file:  # mode 0600, and without a name from the beginning
        return os.dup(file.fileno())


def _take_space(file: int, length: int) -> int:
    """Where so many bytes go, that no other process takes."""
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        offset = os.fstat(file).st_size
        os.ftruncate(file, offset + _whole_pages(length))
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
    return offset


def _whole_pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _place_of(blob: bytes) -> _Place | None:
    """Of a handle; None for a blob itself."""
    if len(blob) != _HANDLE.size or blob[:4] != _MAGIC:
        return None
    return _Place(*_HANDLE.unpack(blob)[1:])
