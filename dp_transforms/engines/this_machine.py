"""What this machine has: cores and memory, or those of the container; and ports that other machines can reach.

Beam needs no password, so a run looks at the ports of its processes.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

import psutil

_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """That this process may use; of a container with a share of a core, one."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(_CPU_QUOTA) as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no such controller, or "max"
        return found
    return max(1, min(found, quota // period))


def free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has, or its container if that is less."""
    free = int(psutil.virtual_memory().available)
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        free = min(free, max(0, limit - int(psutil.Process().memory_info().rss)))
    return free


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
