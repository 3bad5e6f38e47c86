"""Files in a folder that may not be read, are no logs, or change: what stops a stream, and what costs a row alone."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields, LogChunk, ReadBlock, read_log_chunk, text_files
from dp_transforms.logs.streams import log_folder
from tests.helpers.event_files_oracle import SECRET, avro_schema, write_avro, write_json, write_parquet
from tests.helpers.folder_tools import (
    drop,
    move_in,
    open_reader,
    poll,
    poll_once,
    read_to_the_end,
    users_of,
)

BEGIN = 1_506_826_800_000_000
TIME = "2017-10-01T03:00:00Z"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "avro"])
def test_a_file_that_may_not_be_read_stops_the_stream_until_it_may(ending: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        drop(folder, "first.jsonl", "a").chmod(0o644)
        path = folder / f"second.{ending}"
        written = folder / ".being-written"
        if ending == "avro":
            write_avro(written, [("b", "i", BEGIN)], ("string", "string", MICROS), "null", 200)
        elif ending == "parquet":
            write_parquet(written, [("b", "i", TIME)], [pa.string()] * 3)
        elif ending == "jsonl":
            write_json(written, [("b", "i", TIME)])
        else:
            written.write_text(f"user,item,timestamp\nb,i,{TIME}\n")
        move_in(written, path)
        read_to_the_end(open_reader(folder), 100)  # what it imports may be below a folder that nobody else may enter
        path.chmod(0)
        with _unprivileged():
            reader = open_reader(folder)
            polled = poll(reader, max_records=1)
            assert users_of(polled) == ["a"]
            for again in (reader, open_reader(folder)):
                with pytest.raises(StreamError, match=rf"second\.{ending}: it cannot be read \(Permission denied\)"):
                    poll(again, polled.position)
        path.chmod(0o644)
        with _unprivileged():
            for again in (reader, open_reader(folder)):
                assert users_of(poll(again, polled.position)) == ["b"]


_SCHEMA = avro_schema(("string", "string", MICROS))
_NO_LOGS = {
    "a.parquet": b"PAR1" + SECRET.encode(),
    "b.avro": json.dumps(_SCHEMA).encode(),
    "c.csv": f"id,what\n{SECRET},x\n".encode(),
    "d.jsonl.gz": b"\x1f\x8b" + SECRET.encode(),
    "e.csv": f"user;item;timestamp\n{SECRET};i;{TIME}\n".encode(),
}


@pytest.mark.parametrize("name", _NO_LOGS)
def test_a_file_that_is_no_log_stops_the_stream_until_it_is_gone(tmp_path: pathlib.Path, name: str) -> None:
    drop(tmp_path, "first.jsonl", "a")
    (tmp_path / ".being-written").write_bytes(_NO_LOGS[name])
    bad = move_in(tmp_path / ".being-written", tmp_path / name)
    drop(tmp_path, "last.jsonl", "z")
    time.sleep(0.12)
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert users_of(polled) == ["a"]
    for again in (reader, reader, open_reader(tmp_path)):
        with pytest.raises(
            StreamError, match=rf"{name}: .* Move it out of the folder, move a repaired one in"
        ) as caught:
            poll(again, polled.position)
        assert SECRET not in str(caught.value)
        assert str(caught.value).isprintable()
    bad.unlink()
    for again in (reader, open_reader(tmp_path)):
        rest = poll(again, polled.position)
        assert (users_of(rest), rest.rejected) == (["z"], ())


def test_damage_behind_the_first_block_stops_the_stream_for_good(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 200)
    written = tmp_path / ".being-written"
    write_json(written, [(str(number), "i", TIME) for number in range(50)])
    written.write_bytes(gzip.compress(written.read_bytes()) + b"garbage behind the member")
    move_in(written, tmp_path / "log.jsonl.gz")
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert users_of(polled)[0] == "0"
    has_failed = False
    while not has_failed:  # up to the block that fails, of which nothing was given
        try:
            polled = poll(reader, polled.position, max_records=1)
        except StreamError:
            has_failed = True
    for again in (reader, reader, open_reader(tmp_path)):
        with pytest.raises(StreamError, match=r"log\.jsonl\.gz: it is damaged .* start a new run"):
            poll(again, polled.position)


def test_hidden_temporary_and_other_files_are_passed_over(tmp_path: pathlib.Path) -> None:
    outside = drop(tmp_path, "outside.jsonl", [SECRET])
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".x.jsonl", "_x.jsonl", "x.jsonl.tmp", "x.JSONL.part", "README.txt"):
        (folder / name).write_bytes(outside.read_bytes())
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "folder.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    time.sleep(0.12)
    polled = poll_once(open_reader(folder))
    assert (polled.records, polled.is_at_end) == (0, True)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["append", "touch", "remove"])
def test_a_file_that_changes_after_it_was_begun_stops_the_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str, reopen: bool
) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 200)
    path = drop(tmp_path, "log.jsonl", map(str, range(50)))
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert 0 < polled.records < 50
    assert not polled.is_at_end
    if how == "append":  # and its time is set back: the size alone tells
        before = path.stat().st_mtime_ns
        with path.open("a") as file:
            file.write("\n")
        os.utime(path, ns=(before, before))
    elif how == "touch":
        os.utime(path)
    else:
        path.unlink()
    if reopen:
        reader = open_reader(tmp_path)
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll_once(reader, polled.position)


@pytest.mark.parametrize("how", ["other events", "fewer blocks"])
def test_other_content_of_the_same_size_and_time_stops_a_restart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 200)
    path = drop(tmp_path, "log.jsonl", map(str, range(50)))
    polled = poll(open_reader(tmp_path), max_records=1)
    assert 0 < polled.records < 50
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    first, rest = content.split(b"\n", 1)
    path.write_bytes(first.replace(b"{", b"(") + b"\n" + rest if how == "other events" else b"\n" * len(content))
    os.utime(path, ns=(before, before))
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll_once(open_reader(tmp_path), polled.position)


def test_a_file_that_changes_while_a_block_is_read_stops_the_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop(tmp_path, "log.jsonl", "ab")

    def change_and_read(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
        os.utime(path, (1, 1))
        yield from read_log_chunk(chunk, fields)

    monkeypatch.setattr(log_folder, "read_log_chunk", change_and_read)
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll(open_reader(tmp_path), max_records=1)
