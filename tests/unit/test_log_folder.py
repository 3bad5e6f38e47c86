"""A folder as a stream: files in the order in which they came, from every position and at every reading the same."""

import contextlib
import errno
import gzip
import json
import os
import pathlib
import tempfile
import time

import pyarrow as pa
import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields, text_files
from dp_transforms.logs.streams import log_folder
from dp_transforms.logs.streams.log_folder import CAME_BEHIND, FolderReader, LogFolder, system_error
from dp_transforms.logs.streams.stream_source import NEVER
from tests.helpers.event_files_oracle import SECRET, avro_schema, write_avro, write_json, write_parquet
from tests.helpers.folder_tools import (
    TICK_SECONDS,
    TIME,
    arrival_of,
    drop,
    events_of,
    move_in,
    open_reader,
    poll,
    poll_once,
    read_to_the_end,
    users_of,
)

BEGIN = 1_506_826_800_000_000
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


@pytest.fixture
def small_blocks(monkeypatch):
    """A poll can end in the middle of each of these files."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 200)


def test_files_of_all_formats_in_the_order_in_which_they_came(tmp_path):
    written, folder = tmp_path / "written", tmp_path / "folder"
    written.mkdir()
    folder.mkdir()
    (written / "z.csv").write_text(f"user,item,timestamp\na,i,{TIME}\n")
    write_json(written / "b.jsonl", [(user, "i", TIME) for user in "bc"])
    write_json(written / "a.jsonl", [("d", "i", TIME)])
    write_parquet(written / "f.parquet", [("e", "i", TIME)], [pa.string()] * 3)
    write_avro(written / "g.avro", [("f", "i", BEGIN)], ("string", "string", MICROS), "null", 100)
    write_parquet(written / "h.parquet", [(None, "i", TIME)], [pa.null(), pa.string(), pa.string()])
    write_avro(written / "i.avro", [("h", None, BEGIN)], ("string", "null", MICROS), "null", 100)
    names = ["z.csv", "b.jsonl", "a.jsonl", "f.parquet", "g.avro", "h.parquet", "i.avro"]
    for number, name in enumerate(names):  # when they were written, or are said to have been, changes nothing
        os.utime(written / name, (0, 2_000_000_000 - number))
    for name in names:
        move_in(written / name, folder / name)
    time.sleep(0.12)
    reader = open_reader(folder)
    polled = poll(reader)
    assert users_of(polled) == list("abcdef")
    assert polled.arrival_micros.tolist() == [arrival_of(folder / names[row]) for row in (0, 1, 1, 2, 3, 4)]
    assert abs(polled.arrival_micros[-1] / 1e6 - time.time()) < 60
    assert polled.is_at_end
    reasons = [(part.source, list(part.positions), part.reason) for part in polled.rejected]
    assert reasons == [
        (str(folder / "h.parquet"), [1], "missing user"),
        (str(folder / "i.avro"), [1], "missing item"),
    ], "columns without a value"
    assert poll_once(reader, polled.position).records == 0


def test_a_file_without_an_event_has_arrived_too(tmp_path):
    """Its arrival is behind the events before it: else broken files could hold the clock."""
    (tmp_path / "folder").mkdir()
    for name, line in (("a", f"u,i,{TIME}"), ("b", f",i,{TIME}"), ("c", f"u,i,{TIME}"), ("d", "broken")):
        (tmp_path / name).write_text(f"user,item,timestamp\n{line}\n")
        move_in(tmp_path / name, tmp_path / "folder" / f"{name}.csv")
        time.sleep(TICK_SECONDS)
    time.sleep(0.12)
    polled = poll(open_reader(tmp_path / "folder"))
    a, c, d = (arrival_of(tmp_path / "folder" / f"{name}.csv") for name in "acd")
    assert polled.arrival_micros.tolist() == [a, c]
    assert polled.passed_micros is not None
    assert polled.passed_micros.tolist() == [NEVER, NEVER, d], "b is before c"


@pytest.mark.parametrize("reopen", [False, True])
def test_polls_of_any_size_and_from_any_position_give_the_same(tmp_path, monkeypatch, reopen):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 2_000)
    expected = []
    for number in (2, 0, 3, 1):
        users = [f"{number}-{row}" if row % 7 else "" for row in range(100)]
        path = drop(tmp_path, f"{number}.jsonl", users)
        expected += [(user, arrival_of(path)) for user in users if user]
    time.sleep(0.12)
    for max_records in (1, 40, 1_000_000):
        polls = read_to_the_end(open_reader(tmp_path), max_records, reopen=reopen)
        assert events_of(polls) == expected
        given = 0
        for number, (events, position) in enumerate(polls):  # a restart from there, with all files in the folder
            given += len(events)
            if number % 7 and len(polls) > 20:
                continue
            assert events_of(read_to_the_end(open_reader(tmp_path), 1_000, position)) == expected[given:]


def test_a_file_comes_behind_only_where_the_clock_was_set_back(tmp_path):
    path = drop(tmp_path, "one.jsonl", "a")
    reader = open_reader(tmp_path)
    polled = poll(reader)
    # What the position would be if the clock had been an hour ahead when the file came.
    fields = json.loads(polled.position)
    fields["ctime_ns"] += 3_600 * 10**9
    position = poll_once(reader, json.dumps(fields)).position
    drop(tmp_path, "behind.jsonl", [SECRET, "x"])
    polled = poll_once(reader, position)
    (rejected,) = polled.rejected
    assert (rejected.source, rejected.reason) == (str(tmp_path / "behind.jsonl"), CAME_BEHIND)
    assert list(rejected.positions) == [1]
    # A reader that was opened at this position takes all before it as read; nothing is rejected twice.
    for again in (reader, open_reader(tmp_path)):
        assert poll_once(again, polled.position).records == 0
    assert path.exists()


def test_nothing_is_taken_that_a_look_of_long_ago_knew(tmp_path, monkeypatch):
    """A process may stand still between its look and the taking of a file: what came in between goes before others."""
    first = drop(tmp_path, "b.jsonl", "b")
    list_files = FolderReader._list

    def list_and_stand_still(reader, found):
        list_files(reader, found)
        monkeypatch.setattr(FolderReader, "_list", list_files)
        drop(tmp_path, "a.jsonl", "a")
        first.chmod(0o600)  # in order behind the other one now
        time.sleep(0.2)

    monkeypatch.setattr(FolderReader, "_list", list_and_stand_still)
    polled = poll(open_reader(tmp_path))
    assert users_of(polled) == ["a", "b"]
    assert not polled.rejected


def test_what_is_still_being_written_is_taken_at_its_last_time(tmp_path):
    path = drop(tmp_path, "slow.jsonl", "a")
    reader = open_reader(tmp_path, settle_seconds=2)
    polled = poll_once(reader)
    write_json(path, [("a", "i", TIME), ("b", "i", TIME)])
    polled = poll(reader, polled.position)
    assert users_of(polled) == ["a", "b"]
    assert polled.arrival_micros.tolist() == [arrival_of(path)] * 2


def test_a_folder_stays_the_same_where_a_process_goes_elsewhere(tmp_path, monkeypatch):
    """As workers do, which are told the partition and begin in a directory of their own."""
    (tmp_path / "logs").mkdir()
    drop(tmp_path / "logs", "a.jsonl", "a")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StreamError, match="it is not a folder that can be read"):
        LogFolder("none", EventFields()).partitions()
    (partition,) = LogFolder("logs", EventFields(), 0.1).partitions()
    assert partition.name == f"folder:{tmp_path / 'logs'}"
    monkeypatch.chdir("/")
    assert users_of(poll(partition.open())) == ["a"]


@contextlib.contextmanager
def _unprivileged():
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_that_may_not_be_read_stops_the_stream_until_it_may(ending):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        drop(folder, "first.jsonl", "a").chmod(0o644)
        path = folder / f"second.{ending}"
        written = folder / ".being-written"
        if ending == "parquet":
            write_parquet(written, [("b", "i", TIME)], [pa.string()] * 3)
        else:
            write_json(written, [("b", "i", TIME)])
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
def test_a_file_that_is_no_log_stops_the_stream_until_it_is_gone(tmp_path, name):
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


def test_a_name_that_is_not_utf8_stops_the_stream(tmp_path):
    """A position could not be stored with it."""
    drop(tmp_path, os.fsdecode(b"log\xff.jsonl"), "a")
    for reader in (open_reader(tmp_path),) * 2:
        with pytest.raises(StreamError, match=r"log\\udcff\.jsonl: its name is not UTF-8\. Move it out"):
            poll(reader)


@pytest.mark.usefixtures("small_blocks")
def test_damage_behind_the_first_block_stops_the_stream_for_good(tmp_path):
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


def test_hidden_temporary_and_other_files_are_passed_over(tmp_path):
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


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reopen", [False, True])
def test_a_file_that_says_it_was_written_before_1970_is_read_from_each_position(tmp_path, reopen):
    written = tmp_path / ".written"
    write_json(written, [(str(user), "i", TIME) for user in range(50)])
    os.utime(written, (-10, -10))
    move_in(written, tmp_path / "log.jsonl")
    time.sleep(0.12)
    polls = read_to_the_end(open_reader(tmp_path), 1, reopen=reopen)
    assert [user for user, _ in events_of(polls)] == list(map(str, range(50)))
    assert len(polls) > 3


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["append", "touch", "remove"])
def test_a_file_that_changes_after_it_was_begun_stops_the_stream(tmp_path, how, reopen):
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


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_a_file_system_does_not_show_just_now_is_read_later(tmp_path, monkeypatch):
    """It is neither passed over nor taken for one that has changed, which would end the run for good."""
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    folder.mkdir()
    drop(folder, "log.jsonl", map(str, range(50)))
    reader = open_reader(folder)

    def fail(path):
        raise system_error(path, OSError(errno.EIO, "of a disk"))

    # Before its first event: no real folder fails just after it was listed.
    with monkeypatch.context() as broken:
        broken.setattr(log_folder, "status_of", fail)
        with pytest.raises(StreamError, match=r"log\.jsonl: .*Input/output error"):
            poll(reader, max_records=1)
    begun = poll(reader, max_records=1)
    folder.rename(moved)
    folder.symlink_to(folder)
    with pytest.raises(StreamError, match=r"log\.jsonl: .*\(Too many levels of symbolic links\)") as failed:
        poll(reader, begun.position)
    assert failed.type is StreamError
    folder.unlink()
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll(reader, begun.position)
    moved.rename(folder)
    assert users_of(begun) + users_of(poll(reader, begun.position)) == [str(user) for user in range(50)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("how", ["other events", "fewer blocks"])
def test_other_content_of_the_same_size_and_time_stops_a_restart(tmp_path, how):
    path = drop(tmp_path, "log.jsonl", map(str, range(50)))
    polled = poll(open_reader(tmp_path), max_records=1)
    assert 0 < polled.records < 50
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    first, rest = content.split(b"\n", 1)
    path.write_bytes(first.replace(b"{", b"(") + b"\n" + rest if how == "other events" else b"\n" * len(content))
    os.utime(path, ns=(before, before))
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll_once(open_reader(tmp_path), polled.position)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reopen", [False, True])
def test_new_permissions_while_a_file_is_read_change_nothing_of_it(tmp_path, reopen):
    path = drop(tmp_path, "log.jsonl", map(str, range(50)))
    arrival, reader = arrival_of(path), open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert 0 < polled.records < 50
    time.sleep(TICK_SECONDS)
    path.chmod(0o600)
    assert arrival_of(path) > arrival
    rest = poll(open_reader(tmp_path) if reopen else reader, polled.position, max_records=50 - polled.records)
    assert users_of(polled) + users_of(rest) == [str(number) for number in range(50)]
    assert set(rest.arrival_micros.tolist()) == {arrival}
