"""What a table of reports promises on every database; `rows_of` looks at it by other means than its reader."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, table_rows
from dp_transforms.reports.report_table import ReportTable, ReportTableWriter, read_report_table

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected with ε = 2.", {"epsilon": 2.0})
ENDED = RunEnded("news", 48, 4)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_998  # of the calendar
_LONG = (1 << 63) - 1


def report(window: int, *heavy_hitters: HeavyHitter, stream: str = "news") -> WindowReport:
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, 0.1 * (window + 1))


REPORTS = [
    report(0, HeavyHitter("Ünïcode ☃ 🎄 '\";--", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(2, HeavyHitter("", None, -3), HeavyHitter("a\0b", None, -(1 << 63)), HeavyHitter("a\ufffdb", None, _LONG)),
    report(7),
    report(30, *(HeavyHitter(f"item-{rank}", None, None, _LONG - rank, rank) for rank in range(40))),
]
EDGES = [
    WindowReport("news", _FIRST, _FIRST + 1, [HeavyHitter("x", None, 1)], 2.0, 1e-9, 0.1 + 0.2),
    WindowReport("news", START, START + 1, [HeavyHitter("\\x41\n\t\u202e", None, 1)], 5e-324, 1e-9, 1 / 3),
    WindowReport("news", _LAST, _LAST + 1, [HeavyHitter("x" * 16_384, None, 1)], 1.7976931348623157e308, 1.0, 2.0),
]
OTHER = report(2, HeavyHitter("", None, -4))
MORE = range(100, 130)
MANY = [report(window, HeavyHitter(f"item-{window}", ABOVE, None)) for window in range(40)]


def engine_of(table: ReportTable) -> sa.Engine:
    return sa.create_engine(table.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.pool.NullPool)


def rows_of(table: ReportTable) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all three tables, read without the code under test."""
    found = {}
    with engine_of(table).connect() as connection:
        for name in (table.table, f"{table.table}_windows", f"{table.table}_runs"):
            found[name] = sorted(map(tuple, connection.exec_driver_sql(f'SELECT * FROM "{name}"')), key=repr)
    return found


def change(table: ReportTable, statement: str) -> None:
    with engine_of(table).begin() as connection:
        connection.exec_driver_sql(statement)


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """What SQLAlchemy sends to any database meanwhile; one for many rows counts once."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def write_all(
    table: ReportTable,
    reports: list[WindowReport] = REPORTS,
    ended: RunEnded | None = ENDED,
    header: ReportHeader = HEADER,
) -> list[str]:
    with contextlib.closing(table.open(header)) as writer:
        keys = [writer.write(window) for window in reports]
        if ended is not None:
            keys.append(writer.end(ended))
        writer.commit()
    return keys


def write_one_by_one(table: ReportTable, reports: list[WindowReport], ended: RunEnded | None = None) -> int:
    """A commit for each window. Returns how many of them had another answer."""
    refused = 0
    for window in reports:
        with contextlib.closing(table.open(HEADER)) as writer:
            try:
                writer.write(window)
                writer.commit()
            except StreamError as error:
                if "already has another answer" not in str(error):
                    raise
                refused += 1
    if ended is not None:
        write_all(table, [], ended)
    return refused


def use(writer: ReportTableWriter, what: Callable[[ReportTableWriter], object], refusals: list[str]) -> None:
    """In a thread of its own."""
    try:
        with contextlib.closing(writer):
            what(writer)
            writer.commit()
    except StreamError as error:
        refusals.append(str(error))


_WORKER = """
import sys
from dp_transforms.reports import ReportTable
from tests.helpers import report_table_contract as contract
table, item, sides = ReportTable(sys.argv[1], sys.argv[2]), sys.argv[3], contract.MANY
if item:
    sides = [each._replace(heavy_hitters=[each.heavy_hitters[0]._replace(item=item)]) for each in sides]
print(contract.write_one_by_one(table, sides, None if item else contract.RunEnded("news", 40, 40)))
"""


@contextlib.contextmanager
def worker(table: ReportTable, item: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that writes all of `MANY`, each window with this item. Prints how many were refused."""
    words = [sys.executable, "-c", _WORKER, table.url, table.table, item]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class ReportTableContract:
    """Subclasses have a fixture ``table``, of an empty database."""

    def test_what_is_written_is_read_in_order(self, table: ReportTable) -> None:
        assert table.read("run-1") == (None, [], None)
        assert table.ended("run-1") is None
        assert table.run_ids() == []
        keys = write_all(table, REPORTS[::-1], ended=None)
        assert keys[-1] == "news|2017-10-01T03:00:00Z"
        assert table.read("run-1") == (HEADER, REPORTS, None)
        assert table.ended("run-1") is None
        assert write_all(table, []) == ["news|end"]
        assert table.read("run-1") == (HEADER, REPORTS, ENDED)
        assert table.ended("run-1") == ENDED
        assert read_report_table(table.url, table.table) == (HEADER, REPORTS, ENDED)
        assert table.read("run-2") == (None, [], None)

    def test_every_value_comes_back_exactly(self, table: ReportTable) -> None:
        write_all(table, EDGES)
        assert table.read("run-1")[1] == EDGES

    def test_what_is_written_again_changes_no_row(self, table: ReportTable) -> None:
        write_all(table)
        before = rows_of(table)
        assert len(before[table.table]) == 45
        write_all(table)
        write_one_by_one(table, REPORTS[:1])
        other_words = ReportHeader("run-1", "news", "The same in other words.", HEADER.plan)
        write_all(table, REPORTS[::-1], header=other_words)
        assert rows_of(table) == before

    def test_a_second_answer_is_refused_and_nothing_of_its_bundle_is_written(self, table: ReportTable) -> None:
        write_all(table, REPORTS[:2], ended=None)
        before = rows_of(table)
        with contextlib.closing(table.open(HEADER)) as writer:
            writer.write(REPORTS[3])
            with pytest.raises(StreamError, match=r"T05:00:00Z' already has another answer; nothing was written"):
                writer.write(OTHER)
        assert rows_of(table) == before
        write_all(table, [])
        with pytest.raises(StreamError, match="has already ended"):
            write_all(table, [], ENDED._replace(windows=47))
        assert table.ended("run-1") == ENDED

    def test_an_end_and_the_reports_must_agree(self, table: ReportTable) -> None:
        """Reports beyond the end are another attempt's, which has read other records."""
        write_all(table, REPORTS[:2], ended=None)
        before = rows_of(table)
        with pytest.raises(StreamError, match="it holds 2 reports, and the run ends with 1; its end was not written"):
            write_all(table, [], ENDED._replace(reports=1))
        assert rows_of(table) == before
        write_all(table, [], ENDED._replace(reports=3))
        write_all(table, [REPORTS[2], REPORTS[0]], None)  # the last one may still come
        before = rows_of(table)
        over = "the run has ended with 3 reports, and all are there; nothing was written"
        with pytest.raises(StreamError, match=over):
            write_all(table, [REPORTS[3]], None)
        assert rows_of(table) == before

    def test_an_end_counts_from_the_moment_at_which_it_is_written(self, table: ReportTable) -> None:
        """For the transaction that writes it, and for the next one of another worker that had begun before."""
        over = "the run has ended with 1 reports, and all are there; nothing was written"
        one, other = table.open(HEADER), table.open(HEADER)
        one.write(REPORTS[0])
        one.commit()
        other.end(ENDED._replace(reports=1))
        with pytest.raises(StreamError, match=over):
            other.write(REPORTS[1])
        other.close()
        assert table.ended("run-1") is None
        write_all(table, [], ENDED._replace(reports=1))
        with pytest.raises(StreamError, match=over):
            one.write(REPORTS[1])
        one.close()
        assert table.read("run-1") == (HEADER, REPORTS[:1], ENDED._replace(reports=1))

    def test_a_writer_waits_for_the_one_that_has_begun(self, table: ReportTable) -> None:
        """With another window it then writes it; with another answer it finds the first one, and with an end that does
        not agree the reports."""
        for number, (second, said) in enumerate(
            (
                (lambda writer: writer.write(REPORTS[1]), ""),
                (lambda writer: writer.write(REPORTS[0]._replace(epsilon_spent=1.0)), "already has another answer"),
                (lambda writer: writer.end(ENDED._replace(reports=0)), "it holds 1 reports, and the run ends with 0"),
            )
        ):
            of_two = dataclasses.replace(table, table=f"t{number}")
            one, other = of_two.open(HEADER), of_two.open(HEADER)
            one.write(REPORTS[0])
            refusals: list[str] = []
            thread = threading.Thread(target=use, args=(other, second, refusals))
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            one.commit()
            thread.join(60)
            one.close()
            assert [said in each for each in refusals] == ([True] if said else [])
            assert of_two.read("run-1") == (HEADER, REPORTS[:1] if said else REPORTS[:2], None)

    def test_nobody_reads_what_is_not_committed(self, table: ReportTable) -> None:
        write_all(table, REPORTS[:1], ended=None)
        with contextlib.closing(table.open(HEADER)) as writer:
            writer.write(REPORTS[1])
            writer.end(ENDED)
        assert table.read("run-1") == (HEADER, REPORTS[:1], None)

    def test_runs_share_a_table_and_none_takes_the_name_of_another(self, table: ReportTable) -> None:
        write_all(table)
        second = ReportHeader("run-2", "sport", "Other users.", {"epsilon": 1.0})
        theirs = [report(2, HeavyHitter("goal", None, 9), stream="sport")]
        write_all(table, theirs, None, second)
        assert table.run_ids() == ["run-1", "run-2"]
        assert table.read("run-1") == (HEADER, REPORTS, ENDED)
        assert table.read("run-2") == (second, theirs, None)
        before = rows_of(table)
        for other, said in (
            (ReportHeader("run-1", "olds", HEADER.guarantee, HEADER.plan), "stream is 'news', and this run has 'olds'"),
            (ReportHeader("run-1", "news", HEADER.guarantee, {"epsilon": 3.0}), "another plan"),
        ):
            with pytest.raises(StreamError, match=said):
                table.open(other)
        with pytest.raises(StreamError, match=r"2 runs: 'run-1', 'run-2'\. Choose one"):
            table.read()
        assert rows_of(table) == before

    def test_a_whole_run_is_written_once_or_not_at_all(self, table: ReportTable) -> None:
        with pytest.raises(ReportFileError, match="noisy_count must be null"):
            table.write_whole(HEADER, [*REPORTS, report(40, HeavyHitter("a", ABOVE, 5))], ENDED)
        assert table.read("run-1") == (None, [], None)
        table.write_whole(HEADER, REPORTS, ENDED)
        assert table.read("run-1") == (HEADER, REPORTS, ENDED)
        before = rows_of(table)
        with pytest.raises(StreamError, match="no run is ever overwritten"):
            table.write_whole(HEADER, REPORTS, ENDED)
        assert rows_of(table) == before

    def test_a_whole_run_that_does_not_agree_with_itself_is_not_written(self, table: ReportTable) -> None:
        with pytest.raises(StreamError, match=r"T05:00:00Z' already has another answer; nothing was written"):
            table.write_whole(HEADER, [*REPORTS, OTHER], ENDED)
        with pytest.raises(StreamError, match="it holds 4 reports, and the run ends with 3; its end was not written"):
            table.write_whole(HEADER, REPORTS, ENDED._replace(reports=3))
        for reports, end in ((REPORTS[:1], ENDED._replace(stream="olds")), ([report(0, stream="olds")], ENDED)):
            with pytest.raises(StreamError, match="different streams"):
                table.write_whole(HEADER, reports, end)
        assert table.read("run-1") == (None, [], None)
        table.write_whole(HEADER, [*REPORTS, REPORTS[0]], ENDED)
        assert table.read("run-1") == (HEADER, REPORTS, ENDED)

    def test_a_whole_run_is_written_in_pieces(self, table: ReportTable, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of no more windows, and no more items unless a window has more by itself."""
        monkeypatch.setattr(table_rows, "_WINDOWS_AT_ONCE", 3)
        monkeypatch.setattr(table_rows, "_ITEMS_AT_ONCE", 7)
        more = [report(window, *[HeavyHitter(f"{rank}", None, rank) for rank in range(window % 9)]) for window in MORE]
        table.write_whole(HEADER, [*more[::-1], *EDGES], ENDED._replace(reports=100))
        assert table.read("run-1")[1] == sorted([*more, *EDGES], key=lambda each: each.window_start)

    def test_a_window_takes_three_statements_and_a_whole_run_no_more_for_more_windows(self, table: ReportTable) -> None:
        counts = []
        for reports in (MANY[:2], MANY):
            another = dataclasses.replace(table, table=f"t{len(reports)}")
            with statements() as sent:
                another.write_whole(HEADER, reports, RunEnded("news", 40, 40))
            assert another.read("run-1")[1] == reports
            counts.append(len(sent))
        assert counts[0] == counts[1]
        with contextlib.closing(table.open(HEADER)) as writer:
            writer.write(MANY[0])
            with statements() as sent:
                writer.write(MANY[1])
            assert [statement.split()[0] for statement in sent] == ["SELECT", "INSERT", "INSERT"]

    def test_reports_of_other_streams_and_reports_that_break_the_guarantee_are_refused(
        self, table: ReportTable
    ) -> None:
        with contextlib.closing(table.open(HEADER)) as writer:
            with pytest.raises(StreamError, match="different streams"):
                writer.write(report(0, stream="olds"))
            with pytest.raises(StreamError, match="different streams"):
                writer.end(RunEnded("olds", 1))
            with pytest.raises(ReportFileError, match="noisy_count must be null"):
                writer.write(report(0, HeavyHitter("a", ABOVE, 5)))
        with pytest.raises(StreamError, match=r"must not hold U\+0000"):
            table.open(ReportHeader("run\0", "news", "", {}))
        assert table.read("run-1") == (HEADER, [], None)

    def test_the_view_has_the_newest_window_of_each_stream(self, table: ReportTable) -> None:
        write_all(table, [REPORTS[3], REPORTS[0]])
        sport = ReportHeader("run-2", "sport", "Other users.", {"epsilon": 1.0})
        write_all(table, [report(w, HeavyHitter(f"goal-{w}", None, w), stream="sport") for w in (1, 5)], None, sport)
        with engine_of(table).connect() as connection:
            query = f'SELECT stream, rank, item, at_least_users FROM "{table.table}_top_now" ORDER BY stream, rank'
            found = list(map(tuple, connection.exec_driver_sql(query)))
        assert found[:40] == [("news", rank + 1, f"item-{rank}", rank) for rank in range(40)]
        assert found[40:] == [("sport", 1, "goal-5", None)]

    def test_damage_is_told_in_one_line(self, table: ReportTable) -> None:
        """Each of them in a table of its own."""
        for number, statement in enumerate(
            (
                "DELETE FROM NAME WHERE rank = 1",
                "UPDATE NAME SET rank = 7 WHERE item = 'b'",
                "DELETE FROM NAME_windows",
                "UPDATE NAME SET zone = 'sky'",
                "UPDATE NAME_runs SET header = '[]'",
                "UPDATE NAME_runs SET stream = 'olds'",
            )
        ):
            damaged = dataclasses.replace(table, table=f"t{number}")
            damaged.write_whole(HEADER, REPORTS[:1], ENDED)
            change(damaged, statement.replace("NAME", damaged.table))
            with pytest.raises(StreamError, match="changed by another program, or is damaged") as caught:
                damaged.read("run-1")
            assert "\n" not in str(caught.value)

    def test_tables_of_others_are_not_touched(self, table: ReportTable) -> None:
        change(table, f'CREATE TABLE "{table.table}" (thesis TEXT)')
        with pytest.raises(StreamError, match="that is not of reports: it has no column"):
            table.open(HEADER)
        with pytest.raises(StreamError, match="that is not of reports"):
            table.read("run-1")

    def test_of_workers_with_two_answers_one_is_first_and_the_other_refused(self, table: ReportTable) -> None:
        with worker(table, "heads") as one, worker(table, "tails") as other:
            refused = [int(process.communicate(timeout=300)[0]) for process in (one, other)]
        held = [window.heavy_hitters[0].item for window in table.read("run-1")[1]]
        assert len(held) == sum(refused) == len(MANY)
        assert refused == [held.count("tails"), held.count("heads")]

    def test_workers_that_are_killed_anywhere_leave_whole_windows_and_the_last_one_finishes(
        self, table: ReportTable
    ) -> None:
        for death in range(1, 5):
            with worker(table):
                deadline = time.monotonic() + 300
                while len(table.read("run-1")[1]) < 8 * death and time.monotonic() < deadline:
                    time.sleep(0.01)
            _, reports, _ = table.read("run-1")
            assert reports == MANY[: len(reports)]
            assert 8 * death <= len(reports)
        with worker(table) as last:
            assert last.communicate(timeout=300)[0] == "0\n"
        assert table.read("run-1") == (HEADER, MANY, RunEnded("news", 40, 40))
