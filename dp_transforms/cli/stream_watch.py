"""Watches a run of ``shh stream`` to its end: shows its reports, drains it at a stop or ends it at once, and says how
it ended.

Reports go to stdout as JSON lines, and the page of ``--html`` is written anew. The operator's numbers, on stderr,
depend on the data and are not covered by the guarantee (docs/deploy.md, what to watch).
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import pathlib
import signal
import time
from collections.abc import Iterator, Mapping

import click

from dp_transforms.beam.jobs import RunningPipeline, StreamJob, watch
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.reports import encode_report
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.stores.files import write_output
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import counted, ended_words

_SECONDS_BETWEEN_NUMBERS = 60.0
_FAILED = "the windows that were reported before are valid and stay"
_MOST_WINDOWS = 200  # with heavy items, on a page
_MOST_ITEMS = 20_000  # of all these windows; so they have fewer sizes than a page can hold (`report_columns`)


class StreamWatch:
    """recovers: whether a run that was ended at once can be resumed. page: of --html."""

    def __init__(self, job: StreamJob, *, recovers: bool, page: StreamPage | None = None) -> None:
        self._job, self._recovers, self._page = job, recovers, page
        self._stop_file = None if job.stop_file is None else pathlib.Path(job.stop_file)
        self._asked = self._windows = 0
        self._next_numbers = 0.0

    def to_the_end(self, running: RunningPipeline, *, drains: bool, pause_seconds: float = 1.0) -> None:
        """Returns when the run is over or drained. The job is over then: it is cancelled also where it cannot be
        watched any more. drains: at once.

        Raises UserError, and SystemExit if the operator ended it at once.
        """
        ended = None
        try:
            with noted_stops() as stops:
                try:
                    if self._stop_file is not None:  # not before signals are noted
                        tell(f"Ctrl-C drains it: all windows close and it ends. So does: touch {self._stop_file}")
                    if drains:
                        self._ask_to_drain()
                    with errors_in_one_line(_FAILED):
                        for _, reports, found_end in watch(running, self._job, pause_seconds=pause_seconds):
                            ended = found_end or ended
                            self._show(reports, ended)
                            self._tell_numbers(running)
                            self._obey(stops, running)
                finally:
                    if left := running.cancel():
                        tell(left)
            self._tell_end(ended)
        finally:
            if ended is not None or not self._recovers:  # else the run, once it is resumed, goes on to drain
                self._remove_stop_file()

    def _show(self, reports: list[WindowReport], ended: RunEnded | None) -> None:
        for report in reports:
            click.echo(encode_report(report, ascii_only=True))
        self._windows += len(reports)
        if self._page is not None:
            self._page.update(reports, ended)

    def _tell_numbers(self, running: RunningPipeline) -> None:
        if time.monotonic() < self._next_numbers:
            return
        if numbers := operator_line(*running.counts_and_gauges()):
            tell(numbers)
        self._next_numbers = time.monotonic() + _SECONDS_BETWEEN_NUMBERS  # a runner may take long to answer

    def _obey(self, stops: list[int], running: RunningPipeline) -> None:
        """The first signal is a stop, and the run drains; the second ends it at once."""
        for number in stops[self._asked :]:
            self._asked += 1
            if self._asked == 1:
                self._ask_to_drain()
                continue
            goes_on = "This run cannot be resumed; a new one has a new run id and a budget of its own."
            if self._recovers:
                goes_on = (
                    f"{self._words_of_resume()} It then drains by the same stop file, if it has one: leave it there."
                )
            tell(f"Ended at once. What was reported stays; open windows were not answered. {goes_on}")
            if running.ends_by_itself:  # its threads cannot be cancelled
                self._remove_stop_file()
                os._exit(128 + number)
            raise SystemExit(128 + number)

    def _ask_to_drain(self) -> None:
        if self._stop_file is None:
            tell("This run has no stop file (docs/deploy.md), so it cannot be drained. Ask again to end it at once.")
            return
        self._stop_file.parent.mkdir(mode=0o700, exist_ok=True)  # /tmp may have been cleaned
        with contextlib.suppress(FileExistsError):  # its change time is the moment of the stop
            self._stop_file.touch(exist_ok=False)
        clock, now = self._job.clock, time.time_ns() // 1000
        left = math.ceil((clock.stop_micros(now) + clock.shown_within_micros - now) / MICROS_PER_SECOND)
        tell(
            f"Draining: what has come by the stop counts. All windows close in about {left:,} s, on Flink four"
            " checkpoints later, or when all of it is read. Ask again to end at once."
        )

    def _remove_stop_file(self) -> None:
        if self._stop_file is not None:
            self._stop_file.unlink(missing_ok=True)

    def _tell_end(self, ended: RunEnded | None) -> None:
        if ended is not None:
            tell(f"The run is over: all {ended.windows:,} windows are closed; nothing more is answered.")
        elif self._recovers:  # Flink ends a job so behind a savepoint
            tell(f"The runner has ended the job before its last window. {self._words_of_resume()}")
        else:
            tell("All that was there is read. Windows that were still open then are not answered.")
        tell(f"{self._windows:,} windows with heavy items; see all with: shh show {self._job.sink.path}")

    def _words_of_resume(self) -> str:
        return (
            f"Resume it from the last checkpoint or savepoint with --savepoint_path=PATH --run-id {self._job.run_id},"
            " and the rest of this command line."
        )


def operator_line(counts: Mapping[str, int], gauges: Mapping[str, int]) -> str:
    """The numbers of a run by now, by the names of its metrics; "" for none."""
    numbers = [f"{name} {value:,}" for name, value in {**counts, **gauges}.items() if value]
    return f"[for the operator, not covered by the guarantee: {', '.join(numbers)}]" if numbers else ""


class StreamPage:
    """``shh stream --html``: the page of a run so far, written anew as windows close, whole or not at all.

    The newest windows are on it, and how many came before them: a page after ten thousand windows costs as much as one
    after two hundred. ``shh show --html`` has them all.
    """

    def __init__(self, path: str, job: StreamJob, zone: datetime.tzinfo, titles: Mapping[str, str]) -> None:
        self._path, self._zone, self._titles = path, zone, titles
        self._header, self._horizon = job.header, job.plan.schedule.horizon
        self._newest: list[WindowReport] = []
        self._earlier, self._was_tried = 0, False  # windows before the newest

    def update(self, reports: list[WindowReport], ended: RunEnded | None) -> None:
        """reports: none that came before. A page that cannot be written ends no run; the next window tries again."""
        if self._was_tried and not reports and ended is None:
            return
        self._was_tried = True
        self._newest += reports
        while len(self._newest) > 1 and (len(self._newest) > _MOST_WINDOWS or self._items() > _MOST_ITEMS):
            del self._newest[0]
            self._earlier += 1
        state = ended_words(ended, self._horizon) if ended else "The run goes on: further windows may follow."
        if self._earlier:
            state = f"{counted(self._earlier, 'earlier window')} with heavy items: shh show --html has all. {state}"
        try:
            page = report_page(self._header, self._newest, self._zone, self._titles, state, goes_on=ended is None)
            write_output(self._path, page, replaces=True)
        except UserError as error:
            tell(f"Warning: --html: {error} The run goes on, and the next window tries again.")

    def _items(self) -> int:
        return sum(len(report.heavy_hitters) for report in self._newest)


@contextlib.contextmanager
def noted_stops() -> Iterator[list[int]]:
    """While the block runs, in the main thread, SIGINT and SIGTERM are only noted, by their numbers."""
    noted: list[int] = []
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda number, _: noted.append(number)) for each in stops}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
