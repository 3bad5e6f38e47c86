"""The kinds of stores: how each is asked, and what the errors of its library mean.

S3 and what speaks its protocol, through boto3. A PUT with ``If-None-Match: *`` fails with 412 where the key exists, and
of several at the same moment one succeeds (the user guide, Conditional writes). A GET with ``If-Match`` fails with 412
for another version. pyarrow's S3FileSystem offers none of these conditions, and neither does Beam's.

Google Cloud Storage, and its emulator at ``STORAGE_EMULATOR_HOST``: through google-cloud-storage. Each version of an
object has a generation, and requests may name the one that they mean; generation 0 is "not there" (its documentation,
Request preconditions). An upload adds the whole object or nothing, and is seen at once (the same, Consistency).

Azure Blob Storage, ``azfs://account/container/name`` as Beam spells it: through azure-storage-blob. Reads name the ETag
that they mean (``If-Match``), and a new blob is written under ``If-None-Match: *`` (its documentation, Conditional
headers for Blob service operations). A blob appears whole: one request adds it, or one commits its blocks.
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
    FileStore,
    RemoteFileError,
    Url,
    already_there,
    broken_answer,
    denied,
    fault,
    missing,
    needs_package,
    no_bucket,
    odd_answer,
)

_CONNECT_SECONDS, _SECONDS = 10, 60
_S3_ATTEMPTS = 5
_MOST_PUT_BYTES = 5 << 30  # of one PUT
_CONFLICT_PAUSES = (0.2, 1.0, 3.0)
_MISSING, _OTHER_VERSION = ("404", "NoSuchKey", "NotFound"), ("412", "PreconditionFailed")
_S3_CODES = {
    "absent": _MISSING,
    "changed": (*_OTHER_VERSION, *_MISSING, "InvalidRange", "416"),
    "taken": _OTHER_VERSION,
}
_S3_LOGIN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_GOOGLE_LOGIN = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
_AZURE_LOGIN = "run `az login`, set AZURE_STORAGE_CONNECTION_STRING, or give the machine an identity"
_REFUSED = {
    "403": "the store denies the access: check the rights to list, read and write there, and the spelling of the name",
    "AccessDenied": "the store denies the access: check the rights to list, read and write there",
    "InvalidAccessKeyId": f"the store does not know the access key: {_S3_LOGIN}",
    "SignatureDoesNotMatch": f"the store refuses the signature of the secret key: {_S3_LOGIN}",
    "ExpiredToken": "the session of the credentials has expired: log in again",
    "NotImplemented": "the store does not know conditional writes, by which a file appears whole and replaces none:"
    " use another store, or write to a path",
    "InvalidObjectState": "it is in an archive: restore it first",
}
# What a client depends on. Another one is made where it has changed.
_SETTINGS = {
    "s3": (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    ),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT"),
    "azfs": ("AZURE_STORAGE_CONNECTION_STRING",),
}


def store_of_scheme(scheme: str) -> FileStore:
    """Raises RemoteFileError if its library is missing, or has no credentials."""
    return _store(scheme, os.getpid(), *(os.environ.get(name) for name in _SETTINGS[scheme]))


@functools.lru_cache(maxsize=12)
def _store(scheme: str, process: int, *settings: str | None) -> FileStore:
    """One for each process: connections do not survive a fork."""
    del process
    if scheme == "s3":
        return S3Store()
    return GoogleStore(*settings) if scheme == "gs" else AzureStore(*settings)


class S3Store(FileStore):
    """Versions are ETags."""

    def __init__(self) -> None:
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError:
            raise needs_package("s3://", "boto3", "s3") from None
        self._errors = botocore.exceptions
        self._meanings = {"lost": (self._errors.HTTPClientError,)}
        config = botocore.config.Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _S3_ATTEMPTS},
            max_pool_connections=32,
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", config=config)
        except (ValueError, botocore.exceptions.BotoCoreError) as error:
            raise self._fault("s3://", error) from None

    def _head(self, at: Url) -> tuple[int, str]:
        found = self._client.head_object(Bucket=at.host, Key=at.key)
        return int(found["ContentLength"]), found["ETag"]

    def _get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        wanted = f"bytes={begin}-{begin + length - 1}"
        answer = self._client.get_object(Bucket=at.host, Key=at.key, Range=wanted, IfMatch=version)
        with contextlib.closing(answer["Body"]) as body:
            data: bytes = body.read()
        return data

    def _list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=at.host, Prefix=at.key):
            for found in page.get("Contents", ()):
                yield found["Key"], int(found["Size"]), found["ETag"]

    def _send(self, at: Url, content: Content, only_new: bool) -> None:
        size = len(content) if isinstance(content, bytes) else content.seek(0, os.SEEK_END)
        if size > _MOST_PUT_BYTES:
            problem = f"it has {size / 1e9:.1f} GB, and a PUT takes 5 GB: write to a path, and copy that"
            raise fault(f"s3://{at.host}/{at.key}", problem)
        condition = {"IfNoneMatch": "*"} if only_new else {}
        for pause in (*_CONFLICT_PAUSES, None):
            try:
                if not isinstance(content, bytes):
                    content.seek(0)
                self._client.put_object(Bucket=at.host, Key=at.key, Body=content, **condition)
                return
            except self._errors.ClientError as error:
                is_conflict = self._code(error) in ("409", "ConditionalRequestConflict", "OperationAborted")
                if pause is None or not is_conflict:
                    raise
                time.sleep(pause)  # another one was writing or removing the key

    def _delete(self, at: Url) -> None:
        self._client.delete_object(Bucket=at.host, Key=at.key)

    def _is(self, meaning: str, error: Exception) -> bool:
        return super()._is(meaning, error) or self._code(error) in _S3_CODES.get(meaning, ())

    def _code(self, error: Exception) -> str:
        if not isinstance(error, self._errors.ClientError):
            return ""
        return str(error.response.get("Error", {}).get("Code", ""))

    def _fault_of_read(self, url: str, error: Exception) -> OSError:
        """A connection that cannot be made was tried often enough; one that broke may be tried again."""
        errors = self._errors
        is_dead = isinstance(error, (errors.EndpointConnectionError, errors.ConnectTimeoutError))
        broke = (errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError, OSError)
        return broken_answer(url) if isinstance(error, broke) and not is_dead else self._fault(url, error)

    def _fault(self, url: str, error: Exception) -> OSError:
        if isinstance(error, RemoteFileError):
            return error
        errors, code = self._errors, self._code(error)
        if code == "NoSuchBucket":
            return no_bucket(url)
        if code in _MISSING:
            return missing(url)
        if code in _REFUSED:
            return fault(url, _REFUSED[code])
        if isinstance(error, (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound)):
            return fault(url, f"there are no credentials for the store: {_S3_LOGIN}")
        if isinstance(error, (errors.CredentialRetrievalError, errors.TokenRetrievalError, errors.SSOError)):
            return fault(url, "the credentials cannot be fetched: log in again")
        if isinstance(error, errors.ParamValidationError):
            return fault(url, "its name is not one that a store allows: check the name of the bucket")
        if isinstance(error, (errors.HTTPClientError, errors.ConnectionError, OSError)):
            return fault(url, "the store cannot be reached: check the network, and AWS_ENDPOINT_URL if it is set")
        return odd_answer(url, f"{type(error).__name__} {code}".strip())


class GoogleStore(FileStore):
    """Versions are generations."""

    def __init__(self, emulator: str | None = None, project: str | None = None) -> None:
        try:
            from google.api_core import exceptions
            from google.auth import credentials
            from google.auth import exceptions as auth
            from google.cloud import storage
        except ImportError:
            raise needs_package("gs://", "google-cloud-storage", "gcp") from None
        self._errors: Any = exceptions
        self._auth_error: Any = auth.GoogleAuthError
        self._meanings = {
            "absent": (exceptions.NotFound,),
            "changed": (exceptions.NotFound, exceptions.PreconditionFailed, exceptions.RequestRangeNotSatisfiable),
            "taken": (exceptions.PreconditionFailed,),
        }
        try:
            if emulator:
                anonymous = credentials.AnonymousCredentials()  # type: ignore[no-untyped-call]
                self._client: Any = storage.Client(project or "emulator", credentials=anonymous)
            else:
                self._client = storage.Client(project)
        except (auth.GoogleAuthError, OSError):
            raise fault("gs://", f"there are no credentials for the store: {_GOOGLE_LOGIN}") from None

    def _head(self, at: Url) -> tuple[int, str] | None:
        found = self._client.bucket(at.host).get_blob(at.key, timeout=_SECONDS)
        return None if found is None else (int(found.size), str(found.generation))

    def _get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        data: bytes = (
            self._client.bucket(at.host)
            .blob(at.key, generation=int(version))
            .download_as_bytes(
                start=begin,
                end=begin + length - 1,
                if_generation_match=int(version),
                checksum=None,  # a range has none
                raw_download=True,  # the bytes as they are stored, also where they are said to be packed
                timeout=_SECONDS,
            )
        )
        return data

    def _list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        fields = "items(name,size,generation),nextPageToken"
        for found in self._client.list_blobs(at.host, prefix=at.key, fields=fields, timeout=_SECONDS):
            yield found.name, int(found.size), str(found.generation)

    def _send(self, at: Url, content: Content, only_new: bool) -> None:
        blob = self._client.bucket(at.host).blob(at.key)
        condition = {"if_generation_match": 0} if only_new else {}
        if isinstance(content, bytes):
            blob.upload_from_string(content, "application/octet-stream", timeout=_SECONDS, **condition)
        else:
            size = content.seek(0, os.SEEK_END)
            blob.upload_from_file(content, rewind=True, size=size, timeout=_SECONDS, **condition)

    def _delete(self, at: Url) -> None:
        self._client.bucket(at.host).blob(at.key).delete(timeout=_SECONDS)

    def _fault(self, url: str, error: Exception) -> OSError:
        errors = self._errors
        if isinstance(error, errors.NotFound):
            return no_bucket(url)
        if isinstance(error, (self._auth_error, errors.Unauthorized)):
            return fault(url, f"the store does not accept the credentials: {_GOOGLE_LOGIN}")
        if isinstance(error, errors.Forbidden):
            return denied(url)
        if isinstance(error, errors.GoogleAPICallError):
            return odd_answer(url, f"{type(error).__name__} {error.code}")
        return broken_answer(url)


class AzureStore(FileStore):
    """Versions are ETags. connection: a connection string; None: an identity."""

    def __init__(self, connection: str | None = None) -> None:
        try:
            from azure.core import MatchConditions, exceptions
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise needs_package("azfs://", "azure-storage-blob", "azure") from None
        self._errors: Any = exceptions
        self._meanings = {
            "absent": (exceptions.ResourceNotFoundError,),
            "changed": (exceptions.ResourceNotFoundError, exceptions.ResourceModifiedError),
            "taken": (exceptions.ResourceExistsError,),
        }
        self._same: Any = MatchConditions.IfNotModified
        self._connection = connection
        self._service: Any = BlobServiceClient
        self._clients: dict[str, Any] = {}

    def _head(self, at: Url) -> tuple[int, str]:
        found = self._blob(at).get_blob_properties()
        return int(found.size), _quoted(found.etag)

    def _get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        answer = self._blob(at).download_blob(
            begin, length, etag=version, match_condition=self._same, max_concurrency=1
        )
        data: bytes = answer.readall()
        return data

    def _list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        container, _, start = at.key.partition("/")
        for found in self._client(at.host).get_container_client(container).list_blobs(name_starts_with=start):
            yield f"{container}/{found.name}", int(found.size), _quoted(found.etag)

    def _send(self, at: Url, content: Content, only_new: bool) -> None:
        if not isinstance(content, bytes):
            content.seek(0)
        self._blob(at).upload_blob(content, overwrite=not only_new)

    def _delete(self, at: Url) -> None:
        self._blob(at).delete_blob()

    def _client(self, account: str) -> Any:
        if account not in self._clients:
            options = {"connection_timeout": _CONNECT_SECONDS, "read_timeout": _SECONDS}
            if self._connection is not None:
                client = self._service.from_connection_string(self._connection, **options)
            else:
                from azure.identity import DefaultAzureCredential

                where = f"https://{account}.blob.core.windows.net"
                client = self._service(where, credential=DefaultAzureCredential(), **options)
            if client.account_name != account:
                problem = "AZURE_STORAGE_CONNECTION_STRING is of another account: name that one in the URL, or unset it"
                raise fault(f"azfs://{account}", problem)
            self._clients[account] = client
        return self._clients[account]

    def _blob(self, at: Url) -> Any:
        container, _, name = at.key.partition("/")
        return self._client(at.host).get_blob_client(container, name)

    def _fault(self, url: str, error: Exception) -> OSError:
        errors = self._errors
        if isinstance(error, OSError) and error.strerror:
            return error
        if isinstance(error, errors.ResourceNotFoundError):
            return no_bucket(url)
        if isinstance(error, errors.ResourceExistsError):
            return already_there(url)
        if isinstance(error, errors.ClientAuthenticationError):
            return fault(url, f"the store does not accept the credentials: {_AZURE_LOGIN}")
        if isinstance(error, ImportError):
            return needs_package(url, "azure-identity", "azure")
        if isinstance(error, errors.HttpResponseError) and error.status_code:
            return denied(url) if error.status_code == 403 else odd_answer(url, error.status_code)
        if isinstance(error, errors.ServiceRequestError):
            return fault(url, "the store cannot be reached: check the network, and the name of the account")
        if isinstance(error, ValueError):
            return fault(url, "the connection string or the name is not valid: check AZURE_STORAGE_CONNECTION_STRING")
        return broken_answer(url)


def _quoted(etag: str) -> str:
    """Listings leave the quotes out."""
    return etag if etag.startswith('"') else f'"{etag}"'
