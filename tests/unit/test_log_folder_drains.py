"""When a folder into which files come for ever has been read to where it was asked."""

from __future__ import annotations

import pathlib
import time

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import FolderReader, LogFolder
from tests.helpers.event_files_oracle import write_json

TIME = "2017-10-01T03:00:00Z"
SETTLE_SECONDS = 0.3


def _drop(folder: pathlib.Path, number: int) -> None:
    written = folder / f".{number}"
    write_json(written, [(f"u{number}", "i", TIME)])
    written.rename(folder / f"{number}.jsonl")


def _poll(reader: FolderReader, position: str | None) -> tuple[list[str], str]:
    polled = reader.poll(position, max_records=1, max_seconds=0.01)
    return list(polled.batch.user.to_pylist()), polled.position


def test_a_folder_is_passed_when_all_that_had_come_is_read_whatever_comes_then(tmp_path: pathlib.Path) -> None:
    (partition,) = LogFolder(str(tmp_path), EventFields(), SETTLE_SECONDS).partitions()
    reader, position, read, number = partition.open(), None, [], 3
    for early in range(number):
        _drop(tmp_path, early)
    asked = time.time()
    while not reader.confirm_passed():
        assert "u2" not in read or time.time() < asked + 100
        _drop(tmp_path, number)  # there is always one that waits
        number += 1
        users, position = _poll(reader, position)
        read += users
    assert read[:3] == ["u0", "u1", "u2"]
    assert len(read) < number
    assert time.time() >= asked + SETTLE_SECONDS
    _poll(reader, None)
    assert not reader.confirm_passed(), "it begins anew, and asks anew"
