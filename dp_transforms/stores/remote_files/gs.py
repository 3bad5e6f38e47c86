"""Google Cloud Storage, and its emulator at ``STORAGE_EMULATOR_HOST``: through google-cloud-storage.

Each version of an object has a generation, and requests may name the one that they mean; generation 0 is "not there"
(its documentation, Request preconditions). An upload adds the whole object or nothing, and is seen at once (the same,
Consistency).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from dp_transforms.stores.remote_files.stored_file import (
    Content,
    StoredFile,
    already_there,
    broken_answer,
    changed,
    fault,
    is_stored,
    needs_package,
    no_bucket,
    split_url,
)

_SECONDS = 60
_CREDENTIALS = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"


def store() -> GoogleStore:
    return _store(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"), os.environ.get("GOOGLE_CLOUD_PROJECT"))


@functools.lru_cache(maxsize=4)
def _store(process: int, emulator: str | None, project: str | None) -> GoogleStore:
    """One for each process: connections do not survive a fork."""
    del process
    return GoogleStore(emulator, project)


class GoogleStore:
    """Implements `stored_file.FileStore`. Versions are generations."""

    def __init__(self, emulator: str | None = None, project: str | None = None) -> None:
        try:
            from google.api_core import exceptions
            from google.auth import credentials
            from google.auth import exceptions as auth
            from google.cloud import storage
        except ImportError:
            raise needs_package("gs://", "google-cloud-storage", "gcp") from None
        self._errors: Any = exceptions
        try:
            if emulator:
                anonymous = credentials.AnonymousCredentials()  # type: ignore[no-untyped-call]
                self._client: Any = storage.Client(project or "emulator", credentials=anonymous)
            else:
                self._client = storage.Client(project)
        except (auth.GoogleAuthError, OSError):
            raise fault("gs://", f"there are no credentials for the store: {_CREDENTIALS}") from None

    def look(self, url: str) -> StoredFile | None:
        _, bucket, key = split_url(url)
        try:
            found = self._client.bucket(bucket).get_blob(key, timeout=_SECONDS)
        except Exception as error:
            raise self._error(url, error) from None
        return None if found is None else _stored(bucket, found)

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        _, bucket, key = split_url(file.url)
        blob = self._client.bucket(bucket).blob(key, generation=int(file.version))
        try:
            data: bytes = blob.download_as_bytes(
                start=begin,
                end=begin + length - 1,
                if_generation_match=int(file.version),
                checksum=None,  # a range has none
                raw_download=True,  # the bytes as they are stored, also where they are said to be packed
                timeout=_SECONDS,
            )
        except (self._errors.NotFound, self._errors.PreconditionFailed, self._errors.RequestRangeNotSatisfiable):
            raise changed(file.url) from None
        except Exception as error:
            raise self._error(file.url, error) from None
        return data

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        _, bucket, start = split_url(prefix)
        fields = "items(name,size,generation),nextPageToken"
        try:
            for found in self._client.list_blobs(bucket, prefix=start, fields=fields, timeout=_SECONDS):
                yield _stored(bucket, found)
        except Exception as error:
            raise self._error(prefix, error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        _, bucket, key = split_url(url)
        blob = self._client.bucket(bucket).blob(key)
        condition = {"if_generation_match": 0} if only_new else {}
        try:
            if isinstance(content, bytes):
                blob.upload_from_string(content, "application/octet-stream", timeout=_SECONDS, **condition)
            else:
                size = content.seek(0, os.SEEK_END)
                blob.upload_from_file(content, rewind=True, size=size, timeout=_SECONDS, **condition)
        except self._errors.PreconditionFailed as error:
            if not only_new:
                raise self._error(url, error) from None
            if not is_stored(self, url, content):  # else an earlier answer was lost
                raise already_there(url) from None
        except Exception as error:
            raise self._error(url, error) from None

    def remove(self, url: str) -> None:
        _, bucket, key = split_url(url)
        try:
            self._client.bucket(bucket).blob(key).delete(timeout=_SECONDS)
        except self._errors.NotFound:
            return
        except Exception as error:
            raise self._error(url, error) from None

    def _error(self, url: str, error: Exception) -> OSError:
        """Without the words of the library."""
        from google.auth import exceptions as auth

        errors = self._errors
        if isinstance(error, errors.NotFound):
            return no_bucket(url)
        if isinstance(error, (auth.GoogleAuthError, errors.Unauthorized)):
            return fault(url, f"the store does not accept the credentials: {_CREDENTIALS}")
        if isinstance(error, errors.Forbidden):
            return fault(url, "the store denies the access: check the rights to list, read and write there")
        if isinstance(error, errors.GoogleAPICallError):
            shown = f"{type(error).__name__} {error.code}"
            return fault(url, f"the store answered with an error ({shown}): try again, or ask its operator")
        return broken_answer(url)


def _stored(bucket: str, found: Any) -> StoredFile:
    return StoredFile(f"gs://{bucket}/{found.name}", int(found.size), str(found.generation))
