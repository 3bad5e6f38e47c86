"""How reports are written to the tables of a database and read from them (`report_table` has the guarantee)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.local_files import create_new
from dp_transforms.monitoring.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.report_files import ReportFileError, ReportHeader
from dp_transforms.report_files.records import check_report, checked_report, parse_header
from dp_transforms.report_streams.report_table import ReportTable
from dp_transforms.report_streams.report_writer import (
    StreamContents,
    check_end,
    check_not_over,
    check_same_run,
    check_stream,
    end_key,
    ended_fields,
    parse_ended,
    report_key,
    second_answer,
    second_end,
)
from dp_transforms.report_streams.table_schema import ReportTables
from dp_transforms.sql_engines import READS, NoDriverError, duckdb_engine, postgres_engine, reason_of, sqlite_engine
from dp_transforms.sql_urls import DUCKDB, POSTGRESQL, SQLITE

_WAIT_SECONDS = 60.0  # for another worker, or a reader of a DuckDB file
_FILE_MODE = 0o644
_DAMAGED = "was changed by another program, or is damaged. Start a new run, with another --output-table"
# DuckDB takes a millisecond for each row that is given as values, and a thousandth of it from JSON.
_DUCKDB_ITEMS = {
    "rank": "INTEGER",
    "item": "VARCHAR",
    "item_utf8": "VARCHAR",
    "zone": "VARCHAR",
    "noisy_count": "BIGINT",
    "level": "BIGINT",
    "at_least_users": "BIGINT",
}


class ReportTableWriter:
    """Collects reports in a transaction; nobody reads them before `commit`."""

    def __init__(self, store: _Store, header: ReportHeader) -> None:
        self._store = store
        self._header = header
        self._begun: contextlib.ExitStack | None = None
        self._connection: sa.Connection

    @classmethod
    def open(cls, sink: ReportTable, header: ReportHeader) -> ReportTableWriter:
        """Starts the run, or continues it. Raises StreamError."""
        store = _Store.to_write(sink)
        store.check_names(header)
        with store.errors():
            found = store.prepare(header.run_id)
            if found is None:
                try:
                    with store.transaction() as connection:
                        store.begin_run(connection, header)
                    found = header
                except sa.exc.IntegrityError:  # another worker was first
                    found = store.prepare(header.run_id)
        if found is None:
            raise StreamError(f"{sink.place} {_DAMAGED}.")
        check_same_run(sink.place, found, header)
        return cls(store, found)

    @classmethod
    def write_whole(
        cls, sink: ReportTable, header: ReportHeader, reports: Iterable[WindowReport], ended: RunEnded
    ) -> None:
        store = _Store.to_write(sink)
        store.check_names(header)
        writer = cls(store, header)
        with store.errors():
            store.prepare(header.run_id)
        try:
            writer._begin(is_new=True)
            for report in reports:
                writer.write(report)
            writer.end(ended)
            writer.commit()
        finally:
            writer.close()

    def write(self, report: WindowReport) -> str:
        """Raises StreamError for a second answer, and ReportFileError for a report that must not be published."""
        check_stream(report.stream, self._header)
        report = checked_report(report)
        key = report_key(report)
        self._begin()
        with self._store.errors():
            known = self._store.reports(self._connection, self._header.run_id, report.window_start)
            if not known:
                store, run_id = self._store, self._header.run_id
                if (ended := store.ended(self._connection, run_id)) is not None:
                    check_not_over(store.sink.place, ended, store.count(self._connection, run_id))
                self._store.insert(self._connection, self._header.run_id, report)
            elif known != [report]:
                raise second_answer(self._store.sink.place, key)
        return key

    def end(self, ended: RunEnded) -> str:
        check_stream(ended.stream, self._header)
        ended = parse_ended(ended_fields(ended))
        self._begin()
        with self._store.errors():
            known = self._store.ended(self._connection, self._header.run_id)
            if known is None:
                held = self._store.count(self._connection, self._header.run_id)
                check_end(self._store.sink.place, ended, held)
                self._store.end_run(self._connection, self._header.run_id, ended)
            elif known != ended:
                raise second_end(self._store.sink.place)
        return end_key(ended.stream)

    def commit(self) -> None:
        """Raises StreamError; then nobody knows whether the reports were written. Open the sink again to find out."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with self._store.errors():
                begun.close()

    def close(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            dropped = _DroppedError()
            with contextlib.suppress(_DroppedError, StreamError), self._store.errors():
                begun.__exit__(_DroppedError, dropped, None)

    def _begin(self, *, is_new: bool = False) -> None:
        """Locks the run until `commit`, unless this has been done. is_new: and makes it."""
        if self._begun is not None:
            return
        store, run_id = self._store, self._header.run_id
        with store.errors(), contextlib.ExitStack() as stack:
            self._connection = stack.enter_context(store.transaction())
            if is_new:
                if store.header(self._connection, run_id) is not None:
                    raise StreamError(
                        f"{store.sink.place} has a run {run_id!r}, and no run is ever overwritten. Nothing was written."
                    )
                store.begin_run(self._connection, self._header)
            found = store.header(self._connection, run_id, locks=True)
            if found != self._header:
                raise StreamError(f"{store.sink.place} {_DAMAGED}.")
            self._begun = stack.pop_all()


class _DroppedError(Exception):
    """Ends a transaction without a commit."""


def read(sink: ReportTable, run_id: str | None) -> StreamContents:
    """See `ReportTable.read`. All of it is read as it is at one moment."""
    with _reading(sink) as found:
        if found is None:
            return None, [], None
        store, connection = found
        run_id = store.only_run(connection) if run_id is None else run_id
        header = store.header(connection, run_id)
        if header is None:
            return None, [], None
        return header, store.reports(connection, run_id), store.ended(connection, run_id)


def ended(sink: ReportTable, run_id: str) -> RunEnded | None:
    with _reading(sink) as found:
        return None if found is None else found[0].ended(found[1], run_id)


def run_ids(sink: ReportTable) -> list[str]:
    with _reading(sink) as found:
        return [] if found is None else found[0].run_ids(found[1])


@contextlib.contextmanager
def _reading(sink: ReportTable) -> Iterator[tuple[_Store, sa.Connection] | None]:
    """None where nothing was written yet."""
    store = _Store(sink)
    with store.errors():
        if not store.find_file():
            yield None
            return
        with store.transaction() as connection:
            yield (store, connection) if store.tables.exist(connection) else None


class _Store:
    """The tables in their database, by statements within a transaction of the caller."""

    def __init__(self, sink: ReportTable, *, writes: bool = False) -> None:
        self.sink = sink
        self.tables = ReportTables.of_name(sink.table)
        self._file = None if sink.file is None else pathlib.Path(sink.file).absolute()
        self._writes = writes
        self._made: sa.Engine | None = None

    @classmethod
    def to_write(cls, sink: ReportTable) -> _Store:
        return cls(sink, writes=True)

    def check_names(self, header: ReportHeader) -> None:
        if "\0" in header.run_id + header.stream:
            raise StreamError(f"{self.sink.place}: names of runs and streams must not hold U+0000. Choose others.")
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

    def prepare(self, run_id: str) -> ReportHeader | None:
        """Makes what is missing of the database. Returns the header of the run, None if it has not begun."""
        if not self.find_file() and self.sink.database == SQLITE:
            assert self._file is not None
            with contextlib.suppress(FileExistsError):  # another worker was first
                create_new(self._file, _FILE_MODE).close()
        with self.transaction() as connection:
            if self.sink.database == POSTGRESQL and (name := self._encoding(connection)) != "UTF8":
                raise StreamError(f"{self.sink.place}: its database has the encoding {name}. Use one with UTF8.")
            if self.tables.exist(connection):
                return self.header(connection, run_id)
        with self.transaction() as connection:
            self.tables.create(connection)
            return self.header(connection, run_id)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Committed at the end, unless an error is raised."""
        engine = self._engine()
        options: dict[str, Any] = {READS: not self._writes}
        if self.sink.database == POSTGRESQL and not self._writes:
            options["isolation_level"] = "REPEATABLE READ"  # one snapshot for all statements
        with engine.connect().execution_options(**options) as connection, connection.begin():
            if self.sink.database == POSTGRESQL:
                connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
            yield connection

    def header(self, connection: sa.Connection, run_id: str, *, locks: bool = False) -> ReportHeader | None:
        """locks: until the end of the transaction nobody else may write of this run."""
        runs = self.tables.runs
        query = sa.select(runs.c.header, runs.c.stream).where(runs.c.run_id == run_id)
        if locks and self.sink.database == POSTGRESQL:  # elsewhere the whole file is locked
            query = query.with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        header = parse_header(row.header)
        if (header.run_id, header.stream) != (run_id, row.stream):
            raise ReportFileError("the header of a run is that of another one.")
        return header

    def begin_run(self, connection: sa.Connection, header: ReportHeader) -> None:
        values = {"run_id": header.run_id, "stream": header.stream, "header": header.to_json()}
        connection.execute(sa.insert(self.tables.runs).values(**values))

    def run_ids(self, connection: sa.Connection) -> list[str]:
        return sorted(connection.execute(sa.select(self.tables.runs.c.run_id)).scalars())

    def only_run(self, connection: sa.Connection) -> str:
        found = self.run_ids(connection)
        if len(found) > 1:
            shown = ", ".join(map(repr, found[:5])) + (", ..." if len(found) > 5 else "")
            raise StreamError(f"{self.sink.place} has {len(found)} runs: {shown}. Choose one with --run-id.")
        return found[0] if found else ""

    def ended(self, connection: sa.Connection, run_id: str) -> RunEnded | None:
        runs = self.tables.runs
        row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one_or_none()
        if row is None or row.ended_windows is None:
            return None
        return parse_ended({"stream": row.stream, "windows": row.ended_windows, "reports": row.ended_reports})

    def count(self, connection: sa.Connection, run_id: str) -> int:
        """How many reports there are of the run."""
        windows = self.tables.windows
        query = sa.select(sa.func.count()).select_from(windows).where(windows.c.run_id == run_id)
        return int(connection.execute(query).scalar_one())

    def end_run(self, connection: sa.Connection, run_id: str, ended: RunEnded) -> None:
        runs = self.tables.runs
        values = {"ended_windows": ended.windows, "ended_reports": ended.reports}
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**values))

    def insert(self, connection: sa.Connection, run_id: str, report: WindowReport) -> None:
        key = {"run_id": run_id, "window_start": report.window_start}
        both = {**key, "window_end": report.window_end, "stream": report.stream}
        whole = {name: getattr(report, name) for name in ("epsilon_total", "delta", "epsilon_spent")}
        count = {"heavy_items": len(report.heavy_hitters)}
        connection.execute(sa.insert(self.tables.windows).values(**both, **count, **whole))
        items = [_item_row(rank, each) for rank, each in enumerate(report.heavy_hitters, start=1)]
        if self.sink.database == DUCKDB:
            _insert_into_duckdb(connection, self.tables.items, both, items)
        elif items:
            connection.execute(sa.insert(self.tables.items), [{**both, **item} for item in items])

    def reports(self, connection: sa.Connection, run_id: str, window_start: int | None = None) -> list[WindowReport]:
        """All of a run in order, or that of one window. Raises ReportFileError for what shh did not write."""
        windows, items = self.tables.windows, self.tables.items
        of_windows = sa.select(windows).where(windows.c.run_id == run_id).order_by(windows.c.window_start)
        of_items = sa.select(items).where(items.c.run_id == run_id).order_by(items.c.window_start, items.c.rank)
        if window_start is not None:
            of_windows = of_windows.where(windows.c.window_start == window_start)
            of_items = of_items.where(items.c.window_start == window_start)
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

    def _engine(self) -> sa.Engine:
        if self._made is None:
            if self._file is None:
                self._made = postgres_engine(sa.make_url(self.sink.url), _WAIT_SECONDS)
            elif self.sink.database == SQLITE:
                self._made = sqlite_engine(self._file, _WAIT_SECONDS)
            else:
                self._made = duckdb_engine(self._file, _WAIT_SECONDS, reads=not self._writes)
        return self._made

    def _encoding(self, connection: sa.Connection) -> str:
        return str(connection.exec_driver_sql("SHOW server_encoding").scalar_one())

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the database as a StreamError of one line, without a password and without values."""
        place = self.sink.place
        try:
            yield
        except StreamError:
            raise
        except NoDriverError as error:
            raise StreamError(f"{place}: {error}") from None
        except ReportFileError as error:
            raise StreamError(f"{place} {_DAMAGED}: {error}") from error
        except sa.exc.ArgumentError:
            raise StreamError(f"{place}: this is not a URL of a database. Check it.") from None
        except sa.exc.DBAPIError as error:
            raise StreamError(
                f"{place} cannot be used ({reason_of(error)}). Check the database, and what its user may do."
            ) from None
        except OSError as error:
            raise StreamError(f"{place} cannot be used ({error.strerror}). Check its folder.") from None
        except (sa.exc.SQLAlchemyError, ValueError, TypeError, OverflowError):  # values that shh did not write
            raise StreamError(f"{place} {_DAMAGED}.") from None


def _item_row(rank: int, held: HeavyHitter) -> dict[str, Any]:
    if "\0" not in held.item:
        return {"rank": rank, **held._asdict(), "item_utf8": None}
    shown = held.item.replace("\0", "\ufffd")
    return {"rank": rank, **held._asdict(), "item": shown, "item_utf8": held.item.encode()}


def _heavy_hitter(row: Any) -> HeavyHitter:
    item = row.item if row.item_utf8 is None else bytes(row.item_utf8).decode()
    return HeavyHitter(item, row.zone, row.noisy_count, row.level, row.at_least_users)


def _insert_into_duckdb(
    connection: sa.Connection, table: sa.Table, both: dict[str, Any], items: list[dict[str, Any]]
) -> None:
    rows = [
        {**item, "item_utf8": None if item["item_utf8"] is None else item["item_utf8"].hex().upper()} for item in items
    ]
    columns = ", ".join("unhex(item_utf8)" if name == "item_utf8" else name for name in _DUCKDB_ITEMS)
    given = ", ".join(f"CAST(:{name} AS {'TIMESTAMP' if name.startswith('window') else 'VARCHAR'})" for name in both)
    statement = sa.text(
        f'INSERT INTO "{table.name}" ({", ".join(both)}, {", ".join(_DUCKDB_ITEMS)}) SELECT {given}, {columns} FROM'
        " (SELECT unnest(from_json(CAST(:rows AS JSON), :shape), recursive := true))"
    ).bindparams(*(sa.bindparam(name, type_=table.c[name].type) for name in both))
    shape = json.dumps([_DUCKDB_ITEMS])
    connection.execute(statement, {**both, "rows": json.dumps(rows, ensure_ascii=False), "shape": shape})
