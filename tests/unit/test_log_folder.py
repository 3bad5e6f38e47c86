"""A folder as a stream: files in the order in which they came, from every position and at every reading the same."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from dp_transforms.event_files import EventFields, LogChunk, ReadBlock, json_lines, read_log_chunk
from dp_transforms.event_streams import log_folder
from dp_transforms.event_streams.log_folder import CAME_BEHIND, FolderReader, LogFolder
from dp_transforms.event_streams.stream_source import Polled, StreamError
from tests.unit.event_files_oracle import SECRET, avro_schema, write_avro, write_json, write_parquet

BEGIN = 1_506_826_800_000_000
TICK_SECONDS = 0.02  # two files that came this long after each other surely have different times
TIME = "2017-10-01T03:00:00Z"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def _reader(folder: pathlib.Path, settle_seconds: float = 0.1) -> FolderReader:
    (partition,) = LogFolder(str(folder), EventFields(), settle_seconds).partitions()
    return partition.open()


def _drop(folder: pathlib.Path, name: str, users: Iterable[str]) -> pathlib.Path:
    """A file of events moved in, behind all that are there."""
    written = folder / f".{name}.being-written"
    write_json(written, [(user, "i", TIME) for user in users])
    return _move_in(written, folder / name)


def _move_in(written: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    time.sleep(TICK_SECONDS)
    return written.rename(path)


def _arrival(path: pathlib.Path) -> int:
    return path.stat().st_ctime_ns // 1000


def _poll(reader: FolderReader, position: str | None = None, max_records: int = 1_000_000, wait: float = 0) -> Polled:
    polled = reader.poll(position, max_records=max_records, max_seconds=wait or 60)
    assert polled.records == len(polled.batch) + sum(len(part.positions) for part in polled.rejected)
    assert len(polled.arrival_micros) == len(polled.batch)
    assert SECRET not in repr(polled.rejected)
    return polled


def _quick(reader: FolderReader, position: str | None = None) -> Polled:
    return _poll(reader, position, wait=0.01)


def _users(polled: Polled) -> list[str]:
    return list(polled.batch.user.to_pylist())


def _read_to_the_end(
    reader: FolderReader, max_records: int, position: str | None = None, *, reopen: bool = False
) -> list[tuple[list[tuple[str, int]], str]]:
    """For each poll its events, as (user, arrival), and the position after it."""
    polls = []
    while True:
        polled = reader.poll(position, max_records=max_records, max_seconds=0.01)
        position = polled.position
        polls.append((list(zip(_users(polled), polled.arrival_micros.tolist(), strict=True)), position))
        if reopen:
            reader.close()
        if polled.is_at_end and not polled.records:
            return polls


def _events(polls: list[tuple[list[tuple[str, int]], str]]) -> list[tuple[str, int]]:
    return [event for events, _ in polls for event in events]


def test_files_of_all_formats_in_the_order_in_which_they_came(tmp_path: pathlib.Path) -> None:
    written, folder = tmp_path / "written", tmp_path / "folder"
    written.mkdir()
    folder.mkdir()
    (written / "z.csv").write_text(f"user,item,timestamp\na,i,{TIME}\n")
    write_json(written / "b.jsonl", [(user, "i", TIME) for user in "bc"])
    write_json(written / "a.jsonl", [("d", "i", TIME)])
    write_parquet(written / "f.parquet", [("e", "i", TIME)], [pa.string()] * 3)
    write_avro(written / "g.avro", [("f", "i", BEGIN)], ("string", "string", MICROS), "null", 100)
    names = ["z.csv", "b.jsonl", "a.jsonl", "f.parquet", "g.avro"]
    for number, name in enumerate(names):  # when they were written, or are said to have been, changes nothing
        os.utime(written / name, (0, 2_000_000_000 - number))
    for name in names:
        _move_in(written / name, folder / name)
    time.sleep(0.12)
    reader = _reader(folder)
    polled = _poll(reader)
    assert _users(polled) == list("abcdef")
    assert polled.arrival_micros.tolist() == [_arrival(folder / names[row]) for row in (0, 1, 1, 2, 3, 4)]
    assert abs(polled.arrival_micros[-1] / 1e6 - time.time()) < 60
    assert polled.is_at_end
    assert not polled.rejected
    assert _quick(reader, polled.position).records == 0


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "avro"])
def test_polls_of_any_size_and_from_any_position_give_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ending: str, reopen: bool
) -> None:
    expected = []
    for number in (2, 0, 3, 1):
        rows = [(f"{number}-{row}" if row % 7 else "", "i", BEGIN) for row in range(100)]
        written = tmp_path / ".being-written"
        if ending == "avro":
            write_avro(written, rows, ("string", "string", MICROS), "null", 200)
            monkeypatch.setattr("dp_transforms.event_files.avro._BLOCK_ROWS", 30)
        elif ending == "jsonl":
            write_json(written, [(user, item, TIME) for user, item, _ in rows])
            monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 2_000)
        else:
            written.write_text("user,item,timestamp\n" + "".join(f"{user},{item},{TIME}\n" for user, item, _ in rows))
            monkeypatch.setattr("dp_transforms.event_files.csv_lines._BLOCK_BYTES", 700)
        path = _move_in(written, tmp_path / f"{number}.{ending}")
        expected += [(user, _arrival(path)) for user, _, _ in rows if user]
    time.sleep(0.12)
    for max_records in (1, 40, 1_000_000):
        polls = _read_to_the_end(_reader(tmp_path), max_records, reopen=reopen)
        assert _events(polls) == expected
        given = 0
        for number, (events, position) in enumerate(polls):  # a restart from there, with all files in the folder
            given += len(events)
            if number % 7 and len(polls) > 20:
                continue
            assert _events(_read_to_the_end(_reader(tmp_path), 1_000, position)) == expected[given:]


def test_what_was_read_while_files_came_is_read_again_after_a_restart(tmp_path: pathlib.Path) -> None:
    live, seen = _reader(tmp_path), list[tuple[str, int]]()
    position = None
    for number, name in enumerate(["m", "a", "z", "b", "y"]):
        _drop(tmp_path, f"{name}.jsonl", [name])
        os.utime(tmp_path / f"{name}.jsonl", (0, 1_000_000 - number))
        while not seen or seen[-1][0] != name:
            polled = _quick(live, position)
            assert not polled.rejected
            position = polled.position
            seen += zip(_users(polled), polled.arrival_micros.tolist(), strict=True)
            assert [user for user, _ in seen] == ["m", "a", "z", "b", "y"][: len(seen)]
    assert _events(_read_to_the_end(_reader(tmp_path), 1)) == seen
    assert _events(_read_to_the_end(_reader(tmp_path), 100)) == seen


def test_a_file_comes_behind_only_where_the_clock_was_set_back(tmp_path: pathlib.Path) -> None:
    path = _drop(tmp_path, "one.jsonl", "a")
    reader = _reader(tmp_path)
    polled = _poll(reader)
    # What the position would be if the clock had been an hour ahead when the file came.
    told = json.loads(polled.position)
    told["ctime_ns"] += 3_600 * 10**9
    position = _quick(reader, json.dumps(told)).position
    _drop(tmp_path, "behind.jsonl", [SECRET, "x"])
    polled = _quick(reader, position)
    assert [(part.source, part.reason) for part in polled.rejected] == [(str(tmp_path / "behind.jsonl"), CAME_BEHIND)]
    # A reader that was opened at this position takes all before it as read; nothing is rejected twice.
    for again in (reader, _reader(tmp_path)):
        assert _quick(again, polled.position).records == 0
    assert path.exists()


def test_files_that_came_too_early_are_not_opened(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".a").write_text("broken")  # who opened it would reject it
    _move_in(tmp_path / ".a", tmp_path / "a.jsonl")
    for name in ("b", "c"):
        _drop(tmp_path, f"{name}.jsonl", [f"user-{name}"])
    (partition,) = LogFolder(str(tmp_path), EventFields(), 0.1).partitions()
    reader = partition.open(_arrival(tmp_path / "b.jsonl"))
    _drop(tmp_path, "d.jsonl", ["user-d"])
    os.utime(tmp_path / "d.jsonl", (1, 1))
    time.sleep(0.2)
    polled = _poll(reader)
    assert (_users(polled), polled.rejected) == (["user-b", "user-c", "user-d"], ())


def test_a_poll_waits_for_a_file(tmp_path: pathlib.Path) -> None:
    _drop(tmp_path, "young.jsonl", "a")
    reader = _reader(tmp_path, settle_seconds=2)
    polled = _quick(reader)
    assert (polled.records, polled.is_at_end) == (0, False)
    begin = time.monotonic()
    assert _users(_poll(reader, polled.position)) == ["a"]
    assert time.monotonic() - begin < 50


def test_nothing_is_taken_that_a_look_of_long_ago_knew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may stand still between its look and the taking of a file: what came in between goes before others."""
    first = _drop(tmp_path, "b.jsonl", "b")
    list_files = FolderReader._list

    def list_and_stand_still(reader: FolderReader, found: object) -> None:
        list_files(reader, found)  # type: ignore[arg-type]
        monkeypatch.setattr(FolderReader, "_list", list_files)
        _drop(tmp_path, "a.jsonl", "a")
        first.chmod(0o600)  # in order behind the other one now
        time.sleep(0.2)

    monkeypatch.setattr(FolderReader, "_list", list_and_stand_still)
    polled = _poll(_reader(tmp_path))
    assert _users(polled) == ["a", "b"]
    assert not polled.rejected


def test_what_is_still_being_written_is_taken_at_its_last_time(tmp_path: pathlib.Path) -> None:
    path = _drop(tmp_path, "slow.jsonl", "a")
    reader = _reader(tmp_path, settle_seconds=2)
    polled = _quick(reader)
    write_json(path, [("a", "i", TIME), ("b", "i", TIME)])
    polled = _poll(reader, polled.position)
    assert _users(polled) == ["a", "b"]
    assert polled.arrival_micros.tolist() == [_arrival(path)] * 2


def test_a_file_that_is_replaced_while_it_waits_is_read_once(tmp_path: pathlib.Path) -> None:
    _drop(tmp_path, "log.jsonl", "a")
    reader = _reader(tmp_path, settle_seconds=2)
    polled = _quick(reader)
    _drop(tmp_path, "log.jsonl", "bc")
    polled = _poll(reader, _quick(reader, polled.position).position)
    assert _users(polled) == ["b", "c"]
    assert _quick(reader, polled.position).records == 0


@pytest.mark.parametrize("reopen", [False, True])
def test_new_permissions_while_a_file_is_read_change_nothing_of_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reopen: bool
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 200)
    path = _drop(tmp_path, "log.jsonl", map(str, range(50)))
    arrival = _arrival(path)
    reader = _reader(tmp_path)
    polled = _poll(reader, max_records=1)
    assert 0 < polled.records < 50
    time.sleep(TICK_SECONDS)
    path.chmod(0o600)
    assert _arrival(path) > arrival
    rest = _poll(_reader(tmp_path) if reopen else reader, polled.position, max_records=50 - polled.records)
    assert _users(polled) + _users(rest) == [str(number) for number in range(50)]
    assert set(rest.arrival_micros.tolist()) == {arrival}
    # A reader that is opened afterwards meets it once more, whole: the same events, which came later.
    again = _poll(_reader(tmp_path), rest.position)
    assert _users(again) == [str(number) for number in range(50)][: len(_users(again))]


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
        _drop(folder, "first.jsonl", "a").chmod(0o644)
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
        _move_in(written, path)
        _read_to_the_end(_reader(folder), 100)  # what it imports may be below a folder that nobody else may enter
        path.chmod(0)
        with _unprivileged():
            reader = _reader(folder)
            polled = _poll(reader, max_records=1)
            assert _users(polled) == ["a"]
            for again in (reader, _reader(folder)):
                with pytest.raises(StreamError, match=rf"second\.{ending}: it cannot be read \(Permission denied\)"):
                    _poll(again, polled.position)
        path.chmod(0o644)
        with _unprivileged():
            for again in (reader, _reader(folder)):
                assert _users(_poll(again, polled.position)) == ["b"]


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
    _drop(tmp_path, "first.jsonl", "a")
    (tmp_path / ".being-written").write_bytes(_NO_LOGS[name])
    bad = _move_in(tmp_path / ".being-written", tmp_path / name)
    _drop(tmp_path, "last.jsonl", "z")
    time.sleep(0.12)
    reader = _reader(tmp_path)
    polled = _poll(reader, max_records=1)
    assert _users(polled) == ["a"]
    for again in (reader, reader, _reader(tmp_path)):
        with pytest.raises(StreamError, match=rf"{name}: .* Move it out of the folder, and a mended one in") as caught:
            _poll(again, polled.position)
        assert SECRET not in str(caught.value)
        assert str(caught.value).isprintable()
    bad.unlink()
    for again in (reader, _reader(tmp_path)):
        rest = _poll(again, polled.position)
        assert (_users(rest), rest.rejected) == (["z"], ())


def test_damage_behind_the_first_block_stops_the_stream_for_good(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 200)
    written = tmp_path / ".being-written"
    write_json(written, [(str(number), "i", TIME) for number in range(50)])
    written.write_bytes(gzip.compress(written.read_bytes()) + b"garbage behind the member")
    _move_in(written, tmp_path / "log.jsonl.gz")
    reader = _reader(tmp_path)
    polled = _poll(reader, max_records=1)
    assert _users(polled)[0] == "0"
    for again in (reader, reader, _reader(tmp_path)):
        with pytest.raises(StreamError, match=r"log\.jsonl\.gz: it is damaged .* begin a new run"):
            _poll(again, polled.position)


@pytest.mark.parametrize("first", [[], [("x", "i", TIME)]])
def test_lines_that_are_no_events_cost_themselves_alone(
    tmp_path: pathlib.Path, first: list[tuple[str, str, str]]
) -> None:
    """What one user writes first decides about nobody else's lines."""
    lines = [json.dumps({"user": user, "item": item, "timestamp": at}) for user, item, at in first]
    lines += [json.dumps({"user": "y", "timestamp": TIME})] * 120
    lines += [json.dumps({"user": f"u{n}", "item": "A", "timestamp": TIME}) for n in range(2_000)]
    (tmp_path / ".being-written").write_text("\n".join(lines) + "\n")
    path = _move_in(tmp_path / ".being-written", tmp_path / "log.jsonl")
    time.sleep(0.12)
    polled = _poll(_reader(tmp_path))
    assert _users(polled) == [user for user, _, _ in first] + [f"u{n}" for n in range(2_000)]
    begin = 1 + len(first)
    assert [tuple(part) for part in polled.rejected] == [(str(path), tuple(range(begin, begin + 120)), "missing item")]


def test_hidden_temporary_and_other_files_are_passed_over(tmp_path: pathlib.Path) -> None:
    outside = _drop(tmp_path, "outside.jsonl", [SECRET])
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".x.jsonl", "_x.jsonl", "x.jsonl.tmp", "x.JSONL.part", "README.txt"):
        (folder / name).write_bytes(outside.read_bytes())
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "folder.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    time.sleep(0.12)
    polled = _quick(_reader(folder))
    assert (polled.records, polled.is_at_end) == (0, True)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["append", "touch", "remove"])
def test_a_file_that_changes_after_it_was_begun_stops_the_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str, reopen: bool
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 200)
    path = _drop(tmp_path, "log.jsonl", map(str, range(50)))
    reader = _reader(tmp_path)
    polled = _poll(reader, max_records=1)
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
        reader = _reader(tmp_path)
    with pytest.raises(StreamError, match="changed or went away"):
        _quick(reader, polled.position)


@pytest.mark.parametrize("how", ["other events", "fewer blocks"])
def test_other_content_of_the_same_size_and_time_stops_a_restart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", 200)
    path = _drop(tmp_path, "log.jsonl", map(str, range(50)))
    polled = _poll(_reader(tmp_path), max_records=1)
    assert 0 < polled.records < 50
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    first, rest = content.split(b"\n", 1)
    path.write_bytes(first.replace(b"{", b"(") + b"\n" + rest if how == "other events" else b"\n" * len(content))
    os.utime(path, ns=(before, before))
    with pytest.raises(StreamError, match="changed or went away"):
        _quick(_reader(tmp_path), polled.position)


def test_a_file_that_changes_while_a_block_is_read_stops_the_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _drop(tmp_path, "log.jsonl", "ab")

    def change_and_read(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
        os.utime(path, (1, 1))
        yield from read_log_chunk(chunk, fields)

    monkeypatch.setattr(log_folder, "read_log_chunk", change_and_read)
    with pytest.raises(StreamError, match="changed or went away"):
        _poll(_reader(tmp_path))


def test_a_file_that_comes_without_changing_the_time_of_the_folder_is_found(tmp_path: pathlib.Path) -> None:
    """Folders' times are coarse: right after a change another one may go unseen in them."""
    _drop(tmp_path, "a.jsonl", "a")
    reader = _reader(tmp_path)
    polled = _poll(reader)
    assert _users(polled) == ["a"]
    time_of_folder = tmp_path.stat().st_mtime_ns
    _drop(tmp_path, "b.jsonl", "b")
    os.utime(tmp_path, ns=(time_of_folder, time_of_folder))
    time.sleep(0.12)
    assert _users(_poll(reader, polled.position)) == ["b"]


def test_no_folder_and_strange_positions(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StreamError, match="no folder that can be read"):
        LogFolder(str(tmp_path / "none"), EventFields()).partitions()
    with pytest.raises(ValueError, match=r"settle_seconds must be 0\.1 to 3600, got 0"):
        LogFolder(str(tmp_path), EventFields(), 0)
    for position in (
        "",
        "[]",
        '{"next_offset": 3}',
        '{"name":"x","ctime_ns":"1","mtime_ns":1,"size":0,"blocks":0,"events":0}',
    ):
        with pytest.raises(StreamError, match="none of a folder"):
            _quick(_reader(tmp_path), position)


def test_many_old_files_are_listed_and_not_read_again(tmp_path: pathlib.Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number}.jsonl").touch()
    os.utime(tmp_path, (0, 0))  # long ago: a look at an unchanged folder is one call
    reader = _reader(tmp_path)
    position = None
    while not (polled := reader.poll(position, max_records=10, max_seconds=0.01)).is_at_end:
        position = polled.position
    begin = time.process_time()
    for _ in range(200):
        polled = reader.poll(polled.position, max_records=10, max_seconds=0)
    assert time.process_time() - begin < 0.5  # one listing takes some 5 ms
