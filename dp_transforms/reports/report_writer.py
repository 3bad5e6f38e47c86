"""What a sink of reports is, and the one rule of all sinks: the first answer for a window of a run is kept for ever.

The same answer again, as after the death of a worker, changes nothing. Another answer for the same window would be a
second release that is not accounted for: it raises StreamError and is not written (docs/guarantee.md, "Retry and
replay").

The rule is `ReportWriter`, over what any sink can do: get, put first, count. A reader is a follower.
"""

from __future__ import annotations

import abc
import contextlib
from typing import NamedTuple, TypeAlias

from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.report_records import ReportHeader, RunEnded, checked_ended, checked_report

# Header, reports and end of a run, as a sink returns them. None: the run has not started, or has not ended.
StreamContents: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None]"
Answer: TypeAlias = "WindowReport | RunEnded"


class ReportNews(NamedTuple):
    """What one reading of a follower finds. reports: those that no reading before had, in order. is_new: this is a
    first reading, and they are all. header: None while the run has not begun."""

    header: ReportHeader | None
    reports: list[WindowReport]
    ended: RunEnded | None
    is_new: bool


class ReportFollower(abc.ABC):
    """Reads a run as it grows, each report once. For one thread at a time."""

    @abc.abstractmethod
    def read_new(self) -> ReportNews:
        """What is new, windows in order. It is a first reading again once another run is there, or what was read is
        there no more. Raises StreamError, and loses nothing by it: the next reading goes on."""

    def close(self) -> None:
        """Ends a connection, if there is one."""
        return


class ReportSink(abc.ABC):
    """Names a sink; small, and can be pickled into a job graph. run_id: None for whichever run is there, if it is the
    only one. Commands make one by `reports.sink_of`, and ask it for what differs."""

    folder: str | None = None  # that it is, which all workers have at this path, and which `shh show` shows

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How errors name it."""

    @abc.abstractmethod
    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run of the header, or continues it. Raises StreamError, and writes nothing, if the sink belongs to
        another run, or to the same run with another plan."""

    @abc.abstractmethod
    def follow(self, run_id: str | None = None) -> ReportFollower:
        """For who looks again and again: a look costs what is new, not what is there. Reads nothing yet."""

    @abc.abstractmethod
    def before(self, run_id: str, *, is_fresh: bool) -> StreamContents:
        """What is there when a run begins, or goes on. is_fresh: nobody else has this run id, so where a sink holds
        many runs there is nothing to look for. Raises StreamError, also for a place that no run can take."""

    def read(self, run_id: str | None = None) -> StreamContents:
        """What can be read of the run so far, windows in order. Raises StreamError, also for what is damaged."""
        with contextlib.closing(self.follow(run_id)) as follower:
            return follower.read_new()[:3]


class ReportWriter(abc.ABC):
    """A sink that is open for one run, in one process: the rule, over what each kind of sink can do.

    After an error it cannot be used any longer: close it, and open the sink again.
    name: how errors name the sink. header: of the run, as the sink holds it.
    """

    def __init__(self, name: str, header: ReportHeader) -> None:
        self.name, self.header = name, header

    def write(self, report: WindowReport) -> str:
        """Writes the report unless it is already there. Returns its key.

        Raises StreamError for a second answer, and for a report that is one too many for the end that is written, and
        ReportFileError for a report that must not be published.
        """
        return self._keep(checked_report(report))

    def end(self, ended: RunEnded) -> str:
        """Writes that the run has ended; some of its reports may still come. Returns the key. Raises StreamError if
        there are more reports than the end says, or another end."""
        return self._keep(checked_ended(ended))

    def _keep(self, record: Answer) -> str:
        if record.stream != self.header.stream:
            raise StreamError(
                "the report and the sink belong to different streams. Give each stream a sink of its own."
            )
        with self.errors():
            is_same = self.get(record)
            if is_same is None:
                self._check_count(record)
                is_same = self.put_first(record)
        if not is_same:
            raise StreamError(f"{self.name}: {_second(record)}")
        return key_of(record)

    def _check_count(self, record: Answer) -> None:
        """Raises StreamError if the reports would be more than the run has given by its end."""
        ended = record if isinstance(record, RunEnded) else self.ended()
        if ended is None:
            return
        held = self.count()
        if ended is not record and held >= ended.reports:
            raise StreamError(
                f"{self.name}: the run has ended with {ended.reports} reports, and all are there; nothing was"
                " written. Start a new run."
            )
        if held > ended.reports:
            # Another attempt at the run gave answers that this one does not give: the two have read other records.
            raise StreamError(
                f"{self.name}: it holds {held} reports, and the run ends with {ended.reports}; its end was not"
                " written. The log has lost or changed records since an earlier attempt, or a clock was set back. Bring"
                " the log back as it was; if that cannot be, this run ends here."
            )

    @abc.abstractmethod
    def get(self, record: Answer) -> bool | None:
        """Whether what is there under the key of this record is the same; None if there is nothing."""

    @abc.abstractmethod
    def put_first(self, record: Answer) -> bool:
        """Puts the record there, unless another worker was first. Whether what is there now is the same."""

    @abc.abstractmethod
    def count(self) -> int:
        """How many reports there are."""

    @abc.abstractmethod
    def ended(self) -> RunEnded | None:
        """The end that is there."""

    @abc.abstractmethod
    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turns what the sink raises into a StreamError of one line."""

    def commit(self) -> None:
        """Returns when everything written can be read and is durable. Raises StreamError; then nobody knows whether it
        was written: open the sink again to find out."""
        return

    def close(self) -> None:
        """Drops what was not committed. May be called again."""
        return


def key_of(record: Answer) -> str:
    """What identifies a record of a run, all of it public: the stream, and a time for a report alone."""
    return f"{record.stream}|{format_utc(record.window_start) if isinstance(record, WindowReport) else 'end'}"


def _second(record: Answer) -> str:
    if isinstance(record, RunEnded):
        return "the run has already ended, after another number of windows; nothing was written. Start a new run."
    return (
        f"the window {key_of(record)!r} already has another answer; nothing was written. Two runs share the run id, or"
        " the noise key or the log has changed. Start a new run, with a budget of its own."
    )


def check_same_run(place: str, found: ReportHeader, header: ReportHeader) -> None:
    """Raises StreamError unless both are the same report of the same run: run id, stream, plan and kind of windows."""
    if problem := found.unlike(header):
        raise StreamError(
            f"{place} belongs to another run: {problem}. Name another place, or give this run the same one to continue"
            " it."
        )
