"""How the database of a ledger is connected to: an SQLite file, or PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from dp_transforms.runs.ledger.errors import LedgerError
from dp_transforms.stores.databases import READS, NoDriverError, shown_url, sqlite_engine
from dp_transforms.stores.databases import postgres_engine as engine_of_url

__all__ = ["READS", "postgres_engine", "sqlite_engine"]


def postgres_engine(text: str, wait_seconds: float) -> tuple[sa.Engine, str]:
    """The engine, and the name of the database without a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: of its port
        raise LedgerError("--ledger must be a path, or a URL such as postgresql://host/database.") from None
    if url.get_backend_name() != "postgresql":
        raise LedgerError(f"--ledger must be a path or a postgresql:// URL, got one of {url.get_backend_name()}.")
    try:
        return engine_of_url(url, wait_seconds), shown_url(text)
    except NoDriverError as error:
        raise LedgerError(f"a ledger on {error}") from None
