"""A version of a file in a store, open for reading at any position; what a store can do, and which URLs name a file."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import errno
import io
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

SCHEMES = ("s3", "gs", "azfs")
Content = bytes | BinaryIO
_PIECE_BYTES = 8 << 20

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# What a signed URL carries. In a key it would be an odd name; in an error it would be a leak.
_SECRET = re.compile(
    r"[?&](x-(amz|goog)-(signature|credential|security-token)|sig|signature|token|access_token)=", re.I
)
_HOSTS = {"s3": "bucket", "gs": "bucket", "azfs": "account"}
_PAUSES = (0.1, 0.5, 2.0)  # seconds before a range is fetched again whose answer broke


class UrlError(ValueError):
    """A URL that is not used. It says why without the URL, which may hold a secret."""


class RemoteFileError(OSError):
    """A store that refuses or does not answer. `strerror`: why, with the remedy; no secret and no cell."""


class FileChangedError(RemoteFileError):
    """The file is not the version any more that was found."""


class BrokenAnswerError(RemoteFileError):
    """An answer that ended too early. Asking again may help."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFile:
    """One version of a file. size: bytes. version: what the store calls it; equal only for the same content."""

    url: str
    size: int
    version: str


class Url(NamedTuple):
    """host: the bucket, or the account. key: without the slash before it; nothing is unquoted."""

    scheme: str
    host: str
    key: str


class FileStore(abc.ABC):
    """One rule for all kinds of stores. A kind says how it asks, and what the errors of its library mean.

    All raise OSError; FileNotFoundError for a bucket that does not exist. No error has the words of the library: they
    may hold what the operator should not see on a terminal.
    """

    _meanings: Mapping[str, tuple[type[Exception], ...]]

    def look(self, url: str) -> StoredFile | None:
        """The present version; None: there is no such file."""
        at = split_url(url)
        try:
            found = self._head(at)
        except Exception as error:
            if self._is("absent", error):
                return None
            raise self._fault(url, error) from None
        return None if found is None else StoredFile(url, *found)

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        """``length`` bytes of this version from ``begin`` on, all of them inside of it; fewer where the answer ended
        too early without a word (`read_exactly`).

        Raises FileChangedError if it is not the present one, BrokenAnswerError for a connection that broke.
        """
        at = split_url(file.url)
        try:
            return self._get(at, file.version, begin, length)
        except Exception as error:
            raise (changed(file.url) if self._is("changed", error) else self._fault_of_read(file.url, error)) from None

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        """All files whose URL begins with ``prefix``, in the order of the bytes of their URLs; constant memory."""
        at = split_url(prefix)
        try:
            for key, size, version in self._list(at):
                yield StoredFile(f"{at.scheme}://{at.host}/{key}", size, version)
        except Exception as error:
            raise self._fault(prefix, error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        """Writes a file, which appears whole or not at all. only_new: raises FileExistsError if the name is taken."""
        at = split_url(url)
        try:
            self._send(at, content, only_new)
        except Exception as error:
            if only_new and self._is("taken", error):
                if is_stored(self, url, content):
                    return  # the answer to an earlier attempt was lost, and the library has tried again
                raise already_there(url) from None
            if only_new and self._is("lost", error):
                with contextlib.suppress(OSError):  # no answer came: perhaps the file did
                    if is_stored(self, url, content):
                        return
            raise self._fault(url, error) from None

    def remove(self, url: str) -> None:
        """Removes a file, if it is there."""
        at = split_url(url)
        try:
            self._delete(at)
        except Exception as error:
            if not self._is("absent", error):
                raise self._fault(url, error) from None

    @abc.abstractmethod
    def _head(self, at: Url) -> tuple[int, str] | None:
        """Size and version."""

    @abc.abstractmethod
    def _get(self, at: Url, version: str, begin: int, length: int) -> bytes: ...

    @abc.abstractmethod
    def _list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        """Key, size and version of each file."""

    @abc.abstractmethod
    def _send(self, at: Url, content: Content, only_new: bool) -> None: ...

    @abc.abstractmethod
    def _delete(self, at: Url) -> None: ...

    def _is(self, meaning: str, error: Exception) -> bool:
        """Whether an error of the library says that a file is absent, that it has changed since it was found, that a
        name is taken; or that there was no answer, however often the library tried: the file may be there (lost)."""
        return isinstance(error, self._meanings.get(meaning, ()))

    @abc.abstractmethod
    def _fault(self, url: str, error: Exception) -> OSError: ...

    def _fault_of_read(self, url: str, error: Exception) -> OSError:
        return self._fault(url, error)


def read_exactly(store: FileStore, file: StoredFile, begin: int, length: int) -> bytes:
    """As `FileStore.read_range`. Raises BrokenAnswerError also for an answer of another length."""
    data = store.read_range(file, begin, length)
    if len(data) != length:
        raise broken_answer(file.url)
    return data


def is_stored(store: FileStore, url: str, content: Content) -> bool:
    """Whether the store has exactly this content under the name: for when the answer to a write was lost."""
    found = store.look(url)
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    if found is None or found.size != source.seek(0, os.SEEK_END):
        return False
    source.seek(0)
    return all(
        source.read(length) == read_exactly(store, found, begin, length)
        for begin in range(0, found.size, _PIECE_BYTES)
        for length in [min(_PIECE_BYTES, found.size - begin)]
    )


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of a store. Raises UrlError for one that cannot be used, and for one with a secret."""
    if not isinstance(path, str) or "://" not in path:
        return False
    found = _URL.fullmatch(path)
    if found is None:
        return False
    scheme, rest = found[1].lower(), found[2]
    if "@" in rest.partition("/")[0] or _SECRET.search(rest):
        raise UrlError(
            f"a URL {scheme}://... holds a password or a signature, which every process of the machine could read."
            " Leave it out of the URL: stores take their credentials from the environment (docs/stores.md)."
        )
    if scheme not in SCHEMES:
        raise UrlError(
            f"URLs {scheme}://... are not known. Use {', '.join(f'{known}://' for known in SCHEMES)} or a path:"
            " copy files of another store, or mount it (docs/stores.md)."
        )
    if not rest.partition("/")[0] or found[1] != scheme:
        raise UrlError(f"a URL must begin with {scheme}:// and then name a {_HOSTS[scheme]}.")
    return True


def split_url(url: str) -> Url:
    """Raises UrlError for anything but a URL of a store."""
    if not is_remote(url):
        raise UrlError(f"a URL must begin with one of {', '.join(f'{known}://' for known in SCHEMES)}.")
    scheme, rest = url.split("://", 1)
    host, _, key = rest.partition("/")
    return Url(scheme, host, key)


def missing(url: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file in the store", url)


def no_bucket(url: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such bucket: check its name, the region and the endpoint", url)


def already_there(url: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "a file of this name exists in the store", url)


def changed(url: str) -> FileChangedError:
    return FileChangedError(
        errno.ESTALE, "it was changed or removed while it was read: use files that nobody writes to any more", url
    )


def broken_answer(url: str) -> BrokenAnswerError:
    return BrokenAnswerError(errno.ECONNRESET, "the connection to the store broke: try again", url)


def fault(url: str, problem: str) -> RemoteFileError:
    return RemoteFileError(errno.EIO, problem, url)


def denied(url: str) -> RemoteFileError:
    return fault(url, "the store denies the access: check the rights to list, read and write there")


def odd_answer(url: str, shown: object) -> RemoteFileError:
    return fault(url, f"the store answered with an error ({shown}): try again, or ask its operator")


def needs_package(url: str, package: str, extra: str) -> RemoteFileError:
    # The name of shh in an index is not ours.
    return fault(url, f"the package {package} is not installed: pip install '.[{extra}]' in the clone, on all workers")


class RangeReader(io.RawIOBase):
    """A readable, seekable file.

    ahead: at least so many bytes are fetched at once, to the end of the file at most. keep: fetched ranges stay in
    memory, up to so many bytes together; the last one always does, whatever its size.

    failure: the last error of the store. A library between may show another one, without its reason.
    """

    def __init__(
        self,
        store: FileStore,
        file: StoredFile,
        *,
        ahead: int,
        keep: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.file = file
        self.failure: OSError | None = None
        self._store, self._ahead, self._keep, self._sleep = store, ahead, keep, sleep
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
        try:
            for pause in _PAUSES:
                try:
                    return read_exactly(self._store, self.file, begin, length)
                except BrokenAnswerError:
                    self._sleep(pause)
            return read_exactly(self._store, self.file, begin, length)
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        self._kept.clear()
        super().close()
