"""Files of a folder: which of them are logs, and how far they were read, as text in a state."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.logs.discovery import is_log_name

_TEMPORARY_ENDINGS = (".tmp", ".part")


class FolderFile(NamedTuple):
    """A file that waits or is being read. Files sort in the order in which they are taken."""

    ctime_ns: int
    name: str


class FolderPosition(NamedTuple):
    """How far a folder was read.

    file: the last file taken; None at the beginning. mtime_ns, size: its modification time and its bytes, which show
    whether its content has changed. blocks, events: how many of its blocks and events were returned. is_done: whether
    all of it was returned.
    """

    file: FolderFile | None = None
    mtime_ns: int = 0
    size: int = 0
    blocks: int = 0
    events: int = 0
    is_done: bool = True

    def to_text(self) -> str:
        """For the state of a run; `of_text` is the inverse."""
        ctime_ns, name = self.file or (None, None)
        return json.dumps({**self._asdict(), "file": None, "ctime_ns": ctime_ns, "name": name})

    @classmethod
    def of_text(cls, text: str | None) -> FolderPosition:
        """None: the beginning. Raises StreamError for what `to_text` does not write."""
        if text is None:
            return cls()
        try:
            stored = json.loads(text)
            name, is_done = stored["name"], stored["is_done"]
            numbers = [stored[key] for key in ("mtime_ns", "size", "blocks", "events")]
            file = None if name is None else FolderFile(stored["ctime_ns"], _checked_name(name))
            if any(type(number) is not int for number in numbers + ([file.ctime_ns] if file else [])):
                raise ValueError
            mtime_ns, size, blocks, events = numbers
            if not (min(size, blocks, events) >= 0 and max(size, blocks, events) < 2**63 and (file or is_done is True)):
                raise ValueError
            return cls(file, mtime_ns, size, blocks, events, bool(is_done))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StreamError(
                "a stored position is not a position in a folder. Start a new run, without the stored state."
            ) from None


def is_wanted(entry: os.DirEntry[str]) -> bool:
    """Whether it is a log that has come, by its name and kind."""
    if entry.name.lower().endswith(_TEMPORARY_ENDINGS) or not is_log_name(entry.name):
        return False
    return entry.is_file(follow_symlinks=False)


def position_at(name: str, status: os.stat_result) -> FolderPosition:
    """Before the first event of a file."""
    return FolderPosition(FolderFile(status.st_ctime_ns, name), status.st_mtime_ns, status.st_size, is_done=False)


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


def _checked_name(name: str) -> str:
    """Raises ValueError or TypeError unless the name is that of a log in the folder: no path may lead out of it."""
    if b"\0" in os.fsencode(name) or os.path.basename(name) != name or not is_log_name(name):
        raise ValueError
    return name
