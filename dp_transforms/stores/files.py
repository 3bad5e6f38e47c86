"""Files by path or by URL, for whoever need not know which of the two it is.

An output appears whole or not at all, and in the place of no other file unless that is asked for. Everything raises
OSError, whose `strerror` says why, or `UrlError` for a URL that cannot be used.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import BinaryIO

from dp_transforms.stores.local_files import Path, create_new, draft_name, open_regular, write_whole
from dp_transforms.stores.remote_files import StoredReader, is_remote, look_at, look_if_there, put, try_to_put


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: Path) -> bool:
    """Whether a name is taken, by whatever. Raises OSError only for a URL."""
    return look_if_there(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


def open_file(path: Path) -> BinaryIO:
    """A regular file, or the present version of one in a store, open for reading."""
    return io.BufferedReader(StoredReader(look_at(os.fspath(path)))) if is_remote(path) else open_regular(path)


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content; the first ``most_bytes + 1`` bytes if it is larger."""
    with open_file(path) as file:
        return file.read(most_bytes + 1)


def check_writable(path: Path) -> None:
    """Raises OSError unless a hidden file can be written beside this one; it is removed again."""
    if is_remote(path):
        folder, _, name = os.fspath(path).rpartition("/")
        try_to_put(f"{folder}/{draft_name(name)}")
    else:
        create_new(probe := draft_name(path)).close()
        os.unlink(probe)


def write_file(path: Path, write: Callable[[BinaryIO], object], *, replaces: bool = False, mode: int = 0o666) -> None:
    """Calls ``write`` with a file, which then appears as ``path``. Raises FileExistsError if the name is taken, even at
    the same moment, and replaces is False.

    mode: of a local file, before the umask; who may read one in a store is the store's affair.
    """
    if is_remote(path):
        content = io.BytesIO()
        write(content)
        put(os.fspath(path), content.getvalue(), replaces=replaces)
    else:
        write_whole(path, write, mode=mode, may_replace=replaces)
