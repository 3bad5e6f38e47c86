"""What a live page follows: a folder or a topic of ``shh stream``, or report files of one run. Each reading returns
only what is new.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_files, report_files_in, report_format
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.topic_records import TopicFollower

_TOPIC = "kafka://"
_TOPIC_PARTS = re.compile(r"([^\s/@]+:\d{1,5}(?:,[^\s/@]+:\d{1,5})*)/([A-Za-z0-9._-]{1,249})")


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
            raise NotBegunError(
                f"{self._folder.path!r} holds no reports yet: neither header.json of a stream nor report files."
            )
        if not is_other and not found and ended == self._ended:
            return None
        if is_other:
            self._known.clear()
        self._header, self._ended = header, ended
        self._known.update(found)
        return Found(header, list(found.values()), ended, is_other)


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


class TopicSource:
    """A run of a topic of Kafka: what is committed, from the beginning of the topic on."""

    def __init__(self, topic: ReportTopic, run_id: str | None) -> None:
        self._topic = topic
        self._follower = TopicFollower(topic, run_id)
        self._header: ReportHeader | None = None
        self._ended: RunEnded | None = None

    def poll(self) -> Found | None:
        try:
            header, reports, ended, is_new = self._follower.read_new()
        except StreamError as error:
            raise UserError(str(error)) from error
        if header is None:
            self._header = None
            raise UserError(
                f"the topic {self._topic.topic!r} does not have the run yet, or no longer its first record. Name the"
                " run, once the stream has begun."
            )
        is_other = is_new or self._header is None
        if not is_other and not reports and ended == self._ended:
            return None
        self._header, self._ended = header, ended
        return Found(header, reports, ended, is_other)


def is_topic(report: str) -> bool:
    return report.startswith(_TOPIC)


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
            return FolderSource(report) if is_of_stream else FileSource(lambda: report_files_in(report))
        return FileSource(lambda: reports) if os.path.lexists(report) or not may_begin(report) else FolderSource(report)
    parts = _TOPIC_PARTS.fullmatch(report.removeprefix(_TOPIC))
    if parts is None:
        raise UserError(
            "REPORT as a topic must be kafka://HOST:PORT/TOPIC, with several HOST:PORT by commas. Names and passwords"
            " go into a file: --kafka-config."
        )
    return TopicSource(ReportTopic(parts[1], parts[2], client_config_file=kafka_config), run_id)
