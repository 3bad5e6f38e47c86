"""Where the processes of a run listen, looked up again and again while it goes on, and who gets a worker from them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grpc
import psutil
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, endpoints_pb2

ROOT = pathlib.Path(__file__).parents[2]
SHH = ("-m", "dp_transforms.cli.main")
_BETWEEN_LOOKS_SECONDS = 0.1
# Fewer ports than these, and the looks have missed what they are there for.
FEWEST_PORTS = {"prism": 2, "flink": 8}
_PATIENCE_SECONDS = 600  # a run takes some seconds of a machine that has nothing else to do


class Socket(NamedTuple):
    """A TCP socket that listens. program: name of the process; host: as the kernel writes it."""

    program: str
    host: str
    port: int

    @property
    def is_of_loopback(self) -> bool:
        # The kernel writes an address of IPv4 in a socket of IPv6 as ::ffff:127.0.0.1.
        address = ipaddress.ip_address(self.host.removeprefix("::ffff:"))
        return address in ipaddress.ip_network("127.0.0.0/8") or self.host == "::1"


def listening(pid: int) -> set[Socket]:
    """Of a process and all its descendants, at this moment."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                look = getattr(process, "net_connections", None) or process.connections
                found.update(
                    Socket(process.name(), *one.laddr) for one in look(kind="tcp") if one.status == psutil.CONN_LISTEN
                )
    return found


@contextlib.contextmanager
def looked_at(pid: int) -> Iterator[set[Socket]]:
    """All that this process and its descendants listen on while the block runs; complete after it."""
    sockets: set[Socket] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_BETWEEN_LOOKS_SECONDS):
            sockets.update(listening(pid))

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        try:
            yield sockets
        finally:
            is_over.set()
    looking.result()


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


@contextlib.contextmanager
def started(
    words: Sequence[str], folder: pathlib.Path, program: Sequence[str] = SHH
) -> Iterator[subprocess.Popen[bytes]]:
    """`shh` with these words in this folder, its stderr in the file `err` there. It has ended after the block; where it
    did not end by itself, so has what it started."""
    with open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    try:
        yield process
    finally:
        end_all(process)


def run_and_listen(words: Sequence[str], folder: pathlib.Path, program: Sequence[str] = SHH) -> Run:
    """Looks from the start of the command to its end. Raises subprocess.TimeoutExpired."""
    with started(words, folder, program) as process, looked_at(process.pid) as sockets:
        process.wait(_PATIENCE_SECONDS)
    return Run(process.returncode, (folder / "err").read_text(), sockets)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process that a test started, unless it has ended, and to its descendants."""
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def outer_addresses() -> list[str]:
    """Addresses of this machine that others can reach it by, of IPv4 and IPv6; without those of one link only."""
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6) and "%" not in one.address
    ]
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def start_worker_reaches(host: str, port: int, seconds: float) -> bool:
    """Whether a worker pool at this address obeys a stranger: it connects to where it is told to take code from."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.1)
        place = endpoints_pb2.ApiServiceDescriptor(url=f"127.0.0.1:{stranger.getsockname()[1]}")
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
            pool = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
            request = beam_fn_api_pb2.StartWorkerRequest(worker_id="stranger", control_endpoint=place)
            answer = pool.StartWorker.future(request, timeout=seconds)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                # A pool that starts processes answers before they connect.
                refused = answer.exception() if answer.done() else None
                with contextlib.suppress(TimeoutError):
                    stranger.accept()[0].close()
                    return True
                if refused is not None:  # nobody listens, or it is not a worker pool
                    assert refused.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED), refused
                    return False
        raise TimeoutError(f"port {port} of {host} took StartWorker, and no worker came in {seconds:g} s.")
