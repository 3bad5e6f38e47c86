"""The tables of reports and their view, made where they are missing, and the statements on them: no rule of a run.

Times are UTC: with a time zone on PostgreSQL, whose readers then show them in theirs, and without one on SQLite,
which has none.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import pathlib
import stat
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from dp_transforms.checks import how_to_install
from dp_transforms.errors import MissingLibraryError, StreamError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports.report_records import (
    ReportFileError,
    ReportHeader,
    check_report,
    parse_header,
)
from dp_transforms.reports.report_table import ReportTable
from dp_transforms.reports.report_writer import parse_ended
from dp_transforms.stores.databases import (
    POSTGRESQL,
    READS,
    SQLITE,
    NoDriverError,
    postgres_engine,
    reason_of,
    sqlite_engine,
)
from dp_transforms.stores.local_files import create_new

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
except ImportError as error:
    raise MissingLibraryError(f"A table of reports needs SQLAlchemy. {how_to_install('sql')}") from error

DAMAGED = "was changed by another program, or is damaged. Start a new run, with another --output-table"
_WAIT_SECONDS = 60.0  # for another worker
_FILE_MODE = 0o644
_WINDOWS_AT_ONCE = 500  # a database takes so many values in a statement, and more
_EPOCH = datetime.datetime(1970, 1, 1)
_ADVISORY_LOCK = 0x7368_6872  # of PostgreSQL, while the tables are made


class Micros(sa.types.TypeDecorator[int]):
    """Microseconds since 1970 UTC, exactly, as a time that people can read."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        return dialect.type_descriptor(sa.DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> datetime.datetime | None:
        assert value is not None
        moment = _EPOCH + datetime.timedelta(microseconds=value)
        return moment.replace(tzinfo=datetime.UTC) if dialect.name == "postgresql" else moment

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int:
        if not isinstance(value, datetime.datetime):
            raise ValueError("a time of a report must be a time.")
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        moment: datetime.datetime = value
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


class StoredRun(NamedTuple):
    """The row of a run. ended: None as long as its end is not written."""

    header: ReportHeader
    ended: RunEnded | None


def _tables_of(name: str) -> tuple[sa.Table, sa.Table, sa.Table]:
    """The tables of one name: of runs, of windows with heavy items, and of these items."""
    tables = sa.MetaData()
    runs = sa.Table(
        f"{name}_runs",
        tables,
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("header", sa.Text, nullable=False),  # JSON: guarantee and plan
        sa.Column("ended_windows", sa.BigInteger),  # null: the run goes on
        sa.Column("ended_reports", sa.BigInteger),
    )
    windows = sa.Table(
        f"{name}_windows",
        tables,
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("window_start", Micros, primary_key=True),
        sa.Column("window_end", Micros, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("heavy_items", sa.Integer, nullable=False),  # how many rows it has in the other table
        *(sa.Column(each, sa.Double, nullable=False) for each in ("epsilon_total", "delta", "epsilon_spent")),
    )
    items = sa.Table(
        name,
        tables,
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("window_start", Micros, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),  # from 1
        sa.Column("window_end", Micros, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
        # The bytes of a label with U+0000, which PostgreSQL cannot have in a text; `item` has U+FFFD in its place.
        sa.Column("item_utf8", sa.LargeBinary),
        sa.Column("zone", sa.Text),
        *(sa.Column(each, sa.BigInteger) for each in ("noisy_count", "level", "at_least_users")),
        sa.Index(f"{name}_by_stream", "stream", "window_start"),
    )
    return runs, windows, items


class TableRows:
    """The tables in their database, by statements within a transaction of the caller."""

    def __init__(self, sink: ReportTable, *, writes: bool = False) -> None:
        self.sink = sink
        self._tables = self._runs, self._windows, self._items = _tables_of(sink.table)
        self._file = None if sink.file is None else pathlib.Path(sink.file).absolute()
        self._writes = writes

    def check_names(self, header: ReportHeader) -> None:
        if "\0" in header.run_id + header.stream:
            raise StreamError(f"{self.sink.name}: names of runs and streams must not hold U+0000. Choose others.")
        header.to_json()

    def find_file(self) -> bool:
        """Whether the database is there, if it is a file. Raises OSError for anything but a regular file."""
        if self._file is None:
            return True
        try:
            mode = os.lstat(self._file).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise StreamError(f"{str(self._file)!r} is not a regular file. Name another one.")
        return True

    def make(self) -> None:
        """Makes what is missing of the database."""
        if self._file is not None and not self.find_file():
            with contextlib.suppress(FileExistsError):  # another worker was first
                create_new(self._file, _FILE_MODE).close()
        with self.transaction() as connection:
            asked = "SHOW server_encoding"
            if self._file is None and (name := connection.exec_driver_sql(asked).scalar_one()) != "UTF8":
                raise StreamError(f"{self.sink.name}: its database has the encoding {name}. Use one with UTF8.")
            if not self.exist(connection):
                self.create(connection)

    def exist(self, connection: sa.Connection) -> bool:
        inspector = sa.inspect(connection)
        return all(inspector.has_table(table.name) for table in self._tables)

    def create(self, connection: sa.Connection) -> None:
        """Makes the tables and the view, unless another worker has done so. A table of another program that has one of
        their names is an error of the database."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        if not self.exist(connection):
            self._tables[0].metadata.create_all(connection, checkfirst=False)
            connection.exec_driver_sql(self._view())

    def _view(self) -> str:
        """The newest window with heavy items of each stream. The name is of letters, digits and underscores alone."""
        shown = ("stream", "window_start", "window_end", "rank", "item", "zone", "noisy_count", "level")
        columns = ", ".join(f"items.{column}" for column in (*shown, "at_least_users", "run_id"))
        return (
            f'CREATE VIEW "{self.sink.table}_top_now" AS SELECT {columns} FROM "{self.sink.table}" AS items JOIN'
            f' (SELECT stream, max(window_start) AS newest FROM "{self.sink.table}_windows" GROUP BY stream) AS latest'
            " ON items.stream = latest.stream AND items.window_start = latest.newest"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Committed at the end, unless an error is raised. One that writes to a file has it for itself."""
        options: dict[str, Any] = {READS: not self._writes}
        if self.sink.database == POSTGRESQL and not self._writes:
            options["isolation_level"] = "REPEATABLE READ"  # one snapshot for all statements
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            if self.sink.database == POSTGRESQL:
                connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
            yield connection

    def run(self, connection: sa.Connection, run_id: str, *, locks: bool = False) -> StoredRun | None:
        """None if it has not begun. locks: until the end of the transaction nobody else may write of this run."""
        runs = self._runs
        query = sa.select(runs).where(runs.c.run_id == run_id)
        if locks and self.sink.database == POSTGRESQL:  # elsewhere the whole file is locked
            query = query.with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        header = parse_header(row.header)
        if (header.run_id, header.stream) != (run_id, row.stream):
            raise ReportFileError("the header of a run is that of another one.")
        if row.ended_windows is None:
            return StoredRun(header, None)
        fields = {"stream": row.stream, "windows": row.ended_windows, "reports": row.ended_reports}
        return StoredRun(header, parse_ended(fields))

    def locked_run(self, connection: sa.Connection, header: ReportHeader) -> StoredRun:
        """The run of this header, which must be there. Until the end of the transaction nobody else writes of it."""
        found = self.run(connection, header.run_id, locks=True)
        if found is None or found.header != header:
            raise StreamError(f"{self.sink.name} {DAMAGED}.")
        return found

    def put_first(self, connection: sa.Connection, header: ReportHeader) -> ReportHeader:
        """Begins the run, unless another worker was first. The header that is there; the same object if this was."""
        insert: Any = {POSTGRESQL: postgresql.insert, SQLITE: sqlite.insert}[self.sink.database](self._runs)
        values = {"run_id": header.run_id, "stream": header.stream, "header": header.to_json()}
        statement = insert.values(**values).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
        is_first = connection.execute(statement).rowcount == 1
        found = None if is_first else self.run(connection, header.run_id)
        if not is_first and found is None:
            raise StreamError(f"{self.sink.name} {DAMAGED}.")
        return header if found is None else found.header

    def run_ids(self, connection: sa.Connection) -> list[str]:
        return sorted(connection.execute(sa.select(self._runs.c.run_id)).scalars())

    def count(self, connection: sa.Connection, run_id: str) -> int:
        """How many reports there are of the run."""
        windows = self._windows
        query = sa.select(sa.func.count()).select_from(windows).where(windows.c.run_id == run_id)
        return int(connection.execute(query).scalar_one())

    def end_run(self, connection: sa.Connection, run_id: str, ended: RunEnded) -> None:
        runs = self._runs
        values = {"ended_windows": ended.windows, "ended_reports": ended.reports}
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**values))

    def insert(self, connection: sa.Connection, run_id: str, reports: Sequence[WindowReport]) -> None:
        """reports: of windows that are not there."""
        for place in range(0, len(reports), _WINDOWS_AT_ONCE):
            windows, items = [], []
            for report in reports[place : place + _WINDOWS_AT_ONCE]:
                of_both = {name: getattr(report, name) for name in ("stream", "window_start", "window_end")}
                spent = {name: getattr(report, name) for name in ("epsilon_total", "delta", "epsilon_spent")}
                held = report.heavy_hitters
                windows.append({"run_id": run_id, **of_both, "heavy_items": len(held), **spent})
                items += [{"run_id": run_id, **of_both, **_item_row(*ranked)} for ranked in enumerate(held, start=1)]
            for table, rows in ((self._windows, windows), (self._items, items)):
                if rows:
                    connection.execute(sa.insert(table), rows)

    def report(self, connection: sa.Connection, run_id: str, window_start: int) -> WindowReport | None:
        """That of a window; None if it is not there."""
        windows = self._windows
        query = sa.select(windows.c.heavy_items).where(windows.c.run_id == run_id)
        if connection.execute(query.where(windows.c.window_start == window_start)).one_or_none() is None:
            return None
        (found,) = self.reports(connection, run_id, {window_start})
        return found

    def window_starts(self, connection: sa.Connection, run_id: str) -> set[int]:
        windows = self._windows
        return set(connection.execute(sa.select(windows.c.window_start).where(windows.c.run_id == run_id)).scalars())

    def reports(self, connection: sa.Connection, run_id: str, starts: Set[int] | None = None) -> list[WindowReport]:
        """All of a run in order, or those of some windows. Raises ReportFileError for what shh did not write."""
        asked = sorted(starts or ())
        parts = [asked[place : place + _WINDOWS_AT_ONCE] for place in range(0, len(asked), _WINDOWS_AT_ONCE)]
        every = [None] if starts is None else parts
        return [report for part in every for report in self._reports(connection, run_id, part)]

    def _reports(self, connection: sa.Connection, run_id: str, starts: list[int] | None) -> list[WindowReport]:
        windows, items = self._windows, self._items
        of_windows = sa.select(windows).where(windows.c.run_id == run_id).order_by(windows.c.window_start)
        of_items = sa.select(items).where(items.c.run_id == run_id).order_by(items.c.window_start, items.c.rank)
        if starts is not None:
            of_windows = of_windows.where(windows.c.window_start.in_(starts))
            of_items = of_items.where(items.c.window_start.in_(starts))
        found: dict[int, list[HeavyHitter]] = {}
        for row in connection.execute(of_items):
            held = found.setdefault(row.window_start, [])
            held.append(_heavy_hitter(row))
            if row.rank != len(held):
                raise ReportFileError("an item of a window is missing.")
        reports = []
        for row in connection.execute(of_windows):
            held = found.pop(row.window_start, [])
            if len(held) != row.heavy_items:
                raise ReportFileError("an item of a window is missing.")
            fields = {name: getattr(row, name) for name in WindowReport._fields if name != "heavy_hitters"}
            reports.append(check_report({**fields, "heavy_hitters": held}))
        if found:
            raise ReportFileError("there are items without their window.")
        return reports

    @functools.cached_property
    def _engine(self) -> sa.Engine:
        if self._file is None:
            return postgres_engine(sa.make_url(self.sink.url), _WAIT_SECONDS)
        return sqlite_engine(self._file, _WAIT_SECONDS)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the database as a StreamError of one line, without a password and without values."""
        place = self.sink.name
        try:
            yield
        except StreamError:
            raise
        except NoDriverError as error:
            raise StreamError(f"{place}: {error}") from None
        except ReportFileError as error:
            raise StreamError(f"{place} {DAMAGED}: {error}") from error
        except sa.exc.ArgumentError:
            raise StreamError(f"{place}: this is not a URL of a database. Check it.") from None
        except sa.exc.DBAPIError as error:
            raise StreamError(
                f"{place} cannot be used ({reason_of(error)}). Check the database, and what its user may do."
            ) from None
        except OSError as error:
            raise StreamError(f"{place} cannot be used ({error.strerror}). Check its folder.") from None
        except (sa.exc.SQLAlchemyError, ValueError, TypeError, OverflowError):  # values that shh did not write
            raise StreamError(f"{place} {DAMAGED}.") from None


def _item_row(rank: int, held: HeavyHitter) -> dict[str, Any]:
    fields = held._asdict()
    if "\0" not in held.item:
        return {"rank": rank, **fields, "item_utf8": None}
    shown = held.item.replace("\0", "\ufffd")
    return {"rank": rank, **fields, "item": shown, "item_utf8": held.item.encode()}


def _heavy_hitter(row: Any) -> HeavyHitter:
    item = row.item if row.item_utf8 is None else bytes(row.item_utf8).decode()
    return HeavyHitter(item, row.zone, row.noisy_count, row.level, row.at_least_users)
