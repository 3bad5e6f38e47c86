"""Servers of Beam's Python code on the loopback address alone.

Beam listens on all addresses, asks for no password, and takes code from whoever connects: its worker pool (also the one
behind ``--environment_type=LOOPBACK``), and the servers of its local runner for workers in other processes. It has no
option for another address. It tells its clients "localhost" all the same, so that is where these servers are put.

For a program of Beam::

    python -m dp_transforms.runners.on_loopback apache_beam.runners.worker.worker_pool_main --service_port=50000
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

_ALL_ADDRESSES = ("[::]", "0.0.0.0", "*", "")
_beams_server = grpc.server


def listen_on_loopback() -> None:
    """From now on, a server of gRPC in this process that would listen on all addresses listens on localhost alone.

    A server that names another address keeps it. Servers that listen already are left alone.
    """
    grpc.server = _server


@functools.wraps(_beams_server)
def _server(*arguments: Any, **options: Any) -> grpc.Server:
    server = _beams_server(*arguments, **options)
    server.add_insecure_port = functools.partial(_add_port, server.add_insecure_port)
    return server


def _add_port(add: Callable[[str], int], address: str) -> int:
    host, _, port = address.rpartition(":")
    return add(f"localhost:{port}" if host in _ALL_ADDRESSES else address)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m dp_transforms.runners.on_loopback MODULE [ARGUMENT]...")
    # Not in this module: as "__main__" it is another one than the one that others import.
    from dp_transforms.runners import on_loopback

    on_loopback.listen_on_loopback()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
