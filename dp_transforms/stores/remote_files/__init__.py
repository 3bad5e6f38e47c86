"""Files that are named by a URL: read by ranges, listed as a stream, and written whole or not at all.

    stored_file    StoredFile, the protocol FileStore, the errors; what is a URL, and which are refused
    range_reader   RangeReader: one version of a file, open for reading at any position
    patterns       which files a URL names: a file, a folder or a glob
    s3, gs, azfs   one module per kind of store

A file is read in one version: on S3 and Azure by ETag, on Google Cloud Storage by generation. A file that
changes meanwhile is an error, never a mixture of two.

A new file appears at once, and in the place of none: S3 and Azure by ``If-None-Match: *``, Google Cloud Storage by
``ifGenerationMatch=0``. Nothing here writes to a local disk.

The libraries of a store are imported when it is used first. Everything raises OSError, whose `strerror` says why,
without any secret; `UrlError` for a URL that cannot be used.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import secrets
import time
from collections.abc import Iterator
from typing import BinaryIO, cast

from dp_transforms.stores.remote_files.patterns import files_of_pattern
from dp_transforms.stores.remote_files.range_reader import RangeReader
from dp_transforms.stores.remote_files.stored_file import (
    Content,
    FileChangedError,
    FileStore,
    RemoteFileError,
    StoredFile,
    UrlError,
    is_remote,
    missing,
    split_url,
)

__all__ = [
    "FileChangedError",
    "RangeReader",
    "RemoteFileError",
    "StoredFile",
    "UrlError",
    "copy_new",
    "draft_url",
    "exists",
    "find_files",
    "full_name",
    "is_remote",
    "look_at",
    "open_stored",
    "put_new",
    "put_over",
    "read_stored",
    "remove",
]

SEQUENTIAL_BYTES = 8 << 20  # read at once where a file is read from its beginning on
_PAUSES = (0.2, 1.0, 3.0)  # seconds before a file is looked for again that was just written by another process


def store_of(url: str) -> FileStore:
    """Raises UrlError; RemoteFileError if its library is missing."""
    scheme = split_url(url).scheme
    return cast(FileStore, importlib.import_module(f"dp_transforms.stores.remote_files.{scheme}").store())


def look_at(url: str) -> StoredFile:
    """The present version of a file. Raises FileNotFoundError or another OSError."""
    found = store_of(url).look(url)
    if found is None:
        raise missing(url)
    return found


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the name of an output is taken, by whatever. Raises OSError only for a URL."""
    return store_of(os.fspath(path)).look(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


def find_files(source: str) -> Iterator[StoredFile]:
    """The files that a URL names (a file, a folder, a glob), in the order of their URLs; constant memory.

    Nothing is left out for its ending, but what is hidden is (`patterns`). Raises OSError.
    """
    return files_of_pattern(store_of(source), source)


def open_stored(file: StoredFile, *, ahead: int = SEQUENTIAL_BYTES, keep: int = 0) -> RangeReader:
    """One version of a file, open for reading. ahead, keep: see `RangeReader`."""
    return RangeReader(store_of(file.url), file, ahead=ahead, keep=keep)


def read_stored(url: str, most_bytes: int) -> bytes:
    """The content of a file; the first ``most_bytes + 1`` bytes if it is larger. Raises OSError."""
    with open_stored(look_at(url)) as file:
        return file.read(most_bytes + 1)


def put_new(url: str, content: Content) -> None:
    """A new file, which appears whole. Raises FileExistsError if the name is taken, even at the same moment."""
    store_of(url).put(url, content, only_new=True)


def put_over(url: str, content: Content) -> None:
    """The same in the place of what has the name: for a step that may run twice."""
    store_of(url).put(url, content, only_new=False)


def remove(url: str) -> None:
    """Removes a file, if it is there. Raises OSError."""
    store_of(url).remove(url)


def draft_url(output: str) -> str:
    """A fresh hidden URL beside an output, with its ending: for what takes shape on other machines."""
    folder, name = posixpath.split(output)
    ending = posixpath.splitext(name)[1]
    return f"{folder}/.{name}.{secrets.token_hex(8)}.partial/file{ending}"


def copy_new(draft: str | BinaryIO, url: str) -> None:
    """Gives a finished draft its name. draft: an open local file, or a URL. Raises FileExistsError as `put_new`."""
    if not isinstance(draft, str):
        put_new(url, draft)
        return
    for pause in (*_PAUSES, None):
        try:
            content = open_stored(look_at(draft)).read()
            break
        except FileNotFoundError:
            if pause is None:
                raise
            time.sleep(pause)
    put_new(url, content)
