"""A file of a store as Python reads files: by ranges, of one version."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import TYPE_CHECKING

from dp_transforms.stores.store_clients import BrokenAnswerError

if TYPE_CHECKING:
    from dp_transforms.stores.remote_files import FileStore, StoredFile

_PAUSES = (0.1, 0.5, 2.0)  # seconds before a range is fetched again whose answer broke


class RangeReader(io.RawIOBase):
    """A readable, seekable file.

    ahead: at least so many bytes are fetched at once, to the end of the file at most. keep: fetched ranges stay in
    memory, up to so many bytes together; the last one always does, whatever its size.

    failure: the last error of the store. A library between may show another one, without its reason.
    """

    def __init__(self, store: FileStore, file: StoredFile, *, ahead: int, keep: int = 0) -> None:
        super().__init__()
        self.file = file
        self.failure: OSError | None = None
        self._store, self._ahead, self._keep = store, ahead, keep
        self._at = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self.file.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence]
        if base + offset < 0:
            raise ValueError("a position must not be negative.")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Fewer bytes only at the end of the file. Raises OSError."""
        left = max(0, self.file.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        parts = []
        while wanted:
            begin, data = self._range_at(self._at, wanted)
            part = data if begin == self._at and len(data) <= wanted else data[self._at - begin :][:wanted]
            parts.append(part)
            self._at += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range_at(self, position: int, wanted: int) -> tuple[int, bytes]:
        """A range that holds ``position``, and where it begins."""
        for begin, data in self._kept.items():
            if begin <= position < begin + len(data):
                self._kept.move_to_end(begin)
                return begin, data
        data = self._fetch(position, min(max(wanted, self._ahead), self.file.size - position))
        self._kept.pop(position, None)
        self._kept[position] = data
        total = sum(map(len, self._kept.values()))
        while total > self._keep and len(self._kept) > 1:
            total -= len(self._kept.popitem(last=False)[1])
        return position, data

    def _fetch(self, begin: int, length: int) -> bytes:
        for pause in (*_PAUSES, None):
            try:
                return self._store.read_range(self.file, begin, length)
            except OSError as error:
                if pause is None or not isinstance(error, BrokenAnswerError):
                    self.failure = error
                    raise
            self._store.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._kept.clear()
        super().close()
