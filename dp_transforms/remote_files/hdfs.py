"""HDFS, through WebHDFS: the HTTP interface of a name node, ``hdfs://host:9870/folder/name``. Without Kerberos.

HDFS has no conditional reads, but a file that is replaced has another number, and bytes that are written stay as they
are: so after each range its status is asked for, which must be that of the version (Hadoop's file system specification,
"Atomicity"; an appended file has another length). A file is written under a hidden name and renamed, which is atomic
and fails if the name is taken.

No library is needed, and no JVM. The user is ``HADOOP_USER_NAME``, or the one of this process.
"""

from __future__ import annotations

import contextlib
import getpass
import heapq
import http.client
import json
import os
import posixpath
import secrets
import urllib.parse
from collections.abc import Iterator
from typing import Any

from dp_transforms.remote_files.stored_file import (
    Content,
    StoredFile,
    already_there,
    broken_answer,
    changed,
    fault,
    missing,
    split_url,
)

_SECONDS = 60
_MOST_ANSWER_BYTES = 64 << 20  # of a name node
_DRAFT = ".partial"


class _RemoteError(Exception):
    """An answer of the name node. kind: the name of the exception there."""

    def __init__(self, status: int, kind: str) -> None:
        super().__init__(kind)
        self.status, self.kind = status, kind


def store() -> HdfsStore:
    return HdfsStore()


class HdfsStore:
    """Implements `stored_file.FileStore`. Versions are number, length and time of the last change."""

    def look(self, url: str) -> StoredFile | None:
        try:
            found = self._ask("GET", url, "GETFILESTATUS")["FileStatus"]
        except _RemoteError as error:
            if error.kind == "FileNotFoundException":
                return None
            raise self._error(url, error) from None
        return _stored(url, found) if found["type"] == "FILE" else None

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        try:
            with self._answer("GET", file.url, "OPEN", None, offset=begin, length=length) as answer:
                data: bytes = answer.read(length + 1)
        except _RemoteError as error:
            if error.kind == "FileNotFoundException":
                raise changed(file.url) from None
            raise self._error(file.url, error) from None
        except (OSError, http.client.HTTPException):
            raise broken_answer(file.url) from None
        if self.look(file.url) != file:
            raise changed(file.url)
        return data

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        folder = prefix.rpartition("/")[0]
        try:
            yield from self._files_below(folder, prefix)
        except _RemoteError as error:
            if error.kind != "FileNotFoundException":
                raise self._error(prefix, error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        folder, name = posixpath.split(url)
        draft = f"{folder}/.{name}.{secrets.token_hex(8)}{_DRAFT}"
        if not isinstance(content, bytes):
            content.seek(0)
        options = "NONE" if only_new else "OVERWRITE"
        try:
            with self._answer("PUT", draft, "CREATE", content, overwrite="false"):
                pass
            path = f"/{split_url(url).key}"
            with self._answer("PUT", draft, "RENAME", None, destination=path, renameoptions=options):
                pass
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.remove(draft)
            if isinstance(error, _RemoteError):
                if error.kind == "FileAlreadyExistsException":
                    raise already_there(url) from None
                raise self._error(url, error) from None
            if isinstance(error, http.client.HTTPException):
                raise broken_answer(url) from None
            raise

    def remove(self, url: str) -> None:
        try:
            self._ask("DELETE", url, "DELETE")
            folder = posixpath.dirname(url)
            if folder.endswith(_DRAFT):
                self._ask("DELETE", folder, "DELETE")
        except _RemoteError as error:
            raise self._error(url, error) from None

    def _files_below(self, folder: str, prefix: str) -> Iterator[StoredFile]:
        """Those whose URL begins with ``prefix``, in the order of their URLs.

        A name node lists the folder ``a`` before the file ``a.csv``, but ``a.csv`` comes before ``a/b.csv``: so a
        folder waits until all names are listed that come before ``a/``.
        """
        waiting: list[bytes] = []
        for status in self._entries(folder):
            name = status["pathSuffix"].encode()
            while waiting and waiting[0] < name:
                yield from self._files_below(f"{folder}/{heapq.heappop(waiting)[:-1].decode()}", prefix)
            url = f"{folder}/{status['pathSuffix']}"
            if status["type"] == "FILE" and url.startswith(prefix):
                yield _stored(url, status)
            elif status["type"] == "DIRECTORY" and f"{url}/".startswith(prefix[: len(url) + 1]):
                heapq.heappush(waiting, name + b"/")
        while waiting:
            yield from self._files_below(f"{folder}/{heapq.heappop(waiting)[:-1].decode()}", prefix)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        after = ""
        while True:
            listing = self._ask("GET", folder, "LISTSTATUS_BATCH", startAfter=after)["DirectoryListing"]
            page = listing["partialListing"]["FileStatuses"]["FileStatus"]
            yield from page
            if not listing["remainingEntries"] or not page:
                return
            after = page[-1]["pathSuffix"]

    def _ask(self, method: str, url: str, operation: str, **parameters: object) -> Any:
        """What a name node answers. Raises _RemoteError, or RemoteFileError if there is no answer."""
        try:
            with self._answer(method, url, operation, None, **parameters) as answer:
                return json.loads(answer.read(_MOST_ANSWER_BYTES))
        except (ValueError, http.client.HTTPException):
            raise broken_answer(url) from None

    @contextlib.contextmanager
    def _answer(
        self, method: str, url: str, operation: str, body: Content | None, **parameters: object
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer, at the data node that the name node names. body: is sent there alone."""
        _, host, key = split_url(url)
        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        query = urllib.parse.urlencode({"op": operation, "user.name": user, **parameters})
        where = f"http://{host}/webhdfs/v1/{urllib.parse.quote(key)}?{query}"
        with contextlib.ExitStack() as stack:
            answer = _send(stack, url, method, where, None)
            if answer.status in (301, 302, 303, 307, 308):
                answer = _send(stack, url, method, answer.headers["Location"], body)
            if answer.status >= 400:
                raise _RemoteError(answer.status, _kind(answer.read(1 << 16)))
            yield answer

    def _error(self, url: str, error: _RemoteError) -> OSError:
        """Without the words of the name node."""
        if error.kind == "FileNotFoundException":
            return missing(url)
        if error.kind == "AccessControlException":
            return fault(url, "HDFS denies the access: check its rights, and HADOOP_USER_NAME")
        if error.status == 401:
            return fault(url, "the name node asks for Kerberos, which is not supported: copy the files, or mount them")
        if error.kind == "StandbyException":
            return fault(url, "this name node is on standby: name the active one")
        return fault(url, f"HDFS answered with an error ({error.status} {error.kind}): ask its operator")


def _send(
    stack: contextlib.ExitStack, url: str, method: str, where: str, body: Content | None
) -> http.client.HTTPResponse:
    parts = urllib.parse.urlsplit(where)
    headers = {}
    if body is not None:
        size = len(body) if isinstance(body, bytes) else body.seek(0, os.SEEK_END) - body.seek(0)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    try:
        connection = http.client.HTTPConnection(parts.netloc, timeout=_SECONDS)
        stack.callback(connection.close)
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        return connection.getresponse()
    except http.client.RemoteDisconnected:
        raise broken_answer(url) from None
    except (OSError, http.client.InvalidURL):
        problem = "the name node or a data node cannot be reached: check the network, and that the port is the one of"
        raise fault(url, f"{problem} WebHDFS (9870)") from None


def _stored(url: str, status: dict[str, Any]) -> StoredFile:
    version = f"{status['fileId']}-{status['length']}-{status['modificationTime']}"
    return StoredFile(url, int(status["length"]), version)


def _kind(text: bytes) -> str:
    """The name of the exception in an answer: letters alone."""
    try:
        kind = str(json.loads(text)["RemoteException"]["exception"])
    except (ValueError, KeyError, TypeError):
        return ""
    return kind if kind.isalpha() else ""
