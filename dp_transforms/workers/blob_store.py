"""Packed columns between two steps, outside of the heap of any process: in memory, and on disk where that is declared.

Each worker writes to two files of its own, and all processes read all of them: one file in memory (Linux: memfd) and
one on disk. Neither has a name: nobody else can open them, and the system takes them back when the processes end,
however they end. What is read travels as a *handle*, a few bytes that say where it lies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

_MAGIC = b"SHHB"  # packed columns begin with another word (`packed_arrays`)
_HANDLE = struct.Struct("<4sIqq")
_LEAST_STORED = 4096  # smaller blobs travel themselves
_LEAST_MAPPED = 1 << 20  # smaller ones are read faster than mapped
_PAGE = mmap.PAGESIZE


class PoolError(RuntimeError):
    """A worker process died or could not be started, or what it makes could not be stored. One line, without a cell."""


class OwnFiles(NamedTuple):
    """The two files of one worker, as file descriptors."""

    memory: int
    disk: int


class StoredBlob(NamedTuple):
    """Where a blob lies. file: number of its file, 2 for each worker."""

    file: int
    offset: int
    length: int

    @property
    def in_memory(self) -> bool:
        return self.file % 2 == 0


def make_files() -> OwnFiles:
    """For one worker. The file on disk is in the folder for temporary files (TMPDIR). Raises OSError."""
    with tempfile.TemporaryFile() as on_disk:  # mode 0600, and without a name from the beginning
        disk = os.dup(on_disk.fileno())
    if hasattr(os, "memfd_create"):
        return OwnFiles(os.memfd_create("shh", os.MFD_CLOEXEC), disk)
    with tempfile.TemporaryFile() as file:
        return OwnFiles(os.dup(file.fileno()), disk)


class BlobStore:
    """The files of all workers. own: the number of the worker that writes by this store; None: it only reads."""

    def __init__(self, files: Sequence[OwnFiles], own: int | None = None) -> None:
        self._files = [descriptor for of_worker in files for descriptor in of_worker]
        self._own = own
        self._ends = [0, 0]

    def put(self, blob: bytes, *, to_disk: bool) -> bytes:
        """A handle of the blob, or the blob itself if it is small. Raises PoolError if there is no space."""
        if len(blob) < _LEAST_STORED:
            return blob
        assert self._own is not None
        place = 2 * self._own + to_disk
        offset = self._ends[to_disk]
        rest = memoryview(blob)
        try:
            while rest:
                rest = rest[os.pwrite(self._files[place], rest, offset + len(blob) - len(rest)) :]
        except OSError as error:
            where = f"in {tempfile.gettempdir()} (TMPDIR)" if to_disk else "in memory"
            raise PoolError(
                f"what lies between two steps cannot be stored {where}: {error.strerror}; nothing was published. Give"
                f" {'TMPDIR a folder with more space, or more' if to_disk else 'less'} --memory."
            ) from None
        self._ends[to_disk] = -(-(offset + len(blob)) // _PAGE) * _PAGE
        return _HANDLE.pack(_MAGIC, place, offset, len(blob))

    def get(self, blob: bytes) -> bytes | memoryview:
        """What `put` was given. Raises OSError or ValueError if it is not there any more.

        A large one is a view of its file, and takes no memory of this process: pages of a file on disk are the
        system's, which takes them back when it needs them."""
        stored = stored_blob(blob)
        if stored is None:
            return blob
        if stored.length >= _LEAST_MAPPED:
            file = self._files[stored.file]
            return memoryview(mmap.mmap(file, stored.length, access=mmap.ACCESS_READ, offset=stored.offset))
        parts, position = [], stored.offset
        end = stored.offset + stored.length
        while position < end:
            part = os.pread(self._files[stored.file], end - position, position)
            if not part:
                raise ValueError("a stored blob is not there any more.")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def free(self, blob: bytes) -> None:
        """Gives its space back, where the system can. It reads as zeros from then on, which are no packed columns."""
        stored = stored_blob(blob)
        if stored is None or not hasattr(mmap, "MADV_REMOVE") or stored.length < _PAGE:
            return
        with contextlib.suppress(OSError):  # a file system without holes
            whole_pages = stored.length // _PAGE * _PAGE
            with mmap.mmap(self._files[stored.file], whole_pages, offset=stored.offset) as view:
                view.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        for descriptor in self._files:
            os.close(descriptor)
        self._files = []


def stored_blob(blob: bytes) -> StoredBlob | None:
    """Of a handle; None for a blob itself."""
    if len(blob) != _HANDLE.size or blob[:4] != _MAGIC:
        return None
    _, file, offset, length = _HANDLE.unpack(blob)
    return StoredBlob(file, offset, length)
