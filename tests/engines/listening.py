"""Where the processes of a run listen, looked up again and again while it goes on."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

ROOT = pathlib.Path(__file__).parents[2]
SHH = ("-m", "dp_transforms.cli.main")
_BETWEEN_LOOKS_SECONDS = 0.1
# Fewer ports than these, and the looks have missed what they are there for.
FEWEST_PORTS = {"prism": 2, "flink": 8}
_PATIENCE_SECONDS = 600  # a run takes some seconds of a machine that has nothing else to do


class Socket(NamedTuple):
    """A TCP socket that listens. host: as the kernel writes it."""

    host: str
    port: int

    @property
    def is_of_loopback(self) -> bool:
        # The kernel writes an address of IPv4 in a socket of IPv6 as ::ffff:127.0.0.1.
        return ipaddress.ip_address(self.host.removeprefix("::ffff:")).is_loopback


def listening(pid: int) -> set[Socket]:
    """Of a process and all its descendants, at this moment."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                look = getattr(process, "net_connections", None) or process.connections
                found.update(Socket(*one.laddr) for one in look(kind="tcp") if one.status == psutil.CONN_LISTEN)
    return found


class Run(NamedTuple):
    """A command that has ended. sockets: all that were seen while it ran."""

    code: int
    err: str
    sockets: set[Socket]

    @property
    def beyond_loopback(self) -> set[Socket]:
        return {one for one in self.sockets if not one.is_of_loopback}

    @property
    def ports(self) -> set[int]:
        return {one.port for one in self.sockets}


def run_and_listen(words: Sequence[str], folder: pathlib.Path, program: Sequence[str] = SHH) -> Run:
    """Runs `shh` with these words in this folder, its stderr in the file `err` there. Where it does not end in time, it
    is killed with what it started. Raises TimeoutError."""
    sockets, deadline = set[Socket](), time.monotonic() + _PATIENCE_SECONDS
    with open(folder / "err", "wb") as err:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *program, *words]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=err)
        while process.poll() is None and time.monotonic() < deadline:
            sockets |= listening(process.pid)
            time.sleep(_BETWEEN_LOOKS_SECONDS)
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        raise TimeoutError(f"{words} did not end in {_PATIENCE_SECONDS} s: {(folder / 'err').read_text()}")
    return Run(process.returncode, (folder / "err").read_text(), sockets)
