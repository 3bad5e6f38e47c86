"""Which files of a folder a part of a run has taken: on the disk before any event of theirs is used.

A part that is taken again must read the same files, since it draws the same noise: over other events that noise would
show what differs, and users of a lost file would not pay for what was published. When the part begins nobody knows
which files will come, so each is noted when its turn comes. A line has the change time of a file and a digest of its
name, size and modification time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.folder_position import FolderPosition
from dp_transforms.stores.local_files import append_private, read_regular

_LINE = re.compile(r"(\d{1,20}) [0-9a-f]{64}")
_MOST_BYTES = 1 << 30


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
