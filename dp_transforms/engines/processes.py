"""Ports of processes of this machine.

Beam needs no password, so a run looks at the ports of its processes which other machines can reach.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, NamedTuple

from dp_transforms.checks import how_to_install
from dp_transforms.engines.this_machine import is_loopback
from dp_transforms.errors import MissingLibraryError

try:
    import psutil
except ImportError as error:
    raise MissingLibraryError(f"Engines on this machine need psutil. {how_to_install('engines')}") from error


class OpenPort(NamedTuple):
    """A TCP port that other machines can reach. program: the name of the process that listens."""

    program: str
    host: str
    port: int

    def __str__(self) -> str:
        where = "all addresses" if ipaddress.ip_address(self.host).is_unspecified else self.host
        return f"{self.program} on port {self.port} of {where}"


def open_ports(pid: int | None = None) -> list[OpenPort]:
    """Ports that a process or its descendants listen on now, with other addresses than the loopback address.

    pid: None for this process. A process that ends meanwhile has none.
    """
    try:
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    found: set[OpenPort] = set()
    for process in tree:
        try:
            listening = _listening(process.net_connections(kind="tcp"))
            beyond = [address for address in listening if not is_loopback(address.ip)]
            if beyond:
                found.update(OpenPort(process.name(), address.ip, address.port) for address in beyond)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return sorted(found)


def is_open_here(port: int) -> bool:
    """Whether a process of this machine listens on this port beyond the loopback address, as far as we can see."""
    try:
        listening = _listening(psutil.net_connections(kind="tcp"))
    except psutil.AccessDenied:  # some systems show it only to the administrator
        return False
    return any(address.port == port and not is_loopback(address.ip) for address in listening)


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]
