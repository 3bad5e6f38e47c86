"""Files that are named by a URL, on S3, Google Cloud Storage and Azure: read by ranges, listed, written whole.

A file is read in one version, by its ETag (``If-Match``): one that changes meanwhile is an error, never a mixture of
two. A new file appears at once, and in the place of none: S3 and Azure by ``If-None-Match: *``, Google Cloud Storage by
``x-goog-if-generation-match: 0``. Nothing here writes to a local disk.

A URL names one file, all below a folder, or those that match a glob, as with local paths. ``*``, ``?`` and ``[...]``
match inside one part of a name, and at its beginning no dot. A part ``**`` stands for any number of parts that begin
with no dot. A folder that matches stands for all below it. Below a folder, parts that begin with a dot or an underscore
are hidden. A file whose name is the URL itself comes first: names may hold ``*``. A glob lists all names that begin as
it does, up to its first special character.

Everything raises OSError, whose `strerror` says why, without any secret; `UrlError` for a URL that cannot be used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import io
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from dp_transforms.stores.object_stores import AWAY, ask, fault, root_of
from dp_transforms.stores.object_stores import FileChangedError as FileChangedError
from dp_transforms.stores.object_stores import RemoteFileError as RemoteFileError
from dp_transforms.stores.object_stores import UrlError as UrlError
from dp_transforms.stores.object_stores import is_remote as is_remote

Content = bytes | BinaryIO  # a file from its beginning on, wherever it stands
SEQUENTIAL_BYTES = 8 << 20  # read at once where a file is read from its beginning on
_SPECIAL = re.compile(r"[*?\[]")
_CONFLICT_PAUSES = (0.2, 1.0, 3.0)  # seconds before a file is written again that another one was writing or removing


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFile:
    """One version of a file. size: bytes. version: its ETag, equal only for the same content."""

    url: str
    size: int
    version: str


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the name of an output is taken, by whatever. Raises OSError only for a URL."""
    return _look(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


def is_meant(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob means a file, or a folder above it in which it is visible. Both are cut at their slashes."""
    if not pattern:
        return all(part[:1] not in ("", ".", "_") for part in name)
    part, wanted = name[0] if name else "", pattern[0]
    if wanted == "**":
        return is_meant(name, pattern[1:]) or (part[:1] not in ("", ".") and is_meant(name[1:], pattern))
    is_hidden = part.startswith(".") and _SPECIAL.match(wanted)
    return bool(name) and not is_hidden and fnmatch.fnmatchcase(part, wanted) and is_meant(name[1:], pattern[1:])


def look_at(url: str) -> StoredFile:
    """The present version of a file. Raises FileNotFoundError or another OSError."""
    if (found := _look(url)) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file in the store", url)
    return found


def _look(url: str) -> StoredFile | None:
    try:
        return _version(url, ask(url, lambda obstore, store, path: obstore.head(store, path)))
    except FileNotFoundError:
        return None


def find_files(source: str) -> Iterator[StoredFile]:
    """The files that a URL names (a file, a folder, a glob), in the order of the bytes of their URLs, each once, with
    constant memory. A folder without files has none: stores know no folders.

    Nothing is left out for its ending, but what is hidden is. Raises OSError.
    """
    root = root_of(source)
    wanted = source[len(root) :].strip("/")
    if wanted and not source.endswith("/") and (exact := _look(source)) is not None:
        yield exact
        return
    special = _SPECIAL.search(wanted)
    beginning = wanted[: special.start()] if special else f"{wanted}/" if wanted else ""
    for file in list_beginning(root + beginning):
        if is_meant(file.url[len(root) :].split("/"), wanted.split("/") if wanted else []):
            yield file


def list_beginning(beginning: str) -> Iterator[StoredFile]:
    """All files whose URL begins so, in order; constant memory."""
    root = root_of(beginning)
    wanted = beginning[len(root) :]
    folder, _, part = wanted.rpartition("/")
    before = wanted[:-1] if part else None  # lists begin behind it
    batches = ask(beginning, lambda obstore, store, _: iter(obstore.list(store, folder or None, offset=before)))
    last = ""
    while batch := ask(beginning, lambda *_: next(batches, None)):
        for found in batch:
            path = found["path"]
            if path.startswith(wanted):
                file = _version(root + path, found)
                # Some tools mark a folder by an empty file with its name and a slash, which obstore leaves out.
                if not file.size and not _look(file.url):
                    continue
                if path < last:  # as in directory buckets of S3
                    raise fault(beginning, "the store does not list its files in order: use another kind of bucket")
                last = path
                yield file
            elif path > wanted:
                return


def _version(url: str, found: Mapping[str, Any]) -> StoredFile:
    version = found["e_tag"]
    if not version:
        problem = "the store gives its files no ETag, so a change would not be seen: use another store, or a path"
        raise fault(url, problem)
    # Lists of Azure leave the quotes out.
    return StoredFile(url, found["size"], version if version.endswith('"') else f'"{version}"')


class StoredReader(io.RawIOBase):
    """One version of a file, readable and seekable.

    ahead: at least so many bytes are fetched at once, to the end of the file at most; what was fetched last is kept.

    failure: the last error of the store. A library between may show another one, without its reason.
    """

    def __init__(self, file: StoredFile, ahead: int) -> None:
        super().__init__()
        self.file = file
        self.failure: OSError | None = None
        self._ahead, self._at = ahead, 0
        self._begin, self._kept = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence] + offset
        if position < 0:
            raise ValueError("a position must not be negative.")
        self._at = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        """Fewer bytes only at the end of the file. Raises OSError."""
        left = max(0, self.file.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        found = self._kept[self._at - self._begin :][:wanted] if self._at >= self._begin else b""
        if len(found) < wanted:
            begin = self._at + len(found)
            self._begin, self._kept = begin, self._fetch(begin, min(max(wanted, self._ahead), left) - len(found))
            found += self._kept[: wanted - len(found)]
        self._at += wanted
        return found

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, begin: int, length: int) -> bytes:
        """obstore goes on where a connection broke, under the same condition."""
        options = {"range": (begin, begin + length), "if_match": self.file.version}

        def get(obstore: Any, store: Any, path: str) -> tuple[str, bytes]:
            answer = obstore.get(store, path, options=options)
            return answer.meta["e_tag"] or "", bytes(answer.bytes())

        try:
            version, data = ask(self.file.url, get, is_read=True)
            # A store that does not heed the condition. Azure's lists have versions without quotation marks.
            if version.strip('"') != self.file.version.strip('"') or len(data) != length:
                raise FileChangedError(errno.ESTALE, "it was changed while it was read", self.file.url)
        except OSError as error:
            self.failure = error
            raise
        return data


def open_stored(file: StoredFile, *, ahead: int = SEQUENTIAL_BYTES) -> StoredReader:
    return StoredReader(file, ahead)


def read_stored(url: str, most_bytes: int) -> bytes:
    """The content of a file; the first ``most_bytes + 1`` bytes if it is larger. Raises OSError."""
    with open_stored(look_at(url)) as file:
        return file.read(most_bytes + 1)


def put_new(url: str, content: Content) -> None:
    """A new file, which appears whole. Raises FileExistsError if the name is taken, even at the same moment."""
    _put(url, content, only_new=True)


def put_over(url: str, content: Content) -> None:
    """The same in the place of what has the name: for a step that may run twice."""
    _put(url, content, only_new=False)


def _put(url: str, content: Content, *, only_new: bool) -> None:
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    mode = "create" if only_new else "overwrite"

    def put(obstore: Any, store: Any, path: str) -> None:
        obstore.put(store, path, source, mode=mode, use_multipart=False)

    for pause in (*_CONFLICT_PAUSES, None):
        source.seek(0)
        try:
            ask(url, put)
            return
        except FileExistsError:
            # By this very request, if its first answer was lost. Or nothing has the name: two asked for it at the same
            # moment, and the store let neither come first.
            if only_new and (found := _look(url)) is not None:
                if _holds(found, source):
                    return
                raise
        except RemoteFileError as error:
            with contextlib.suppress(OSError):  # then nobody knows, and the first error says more
                if only_new and error.strerror == AWAY and (found := _look(url)) and _holds(found, source):
                    return
            raise
        if pause is not None:
            time.sleep(pause)
    raise fault(url, "somebody else was writing or removing the same name: try again")


def _holds(found: StoredFile, source: BinaryIO) -> bool:
    if found.size != source.seek(0, os.SEEK_END):
        return False
    source.seek(0)
    with open_stored(found) as stored:
        return all(piece == stored.read(len(piece)) for piece in iter(lambda: source.read(SEQUENTIAL_BYTES), b""))


def remove(url: str) -> None:
    """Removes a file, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        ask(url, lambda obstore, store, path: obstore.delete(store, path))


def check_writable(url: str) -> None:
    """Raises OSError unless a hidden file can be written beside this one; it is removed again."""
    folder, _, name = url.rpartition("/")
    probe = f"{folder}/.{name}.{secrets.token_hex(8)}.partial"
    put_new(probe, b"")
    with contextlib.suppress(OSError):
        remove(probe)
