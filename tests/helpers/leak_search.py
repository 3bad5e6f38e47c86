"""Looks for secrets where a run leaves something: job graph, options, logs, metrics, files; also inside pickles that
Beam compresses and encodes, and inside files that are compressed."""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import logging
import os
import pathlib
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{40,}={0,2}")


def texts_within(data: bytes, depth: int = 3) -> Iterator[bytes]:
    """The data, its content if it is a compressed file, and whatever stands in it in base64, compressed or not."""
    yield data
    if depth == 0:
        return
    inner = []
    with contextlib.suppress(Exception):  # whatever a library raises for a file that a run left half written
        inner.append(_content(data))
    for encoded in _ENCODED.findall(data):
        for decompress in (bz2.decompress, zlib.decompress, bytes):
            with contextlib.suppress(OSError, ValueError, zlib.error):
                inner.append(decompress(base64.b64decode(encoded + b"=" * (-len(encoded) % 4))))
    for found in inner:
        yield from texts_within(found, depth - 1)


def _content(data: bytes) -> bytes:
    """Of a gzip, Parquet or Avro file; nothing for any other."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    rows: object = ""
    if data.startswith(b"PAR1"):
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    elif data.startswith(b"Obj\x01"):
        reader = fastavro.reader(io.BytesIO(data))
        rows = [reader.metadata, *reader]
    return repr(rows).encode(errors="surrogatepass")


def forms_of(key: bytes) -> list[bytes]:
    """How a key could be written: raw, in hex, in base64, as Python would print it."""
    return [
        key,
        key.hex().encode(),
        key.hex().upper().encode(),
        base64.b64encode(key).rstrip(b"=")[:-1],
        base64.urlsafe_b64encode(key).rstrip(b"=")[:-1],
        repr(key)[2:-1].encode(),
        repr(list(key))[1:-1].encode(),
    ]


def places_with(needles: Iterable[bytes], places: dict[str, bytes]) -> list[str]:
    """Names of the places in which any of the needles stands."""
    needles = list(needles)
    return [
        name
        for name, data in places.items()
        if any(needle in text for text in texts_within(data) for needle in needles)
    ]


class Traces:
    """Watches a run: logs at DEBUG level, what is printed, and files under a private TMPDIR."""

    def __init__(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any) -> None:
        self._folder = tmp_path / "tmp"
        self._folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(self._folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert tempfile.gettempdir() == str(self._folder)
        caplog.set_level(logging.DEBUG)
        self._caplog = caplog
        self._capfd = capfd

    def places(self) -> dict[str, bytes]:
        places = {"log": self._caplog.text.encode()}
        places["output"] = "".join(self._capfd.readouterr()).encode()
        for path in self._folder.rglob("*"):
            name = str(path.relative_to(self._folder))
            places[f"file name {name}"] = os.fsencode(name)
            if path.is_file():
                places[f"file {name}"] = path.read_bytes()
        return places


@pytest.fixture
def traces(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any) -> Traces:
    return Traces(tmp_path, monkeypatch, caplog, capfd)
