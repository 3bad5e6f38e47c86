"""The object stores behind URLs: how one is opened, from the URL and the environment, and what its errors mean.

obstore asks all three kinds. Its words may hold what should not be seen on a terminal: none of them reaches an error.
"""

from __future__ import annotations

import datetime
import errno
import functools
import os
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dp_transforms.checks import how_to_install, without_secrets
from dp_transforms.errors import UserError

SCHEMES = {"s3": "bucket", "gs": "bucket", "azfs": "account"}  # what follows each
_SCHEMES = ", ".join(f"{known}://" for known in SCHEMES)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,221}")  # obstore aborts with a trace at one that is no host name
_LOGIN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of a profile with"
    ' eval "$(aws configure export-credentials --format env)", or give the machine a role',
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "azfs": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_USE_AZURE_CLI=true after `az login`, or give the machine an"
    " identity",
}
AWAY = "the store cannot be reached, or the connection to it broke: check the network, the region and the endpoint"
_PROBLEMS = (  # by what the text of an error of obstore has: the first that fits
    (r"169\.254\.169\.254|/latest/api/token|token request", "there are no credentials for the store: {login}"),
    ("status code: 401", "the store does not accept the credentials: {login}"),
    (
        "status code: 403",
        "the store denies the access: check the rights to list, read and write there, the spelling of the name, and the"
        " credentials ({login})",
    ),
    (
        "status code: 501",
        "the store does not know conditional writes, by which a file appears whole and replaces none: use another"
        " store, or write to a path",
    ),
    ("status code: ", "the store answered with an error: check the region, try again, or ask its operator"),
    ("invalid path", "a name there has an empty part, or a line end in it: rename that, or name other files"),
    ("non-partial response", "the store answers with more than the range that was asked for: use another store"),
    ("", AWAY),
)
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


def ask(url: str, question: Callable[[Any, Any, str], _Answer], *, is_read: bool = False) -> _Answer:
    """What obstore answers. question: of obstore, the store of a URL, and the path in it. is_read: of one version.

    Raises OSError in words of ours: FileNotFoundError, FileExistsError, FileChangedError or RemoteFileError; UrlError
    for anything but a URL of a store.
    """
    store = store_of(url)
    answers: list[_Answer | BaseException] = []

    def wait() -> None:
        try:
            answers.append(question(_import_obstore(), store, url[len(root_of(url)) :]))
        except BaseException as error:  # obstore's own panics are no Exception
            answers.append(error)

    thread = threading.Thread(target=wait, daemon=True)  # who waits in obstore hears no signal, such as Ctrl-C
    thread.start()
    thread.join()
    answer = answers[0]
    if isinstance(answer, RemoteFileError):
        raise answer
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


def root_of(url: str) -> str:
    """The part of a URL that names the store: all up to what the store calls a path. Raises UrlError."""
    if not is_remote(url):
        raise UrlError(f"a URL must begin with one of {_SCHEMES}.")
    scheme, rest = url.split("://", 1)
    names = [*rest.split("/"), ""][: 2 if scheme == "azfs" else 1]  # of an account, and its container
    if not all(map(_BUCKET.fullmatch, names)):
        raise fault(url, f"its name is not one that a store allows: check the name of the {SCHEMES[scheme]}")
    return "/".join([f"{scheme}:/", *names, ""])


def store_of(url: str) -> Any:
    """obstore's, for this process, and for the environment as it is."""
    global _used_in
    root = root_of(url)
    _used_in = _used_in or os.getpid()
    if _used_in != os.getpid():  # obstore would wait for ever
        raise fault(url, "this process was forked from one that has used a store: start processes by spawn")
    relevant = ("AWS_", "GOOGLE_", "AZURE_")
    settings = frozenset(each for each in os.environ.items() if each[0].startswith(relevant))
    return _open_store(root, settings)


@functools.lru_cache(maxsize=64)
def _open_store(url: str, settings: frozenset[tuple[str, str]]) -> Any:
    """settings: the environment, as far as a store depends on it; obstore reads it too."""
    scheme, _, *names = url.rstrip("/").split("/")
    scheme, given = scheme.removesuffix(":"), dict(settings)
    more: dict[str, Any] = {}
    endpoint = None
    if scheme == "s3":
        if "AWS_PROFILE" in given and "AWS_ACCESS_KEY_ID" not in given:
            raise fault(url, f"AWS_PROFILE is not read: {_LOGIN[scheme]}")
        endpoint = given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL")
        more = {"endpoint": endpoint} if endpoint else {}
    elif scheme == "azfs":
        connection = given.get("AZURE_STORAGE_CONNECTION_STRING", f"AccountName={names[0]}")
        parts = dict(part.partition("=")[::2] for part in connection.split(";"))
        if parts.get("AccountName") != names[0]:
            problem = "AZURE_STORAGE_CONNECTION_STRING is of another account: name that one in the URL, or unset it"
            raise fault(url, problem)
        meanings = {"account_key": "AccountKey", "sas_key": "SharedAccessSignature", "endpoint": "BlobEndpoint"}
        more = {option: parts[name] for option, name in meanings.items() if parts.get(name)}
        more["account_name"], endpoint = names[0], more.get("endpoint")
    if endpoint and not endpoint.startswith(("http://", "https://")):  # obstore would abort with a trace
        raise fault(url, "its settings cannot be used: check the endpoint, a URL that begins with http:// or https://")
    options = _CLIENT | {"allow_http": (endpoint or "").startswith("http://")}
    obstore = _import_obstore().store
    kind = {"s3": obstore.S3Store, "gs": obstore.GCSStore, "azfs": obstore.AzureStore}[scheme]
    try:
        return kind(names[-1], client_options=options, retry_config=_RETRIES, **more)
    except Exception:  # its words may hold a setting
        raise fault(url, "its settings cannot be used: check the endpoint and the credentials") from None


def fault(url: str, problem: str) -> RemoteFileError:
    return RemoteFileError(errno.EIO, problem, url)


def _in_our_words(url: str, error: BaseException, is_read: bool) -> OSError:
    text = str(error)
    if isinstance(error, _import_obstore().exceptions.AlreadyExistsError):
        return FileExistsError(errno.EEXIST, "a file of this name exists in the store", url)
    is_absent = isinstance(error, FileNotFoundError) or "status code: 404" in text
    if is_read and (is_absent or re.search(r"status code: 41[26]", text)):
        problem = "it was changed or removed while it was read: use files that nobody writes to any more"
        return FileChangedError(errno.ESTALE, problem, url)
    if is_absent:
        problem = "there is no such bucket: check its name, the region and the endpoint"
        return FileNotFoundError(errno.ENOENT, problem, url)
    problem = next(problem for pattern, problem in _PROBLEMS if re.search(pattern, text))
    return fault(url, problem.format(login=_LOGIN[url.partition(":")[0]]))
