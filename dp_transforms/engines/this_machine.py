"""What this machine has: cores and memory, or those of the container; which addresses are its own alone; and which
ports of its processes others can reach, at which a run looks, since Beam needs no password.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

from dp_transforms.checks import how_to_install
from dp_transforms.errors import MissingLibraryError

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
    free = _available_bytes()
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the most that it ever had
        free = min(free, max(0, limit - used))
    return free


def _available_bytes() -> int:
    """Without swapping, as Linux says; of another system half of what it has."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


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
    psutil = _psutil()
    try:
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    found: set[OpenPort] = set()
    for process in tree:
        try:
            listening = _listening(process.net_connections(kind="tcp"), psutil.CONN_LISTEN)
            beyond = [address for address in listening if not is_loopback(address.ip)]
            if beyond:
                found.update(OpenPort(process.name(), address.ip, address.port) for address in beyond)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return sorted(found)


def is_open_here(port: int) -> bool:
    """Whether a process of this machine listens on this port beyond the loopback address, as far as we can see."""
    psutil = _psutil()
    try:
        listening = _listening(psutil.net_connections(kind="tcp"), psutil.CONN_LISTEN)
    except psutil.AccessDenied:  # some systems show it only to the administrator
        return False
    return any(address.port == port and not is_loopback(address.ip) for address in listening)


def _listening(connections: Iterable[Any], status: str) -> list[Any]:
    return [connection.laddr for connection in connections if connection.status == status]


def _psutil() -> types.ModuleType:
    """Of an extra: cores and memory need none."""
    try:
        import psutil
    except ImportError as error:
        raise MissingLibraryError(f"Engines on this machine need psutil. {how_to_install('engines')}") from error
    found: types.ModuleType = psutil
    return found
