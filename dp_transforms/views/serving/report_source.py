"""What a live page follows: a folder or a topic of ``shh stream``, or report files of one run. Each reading returns
only what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports import (
    ReportFileError,
    ReportFolder,
    ReportHeader,
    is_topic,
    read_report_files,
    report_files_in,
    report_format,
    sink_of,
)
from dp_transforms.reports.report_writer import ReportFollower


class Found(NamedTuple):
    """One reading. reports: those that no reading before had, in the order of time.

    is_other: another run, or another report, is there now. What was read before no longer counts, and
        `reports` are all.
    goes_on: further windows may come, unless the run has ended.
    """

    header: ReportHeader
    reports: list[WindowReport]
    ended: RunEnded | None
    is_other: bool
    goes_on: bool = True


class NotBegunError(UserError):
    """The folder of a stream that has not begun, as far as can be seen."""


class ReportSource(Protocol):
    def poll(self) -> Found | None:
        """None if nothing has changed. Raises UserError; the next poll tries again and loses nothing."""
        ...


class SinkSource:
    """A run of a stream, as its sink is followed: a folder, whose names are listed each time because no file system
    tells reliably what is new, or what is committed in a topic of Kafka.

    missing: the error as long as there is no run.
    """

    def __init__(self, follower: ReportFollower, missing: Callable[[], UserError]) -> None:
        self._follower = follower
        self._missing = missing
        self._header: ReportHeader | None = None
        self._ended: RunEnded | None = None

    def poll(self) -> Found | None:
        try:
            header, reports, ended, is_new = self._follower.read_new()
        except StreamError as error:
            raise UserError(str(error)) from error
        if header is None:
            self._header = None if is_new else self._header
            raise self._missing()
        is_other = is_new or self._header is None
        has_changed = is_other or reports or ended != self._ended
        self._header, self._ended = header, ended
        return Found(header, reports, ended, is_other) if has_changed else None


def _folder_source(path: str) -> SinkSource:
    missing = f"{path!r} holds no reports yet: neither header.json of a stream nor report files."
    return SinkSource(ReportFolder(path).follow(), lambda: NotBegunError(missing))


class FileSource:
    """Report files of one run. They are read again once one is new, or another one is there under a name.

    paths: gives them, and is asked each time: a folder of them grows night by night.
    """

    def __init__(self, paths: Callable[[], Sequence[str]]) -> None:
        self._paths = paths
        self._seen: list[tuple[int, ...]] = []

    def poll(self) -> Found | None:
        try:
            paths = self._paths()
            found_files = [os.stat(path) for path in paths]
            seen: list[tuple[int, ...]] = [
                (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns) for file in found_files
            ]
            if seen == self._seen:
                return None
            header, reports = read_report_files(paths)
            found = sorted(reports, key=lambda report: (report.window_start, report.stream))
        except ReportFileError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}. Check the path.") from error
        self._seen = seen
        return Found(header, found, None, True, goes_on=False)


def may_begin(report: str) -> bool:
    """Whether a path without reports may be the folder of a stream that has not begun: it has no ending of a report
    file, and the folder around it is there."""
    try:
        report_format(report)
    except ReportFileError:
        return os.path.isdir(os.path.dirname(os.path.abspath(report)))
    return False


def source_of(reports: Sequence[str], run_id: str | None = None, kafka_config: str | None = None) -> ReportSource:
    """reports: files of one run or their folder, the folder of a stream, or ``kafka://HOST:PORT/TOPIC``. run_id,
    kafka_config: of a topic; by default its only run, and no further settings of the client. Raises UserError for an
    address that is not one."""
    report = reports[0]
    if len(reports) > 1:
        if any(is_topic(path) or os.path.isdir(path) for path in reports):
            raise UserError("several reports must be files of one run. Name one folder or topic, by itself.")
        return FileSource(lambda: reports)
    if not is_topic(report):
        if os.path.isdir(report):
            is_of_stream = ReportFolder(report).is_begun or not report_files_in(report)
            return _folder_source(report) if is_of_stream else FileSource(lambda: report_files_in(report))
        return (
            FileSource(lambda: reports) if os.path.lexists(report) or not may_begin(report) else _folder_source(report)
        )
    try:
        topic = sink_of(report, client_config_file=kafka_config)
    except ValueError as error:
        raise UserError(f"REPORT as a topic {error}") from None
    missing = f"{topic.name} does not have the run yet, or no longer its first record."
    return SinkSource(topic.follow(run_id), lambda: UserError(f"{missing} Name the run, once the stream has begun."))
