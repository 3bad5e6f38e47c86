"""Watches a run of ``shh stream`` to its end: shows its reports, drains it at a stop or ends it at once, and says how
it ended.

Reports go to stdout as JSON lines, and the page of ``--html`` is written anew. The operator's numbers, on stderr,
depend on the data and are not covered by the guarantee (docs/deploy.md, what to watch).

An output that cannot be read for a while does not end the run. Ctrl-C and SIGTERM are counted and not obeyed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import click
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.jobs import RunningPipeline, StreamJob
from dp_transforms.beam.runner_options import is_local, recovers
from dp_transforms.cli.exit_signals import INTERRUPTED, TERMINATED
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.output_file import write_output
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.core import operator_counts as names
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.reports import ReportHeader, encode_report
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import counted, ended_words

_PATIENCE_SECONDS = 120.0
_SECONDS_BETWEEN_GLANCES = 0.05
_PAUSE_PER_CHECK = 10  # a check that takes long is followed by a pause so many times longer
_SECONDS_BETWEEN_NUMBERS = 60.0
_FAILED = "the windows that were reported before are valid and stay"
_MOST_WINDOWS = 200  # with heavy items, on a page
_MOST_ITEMS = 20_000  # of all these windows; so they have fewer sizes than a page can hold (`report_columns`)


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """What was asked for, and what that comes to. runner: options of Beam. resumes: whether the run was begun before,
    and goes on from what its runner stored. once: reads what is there now, and ends."""

    job: StreamJob
    runner: PipelineOptions
    resumes: bool
    once: bool

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: this process cannot loop."""
        return is_local(self.runner)

    @property
    def recovers(self) -> bool:
        """Whether a run that was ended at once can be resumed."""
        return recovers(self.runner)


class StreamWatch:
    """page: of --html, or None. pause_seconds: between two looks. patience_seconds: how long an output that cannot be
    read is tried again, by this clock."""

    def __init__(
        self,
        request: StreamRequest,
        page: StreamPage | None = None,
        *,
        pause_seconds: float = 1.0,
        patience_seconds: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._job, self._page = request, request.job, page
        self._pause_seconds, self._patience_seconds, self._clock = pause_seconds, patience_seconds, clock
        self._follower = self._job.sink.follow(self._job.run_id)
        # What a command before has shown, if not what came while nobody watched.
        self._skips_first = request.resumes
        self._failing_since: float | None = None
        # A run that is resumed goes on to drain where that was asked for.
        self._made_stop_file = request.resumes and os.path.lexists(self._job.stop_file or "")
        self._next_numbers = 0.0

    def to_the_end(self, running: RunningPipeline) -> RunEnded | None:
        """Returns when the run is over or drained, with its end if it came so far. The job is over then: it is
        cancelled also where it cannot be watched any more.

        Raises UserError, and SystemExit if the operator ended it at once.
        """
        stop_file, ended = self._job.stop_file, None
        try:
            with caught_stops() as stops:
                self._say_how_to_drain()  # not before signals are caught
                try:
                    ended = self._look_until_over(running, stops)
                finally:
                    if not self._request.reads_once and (left := running.cancel()):  # that one ends by itself
                        tell(left)
            self._tell_end(ended, was_asked=self._made_stop_file or os.path.lexists(stop_file or ""))
            return ended
        finally:
            if self._made_stop_file and (ended is not None or not self._request.recovers):
                self._remove_stop_file()

    def _look_until_over(self, running: RunningPipeline, stops: StopSignals) -> RunEnded | None:
        asked, ended, reads_once = 0, None, self._request.reads_once
        # In this process the job ends by itself.
        while not running.is_over and (ended is None or reads_once):
            if stops.count > asked:
                asked = stops.count
                self._drain_or_end(running, asked, stops.code)
            begin = time.monotonic()
            ended = self.check()
            if begin >= self._next_numbers:  # a runner may take long to answer
                self._tell_numbers(running)
                self._next_numbers = time.monotonic() + _SECONDS_BETWEEN_NUMBERS
            if ended is None:
                stops.wait(max(self._pause_seconds, _PAUSE_PER_CHECK * (time.monotonic() - begin)), asked)
        if ended is None:
            with errors_in_one_line(_FAILED):
                running.raise_error()
            ended = self.check_until_read(lambda: stops.wait(self._pause_seconds, asked))
        return ended

    def check(self) -> RunEnded | None:
        """Shows what is new. The end of the run, once no report is missing; None before, and while the sink cannot be
        read. Raises UserError if it cannot be read for too long."""
        try:
            _, reports, ended = self._follower.read_new()
        except StreamError as error:
            self._tolerate(error)
            return None
        self._failing_since = None
        if self._skips_first:
            self._skips_first = False
            tell(
                f"{len(reports):,} windows with heavy items were reported before, some perhaps while no command"
                f" watched: they are not shown here. See all with: shh show {self._job.sink.path}"
            )
        elif reports:
            show_reports(reports)
        ended = ended if ended is not None and len(self._follower.known) == ended.reports else None
        if self._page is not None:
            self._page.update(reports, ended)
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

    def _tolerate(self, error: StreamError) -> None:
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            tell(f"The reports cannot be read just now, trying again for {self._patience_seconds:.0f} s: {error}")
        elif now - self._failing_since >= self._patience_seconds:
            raise UserError(f"the reports could not be read for {now - self._failing_since:.0f} s: {error}") from None

    def _tell_numbers(self, running: RunningPipeline) -> None:
        counts, gauges = running.counts_and_gauges()
        if counts or gauges:
            tell(operator_line(counts, gauges))

    def _say_how_to_drain(self) -> None:
        if (stop_file := self._job.stop_file) is None:
            return
        tell(f"Ctrl-C drains it: all windows close and it ends. So does: touch {stop_file}")
        if self._made_stop_file or self._request.once:
            self._ask_to_drain(stop_file)

    def _drain_or_end(self, running: RunningPipeline, times: int, code: int) -> None:
        """The first signal is a stop, and the run drains; the second ends it at once."""
        stop_file = self._job.stop_file
        if times == 1 and stop_file is None:
            tell("This run has no stop file (docs/deploy.md), so it cannot be drained. Ask again to end it at once.")
        elif times == 1 and stop_file is not None:
            self._ask_to_drain(stop_file)
        else:
            goes_on = "This run cannot be resumed; a new one has a new run id and a budget of its own."
            if self._request.recovers:
                drain = "" if stop_file is None else f" It then drains by the same stop: leave {stop_file} there."
                goes_on = f"{self._words_of_resume()}{drain}"
            tell(f"Ended at once. What was reported stays; open windows were not answered. {goes_on}")
            if self._request.reads_once:
                self._remove_stop_file()
                os._exit(code)  # its threads cannot be cancelled
            raise SystemExit(code)

    def _ask_to_drain(self, stop_file: str) -> None:
        """Says what counts, and how long it takes at least."""
        path, now_micros = pathlib.Path(stop_file), time.time_ns() // 1000
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, exist_ok=True)  # /tmp may have been cleaned
            path.touch(exist_ok=False)
            self._made_stop_file = True
        asked_micros = path.stat().st_ctime_ns // 1000 if path.exists() else now_micros
        stop_micros = self._job.clock.stop_micros(asked_micros)
        left = stop_micros + self._job.clock.shown_within_micros - now_micros
        until = time.strftime("%H:%M:%S", time.gmtime(stop_micros // MICROS_PER_SECOND))
        tell(
            f"Draining: what arrives by {until} UTC counts; all windows then close, in about"
            f" {max(0, math.ceil(left / MICROS_PER_SECOND)):,} s, on Flink four checkpoints later, or when all of it is"
            " read. Ask again to end at once."
        )

    def _remove_stop_file(self) -> None:
        if self._job.stop_file is not None:
            pathlib.Path(self._job.stop_file).unlink(missing_ok=True)

    def _tell_end(self, ended: RunEnded | None, *, was_asked: bool) -> None:
        """was_asked: somebody asked for a stop. The end record does not say so: that would depend on the run's data."""
        if ended is not None:
            why = "A stop was asked for" if was_asked else "The declared range is over"
            tell(f"{why}: all {ended.windows:,} windows are closed; nothing more is answered.")
        elif self._request.recovers:  # Flink ends a job so behind a savepoint
            tell(f"The runner has ended the job before its last window. {self._words_of_resume()}")
        else:
            tell("All that was there is read. Windows that were still open then are not answered.")
        tell(f"{len(self._follower.known):,} windows with heavy items; see all with: shh show {self._job.sink.path}")

    def _words_of_resume(self) -> str:
        return (
            f"Resume it from the last checkpoint or savepoint with --savepoint_path=PATH --run-id {self._job.run_id},"
            " and the rest of this command line."
        )


def operator_line(counts: Mapping[str, int], gauges: Mapping[str, int]) -> str:
    """The numbers of a run by now."""
    parts = [f"{counts.get(names.EVENTS_READ, 0):,} events"]
    if names.CLOCK_LAG_SECONDS in gauges:
        parts.append(f"clock {gauges[names.CLOCK_LAG_SECONDS]:,} s behind")
    for name, words in (
        (names.EVENTS_REJECTED, "rejected"),
        (names.EVENTS_LATE, "late"),
        (names.EVENTS_FROM_THE_FUTURE, "from the future"),
        (names.EVENTS_AFTER_STOP, "after the stop"),
        (names.EVENTS_OUTSIDE_RANGE, "outside --start .. --end"),
        (names.EVENTS_OUTSIDE_DOMAIN, "of other items than --public-items"),
        (names.CONTRIBUTIONS_UNPAID, "contributions beyond --most-contributions"),
    ):
        if counts.get(name):
            parts.append(f"{counts[name]:,} {words}")
    return f"[not covered by the guarantee, for the operator: {', '.join(parts)}]"


def show_reports(new: Sequence[WindowReport]) -> None:
    """On stdout, a JSON line each. new: none that was shown before."""
    for report in new:
        click.echo(encode_report(report, ascii_only=True))


class StreamPage:
    """``shh stream --html``: the page of a run so far, written anew as windows close, whole or not at all.

    The newest windows are on it, and how many came before them: a page after ten thousand windows costs as much as one
    after two hundred. ``shh show --html`` has them all.
    """

    def __init__(self, path: str, header: ReportHeader, zone: datetime.tzinfo, titles: Mapping[str, str]) -> None:
        self._path, self._header, self._zone, self._titles = path, header, zone, titles
        self._newest: collections.deque[WindowReport] = collections.deque()
        self._earlier = 0  # windows before the newest
        self._shown: tuple[int, RunEnded | None] | None = None  # what the page says: windows, and the end
        self._is_troubled = False

    def update(self, reports: Sequence[WindowReport], ended: RunEnded | None) -> None:
        """reports: none that came before. A page that cannot be written is tried again, and ends no run."""
        self._newest.extend(reports)
        while len(self._newest) > 1 and (len(self._newest) > _MOST_WINDOWS or self._items() > _MOST_ITEMS):
            self._newest.popleft()
            self._earlier += 1
        now = self._earlier + len(self._newest), ended
        if now == self._shown:
            return
        try:
            write_output(self._path, self._page(ended), replaces=True, is_all=False)
        except UserError as error:
            if not self._is_troubled:
                tell(f"Warning: --html: {error} The run goes on, and it is tried again.")
            self._is_troubled = True
        else:
            self._shown, self._is_troubled = now, False

    def _items(self) -> int:
        return sum(len(report.heavy_hitters) for report in self._newest)

    def _page(self, ended: RunEnded | None) -> str:
        before, state = "", "The run goes on: further windows may follow."
        if self._earlier:
            before = f"{counted(self._earlier, 'earlier window')} with heavy items: shh show --html has all. "
        if ended is not None:
            plan = self._header.checked_plan()
            state = ended_words(ended, None if plan is None else plan.schedule.horizon)
        return report_page(self._header, self._newest, self._zone, self._titles, before + state, goes_on=ended is None)


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
