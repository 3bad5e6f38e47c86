"""Tables of reports, on SQLite and on a real PostgreSQL server (`make test-postgres`): transactions, turns, statements,
and what another program did to them. What they share with other sinks is in test_report_sinks."""

import contextlib
import dataclasses
import itertools
import os
import secrets
import signal
import sqlite3
import stat
import sys
import threading
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import HeavyHitter
from dp_transforms.reports import read_run
from dp_transforms.reports.report_table import ReportTable
from tests.helpers import postgres_server
from tests.helpers.killed_nights import in_a_process
from tests.helpers.seen_connections import check_durable_and_in_turns, seen_connections
from tests.helpers.sinks import (
    EDGES,
    ENDED,
    HEADER,
    MANY,
    OTHER,
    REPORTS,
    change,
    change_server,
    engine_of,
    header,
    new_database,
    report,
    rows_of,
    sink_of_kind,
    write_all,
)

NO_SERVER = postgres_server.skip_reason()
ON_POSTGRESQL = [pytest.mark.skipif(bool(NO_SERVER), reason=NO_SERVER or "it is there")]


@pytest.fixture(scope="module")
def server():
    with postgres_server.server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[*ON_POSTGRESQL, pytest.mark.nightly])])
def table(request, tmp_path):
    """In an empty database."""
    kind = request.param
    with sink_of_kind(kind, tmp_path, request.getfixturevalue("server") if kind == "postgresql" else "") as made:
        yield made


# --- Transactions


def test_nothing_of_a_bundle_with_a_second_answer_is_written_and_nobody_reads_what_is_not_committed(table):
    write_all(table, REPORTS[:2], ended=None)
    before = rows_of(table)
    with contextlib.closing(table.open(HEADER)) as writer:
        writer.write(REPORTS[3])
        with pytest.raises(StreamError, match=r"T05:00:00Z' already has another answer; nothing was written"):
            writer.write(OTHER)
    with contextlib.closing(table.open(HEADER)) as writer:
        writer.write(REPORTS[3])
        writer.end(ENDED)
    assert rows_of(table) == before
    assert table.read("run-1") == (HEADER, REPORTS[:2], None)


def test_an_end_counts_from_the_moment_at_which_it_is_written(table):
    """For the transaction that writes it, and for the next one of another worker that had begun before."""
    over = "the run has ended with 1 reports, and all are there; nothing was written"
    one, other = table.open(HEADER), table.open(HEADER)
    one.write(REPORTS[0])
    one.commit()
    other.end(ENDED._replace(reports=1))
    with pytest.raises(StreamError, match=over):
        other.write(REPORTS[1])
    other.close()
    assert table.read("run-1")[2] is None
    write_all(table, [], ENDED._replace(reports=1))
    with pytest.raises(StreamError, match=over):
        one.write(REPORTS[1])
    one.close()
    assert table.read("run-1") == (HEADER, REPORTS[:1], ENDED._replace(reports=1))


def use(writer, what, refusals):
    """In a thread of its own."""
    try:
        with contextlib.closing(writer):
            what(writer)
            writer.commit()
    except StreamError as error:
        refusals.append(str(error))


def writers_take_turns(table):
    """With another window the second one then writes it; with another answer it finds the first one, and with an end
    that does not agree the reports."""
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
        refusals = []
        thread = threading.Thread(target=use, args=(other, second, refusals))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        one.commit()
        thread.join(60)
        one.close()
        assert [said in each for each in refusals] == ([True] if said else [])
        assert of_two.read("run-1") == (HEADER, REPORTS[:1] if said else REPORTS[:2], None)


def test_a_writer_waits_for_the_one_that_has_begun(table):
    writers_take_turns(table)


# --- Runs


def test_runs_share_a_table_and_its_view_has_the_newest_window_of_each_stream(table):
    assert table.run_ids() == []
    write_all(table)
    assert read_run(table.url, table.table) == (HEADER, REPORTS, ENDED)
    second = header("run-2", "sport", 1.0)
    theirs = [report(window, HeavyHitter(f"goal-{window}", None, window), stream="sport") for window in (1, 5)]
    write_all(table, theirs, None, second)
    assert table.run_ids() == ["run-1", "run-2"]
    assert table.read("run-1") == (HEADER, REPORTS, ENDED)
    assert table.read("run-2") == (second, theirs, None)
    assert table.read("run-3") == (None, [], None)
    with pytest.raises(StreamError, match=r"2 runs: 'run-1', 'run-2'\. Choose one"):
        table.read()
    with pytest.raises(StreamError, match=r"must not hold U\+0000"):
        table.open(header("run\0"))
    with engine_of(table).connect() as connection:
        query = f'SELECT stream, rank, item, at_least_users FROM "{table.table}_top_now" ORDER BY stream, rank'
        found = list(map(tuple, connection.exec_driver_sql(query)))
    assert found[:40] == [("news", rank + 1, f"item-{rank}", rank) for rank in range(40)]
    assert found[40:] == [("sport", 1, "goal-5", None)]


def test_a_whole_run_may_have_more_windows_than_a_statement_takes(table):
    more = [
        report(window, *[HeavyHitter(f"{rank}", None, rank) for rank in range(window % 3)])
        for window in range(100, 1200)
    ]
    write_all(table, [*more[::-1], *EDGES], ENDED._replace(reports=len(more) + len(EDGES)))
    assert table.read("run-1")[1] == sorted([*more, *EDGES], key=lambda each: each.window_start)


# --- What others did

DAMAGE = [
    "DELETE FROM NAME WHERE rank = 1",
    "UPDATE NAME SET rank = 7 WHERE item = 'b'",
    "DELETE FROM NAME_windows",
    "UPDATE NAME SET zone = 'sky'",
    "UPDATE NAME_runs SET header = '[]'",
    "UPDATE NAME_runs SET stream = 'olds'",
]
# SQLite stores any value in any column.
OF_OTHER_TYPES = [
    "UPDATE NAME SET window_start = 'yesterday' WHERE item = 'b'",
    "UPDATE NAME_windows SET window_end = 'tomorrow'",
    "UPDATE NAME SET item = x'ff00'",
    "UPDATE NAME SET item_utf8 = x'ff'",
    "UPDATE NAME SET item_utf8 = 'text'",
    "UPDATE NAME SET noisy_count = 0.5",
    "UPDATE NAME_windows SET epsilon_spent = 'much'",
    "UPDATE NAME_runs SET ended_windows = 'some'",
]


def test_damage_is_told_in_one_line(table):
    """Each of them in a table of its own."""
    for number, statement in enumerate([*DAMAGE, *OF_OTHER_TYPES] if table.file else DAMAGE):
        damaged = dataclasses.replace(table, table=f"t{number}")
        write_all(damaged, REPORTS[:1], ENDED._replace(reports=1))
        change(damaged, statement.replace("NAME", damaged.table))
        with pytest.raises(StreamError, match="changed by another program, or is damaged") as caught:
            damaged.read("run-1")
        assert "\n" not in str(caught.value)


def test_tables_of_others_are_not_touched_and_a_run_that_is_gone_is_not_written_on(table):
    theirs = dataclasses.replace(table, table="theirs")
    change(theirs, 'CREATE TABLE "theirs" (thesis TEXT)')
    with pytest.raises(StreamError, match=r"the table 'theirs' of .* cannot be used \(.*already exists"):
        theirs.open(HEADER)
    assert theirs.read("run-1") == (None, [], None)
    writer = table.open(HEADER)
    change(table, f"DELETE FROM {table.table}_runs")
    with pytest.raises(StreamError, match="is damaged"):
        writer.write(REPORTS[0])
    writer.close()
    assert rows_of(table)[f"{table.table}_windows"] == []


# --- SQLite alone


def write_until(left, table):
    """Writes a bundle, and dies before the statement of this number."""
    connect = sqlite3.connect

    def die(statement):
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def traced(*words, **options):
        connection = connect(*words, **options)
        connection.set_trace_callback(die)
        return connection

    sqlite3.connect = traced
    write_all(table, MANY[:2])


def test_a_worker_that_dies_at_any_statement_leaves_all_of_a_bundle_or_nothing(tmp_path):
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    table.open(HEADER)
    for statements in itertools.count():
        was_killed, said = in_a_process(lambda left=statements: write_until(left, table))
        _, reports, ended = table.read("run-1")
        if not was_killed:
            break
        assert (reports, ended) == ([], None)
    assert (said, reports, ended) == ("", MANY[:2], ENDED)
    assert statements > 10, "it dies at many places"


def test_what_is_committed_to_sqlite_is_on_the_disk_and_a_writer_has_the_file_from_its_begin_on(tmp_path):
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    with seen_connections() as seen:
        write_all(table)
        table.read("run-1")
    check_durable_and_in_turns(seen)


def test_the_file_can_be_read_by_all_and_is_no_link(tmp_path):
    before = os.umask(0o022)
    try:
        write_all(ReportTable(f"sqlite:///{tmp_path}/reports.db"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "reports.db").stat().st_mode) == 0o644
    (tmp_path / "link.db").symlink_to(tmp_path / "reports.db")
    os.mkfifo(tmp_path / "pipe.db")
    for name in ("link.db", "pipe.db", "."):
        with pytest.raises(StreamError, match="is not a regular file"):
            ReportTable(f"sqlite:///{tmp_path}/{name}").read("run-1")
        with pytest.raises(StreamError, match="is not a regular file"):
            ReportTable(f"sqlite:///{tmp_path}/{name}").open(HEADER)


def test_a_file_of_another_program_is_told_in_one_line(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine" * 1000)
    table = ReportTable(f"sqlite:///{tmp_path}/thesis.tex")
    for use in (lambda: table.open(HEADER), lambda: table.read("run-1")):
        with pytest.raises(StreamError, match="cannot be used") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "thesis.tex").read_text() == "mine" * 1000


def test_a_password_is_shown_nowhere():
    for url in (
        "postgresql://shh:top-secret@localhost:1/reports",
        "postgresql://shh:top-secret/@:x@localhost:1/reports",
        "postgresql+psycopg://shh:top-secret@localhost:1/reports?connect_timeout=1",
        "postgresql://localhost:1/reports?user=shh&password=top-secret",
        "postgresql://shh:top-secret@localhost:none/reports",
    ):
        table = ReportTable(url)
        with pytest.raises(ValueError, match="must not hold a password"):
            table.check_can_be_written(is_local=False)
        table.check_can_be_written(is_local=True)
        assert "secret" not in f"{table!r} {table.name} {table.address} {table.show_command('run-1')}"
        with pytest.raises(StreamError) as caught:
            table.open(HEADER)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    ReportTable("postgresql://shh@localhost/reports?passfile=/run/pgpass").check_can_be_written(is_local=False)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StreamError, match=r"PostgreSQL needs psycopg.*: pip install '\.\[postgres\]'"):
        ReportTable("postgresql://localhost:1/reports").open(HEADER)


# --- PostgreSQL alone


class TestOnPostgresql:
    pytestmark = ON_POSTGRESQL

    @pytest.fixture
    def table(self, server, tmp_path):
        with sink_of_kind("postgresql", tmp_path, server) as made:
            yield made

    def test_writers_take_turns_and_what_is_committed_is_on_the_disk_whatever_the_default_is(self, table):
        change(table, f"ALTER DATABASE {urlsplit(table.url).path.lstrip('/')} SET synchronous_commit = off")
        shown = []

        def look(connection, cursor, statement, *more):
            if statement.startswith("INSERT"):
                shown.append(cursor.connection.execute("SHOW synchronous_commit").fetchone()[0])

        sa.event.listen(sa.Engine, "after_cursor_execute", look)
        try:
            write_all(table)
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", look)
        assert set(shown) == {"on"}
        with engine_of(table).connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
        writers_take_turns(table)

    @pytest.mark.nightly
    def test_readers_of_another_time_zone_and_writers_of_another_default_see_the_same(self, server, table):
        name = urlsplit(table.url).path.lstrip("/")
        change_server(server, f"ALTER DATABASE {name} SET timezone = 'Pacific/Kiritimati'")
        change_server(server, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        write_all(table)
        assert table.read("run-1")[1] == REPORTS
        with engine_of(table).connect() as connection:
            starts = connection.exec_driver_sql(f'SELECT window_start FROM "{table.table}_windows"').scalars()
            assert {start.utcoffset().total_seconds() for start in starts} == {14 * 3600}

    @pytest.mark.nightly
    def test_a_user_who_may_only_write_rows_can_go_on_with_tables_that_are_there(self, server, table):
        table.open(HEADER).close()
        role = f"r{secrets.token_hex(4)}"
        change(table, f"CREATE ROLE {role} LOGIN")
        for name in (table.table, f"{table.table}_windows", f"{table.table}_runs"):
            change(table, f'GRANT SELECT, INSERT, UPDATE ON "{name}" TO {role}')
        theirs = ReportTable(table.url.replace("shh@", f"{role}@"), table.table)
        write_all(theirs)
        assert theirs.read("run-1")[1] == REPORTS
        with pytest.raises(StreamError, match="permission denied for schema public"):
            ReportTable(theirs.url, "other").open(HEADER)

    @pytest.mark.nightly
    def test_a_database_of_another_encoding_is_refused(self, server):
        table = ReportTable(new_database(server, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"))
        with pytest.raises(StreamError, match="has the encoding LATIN1"):
            table.open(HEADER)
