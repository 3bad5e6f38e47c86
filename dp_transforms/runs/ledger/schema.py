"""The tables of a ledger.

Amounts are whole numbers as decimal text (`Whole`): a delta in units of 10^-30 does not fit into 64 bits, and no
database may round. Times are ISO 8601 text in UTC, for people: order is by the number of the entry, never by a clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from dp_transforms.runs.ledger.errors import LedgerDamagedError, LedgerError

VERSION = 2
MOST_DIGITS = 60
DAMAGED = "a row of the ledger cannot be read. See: shh ledger doctor"


class Whole(sa.types.TypeDecorator[int]):
    """A whole number >= 0 of any size, as its decimal digits."""

    impl = sa.String(MOST_DIGITS)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0 or len(str(value)) > MOST_DIGITS:
            raise ValueError("an amount must be a whole number >= 0.")
        return str(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int:
        if not isinstance(value, str) or not value.isascii() or not value.isdecimal() or len(value) > MOST_DIGITS:
            raise LedgerDamagedError("an amount of the ledger is not a whole number. See: shh ledger doctor")
        return int(value)


_tables = sa.MetaData()

META = sa.Table(
    "shh_ledger",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),  # one row, 1
    sa.Column("ledger_id", sa.String(32), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("counter", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)

POPULATIONS = sa.Table(
    "shh_populations",
    _tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("unit", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("rule_order", sa.Text, nullable=False),
    sa.Column("max_epsilon", Whole, nullable=False),
    sa.Column("max_delta", Whole, nullable=False),
    sa.Column("base_epsilon", Whole, nullable=False),
    sa.Column("base_delta", Whole, nullable=False),
    sa.Column("sampling", Whole, nullable=False),
    sa.Column("declared_at", sa.Text, nullable=False),
)

_ACTOR = ("who", "place", "process")


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


RUNS = sa.Table(
    "shh_runs",
    _tables,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("population", sa.Text, sa.ForeignKey("shh_populations.name"), nullable=False),
    *_texts("stream", "plan_fingerprint", "release", "range_start", "range_end"),
    sa.Column("horizon", sa.BigInteger, nullable=False),
    sa.Column("plan_epsilon", Whole, nullable=False),
    sa.Column("plan_delta", Whole, nullable=False),
    sa.Column("price_epsilon", Whole, nullable=False),
    sa.Column("price_delta", Whole, nullable=False),
    sa.Column("price_sampling", Whole, nullable=False),
    sa.Column("kept_epsilon", Whole, nullable=False),
    sa.Column("kept_delta", Whole, nullable=False),
    sa.Column("kept_sampling", Whole, nullable=False),
    *_texts("key_fingerprint", "status", *_ACTOR, "reserved_at"),
)

PARTS = sa.Table(
    "shh_parts",
    _tables,
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("shh_runs.run_id"), nullable=False),
    sa.Column("first_window", sa.BigInteger, nullable=False),
    sa.Column("end_window", sa.BigInteger, nullable=False),
    *_texts("input_fingerprint", "state_before", "state_after", "status"),
    sa.Column("claim", sa.BigInteger, nullable=False),
    *_texts(*_ACTOR, "reserved_at", "started_at", "finished_at"),
)
sa.Index(
    "shh_one_part_at_a_window",
    PARTS.c.run_id,
    PARTS.c.first_window,
    unique=True,
    sqlite_where=PARTS.c.status != "released",
    postgresql_where=PARTS.c.status != "released",
)

JOURNAL = sa.Table(
    "shh_journal",
    _tables,
    sa.Column("counter", sa.BigInteger, primary_key=True, autoincrement=False),
    *_texts("at", "action", "population", "run_id"),
    sa.Column("part", sa.BigInteger, nullable=False),
    *_texts(*_ACTOR),
    sa.Column("spent_epsilon", Whole, nullable=False),
    sa.Column("spent_delta", Whole, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)


def check_row(table: sa.Table, row: Mapping[Any, Any]) -> None:
    """Raises LedgerDamagedError for a value of another type than its column: SQLite stores any in each."""
    for column in table.columns:
        value = row[column.name]
        is_text = isinstance(column.type, sa.String)
        if not (isinstance(value, str) if is_text else isinstance(value, int) and value >= 0):
            raise LedgerDamagedError(DAMAGED)


def create_tables(connection: sa.Connection) -> None:
    """All tables, empty; those that are there stay."""
    _tables.create_all(connection)


def has_tables(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table(META.name)


def entry_digest(before: str, entry: Mapping[str, Any]) -> str:
    """Hex SHA-256 that chains an entry to all before it. entry: the columns of the journal but the digest itself."""
    plain = {column.name: entry[column.name] for column in JOURNAL.columns if column.name != "digest"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def check_version(connection: sa.Connection) -> None:
    """Raises LedgerError for tables of another version, which this program would not keep to."""
    version = connection.execute(sa.select(META.c.version)).scalar_one()
    if not isinstance(version, int) or version < 0:
        raise LedgerDamagedError(DAMAGED)
    if version != VERSION:
        raise LedgerError(
            f"the ledger has version {version}, and this program knows version {VERSION} alone. Use the shh that wrote"
            " it."
        )
