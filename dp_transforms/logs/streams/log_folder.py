"""A folder as a stream source: log files are moved into it, and read one after the other.

Files are taken in the order of (change time, name). The kernel sets the change time (``st_ctime``) when a file comes
into the folder, and nobody else can set it. A file waits until it is `settle_seconds` old. So no file that belongs
before a taken one can appear later, and a second reading from any position finds the same files in the same order. The
change time is also the arrival of all events of the file. What fills the folder must follow the rules of docs/deploy.md
("A folder of log files").

Rows are accepted or rejected one by one, as in a replay, by the same code. A file that cannot be read as a whole, or
that changes while it is read, ends the run: if the run rejected the file and went on, one file would decide about the
rows of all its users.

A file can come too late in the order only if the clock was set back by more than `settle_seconds`. It is then rejected
and never read. This depends on its change time and never on what is in the file, so it is the same with and without the
rows of any one user. A reader that starts again from an earlier position would read the file in its order; the sink
would then find a second answer for a window and stop.

Only files directly in the folder count, with the endings of `logs`. Links are skipped, wherever they lead.
"""

from __future__ import annotations

import dataclasses
import errno
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
from dp_transforms.core.event_batch import EventBatch, concatenate
from dp_transforms.errors import StreamError
from dp_transforms.logs import id_columns
from dp_transforms.logs.discovery import find_file_chunks, is_log_name, read_log_chunk
from dp_transforms.logs.log_chunk import EventFields, EventFileError, ReadBlock
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.stream_source import NEVER, Polled

CAME_BEHIND = "file came after a later one was read: the clock was set back"

_TEMPORARY_ENDINGS = (".tmp", ".part")
# None: from Arrow's decoders. The others: from files whose content holds wrong offsets.
_ERRORS_OF_CONTENT = (None, errno.EINVAL, errno.EOVERFLOW, errno.EFBIG)
_LIST_AGAIN_SECONDS = 0.2  # between two listings while a poll waits
# A folder's modification time is coarse: for this long after it, files may come without changing it again.
_FOLDER_TIME_NANOS = 2_000_000_000
_Number = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class LogFolder:
    """A folder, which is one partition.

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

    def partitions(self) -> Sequence[FolderPartition]:
        """The one partition. Raises StreamError if there is no such folder."""
        partition = FolderPartition(dataclasses.replace(self, path=os.path.abspath(self.path)))
        _folder_time(partition.folder.path)
        return [partition]


@dataclasses.dataclass(frozen=True)
class FolderPartition:
    """All files of the folder."""

    folder: LogFolder

    @property
    def name(self) -> str:
        return f"folder:{on_one_line(self.folder.path)}"

    def open(self, since_micros: int = 0) -> FolderReader:
        return FolderReader(self.folder, since_micros)


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

    @property
    def file(self) -> FolderFile:
        return FolderFile(self.ctime_ns, self.name)

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
        self._asked_from = FolderPosition()
        self._begin_at(FolderPosition())

    def _begin_at(self, position: FolderPosition) -> None:
        self._position = position
        self._is_at_end = False
        self._asked_ns: int | None = None  # wall clock when `confirm_passed` was first called
        self._blocks: Iterator[ReadBlock] | None = None
        self._seen: dict[str, int] = {}  # name -> inode, at the last listing
        self._waiting: list[FolderFile] = []  # a heap
        self._has_listed = False
        self._complete_to_ns = 0  # wall clock before the last listing: all that came earlier is known
        self._listed_folder_ns: int | None = None  # the folder's time at the last listing, None: list again

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """See `PartitionReader`. A file comes in blocks of up to about a million records."""
        at = self._asked_from = FolderPosition.of_text(position)
        if at != self._position:
            self._begin_at(at)
        deadline, found, is_at_end = time.monotonic() + max_seconds, _Found(), False
        while found.records < max_records:
            if self._position.is_done:
                self._list(found)
                if not self._take(found):
                    # Whose change time is in the future is not waited for.
                    is_at_end = not self._waiting or self._waiting[0].ctime_ns > time.time_ns()
                    if found.records or time.monotonic() >= deadline:
                        break
                    time.sleep(min(_LIST_AGAIN_SECONDS, max(0.0, deadline - time.monotonic())))
                    continue
            is_at_end = False
            self._give(found)
            if time.monotonic() >= deadline:
                break
        self._is_at_end = is_at_end
        return found.polled(self._position.to_text(), is_at_end)

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

    def _list(self, found: _Found) -> None:
        """Puts new files into the heap, if the folder may have changed since the last listing."""
        self._complete_to_ns = now_ns = time.time_ns()
        folder_ns = _folder_time(self._folder.path)
        if folder_ns == self._listed_folder_ns:
            return
        seen = {}
        try:
            with os.scandir(self._folder.path) as entries:
                for entry in entries:
                    name, inode = entry.name, entry.inode()
                    seen[name] = inode
                    if self._seen.get(name) != inode and _is_wanted(entry):
                        self._note(entry, found)
        except OSError:
            raise _folder_error(self._folder.path) from None
        self._seen, self._has_listed = seen, True
        self._listed_folder_ns = folder_ns if now_ns - folder_ns > _FOLDER_TIME_NANOS else None

    def _note(self, entry: os.DirEntry[str], found: _Found) -> None:
        try:
            file = FolderFile(entry.stat(follow_symlinks=False).st_ctime_ns, entry.name)
        except FileNotFoundError:
            return  # it disappeared meanwhile
        if file.ctime_ns < self._since_ns:
            return
        if not is_utf8(file.name):
            raise _unreadable_error(self._path(file.name), "its name is not UTF-8.", is_begun=False)
        if self._has_listed or file > self._position.file:
            self._wait_for(file, found)

    def _wait_for(self, file: FolderFile, found: _Found) -> None:
        if file > self._position.file:
            heapq.heappush(self._waiting, file)
        else:
            found.reject(self._path(file.name), 1, CAME_BEHIND)

    def _settled_ns(self) -> int:
        """Files that came before this moment of the wall clock are all known."""
        return self._complete_to_ns - int(self._folder.settle_seconds * 1e9)

    def _take(self, found: _Found) -> bool:
        """Begins the next file whose time has come. Returns whether there is one."""
        settled_ns = self._settled_ns()
        while self._waiting and self._waiting[0].ctime_ns <= settled_ns:
            file = self._waiting[0]
            # A file is noted twice if another one took its name before it was read.
            status = None if file == self._position.file else status_of(self._path(file.name))
            heapq.heappop(self._waiting)
            if status is None or not stat.S_ISREG(status.st_mode):
                continue  # it disappeared before any of it was read
            now = FolderFile(status.st_ctime_ns, file.name)
            if now != file:  # it was still being written
                self._wait_for(now, found)
                continue
            mtime_ns, size = status.st_mtime_ns, status.st_size
            self._position = FolderPosition(file.ctime_ns, file.name, mtime_ns, size, is_done=False)
            self._blocks = None
            return True
        return False

    def _give(self, found: _Found) -> None:
        """The next block of the file at the position."""
        at = self._position
        path = self._path(at.name)
        self._check_unchanged(path)
        try:
            block = self._next_block(at, path)
        except BaseException as error:
            self._blocks = None  # a failed iterator has ended, which would look like the end of the file
            if isinstance(error, EventFileError):
                self._check_unchanged(path)
                _check_not_of_the_system(path, error)
                is_begun = self._asked_from.file == at.file and self._asked_from.blocks > 0
                raise _unreadable_error(path, error.problem, is_begun=is_begun) from None
            raise
        self._check_unchanged(path)
        if block is None:
            self._position, self._blocks = msgspec.structs.replace(at, is_done=True), None
            return
        found.add(block, at.ctime_ns // 1_000)
        self._position = msgspec.structs.replace(at, blocks=at.blocks + 1, events=at.events + len(block.batch))

    def _next_block(self, at: FolderPosition, path: str) -> ReadBlock | None:
        if self._blocks is None:
            self._blocks = _blocks(path, self._folder.fields)
            given = [len(block.batch) for block in itertools.islice(self._blocks, at.blocks)]
            if (len(given), sum(given)) != (at.blocks, at.events):
                raise _changed_error(path)
        return next(self._blocks, None)

    def _check_unchanged(self, path: str) -> None:
        status = status_of(path)
        if status is None or (status.st_mtime_ns, status.st_size) != (self._position.mtime_ns, self._position.size):
            raise _changed_error(path)


class _Found:
    """What a poll collects."""

    def __init__(self) -> None:
        self.records = 0
        self._batches: list[EventBatch] = []  # also those without events
        self._arrivals: list[int] = []
        self._rejected: list[RejectedEvents] = []

    def add(self, block: ReadBlock, arrival_micros: int) -> None:
        self.records += block.rows
        if block.rows:
            self._batches.append(block.batch)
            self._arrivals.append(arrival_micros)
        self._rejected += [part._replace(source=on_one_line(part.source)) for part in block.rejected]

    def reject(self, path: str, position: int, reason: str) -> None:
        self.records += 1
        self._rejected.append(RejectedEvents(on_one_line(path), (position,), reason))

    def polled(self, position: str, is_at_end: bool) -> Polled:
        sizes = np.array([len(batch) for batch in self._batches], np.int64)
        arrivals = np.repeat(np.array(self._arrivals, np.int64), sizes)
        passed = np.full(len(arrivals) + 1, NEVER)
        passed[-1] = max(self._arrivals, default=NEVER)  # arrivals rise, so rejected records before it say no more
        full = [batch for batch in self._batches if len(batch)]
        batch = concatenate(full) if full else id_columns.empty_batch()
        return Polled(batch, arrivals, position, self.records, is_at_end, tuple(self._rejected), passed)


def _blocks(path: str, fields: EventFields) -> Iterator[ReadBlock]:
    for chunk in find_file_chunks(path, fields):
        yield from read_log_chunk(chunk, fields)


def _check_not_of_the_system(path: str, error: BaseException) -> None:
    """Raises StreamError if the reason is not the content of the file: at another time the file could be read."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno not in _ERRORS_OF_CONTENT:
            raise system_error(path, cause) from None
        cause = cause.__context__


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    """Whether it is a log that has come, by its name and kind."""
    is_temporary = entry.name.lower().endswith(_TEMPORARY_ENDINGS)
    return not is_temporary and is_log_name(entry.name) and entry.is_file(follow_symlinks=False)


def status_of(path: str) -> os.stat_result | None:
    """None where nothing is there. Raises StreamError if the file system does not say."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise system_error(path, error) from None


def system_error(path: str, error: OSError) -> StreamError:
    """Of a file that could be read at another time."""
    return StreamError(
        f"{on_one_line(path)}: it cannot be read ({os.strerror(error.errno or 0)}). Let every worker read it, or move"
        " it out of the folder, and start the job again."
    )


def _folder_time(path: str) -> int:
    try:
        return os.stat(os.path.join(path, "")).st_mtime_ns  # by the slash of folders alone
    except OSError:
        raise _folder_error(path) from None


def _folder_error(path: str) -> StreamError:
    return StreamError(
        f"{on_one_line(path)}: it is not a folder that can be read. Make it on every worker, or check the name."
    )


def _unreadable_error(path: str, problem: str, *, is_begun: bool) -> StreamError:
    remedy = (
        "Its first events are already counted: start a new run with complete files."
        if is_begun
        else "Move it out of the folder, move a repaired one in, and start the job again."
    )
    return StreamError(f"{on_one_line(path)}: {on_one_line(problem)} {remedy}")


def _changed_error(path: str) -> StreamError:
    return StreamError(
        f"{on_one_line(path)}: it changed or disappeared after its first events were read. Start a new run; move only"
        " finished files into the folder, and leave them there."
    )
