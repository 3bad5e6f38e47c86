"""A connection to a PostgreSQL server that is lost: what a client sends is passed on, and the answer to a commit is
not."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import socket
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit, urlunsplit

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """url: of the same database, through it. loses: of how many commits the answer is still to be lost. is_away: it
    takes no connection, from the first lost answer on."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        (server,) = parse_qs(urlsplit(url).query)["host"]
        self._server = os.path.join(server, _SOCKET)
        self.url = urlunsplit(urlsplit(url)._replace(query=f"host={folder}"))
        self.loses, self.goes_away, self.is_away = 0, False, False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            if self.is_away:
                return
            server.connect(self._server)
            commits = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    content = ready.recv(1 << 16)
                    if not content or (ready is server and commits):
                        return
                    if ready is client and b"COMMIT\0" in content and self.loses:
                        self.loses, self.is_away, commits = self.loses - 1, self.goes_away, True
                    (server if ready is client else client).sendall(content)


@contextlib.contextmanager
def proxy_of(url: str, folder: pathlib.Path) -> Iterator[Proxy]:
    """folder: with a short path."""
    proxy = Proxy(url, folder)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
