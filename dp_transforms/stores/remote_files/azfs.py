"""Azure Blob Storage, ``azfs://account/container/name`` as Beam spells it: through azure-storage-blob.

Reads name the ETag that they mean (``If-Match``), and a new blob is written under ``If-None-Match: *`` (its
documentation, Conditional headers for Blob service operations). A blob appears whole: one request adds it, or one
commits its blocks.
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
_CREDENTIALS = "run `az login`, set AZURE_STORAGE_CONNECTION_STRING, or give the machine an identity"


def store() -> AzureStore:
    return _store(os.getpid(), os.environ.get("AZURE_STORAGE_CONNECTION_STRING"))


@functools.lru_cache(maxsize=4)
def _store(process: int, connection: str | None) -> AzureStore:
    """One for each process: connections do not survive a fork."""
    del process
    return AzureStore(connection)


class AzureStore:
    """Implements `stored_file.FileStore`. Versions are ETags. connection: a connection string; None: an identity."""

    def __init__(self, connection: str | None = None) -> None:
        try:
            from azure.core import MatchConditions, exceptions
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise needs_package("azfs://", "azure-storage-blob", "azure") from None
        self._errors: Any = exceptions
        self._same: Any = MatchConditions.IfNotModified
        self._connection = connection
        self._service: Any = BlobServiceClient
        self._clients: dict[str, Any] = {}

    def look(self, url: str) -> StoredFile | None:
        try:
            found = self._blob(url).get_blob_properties()
        except self._errors.ResourceNotFoundError:
            return None
        except Exception as error:
            raise self._error(url, error) from None
        return StoredFile(url, int(found.size), _quoted(found.etag))

    def read_range(self, file: StoredFile, begin: int, length: int) -> bytes:
        try:
            answer = self._blob(file.url).download_blob(
                begin, length, etag=file.version, match_condition=self._same, max_concurrency=1
            )
            data: bytes = answer.readall()
        except (self._errors.ResourceNotFoundError, self._errors.ResourceModifiedError):
            raise changed(file.url) from None
        except Exception as error:
            raise self._error(file.url, error) from None
        return data

    def list_below(self, prefix: str) -> Iterator[StoredFile]:
        account, container, start = _parts(prefix)
        try:
            client = self._client(account).get_container_client(container)
            for found in client.list_blobs(name_starts_with=start):
                yield StoredFile(f"azfs://{account}/{container}/{found.name}", int(found.size), _quoted(found.etag))
        except Exception as error:
            raise self._error(prefix, error) from None

    def put(self, url: str, content: Content, *, only_new: bool) -> None:
        if not isinstance(content, bytes):
            content.seek(0)
        try:
            self._blob(url).upload_blob(content, overwrite=not only_new)
        except self._errors.ResourceExistsError:
            if not is_stored(self, url, content):  # else an earlier answer was lost
                raise already_there(url) from None
        except Exception as error:
            raise self._error(url, error) from None

    def remove(self, url: str) -> None:
        try:
            self._blob(url).delete_blob()
        except self._errors.ResourceNotFoundError:
            return
        except Exception as error:
            raise self._error(url, error) from None

    def _client(self, account: str) -> Any:
        if account not in self._clients:
            options = {"connection_timeout": 10, "read_timeout": _SECONDS}
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

    def _blob(self, url: str) -> Any:
        account, container, name = _parts(url)
        return self._client(account).get_blob_client(container, name)

    def _error(self, url: str, error: Exception) -> OSError:
        """Without the words of the library."""
        errors = self._errors
        if isinstance(error, OSError) and error.strerror:
            return error
        if isinstance(error, errors.ResourceNotFoundError):
            return no_bucket(url)
        if isinstance(error, errors.ClientAuthenticationError):
            return fault(url, f"the store does not accept the credentials: {_CREDENTIALS}")
        if isinstance(error, ImportError):
            return needs_package(url, "azure-identity", "azure")
        if isinstance(error, errors.HttpResponseError) and error.status_code:
            if error.status_code == 403:
                return fault(url, "the store denies the access: check the rights to list, read and write there")
            return fault(url, f"the store answered with an error ({error.status_code}): try again, or ask its operator")
        if isinstance(error, errors.ServiceRequestError):
            return fault(url, "the store cannot be reached: check the network, and the name of the account")
        if isinstance(error, ValueError):
            return fault(url, "the connection string or the name is not valid: check AZURE_STORAGE_CONNECTION_STRING")
        return broken_answer(url)


def _parts(url: str) -> tuple[str, str, str]:
    """Account, container, name."""
    _, account, key = split_url(url)
    container, _, name = key.partition("/")
    return account, container, name


def _quoted(etag: str) -> str:
    """Listings leave the quotes out."""
    return etag if etag.startswith('"') else f'"{etag}"'
