"""Files that are named by a URL: read by ranges, listed as a stream, and written whole or not at all.

One rule for all kinds of stores. How each is asked is in `store_clients`, whose libraries are imported when a store is
used first.

A file is read in one version: on S3 and Azure by ETag, on Google Cloud Storage by generation. A file that
changes meanwhile is an error, never a mixture of two.

A new file appears at once, and in the place of none: S3 and Azure by ``If-None-Match: *``, Google Cloud Storage by
``ifGenerationMatch=0``. Nothing here writes to a local disk.

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
import functools
import io
import os
import posixpath
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from dp_transforms.checks import without_secrets
from dp_transforms.errors import UserError
from dp_transforms.stores.range_reader import RangeReader
from dp_transforms.stores.store_clients import (
    AzureClient,
    BrokenAnswerError,
    GoogleClient,
    S3Client,
    Said,
    StoreClient,
    Url,
    fault,
)
from dp_transforms.stores.store_clients import RemoteFileError as RemoteFileError

Content = bytes | BinaryIO
SEQUENTIAL_BYTES = 8 << 20  # read at once where a file is read from its beginning on
_CONFLICT_PAUSES = (0.2, 1.0, 3.0)  # before a file is written again that another one was writing or removing
_DRAFT_PAUSES = (0.2, 1.0, 3.0)  # before a file is looked for again that was just written by another process

SCHEMES = {"s3": "bucket", "gs": "bucket", "azfs": "account"}  # what follows each
_SCHEMES = ", ".join(f"{known}://" for known in SCHEMES)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[]")
# What a client depends on. Another one is made where it has changed.
_SETTINGS = {
    "s3": (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    ),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT"),
    "azfs": ("AZURE_STORAGE_CONNECTION_STRING",),
}


class UrlError(UserError, ValueError):
    """A URL that is not used. It says why without the URL, which may hold a secret."""


class FileChangedError(RemoteFileError):
    """The file is not the version any more that was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFile:
    """One version of a file. size: bytes. version: what the store calls it; equal only for the same content."""

    url: str
    size: int
    version: str


# ---------------------------------------------------------------------------------------------------------------------
# By name
# ---------------------------------------------------------------------------------------------------------------------


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of a store. Raises UrlError for one that cannot be used, and for one with a secret."""
    found = _URL.fullmatch(path) if isinstance(path, str) else None
    if found is None:
        return False
    scheme, rest = found[1].lower(), found[2]
    if "@" in rest.partition("/")[0] or without_secrets(found[0]) != found[0]:
        raise UrlError(
            f"a URL {scheme}://... holds a password or a signature, which every process of the machine could read."
            " Leave it out of the URL: stores take their credentials from the environment (docs/stores.md)."
        )
    if scheme not in SCHEMES:
        raise UrlError(
            f"URLs {scheme}://... are not known. Use {_SCHEMES} or a path: copy files of another store, or mount it"
            " (docs/stores.md)."
        )
    if not rest.partition("/")[0] or found[1] != scheme:
        raise UrlError(f"a URL must begin with {scheme}:// and then name a {SCHEMES[scheme]}.")
    return True


def split_url(url: str) -> Url:
    """Raises UrlError for anything but a URL of a store."""
    if not is_remote(url):
        raise UrlError(f"a URL must begin with one of {_SCHEMES}.")
    scheme, rest = url.split("://", 1)
    host, _, key = rest.partition("/")
    return Url(scheme, host, key)


def store_of(url: str) -> FileStore:
    """Raises UrlError; RemoteFileError if its library is missing, or has no credentials."""
    scheme = split_url(url).scheme
    return _store(scheme, os.getpid(), *(os.environ.get(name) for name in _SETTINGS[scheme]))


@functools.lru_cache(maxsize=12)
def _store(scheme: str, process: int, *settings: str | None) -> FileStore:
    """One for each process: connections do not survive a fork."""
    del process
    if scheme == "s3":
        return FileStore(S3Client())
    return FileStore(GoogleClient(*settings) if scheme == "gs" else AzureClient(*settings))


def look_at(url: str) -> StoredFile:
    """The present version of a file. Raises FileNotFoundError or another OSError."""
    found = store_of(url).look(url)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file in the store", url)
    return found


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the name of an output is taken, by whatever. Raises OSError only for a URL."""
    return store_of(os.fspath(path)).look(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


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
    for pause in (*_DRAFT_PAUSES, None):
        try:
            content = open_stored(look_at(draft)).read()
            break
        except FileNotFoundError:
            if pause is None:
                raise
            time.sleep(pause)
    put_new(url, content)


def find_files(source: str) -> Iterator[StoredFile]:
    """The files that a URL names (a file, a folder, a glob), in the order of the bytes of their URLs, each once, with
    constant memory. A folder without files has none: stores know no folders.

    Nothing is left out for its ending, but what is hidden is. Raises OSError.
    """
    store, key = store_of(source), split_url(source).key
    if key and not source.endswith("/"):
        exact = store.look(source)
        if exact is not None:
            yield exact
            return
    head, wanted = source.rstrip("/"), key.rstrip("/")
    special = _SPECIAL.search(head, len(head) - len(wanted))
    for file in store.list_below(head[: special.start()] if special else f"{head}/"):
        if is_meant(split_url(file.url).key.split("/"), wanted.split("/") if wanted else []):
            yield file


def is_meant(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob means a file, or a folder above it in which it is visible. Both are cut at their slashes."""
    if not pattern:
        return all(part[:1] not in ("", ".", "_") for part in name)
    part, wanted = name[0] if name else "", pattern[0]
    if wanted == "**":
        return is_meant(name, pattern[1:]) or (part[:1] not in ("", ".") and is_meant(name[1:], pattern))
    is_hidden = part.startswith(".") and _SPECIAL.match(wanted)
    return bool(name) and not is_hidden and fnmatch.fnmatchcase(part, wanted) and is_meant(name[1:], pattern[1:])


# ---------------------------------------------------------------------------------------------------------------------
# The rule of all stores
# ---------------------------------------------------------------------------------------------------------------------


class FileStore:
    """What can be done with the files of a store.

    All raise OSError; FileNotFoundError for a bucket that does not exist. sleep: between attempts.
    """

    def __init__(self, client: StoreClient, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self.sleep = sleep

    def look(self, url: str) -> StoredFile | None:
        """The present version; None: there is no such file."""
        try:
            found = self._client.head(split_url(url))
        except Exception as error:
            if (said := self._client.said(error)) is Said.ABSENT:
                return None
            raise _fault(url, said, error) from None
        return None if found is None else StoredFile(url, *found)

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        """``length`` bytes of this version from ``begin`` on, all of them inside of it.

        Raises FileChangedError if it is not the present one, BrokenAnswerError for a connection that broke, and for an
        answer of another length: one that ends too early may do so without a word.
        """
        try:
            data = self._client.get(split_url(file.url), file.version, begin, length)
        except Exception as error:
            if (said := self._client.said(error)) in (Said.ABSENT, Said.OTHER_VERSION):
                problem = "it was changed or removed while it was read: use files that nobody writes to any more"
                raise FileChangedError(errno.ESTALE, problem, file.url) from None
            raise _fault(file.url, said, error) from None
        if len(data) > length:
            raise fault(file.url, "the store answers with more than the range that was asked for: use another store")
        if len(data) != length:
            raise _fault(file.url, Said.BROKE)
        return data

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        """All files whose URL begins with ``prefix``, in the order of the bytes of their URLs; constant memory."""
        at = split_url(prefix)
        try:
            for key, size, version in self._client.list(at):
                yield StoredFile(f"{at.scheme}://{at.host}/{key}", size, version)
        except Exception as error:
            raise _fault(prefix, self._client.said(error), error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        """Writes a file, which appears whole or not at all. only_new: raises FileExistsError if the name is taken."""
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        for pause in (*_CONFLICT_PAUSES, None):
            try:
                size = source.seek(0, os.SEEK_END)
                source.seek(0)
                self._client.put(split_url(url), source, size, only_new)
                return
            except Exception as error:
                said, failed = self._client.said(error), error
            if said is not Said.CONFLICT or pause is None:
                break
            self.sleep(pause)
        if only_new and said in (Said.OTHER_VERSION, Said.BROKE) and self._holds(url, source, said):
            return  # the answer to an attempt was lost, and the library has perhaps tried again
        if only_new and said is Said.OTHER_VERSION:
            raise FileExistsError(errno.EEXIST, "a file of this name exists in the store", url)
        raise _fault(url, said, failed)

    def remove(self, url: str) -> None:
        """Removes a file, if it is there."""
        try:
            self._client.delete(split_url(url))
        except Exception as error:
            if (said := self._client.said(error)) is not Said.ABSENT:
                raise _fault(url, said, error) from None

    def _holds(self, url: str, source: BinaryIO, said: Said | str) -> bool:
        """Whether the store has exactly this content under the name. Raises OSError if it cannot find out, unless no
        answer came before: then that is the error."""
        source.seek(0)
        with contextlib.suppress(*([OSError] if said is Said.BROKE else [])):
            found = self.look(url)
            if found is None or found.size != source.seek(0, os.SEEK_END):
                return False
            source.seek(0)
            stored = RangeReader(self, found, ahead=SEQUENTIAL_BYTES)
            return all(piece == stored.read(len(piece)) for piece in iter(lambda: source.read(SEQUENTIAL_BYTES), b""))
        return False


def _fault(url: str, said: Said | str, error: Exception | None = None) -> OSError:
    """error: of a library. What a client itself has found out is passed on."""
    if isinstance(error, RemoteFileError):
        return error
    if said is Said.ABSENT:
        problem = "there is no such bucket: check its name, the region and the endpoint"
        return FileNotFoundError(errno.ENOENT, problem, url)
    if said is Said.BROKE:
        return BrokenAnswerError(errno.ECONNRESET, "the connection to the store broke: try again", url)
    if isinstance(said, Said):
        said = f"the store answered with an error ({said.value}): try again, or ask its operator"
    return fault(url, said)
