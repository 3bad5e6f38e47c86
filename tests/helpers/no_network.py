"""A machine without a network, for what this process does in Python; the loopback address stays."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any
from unittest import mock


def _is_here(host: Any) -> bool:
    host = host.decode() if isinstance(host, bytes) else host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host in (None, "", "localhost")


@contextlib.contextmanager
def no_network() -> Iterator[list[str]]:
    """Names that are looked up and addresses that are connected to are refused. Gives the list of what was."""
    refused: list[str] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def refusing_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not _is_here(address[0]):
            refused.append(str(address[0]))
            raise ConnectionRefusedError("a test has no network")
        connect(self, address)

    def refusing_look_up(host: Any, *words: Any, **options: Any) -> Any:
        if not _is_here(host):
            refused.append(str(host))
            raise socket.gaierror(socket.EAI_NONAME, "a test has no network")
        return look_up(host, *words, **options)

    with (
        mock.patch.object(socket.socket, "connect", refusing_connect),
        mock.patch.object(socket, "getaddrinfo", refusing_look_up),
    ):
        yield refused
