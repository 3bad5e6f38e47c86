"""`shh serve` in a process of its own, and plain clients of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import http.client
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from tests.helpers import forked

PATIENCE_SECONDS = 60.0


@dataclasses.dataclass
class Served:
    """A server that answers. address: as it printed it."""

    address: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(urllib.parse.urlsplit(self.address).port or 0)

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> Answer:
        """headers: names with _ in place of -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): each for name, each in headers.items()})
            answer = connection.getresponse()
            body = answer.read()
        found = {name.lower(): each for name, each in answer.getheaders()}
        return Answer(answer.status, found, gzip.decompress(body) if found.get("content-encoding") == "gzip" else body)

    def end(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """Its exit code, and how many seconds it took to end."""
        begin = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        return code, time.monotonic() - begin


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@contextlib.contextmanager
def served(
    report: pathlib.Path | str | None,
    *words: object,
    port: int = 0,
    start: Callable[..., subprocess.Popen[str]] = forked.python,
) -> Iterator[Served]:
    """`shh serve` of a report, on a free port unless another is given. Words that name files are beside the report.

    report: None if the words say what is served. start: of the process."""
    what = () if report is None else (report,)
    command = ("-m", "dp_transforms.cli.main", "serve", *what, "--port", port, *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(
        *command,
        environment={"PYTHONUNBUFFERED": "1"},
        cwd=pathlib.Path(report).parent if isinstance(report, pathlib.Path) else None,
        **pipes,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Open http://"), process.communicate()
            yield Served(line.split()[1], process)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


@dataclasses.dataclass
class Event:
    kind: str
    event_id: str
    data: Any


class Listener:
    """Reads server-sent events, as a plain client does."""

    def __init__(self, port: int, after: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        path = f"/events?after={after}"
        self._connection.request("GET", path, headers={name.replace("_", "-"): each for name, each in headers.items()})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def next(self, kind: str = "") -> Event:
        """The next event of this kind, or of any; EOFError at the end. The server's beats do not count as patience."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            fields: dict[str, str] = {}
            while line := self._answer.readline().decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
            if not fields:
                raise EOFError
            if kind in ("", fields["event"]):
                return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
        raise TimeoutError(f"no event {kind} in {PATIENCE_SECONDS} s")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()
