"""The tables of a ledger, and records to rows and back: every function works within the caller's transaction.

Amounts are whole numbers as decimal text (`Whole`): a delta in units of 10^-30 does not fit into 64 bits, and no
database may round. Times are ISO 8601 text in UTC, for people: order is by the number of the entry, never by a clock.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dp_transforms.plan.lifetime_cost import NOTHING, BudgetRule, Price
from dp_transforms.runs.ledger.records import Balance, LedgerDamagedError, LedgerError, Part, Population, Run, Status

VERSION = 2
MOST_DIGITS = 60
DAMAGED = "a row of the ledger cannot be read. See: shh ledger doctor"
LOST = "lost"  # mode of what stands for runs that a restored ledger has forgotten
LOST_ID = "lost:"  # before the hash of a run id
_PRICES = ("price", "kept")  # fields of a run, of three amounts each
_AMOUNTS = ("epsilon", "delta", "sampling")


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

_ACTOR = ("who", "place", "process")


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _amounts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, Whole, nullable=False) for name in names]


POPULATIONS = sa.Table(
    "shh_populations",
    _tables,
    sa.Column("name", sa.Text, primary_key=True),
    *_texts("unit", "kind", "rule_order"),
    *_amounts("max_epsilon", "max_delta", "base_epsilon", "base_delta", "sampling"),
    *_texts("declared_at"),
)

RUNS = sa.Table(
    "shh_runs",
    _tables,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("population", sa.Text, sa.ForeignKey("shh_populations.name"), nullable=False),
    *_texts("stream", "plan_fingerprint", "mode", "range_start", "range_end"),
    sa.Column("horizon", sa.BigInteger, nullable=False),
    *_amounts("plan_epsilon", "plan_delta", *(f"{kind}_{name}" for kind in _PRICES for name in _AMOUNTS)),
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
    *_amounts("spent_epsilon", "spent_delta"),
    *_texts("note"),
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


# ---------------------------------------------------------------------------------------------------------------------
# Records to rows and back
# ---------------------------------------------------------------------------------------------------------------------


def hash_of_run_id(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def _read(connection: sa.Connection, table: sa.Table, *order: str, **where: Any) -> Iterator[sa.RowMapping]:
    """The rows whose columns have these values; None: any."""
    query = sa.select(table).order_by(*(table.c[name] for name in order))
    for name, value in where.items():
        query = query if value is None else query.where(table.c[name] == value)
    for row in connection.execute(query).mappings():
        check_row(table, row)
        yield row


def _read_one(connection: sa.Connection, table: sa.Table, **where: Any) -> sa.RowMapping | None:
    found = list(_read(connection, table, **where))
    if len(found) > 1:  # somebody has taken the key away
        raise sa.exc.MultipleResultsFound
    return found[0] if found else None


def read_populations(connection: sa.Connection, name: str | None = None) -> list[Population]:
    """All of them by name, or the one of this name."""
    return [_population(row) for row in _read(connection, POPULATIONS, "name", name=name)]


def write_population(connection: sa.Connection, population: Population) -> None:
    fields = population.rule.to_fields()
    fields["rule_order"] = fields.pop("order")
    own = {"name": population.name, "unit": population.unit, "declared_at": population.declared_at}
    connection.execute(sa.insert(POPULATIONS).values(**own, **fields))


def lower_caps(connection: sa.Connection, population: Population, other: BudgetRule) -> None:
    """The caps of a population are at most those of another rule from now on."""
    caps = {name: min(getattr(population.rule, name), getattr(other, name)) for name in ("max_epsilon", "max_delta")}
    connection.execute(sa.update(POPULATIONS).where(POPULATIONS.c.name == population.name).values(**caps))


def read_run(connection: sa.Connection, run_id: str) -> Run | None:
    row = _read_one(connection, RUNS, run_id=run_id)
    return None if row is None else _run(row)


def hashes_of_run_ids(connection: sa.Connection, population: str) -> list[str]:
    """Of all runs of a population, those in copies that are lost included; ascending."""
    query = sa.select(RUNS.c.run_id, RUNS.c.mode).where(RUNS.c.population == population)
    return sorted(
        str(run_id).removeprefix(LOST_ID) if mode == LOST else hash_of_run_id(str(run_id))
        for run_id, mode in connection.execute(query)
    )


def is_forgotten(connection: sa.Connection, run_id: str) -> bool:
    """Whether a run of this id was in a copy that is lost."""
    return read_run(connection, LOST_ID + hash_of_run_id(run_id)) is not None


def read_runs(connection: sa.Connection, population: str | None = None) -> list[Run]:
    """In the order of their names; of one population, or of all."""
    return [_run(row) for row in _read(connection, RUNS, "reserved_at", "run_id", population=population)]


def run_of_input(connection: sa.Connection, population: str, stream: str, input_fingerprint: str) -> str:
    """The first run of this stream, by its name, of which a part was started on this input; "" if there is none."""
    query = (
        sa.select(RUNS.c.run_id)
        .join(PARTS, PARTS.c.run_id == RUNS.c.run_id)
        .where(RUNS.c.population == population, RUNS.c.stream == stream)
        .where(PARTS.c.input_fingerprint == input_fingerprint, PARTS.c.started_at != "")
        .order_by(RUNS.c.run_id)
        .limit(1)
    )
    return str(connection.execute(query).scalar() or "")


def write_run(connection: sa.Connection, run: Run) -> None:
    fields = {name: value for name, value in vars(run).items() if name not in _PRICES}
    prices = {f"{kind}_{name}": value for kind in _PRICES for name, value in vars(getattr(run, kind)).items()}
    connection.execute(sa.insert(RUNS).values(**fields, **prices))


def set_run(connection: sa.Connection, run_id: str, **changes: Any) -> None:
    connection.execute(sa.update(RUNS).where(RUNS.c.run_id == run_id).values(**changes))


def read_parts(connection: sa.Connection, run_id: str | None = None) -> list[Part]:
    """Of a run, or of all, in the order of their windows; released ones too."""
    return [_part(row) for row in _read(connection, PARTS, "run_id", "first_window", "part", run_id=run_id)]


def read_part(connection: sa.Connection, part: int) -> Part:
    """Raises LedgerDamagedError if it is not there."""
    row = _read_one(connection, PARTS, part=part)
    if row is None:
        raise LedgerDamagedError(f"part {part} is not in the ledger. See: shh ledger doctor")
    return _part(row)


def write_part(connection: sa.Connection, part: Part) -> int:
    """Returns the number that the part gets."""
    fields = {name: value for name, value in vars(part).items() if name != "part"}
    key = connection.execute(sa.insert(PARTS).values(**fields)).inserted_primary_key
    assert key is not None
    return int(key[0])


def set_part(connection: sa.Connection, part: int, **changes: Any) -> None:
    connection.execute(sa.update(PARTS).where(PARTS.c.part == part).values(**changes))


def end_run(connection: sa.Connection, run_id: str, parts: Sequence[Part], status: Status) -> None:
    """The run and those of its parts that are open get this status. parts: all of the run."""
    set_run(connection, run_id, status=status)
    for part in parts:
        if part.status not in (Status.FINISHED, Status.RELEASED):
            set_part(connection, part.part, status=status)


def read_balance(connection: sa.Connection, population: Population) -> Balance:
    """The sum over all runs, in whole numbers; of the released ones what they keep."""
    of_population, is_released = RUNS.c.population == population.name, RUNS.c.status == Status.RELEASED
    price, kept = (
        [
            Price(*row)
            for row in connection.execute(
                sa.select(*(RUNS.c[f"{kind}_{name}"] for name in _AMOUNTS)).where(of_population, condition)
            )
        ]
        for kind, condition in (("price", ~is_released), ("kept", is_released))
    )
    total = population.rule.total(functools.reduce(operator.add, price, NOTHING), len(price))
    return Balance(population, len(price), functools.reduce(operator.add, kept, total))


def read_spent(connection: sa.Connection) -> dict[str, dict[str, Any]]:
    """What the counter file names of each population: its rule, and what it spent."""
    return {
        population.name: {
            **population.rule.to_fields(),
            "unit": population.unit,
            "declared_at": population.declared_at,
            "runs": (balance := read_balance(connection, population)).runs,
            "run_ids": hashes_of_run_ids(connection, population.name),
            "spent": [balance.total.epsilon, balance.total.delta, balance.total.sampling],
        }
        for population in read_populations(connection)
    }


def read_journal(connection: sa.Connection) -> list[dict[str, Any]]:
    """All entries, in order."""
    entries = [dict(row) for row in _read(connection, JOURNAL, "counter")]
    for entry in entries:
        try:
            has_zone = datetime.datetime.fromisoformat(entry["at"]).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            raise LedgerDamagedError(DAMAGED)
    return entries


def rule_of(fields: dict[str, Any]) -> BudgetRule:
    """Raises LedgerDamagedError for a rule that cannot be."""
    try:
        return BudgetRule.from_fields(fields)
    except (ValueError, KeyError, TypeError, ArithmeticError):
        raise LedgerDamagedError(DAMAGED) from None


def _population(row: sa.RowMapping) -> Population:
    fields = {**row, "order": row["rule_order"]}
    return Population(row["name"], row["unit"], rule_of(fields), row["declared_at"])


def _run(row: sa.RowMapping) -> Run:
    prices: dict[str, Any] = {kind: Price(*(row[f"{kind}_{name}"] for name in _AMOUNTS)) for kind in _PRICES}
    names = [field.name for field in dataclasses.fields(Run) if field.name not in _PRICES]
    return Run(**prices, **{name: row[name] for name in names} | {"status": _status(row)})


def _part(row: sa.RowMapping) -> Part:
    return Part(**{**row, "status": _status(row)})


def _status(row: sa.RowMapping) -> Status:
    try:
        return Status(row["status"])
    except ValueError:
        raise LedgerDamagedError(DAMAGED) from None
