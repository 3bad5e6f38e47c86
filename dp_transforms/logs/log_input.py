"""A log as bytes: a local file, or one version of a stored one, of which only the needed ranges are fetched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from dp_transforms.logs.log_chunk import EventFileError
from dp_transforms.stores.remote_files import SEQUENTIAL_BYTES, RemoteFileError, StoredFile, open_stored

_FOOTER_BYTES = 64 << 10  # what Arrow reads of a Parquet file first
_KEPT_BYTES = 128 << 20  # columns of one row group: they are looked at first, and then read


def open_log(path: str, stored: StoredFile | None, ahead: int = SEQUENTIAL_BYTES) -> BinaryIO:
    """For a reader that begins at the beginning. ahead: so many bytes of a stored file are fetched at once."""
    return open(path, "rb") if stored is None else cast(BinaryIO, open_stored(stored, ahead=ahead))


def open_columns(path: str, stored: StoredFile | None) -> Any:
    """For the reader of Parquet files: a path, or a file in which it reads what it needs."""
    return path if stored is None else open_stored(stored, ahead=_FOOTER_BYTES, keep=_KEPT_BYTES)


def log_size(path: str, stored: StoredFile | None) -> int:
    return os.path.getsize(path) if stored is None else stored.size


@contextlib.contextmanager
def faults_of_store(path: str, file: object) -> Iterator[None]:
    """Turns a fault of the store into an EventFileError: the log itself may be good.

    file: as it was opened. Libraries between may have made another error of it.
    """
    try:
        yield
    except Exception as error:
        fault = getattr(file, "failure", None)
        if isinstance(fault, RemoteFileError):
            raise EventFileError(path, f"it cannot be read: {fault.strerror}.") from None
        raise error
