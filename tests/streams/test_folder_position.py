"""How far a folder was read: by time that passes only by sleeping, and as it is stored."""

import json
import time
import types

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import log_folder
from dp_transforms.logs.streams.log_folder import FolderPosition, FolderReader, LogFolder


def open_reader(folder, settle_seconds=1.0):
    return FolderReader(LogFolder(str(folder), EventFields(), settle_seconds))


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(nanos=10**18, seconds=0.0)

    def sleep(seconds):
        clock.nanos += round(seconds * 1e9)
        clock.seconds += seconds

    named = {"time_ns": lambda: clock.nanos, "monotonic": lambda: clock.seconds, "sleep": sleep}
    monkeypatch.setattr(log_folder, "time", types.SimpleNamespace(**named))
    return clock


def test_files_settle_to_the_nanosecond(tmp_path, clock):
    """The end of the folder is not seen where a file waits, unless it is of the future."""
    path = tmp_path / "a.csv"
    path.write_text("user,item,timestamp\n")
    waits = [(-1, "", True), (0, "", False), (2_499_999_999, "", False), (2_500_000_000, "a.csv", False)]
    for since, taken, is_at_end in waits:
        clock.nanos = path.stat().st_ctime_ns + since
        polled = open_reader(tmp_path, 2.5).poll(None, max_records=1, max_seconds=0.0)
        assert (json.loads(polled.position)["name"], polled.is_at_end) == (taken, is_at_end), since


def test_a_folder_is_passed_when_what_came_by_then_is_read(tmp_path, clock):
    reader = open_reader(tmp_path, 2.0)
    reader.poll(None, max_records=1, max_seconds=0.0)
    assert not reader.confirm_passed(), "first asked now"
    for nanos, is_passed in ((1_999_999_999, False), (1, True)):
        clock.nanos += nanos
        reader.poll(FolderPosition().to_text(), max_records=1, max_seconds=0.0)
        assert reader.confirm_passed() is is_passed
    reader.close()
    assert not reader.confirm_end()
    reader.poll(None, max_records=1, max_seconds=0.0)
    assert not reader.confirm_passed(), "asked anew"


@pytest.mark.parametrize(("later", "last"), [(-1, "a.csv"), (0, "b.csv")])
def test_a_file_of_the_moment_at_which_it_was_asked_is_read_to_its_end(tmp_path, clock, later, last):
    for name in ("a.csv", "b.csv"):
        time.sleep(0.02)
        (tmp_path / name).write_text("user,item,timestamp\nu,i,2026-01-01\n")
    reader, position = open_reader(tmp_path, 2.0), None
    clock.nanos = (tmp_path / "b.csv").stat().st_ctime_ns + later
    while not reader.confirm_passed():
        position = reader.poll(position, max_records=1, max_seconds=0.0).position
        clock.nanos += 10**9
    found = FolderPosition.of_text(position)
    assert (found.name, found.events, found.is_done) == (last, 1, True)


POSITION = FolderPosition(10**18, "log.jsonl", -(10**10), 1872, 1, 24, is_done=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", name) for name in ("", "../log.jsonl", "/log.jsonl", "a.js\0onl", None)),
        ("blocks", -1),
        ("ctime_ns", "1"),
        ("is_done", None),
        ("more", 1),
    ],
)
def test_a_position_that_nobody_stored_is_refused(field, value):
    """No path may lead out of the folder."""
    fields = json.loads(POSITION.to_text())
    assert FolderPosition.of_text(json.dumps(fields)) == POSITION
    for text in (json.dumps(fields | {field: value}), '{"a":' * 3000 + "1" + "}" * 3000):
        with pytest.raises(StreamError, match="a stored position is not a position in a folder"):
            FolderPosition.of_text(text)
