"""What a sink of reports is, and the one rule of all sinks: the first answer for a window of a run is kept for ever.

The same answer again, as after the death of a worker, changes nothing. Another answer for the same window would be a
second release that is not accounted for: it raises StreamError and is not written (docs/guarantee.md, "Retry and
replay").
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.records import ReportFileError, ReportHeader, checked_report, in_file_order, is_unicode

_MOST_NAMED = 5
Name = TypeVar("Name", bound=Hashable)
# Header, reports and end of a run, as a sink returns them. None: the run has not started, or has not ended.
StreamContents: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None]"
TopicRecord: TypeAlias = "ReportHeader | WindowReport | RunEnded"
NewWindows: TypeAlias = "tuple[ReportHeader | None, dict[Name, WindowReport], RunEnded | None]"


class ReportNews(NamedTuple):
    """What one reading of a follower finds. reports: those that no reading before had, in order. is_new: this is a
    first reading, and they are all. header: None while the run has not begun."""

    header: ReportHeader | None
    reports: list[WindowReport]
    ended: RunEnded | None
    is_new: bool


class ReportFollower(Protocol):
    """Reads a run as it grows, each report once. For one thread at a time."""

    def read_new(self) -> ReportNews:
        """What is new, windows in order. It is a first reading again once another run is there, or what was read is
        there no more. Raises StreamError, and loses nothing by it: the next reading goes on."""
        ...

    def close(self) -> None:
        """Ends a connection, if there is one."""
        ...


class ReportSink(Protocol):
    """Names a sink; small, and can be pickled into a job graph."""

    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run of the header, or continues it. Raises StreamError, and writes nothing, if the sink belongs to
        another run, or to the same run with another plan."""
        ...

    def read(self, run_id: str) -> StreamContents:
        """What can be read of the run so far, windows in order. Raises StreamError."""
        ...

    def follow(self, run_id: str) -> ReportFollower:
        """For who looks again and again: a look costs what is new, not what is there. Reads nothing yet."""
        ...

    def ended(self, run_id: str) -> RunEnded | None:
        """The end of the run, once it is written: cheaper than `read`. Raises StreamError."""
        ...


class ReportWriter(abc.ABC):
    """A sink that is open for one run, in one process: the rule, over what a place must be able to do.

    After an error it cannot be used any longer: close it, and open the sink again.
    place: how errors name the sink. header: of the run, as the sink holds it.
    """

    def __init__(self, place: str, header: ReportHeader) -> None:
        self._place = place
        self._header = header

    def write(self, report: WindowReport) -> str:
        """Writes the report unless it is already there. Returns its key.

        Raises StreamError for a second answer, and for a report that is one too many for the end that is written, and
        ReportFileError for a report that must not be published.
        """
        check_stream(report.stream, self._header)
        report = checked_report(report)
        key = report_key(report)
        with self._errors():
            is_same = self._find(report, key)
            if is_same is None:
                ended = self._ended()
                if ended is not None and self._count() >= ended.reports:
                    raise StreamError(
                        f"{self._place}: the run has ended with {ended.reports} reports, and all are there; nothing was"
                        " written. Start a new run."
                    )
                is_same = self._put(report, key)
        if not is_same:
            raise second_answer(self._place, key)
        return key

    def end(self, ended: RunEnded) -> str:
        """Writes that the run has ended; some of its reports may still come. Returns the key. Raises StreamError if
        there are more reports than the end says, or another end."""
        check_stream(ended.stream, self._header)
        ended = parse_ended(ended_fields(ended))
        with self._errors():
            if self._ended() is None:
                check_end(self._place, ended, self._count())
            is_same = self._put_end(ended, end_key(ended.stream)) == ended
        if not is_same:
            raise StreamError(
                f"{self._place}: the run has already ended, after another number of windows; nothing was written. Start"
                " a new run."
            )
        return end_key(ended.stream)

    @abc.abstractmethod
    def commit(self) -> None:
        """Returns when everything written can be read and is durable."""

    @abc.abstractmethod
    def close(self) -> None:
        """Drops what was not committed. May be called again."""

    @abc.abstractmethod
    def _errors(self) -> contextlib.AbstractContextManager[None]:
        """Turns what the place raises into a StreamError of one line."""

    @abc.abstractmethod
    def _find(self, report: WindowReport, key: str) -> bool | None:
        """Whether the answer that is there for this window is this report; None if there is none."""

    @abc.abstractmethod
    def _put(self, report: WindowReport, key: str) -> bool:
        """Puts the report in its place, unless another worker was first. Whether the one that is there is the same."""

    @abc.abstractmethod
    def _count(self) -> int:
        """How many reports of the run there are."""

    @abc.abstractmethod
    def _ended(self) -> RunEnded | None:
        """The end of the run that is there."""

    @abc.abstractmethod
    def _put_end(self, ended: RunEnded, key: str) -> RunEnded:
        """Puts the end in its place, unless there is one. Returns the one that is there."""


class WindowSink(Generic[Name]):
    """The readings of a sink whose windows have names, as files or keys."""

    def read_new(self, known: Set[Name], run_id: str | None = None) -> NewWindows[Name]:
        """Header, end, and by name the windows that are not `known`, in the order of time; run_id: None for whichever
        run is there. No window is ever replaced, so one that was read need not be read again."""
        raise NotImplementedError

    def read(self, run_id: str | None = None) -> StreamContents:
        """All that can be read. Raises StreamError if it is another run than ``run_id``, or damaged."""
        header, found, ended = self.read_new(frozenset(), run_id)
        return header, in_file_order(found.values()), ended

    def follow(self, run_id: str | None = None) -> WindowFollower[Name]:
        """Reads what is new, again and again."""
        return WindowFollower(lambda known: self.read_new(known, run_id))


class WindowFollower(Generic[Name]):
    """A `ReportFollower` that reads each window of such a sink once. read_new: as of `WindowSink`, for one run."""

    def __init__(self, read_new: Callable[[Set[Name]], NewWindows[Name]]) -> None:
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
        return ReportNews(header, in_file_order(found.values()), ended, is_new)

    def close(self) -> None: ...


def report_key(report: WindowReport) -> str:
    """Stream and window, which identify a report of a run."""
    return f"{report.stream}|{format_utc(report.window_start)}"


def end_key(stream: str) -> str:
    """The key of the end of a run. It is not a time, so no report has it."""
    return f"{stream}|end"


def check_stream(stream: str, header: ReportHeader) -> None:
    if stream != header.stream:
        raise StreamError("the report and the sink belong to different streams. Give each stream a sink of its own.")


def second_answer(place: str, key: str) -> StreamError:
    """key: stream and window, both public."""
    return StreamError(
        f"{place}: the window {key!r} already has another answer; nothing was written. Two runs share the run id, or"
        " the noise key or the log has changed. Start a new run, with a budget of its own."
    )


def check_end(place: str, ended: RunEnded, held: int) -> None:
    """held: how many reports the sink has. Raises StreamError if they are more than the run has given by its end.

    Then another attempt at the run gave answers that this one does not give, so the two have read different records.
    """
    if held > ended.reports:
        raise StreamError(
            f"{place}: it holds {held} reports, and the run ends with {ended.reports}; its end was not written. The log"
            " has lost or changed records since an earlier attempt, or a clock was set back. Bring the log back as it"
            " was; if that cannot be, this run ends here."
        )


def check_same_run(place: str, found: ReportHeader, header: ReportHeader) -> None:
    """Raises StreamError unless both are the same run: run id, stream and plan."""
    for name in ("run_id", "stream"):
        here, given = getattr(found, name), getattr(header, name)
        if here != given:
            raise StreamError(
                f"{place} belongs to another run: its {name} is {here!r}, and this run has {given!r}. Name another"
                " place, or give this run the same one to continue it."
            )
    if found.plan != header.plan:
        raise StreamError(
            f"{place} belongs to run {header.run_id!r} with another plan. A run keeps its plan to the end: start a new"
            " run, with a new run id and another place."
        )


def only_run(place: str, run_ids: Sequence[str]) -> str | None:
    """The only run of a sink that several can share; None if there is none. Raises StreamError if there are more."""
    if len(run_ids) > 1:
        named = ", ".join(on_one_line(repr(each), most=100) for each in run_ids[:_MOST_NAMED])
        more = ", ..." if len(run_ids) > _MOST_NAMED else ""
        raise StreamError(f"{place} has {len(run_ids)} runs: {named}{more}. Choose one with --run-id.")
    return run_ids[0] if run_ids else None


def ended_fields(ended: RunEnded) -> dict[str, Any]:
    return {
        "stream": str(ended.stream),
        "windows": int(ended.windows),
        "reports": int(ended.reports),
    }


def parse_ended(fields: Any) -> RunEnded:
    """Inverse of `ended_fields`. Raises ReportFileError."""
    if not (
        isinstance(fields, Mapping)
        and set(fields) == set(RunEnded._fields)
        and is_unicode(fields["stream"])
        and all(type(fields[name]) is int and 0 <= fields[name] < 2**63 for name in ("windows", "reports"))
    ):
        raise ReportFileError("the record of the end of the run must have a stream, windows and reports.")
    return RunEnded(**fields)
