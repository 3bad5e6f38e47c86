"""A table of reports on a real PostgreSQL server: where this machine has one."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest
import sqlalchemy as sa

from dp_transforms.errors import StreamError
from dp_transforms.reports.report_table import ReportTable
from tests.helpers import postgres_server
from tests.helpers.report_table_contract import HEADER, REPORTS, ReportTableContract, change, engine_of, write_all

pytestmark = [
    pytest.mark.skipif(bool(postgres_server.skip_reason()), reason=postgres_server.skip_reason() or "it is there"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server.server() as url:
        yield url


def new_database(server: str, words: str = "") -> str:
    name = f"t{secrets.token_hex(6)}"
    change_server(server, f"CREATE DATABASE {name} {words}")
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def change_server(server: str, statement: str) -> None:
    engine = sa.create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def table(server: str) -> ReportTable:
    return ReportTable(new_database(server), "order")  # a word of SQL


def test_writers_take_turns_and_what_is_committed_is_on_the_disk_whatever_the_default_is(table: ReportTable) -> None:
    change(table, f"ALTER DATABASE {urlsplit(table.url).path.lstrip('/')} SET synchronous_commit = off")
    with contextlib.closing(table.open(HEADER)) as writer:
        writer.write(REPORTS[0])
        shown = writer._connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
    with engine_of(table).connect() as connection:
        assert (shown, connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()) == ("on", "off")
    ReportTableContract().test_a_writer_waits_for_the_one_that_has_begun(table)


class TestOnPostgresql(ReportTableContract):
    def test_readers_of_another_time_zone_and_writers_of_another_default_see_the_same(
        self, server: str, table: ReportTable
    ) -> None:
        name = urlsplit(table.url).path.lstrip("/")
        change_server(server, f"ALTER DATABASE {name} SET timezone = 'Pacific/Kiritimati'")
        change_server(server, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        write_all(table)
        assert table.read("run-1")[1] == REPORTS
        with engine_of(table).connect() as connection:
            starts = connection.exec_driver_sql(f'SELECT window_start FROM "{table.table}_windows"').scalars()
            assert {start.utcoffset().total_seconds() for start in starts} == {14 * 3600}

    def test_a_user_who_may_only_write_rows_can_go_on_with_tables_that_are_there(
        self, server: str, table: ReportTable
    ) -> None:
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


def test_a_database_of_another_encoding_is_refused(server: str) -> None:
    table = ReportTable(new_database(server, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"))
    with pytest.raises(StreamError, match="has the encoding LATIN1"):
        table.open(HEADER)
