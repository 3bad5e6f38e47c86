"""Reads the output of a run while it goes on. An output that cannot be read for a while does not end the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.report_writer import ReportSink

PATIENCE_SECONDS = 120.0


class SinkWatch:
    """Shows what is new in a sink each time that it is read. Close it at the end.

    patience_seconds: how long to try again after a first failure. clock: in seconds.
    """

    def __init__(
        self,
        sink: ReportSink,
        run_id: str,
        status: StreamStatus,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower = sink.follow(run_id)
        self._shown: set[tuple[str, int]] = set()  # a window is shown once, also if the sink must be read anew
        self._reports = 0
        self._status = status
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._failing_since: float | None = None

    def check(self, given_up: str = "") -> RunEnded | None:
        """The end of the run, once no report is missing; None before, and while the sink cannot be read.

        Raises UserError if it cannot be read for too long. given_up: what to say of the run then.
        """
        try:
            _, reports, ended, is_new = self._follower.read_new()
        except StreamError as error:
            self._tolerate(error, given_up)
            return None
        self._failing_since = None
        self._reports = len(reports) + (0 if is_new else self._reports)
        self._show(reports)
        return ended if ended is not None and self._reports == ended.reports else None

    def check_until_read(self, is_stopped: Callable[[], bool]) -> RunEnded | None:
        """The last reading, when nothing more is written: tries again until the sink can be read.

        is_stopped: waits a while, and returns whether the operator asked to stop. Raises UserError.
        """
        while True:
            ended = self.check()
            if self._failing_since is None:
                return ended
            if is_stopped():
                raise UserError("the reports could not be read after the run was over; what was written stays.")

    def close(self) -> None:
        self._follower.close()

    def _show(self, reports: Sequence[WindowReport]) -> None:
        new = [report for report in reports if (report.stream, report.window_start) not in self._shown]
        self._shown.update((report.stream, report.window_start) for report in new)
        self._status.show_reports(new)

    def _tolerate(self, error: StreamError, given_up: str) -> None:
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            self._status.tell(
                f"The reports cannot be read just now, trying again for {self._patience_seconds:.0f} s: {error}"
            )
        elif now - self._failing_since >= self._patience_seconds:
            words = f"the reports could not be read for {now - self._failing_since:.0f} s: {error}"
            raise UserError(f"{words} {given_up}".rstrip()) from None
