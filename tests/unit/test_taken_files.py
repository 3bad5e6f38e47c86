"""A part that is taken again finds the files of a folder that an earlier attempt has read, or is refused."""

import json
import os
import pathlib
import time

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.folder_files import TakenFiles
from dp_transforms.logs.streams.log_folder import FolderReader, LogFolder

LOST = "has lost or changed files since this part was begun"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    taken = TakenFiles(str(tmp_path / ".run.state.taken-0"))
    taken.begin(is_new=True)
    return LogFolder(str(tmp_path / "logs"), EventFields(), settle_seconds=0.1, taken=taken)


def put(folder, name, users=1):
    """A file that comes later than those before it."""
    time.sleep(0.02)
    path = pathlib.Path(folder.path, name)
    rows = [json.dumps({"user": f"u{user}", "item": "i", "timestamp": "2026-01-01"}) for user in range(users)]
    path.write_text("\n".join([*rows, ""]))
    return path


def read(folder, files):
    """Takes so many files, block by block."""
    reader, position = FolderReader(folder), None
    for _ in range(files):
        polled = reader.poll(position, max_records=1, max_seconds=20)
        position = polled.position
        assert polled.records == 1
    reader.poll(position, max_records=1, max_seconds=0)  # the end of the last one
    reader.close()


def test_a_file_that_came_after_the_beginning_and_was_read_cannot_be_lost(folder):
    """The digest of the beginning does not know it: only what is noted when it is taken does."""
    put(folder, "a.jsonl")
    beginning = folder.beginning(0)
    later = put(folder, "b.jsonl")
    read(folder, 2)
    assert folder.begun_at(beginning) == folder
    later.rename(later.with_suffix(".tmp"))
    with pytest.raises(StreamError, match=LOST):
        folder.begun_at(beginning)
    later.with_suffix(".tmp").rename(later)  # it has another change time, so it comes later
    with pytest.raises(StreamError, match=LOST):
        folder.begun_at(beginning)


def test_a_file_that_was_not_read_may_come_and_go(folder):
    """Its users paid for nothing, and no noise was drawn over its events."""
    put(folder, "a.jsonl")
    beginning = folder.beginning(0)
    read(folder, 1)
    later = put(folder, "b.jsonl")
    assert folder.begun_at(beginning) == folder
    later.unlink()
    assert folder.begun_at(beginning) == folder


def test_a_file_that_would_be_read_before_a_taken_one_is_refused(folder):
    """As when the clock was set back: the attempt before has rejected the file, and this one would read it."""
    assert folder.taken is not None
    beginning = folder.beginning(0)
    for name in ("a.jsonl", "b.jsonl"):
        put(folder, name)
    read(folder, 2)
    notes = pathlib.Path(folder.taken.path)
    first, second = sorted(filter(None, notes.read_text().split("\n")))
    notes.write_text(f"\n{second}\n")
    with pytest.raises(StreamError, match=LOST):
        folder.begun_at(beginning)
    notes.write_text(f"\n{first}\n")
    assert folder.begun_at(beginning) == folder


def test_a_changed_file_is_another_one(folder):
    beginning = folder.beginning(0)
    path = put(folder, "a.jsonl")
    read(folder, 1)
    path.write_text(path.read_text() * 2)
    with pytest.raises(StreamError, match=LOST):
        folder.begun_at(beginning)


def test_what_a_dying_process_left_of_a_line_is_not_a_file(folder):
    """It had not used that file; the next line is whole."""
    assert folder.taken is not None
    beginning = folder.beginning(0)
    with open(folder.taken.path, "ab") as file:
        file.write(b"\n17712345")
    assert folder.begun_at(beginning) == folder
    path = put(folder, "a.jsonl")
    read(folder, 1)
    assert folder.begun_at(beginning) == folder
    path.unlink()
    with pytest.raises(StreamError, match=LOST):
        folder.begun_at(beginning)


def test_it_is_noted_before_any_event_is_given(folder, tmp_path):
    assert folder.taken is not None
    os.unlink(folder.taken.path)
    os.mkdir(folder.taken.path)
    put(folder, "a.jsonl")
    with pytest.raises(StreamError, match=r"cannot be noted there .*Is a directory"):
        FolderReader(folder).poll(None, max_records=1, max_seconds=2)


def test_what_is_published_needs_the_notes(folder):
    assert folder.taken is not None
    assert os.stat(folder.taken.path).st_mode & 0o777 == 0o600
    folder.taken.begin(is_new=False)
    os.unlink(folder.taken.path)
    with pytest.raises(StreamError, match=r"is not there\. It says which files were read"):
        folder.taken.begin(is_new=False)
    folder.taken.begin(is_new=True)
