"""How the database of a ledger is connected to: an SQLite file, or PostgreSQL."""

from __future__ import annotations

import pathlib
import sqlite3
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from dp_transforms.ledger.errors import LedgerError

READS = "shh_reads"  # an execution option: the transaction only reads


def sqlite_engine(file: pathlib.Path, wait_seconds: float) -> sa.Engine:
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


def postgres_engine(text: str, wait_seconds: float) -> tuple[sa.Engine, str]:
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: of its port
        raise LedgerError("--ledger must be a path, or a URL such as postgresql://host/database.") from None
    if url.get_backend_name() != "postgresql":
        raise LedgerError(f"--ledger must be a path or a postgresql:// URL, got one of {url.get_backend_name()}.")
    name = url.render_as_string(hide_password=True)
    try:
        # After the row of META is locked, each statement must see what the one before has committed, whatever the
        # default of the server is.
        url = url.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, isolation_level="READ COMMITTED")
    except ImportError:
        raise LedgerError(
            "a ledger on PostgreSQL needs psycopg. Use: pip install 'shifting-heavy-hitters[postgres]'"
        ) from None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, int(wait_seconds * 1000))}")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # a commit that returned is on the disk

    return engine, name
