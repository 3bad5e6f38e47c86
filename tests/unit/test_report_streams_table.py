"""A table of reports in a file: the first answer of a window stays, whatever is written again."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import signal
import sqlite3
import stat
import sys
from typing import Any

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.reports.report_table import ReportTable
from tests.helpers.report_table_contract import (
    ENDED,
    HEADER,
    MANY,
    REPORTS,
    ReportTableContract,
    rows_of,
    write_all,
)
from tests.helpers.seen_connections import check_durable_and_in_turns, seen_connections


class TestOnSqlite(ReportTableContract):
    @pytest.fixture
    def table(self, tmp_path: pathlib.Path) -> ReportTable:
        return ReportTable(f"sqlite:///{tmp_path}/reports.db")


def write_until(left: int, table: ReportTable) -> None:
    """In a process of its own: writes a bundle, and dies before the statement of this number."""
    connect = sqlite3.connect

    def die(statement: str) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def traced(*words: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*words, **options)
        connection.set_trace_callback(die)
        return connection

    sqlite3.connect = traced
    status = 1
    try:
        write_all(table, MANY[:2])
        status = 0
    finally:
        os._exit(status)


def test_a_worker_that_dies_at_any_statement_leaves_all_of_a_bundle_or_nothing(tmp_path: pathlib.Path) -> None:
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    table.open(HEADER)
    statements = 0
    while True:
        if not (child := os.fork()):
            write_until(statements, table)
        _, waited = os.waitpid(child, 0)
        _, reports, ended = table.read("run-1")
        if os.WIFEXITED(waited):
            break
        assert (reports, ended) == ([], None)
        statements += 1
    assert os.WEXITSTATUS(waited) == 0
    assert (reports, ended) == (MANY[:2], ENDED)
    assert statements > 10, "it dies at many places"


def test_what_is_committed_to_sqlite_is_on_the_disk_and_a_writer_has_the_file_from_its_begin_on(
    tmp_path: pathlib.Path,
) -> None:
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    with seen_connections() as seen:
        write_all(table)
        table.read("run-1")
        dataclasses.replace(table, table="whole").write_whole(HEADER, REPORTS, ENDED)
    check_durable_and_in_turns(seen)
    assert seen[-1].writes


def test_the_file_can_be_read_by_all_and_is_no_link(tmp_path: pathlib.Path) -> None:
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


def test_a_file_of_another_program_is_told_in_one_line(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine" * 1000)
    table = ReportTable(f"sqlite:///{tmp_path}/thesis.tex")
    for use in (lambda: table.open(HEADER), lambda: table.read("run-1")):
        with pytest.raises(StreamError, match="cannot be used") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "thesis.tex").read_text() == "mine" * 1000


def test_values_of_other_types_are_damage(tmp_path: pathlib.Path) -> None:
    """SQLite stores any value in any column."""
    for statement in (
        "UPDATE shh_reports SET window_start = 'yesterday' WHERE item = 'b'",
        "UPDATE shh_reports_windows SET window_end = 'tomorrow'",
        "UPDATE shh_reports SET item = x'ff00'",
        "UPDATE shh_reports SET item_utf8 = x'ff'",
        "UPDATE shh_reports SET item_utf8 = 'text'",
        "UPDATE shh_reports SET noisy_count = 0.5",
        "UPDATE shh_reports_windows SET epsilon_spent = 'much'",
        "UPDATE shh_reports_runs SET ended_windows = 'some'",
    ):
        place = tmp_path / "reports.db"
        table = ReportTable(f"sqlite:///{place}")
        table.write_whole(HEADER, REPORTS[:2], ENDED)
        with sqlite3.connect(place) as connection:
            connection.execute(statement)
        connection.close()
        with pytest.raises(StreamError, match="is damaged") as caught:
            table.read("run-1")
        assert "\n" not in str(caught.value)
        place.unlink()


def test_a_run_that_another_program_removed_is_not_written_on(tmp_path: pathlib.Path) -> None:
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    writer = table.open(HEADER)
    with sqlite3.connect(tmp_path / "reports.db") as connection:
        connection.execute("DELETE FROM shh_reports_runs")
    connection.close()
    with pytest.raises(StreamError, match="is damaged"):
        writer.write(REPORTS[0])
    writer.close()
    assert rows_of(table)["shh_reports_windows"] == []


def test_a_table_travels_in_a_job_graph_and_says_what_is_wrong_with_it() -> None:
    table = ReportTable("postgresql://shh@db/reports", "news")
    assert pickle.loads(pickle.dumps(table)) == table  # noqa: S301
    for url in ("reports.db", "mysql://h/d", "sqlite://reports.db", "postgres://h/d", "duckdb:///r.db", ""):
        with pytest.raises(ValueError, match="must be postgresql://HOST/DATABASE or sqlite:///FILE"):
            ReportTable(url)
    for url in ("sqlite:///", "sqlite:///:memory:"):
        with pytest.raises(ValueError, match="must name a file"):
            ReportTable(url)
    for name in ("", "News", "7", "a-b", "a" * 49, 'a"; DROP TABLE b', "a\n"):
        with pytest.raises(ValueError, match="small letters, digits and underscores"):
            ReportTable("sqlite:///r.db", name)


def test_a_password_is_shown_nowhere() -> None:
    for url in (
        "postgresql://shh:top-secret@localhost:1/reports",
        "postgresql://shh:top-secret/@:x@localhost:1/reports",
        "postgresql+psycopg://shh:top-secret@localhost:1/reports?connect_timeout=1",
        "postgresql://localhost:1/reports?user=shh&password=top-secret",
        "postgresql://shh:top-secret@localhost:none/reports",
    ):
        table = ReportTable(url)
        assert table.has_password
        assert "secret" not in repr(table)
        assert "secret" not in table.place
        with pytest.raises(StreamError) as caught:
            table.open(HEADER)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not ReportTable("postgresql://shh@localhost/reports?passfile=/run/pgpass").has_password


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StreamError, match=r"PostgreSQL needs psycopg.*: pip install '\.\[postgres\]'"):
        ReportTable("postgresql://localhost:1/reports").open(HEADER)
