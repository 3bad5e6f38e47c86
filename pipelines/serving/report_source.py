"""What a live page follows: a folder of ``shh stream``, or a report file. Each reading returns only what is new."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.monitoring.window_report import RunEnded, WindowReport
from dp_transforms.pipelines.options import UserError
from dp_transforms.report_files import ReportFileError, ReportHeader, read_report_file
from dp_transforms.report_streams import ReportFolder


class Found(NamedTuple):
    """One reading. reports: those that no reading before had, in the order of time.

    is_other: another run, or another report, is there now. What was read before no longer counts, and
        `reports` are all.
    """

    header: ReportHeader
    reports: list[WindowReport]
    ended: RunEnded | None
    is_other: bool


class ReportSource(Protocol):
    def poll(self) -> Found | None:
        """None if nothing has changed. Raises UserError; the next poll tries again and loses nothing."""
        ...


class FolderSource:
    """A folder of reports. Files that workers still write have hidden names, and are not read.

    Each window is read once. The names of all files are listed each time: no file system tells reliably what is new.
    """

    def __init__(self, path: str) -> None:
        self._folder = ReportFolder(path)
        self._header: ReportHeader | None = None
        self._known: set[str] = set()
        self._ended: RunEnded | None = None

    def poll(self) -> Found | None:
        try:
            header, found, ended = self._folder.read_new(self._known)
            is_other = header is not None and header != self._header
            if is_other and self._known:
                header, found, ended = self._folder.read_new(())
        except StreamError as error:
            raise UserError(str(error)) from error
        if header is None:
            raise UserError(
                f"{self._folder.path!r} holds no reports of a stream: it has no header.json. Name the --output folder"
                " of `shh stream`, once the stream has begun."
            )
        if not is_other and not found and ended == self._ended:
            return None
        if is_other:
            self._known.clear()
        self._header, self._ended = header, ended
        self._known.update(found)
        return Found(header, list(found.values()), ended, is_other)


class FileSource:
    """A report file. It is read again once another one is there under its name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def poll(self) -> Found | None:
        try:
            status = os.stat(self._path)
            seen = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return None
            header, reports = read_report_file(self._path)
            found = sorted(reports, key=lambda report: (report.window_start, report.stream))
        except ReportFileError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {error.strerror}. Check the path.") from error
        self._seen = seen
        return Found(header, found, None, True)


def source_of(path: str) -> ReportSource:
    return FolderSource(path) if os.path.isdir(path) else FileSource(path)
