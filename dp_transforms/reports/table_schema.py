"""The tables of reports and their view, made where they are missing.

Times are UTC: with a time zone on PostgreSQL, whose readers then show them in theirs, and without one on SQLite,
which has none.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import sqlalchemy as sa

from dp_transforms.errors import StreamError

_EPOCH = datetime.datetime(1970, 1, 1)
_ADVISORY_LOCK = 0x7368_6872  # of PostgreSQL, while the tables are made


class Micros(sa.types.TypeDecorator[int]):
    """Microseconds since 1970 UTC, exactly, as a time that people can read."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        return dialect.type_descriptor(sa.DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> datetime.datetime | None:
        assert value is not None
        moment = _EPOCH + datetime.timedelta(microseconds=value)
        return moment.replace(tzinfo=datetime.UTC) if dialect.name == "postgresql" else moment

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int:
        if not isinstance(value, datetime.datetime):
            raise ValueError("a time of a report must be a time.")
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        moment: datetime.datetime = value
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


@dataclasses.dataclass(frozen=True)
class ReportTables:
    """The tables of one name: of runs, of windows with heavy items, and of these items."""

    name: str
    runs: sa.Table
    windows: sa.Table
    items: sa.Table

    @classmethod
    def of_name(cls, name: str) -> ReportTables:
        tables = sa.MetaData()
        runs = sa.Table(
            f"{name}_runs",
            tables,
            sa.Column("run_id", sa.Text, primary_key=True),
            sa.Column("stream", sa.Text, nullable=False),
            sa.Column("header", sa.Text, nullable=False),  # JSON: guarantee and plan
            sa.Column("ended_windows", sa.BigInteger),  # null: the run goes on
            sa.Column("ended_reports", sa.BigInteger),
        )
        windows = sa.Table(
            f"{name}_windows",
            tables,
            sa.Column("run_id", sa.Text, primary_key=True),
            sa.Column("window_start", Micros, primary_key=True),
            sa.Column("window_end", Micros, nullable=False),
            sa.Column("stream", sa.Text, nullable=False),
            sa.Column("heavy_items", sa.Integer, nullable=False),  # how many rows it has in the other table
            *(sa.Column(each, sa.Double, nullable=False) for each in ("epsilon_total", "delta", "epsilon_spent")),
        )
        items = sa.Table(
            name,
            tables,
            sa.Column("run_id", sa.Text, primary_key=True),
            sa.Column("window_start", Micros, primary_key=True),
            sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),  # from 1
            sa.Column("window_end", Micros, nullable=False),
            sa.Column("stream", sa.Text, nullable=False),
            sa.Column("item", sa.Text, nullable=False),
            # The bytes of a label with U+0000, which PostgreSQL cannot have in a text; `item` has U+FFFD in its place.
            sa.Column("item_utf8", sa.LargeBinary),
            sa.Column("zone", sa.Text),
            *(sa.Column(each, sa.BigInteger) for each in ("noisy_count", "level", "at_least_users")),
            sa.Index(f"{name}_by_stream", "stream", "window_start"),
        )
        return cls(name, runs, windows, items)

    @property
    def _all(self) -> tuple[sa.Table, ...]:
        return self.runs, self.windows, self.items

    def exist(self, connection: sa.Connection) -> bool:
        """Whether they are there. Raises StreamError for tables of these names that are others."""
        inspector = sa.inspect(connection)
        found = [table for table in self._all if inspector.has_table(table.name)]
        for table in found:
            missing = {column.name for column in table.columns} - {
                column["name"] for column in inspector.get_columns(table.name)
            }
            if missing:
                raise StreamError(
                    f"the database has a table {table.name!r} that is not of reports: it has no column"
                    f" {sorted(missing)[0]!r}. Name another one with --output-table."
                )
        if found and len(found) < len(self._all):
            lacks = next(table.name for table in self._all if table not in found)
            raise StreamError(f"the database has {found[0].name!r} and lacks {lacks!r}. Name another --output-table.")
        return bool(found)

    def create(self, connection: sa.Connection) -> None:
        """Makes the tables and the view, unless another worker has done so."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        if not self.exist(connection):
            self.runs.metadata.create_all(connection, checkfirst=False)
            connection.exec_driver_sql(self._view())

    def _view(self) -> str:
        """The newest window with heavy items of each stream. The name is of letters, digits and underscores alone."""
        shown = ("stream", "window_start", "window_end", "rank", "item", "zone", "noisy_count", "level")
        columns = ", ".join(f"items.{column}" for column in (*shown, "at_least_users", "run_id"))
        return (
            f'CREATE VIEW "{self.name}_top_now" AS SELECT {columns} FROM "{self.name}" AS items JOIN'
            f' (SELECT stream, max(window_start) AS newest FROM "{self.name}_windows" GROUP BY stream) AS latest'
            " ON items.stream = latest.stream AND items.window_start = latest.newest"
        )
