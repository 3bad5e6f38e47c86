"""Reports as a folder: one report file per window with heavy items, which appears whole and is never replaced.

The first answer for a window of a run is kept for ever. The same answer again, as after the death of a worker, changes
nothing. Another answer for the same window would be a second release that is not accounted for: it raises StreamError
and is not written (docs/guarantee.md, "Retry and replay").

    header.json                              the run: a report file without windows
    2017-10-01T030000Z-1f0c2a9b.jsonl        a window, by its start and a digest of the name of the stream
    ended.json                               the run has ended

A file is put whole under a name that is free, on a disk and in a store (`dp_transforms.stores`). So one of two workers
is first, and a reader sees a whole file or none. A worker that dies leaves at most a hidden draft.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.files import read_report_file, report_file_bytes
from dp_transforms.reports.report_records import (
    EndedFields,
    ReportFileError,
    ReportHeader,
    RunEnded,
    checked_ended,
    checked_report,
    decode_json,
    in_file_order,
)
from dp_transforms.stores.files import exists, read_file, write_file
from dp_transforms.stores.local_files import sync_folder
from dp_transforms.stores.remote_files import RemoteFileError, is_remote, list_beginning

# Header, reports and end of a run. None: the run has not started, or has not ended.
StreamContents: TypeAlias = "tuple[ReportHeader | None, list[WindowReport], RunEnded | None]"

_HEADER, _ENDED = "header.json", "ended.json"
_WINDOW = re.compile(r"\d{4}-\d\d-\d\dT\d{6}(\.\d{6})?Z-[0-9a-f]{8}\.jsonl")
_MAX_ENDED_BYTES = 1 << 16


class _EndedFile(msgspec.Struct, forbid_unknown_fields=True):
    ended: EndedFields


@dataclasses.dataclass(frozen=True)
class ReportFolder:
    """Names a folder of reports; small, and can be pickled into a job graph.

    path: of a folder that all workers see under one path, on a file system with hard links; or its URL in a store.
        Created if it is missing; holds one run of one stream.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not os.fspath(self.path):
            raise ValueError(f"path of a report folder must be a path that is not empty, got {self.path!r}.")
        is_remote(self.path)  # refuses a URL that cannot be used
        object.__setattr__(self, "path", os.fspath(self.path))

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"the folder {self.path!r}"

    @property
    def is_begun(self) -> bool:
        """Whether a run has begun to write into it. Raises OSError for a store that does not say."""
        return exists(self.place(_HEADER))

    def place(self, name: str) -> str:
        """The path or the URL of one of its files."""
        return f"{self.path.rstrip('/')}/{name}"

    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run of the header, or continues it. Raises StreamError, and writes nothing, if the folder holds
        another run, the same run with another plan, or other files."""
        with self.errors():
            if not is_remote(self.path):
                pathlib.Path(self.path).mkdir(mode=0o755, parents=True, exist_ok=True)
            if not self.is_begun:
                self.check_empty()
                self.put_first(_HEADER, report_file_bytes(header, [], "json"))
            found, _ = read_report_file(self.place(_HEADER))
        check_same_run(self.name, found, header)
        # The header of the folder goes into all files: a later release may word the guarantee in another way.
        return ReportWriter(self, found)

    def follow(self, run_id: str | None = None) -> ReportFollower:
        """For who looks again and again: a look costs what is new, not what is there. Reads nothing yet.

        run_id: None for whichever run is there.
        """
        return ReportFollower(self, run_id)

    def read(self, run_id: str | None = None) -> StreamContents:
        """What can be read of the run so far, windows in order. Raises StreamError, also for what is damaged, and for
        other files. A path that is missing is still to be made, or a mount of the workers."""
        return self.follow(run_id).read_new()

    def window_names(self) -> list[str]:
        """Of the files of windows, in their order."""
        return sorted(name for name in self._names() if _WINDOW.fullmatch(name))

    def read_window(self, name: str, header: ReportHeader) -> WindowReport:
        """Raises ReportFileError for a file that is not of this run, or not of this window."""
        found, held = read_report_file(self.place(name))
        is_own = found == header and len(held) == 1 and held[0].stream == header.stream
        if not is_own or name != _window_name(held[0]):
            raise ReportFileError(f"{self.place(name)!r} is not a window of this run. Move it away.")
        return held[0]

    def read_ended(self) -> RunEnded | None:
        """The end that is there."""
        place = self.place(_ENDED)
        if not exists(place):
            return None
        found = decode_json(read_file(place, _MAX_ENDED_BYTES), _EndedFile, _MAX_ENDED_BYTES)
        return checked_ended(msgspec.structs.astuple(found.ended))

    def put_first(self, name: str, content: bytes) -> None:
        """Makes one of the files, unless another worker was first. The file and its name are then stored."""
        place = self.place(name)
        if not exists(place):
            with contextlib.suppress(FileExistsError):
                write_file(place, lambda file: file.write(content))
        if not is_remote(place):
            sync_folder(place)  # after another worker, too, which may have died before it did

    def _names(self) -> list[str]:
        if not is_remote(self.path):
            return os.listdir(self.path) if os.path.isdir(self.path) else []
        folder = self.place("")
        return [file.url.removeprefix(folder) for file in list_beginning(folder)]

    def check_empty(self) -> None:
        """Raises StreamError if there are other files. A header that another worker has just written is not one."""
        names = self._names()
        if _HEADER not in names and any(not name.startswith(".") for name in names):
            raise StreamError(f"{self.name} holds other files. Name a new or an empty folder.")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of files into a StreamError of one line."""
        try:
            yield
        except ReportFileError as error:
            raise StreamError(f"{self.name} cannot be used: {error}") from error
        except OSError as error:
            remedy = " All workers must be able to write to it. Its file system must have hard links and free space."
            if isinstance(error, RemoteFileError):  # which has a remedy of its own
                remedy = ""
            raise StreamError(f"{self.name} cannot be used: {error.strerror}.{remedy}") from error


class ReportFollower:
    """Reads a run as it grows. No file is ever replaced, so each is read once. For one thread at a time.

    known: names of the windows that were read.
    """

    def __init__(self, folder: ReportFolder, run_id: str | None) -> None:
        self._folder, self._run_id = folder, run_id
        self.known: set[str] = set()

    def read_new(self) -> StreamContents:
        """Header, reports that no reading before had, windows in order, and end. Raises StreamError, and loses nothing
        by it: the next reading goes on."""
        with self._folder.errors():
            if not self._folder.is_begun:
                self._folder.check_empty()
                return None, [], None
            header, _ = read_report_file(self._folder.place(_HEADER))
            asked = dataclasses.replace(header, run_id=self._run_id or header.run_id)
            check_same_run(self._folder.name, header, asked)
            ended = self._folder.read_ended()  # before the reports, so that none is missed once the end is seen
            names = [name for name in self._folder.window_names() if name not in self.known]
            reports = [self._folder.read_window(name, header) for name in names]
        self.known.update(names)
        return header, in_file_order(reports), ended


class ReportWriter:
    """A folder that is open for one run. All that it has written is durable, and can be read. header: of the run, as
    the folder holds it."""

    def __init__(self, folder: ReportFolder, header: ReportHeader) -> None:
        self._folder, self.header = folder, header

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

    def _keep(self, record: WindowReport | RunEnded) -> str:
        folder = self._folder
        if record.stream != self.header.stream:
            raise StreamError(
                "the report and the folder belong to different streams. Give each stream a folder of its own."
            )
        held: WindowReport | RunEnded | None
        with folder.errors():
            if isinstance(record, RunEnded):
                name, content = _ENDED, json.dumps({"ended": record._asdict()}, ensure_ascii=False).encode() + b"\n"
            else:
                name, content = _window_name(record), report_file_bytes(self.header, [record], "json")
            if not exists(folder.place(name)):
                self._check_count(record)
            folder.put_first(name, content)
            held = folder.read_ended() if name == _ENDED else folder.read_window(name, self.header)
        if held != record:
            raise StreamError(f"{folder.name}: {_second(record)}")
        return key_of(record)

    def _check_count(self, record: WindowReport | RunEnded) -> None:
        """Raises StreamError if the reports would be more than the run has given by its end."""
        ended = record if isinstance(record, RunEnded) else self._folder.read_ended()
        if ended is None:
            return
        held, name = len(self._folder.window_names()), self._folder.name
        if ended is not record and held >= ended.reports:
            raise StreamError(
                f"{name}: the run has ended with {ended.reports} reports, and all are there; nothing was written."
                " Start a new run."
            )
        if held > ended.reports:
            # Another attempt at the run gave answers that this one does not give: the two have read other records.
            raise StreamError(
                f"{name}: it holds {held} reports, and the run ends with {ended.reports}; its end was not written. The"
                " log has lost or changed records since an earlier attempt, or a clock was set back. Bring the log back"
                " as it was; if that cannot be, this run ends here."
            )


def key_of(record: WindowReport | RunEnded) -> str:
    """What identifies a record of a run, all of it public: the stream, and a time for a report alone."""
    return f"{record.stream}|{format_utc(record.window_start) if isinstance(record, WindowReport) else 'end'}"


def check_same_run(place: str, found: ReportHeader, header: ReportHeader) -> None:
    """Raises StreamError unless both are the same report of the same run: run id, stream, plan and kind of windows."""
    if problem := found.unlike(header):
        raise StreamError(
            f"{place} belongs to another run: {problem}. Name another place, or give this run the same one to continue"
            " it."
        )


def _second(record: WindowReport | RunEnded) -> str:
    if isinstance(record, RunEnded):
        return "the run has already ended, after another number of windows; nothing was written. Start a new run."
    return (
        f"the window {key_of(record)!r} already has another answer; nothing was written. Two runs share the run id, or"
        " the noise key or the log has changed. Start a new run, with a budget of its own."
    )


def _window_name(report: WindowReport) -> str:
    stream = hashlib.sha256(report.stream.encode()).hexdigest()[:8]
    return f"{format_utc(report.window_start).replace(':', '')}-{stream}.jsonl"
