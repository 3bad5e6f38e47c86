"""Objects between two processes of one user, by a socket that both inherited and nobody else can reach."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, content: Any) -> None:
    """Raises OSError if the other process has ended."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket) -> Any:
    """Raises EOFError if the other process has ended."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))  # noqa: S301 (of a process that this one started, or its parent)


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError:
            count = 0
        if not count:
            raise EOFError
        view = view[count:]
    return data
