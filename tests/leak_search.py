"""Looks for secrets where a run leaves something: job graph, options, logs, metrics, files; also inside pickles that
Beam compresses and encodes."""

from __future__ import annotations

import base64
import bz2
import logging
import os
import pathlib
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest

_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{40,}={0,2}")


def texts_within(data: bytes, depth: int = 3) -> Iterator[bytes]:
    """The data, and whatever stands in it in base64, compressed or not."""
    yield data
    if depth == 0:
        return
    for encoded in _ENCODED.findall(data):
        try:
            decoded = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=None)
        except ValueError:
            continue
        for decompress in (bz2.decompress, zlib.decompress, bytes):
            try:
                yield from texts_within(decompress(decoded), depth - 1)
            except (OSError, ValueError, zlib.error):
                continue


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
    found = []
    needles = list(needles)
    for name, data in places.items():
        if any(needle in text for text in texts_within(data) for needle in needles):
            found.append(name)
    return found


def job_graph(pipeline: beam.Pipeline) -> bytes:
    return pipeline.to_runner_api().SerializeToString()


def options_of(pipeline: beam.Pipeline) -> bytes:
    return repr(pipeline.options.get_all_options()).encode()


def metrics_of(result: Any) -> bytes:
    """Names, steps and values of all metrics of a run."""
    return repr(result.metrics().query()).encode()


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
