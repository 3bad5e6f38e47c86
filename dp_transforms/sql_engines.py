"""How databases are connected to: an SQLite file, a DuckDB file, or PostgreSQL. A connection lives for one transaction.

What returned from a commit is on the disk, whatever the default of the server is.
"""

from __future__ import annotations

import pathlib
import sqlite3
import time
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from dp_transforms.checks import how_to_install, on_one_line

READS = "shh_reads"  # an execution option: the transaction only reads
_POLL_SECONDS = 0.02
# What DuckDB says of a file that another process has open, or another thread of this one to read or to write.
_DUCKDB_IS_BUSY = ("Could not set lock", "different configuration")


class NoDriverError(Exception):
    """The library of a database is not installed. extra: what installs it."""

    def __init__(self, database: str, library: str, extra: str) -> None:
        super().__init__(f"{database} needs {library}. {how_to_install(extra)}")


def sqlite_engine(file: pathlib.Path, wait_seconds: float) -> sa.Engine:
    """Of a file that is there. A transaction that writes begins as BEGIN IMMEDIATE: one after the other."""

    def connect() -> sqlite3.Connection:
        # mode=rw: the file is made by us alone, with its mode. The driver must not begin transactions by itself.
        uri = f"file:{quote(str(file))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=wait_seconds, isolation_level=None)
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def postgres_engine(url: sa.URL, wait_seconds: float) -> sa.Engine:
    """wait_seconds: for a lock. Raises NoDriverError."""
    try:
        # After a row is locked, each statement must see what the transaction before has committed, whatever the default
        # of the server is.
        url = url.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, isolation_level="READ COMMITTED")
    except ImportError:
        raise NoDriverError("PostgreSQL", "psycopg", "postgres") from None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, int(wait_seconds * 1000))}")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # a commit that returned is on the disk

    return engine


def duckdb_engine(file: pathlib.Path, wait_seconds: float, *, reads: bool) -> sa.Engine:
    """DuckDB lets one process have a file, or several that only read: each waits for the other. Raises
    NoDriverError."""
    try:
        import duckdb
        import duckdb_sqlalchemy
    except ImportError:
        raise NoDriverError("DuckDB", "duckdb-sqlalchemy", "duckdb") from None
    assert duckdb_sqlalchemy  # the dialect

    # Nothing is loaded or fetched that a file, or a view in it, may name.
    config = {"autoinstall_known_extensions": "false", "enable_external_access": "false"}
    url = sa.URL.create("duckdb", database=str(file))
    arguments = {"read_only": reads, "config": config}
    engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: sa.Dialect, record: Any, words: Any, options: Any) -> Any:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                return dialect.connect(*words, **options)
            except duckdb.Error as error:
                is_busy = any(words in str(error) for words in _DUCKDB_IS_BUSY)
                if not is_busy or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    return engine


def reason_of(error: sa.exc.DBAPIError) -> str:
    """The first line of what the database says, without any value of a statement."""
    return on_one_line(str(error.orig).strip().partition("\n")[0], most=200)
