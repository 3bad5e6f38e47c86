"""What a sink of reports is, and the one rule of all sinks: the first answer for a window of a run is kept for ever.

The same answer again, as after the death of a worker, changes nothing. Another answer for the same window would be a
second release that is not accounted for: it raises StreamError and is not written (docs/guarantee.md, "Retry and
replay").

The rule is `ReportWriter`, over what any place can do (`Place`): get, put first, count. A reader is a follower.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple, TypeAlias

from dp_transforms.core.window_report import RunEnded, WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.json_lines import encode_report
from dp_transforms.reports.report_records import (
    ReportFileError,
    ReportHeader,
    checked_report,
    in_file_order,
    is_unicode,
)

# Header, reports and end of a run, as a sink returns them. None: the run has not started, or has not ended.
StreamContents: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None]"
Answer: TypeAlias = "WindowReport | RunEnded"
TopicRecord: TypeAlias = "ReportHeader | WindowReport | RunEnded"
NewWindows: TypeAlias = "tuple[ReportHeader | None, dict[str, WindowReport], RunEnded | None]"


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

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How errors name it."""

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """What `sink_of` makes it of."""

    @property
    def folder(self) -> str | None:
        """The folder that it is, which all workers have at this path, and which `shh show` shows."""
        return None

    def check_can_be_written(self, *, is_local: bool) -> None:
        """Before a job. is_local: whether all workers are on this machine. Raises ValueError, whose message goes behind
        the name of an option."""
        return

    @abc.abstractmethod
    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run of the header, or continues it. Raises StreamError, and writes nothing, if the sink belongs to
        another run, or to the same run with another plan."""

    @abc.abstractmethod
    def follow(self, run_id: str | None = None) -> ReportFollower:
        """For who looks again and again: a look costs what is new, not what is there. Reads nothing yet."""

    def before(self, run_id: str, *, is_fresh: bool) -> StreamContents:
        """What is there when a run begins, or goes on. is_fresh: nobody else has this run id, so where a sink holds
        many runs there is nothing to look for. Raises StreamError, also for a place that no run can take."""
        return self.read(run_id)

    def read(self, run_id: str | None = None) -> StreamContents:
        """What can be read of the run so far, windows in order. Raises StreamError, also for what is damaged."""
        with contextlib.closing(self.follow(run_id)) as follower:
            return follower.read_new()[:3]


class Place(abc.ABC):
    """Where the answers of one run lie, for one process: what a sink must be able to do for `ReportWriter`.

    A record is a report or the end of the run; its key is `key_of`. After an error a place cannot be used any longer.
    name: how errors name it.
    """

    name: str

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

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turns what the place raises into a StreamError of one line."""
        return contextlib.nullcontext()

    def commit(self) -> None:
        """Returns when all that was put can be read and is durable, as it is at once where nothing else is said."""
        return

    def close(self) -> None:
        """Drops what was not committed. May be called again."""
        return


class ReportWriter:
    """A sink that is open for one run, in one process: the rule, over any `Place`.

    After an error it cannot be used any longer: close it, and open the sink again.
    place: for this run alone. header: of the run, as the sink holds it.
    """

    def __init__(self, place: Place, header: ReportHeader) -> None:
        self.place = place
        self._header = header

    def write(self, report: WindowReport) -> str:
        """Writes the report unless it is already there. Returns its key.

        Raises StreamError for a second answer, and for a report that is one too many for the end that is written, and
        ReportFileError for a report that must not be published.
        """
        check_stream(report.stream, self._header)
        return self._keep(checked_report(report))

    def end(self, ended: RunEnded) -> str:
        """Writes that the run has ended; some of its reports may still come. Returns the key. Raises StreamError if
        there are more reports than the end says, or another end."""
        check_stream(ended.stream, self._header)
        return self._keep(parse_ended(ended_fields(ended)))

    def _keep(self, record: Answer) -> str:
        with self.place.errors():
            is_same = self.place.get(record)
            if is_same is None:
                self._check_count(record)
                is_same = self.place.put_first(record)
        if not is_same:
            raise StreamError(f"{self.place.name}: {_second(record)}")
        return key_of(record)

    def _check_count(self, record: Answer) -> None:
        """Raises StreamError if the reports would be more than the run has given by its end."""
        ended = record if isinstance(record, RunEnded) else self.place.ended()
        if ended is None:
            return
        held = self.place.count()
        if ended is not record and held >= ended.reports:
            raise StreamError(
                f"{self.place.name}: the run has ended with {ended.reports} reports, and all are there; nothing was"
                " written. Start a new run."
            )
        if held > ended.reports:
            # Another attempt at the run gave answers that this one does not give: the two have read other records.
            raise StreamError(
                f"{self.place.name}: it holds {held} reports, and the run ends with {ended.reports}; its end was not"
                " written. The log has lost or changed records since an earlier attempt, or a clock was set back. Bring"
                " the log back as it was; if that cannot be, this run ends here."
            )

    def commit(self) -> None:
        """Returns when everything written can be read and is durable. Raises StreamError; then nobody knows whether it
        was written: open the sink again to find out."""
        with self.place.errors():
            self.place.commit()

    def close(self) -> None:
        """Drops what was not committed. May be called again."""
        self.place.close()


class HeldRun(Place):
    """A run in memory: what a topic tells of it, or what is to be written at once. keeps: the reports too, and not
    their digests alone."""

    def __init__(self, name: str, *, keeps: bool = False) -> None:
        self.name = name
        self.header: ReportHeader | None = None
        self.reports: list[WindowReport] = []
        self._answers: dict[str, bytes] = {}
        self._ended: RunEnded | None = None
        self._keeps = keeps

    def get(self, record: Answer) -> bool | None:
        if isinstance(record, RunEnded):
            return None if self._ended is None else self._ended == record
        known = self._answers.get(key_of(record))
        return None if known is None else known == _digest(record)

    def put_first(self, record: Answer) -> bool:
        if (is_same := self.get(record)) is not None:
            return is_same
        if isinstance(record, RunEnded):
            self._ended = record
        else:
            self._answers[key_of(record)] = _digest(record)
            self.reports += [record] if self._keeps else []
        return True

    def count(self) -> int:
        return len(self._answers)

    def ended(self) -> RunEnded | None:
        return self._ended


def _digest(report: WindowReport) -> bytes:
    """Of the whole content of a report, whatever its format."""
    return hashlib.sha256(encode_report(report).encode()).digest()


class WindowFollower(ReportFollower):
    """Of a sink whose windows have names, as files. No window is ever replaced, so each is read once.

    read_new: header, end, and by name the windows that are not among those that are known.
    """

    def __init__(self, read_new: Callable[[Set[str]], NewWindows]) -> None:
        self._read_new = read_new
        self._header: ReportHeader | None = None
        self._known: set[str] = set()

    def read_new(self) -> ReportNews:
        header, found, ended = self._read_new(self._known)
        is_new = self._header is None or header not in (None, self._header)  # a run may be away for a while
        if is_new and self._known:  # another run has taken its place
            self._known = set()
            header, found, ended = self._read_new(self._known)
        self._header = header or self._header
        self._known.update(found)
        return ReportNews(header, in_file_order(found.values()), ended, is_new)


def key_of(record: TopicRecord) -> str:
    """What identifies a record of a run, all of it public: the stream, and a time for a report alone."""
    if isinstance(record, WindowReport):
        return f"{record.stream}|{format_utc(record.window_start)}"
    return f"{record.stream}|{'end' if isinstance(record, RunEnded) else 'header'}"


def check_stream(stream: str, header: ReportHeader) -> None:
    if stream != header.stream:
        raise StreamError("the report and the sink belong to different streams. Give each stream a sink of its own.")


def _second(record: Answer) -> str:
    if isinstance(record, RunEnded):
        return "the run has already ended, after another number of windows; nothing was written. Start a new run."
    return (
        f"the window {key_of(record)!r} already has another answer; nothing was written. Two runs share the run id, or"
        " the noise key or the log has changed. Start a new run, with a budget of its own."
    )


def check_same_run(place: str, found: ReportHeader, header: ReportHeader) -> None:
    """Raises StreamError unless both are the same report of the same run: run id, stream, plan and kind of windows."""
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
    if found.of_blocks != header.of_blocks:
        raise StreamError(
            f"{place} has the report of the {found.unit}s of run {header.run_id!r}, and this is that of its"
            f" {header.unit}s. Name another place."
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
