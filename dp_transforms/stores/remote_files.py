"""Files that are named by a URL, on S3, Google Cloud Storage and Azure: read by ranges, listed, written whole.

obstore asks all three. Its words may hold what should not be seen on a terminal: none of them reaches an error.

A file is read in one version, by its ETag: one that changes meanwhile is an error, never a mixture of two. A new file
appears at once, and in the place of none: the store itself refuses a name that is taken. Nothing here writes to a local
disk.

A URL names one file, all below a folder, or those that match a glob: ``*``, ``?`` and ``[...]`` match inside one part
of a name, and a folder that matches stands for all below it. Of what the URL does not spell out, parts that begin with
a dot or an underscore are hidden. A file whose name is the URL itself comes first: names may hold ``*``.

Everything raises OSError, whose `strerror` says why, without any secret; `UrlError` for a URL that cannot be used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fnmatch
import functools
import io
import itertools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dp_transforms.checks import how_to_install, without_secrets
from dp_transforms.errors import UserError

SEQUENTIAL_BYTES = 8 << 20  # read at once where a file is read from its beginning on
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*).*", re.DOTALL)
_NAME = r"[A-Za-z0-9$][A-Za-z0-9._-]{0,221}"  # obstore aborts with a trace at one that is no host name
_ROOT = re.compile(rf"(s3:/|gs:/|azfs://({_NAME}))/({_NAME})(?:/|\Z)")  # all up to what a store calls a path
_ENDPOINT = re.compile("AWS_ENDPOINT(_URL)?(_S3)?", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]+)?(/|\Z)", re.ASCII)  # as with names
_SPECIAL = re.compile(r"[*?\[]")
_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h"}
_RETRIES = {"max_retries": 4, "retry_timeout": datetime.timedelta(minutes=3)}
_CHANGED = "it was changed or removed while it was read: use files that nobody writes to any more"
_used_in: int | None = None  # the process
_Answer = TypeVar("_Answer")


class UrlError(UserError, ValueError):
    """A URL that is not used. It says why without the URL, which may hold a secret."""


class RemoteFileError(OSError):
    """A store that refuses or does not answer, or a file that changed. `strerror`: why, with the remedy; no secret and
    no cell."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFile:
    """One version of a file. size: bytes. version: its ETag, equal only for the same content."""

    url: str
    size: int
    version: str


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of a store. Raises UrlError for one that cannot be used, and for one with a secret."""
    found = _URL.fullmatch(path) if isinstance(path, str) else None
    if found is None:
        return False
    if "@" in found[2] or without_secrets(found[0]) != found[0]:
        raise UrlError(
            f"a URL {found[1]}://... holds a password or a signature, which every process of the machine could read."
            " Leave it out of the URL: stores take their credentials from the environment (docs/stores.md)."
        )
    _root_of(found[0])
    return True


def _root_of(url: str) -> re.Match[str]:
    root = _ROOT.match(url)
    if root is None:
        raise UrlError(
            "a URL must begin with s3://BUCKET, gs://BUCKET or azfs://ACCOUNT/CONTAINER. Copy files of another store,"
            " or mount it (docs/stores.md)."
        )
    return root


def _cut(url: str) -> tuple[str, str]:
    """The part that names the store, and what the store calls the path."""
    root = _root_of(url)
    return f"{root[0].rstrip('/')}/", url[root.end() :]


def _ask(url: str, question: Callable[[Any, str], _Answer]) -> _Answer:
    """What obstore answers. question: of its store, and the path in it. Raises OSError in words of ours."""
    global _used_in
    try:
        import obstore  # noqa: F401
    except ImportError:
        problem = f"the package obstore is not installed, on this or another machine. {how_to_install('stores')}"
        raise RemoteFileError(errno.ENOPKG, problem.removesuffix("."), url) from None
    root, path = _cut(url)
    _used_in = _used_in or os.getpid()
    if _used_in != os.getpid():  # obstore would wait for ever
        problem = "this process was forked from one that has used a store: start processes by spawn"
        raise RemoteFileError(errno.EIO, problem, url)
    answers: list[_Answer | BaseException] = []

    def wait() -> None:
        try:
            answers.append(question(_open_store(root, frozenset(os.environ.items())), path))
        except BaseException as error:  # obstore's own panics are no Exception
            answers.append(error)

    thread = threading.Thread(target=wait, daemon=True)  # who waits in obstore hears no signal, such as Ctrl-C
    thread.start()
    while thread.is_alive():
        thread.join(1)  # a Ctrl-C that comes just before a wait is heard at its end
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise _in_our_words(url, answer) from None
    return answer


@functools.lru_cache(maxsize=64)
def _open_store(root: str, environment: frozenset[tuple[str, str]]) -> Any:
    """environment: of this process, of which obstore takes what else it needs."""
    from obstore.store import AzureStore, GCSStore, S3Store

    scheme, account, name = _root_of(root).groups()
    more = {"account_name": account} if account else {}
    kind = {"s3:/": S3Store, "gs:/": GCSStore}.get(scheme, AzureStore)
    endpoints = [value for variable, value in environment if scheme == "s3:/" and _ENDPOINT.fullmatch(variable)]
    if not all(map(_ADDRESS.match, endpoints)):
        problem = "AWS_ENDPOINT_URL must begin with https:// or http:// and the name of a host"
        raise RemoteFileError(errno.EIO, problem, root)
    client = _CLIENT | {"allow_http": any(endpoint.startswith("http:") for endpoint in endpoints)}
    return kind(name, client_options=client, retry_config=_RETRIES, **more)


def _in_our_words(url: str, error: BaseException) -> OSError:
    if isinstance(error, RemoteFileError):
        return error
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    if isinstance(error, AlreadyExistsError):
        return FileExistsError(errno.EEXIST, "a file of this name exists in the store", url)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such file or bucket in the store", url)
    if isinstance(error, PreconditionError):
        return RemoteFileError(errno.ESTALE, _CHANGED, url)
    status = re.search(r"status code: ([0-9]{3})", str(error))
    problem = f"the store answers with status {status[1]}" if status else "the store cannot be reached"
    return RemoteFileError(
        errno.EIO,
        f"{problem}: check the name, the network, the region and the endpoint, your credentials and rights there, and"
        " that no name there has an empty part or a line end (docs/stores.md)",
        url,
    )


def look_at(url: str) -> StoredFile:
    """The present version of a file. Raises FileNotFoundError or another OSError."""
    return _version(url, _ask(url, lambda store, path: store.head(path)))


def look_if_there(url: str) -> StoredFile | None:
    try:
        return look_at(url)
    except FileNotFoundError:
        return None


def _version(url: str, found: Mapping[str, Any]) -> StoredFile:
    if not found["e_tag"]:
        problem = "the store gives files no version (ETag), so a change would not be seen: copy them to the disk"
        raise RemoteFileError(errno.EIO, problem, url)
    version = '"{}"'.format(found["e_tag"].strip('"'))  # lists of Azure have no quotes
    return StoredFile(url, found["size"], version)


def find_files(source: str) -> list[StoredFile]:
    """The files that a URL names (a file, a folder, a glob), in the order of their URLs, each once. A folder without
    files has none: stores know no folders.

    Nothing is left out for its ending, but what is hidden is. Raises OSError.
    """
    root, path = _cut(source)
    wanted = path.strip("/")
    if wanted and not source.endswith("/") and (exact := look_if_there(source)) is not None:
        return [exact]
    pattern = wanted.split("/") if wanted else []
    if "**" in pattern:
        raise UrlError("a URL cannot hold **: a folder stands for all below it; * matches one part of a name.")
    special = _SPECIAL.search(wanted)
    beginning = wanted[: special.start()] if special else f"{wanted}/" if wanted else ""
    return [file for file in list_beginning(root + beginning) if is_meant(file.url[len(root) :].split("/"), pattern)]


def is_meant(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob means a file, or a folder above it in which it is visible. Both are cut at their slashes."""
    found = [part for part, wanted in itertools.zip_longest(name, pattern) if part != wanted]
    is_hidden = any(part is None or part[:1] in ("", ".", "_") for part in found)
    return not is_hidden and all(map(fnmatch.fnmatchcase, name, pattern))


def list_beginning(beginning: str) -> list[StoredFile]:
    """All files whose URL begins so, in order."""
    root, wanted = _cut(beginning)
    listed = _ask(beginning, lambda store, _: store.list(wanted.rpartition("/")[0] or None).collect())
    files = [_version(root + found["path"], found) for found in listed if found["path"].startswith(wanted)]
    # Some tools mark a folder by an empty file with its name and a slash, which obstore leaves out.
    return sorted((file for file in files if file.size or look_if_there(file.url)), key=lambda file: file.url)


class StoredReader(io.RawIOBase):
    """One version of a file, readable and seekable.

    ahead: at least so many bytes are fetched at once, to the end of the file at most; what was fetched last is kept.

    failure: the last error of the store. A library between may show another one, without its reason.
    """

    def __init__(self, file: StoredFile, ahead: int = SEQUENTIAL_BYTES) -> None:
        super().__init__()
        self.failure: OSError | None = None
        self._file, self._ahead, self._at = file, ahead, 0
        self._begin, self._kept = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence] + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Fewer bytes only at the end of the file. Raises OSError."""
        left = max(0, self._file.size - self._at)
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
        url, version = self._file.url, self._file.version
        options = {"range": (begin, begin + length), "if_match": version}

        def get(store: Any, path: str) -> tuple[StoredFile, bytes]:
            answer = store.get(path, options=options)
            return _version(url, answer.meta), bytes(answer.bytes())

        try:
            found, data = _ask(url, get)
            if found.version != version or len(data) != length:  # a store that does not heed the condition
                raise FileNotFoundError
        except FileNotFoundError:
            self.failure = RemoteFileError(errno.ESTALE, _CHANGED, url)
            raise self.failure from None
        except OSError as error:
            self.failure = error
            raise
        return data


def put(url: str, content: bytes, *, replaces: bool = False) -> None:
    """A file, which appears whole, in the place of none unless it replaces one. Raises FileExistsError if the name is
    taken, even at the same moment."""
    mode = "overwrite" if replaces else "create"
    try:
        _ask(url, lambda store, path: store.put(path, content, mode=mode, use_multipart=False))
    except OSError:
        if replaces or not _holds(url, content):  # else by this very request, whose first answer was lost
            raise


def _holds(url: str, content: bytes) -> bool:
    """Also False where nobody knows: then the first error says more."""
    with contextlib.suppress(OSError):
        return StoredReader(look_at(url)).read(len(content) + 1) == content
    return False


def try_to_put(url: str) -> None:
    """Raises OSError unless a file can be written there; it is removed again."""
    put(url, b"")
    with contextlib.suppress(OSError):
        _ask(url, lambda store, path: store.delete(path))
