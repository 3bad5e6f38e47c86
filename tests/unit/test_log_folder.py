"""A folder as a stream: files in order, by pieces or at once the same, and what came too late never read."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterable

import pyarrow as pa
import pytest

from dp_transforms.event_files import EventFields, json_lines
from dp_transforms.event_streams.log_folder import CAME_BEHIND, FolderReader, LogFolder
from dp_transforms.event_streams.stream_source import Polled, StreamError
from tests.unit.event_files_oracle import SECRET, avro_schema, write_avro, write_json, write_parquet

SECOND = 1_000_000_000
BEGIN = 1_506_826_800 * SECOND
TIME = "2017-10-01T03:00:00Z"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def _reader(folder: pathlib.Path, settle_seconds: float = 2.0) -> FolderReader:
    (partition,) = LogFolder(str(folder), EventFields(), settle_seconds).partitions()
    return partition.open()


def _drop(folder: pathlib.Path, name: str, users: Iterable[str], seconds: float) -> pathlib.Path:
    """A file of events moved in, last written so many seconds after BEGIN."""
    written = folder / f".{name}.being-written"
    write_json(written, [(user, "i", TIME) for user in users])
    os.utime(written, ns=(BEGIN, BEGIN + int(seconds * SECOND)))
    return written.rename(folder / name)


def _poll(reader: FolderReader, position: str | None = None, max_records: int = 1_000_000, wait: float = 0) -> Polled:
    polled = reader.poll(position, max_records=max_records, max_seconds=wait or 5)
    assert polled.records == len(polled.batch) + sum(len(part.positions) for part in polled.rejected)
    assert len(polled.arrival_micros) == len(polled.batch)
    assert SECRET not in repr(polled.rejected)
    return polled


def _quick(reader: FolderReader, position: str | None = None) -> Polled:
    return _poll(reader, position, wait=0.01)


def _users(polled: Polled) -> list[str]:
    return list(polled.batch.user.to_pylist())


def _read_to_the_end(reader: FolderReader, max_records: int, *, reopen: bool = False) -> list[tuple[str, int]]:
    events: list[tuple[str, int]] = []
    position = None
    while True:
        polled = reader.poll(position, max_records=max_records, max_seconds=0.01)
        events += zip(_users(polled), polled.arrival_micros.tolist(), strict=True)
        position = polled.position
        if reopen:
            reader.close()
        if polled.is_at_end and not polled.records:
            return events


def test_files_of_all_formats_in_the_order_of_their_times_and_names(tmp_path: pathlib.Path) -> None:
    _drop(tmp_path, "b.jsonl", "cd", 5)
    _drop(tmp_path, "a.jsonl", "e", 9)
    _drop(tmp_path, "a2.jsonl", "b", 5)
    (tmp_path / "z.csv").write_text(f"user,item,timestamp\na,i,{TIME}\n")
    write_parquet(tmp_path / "f.parquet", [("f", "i", TIME)], [pa.string()] * 3)
    write_avro(tmp_path / "g.avro", [("g", "i", BEGIN // 1000)], ("string", "string", MICROS), "null", 100)
    for name, seconds in (("z.csv", 1), ("f.parquet", 10), ("g.avro", 11)):
        os.utime(tmp_path / name, ns=(0, BEGIN + seconds * SECOND))
    reader = _reader(tmp_path)
    polled = _poll(reader, wait=0.5)
    assert _users(polled) == list("abcdefg")
    assert ((polled.arrival_micros - BEGIN // 1000) // 1_000_000).tolist() == [1, 5, 5, 5, 9, 10, 11]
    assert polled.is_at_end
    assert not polled.rejected
    assert _quick(reader, polled.position).records == 0


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "avro"])
def test_polls_of_any_size_give_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ending: str, reopen: bool
) -> None:
    for number in range(4):
        rows = [(f"{number}-{row}" if row % 7 else "", "i", BEGIN // 1000) for row in range(100)]
        path = tmp_path / f"{number}.{ending}"
        if ending == "avro":
            write_avro(path, rows, ("string", "string", MICROS), "null", 200)
            monkeypatch.setattr("dp_transforms.event_files.avro._BLOCK_ROWS", 30)
        elif ending == "jsonl":
            write_json(path, [(user, item, TIME) for user, item, _ in rows])
            monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 2_000)
        else:
            path.write_text("user,item,timestamp\n" + "".join(f"{user},{item},{TIME}\n" for user, item, _ in rows))
            monkeypatch.setattr("dp_transforms.event_files.csv_lines._BLOCK_BYTES", 700)
        os.utime(path, ns=(0, BEGIN + number * SECOND))
    expected = [
        (f"{number}-{row}", BEGIN // 1000 + number * 1_000_000) for number in range(4) for row in range(100) if row % 7
    ]
    for max_records in (1, 40, 1_000_000):
        assert _read_to_the_end(_reader(tmp_path), max_records, reopen=reopen) == expected


def test_new_files_are_found_and_others_come_behind(tmp_path: pathlib.Path) -> None:
    reader = _reader(tmp_path)
    polled = _quick(reader)
    assert (polled.records, polled.is_at_end) == (0, True)
    _drop(tmp_path, "one.jsonl", "a", 10)
    polled = _quick(reader, polled.position)
    assert _users(polled) == ["a"]
    _drop(tmp_path, "behind.jsonl", [SECRET, "x"], 9)
    _drop(tmp_path, "same-time.jsonl", "b", 10)
    _drop(tmp_path, "two.jsonl", "c", 11)
    polled = _poll(reader, polled.position, wait=0.5)
    assert _users(polled) == ["b", "c"]
    assert [(part.source, part.reason) for part in polled.rejected] == [(str(tmp_path / "behind.jsonl"), CAME_BEHIND)]
    # A reader that was opened at this position takes all before it as read; nothing is rejected twice.
    for again in (reader, _reader(tmp_path)):
        assert _quick(again, polled.position).records == 0


def test_a_poll_waits_for_a_file(tmp_path: pathlib.Path) -> None:
    path = _drop(tmp_path, "young.jsonl", "a", 0)
    os.utime(path)
    reader = _reader(tmp_path, settle_seconds=0.6)
    polled = _quick(reader)
    assert (polled.records, polled.is_at_end) == (0, False)
    begin = time.monotonic()
    assert _users(_poll(reader, polled.position)) == ["a"]
    assert time.monotonic() - begin < 3


def test_what_is_still_being_written_is_taken_at_its_last_time(tmp_path: pathlib.Path) -> None:
    path = _drop(tmp_path, "slow.jsonl", "a", 0)
    os.utime(path)
    reader = _reader(tmp_path, settle_seconds=0.5)
    polled = _quick(reader)
    write_json(path, [("a", "i", TIME), ("b", "i", TIME)])
    polled = _poll(reader, polled.position)
    assert _users(polled) == ["a", "b"]
    assert polled.arrival_micros.tolist() == [path.stat().st_mtime_ns // 1000] * 2


def test_damaged_files_are_rejected_and_the_stream_goes_on(tmp_path: pathlib.Path) -> None:
    schema = avro_schema(("string", "string", MICROS))
    damaged = {
        "a.parquet": b"PAR1" + SECRET.encode(),
        "b.avro": json.dumps(schema).encode(),
        "c.csv": f"id,what\n{SECRET},x\n".encode(),
        "d.jsonl": SECRET.encode() + b"\n",
        "e.jsonl.gz": b"\x1f\x8b" + SECRET.encode(),
        "f.csv": f'user,item,timestamp\nu,i,{TIME}\nu,"{SECRET},{TIME}\nu,i,{TIME}\n'.encode(),
    }
    for number, (name, data) in enumerate(damaged.items()):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, ns=(0, BEGIN + number * SECOND))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    os.utime(tmp_path / "empty.jsonl", ns=(0, BEGIN + 50 * SECOND))
    _drop(tmp_path, "good.jsonl", "z", 99)
    polled = _poll(_reader(tmp_path), wait=1)
    assert _users(polled)[-1] == "z"
    assert [pathlib.Path(part.source).name for part in polled.rejected] == list(damaged)
    assert {part.reason.partition(": ")[0] for part in polled.rejected} == {"file rejected"}
    assert polled.is_at_end


def test_hidden_temporary_and_other_files_are_passed_over(tmp_path: pathlib.Path) -> None:
    outside = _drop(tmp_path, "outside.jsonl", [SECRET], 0)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".x.jsonl", "_x.jsonl", "x.jsonl.tmp", "x.JSONL.part", "README.txt"):
        (folder / name).write_bytes(outside.read_bytes())
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "folder.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    polled = _quick(_reader(folder))
    assert (polled.records, polled.is_at_end) == (0, True)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["append", "touch", "remove"])
def test_a_file_that_changes_after_it_was_begun_stops_the_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str, reopen: bool
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 200)
    path = _drop(tmp_path, "log.jsonl", map(str, range(50)), 1)
    reader = _reader(tmp_path)
    polled = _poll(reader, max_records=1)
    assert 0 < polled.records < 50
    assert not polled.is_at_end
    if how == "append":
        with path.open("a") as file:
            file.write("\n")
        os.utime(path, ns=(0, BEGIN + SECOND))
    elif how == "touch":
        os.utime(path)
    else:
        path.unlink()
    if reopen:
        reader = _reader(tmp_path)
    with pytest.raises(StreamError, match="changed or went away"):
        _quick(reader, polled.position)


def test_no_folder_and_strange_positions(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StreamError, match="no folder that can be read"):
        LogFolder(str(tmp_path / "none"), EventFields()).partitions()
    with pytest.raises(ValueError, match="settle_seconds must be 0 to 3600, got -1"):
        LogFolder(str(tmp_path), EventFields(), -1)
    for position in ("", "[]", '{"next_offset": 3}', '{"name":"x","mtime_ns":"1","size":0,"blocks":0,"events":0}'):
        with pytest.raises(StreamError, match="none of a folder"):
            _quick(_reader(tmp_path), position)


def test_many_old_files_are_listed_and_not_read_again(tmp_path: pathlib.Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number}.jsonl").touch()
    os.utime(tmp_path, ns=(0, BEGIN))  # long ago: a look at an unchanged folder is one call
    reader = _reader(tmp_path, settle_seconds=0)
    position = None
    while not (polled := reader.poll(position, max_records=10, max_seconds=0.01)).is_at_end:
        position = polled.position
    begin = time.process_time()
    for _ in range(200):
        polled = reader.poll(polled.position, max_records=10, max_seconds=0)
    assert time.process_time() - begin < 0.5  # one listing takes some 5 ms
