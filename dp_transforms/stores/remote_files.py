"""Files that are named by a URL, on S3, Google Cloud Storage and Azure: read by ranges, listed, written whole.

obstore asks all three kinds. Its words may hold what should not be seen on a terminal: none of them reaches an error.

A file is read in one version, by its ETag (``If-Match``): one that changes meanwhile is an error, never a mixture of
two. A new file appears at once, and in the place of none: S3 and Azure by ``If-None-Match: *``, Google Cloud Storage by
``x-goog-if-generation-match: 0``. Nothing here writes to a local disk.

A URL names one file, all below a folder, or those that match a glob, as with local paths. ``*``, ``?`` and ``[...]``
match inside one part of a name, and at its beginning no dot. A part ``**`` stands for any number of parts that begin
with no dot. A folder that matches stands for all below it. Below a folder, parts that begin with a dot or an underscore
are hidden. A file whose name is the URL itself comes first: names may hold ``*``.

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
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from dp_transforms.checks import how_to_install, without_secrets
from dp_transforms.errors import UserError

Content = bytes | BinaryIO  # a file from its beginning on, wherever it stands
SEQUENTIAL_BYTES = 8 << 20  # read at once where a file is read from its beginning on
_SCHEMES = {"s3": "bucket", "gs": "bucket", "azfs": "account"}  # what follows each
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,221}")  # obstore aborts with a trace at one that is no host name
_SPECIAL = re.compile(r"[*?\[]")
_LOGIN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of a profile with"
    ' eval "$(aws configure export-credentials --format env)", or give the machine a role',
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "azfs": "set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_USE_AZURE_CLI=true after `az login`, or give the machine an"
    " identity",
}
_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h"}
_RETRIES = {"max_retries": 4, "retry_timeout": datetime.timedelta(minutes=3)}
_used_in: int | None = None  # the process
_Answer = TypeVar("_Answer")


class UrlError(UserError, ValueError):
    """A URL that is not used. It says why without the URL, which may hold a secret."""


class RemoteFileError(OSError):
    """A store that refuses or does not answer. `strerror`: why, with the remedy; no secret and no cell."""


class FileChangedError(RemoteFileError):
    """The file is not the version any more that was found."""


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
    scheme, name = found[1], found[2].partition("/")[0]
    if "@" in name or without_secrets(found[0]) != found[0]:
        raise UrlError(
            f"a URL {scheme}://... holds a password or a signature, which every process of the machine could read."
            " Leave it out of the URL: stores take their credentials from the environment (docs/stores.md)."
        )
    if scheme not in _SCHEMES or not name:
        known = ", ".join(f"{known}://{name.upper()}" for known, name in _SCHEMES.items())
        raise UrlError(
            f"a URL must begin with one of {known}, not with {scheme}://. Copy files of another store, or mount it"
            " (docs/stores.md)."
        )
    return True


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


def _root_of(url: str) -> str:
    """The part of a URL that names the store: all up to what the store calls a path."""
    scheme, rest = url.split("://", 1)
    names = [*rest.split("/"), ""][: 2 if scheme == "azfs" else 1]  # of an account, and its container
    if not all(map(_BUCKET.fullmatch, names)):
        raise _fault(url, f"its name is not one that a store allows: check the name of the {_SCHEMES[scheme]}")
    return "/".join([f"{scheme}:/", *names, ""])


def is_meant(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob means a file, or a folder above it in which it is visible. Both are cut at their slashes."""
    if not pattern:
        return all(part[:1] not in ("", ".", "_") for part in name)
    part, wanted = name[0] if name else "", pattern[0]
    if wanted == "**":
        return is_meant(name, pattern[1:]) or (part[:1] not in ("", ".") and is_meant(name[1:], pattern))
    is_hidden = part.startswith(".") and _SPECIAL.match(wanted)
    return bool(name) and not is_hidden and fnmatch.fnmatchcase(part, wanted) and is_meant(name[1:], pattern[1:])


def ask(url: str, question: Callable[[Any, Any, str], _Answer], *, is_read: bool = False) -> _Answer:
    """What obstore answers. question: of obstore, the store of a URL, and the path in it. is_read: of one version.

    Raises OSError in words of ours: FileNotFoundError, FileExistsError, FileChangedError or RemoteFileError.
    """
    global _used_in
    obstore, root = _import_obstore(), _root_of(url)
    _used_in = _used_in or os.getpid()
    if _used_in != os.getpid():  # obstore would wait for ever
        raise _fault(url, "this process was forked from one that has used a store: start processes by spawn")
    relevant = ("AWS_", "GOOGLE_", "AZURE_")
    store = _open_store(root, frozenset(each for each in os.environ.items() if each[0].startswith(relevant)))
    answers: list[_Answer | BaseException] = []

    def wait() -> None:
        try:
            answers.append(question(obstore, store, url[len(root) :]))
        except BaseException as error:  # obstore's own panics are no Exception
            answers.append(error)

    thread = threading.Thread(target=wait, daemon=True)  # who waits in obstore hears no signal, such as Ctrl-C
    thread.start()
    thread.join()
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise _in_our_words(url, answer, is_read) from None
    return answer


def _import_obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        problem = f"the package obstore is not installed, on this or another machine. {how_to_install('stores')}"
        raise RemoteFileError(errno.ENOPKG, problem.removesuffix(".")) from None
    return obstore


@functools.lru_cache(maxsize=64)
def _open_store(root: str, settings: frozenset[tuple[str, str]]) -> Any:
    """settings: the environment, as far as a store depends on it; obstore reads it too."""
    scheme, _, *names = root.rstrip("/").split("/")
    given, more = dict(settings), {}
    endpoint = given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") if scheme == "s3:" else None
    if endpoint:
        more["endpoint"] = endpoint
    if scheme == "azfs:":
        more["account_name"] = names[0]
    options = _CLIENT | {"allow_http": (endpoint or "").startswith("http://")}
    obstore = _import_obstore().store
    kind = {"s3:": obstore.S3Store, "gs:": obstore.GCSStore, "azfs:": obstore.AzureStore}[scheme]
    try:
        if not (endpoint or "https://").startswith(("http://", "https://")):  # obstore would abort with a trace
            raise ValueError
        return kind(names[-1], client_options=options, retry_config=_RETRIES, **more)
    except Exception:  # its words may hold a setting
        raise _fault(root, "its settings cannot be used: check the endpoint and the credentials") from None


def _fault(url: str, problem: str) -> RemoteFileError:
    return RemoteFileError(errno.EIO, problem, url)


def _in_our_words(url: str, error: BaseException, is_read: bool) -> OSError:
    text, login = str(error), _LOGIN[url.partition(":")[0]]
    if isinstance(error, RemoteFileError):
        return error
    if isinstance(error, _import_obstore().exceptions.AlreadyExistsError):
        return FileExistsError(errno.EEXIST, "a file of this name exists in the store", url)
    is_absent = isinstance(error, FileNotFoundError) or "status code: 404" in text
    if is_read and (is_absent or re.search(r"status code: 41[26]", text)):
        problem = "it was changed or removed while it was read: use files that nobody writes to any more"
        return FileChangedError(errno.ESTALE, problem, url)
    if is_absent:
        problem = "there is no such bucket: check its name, the region and the endpoint"
        return FileNotFoundError(errno.ENOENT, problem, url)
    if re.search(r"169\.254\.169\.254|/latest/api/token|token request", text):
        return _fault(url, f"there are no credentials for the store: {login}")
    if status := re.search(r"status code: ([0-9]{3})", text):
        return _fault(
            url,
            f"the store answers with status {status[1]}: check the name, the region, the rights to list, read and write"
            f" there, and the credentials ({login})",
        )
    if "invalid path" in text:
        return _fault(url, "a name there has an empty part, or a line end in it: rename that, or name other files")
    return _fault(url, "the store cannot be reached, or does not answer as it should: check the network and the region")


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the name of an output is taken, by whatever. Raises OSError only for a URL."""
    return _look(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


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


def _version(url: str, found: Mapping[str, Any]) -> StoredFile:
    if not found["e_tag"]:
        problem = "the store gives its files no ETag, so a change would not be seen: use another store, or a path"
        raise _fault(url, problem)
    return StoredFile(url, found["size"], '"{}"'.format(found["e_tag"].strip('"')))  # lists of Azure have no quotes


def find_files(source: str) -> list[StoredFile]:
    """The files that a URL names (a file, a folder, a glob), in the order of their URLs, each once. A folder without
    files has none: stores know no folders.

    Nothing is left out for its ending, but what is hidden is. Raises OSError.
    """
    root = _root_of(source)
    wanted = source[len(root) :].strip("/")
    if wanted and not source.endswith("/") and (exact := _look(source)) is not None:
        return [exact]
    special = _SPECIAL.search(wanted)
    beginning = wanted[: special.start()] if special else f"{wanted}/" if wanted else ""
    pattern = wanted.split("/") if wanted else []
    return [file for file in list_beginning(root + beginning) if is_meant(file.url[len(root) :].split("/"), pattern)]


def list_beginning(beginning: str) -> list[StoredFile]:
    """All files whose URL begins so, in order."""
    root = _root_of(beginning)
    wanted = beginning[len(root) :]
    folder = wanted.rpartition("/")[0] or None
    listed = ask(beginning, lambda obstore, store, _: obstore.list(store, folder).collect())
    files = [_version(root + found["path"], found) for found in listed if found["path"].startswith(wanted)]
    # Some tools mark a folder by an empty file with its name and a slash, which obstore leaves out.
    return sorted((file for file in files if file.size or _look(file.url)), key=lambda file: file.url)


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
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence] + offset
        return self._at

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
    try:
        _put(url, content, "create")
    except (FileExistsError, RemoteFileError):
        if not _holds(url, content):  # else by this very request, whose first answer was lost
            raise


def put_over(url: str, content: Content) -> None:
    """The same in the place of what has the name: for a step that may run twice."""
    _put(url, content, "overwrite")


def _put(url: str, content: Content, mode: str) -> None:
    source = _from_begin(content)
    ask(url, lambda obstore, store, path: obstore.put(store, path, source, mode=mode, use_multipart=False))


def _from_begin(content: Content) -> BinaryIO:
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    source.seek(0)
    return source


def _holds(url: str, content: Content) -> bool:
    """Also False where nobody knows: then the first error says more."""
    source = _from_begin(content)
    with contextlib.suppress(OSError), open_stored(look_at(url)) as stored:
        while piece := source.read(SEQUENTIAL_BYTES):
            if piece != stored.read(len(piece)):
                return False
        return not stored.read(1)
    return False


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
