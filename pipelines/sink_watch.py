"""Reads the output of a run while it goes on. An output that cannot be read for a while does not end the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.monitoring.window_report import RunEnded
from dp_transforms.pipelines.options import UserError
from dp_transforms.pipelines.stream_status import StreamStatus
from dp_transforms.report_streams.report_writer import ReportSink

PATIENCE_SECONDS = 120.0


class SinkWatch:
    """Shows what is new in a sink each time that it is read.

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
        self._sink = sink
        self._run_id = run_id
        self._status = status
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._failing_since: float | None = None

    def check(self, given_up: str = "") -> RunEnded | None:
        """The end of the run, once no report is missing; None before, and while the sink cannot be read.

        Raises UserError if it cannot be read for too long. given_up: what to say of the run then.
        """
        try:
            _, reports, ended = self._sink.read(self._run_id)
        except StreamError as error:
            self._tolerate(error, given_up)
            return None
        self._failing_since = None
        self._status.show_reports(reports)
        return ended if ended is not None and len(reports) == ended.reports else None

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
