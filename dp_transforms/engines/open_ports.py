"""Which ports the processes of a run listen on, and which of them other machines can reach. Beam needs no password."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

import psutil


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
            beyond = [address for address in _listening(_connections(process)) if not is_loopback(address.ip)]
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


def _connections(process: Any) -> Iterable[Any]:
    # psutil renamed the method in version 6.
    look = process.net_connections if hasattr(process, "net_connections") else process.connections
    found: Iterable[Any] = look(kind="tcp")
    return found


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]


def is_loopback(host: str) -> bool:
    """host: an address in numbers; also an IPv4 address as IPv6 writes it."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def addresses_of(host: str) -> list[str]:
    """The addresses of a name, in numbers, as this machine knows them; empty if it knows none."""
    try:
        return sorted({str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)})
    except OSError:
        return []
