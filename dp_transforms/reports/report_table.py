"""Reports as a table of a database: PostgreSQL or SQLite. A row for each heavy item, and a view of the newest.

    NAME              an item of a window: (run_id, window_start, rank) is its key
    NAME_windows      a window with heavy items: (run_id, window_start) is its key
    NAME_runs         a run: run_id is its key; its header, and its end once it has ended
    NAME_top_now      view: the items of the newest window of each stream

A window is written in one transaction with all of its items, under its key. On PostgreSQL the row of the run is locked
first, on SQLite the whole file: so one of two workers is first, the other finds the answer, and no reader
sees a part of one.

This module loads no database library before it is used.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dp_transforms.checks import shown
from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.records import ReportHeader
from dp_transforms.reports.report_writer import StreamContents
from dp_transforms.reports.window_follower import WindowFollower
from dp_transforms.stores.databases import POSTGRESQL, database_of, has_password, shown_url

if TYPE_CHECKING:
    from dp_transforms.reports.table_store import ReportTableWriter

DEFAULT_TABLE = "shh_reports"
_URL = re.compile(r"postgresql(\+psycopg)?://|sqlite:///")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")  # with what is appended PostgreSQL has no more than 63 characters


@dataclasses.dataclass(frozen=True)
class ReportTable:
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
                " are Parquet files (docs/databases.md)."
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
    def has_password(self) -> bool:
        """Whether the URL itself holds one, which then travels in the job graph."""
        return has_password(self.url)

    @property
    def place(self) -> str:
        """How errors name it, without a password."""
        return f"the table {self.table!r} of {shown_url(self.url)!r}"

    def with_absolute_path(self) -> ReportTable:
        """The same for workers, which have another current folder."""
        if self.file is None:
            return self
        return dataclasses.replace(self, url=f"{self.database}:///{os.path.abspath(self.file)}")

    def open(self, header: ReportHeader) -> ReportTableWriter:
        """Starts the run, or continues it. Raises StreamError if the table has another run of this id."""
        from dp_transforms.reports.table_store import ReportTableWriter

        return ReportTableWriter.open(self, header)

    def read(self, run_id: str | None = None) -> StreamContents:
        """What is committed of this run; None: of the only one. Raises StreamError."""
        from dp_transforms.reports import table_store

        return table_store.read(self, run_id)

    def follow(self, run_id: str | None = None) -> WindowFollower[int]:
        """Reads what is new, again and again. run_id: None for the only run."""
        from dp_transforms.reports import table_store

        return WindowFollower(lambda known: table_store.read_new(self, known, run_id))

    def ended(self, run_id: str) -> RunEnded | None:
        """The end of the run, once it is written. Raises StreamError."""
        from dp_transforms.reports import table_store

        return table_store.ended(self, run_id)

    def run_ids(self) -> list[str]:
        """The runs that the table has, in alphabetical order. Raises StreamError."""
        from dp_transforms.reports import table_store

        return table_store.run_ids(self)

    def write_whole(self, header: ReportHeader, reports: Iterable[WindowReport], ended: RunEnded) -> None:
        """A whole run in one transaction: afterwards all of it is there, or none. Raises StreamError also if the table
        has the run already."""
        from dp_transforms.reports import table_store

        table_store.write_whole(self, header, reports, ended)


def read_report_table(
    place: str, table: str | None = None, run_id: str | None = None
) -> tuple[ReportHeader, list[WindowReport], RunEnded | None]:
    """A run of a table of a database, the only one if no id is given. Raises StreamError, and ValueError for a URL that
    is not of a database. table: None for `DEFAULT_TABLE`."""
    sink = ReportTable(place, table or DEFAULT_TABLE)
    header, reports, ended = sink.read(run_id)
    if header is None:
        raise StreamError(f"{sink.place} has no such run. Check the database, its table and the run id.")
    return header, reports, ended
