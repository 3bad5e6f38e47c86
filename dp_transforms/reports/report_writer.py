"""What a sink and its writer are, and the errors that all sinks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.records import ReportFileError, ReportHeader, is_unicode

# Header, reports and end of a run, as a sink returns them. None: the run has not started, or has not ended.
StreamContents: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None]"
# The same of one reading of a follower, with the reports that no reading before had; and whether this is a first
# reading, so that they are all.
ReportNews: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None, bool]"


class ReportWriter(Protocol):
    """A sink that is open for one run, in one process.

    After an error it cannot be used any longer: close it, and open the sink again.
    """

    def write(self, report: WindowReport) -> str:
        """Writes the report unless it is already there. Returns its key. Raises StreamError for a second answer, and
        for a report that is one too many for the end that is written."""
        ...

    def end(self, ended: RunEnded) -> str:
        """Writes that the run has ended; some of its reports may still come. Returns the key. Raises StreamError if
        there are more reports than the end says."""
        ...

    def commit(self) -> None:
        """Returns when everything written can be read and is durable."""
        ...

    def close(self) -> None:
        """Drops what was not committed. May be called again."""
        ...


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


def second_end(place: str) -> StreamError:
    return StreamError(
        f"{place}: the run has already ended, after another number of windows; nothing was written. Start a new run."
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


def check_not_over(place: str, ended: RunEnded | None, held: int) -> None:
    """For a report that the sink does not have yet: raises StreamError if all are there that the end speaks of."""
    if ended is not None and held >= ended.reports:
        raise StreamError(
            f"{place}: the run has ended with {ended.reports} reports, and all are there; nothing was written. Start a"
            " new run."
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
