"""Databases: which URLs name one, how errors show them, and how they are connected to: an SQLite file, or PostgreSQL.

A connection lives for one transaction. What returned from a commit is on the disk, whatever the default of the server
is. The library is imported when a database is connected to: whether a path names one is asked by every command.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from dp_transforms.checks import how_to_install, on_one_line, without_secrets

if TYPE_CHECKING:
    import sqlite3

    import sqlalchemy as sa

DEFAULT_TABLE = "shh_reports"  # of reports
POSTGRESQL, SQLITE = "postgresql", "sqlite"
_DATABASES = (POSTGRESQL, SQLITE, "duckdb")  # the last one is not written to: who asks for it is told what to do
READS = "shh_reads"  # an execution option: the transaction only reads


def database_of(place: str | os.PathLike[str]) -> str | None:
    """``postgresql``, ``sqlite`` or ``duckdb``; None for a path, and for any other URL."""
    scheme, found, _ = os.fspath(place).partition("://")
    name = scheme.partition("+")[0]
    return name if found and name in _DATABASES else None


def is_database(place: str | os.PathLike[str]) -> bool:
    return database_of(place) is not None


def has_password(url: str) -> bool:
    """Whether the URL itself holds one."""
    return "***" in shown_url(url)


def shown_url(url: str) -> str:
    """The URL as an error shows it: without its password, and without its options, which may hold one."""
    hidden = re.sub(r"//([^:/@?]*):.*@", r"//\1:***@", url, flags=re.DOTALL)  # all of it is a URL, whatever is in it
    plain, _, options = without_secrets(hidden).partition("?")
    return on_one_line(f"{plain}?***" if "***" in options else plain)


class NoDriverError(Exception):
    """The library of a database is not installed."""


def sqlite_engine(file: pathlib.Path, wait_seconds: float) -> sa.Engine:
    """Of a file that is there. A transaction that writes begins as BEGIN IMMEDIATE: one after the other."""
    import sqlite3

    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    def connect() -> sqlite3.Connection:
        # mode=rw: the file is made by us alone, with its mode. The driver must not begin transactions by itself.
        uri = f"file:{quote(os.fsencode(file))}?mode=rw"  # a name may be any bytes
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
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

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
    return on_one_line(without_secrets(str(error.orig).strip().partition("\n")[0]), most=200)
