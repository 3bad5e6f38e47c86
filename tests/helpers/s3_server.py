"""A real S3 server for tests: moto's, on a free port of this machine, beside a count of what is asked of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

SECRET = "kL8secret"  # in the answers of a server that refuses
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclasses.dataclass
class Request:
    """bytes_range: as asked for, "" for none. sent: bytes of the answer."""

    method: str
    path: str
    query: str
    bytes_range: str
    condition: str
    sent: int = 0


class S3Server:
    """endpoint: its URL. requests: all since `forget`. cut_after: the next answers to ranged reads end after so many
    bytes, and the connection is closed; each is taken once. before_read: is called before each ranged read.
    lost_answers: so many writes succeed, and the connection is closed before the client hears of it. ignores_ranges:
    reads get the whole file. gives_versions: answers have an ETag. refuses: status and code of all answers."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.endpoint = ""
        self._writing = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets the requests, and is a good server again."""
        self.requests: list[Request] = []
        self.cut_after: list[int] = []
        self.before_read: Callable[[], None] | None = None
        self.lost_answers, self.ignores_ranges, self.gives_versions = 0, False, True
        self.refuses: tuple[int, str] | None = None

    def forget(self) -> None:
        self.requests.clear()

    def reads(self, ending: str = "") -> list[Request]:
        return [one for one in self.requests if one.method == "GET" and one.bytes_range and one.path.endswith(ending)]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        request = Request(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ.get("QUERY_STRING", ""),
            environ.get("HTTP_RANGE", ""),
            environ.get("HTTP_IF_MATCH", "") or environ.get("HTTP_IF_NONE_MATCH", ""),
        )
        self.requests.append(request)
        if self.refuses is not None:
            status, code = self.refuses
            start_response(f"{status} {code}", [("Content-Type", "application/xml")])
            yield f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
            return
        if request.method == "GET" and request.bytes_range:
            if self.before_read is not None:
                self.before_read()
            if self.cut_after:
                yield from self._cut(self.cut_after.pop(0), environ, start_response)
                return
        if self.ignores_ranges:
            environ.pop("HTTP_RANGE", None)
        if not self.gives_versions:
            start_response = functools.partial(_without_version, start_response)
        # A store settles which of two conditional writes comes first; moto alone does not.
        with self._writing if request.method == "PUT" else contextlib.nullcontext():
            answer = list(self._application(environ, start_response))
        if request.method == "PUT" and self.lost_answers:
            self.lost_answers -= 1
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("cut by the test")
        for piece in answer:
            request.sent += len(piece)
            yield piece

    def _cut(self, after: int, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        body = b"".join(self._application(environ, start_response))
        yield body[:after]
        raise ConnectionAbortedError("cut by the test")


def _without_version(start_response: Callable[..., Any], status: str, headers: list[tuple[str, str]]) -> Any:
    return start_response(status, [header for header in headers if header[0].lower() != "etag"])


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Runs in a thread of this process. Skips the test where moto is not installed."""
    reason = "moto is not installed: pip install 'moto[server]'"
    pytest.importorskip("moto", reason=reason)
    pytest.importorskip("flask", reason=reason)
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    server = S3Server(DomainDispatcherApplication(create_backend_app))
    http = make_server("127.0.0.1", 0, server, threaded=True, request_handler=Quiet)
    server.endpoint = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def environment(server: S3Server) -> dict[str, str]:
    """By which obstore finds the server, and nothing else of this machine."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


def make_bucket(server: S3Server, name: str) -> str:
    """Returns its URL."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id="test-key",
        aws_secret_access_key="test-secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=name)
    return f"s3://{name}"
