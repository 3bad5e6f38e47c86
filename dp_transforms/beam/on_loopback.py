"""Makes the servers of Beam's Python code listen on the loopback address alone.

Beam's servers listen on all addresses, need no password, and run the code of everybody who connects: the worker pool
(also the one of ``--environment_type=LOOPBACK``), and the servers of the local runner for workers in other processes.
Beam has no option for another address. But its clients connect to "localhost" anyway, so the servers can listen there.

To start a program of Beam in this way::

    python -m dp_transforms.beam.on_loopback apache_beam.runners.worker.worker_pool_main --service_port=50000
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
    """From now on, a gRPC server in this process that would listen on all addresses listens on localhost alone.

    A server that names another address keeps it. Servers that listen already do not change.
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
        sys.exit("usage: python -m dp_transforms.beam.on_loopback MODULE [ARGUMENT]...")
    # Not the function of this module: run as "__main__", it is not the module that others import.
    from dp_transforms.beam import on_loopback

    on_loopback.listen_on_loopback()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
