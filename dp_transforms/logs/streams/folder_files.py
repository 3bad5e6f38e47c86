"""Files of a folder: how far they were read, as text in a state, and which of them a part of a run has taken.

What is taken is on the disk before any event of it is used. A part that is taken again must read the same files, since
it draws the same noise: over other events that noise would show what differs, and users of a lost file would not pay
for what was published. When the part begins nobody knows which files will come, so each is noted when its turn comes. A
line has the change time of a file and a digest of its name, size and modification time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from dp_transforms.checks import on_one_line
from dp_transforms.errors import LastingError, StreamError
from dp_transforms.logs.discovery import is_log_name
from dp_transforms.stores.local_files import append_private, read_regular

_TEMPORARY_ENDINGS = (".tmp", ".part")
_LINE = re.compile(r"(\d{1,20}) [0-9a-f]{64}")
_MOST_BYTES = 1 << 30


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
            raise LastingError(
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


@dataclasses.dataclass(frozen=True)
class TakenFiles:
    """path: where they are noted: a file that every worker has at this path, or that is still to be made."""

    path: str

    def begin(self, *, is_new: bool) -> None:
        """Makes the file, which is also there when nothing was taken. is_new: whether nothing is published yet. Raises
        StreamError if the file is missing else, or cannot be made."""
        if not is_new and not os.path.lexists(self.path):
            raise StreamError(
                f"{on_one_line(self.path)} is not there. It says which files were read for what is published. Bring it"
                " back to where it was; if that cannot be, this run ends here."
            )
        self._append("\n")

    def note(self, file: FolderPosition) -> None:
        """Before the first event of the file is used; again is as good as once. Raises StreamError."""
        # The empty line ends what a process left that died while it wrote; it had not used that file.
        self._append(f"\n{_line(file)}\n")

    def _append(self, text: str) -> None:
        try:
            append_private(self.path, text.encode())
        except OSError as error:
            raise StreamError(
                f"{on_one_line(self.path)}: the files that are read cannot be noted there ({error.strerror}). Every"
                " worker must be able to write to the folder of the state."
            ) from None

    def agrees_with(self, folder: Iterable[FolderPosition]) -> bool:
        """Whether a reader finds what was taken, and nothing else before the last of it. Raises StreamError.

        folder: all files of the folder from where the part began.
        """
        taken = self._lines()
        if not taken:
            return True
        last = max(taken.values())
        found = {_line(file): _ctime_ns(file) for file in folder}
        return taken.keys() <= found.keys() and all(at >= last or line in taken for line, at in found.items())

    def _lines(self) -> dict[str, int]:
        """With the change time of each file."""
        try:
            content = read_regular(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StreamError(f"{on_one_line(self.path)}: it cannot be read ({error.strerror}).") from None
        whole = map(_LINE.fullmatch, content.decode("ascii", "replace").split("\n"))
        return {line[0]: int(line[1]) for line in whole if line}


def _ctime_ns(file: FolderPosition) -> int:
    assert file.file is not None
    return file.file.ctime_ns


def _line(file: FolderPosition) -> str:
    assert file.file is not None
    content = json.dumps([file.file.name, file.mtime_ns, file.size]).encode("utf-8", "surrogateescape")
    return f"{_ctime_ns(file)} {hashlib.sha256(content).hexdigest()}"
