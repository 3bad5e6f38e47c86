"""Follows a run of a sink whose windows have names, as files or keys: each window is read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Generic, TypeVar

from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.records import ReportHeader, in_file_order
from dp_transforms.reports.report_writer import ReportNews

Name = TypeVar("Name", bound=Hashable)


class WindowFollower(Generic[Name]):
    """A `ReportFollower`.

    read_new: returns header, end, and by name the reports of those windows that are not in the set that it is given.
        No window is ever replaced, so one that was read is not read again.
    """

    def __init__(
        self, read_new: Callable[[Set[Name]], tuple[ReportHeader | None, dict[Name, WindowReport], RunEnded | None]]
    ) -> None:
        self._read_new = read_new
        self._header: ReportHeader | None = None
        self._known: set[Name] = set()

    def read_new(self) -> ReportNews:
        header, found, ended = self._read_new(self._known)
        is_new = self._header is None or header != self._header
        if is_new and self._known:  # another run has taken its place
            self._known = set()
            header, found, ended = self._read_new(self._known)
        self._header = header
        self._known.update(found)
        return header, in_file_order(found.values()), ended, is_new

    def close(self) -> None: ...
