"""Moving files into a folder, and polling it as a stream."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterable

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import FolderReader, LogFolder
from dp_transforms.logs.streams.stream_source import Polled
from tests.helpers.event_files_oracle import SECRET, write_json

TICK_SECONDS = 0.02  # two files that came this long after each other surely have different times
TIME = "2017-10-01T03:00:00Z"


def open_reader(folder: pathlib.Path, settle_seconds: float = 0.1) -> FolderReader:
    (partition,) = LogFolder(str(folder), EventFields(), settle_seconds).partitions()
    return partition.open()


def drop(folder: pathlib.Path, name: str, users: Iterable[str]) -> pathlib.Path:
    """A file of events moved in, behind all that are there."""
    written = folder / f".{name}.being-written"
    write_json(written, [(user, "i", TIME) for user in users])
    return move_in(written, folder / name)


def move_in(written: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    time.sleep(TICK_SECONDS)
    return written.rename(path)


def arrival_of(path: pathlib.Path) -> int:
    return path.stat().st_ctime_ns // 1000


def poll(reader: FolderReader, position: str | None = None, max_records: int = 1_000_000, wait: float = 0) -> Polled:
    polled = reader.poll(position, max_records=max_records, max_seconds=wait or 60)
    assert polled.records == len(polled.batch) + sum(len(part.positions) for part in polled.rejected)
    assert len(polled.arrival_micros) == len(polled.batch)
    assert SECRET not in repr(polled.rejected)
    return polled


def poll_once(reader: FolderReader, position: str | None = None) -> Polled:
    return poll(reader, position, wait=0.01)


def users_of(polled: Polled) -> list[str]:
    return list(polled.batch.user.to_pylist())


def read_to_the_end(
    reader: FolderReader, max_records: int, position: str | None = None, *, reopen: bool = False
) -> list[tuple[list[tuple[str, int]], str]]:
    """For each poll its events, as (user, arrival), and the position after it."""
    polls = []
    while True:
        polled = reader.poll(position, max_records=max_records, max_seconds=0.01)
        position = polled.position
        polls.append((list(zip(users_of(polled), polled.arrival_micros.tolist(), strict=True)), position))
        if reopen:
            reader.close()
        if polled.is_at_end and not polled.records:
            return polls


def events_of(polls: list[tuple[list[tuple[str, int]], str]]) -> list[tuple[str, int]]:
    return [event for events, _ in polls for event in events]
