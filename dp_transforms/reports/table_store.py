"""How a run is written to the tables of a database and read from them (`report_table` has the guarantee)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Set

import sqlalchemy as sa

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.records import ReportHeader, checked_report
from dp_transforms.reports.report_table import ReportTable
from dp_transforms.reports.report_writer import (
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
from dp_transforms.reports.table_rows import DAMAGED, StoredRun, TableRows


class ReportTableWriter:
    """Collects reports in a transaction; nobody reads them before `commit`."""

    def __init__(self, store: TableRows, header: ReportHeader) -> None:
        self._store = store
        self._header = header
        self._begun: contextlib.ExitStack | None = None
        self._connection: sa.Connection
        self._ended: RunEnded | None

    @classmethod
    def open(cls, sink: ReportTable, header: ReportHeader) -> ReportTableWriter:
        """Starts the run, or continues it. Raises StreamError."""
        store = TableRows.to_write(sink)
        store.check_names(header)
        with store.errors():
            found = store.prepare(header.run_id)
            if found is None:
                try:
                    with store.transaction() as connection:
                        store.begin_run(connection, header)
                    found = StoredRun(header, None)
                except sa.exc.IntegrityError:  # another worker was first
                    found = store.prepare(header.run_id)
        if found is None:
            raise StreamError(f"{sink.place} {DAMAGED}.")
        check_same_run(sink.place, found.header, header)
        return cls(store, found.header)

    def write(self, report: WindowReport) -> str:
        """Raises StreamError for a second answer, and ReportFileError for a report that must not be published."""
        check_stream(report.stream, self._header)
        report = checked_report(report)
        key = report_key(report)
        self._begin()
        store, run_id = self._store, self._header.run_id
        with store.errors():
            known = store.report(self._connection, run_id, report.window_start)
            if known is None:
                if self._ended is not None:
                    check_not_over(store.sink.place, self._ended, store.count(self._connection, run_id))
                store.insert(self._connection, run_id, [report])
            elif known != report:
                raise second_answer(store.sink.place, key)
        return key

    def end(self, ended: RunEnded) -> str:
        check_stream(ended.stream, self._header)
        ended = parse_ended(ended_fields(ended))
        self._begin()
        store, run_id = self._store, self._header.run_id
        with store.errors():
            if self._ended is None:
                check_end(store.sink.place, ended, store.count(self._connection, run_id))
                store.end_run(self._connection, run_id, ended)
                self._ended = ended
            elif self._ended != ended:
                raise second_end(store.sink.place)
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

    def _begin(self) -> None:
        """Locks the run until `commit`, unless this has been done. Its end is then what this transaction says it is."""
        if self._begun is not None:
            return
        store = self._store
        with store.errors(), contextlib.ExitStack() as stack:
            self._connection = stack.enter_context(store.transaction())
            found = store.run(self._connection, self._header.run_id, locks=True)
            if found is None or found.header != self._header:
                raise StreamError(f"{store.sink.place} {DAMAGED}.")
            self._ended = found.ended
            self._begun = stack.pop_all()


class _DroppedError(Exception):
    """Ends a transaction without a commit."""


def write_whole(sink: ReportTable, header: ReportHeader, reports: Iterable[WindowReport], ended: RunEnded) -> None:
    """See `ReportTable.write_whole`."""
    store = TableRows.to_write(sink)
    store.check_names(header)
    checked: dict[int, WindowReport] = {}
    for report in reports:
        check_stream(report.stream, header)
        report = checked_report(report)
        if checked.setdefault(report.window_start, report) != report:
            raise second_answer(sink.place, report_key(report))
    check_stream(ended.stream, header)
    ended = parse_ended(ended_fields(ended))
    check_end(sink.place, ended, len(checked))
    with store.errors():
        store.prepare(header.run_id)
        with store.transaction() as connection:
            if store.run(connection, header.run_id) is not None:
                raise StreamError(
                    f"{sink.place} has a run {header.run_id!r}, and no run is ever overwritten. Nothing was written."
                )
            store.begin_run(connection, header)
            store.insert(connection, header.run_id, list(checked.values()))
            store.end_run(connection, header.run_id, ended)


def read(sink: ReportTable, run_id: str | None) -> StreamContents:
    """See `ReportTable.read`."""
    header, found, ended = read_new(sink, frozenset(), run_id)
    return header, list(found.values()), ended


def read_new(
    sink: ReportTable, known: Set[int], run_id: str | None
) -> tuple[ReportHeader | None, dict[int, WindowReport], RunEnded | None]:
    """As `ReportTable.read`, without the windows whose starts are `known`. Windows by their start, in order.

    All of it is as it is at one moment. No row is ever changed, so what was read once need not be read again.
    """
    with _reading(sink) as found:
        if found is None:
            return None, {}, None
        store, connection = found
        run_id = store.only_run(connection) if run_id is None else run_id
        run = store.run(connection, run_id)
        if run is None:
            return None, {}, None
        if not known:
            reports = store.reports(connection, run_id)
        elif store.count(connection, run_id) == len(known):  # no window is ever removed
            reports = []
        else:
            reports = store.reports(connection, run_id, store.window_starts(connection, run_id) - known)
        return run.header, {report.window_start: report for report in reports}, run.ended


def ended(sink: ReportTable, run_id: str) -> RunEnded | None:
    with _reading(sink) as found:
        run = None if found is None else found[0].run(found[1], run_id)
        return None if run is None else run.ended


def run_ids(sink: ReportTable) -> list[str]:
    with _reading(sink) as found:
        return [] if found is None else found[0].run_ids(found[1])


@contextlib.contextmanager
def _reading(sink: ReportTable) -> Iterator[tuple[TableRows, sa.Connection] | None]:
    """None where nothing was written yet."""
    store = TableRows(sink)
    with store.errors():
        if not store.find_file():
            yield None
            return
        with store.transaction() as connection:
            yield (store, connection) if store.tables.exist(connection) else None
