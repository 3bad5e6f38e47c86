"""Reports as a table of a database: PostgreSQL or SQLite. A row for each heavy item, and a view of the newest.

    NAME              an item of a window: (run_id, window_start, rank) is its key
    NAME_windows      a window with heavy items: (run_id, window_start) is its key
    NAME_runs         a run: run_id is its key; its header, and its end once it has ended
    NAME_top_now      view: the items of the newest window of each stream

A window is written in one transaction with all of its items, under its key. On PostgreSQL the row of the run is locked
first, on SQLite the whole file: so one of two workers is first, the other finds the answer, and no reader
sees a part of one.

This module loads no database library before it is used (`table_rows` does).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from dp_transforms.checks import shown
from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.report_records import ReportHeader
from dp_transforms.reports.report_writer import (
    Answer,
    NewWindows,
    Place,
    ReportSink,
    ReportWriter,
    WindowFollower,
    check_same_run,
    only_run,
)
from dp_transforms.stores.databases import DEFAULT_TABLE, POSTGRESQL, database_of, has_password, shown_url
from dp_transforms.stores.local_files import check_folder

if TYPE_CHECKING:
    import sqlalchemy as sa

    from dp_transforms.reports.table_rows import TableRows

_URL = re.compile(r"postgresql(\+psycopg)?://|sqlite:///")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")  # with what is appended PostgreSQL has no more than 63 characters


@dataclasses.dataclass(frozen=True)
class ReportTable(ReportSink):
    """A table, made with its view if it is missing. Several runs can share it.

    url: ``postgresql://user@host/database`` or ``sqlite:///FILE``; ``sqlite:////FILE`` from the root. It
        travels in the job graph, so leave the password to a file that every worker has
        (``?passfile=/run/secrets/pgpass``, or what libpq looks for by itself).
    table: small letters, digits and underscores, at most 48.
    """

    url: str = dataclasses.field(repr=False)
    table: str = DEFAULT_TABLE

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not _URL.match(self.url):
            raise ValueError(
                "url of a report table must be postgresql://HOST/DATABASE or sqlite:///FILE. DuckDB reads reports that"
                " are Parquet files (docs/stores.md)."
            )
        if not isinstance(self.table, str) or not _NAME.fullmatch(self.table):
            raise ValueError(
                "table must be a name of at most 48 small letters, digits and underscores, and must not begin with a"
                f" digit, got {shown(self.table)}."
            )
        if self.file in ("", ":memory:"):
            raise ValueError("url of a report table must name a file, such as sqlite:///reports.db.")

    @property
    def database(self) -> str:
        """``postgresql`` or ``sqlite``."""
        return database_of(self.url) or ""

    @property
    def file(self) -> str | None:
        """The path of the database; None on a server."""
        return None if self.database == POSTGRESQL else self.url.partition("://")[2].removeprefix("/")

    @property
    def name(self) -> str:
        return f"the table {self.table!r} of {self.address!r}"

    @property
    def address(self) -> str:
        return shown_url(self.url)

    def show_command(self, run_id: str) -> str:
        return f"shh show {self.address} --table {self.table} --run-id {run_id}"

    def check_can_be_written(self, *, is_local: bool) -> None:
        """A password in the URL travels in the job graph, which a cluster shows."""
        if self.file is not None and not is_local:
            raise ValueError(
                f"{self.url} is a file, and the locks of a database need a disk that no other machine has. Give"
                " --output postgresql://HOST/DATABASE, or a folder."
            )
        if has_password(self.url) and not is_local:
            raise ValueError(
                "must not hold a password where a cluster runs the job, which shows it. Put it into a file that every"
                " worker has: postgresql://USER@HOST/DATABASE?passfile=/run/secrets/pgpass"
            )
        if self.file is not None:
            folder = os.path.dirname(os.path.abspath(self.file))
            if not os.path.isdir(folder):
                raise ValueError(f"{self.url}: the folder {folder} does not exist. Create it, or name another one.")
            check_folder(folder)

    def with_absolute_path(self) -> ReportTable:
        """The same for workers, which have another current folder."""
        if self.file is None:
            return self
        return dataclasses.replace(self, url=f"{self.database}:///{os.path.abspath(self.file)}")

    def rows(self, *, writes: bool = False) -> TableRows:
        from dp_transforms.reports.table_rows import TableRows

        return TableRows(self, writes=writes)

    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run, or continues it. Raises StreamError if the table has another run of this id."""
        rows = self.rows(writes=True)
        rows.check_names(header)
        with rows.errors():
            rows.make()
            with rows.transaction() as connection:
                found = rows.put_first(connection, header)
        check_same_run(self.name, found, header)
        return ReportWriter(TablePlace(rows, found), found)

    def follow(self, run_id: str | None = None) -> WindowFollower[int]:
        return WindowFollower(lambda known: self._read_new(known, run_id))

    def _read_new(self, known: Set[int], run_id: str | None) -> NewWindows[int]:
        """The name of a window is its start. All of it is as it is at one moment."""
        with self._reading() as found:
            if found is None:
                return None, {}, None
            rows, connection = found
            run_id = only_run(self.name, rows.run_ids(connection)) if run_id is None else run_id
            run = None if run_id is None else rows.run(connection, run_id)
            if run_id is None or run is None:
                return None, {}, None
            if not known:
                reports = rows.reports(connection, run_id)
            elif rows.count(connection, run_id) == len(known):  # no window is ever removed
                reports = []
            else:
                reports = rows.reports(connection, run_id, rows.window_starts(connection, run_id) - known)
            return run.header, {report.window_start: report for report in reports}, run.ended

    def run_ids(self) -> list[str]:
        """The runs that the table has, in alphabetical order. Raises StreamError."""
        with self._reading() as found:
            return [] if found is None else found[0].run_ids(found[1])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[TableRows, sa.Connection] | None]:
        """None where nothing was written yet."""
        rows = self.rows()
        with rows.errors():
            if not rows.find_file():
                yield None
                return
            with rows.transaction() as connection:
                yield (rows, connection) if rows.exist(connection) else None


class TablePlace(Place):
    """Collects reports in a transaction; nobody reads them before `commit`."""

    def __init__(self, rows: TableRows, header: ReportHeader) -> None:
        self.name = rows.sink.name
        self._rows = rows
        self._header = header
        self._begun: contextlib.ExitStack | None = None
        self._connection: sa.Connection
        self._ended: RunEnded | None

    def get(self, record: Answer) -> bool | None:
        self._begin()
        known: Answer | None = self._ended
        if isinstance(record, WindowReport):
            known = self._rows.report(self._connection, self._header.run_id, record.window_start)
        return None if known is None else known == record

    def put_first(self, record: Answer) -> bool:
        if isinstance(record, RunEnded):
            self._rows.end_run(self._connection, self._header.run_id, record)
            self._ended = record
        else:
            self._rows.insert(self._connection, self._header.run_id, [record])
        return True

    def count(self) -> int:
        return self._rows.count(self._connection, self._header.run_id)

    def ended(self) -> RunEnded | None:
        return self._ended

    def errors(self) -> contextlib.AbstractContextManager[None]:
        return self._rows.errors()

    def commit(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    def close(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            with contextlib.suppress(StreamError), self.errors(), begun:
                self._connection.rollback()

    def _begin(self) -> None:
        """Locks the run until `commit`, unless this has been done: so what `get` does not find nobody else puts there.
        Its end is then what this transaction says it is."""
        if self._begun is not None:
            return
        with contextlib.ExitStack() as stack:
            self._connection = stack.enter_context(self._rows.transaction())
            self._ended = self._rows.locked_run(self._connection, self._header).ended
            self._begun = stack.pop_all()
