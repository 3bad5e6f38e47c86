"""A folder as a stream source: log files are moved into it, and read one after the other.

Files are taken in the order of (change time, name). The kernel sets the change time (``st_ctime``) when a file comes
into the folder, and nobody else can set it. A file waits until it is `settle_seconds` old. So no file that belongs
before a taken one can appear later, and a second reading from any position finds the same files in the same order. The
change time is also the arrival of all events of the file. What fills the folder must follow the rules of docs/deploy.md
("A folder of log files").

Rows are accepted or rejected one by one, as in a replay, by the same code. A file that cannot be read as a whole, or
that changes while it is read, ends the run: if the run rejected the file and went on, one file would decide about the
rows of all its users.

A file can come too late in the order only if the clock was set back by more than `settle_seconds`. It is then never
read. This depends on its change time and never on what is in the file, so it is the same with and without the rows of
any one user. A reader that starts again from an earlier position would read the file in its order; the sink would then
find a second answer for a window and stop.

Only files directly in the folder count, with the endings of `logs`. Links are skipped, wherever they lead.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from dp_transforms.checks import is_utf8, on_one_line
from dp_transforms.core.event_batch import concatenate
from dp_transforms.errors import StreamError
from dp_transforms.logs import id_columns
from dp_transforms.logs.discovery import find_file_chunks, is_log_name, read_log_chunk
from dp_transforms.logs.log_chunk import EventFields, EventFileError, ReadBlock
from dp_transforms.logs.streams.stream_source import NEVER, Polled

_TEMPORARY_ENDINGS = (".tmp", ".part")
_LIST_AGAIN_SECONDS = 0.2  # between two listings while a poll waits
_Number = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class LogFolder:
    """A folder; all its files are one partition.

    settle_seconds: how long ago a file must have come before it is taken, 0.1 to 3600. It must be longer than the
        kernel needs between setting the change time and showing the file in the folder.
    """

    path: str
    fields: EventFields
    settle_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("a folder source needs the path of a folder.")
        if not 0.1 <= self.settle_seconds <= 3600:
            raise ValueError(f"settle_seconds must be 0.1 to 3600, got {self.settle_seconds!r}.")

    def fingerprint(self) -> str:
        """See `StreamSource`."""
        return json.dumps(self.fields.identity, sort_keys=True)

    def partitions(self) -> Sequence[LogFolder]:
        """Itself, under a path that is the same from any folder. Raises StreamError if there is no such folder."""
        found = dataclasses.replace(self, path=os.path.abspath(self.path))
        if not os.path.isdir(found.path):
            raise _folder_error(found.path)
        return [found]

    @property
    def name(self) -> str:
        return f"folder:{on_one_line(self.path)}"

    def open(self, since_micros: int = 0) -> FolderReader:
        return FolderReader(self, since_micros)


class FolderFile(NamedTuple):
    """A file that waits or is being read. Files sort in the order in which they are taken."""

    ctime_ns: int
    name: str


class FolderPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a folder was read.

    ctime_ns, name: of the last file taken; before all files at the beginning. mtime_ns, size: its modification time and
    its bytes, which show whether its content has changed. blocks, events: how many of its blocks and events were
    returned. is_done: whether all of it was returned.
    """

    ctime_ns: _Number = 0
    name: str = ""
    mtime_ns: int = 0  # below 0 before 1970
    size: _Number = 0
    blocks: _Number = 0
    events: _Number = 0
    is_done: bool = True

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_text(cls, text: str | None) -> FolderPosition:
        """Inverse of `to_text`; None: the beginning. Raises StreamError."""
        if text is None:
            return cls()
        try:
            position = msgspec.json.decode(text, type=cls)
            name = position.name  # no path may lead out of the folder
            is_ours = is_log_name(name) and name == os.path.basename(name) and "\0" not in name
            if not (is_ours or (not name and position.is_done)):
                raise ValueError
        except (ValueError, RecursionError):
            raise StreamError(
                "a stored position is not a position in a folder. Start a new run, without the stored state."
            ) from None
        return position


class FolderReader:
    """Remembers the names that it has seen: a poll of many old files costs one listing. since_micros: files that came
    before it are not opened."""

    def __init__(self, folder: LogFolder, since_micros: int = 0) -> None:
        self._folder, self._since_ns = folder, since_micros * 1_000
        self._begin_at(FolderPosition())

    def _begin_at(self, position: FolderPosition) -> None:
        self._position = position
        self._is_at_end = False
        self._asked_ns: int | None = None  # wall clock when `confirm_passed` was first called
        self._blocks: Iterator[ReadBlock] | None = None
        self._seen: dict[str, int] = {}  # name -> inode, at the last listing
        self._waiting: list[FolderFile] = []  # a heap
        self._complete_to_ns = 0  # wall clock before the last listing: all that came earlier is known

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """See `PartitionReader`. A file comes in blocks of up to about a million records."""
        at = FolderPosition.of_text(position)
        if at != self._position:
            self._begin_at(at)
        deadline, records, blocks = time.monotonic() + max_seconds, 0, list[tuple[int, ReadBlock]]()
        self._is_at_end = False
        while records < max_records:
            if self._position.is_done and not self._take():
                # Whose change time is in the future is not waited for.
                self._is_at_end = not self._waiting or self._waiting[0].ctime_ns > time.time_ns()
                if records or time.monotonic() >= deadline:
                    break
                time.sleep(min(_LIST_AGAIN_SECONDS, max(0.0, deadline - time.monotonic())))
                continue
            self._is_at_end = False
            if (block := self._next_block()) is not None:
                blocks.append((self._position.ctime_ns // 1_000, block))
                records += block.rows
            if time.monotonic() >= deadline:
                break
        return _polled(blocks, self._position.to_text(), self._is_at_end)

    def confirm_end(self) -> bool:
        """See `PartitionReader`: a poll that finds the end has listed the folder itself."""
        return self._is_at_end

    def confirm_passed(self) -> bool:
        """See `PartitionReader`. All files that had come by the first call are known `settle_seconds` later."""
        if self._asked_ns is None:
            self._asked_ns = time.time_ns()
        if not self._position.is_done or self._settled_ns() < self._asked_ns:
            return False
        return not self._waiting or self._waiting[0].ctime_ns > self._asked_ns

    def close(self) -> None:
        self._begin_at(FolderPosition())

    def _path(self, name: str) -> str:
        return os.path.join(self._folder.path, name)

    def _settled_ns(self) -> int:
        """Files that came before this moment of the wall clock are all known."""
        return self._complete_to_ns - int(self._folder.settle_seconds * 1e9)

    def _take(self) -> bool:
        """Begins the next file whose time has come. Returns whether there is one, after a listing."""
        if not self._begin_next():
            self._list()
            return self._begin_next()
        return True

    def _begin_next(self) -> bool:
        while self._waiting and self._waiting[0].ctime_ns <= self._settled_ns():
            name = self._waiting[0].name
            status = status_of(self._path(name))
            file = heapq.heappop(self._waiting)
            if file == (self._position.ctime_ns, self._position.name):
                continue  # another one took a name before it was read: it waits twice
            if status is None or not stat.S_ISREG(status.st_mode):
                continue  # it disappeared before any of it was read
            if status.st_ctime_ns != file.ctime_ns:  # it was still being written
                self._wait_for(FolderFile(status.st_ctime_ns, name))
                continue
            self._position = FolderPosition(*file, status.st_mtime_ns, status.st_size, is_done=False)
            self._blocks = None
            return True
        return False

    def _list(self) -> None:
        """Puts new files into the heap."""
        self._complete_to_ns = time.time_ns()
        try:
            with os.scandir(self._folder.path) as entries:
                listed = [entry for entry in entries if _is_wanted(entry)]
        except OSError:
            raise _folder_error(self._folder.path) from None
        for entry in listed:
            if self._seen.get(entry.name) == entry.inode():
                continue
            status = status_of(entry.path)
            if status is not None and status.st_ctime_ns >= self._since_ns:
                if not is_utf8(entry.name):
                    raise _unreadable_error(entry.path, "its name is not UTF-8.")
                self._wait_for(FolderFile(status.st_ctime_ns, entry.name))
            self._seen[entry.name] = entry.inode()
        self._seen = {entry.name: entry.inode() for entry in listed}

    def _wait_for(self, file: FolderFile) -> None:
        if file > (self._position.ctime_ns, self._position.name):
            heapq.heappush(self._waiting, file)

    def _next_block(self) -> ReadBlock | None:
        """The next block of the file at the position; None at its end."""
        at = self._position
        path = self._path(at.name)
        self._check_unchanged(path)
        try:
            if self._blocks is None:
                self._blocks = _blocks(path, self._folder.fields)
                given = [len(block.batch) for block in itertools.islice(self._blocks, at.blocks)]
                if (len(given), sum(given)) != (at.blocks, at.events):
                    raise _changed_error(path)
            block = next(self._blocks, None)
        except BaseException as error:
            self._blocks = None  # a failed iterator has ended, which would look like the end of the file
            if isinstance(error, EventFileError):
                self._check_unchanged(path)
                raise _unreadable_error(path, error.problem) from None
            raise
        self._check_unchanged(path)
        if block is None:
            self._position, self._blocks = msgspec.structs.replace(at, is_done=True), None
        else:
            self._position = msgspec.structs.replace(at, blocks=at.blocks + 1, events=at.events + len(block.batch))
        return block

    def _check_unchanged(self, path: str) -> None:
        status = status_of(path)
        if status is None or (status.st_mtime_ns, status.st_size) != (self._position.mtime_ns, self._position.size):
            raise _changed_error(path)


def _polled(given: Sequence[tuple[int, ReadBlock]], position: str, is_at_end: bool) -> Polled:
    """given: the arrival of each block, in microseconds, and the block, also one without events."""
    sizes = np.array([len(block.batch) for _, block in given], np.int64)
    arrivals = np.repeat(np.array([arrival for arrival, _ in given], np.int64), sizes)
    passed = np.full(len(arrivals) + 1, NEVER)
    # Arrivals rise, so rejected records before the last block with rows say no more.
    passed[-1] = max((arrival for arrival, block in given if block.rows), default=NEVER)
    full = [block.batch for _, block in given if len(block.batch)]
    batch = concatenate(full) if full else id_columns.empty_batch()
    rejected = tuple(part._replace(source=on_one_line(part.source)) for _, block in given for part in block.rejected)
    return Polled(batch, arrivals, position, sum(block.rows for _, block in given), is_at_end, rejected, passed)


def _blocks(path: str, fields: EventFields) -> Iterator[ReadBlock]:
    for chunk in find_file_chunks(path, fields):
        yield from read_log_chunk(chunk, fields)


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    """Whether it is a log that has come, by its name and kind."""
    is_temporary = entry.name.lower().endswith(_TEMPORARY_ENDINGS)
    return not is_temporary and is_log_name(entry.name) and entry.is_file(follow_symlinks=False)


def status_of(path: str) -> os.stat_result | None:
    """None where nothing is there. Raises StreamError if the file system does not say: it may at another time."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable_error(path, f"it cannot be read ({os.strerror(error.errno or 0)}).") from None


def _folder_error(path: str) -> StreamError:
    return StreamError(
        f"{on_one_line(path)}: it is not a folder that can be read. Make it on every worker, or check the name."
    )


def _unreadable_error(path: str, problem: str) -> StreamError:
    return StreamError(
        f"{on_one_line(path)}: {on_one_line(problem)} Let every worker read it, or move it out of the folder and a"
        " repaired one in, and start the job again. If its first events are counted already, start a new run."
    )


def _changed_error(path: str) -> StreamError:
    return StreamError(
        f"{on_one_line(path)}: it changed or disappeared after its first events were read. Start a new run; move only"
        " finished files into the folder, and leave them there."
    )
