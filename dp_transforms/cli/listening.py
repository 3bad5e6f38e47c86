"""The address of ``shh serve``, and the server that runs there: uvicorn, for a Starlette application."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn

from dp_transforms.engines.open_ports import addresses_of, is_loopback
from dp_transforms.errors import UserError
from dp_transforms.views.serving.access import Access

_MOST_CONNECTIONS = 1000  # at once; further ones are told to come later
BACKLOG = 1024


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches it. A name without an address is none."""
    found = addresses_of(host)
    return bool(found) and all(map(is_loopback, found))


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound there. It must still listen, once there is a page: who comes before is refused, and does
    not
    hang. port: 0 for any free one. Raises UserError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"--host {host} is not an address of this machine: {error.strerror}.") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port {port} is taken: another program listens there. Give another one, or --port 0 for any that is"
                " free."
            ) from error
        if error.errno == errno.EACCES:
            raise UserError(f"--port {port} is not allowed to this user. Give one from 1024 on.") from error
        raise UserError(f"--host {host} is not an address of this machine: {error.strerror}.") from error
    return made


def run_server(application: Access, listening: socket.socket) -> None:
    """Serves until a signal ends the process, by the handlers of `exit_signals`."""
    config = uvicorn.Config(
        application,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # a first request has the token in its address
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        backlog=BACKLOG,
    )
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the handlers as they are: uvicorn's would wait for all browsers to leave."""
        yield
