"""What is read from a log, how its bytes are opened, what comes out, and the errors that several formats share.

A log is a local file, or one version of a stored one, of which only the needed ranges are fetched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dp_transforms.checks import on_one_line, time_zone
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.errors import InputError, LogError
from dp_transforms.logs import time_formats
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.stores.remote_files import SEQUENTIAL_BYTES, RemoteFileError, StoredFile, StoredReader

TIME_UNITS = ("s", "ms", "us", "iso")
CSV_SEPARATORS = "\t,;|:!#$%&*/=?@^_~"

# Large enough to make the work per block small, small enough that a block of long ids stays well under 1 GB.
MAX_BLOCK_ROWS = 1 << 20

_LEAST_BYTES, _LEAST_PACKED_BYTES = 20, 5  # of a row
_MAX_NAMES_SHOWN = 40
_NO_CHOICE: dict[str, Any] = {"csv_line_ends_in_cells": False, "facets": (), "stream_field": None}


TimeReading = tuple[str | None, str | None, str | None]  # unit, form and zone, see `times.parse_times`


class EventFileError(LogError, ValueError):
    """A log that cannot be read. One line that says why and gives the remedy. It never contains a cell."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{on_one_line(path)}: {problem}")
        self.problem = problem  # without the path
        self._arguments = (path, problem)

    def __reduce__(self) -> tuple[type[EventFileError], tuple[str, str]]:
        return type(self), self._arguments  # so that it can be pickled


@dataclasses.dataclass(frozen=True)
class EventFields:
    """The names of the fields of a log, and how they are read.

    item: one name, or several: then the values of these fields make one label (`logs.event_ids`).
    time_unit: how numbers (and text that holds numbers) count time: ``s``, ``ms`` or ``us`` since 1970 UTC; ``iso``:
        ISO 8601 text. None: typed time columns have their own unit, and text is ISO 8601.
    time_format: the form of times that are text, such as ``%d.%m.%Y %H:%M`` (see `time_formats`), in place of
        time_unit.
    time_zone: of times that have none, such as ``Europe/Berlin``; None: UTC. Numbers count from 1970 UTC in any case.
    csv_separator: one character between the cells of CSV files. None: a tab in files .tsv, else a comma.
    """

    user: str = "user"
    item: str | Sequence[str] = "item"
    time: str = "timestamp"
    time_unit: str | None = None
    time_format: str | None = None
    time_zone: str | None = None
    csv_separator: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.item, str):
            object.__setattr__(self, "item", self.item[0] if len(self.item) == 1 else tuple(self.item))
        if self.time_format is not None:
            time_formats.pattern_of(self.time_format)
            if self.time_unit is not None:
                raise InputError("time_format and time_unit", "must not be given together.", "Leave one out.")
        if self.time_zone is not None:
            time_zone(self.time_zone)
        separator = self.csv_separator
        if separator is not None and not (len(separator) == 1 and separator in CSV_SEPARATORS):
            raise InputError(
                "csv_separator",
                f"must be one character, a tab or one of {CSV_SEPARATORS.strip()}, got {separator!r}.",
            )
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise InputError("time_unit", f"must be one of {', '.join(TIME_UNITS)}, got {self.time_unit!r}.")
        if len(set(self.names)) < len(self.names) or not all(isinstance(name, str) and name for name in self.names):
            raise InputError(
                "user, item and time", "must name three different fields, and each further item another one."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of user, item and time, and then of further fields of the item."""
        item, *more = self.items or ("",)
        return self.user, item, self.time, *more

    @property
    def items(self) -> tuple[str, ...]:
        """The fields of the item."""
        return (self.item,) if isinstance(self.item, str) else tuple(self.item)

    @property
    def identity(self) -> dict[str, Any]:
        """By which a source that is read so is known again, as JSON values. What is no choice any more stays in it, so
        that it does not change."""
        return {**dataclasses.asdict(self), **_NO_CHOICE}

    @property
    def time_reading(self) -> TimeReading:
        """How `times.parse_times` reads the times."""
        return self.time_unit, self.time_format, self.time_zone

    def flag(self, name: str) -> str:
        """The option that sets the field called ``name``."""
        return {self.user: "--user-field", self.time: "--time-field"}.get(name, "--item-field")


class FileState(NamedTuple):
    """A local file when it was found: on which machine, its size, and when its content and its entry were changed last.
    A program can set the first of these times back, but not the second."""

    machine: str
    size: int
    written_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: str) -> FileState | None:
        """None if it is not there."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(socket.gethostname(), found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def fits(self, now: FileState) -> bool:
        """Whether a later state is that of the same content. Another machine may have a copy, with times of its own."""
        return now == self if now.machine == self.machine else now.size == self.size


def check_unchanged(chunks: Iterable[LogChunk]) -> None:
    """Raises EventFileError if a local file is not the one any more of which these are parts. A version of a stored one
    cannot change."""
    for path, seen in dict.fromkeys((chunk.path, chunk.seen) for chunk in chunks):
        if seen is not None and ((now := FileState.of(path)) is None or not seen.fits(now)):
            raise EventFileError(path, "it was changed while it was read. Use files that nobody writes to any more.")


@dataclasses.dataclass(frozen=True)
class LogChunk:
    """A part of a log that one worker reads: a file, a row group, or the lines that begin in a span of its bytes.

    format: ``parquet``, ``avro``, ``csv`` or ``json``.
    group: the row group of a Parquet file. span: of a text that was cut (`cut_chunks`), from where to where.
    events: the number of its rows if the file states it, else None.
    bytes: its share of the file's size.
    first_row: the number of rows of a Parquet file before it.
    stored: the version of the file, if the path is a URL. seen: a local file when it was found; what is read must still
        be that.
    unpacked: bytes of a row group with all columns, as its file states them; else 0.
    """

    path: str
    format: str
    group: int | None
    events: int | None
    bytes: int
    first_row: int = 0
    stored: StoredFile | None = None
    span: tuple[int, int] | None = None
    seen: FileState | None = None
    unpacked: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether its rows may take more bytes than it has, and it does not say how many."""
        return self.format == "avro" or self.path.lower().endswith(".gz")

    @property
    def rows_about(self) -> int:
        """Rather too many, where the file does not state it."""
        if self.events is not None:
            return self.events
        return self.bytes // (_LEAST_PACKED_BYTES if self.is_packed else _LEAST_BYTES)


class ReadBlock(NamedTuple):
    """A block of rows. rejected: those that were left out; `RejectedEvents.source` is the path."""

    batch: EventBatch
    rejected: tuple[RejectedEvents, ...] = ()

    @property
    def rows(self) -> int:
        """How many there were, with the rejected ones."""
        return len(self.batch) + sum(len(part.positions) for part in self.rejected)


def check_fields_present(path: str, available: Iterable[str], fields: EventFields, *, has_schema: bool) -> None:
    """Raises EventFileError unless each of the fields is there exactly once.

    has_schema: the names come from a schema, and the error lists them. Those in the first line of a text may be cells.
    """
    names = list(available)
    for name in fields.names:
        if names.count(name) > 1:
            raise EventFileError(path, f"it has {names.count(name)} fields called {name!r}. Rename all but one.")
        if name not in names:
            shown = ", ".join(on_one_line(other, most=80) for other in names[:_MAX_NAMES_SHOWN])
            there = f"its fields are: {shown}" if has_schema else "its first line must name the fields"
            raise EventFileError(path, f"no field {name!r}; {there}. Name one with {fields.flag(name)}.")


def damaged_error(path: str, format_name: str, rows_read: int | None = None) -> EventFileError:
    """rows_read: how many rows could be read before the damage; None: nothing was read."""
    where = "" if rows_read is None else f" after row {rows_read}"
    return EventFileError(
        path, f"it is damaged{where}, or not in {format_name} format. Write it again, or leave it out of the sources."
    )


@contextlib.contextmanager
def opened_log(path: str, stored: StoredFile | None, ahead: int = SEQUENTIAL_BYTES) -> Iterator[pa.NativeFile]:
    """A file of Arrow, whose name may be any bytes. A fault of the store becomes an EventFileError, also where a
    library between has made another error of it: the log itself may be good.

    ahead: so many bytes of a stored file are fetched at once.
    """
    source = None if stored is None else StoredReader(stored, ahead)
    file = pa.OSFile(os.fsencode(path), "rb") if source is None else pa.PythonFile(source, mode="r")
    try:
        yield file
    except Exception as error:
        fault = getattr(source, "failure", None)
        if isinstance(fault, RemoteFileError):
            raise EventFileError(path, f"it cannot be read: {fault.strerror}.") from None
        raise error
    finally:
        with contextlib.suppress(OSError, pa.ArrowException):
            file.close()


def log_size(path: str, stored: StoredFile | None) -> int:
    return os.path.getsize(path) if stored is None else stored.size
