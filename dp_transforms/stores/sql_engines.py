"""How databases are connected to: an SQLite file, or PostgreSQL. A connection lives for one transaction.

What returned from a commit is on the disk, whatever the default of the server is.
"""

from __future__ import annotations

import pathlib
import sqlite3
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from dp_transforms.checks import how_to_install, on_one_line

READS = "shh_reads"  # an execution option: the transaction only reads


class NoDriverError(Exception):
    """The library of a database is not installed."""


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
        raise NoDriverError(f"PostgreSQL needs psycopg. {how_to_install('postgres')}") from None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, int(wait_seconds * 1000))}")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # a commit that returned is on the disk

    return engine


def reason_of(error: sa.exc.DBAPIError) -> str:
    """The first line of what the database says, without any value of a statement."""
    return on_one_line(str(error.orig).strip().partition("\n")[0], most=200)
