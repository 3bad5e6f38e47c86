"""Watches a run to its end: shows reports, drains it at a stop or ends it at once, and says how it ended.

An output that cannot be read for a while does not end the run. Ctrl-C and SIGTERM are counted and not obeyed.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from dp_transforms.beam.jobs import RunningPipeline, StreamJob
from dp_transforms.cli.exit_signals import INTERRUPTED, TERMINATED
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.cli.stream_request import StreamRequest
from dp_transforms.cli.stream_status import StreamPage, StreamStatus
from dp_transforms.core.operator_counts import PARTITIONS_UNREAD
from dp_transforms.core.window_report import RunEnded, WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports.report_writer import ReportSink

PATIENCE_SECONDS = 120.0
_PAUSE_PER_CHECK = 10  # a check that takes long is followed by a pause so many times longer
_SECONDS_BETWEEN_GLANCES = 0.05
_NUMBERS_EVERY_SECONDS = 5.0
_FAILED = "the windows that were reported before are valid and stay"


class StreamWatch:
    """job, request, status: of the run. pause_seconds: between two looks. patience_seconds: how long an output that
    cannot be read is tried again."""

    def __init__(
        self,
        job: RunningPipeline,
        request: StreamRequest,
        status: StreamStatus,
        *,
        pause_seconds: float = 1.0,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._job, self._request, self._status = job, request, status
        self._sink = SinkWatch(
            request.job.sink,
            request.job.run_id,
            status,
            _page_of(request, status),
            goes_on=request.resumes,
            patience_seconds=patience_seconds,
        )
        self._pause_seconds = pause_seconds
        self._ended: RunEnded | None = None
        # A run that is resumed goes on to drain where that was asked for.
        self._made_stop_file = request.resumes and os.path.lexists(request.job.stop_file or "")
        self._next_numbers = 0.0
        self._unread = 0

    def to_the_end(self) -> RunEnded | None:
        """Returns when the run is over or drained, with its end if it came so far. The job is over then: it is
        cancelled also where it cannot be watched any more.

        Raises UserError, and SystemExit if the operator ended it at once.
        """
        stop_file = self._request.job.stop_file
        try:
            with caught_stops() as stops:
                if stop_file is not None:  # not before signals are caught
                    self._say_how_to_drain(stop_file)
                try:
                    self._look_until_over(stops)
                finally:
                    if not self._request.reads_once:  # that ends by itself, and cannot be cancelled
                        self._cancel()
            self._tell_end(self._made_stop_file or os.path.lexists(stop_file or ""))
            return self._ended
        finally:
            self._sink.close()
            self._status.close()
            if self._made_stop_file and (self._ended is not None or not self._request.recovers):
                self._remove_stop_file()

    def _look_until_over(self, stops: StopSignals) -> None:
        asked, is_over, reads_once = 0, False, self._request.reads_once
        # In this process the job ends by itself.
        while not self._job.is_over and (not is_over or reads_once):
            if stops.count > asked:
                asked = stops.count
                self._drain_or_end(asked, stops.code)
            begin = time.monotonic()
            self._ended = self._sink.check()
            is_over = self._ended is not None
            if begin >= self._next_numbers:
                self._show_numbers()
                # A runner that takes long to answer must not delay reports and signals at every check.
                self._next_numbers = time.monotonic() + _NUMBERS_EVERY_SECONDS
            if not is_over:
                took = time.monotonic() - begin
                stops.wait(max(self._pause_seconds, _PAUSE_PER_CHECK * took), asked)
        if not is_over:
            with errors_in_one_line(_FAILED):
                self._job.raise_error()
            self._ended = self._sink.check_until_read(lambda: stops.wait(self._pause_seconds, asked))

    def _say_how_to_drain(self, stop_file: str) -> None:
        self._status.tell(f"Ctrl-C drains it: all windows close and it ends. So does: touch {stop_file}")
        if self._made_stop_file:
            self._status.tell(_draining_words(self._request.job, stop_file))
        elif self._request.options.job.once:
            self._ask_to_drain(stop_file)
        elif self._request.reads_once and (waiting := _waiting_words(self._request.job)):
            self._status.tell(waiting)

    def _show_numbers(self) -> None:
        counts, gauges = self._job.counts_and_gauges()
        self._status.show_operator_line(counts, gauges)
        if (unread := gauges.get(PARTITIONS_UNREAD, 0)) > self._unread:
            self._unread = unread
            self._status.tell(
                f"Warning: {unread:,} partitions were added to --input. This run does not read them. To resume this run"
                " later, give --partitions with the number that it was begun with."
            )

    def _drain_or_end(self, times: int, code: int) -> None:
        """The first signal is a stop, and the run drains; the second ends it at once."""
        stop_file = self._request.job.stop_file
        if times == 1 and stop_file is None:
            self._status.tell("This run has no --stop-file, so it cannot be drained. Ask again to end it at once.")
        elif times == 1 and stop_file is not None:
            self._ask_to_drain(stop_file)
        else:
            self._status.tell(_words_of_end_at_once(self._request))
            self._status.close()
            if self._request.reads_once:
                self._remove_stop_file()
                os._exit(code)  # its threads cannot be cancelled
            self._cancel()
            if not self._request.recovers:
                self._remove_stop_file()
            raise SystemExit(code)

    def _cancel(self) -> None:
        if left := self._job.cancel():
            self._status.tell(left)

    def _ask_to_drain(self, stop_file: str) -> None:
        with contextlib.suppress(FileExistsError):
            pathlib.Path(stop_file).parent.mkdir(mode=0o700, exist_ok=True)  # /tmp may have been cleaned
            pathlib.Path(stop_file).touch(exist_ok=False)
            self._made_stop_file = True
        self._status.tell(_draining_words(self._request.job, stop_file))

    def _remove_stop_file(self) -> None:
        if self._request.job.stop_file is not None:
            pathlib.Path(self._request.job.stop_file).unlink(missing_ok=True)

    def _tell_end(self, was_asked: bool) -> None:
        """was_asked: somebody asked for a stop. The end record does not say so: that would depend on the run's data."""
        ended, job, status = self._ended, self._request.job, self._status
        if ended is None:
            status.tell(_words_of_no_end(self._request))
        elif was_asked:
            status.tell(f"A stop was asked for: all {ended.windows:,} windows are closed; nothing more is answered.")
        else:
            status.tell(f"The declared range is over ({ended.windows:,} windows); nothing more is answered.")
        if job.sink.folder is not None:
            status.tell(f"{self._sink.windows:,} windows with heavy items; see all with: shh show {job.sink.folder}")


def _page_of(request: StreamRequest, status: StreamStatus) -> StreamPage | None:
    sink = request.options.sink
    if sink.html is None:
        return None
    return StreamPage(sink.html, request.job.header, sink.view, request.titles, status.tell)


def _waiting_words(job: StreamJob) -> str:
    """Of a stream in this process, which shows nothing until all windows are closed; empty if that does not wait for
    the future."""
    end_micros = job.plan.schedule.window_end_micros(job.plan.schedule.horizon - 1)
    if end_micros <= time.time_ns() // 1000:
        return ""
    return (
        f"It shows its reports when all windows are closed, so not before {format_utc(end_micros)}, unless events of"
        " later times come. With --once it reads what is there now, and ends."
    )


def _draining_words(job: StreamJob, stop_file: str) -> str:
    """What counts, and how long it takes at least."""
    now_micros = time.time_ns() // 1000
    try:
        asked_micros = os.stat(stop_file).st_ctime_ns // 1000
    except OSError:  # somebody has removed it again
        asked_micros = now_micros
    stop_micros = job.clock.stop_micros(asked_micros)
    seconds = max(0, math.ceil((stop_micros + job.clock.shown_within_micros - now_micros) / MICROS_PER_SECOND))
    until = time.strftime("%H:%M:%S", time.gmtime(stop_micros // MICROS_PER_SECOND))
    return (
        f"Draining: what arrives by {until} UTC counts; all windows then close, in about {seconds:,} s, on Flink four"
        " checkpoints later, or when all of it is read. Ask again to end at once."
    )


def _words_of_no_end(request: StreamRequest) -> str:
    """Of a job that has ended before its last window: one in this process ends so, and Flink behind a savepoint."""
    if not request.recovers:
        return "All that was there is read. Windows that were still open then are not answered."
    return f"The runner has ended the job before its last window. {_words_of_resume(request)}"


def _words_of_resume(request: StreamRequest) -> str:
    return (
        f"Resume it from the last checkpoint or savepoint with --savepoint_path=PATH --run-id {request.job.run_id}, and"
        " the rest of this command line."
    )


def _words_of_end_at_once(request: StreamRequest) -> str:
    words = "Ended at once. What was reported stays; open windows were not answered."
    if request.recovers:
        left = request.job.stop_file
        drain = "" if left is None else f" It then drains by the same stop: leave {left} there."
        return f"{words} {_words_of_resume(request)}{drain}"
    return f"{words} This run cannot be resumed; a new one has a new run id and a budget of its own."


class SinkWatch:
    """Shows what is new in a sink each time that it is read. Close it at the end.

    page: of --html; it has all windows, also those that are not shown.
    goes_on: what is there at the first read is not shown: a command before has shown most of it, if not what came
        while nobody watched. patience_seconds: how long to try again after a first failure. clock: in seconds.
    """

    def __init__(
        self,
        sink: ReportSink,
        run_id: str,
        status: StreamStatus,
        page: StreamPage | None = None,
        *,
        goes_on: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower = sink.follow(run_id)
        self._folder = sink.folder
        self._seen: set[tuple[str, int]] = set()  # a window is shown once, also if the sink must be read anew
        self._reports = 0
        self._skips_first = goes_on
        self._status, self._page = status, page
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._failing_since: float | None = None

    @property
    def windows(self) -> int:
        """How many windows the sink has, also those that were shown by an earlier command or by none."""
        return len(self._seen)

    def check(self) -> RunEnded | None:
        """The end of the run, once no report is missing; None before, and while the sink cannot be read.

        Raises UserError if it cannot be read for too long.
        """
        try:
            _, reports, ended, is_new = self._follower.read_new()
        except StreamError as error:
            self._tolerate(error)
            return None
        self._failing_since = None
        self._reports = len(reports) + (0 if is_new else self._reports)
        new = [report for report in reports if (report.stream, report.window_start) not in self._seen]
        self._show(new)
        ended = ended if ended is not None and self._reports == ended.reports else None
        if self._page is not None:
            self._page.update(new, ended)
        return ended

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

    def _show(self, new: Sequence[WindowReport]) -> None:
        self._seen.update((report.stream, report.window_start) for report in new)
        if self._skips_first:
            self._skips_first = False
            see = "" if self._folder is None else f" See all with: shh show {self._folder}"
            self._status.tell(
                f"{len(new):,} windows with heavy items were reported before, some perhaps while no command watched:"
                f" they are not shown here.{see}"
            )
        else:
            self._status.show_reports(new)

    def _tolerate(self, error: StreamError) -> None:
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            self._status.tell(
                f"The reports cannot be read just now, trying again for {self._patience_seconds:.0f} s: {error}"
            )
        elif now - self._failing_since >= self._patience_seconds:
            raise UserError(f"the reports could not be read for {now - self._failing_since:.0f} s: {error}") from None


class StopSignals:
    """How often the operator asked to stop, and the exit code for the last signal.

    The handler takes no lock, so it cannot wake a waiting thread. It interrupts the main thread, which may hold that
    lock (it does while it waits for a `threading.Event`), and would then wait for itself forever.
    """

    def __init__(self) -> None:
        self.count = 0
        self.code = INTERRUPTED

    def __call__(self, number: int, frame: object) -> None:
        self.count += 1
        self.code = INTERRUPTED if number == signal.SIGINT else TERMINATED

    def wait(self, seconds: float, seen: int) -> bool:
        """Waits so long, or until the operator has asked more than ``seen`` times; returns whether that happened."""
        deadline = time.monotonic() + seconds
        while self.count <= seen and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SECONDS_BETWEEN_GLANCES))
        return self.count > seen


@contextlib.contextmanager
def caught_stops() -> Iterator[StopSignals]:
    """While the block runs, in the main thread, both signals are only counted."""
    stops = StopSignals()
    before = {number: signal.signal(number, stops) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
