"""The search finds a token in every spelling and container that could hide it, and nothing where there is none."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import html
import io
import json
import os
import pickle
import random
import subprocess
import sys
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.canaries.search import Search, found_in
from tests.canaries.tokens import HASH_SEED, Canaries, number_spellings

CANARIES = Canaries(20)
SEARCH = Search(CANARIES.kinds())
NOISE = random.Random(5).randbytes(3_000_000)


def _parquet(text: str) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": ["a", text]}), buffer, compression="zstd")
    return buffer.getvalue()


def _avro(text: str) -> bytes:
    buffer = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    fastavro.writer(buffer, schema, [{"x": text}], codec="deflate")
    return buffer.getvalue()


def _zip(text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", text)
    return buffer.getvalue()


def _shifted_base64(text: str) -> bytes:
    return base64.b64encode(b"xy" + text.encode())


SPELLINGS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "half of it": lambda text: text[:16].encode(),
    "json": lambda text: json.dumps({"user": text}).encode(),
    "url": lambda text: urllib.parse.quote(text).encode(),
    "html": lambda text: html.escape(text).encode(),
    "repr": lambda text: repr(text.encode()).encode(),
    "hex": lambda text: text.encode().hex().encode(),
    "hex, capitals": lambda text: text.encode().hex().upper().encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 behind other bytes": _shifted_base64,
    "utf-16": lambda text: text.encode("utf-16-be"),
    "every character escaped": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text).encode(),
    "every character quoted": lambda text: "".join(f"%{ord(letter):02X}" for letter in text).encode(),
    "md5": lambda text: hashlib.md5(text.encode()).hexdigest().encode(),
    "sha256, raw": lambda text: hashlib.sha256(text.encode()).digest(),
    "sha256, cut": lambda text: hashlib.sha256(text.encode()).hexdigest()[:32].encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "zip": _zip,
    "parquet": _parquet,
    "avro": _avro,
    "a pickle as Beam writes it": lambda text: base64.b64encode(bz2.compress(pickle.dumps([text] * 9))),
    "zlib in base64": lambda text: base64.b64encode(zlib.compress(json.dumps({"a": text, "b": "c" * 40}).encode())),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("number", [0, 1], ids=["decorated", "plain"])
def test_a_token_is_found_in_any_spelling(spelling: str, number: int) -> None:
    for kind, token in (("user", CANARIES.users[number]), ("label", CANARIES.labels[number])):
        data = SPELLINGS[spelling](token)
        if not data.startswith((b"PK", b"PAR1", b"Obj", b"\x1f\x8b")):
            data = NOISE[:1001] + b" " + data + b" " + NOISE[:333]
        assert list(found_in(SEARCH, {"place": data})) == [("place", kind)]


def test_a_number_is_found_as_text_and_as_an_integer_of_any_format() -> None:
    number = CANARIES.numbers[7]
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, schema, {"x": number})
    parquet = io.BytesIO()
    pq.write_table(pa.table({"x": [number]}), parquet, compression="gzip")
    for data in (
        str(number).encode(),
        avro.getvalue(),
        pickle.dumps(number),
        parquet.getvalue(),
        *number_spellings(number),
    ):
        assert SEARCH.kinds_within(data) == {"user"}


def test_the_hash_of_python_is_found() -> None:
    """Of this process, and of those with PYTHONHASHSEED=0: what is searched runs in one of them."""
    assert SEARCH.kinds_within(f"partition {hash(CANARIES.labels[1])}".encode()) == {"label"}
    process = subprocess.run(
        [sys.executable, "-c", "import sys; print(hash(sys.argv[1]), hash(sys.argv[2]))", "other", CANARIES.users[1]],
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        capture_output=True,
        check=True,
    )
    other, token = process.stdout.split()
    assert SEARCH.kinds_within(b"partition " + token) == {"user"}
    assert SEARCH.kinds_within(b"partition " + other) == set()


def test_nothing_is_found_where_there_is_nothing() -> None:
    """Of three million random bytes some 3e6 * 1e5 / 2^64, below one in ten million, would match by chance."""
    other = Canaries(20)
    clean = json.dumps([*other.users, *other.labels, *other.numbers]).encode() + NOISE
    assert list(found_in(SEARCH, {"place": clean})) == []


def test_a_spelling_is_found_wherever_it_stands() -> None:
    """At each offset, at the borders of the pieces that are searched, and as the last bytes."""
    spelling = CANARIES.users[1].encode()[:12]
    search = Search({"user": [spelling]})
    for place in (*range(17), (1 << 22) - 13, (1 << 22) - 5, 1 << 22, (1 << 22) + 1):
        data = bytes(place) + spelling
        assert search.kinds_in(data) == {"user"}
        assert search.kinds_in(data[:-1]) == set()
