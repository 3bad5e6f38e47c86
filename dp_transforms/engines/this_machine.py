"""What this machine has: cores and memory, or those of the container; and which addresses are its own alone."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket

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
