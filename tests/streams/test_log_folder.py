"""A folder as a stream: files in the order in which they came, from every position and at every reading the same."""

import contextlib
import errno
import gzip
import json
import os
import time

import pyarrow as pa
import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields, text_files
from dp_transforms.logs.streams import log_folder
from dp_transforms.logs.streams.log_folder import FolderReader, LogFolder
from dp_transforms.logs.streams.stream_source import NEVER
from tests.helpers.event_files_oracle import SECRET
from tests.helpers.log_files import write_avro, write_json, write_parquet

BEGIN, TIME = 1_506_826_800_000_000, "2017-10-01T03:00:00Z"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
TICK_SECONDS = 0.02  # two files that came this long after each other surely have different times
FIFTY = [str(number) for number in range(50)]


@pytest.fixture
def small_blocks(monkeypatch):
    """A poll can end in the middle of each of these files."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 200)


def open_reader(folder, settle_seconds=0.1):
    (partition,) = LogFolder(str(folder), EventFields(), settle_seconds).partitions()
    return partition.open()


def drop(folder, name, users):
    """A file of events moved in, behind all that are there."""
    written = folder / f".{name}.being-written"
    write_json(written, [(user, "i", TIME) for user in users])
    return move_in(written, folder / name)


def move_in(written, path):
    time.sleep(TICK_SECONDS)
    return written.rename(path)


def arrival_of(path):
    return path.stat().st_ctime_ns // 1000


def poll(reader, position=None, max_records=1_000_000, wait=60.0):
    polled = reader.poll(position, max_records=max_records, max_seconds=wait)
    assert polled.records == len(polled.batch) + sum(len(part.positions) for part in polled.rejected)
    assert len(polled.arrival_micros) == len(polled.batch)
    assert SECRET not in repr(polled.rejected)
    return polled


def poll_once(reader, position=None):
    return poll(reader, position, wait=0.01)


def users_of(polled):
    return polled.batch.user.to_pylist()


def read_to_the_end(reader, max_records, position=None, *, reopen=False):
    """For each poll its events, as (user, arrival), and the position after it."""
    polls = []
    while True:
        polled = poll(reader, position, max_records, wait=0.01)
        position = polled.position
        polls.append((list(zip(users_of(polled), polled.arrival_micros.tolist(), strict=True)), position))
        if reopen:
            reader.close()
        if polled.is_at_end and not polled.records:
            return polls


def events_of(polls):
    return [event for events, _ in polls for event in events]


# --- Which files, in which order


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
    names = ["z.csv", "b.jsonl", "a.jsonl", "f.parquet", "g.avro", "h.parquet"]
    for number, name in enumerate(names):  # when they were written, or are said to have been, changes nothing
        os.utime(written / name, (0, 2_000_000_000 - number))
        move_in(written / name, folder / name)
    time.sleep(0.12)
    polled = poll(reader := open_reader(folder))
    assert users_of(polled) == list("abcdef")
    assert polled.arrival_micros.tolist() == [arrival_of(folder / names[row]) for row in (0, 1, 1, 2, 3, 4)]
    assert abs(polled.arrival_micros[-1] / 1e6 - time.time()) < 60
    assert polled.is_at_end
    (rejected,) = polled.rejected
    assert (rejected.source, *rejected.positions) == (str(folder / "h.parquet"), 1)
    assert poll_once(reader, polled.position).records == 0


def test_a_file_without_an_event_has_arrived_too(tmp_path):
    """Its arrival is behind the events before it: else broken files could hold the clock."""
    (tmp_path / "folder").mkdir()
    for name, line in (("a", f"u,i,{TIME}"), ("b", f",i,{TIME}"), ("c", f"u,i,{TIME}"), ("d", "broken")):
        (tmp_path / name).write_text(f"user,item,timestamp\n{line}\n")
        move_in(tmp_path / name, tmp_path / "folder" / f"{name}.csv")
    time.sleep(0.12)
    polled = poll(open_reader(tmp_path / "folder"))
    a, c, d = (arrival_of(tmp_path / "folder" / f"{name}.csv") for name in "acd")
    assert polled.arrival_micros.tolist() == [a, c]
    assert polled.passed_micros.tolist() == [NEVER, NEVER, d], "b is before c"


@pytest.mark.parametrize("reopen", [False, True])
def test_polls_of_any_size_and_from_any_position_give_the_same(tmp_path, monkeypatch, reopen):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 800)
    expected = []
    for number in (2, 0, 1):
        users = [f"{number}-{row}" if row % 7 else "" for row in range(40)]
        path = drop(tmp_path, f"{number}.jsonl", users)
        expected += [(user, arrival_of(path)) for user in users if user]
    os.utime(path, (-10, -10))  # it says that it was written before 1970, and arrives now
    expected = [(user, arrival_of(path) if user.startswith("1-") else arrival) for user, arrival in expected]
    time.sleep(0.12)
    for max_records in (1, 15, 1_000_000):
        polls = read_to_the_end(open_reader(tmp_path), max_records, reopen=reopen)
        assert events_of(polls) == expected
        given = 0
        for number, (events, position) in enumerate(polls):  # a restart from there, with all files in the folder
            given += len(events)
            if number % 20 == 0 or len(polls) < 20:
                assert events_of(read_to_the_end(open_reader(tmp_path), 1_000, position)) == expected[given:]


def test_a_file_that_comes_behind_since_the_clock_was_set_back_is_never_read(tmp_path):
    drop(tmp_path, "one.jsonl", "a")
    reader = open_reader(tmp_path)
    # What the position would be if the clock had been an hour ahead when the file came.
    fields = json.loads(poll(reader).position)
    fields["ctime_ns"] += 3_600 * 10**9
    position = poll_once(reader, json.dumps(fields)).position
    drop(tmp_path, "behind.jsonl", "x")
    time.sleep(0.12)
    for again in (reader, open_reader(tmp_path)):
        polled = poll_once(again, position)
        assert (polled.records, polled.is_at_end) == (0, True)


def test_a_file_that_takes_the_name_of_another_is_read_too(tmp_path):
    """By a reader that goes on as by one that begins at its position: also before the first one was read."""
    reader = open_reader(tmp_path)
    drop(tmp_path, "day.jsonl", "a")
    first = poll(reader)
    drop(tmp_path, "day.jsonl", "b")
    drop(tmp_path, "soon.jsonl", "c")
    poll_once(reader, first.position)  # has seen both, and their time has not come
    drop(tmp_path, "soon.jsonl", "d")
    going_on, reopened = (
        events_of(read_to_the_end(each, 1, first.position)) for each in (reader, open_reader(tmp_path))
    )
    assert users_of(first) == ["a"]
    assert [user for user, _ in going_on] == ["b", "d"]
    assert going_on == reopened


def test_nothing_is_taken_that_a_look_of_long_ago_knew(tmp_path, monkeypatch):
    """A process may stand still between its look and the taking of a file: what came in between goes before others."""
    first = drop(tmp_path, "b.jsonl", "b")
    list_files = FolderReader._list

    def list_and_stand_still(reader):
        list_files(reader)
        monkeypatch.setattr(FolderReader, "_list", list_files)
        drop(tmp_path, "a.jsonl", "a")
        first.chmod(0o600)  # in order behind the other one now
        time.sleep(0.2)

    monkeypatch.setattr(FolderReader, "_list", list_and_stand_still)
    polled = poll(open_reader(tmp_path))
    assert users_of(polled) == ["a", "b"]
    assert not polled.rejected


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


# --- What ends a run, or stops it for a while


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1" + SECRET.encode()),
        ("c.csv", f"id,what\n{SECRET},x\n".encode()),
    ],
)
def test_a_file_that_is_no_log_stops_the_stream_until_it_is_gone(tmp_path, name, content):
    drop(tmp_path, "first.jsonl", "a")
    (tmp_path / ".being-written").write_bytes(content)
    bad = move_in(tmp_path / ".being-written", tmp_path / name)
    drop(tmp_path, "last.jsonl", "z")
    time.sleep(0.12)
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert users_of(polled) == ["a"]
    said = rf"{name}: .* Let every worker read it, or move it out of the folder and a repaired one in"
    for again in (reader, reader, open_reader(tmp_path)):
        with pytest.raises(StreamError, match=said) as caught:
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
    with pytest.raises(StreamError, match=r"log\\udcff\.jsonl: its name is not UTF-8\. Let every"):
        poll(open_reader(tmp_path))


@pytest.mark.usefixtures("small_blocks")
def test_damage_behind_the_first_block_stops_the_stream_for_good(tmp_path):
    written = tmp_path / ".being-written"
    write_json(written, [(user, "i", TIME) for user in FIFTY])
    written.write_bytes(gzip.compress(written.read_bytes()) + b"garbage behind the member")
    move_in(written, tmp_path / "log.jsonl.gz")
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert users_of(polled)[0] == "0"
    with contextlib.suppress(StreamError):
        while True:  # up to the block that fails, of which nothing is given
            polled = poll(reader, polled.position, max_records=1)
    for again in (reader, reader, open_reader(tmp_path)):
        with pytest.raises(StreamError, match=r"log\.jsonl\.gz: it is damaged .* counted already, start a new run"):
            poll(again, polled.position)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["append", "touch", "remove", "other events", "fewer blocks"])
def test_a_file_that_changes_after_it_was_begun_stops_the_stream(tmp_path, how, reopen):
    path = drop(tmp_path, "log.jsonl", FIFTY)
    reader = open_reader(tmp_path)
    polled = poll(reader, max_records=1)
    assert 0 < polled.records < 50
    before, content = path.stat().st_mtime_ns, path.read_bytes()
    first, rest = content.split(b"\n", 1)
    changed = {
        "append": content + b"\n",
        "other events": first.replace(b"{", b"(") + b"\n" + rest,
        "fewer blocks": b"\n" * len(content),
    }
    if how in changed:  # and its time is set back: the content alone tells
        path.write_bytes(changed[how])
        os.utime(path, ns=(before, before))
        reopen = reopen or how != "append"
    elif how == "touch":
        os.utime(path)
    else:
        path.unlink()
    with pytest.raises(StreamError, match="changed or disappeared"):
        poll_once(open_reader(tmp_path) if reopen else reader, polled.position)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_a_file_system_does_not_show_just_now_is_read_later(tmp_path, monkeypatch):
    """It is neither passed over nor taken for one that has changed, which would end the run for good."""
    drop(tmp_path, "log.jsonl", FIFTY)
    reader, polled, found = open_reader(tmp_path), None, []

    def fail(path):
        raise OSError(errno.EIO, "of a disk")

    while len(found) < 50:  # before its first event, and after each block
        with monkeypatch.context() as broken:
            broken.setattr(log_folder.os, "lstat", fail)
            with pytest.raises(StreamError, match=r"log\.jsonl: .*Input/output error"):
                poll(reader, polled and polled.position, max_records=1)
        polled = poll(reader, polled and polled.position, max_records=1)
        found += users_of(polled)
    assert found == FIFTY
