"""Who writes into a ledger, and whether the process that wrote still lives."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import os
import pathlib
import socket

_PROC = pathlib.Path("/proc")
_SEPARATOR = ":"


@dataclasses.dataclass(frozen=True)
class Actor:
    """Who writes into a ledger. who: the login name. place: host and process namespace. process: ``number:start:boot``.

    A process is named by its number, its start in ticks since the machine booted, and the boot: no clock that somebody
    can set decides whether it is still the same one. Processes of another place (host, or namespace of a container) are
    never taken for dead.
    """

    who: str
    place: str
    process: str

    @classmethod
    def here(cls) -> Actor:
        """This process."""
        return cls(_login(), _place(), _process(os.getpid()) or str(os.getpid()))


def is_gone(place: str, process: str) -> bool:
    """Whether this process has certainly ended. False if it lives, or if this cannot be known from here."""
    if place != _place() or not process:
        return False
    number = process.partition(_SEPARATOR)[0]
    if not number.isdecimal():
        return False
    now = _process(int(number))
    if now is None:
        return not _exists(int(number))
    return now != process


def _process(number: int) -> str | None:
    """None where the system has no /proc, or no such process."""
    try:
        status = (_PROC / str(number) / "stat").read_bytes()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = status.rpartition(b")")[2].split()  # the name of the program may hold blanks and brackets
    if fields[0] in (b"Z", b"X"):  # it has ended, and only its number is left
        return _SEPARATOR.join((str(number), "ended", boot))
    return _SEPARATOR.join((str(number), fields[19].decode(), boot))


def _exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@functools.cache
def _place() -> str:
    try:
        namespace = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        namespace = ""
    try:
        machine = pathlib.Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return f"{socket.gethostname()}/{machine}/{namespace}"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        return f"uid {os.getuid()}"
