"""What the two text formats share: plain or compressed streams, and how far they are read."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

HEAD_BYTES = 1 << 20


class TextStream:
    """A file read from its beginning, unpacked if it ends in ``.gz``. Use as a context manager."""

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path, "rb")
        self.stream: Any = pa.CompressedInputStream(self._file, "gzip") if path.lower().endswith(".gz") else self._file

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self._file.close()

    def bytes_read(self) -> int:
        """Bytes of the file itself that have been read so far."""
        return int(self._file.tell())


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


def read_head(path: str) -> tuple[bytes, bool]:
    """The first HEAD_BYTES bytes, and whether that is the whole file."""
    with TextStream(path) as text:
        head: bytes = text.stream.read(HEAD_BYTES)
        is_whole = len(head) < HEAD_BYTES or not text.stream.read(1)
    return head, is_whole


def file_size(path: str) -> int:
    return os.path.getsize(path)
