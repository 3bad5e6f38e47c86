"""How each kind of store is asked, and what the errors of its library mean. What they share is in `remote_files`.

S3 and what speaks its protocol, through boto3. A PUT with ``If-None-Match: *`` fails with 412 where the key exists, and
of several at the same moment one succeeds (the user guide, Conditional writes). A GET with ``If-Match`` fails with 412
for another version. pyarrow's S3FileSystem offers none of these conditions, and neither does Beam's.

Google Cloud Storage, and its emulator at ``STORAGE_EMULATOR_HOST``: through google-cloud-storage. Each version of an
object has a generation, and requests may name the one that they mean; generation 0 is "not there" (its documentation,
Request preconditions). An upload adds the whole object or nothing, and is seen at once (the same, Consistency).

Azure Blob Storage, ``azfs://account/container/name`` as Beam spells it: through azure-storage-blob. Reads name the ETag
that they mean (``If-Match``), and a new blob is written under ``If-None-Match: *`` (its documentation, Conditional
headers for Blob service operations). A blob appears whole: one request adds it, or one commits its blocks.

One client for all three, obstore (0.12.1), does not pass: the child of a fork waits for ever once its parent has used a
store, a name with ``//`` ends the listing of its folder, and a conflict of two writers (409) is said to be a file that
exists. Of fsspec's clients, gcsfs and adlfs do not read one version.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import errno
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, NamedTuple

_CONNECT_SECONDS, _SECONDS = 10, 60
_S3_ATTEMPTS = 5
_MOST_PUT_BYTES = 5 << 30  # of one PUT


class RemoteFileError(OSError):
    """A store that refuses or does not answer. `strerror`: why, with the remedy; no secret and no cell."""


class BrokenAnswerError(RemoteFileError):
    """An answer that ended too early. Asking again may help."""


class Url(NamedTuple):
    """host: the bucket, or the account. key: without the slash before it; nothing is unquoted."""

    scheme: str
    host: str
    key: str


class Said(enum.Enum):
    """What an error of a library says, where it depends on what was asked what follows from it."""

    ABSENT = "there is no such file, or no such bucket"
    OTHER_VERSION = "the condition of the request does not hold"
    CONFLICT = "somebody else was writing or removing the same key"
    BROKE = "the connection broke; what was asked may have been done"


_STATUSES: Mapping[int | None, Said | str] = {
    None: Said.BROKE,
    403: "the store denies the access: check the rights to list, read and write there, and the spelling of the name",
    404: Said.ABSENT,
    409: Said.CONFLICT,
    412: Said.OTHER_VERSION,
    416: Said.OTHER_VERSION,  # the present one does not have the range
    501: "the store does not know conditional writes, by which a file appears whole and replaces none:"
    " use another store, or write to a path",
}


def fault(url: str, problem: str) -> RemoteFileError:
    return RemoteFileError(errno.EIO, problem, url)


def needs_package(url: str, package: str, extra: str) -> RemoteFileError:
    # The name of shh in an index is not ours.
    return fault(url, f"the package {package} is not installed: pip install '.[{extra}]' in the clone, on all workers")


class StoreClient(abc.ABC):
    """One kind of store. Its methods ask once, and raise what its library does; `said` tells what that means."""

    login: ClassVar[str]  # where credentials come from
    _classes: Sequence[tuple[Any, Said | str]]  # errors of the library that no status tells; the first that fits

    @abc.abstractmethod
    def head(self, at: Url) -> tuple[int, str] | None:
        """Size and version of a file; None if it is not there, where the library does not raise an error for that."""

    @abc.abstractmethod
    def get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        """So many bytes of this version; fewer where the answer ended too early without a word."""

    @abc.abstractmethod
    def list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        """Key, size and version of each file whose key begins so, in the order of the bytes of the keys."""

    @abc.abstractmethod
    def put(self, at: Url, content: BinaryIO, size: int, only_new: bool) -> None:
        """The file then appears whole. content: from its position on."""

    @abc.abstractmethod
    def delete(self, at: Url) -> None: ...

    def said(self, error: Exception) -> Said | str:
        """What an error means; as text it is what the operator reads, without any word of the library, which may hold
        what should not be seen on a terminal."""
        for classes, meaning in self._classes:
            if isinstance(error, classes):
                return meaning
        status = self._status(error)
        if status == 401:
            return f"the store does not accept the credentials: {self.login}"
        shown = f"{type(error).__name__} {status}"
        return _STATUSES.get(status, f"the store answered with an error ({shown}): try again, or ask its operator")

    @abc.abstractmethod
    def _status(self, error: Exception) -> int | None:
        """The status of the answer; None: there was none."""


class S3Client(StoreClient):
    """Versions are ETags."""

    login = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
    _CODES: ClassVar = {
        "InvalidAccessKeyId": f"the store does not know the access key: {login}",
        "SignatureDoesNotMatch": f"the store refuses the signature of the secret key: {login}",
        "ExpiredToken": "the session of the credentials has expired: log in again",
        "InvalidObjectState": "it is in an archive: restore it first",
    }

    def __init__(self, attempts: int = _S3_ATTEMPTS) -> None:
        """Raises RemoteFileError, as those of the others do."""
        try:
            import boto3
            import botocore.config
            from botocore import exceptions
        except ImportError:
            raise needs_package("s3://", "boto3", "s3") from None
        away = "the store cannot be reached: check the network, and AWS_ENDPOINT_URL if it is set"
        unknown = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound)
        unfetched = (exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError, exceptions.SSOError)
        self._classes = (
            (unknown, f"there are no credentials for the store: {self.login}"),
            (unfetched, "the credentials cannot be fetched: log in again"),
            (exceptions.ParamValidationError, "its name is not one that a store allows: check the name of the bucket"),
            ((exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError), away),
        )
        config = botocore.config.Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_SECONDS,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=32,
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", config=config)
        except (ValueError, exceptions.BotoCoreError) as error:
            said, unusable = self.said(error), "its settings cannot be used: check AWS_ENDPOINT_URL and the profile"
            raise fault("s3://", said if isinstance(said, str) else unusable) from None

    def head(self, at: Url) -> tuple[int, str]:
        found = self._client.head_object(Bucket=at.host, Key=at.key)
        return int(found["ContentLength"]), found["ETag"]

    def get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        wanted = f"bytes={begin}-{begin + length - 1}"
        answer = self._client.get_object(Bucket=at.host, Key=at.key, Range=wanted, IfMatch=version)
        with contextlib.closing(answer["Body"]) as body:
            data: bytes = body.read()
        return data

    def list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=at.host, Prefix=at.key):
            for found in page.get("Contents", ()):
                yield found["Key"], int(found["Size"]), found["ETag"]

    def put(self, at: Url, content: BinaryIO, size: int, only_new: bool) -> None:
        if size > _MOST_PUT_BYTES:
            problem = f"it has {size / 1e9:.1f} GB, and a PUT takes 5 GB: write to a path, and copy that"
            raise fault(f"s3://{at.host}/{at.key}", problem)
        condition = {"IfNoneMatch": "*"} if only_new else {}
        self._client.put_object(Bucket=at.host, Key=at.key, Body=content, **condition)

    def delete(self, at: Url) -> None:
        self._client.delete_object(Bucket=at.host, Key=at.key)

    def said(self, error: Exception) -> Said | str:
        answer = getattr(error, "response", None) or {}  # None where a connection broke
        return self._CODES.get(answer.get("Error", {}).get("Code")) or super().said(error)

    def _status(self, error: Exception) -> int | None:
        answer = getattr(error, "response", None) or {}
        status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status


class GoogleClient(StoreClient):
    """Versions are generations."""

    login = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"

    def __init__(self, emulator: str | None = None, project: str | None = None) -> None:
        try:
            from google.auth import credentials, exceptions
            from google.cloud import storage
        except ImportError:
            raise needs_package("gs://", "google-cloud-storage", "gcp") from None
        self._classes = ((exceptions.GoogleAuthError, f"the store does not accept the credentials: {self.login}"),)
        try:
            if emulator:
                anonymous = credentials.AnonymousCredentials()  # type: ignore[no-untyped-call]
                self._client: Any = storage.Client(project or "emulator", credentials=anonymous)
            else:
                self._client = storage.Client(project)
        except (exceptions.GoogleAuthError, OSError):
            raise fault("gs://", f"there are no credentials for the store: {self.login}") from None

    def head(self, at: Url) -> tuple[int, str] | None:
        found = self._client.bucket(at.host).get_blob(at.key, timeout=_SECONDS)
        return None if found is None else (int(found.size), str(found.generation))

    def get(self, at: Url, version: str, begin: int, length: int) -> bytes:
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

    def list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        fields = "items(name,size,generation),nextPageToken"
        for found in self._client.list_blobs(at.host, prefix=at.key, fields=fields, timeout=_SECONDS):
            yield found.name, int(found.size), str(found.generation)

    def put(self, at: Url, content: BinaryIO, size: int, only_new: bool) -> None:
        condition = {"if_generation_match": 0} if only_new else {}
        blob = self._client.bucket(at.host).blob(at.key)
        blob.upload_from_file(content, size=size, timeout=_SECONDS, **condition)

    def delete(self, at: Url) -> None:
        self._client.bucket(at.host).blob(at.key).delete(timeout=_SECONDS)

    def _status(self, error: Exception) -> int | None:
        status = getattr(error, "code", None)
        return None if status is None else int(status)


class AzureClient(StoreClient):
    """Versions are ETags. connection: a connection string; None: an identity."""

    login = "run `az login`, set AZURE_STORAGE_CONNECTION_STRING, or give the machine an identity"

    def __init__(self, connection: str | None = None) -> None:
        try:
            from azure.core import MatchConditions, exceptions
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise needs_package("azfs://", "azure-storage-blob", "azure") from None
        away = "the store cannot be reached: check the network, and the name of the account"
        string = "the connection string or the name is not valid: check AZURE_STORAGE_CONNECTION_STRING"
        self._classes = (
            (exceptions.ResourceExistsError, Said.OTHER_VERSION),
            (exceptions.ClientAuthenticationError, f"the store does not accept the credentials: {self.login}"),
            (exceptions.ServiceRequestError, away),
            (ImportError, needs_package("azfs://", "azure-identity", "azure").strerror or ""),
            (ValueError, string),
        )
        self._same: Any = MatchConditions.IfNotModified
        self._connection = connection
        self._service: Any = BlobServiceClient
        self._accounts: dict[str, Any] = {}

    def head(self, at: Url) -> tuple[int, str]:
        found = self._blob(at).get_blob_properties()
        return int(found.size), _quoted(found.etag)

    def get(self, at: Url, version: str, begin: int, length: int) -> bytes:
        answer = self._blob(at).download_blob(
            begin, length, etag=version, match_condition=self._same, max_concurrency=1
        )
        data: bytes = answer.readall()
        return data

    def list(self, at: Url) -> Iterator[tuple[str, int, str]]:
        container, _, start = at.key.partition("/")
        for found in self._account(at.host).get_container_client(container).list_blobs(name_starts_with=start):
            yield f"{container}/{found.name}", int(found.size), _quoted(found.etag)

    def put(self, at: Url, content: BinaryIO, size: int, only_new: bool) -> None:
        self._blob(at).upload_blob(content, length=size, overwrite=not only_new)

    def delete(self, at: Url) -> None:
        self._blob(at).delete_blob()

    def _account(self, account: str) -> Any:
        if account not in self._accounts:
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
            self._accounts[account] = client
        return self._accounts[account]

    def _blob(self, at: Url) -> Any:
        container, _, name = at.key.partition("/")
        return self._account(at.host).get_blob_client(container, name)

    def _status(self, error: Exception) -> int | None:
        status = getattr(error, "status_code", None)
        return None if status is None else int(status)


def _quoted(etag: str) -> str:
    """Listings leave the quotes out."""
    return etag if etag.startswith('"') else f'"{etag}"'
