"""What the two text formats share: plain or compressed streams, and how far they are read."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa

from dp_transforms.logs.log_chunk import ReadBlock
from dp_transforms.logs.log_input import faults_of_store
from dp_transforms.stores.remote_files import SEQUENTIAL_BYTES, StoredFile, open_stored

HEAD_BYTES = 1 << 20
NOT_UTF8_TEXT = "it is not UTF-8 text; if it is Latin-1 (or Windows-1252, CP1252): iconv -f latin1 -t utf-8 OLD > NEW"


class TextStream:
    """A file read from its beginning, unpacked if it ends in ``.gz``. Use as a context manager.

    Raises EventFileError for a fault of the store. ahead: how much of a stored file is fetched at once.
    """

    def __init__(self, path: str, stored: StoredFile | None = None, ahead: int = SEQUENTIAL_BYTES) -> None:
        self._stored = None if stored is None else open_stored(stored, ahead=ahead)
        self._file = pa.OSFile(path, "rb") if stored is None else pa.PythonFile(self._stored, mode="r")
        self.stream: Any = pa.CompressedInputStream(self._file, "gzip") if is_packed(path) else self._file
        self._faults = faults_of_store(path, self._stored)

    def __enter__(self) -> TextStream:
        self._faults.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self.stream.close()
            self._file.close()
        self._faults.__exit__(*error)

    def bytes_read(self) -> int:
        """Bytes of the file itself that have been read so far."""
        return int(self._file.tell())

    def number(self, block: ReadBlock) -> ReadBlock:
        """A block whose rejected lines are counted from the first one of this stream -> from the first of the file."""
        return block


def is_packed(path: str) -> bool:
    """Whether a text file is compressed, by its name."""
    return path.lower().endswith(".gz")


class ByteShares:
    """Divides the bytes of a chunk among its blocks. The shares sum to exactly all of them."""

    def __init__(self, total: int) -> None:
        self._total, self._given = total, 0

    def up_to(self, bytes_read: int) -> int:
        """The share of a block; ``bytes_read`` bytes of the file are read after it."""
        share = max(0, min(bytes_read, self._total) - self._given)
        self._given += share
        return share

    def rest(self) -> int:
        """The share of the last block."""
        return self.up_to(self._total)


def read_head(path: str, stored: StoredFile | None = None) -> tuple[bytes, bool]:
    """The first HEAD_BYTES bytes, and whether that is the whole file."""
    with TextStream(path, stored, ahead=HEAD_BYTES + 1) as text:
        head: bytes = text.stream.read(HEAD_BYTES)
        is_whole = len(head) < HEAD_BYTES or not text.stream.read(1)
    return head, is_whole
