"""Files that are named by a URL: read by ranges, listed as a stream, and written whole or not at all.

    stored_file    StoredFile; FileStore: one rule for all kinds of stores; the errors; RangeReader: one version, open
                   for reading at any position; what is a URL, and which are refused
    kinds          how each kind of store is asked: S3, Google Cloud Storage, Azure

A file is read in one version: on S3 and Azure by ETag, on Google Cloud Storage by generation. A file that
changes meanwhile is an error, never a mixture of two.

A new file appears at once, and in the place of none: S3 and Azure by ``If-None-Match: *``, Google Cloud Storage by
``ifGenerationMatch=0``. Nothing here writes to a local disk.

A URL names one file, all below a folder, or those that match a glob, as with local paths. ``*``, ``?`` and ``[...]``
match inside one part of a name, and at its beginning no dot. A part ``**`` stands for any number of parts that begin
with no dot. A folder that matches stands for all below it. Below a folder, parts that begin with a dot or an underscore
are hidden. A file whose name is the URL itself comes first: names may hold ``*``. A glob lists all names that begin as
it does, up to its first special character.

The libraries of a store are imported when it is used first. Everything raises OSError, whose `strerror` says why,
without any secret; `UrlError` for a URL that cannot be used.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
import secrets
import time
from collections.abc import Iterator
from typing import BinaryIO

from dp_transforms.stores.remote_files.kinds import store_of_scheme
from dp_transforms.stores.remote_files.stored_file import (
    Content,
    FileChangedError,
    FileStore,
    RangeReader,
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
_SPECIAL = re.compile(r"[*?\[]")
_CLASS = re.compile(r"(!?)(\]?[^\]/]*)\]")  # after the bracket that opens it
_VISIBLE_BELOW = r"(?:/[^/._][^/]*)+"


def store_of(url: str) -> FileStore:
    """Raises UrlError; RemoteFileError if its library is missing."""
    return store_of_scheme(split_url(url).scheme)


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


def files_of_pattern(store: FileStore, source: str) -> Iterator[StoredFile]:
    """In the order of the bytes of their URLs, each once. A folder without files has none: stores know no folders."""
    if split_url(source).key and not source.endswith("/"):
        exact = store.look(source)
        if exact is not None:
            yield exact
            return
    head = source.rstrip("/")
    if glob.has_magic(split_url(source).key):
        special = _SPECIAL.search(head, len(head) - len(split_url(head).key))
        prefix, wanted = head[: special.start() if special else len(head)], glob_expression(head)
    else:
        prefix, wanted = f"{head}/", re.compile(re.escape(head) + _VISIBLE_BELOW)
    for file in store.list_below(prefix):
        if wanted.fullmatch(file.url):
            yield file


def glob_expression(pattern: str) -> re.Pattern[str]:
    """Of the URLs of all files that match, and of all visible ones below folders that match."""
    expression = ""
    for number, part in enumerate(pattern.split("/")):
        slash = "/" if number else ""
        if part == "**":
            expression += r"(?:/[^/.][^/]*)*"
        else:
            no_dot = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
            expression += slash + no_dot + _expression_of_part(part)
    return re.compile(rf"{expression}(?:{_VISIBLE_BELOW})?", re.DOTALL)


def _expression_of_part(part: str) -> str:
    """By the rules of fnmatch, whose own expressions match slashes too."""
    expression, at = "", 0
    while at < len(part):
        char, at = part[at], at + 1
        if char == "*":
            expression += "[^/]*"
        elif char == "?":
            expression += "[^/]"
        elif char == "[" and (found := _CLASS.match(part, at)):
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", found[2])
            expression += f"(?!/)[{'^' if found[1] else ''}{inside}]"
            at = found.end()
        else:
            expression += re.escape(char)
    return expression
