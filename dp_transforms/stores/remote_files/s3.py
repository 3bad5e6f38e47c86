"""Amazon S3, and whatever speaks its protocol at ``AWS_ENDPOINT_URL``: through boto3, which finds credentials.

What S3 says, and this module relies on: a PUT adds the whole object or nothing, and what it added is seen at once
("Amazon S3 never adds partial objects", "strong read-after-write consistency": the user guide, PutObject and Data
consistency model). With ``If-None-Match: *`` a PUT fails with 412 where the key exists, and of several at the same
moment one succeeds (the user guide, Conditional writes). A GET with ``If-Match`` fails with 412 for another version.
pyarrow's S3FileSystem offers none of these conditions, and neither does Beam's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import Any

from dp_transforms.stores.remote_files.stored_file import (
    Content,
    RemoteFileError,
    StoredFile,
    already_there,
    broken_answer,
    changed,
    fault,
    is_stored,
    missing,
    needs_package,
    no_bucket,
    split_url,
)

_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_ATTEMPTS = 5
_MOST_PUT_BYTES = 5 << 30  # of one PUT
_CONFLICT_PAUSES = (0.2, 1.0, 3.0)
_MISSING = ("404", "NoSuchKey", "NotFound")
_NO_BUCKET = "NoSuchBucket"
_CHANGED = ("412", "PreconditionFailed")
_CREDENTIALS = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_REFUSED = {
    "403": "the store denies the access: check the rights to list, read and write there, and the spelling of the name",
    "AccessDenied": "the store denies the access: check the rights to list, read and write there",
    "InvalidAccessKeyId": f"the store does not know the access key: {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the store refuses the signature of the secret key: {_CREDENTIALS}",
    "ExpiredToken": "the session of the credentials has expired: log in again",
    "NotImplemented": "the store does not know conditional writes, by which a file appears whole and replaces none:"
    " use another store, or write to a path",
    "InvalidObjectState": "it is in an archive: restore it first",
}


def store() -> S3Store:
    return _store(os.getpid(), *(os.environ.get(name) for name in _SETTINGS))


_SETTINGS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    *("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
)


@functools.lru_cache(maxsize=4)
def _store(process: int, *settings: str | None) -> S3Store:
    """One for each process: connections do not survive a fork."""
    del process, settings
    return S3Store()


class S3Store:
    """Implements `stored_file.FileStore`. Versions are ETags."""

    def __init__(self) -> None:
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError:
            raise needs_package("s3://", "boto3", "s3") from None
        self._errors = botocore.exceptions
        config = botocore.config.Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=32,
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", config=config)
        except (ValueError, botocore.exceptions.BotoCoreError) as error:
            raise self._error("s3://", error) from None

    def look(self, url: str) -> StoredFile | None:
        _, bucket, key = split_url(url)
        try:
            found = self._client.head_object(Bucket=bucket, Key=key)
        except Exception as error:
            if self._code(error) in _MISSING:
                return None
            raise self._error(url, error) from None
        return StoredFile(url, int(found["ContentLength"]), found["ETag"])

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        _, bucket, key = split_url(file.url)
        wanted = f"bytes={begin}-{begin + length - 1}"
        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, Range=wanted, IfMatch=file.version)
            with contextlib.closing(answer["Body"]) as body:
                data: bytes = body.read()
        except Exception as error:
            if self._code(error) in (*_CHANGED, *_MISSING, "InvalidRange", "416"):
                raise changed(file.url) from None
            errors = self._errors
            if isinstance(error, (errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError, OSError)):
                raise self._broken(file.url, error) from None
            raise self._error(file.url, error) from None
        return data

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        _, bucket, start = split_url(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start)
        try:
            for page in pages:
                for found in page.get("Contents", ()):
                    yield StoredFile(f"s3://{bucket}/{found['Key']}", int(found["Size"]), found["ETag"])
        except Exception as error:
            raise self._error(prefix, error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        _, bucket, key = split_url(url)
        size = _size(content)
        if size > _MOST_PUT_BYTES:
            raise fault(url, f"it has {size / 1e9:.1f} GB, and a PUT takes 5 GB: write to a path, and copy that")
        condition = {"IfNoneMatch": "*"} if only_new else {}
        for pause in (*_CONFLICT_PAUSES, None):
            try:
                if not isinstance(content, bytes):
                    content.seek(0)
                self._client.put_object(Bucket=bucket, Key=key, Body=content, **condition)
            except Exception as error:
                code = self._code(error)
                if code in ("409", "ConditionalRequestConflict", "OperationAborted") and pause is not None:
                    time.sleep(pause)  # another one was writing or removing the key
                    continue
                if code in _CHANGED and only_new:
                    if is_stored(self, url, content):
                        return  # the answer to an earlier attempt was lost, and boto3 has tried again
                    raise already_there(url) from None
                if only_new and isinstance(error, self._errors.HTTPClientError):
                    with contextlib.suppress(OSError):  # no answer came: perhaps the object did
                        if is_stored(self, url, content):
                            return
                raise self._error(url, error) from None
            return

    def remove(self, url: str) -> None:
        _, bucket, key = split_url(url)
        try:
            self._client.delete_object(Bucket=bucket, Key=key)
        except Exception as error:
            raise self._error(url, error) from None

    def _code(self, error: Exception) -> str:
        if not isinstance(error, self._errors.ClientError):
            return ""
        return str(error.response.get("Error", {}).get("Code", ""))

    def _broken(self, url: str, error: Exception) -> OSError:
        """A connection that cannot be made was tried often enough; one that broke may be tried again."""
        is_dead = isinstance(error, (self._errors.EndpointConnectionError, self._errors.ConnectTimeoutError))
        return self._error(url, error) if is_dead else broken_answer(url)

    def _error(self, url: str, error: Exception) -> OSError:
        """Without the words of the library: they may hold what the operator should not see on a terminal."""
        if isinstance(error, RemoteFileError):
            return error
        errors, code = self._errors, self._code(error)
        if code == _NO_BUCKET:
            return no_bucket(url)
        if code in _MISSING:
            return missing(url)
        if code in _REFUSED:
            return fault(url, _REFUSED[code])
        if isinstance(error, (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound)):
            return fault(url, f"there are no credentials for the store: {_CREDENTIALS}")
        if isinstance(error, (errors.CredentialRetrievalError, errors.TokenRetrievalError, errors.SSOError)):
            return fault(url, "the credentials cannot be fetched: log in again")
        if isinstance(error, errors.ParamValidationError):
            return fault(url, "its name is not one that a store allows: check the name of the bucket")
        if isinstance(error, (errors.HTTPClientError, errors.ConnectionError, OSError)):
            return fault(url, "the store cannot be reached: check the network, and AWS_ENDPOINT_URL if it is set")
        shown = f"{type(error).__name__} {code}".strip()
        return fault(url, f"the store answered with an error ({shown}): try again, or ask its operator")


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.seek(0, os.SEEK_END)
