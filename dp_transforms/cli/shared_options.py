"""The options that several commands share, as records, and what is made of them."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import TYPE_CHECKING

import click

from dp_transforms.cli.options import BUDGET, INPUT, OUTPUT, TIME_ZONE, flag, nested, opt, switch
from dp_transforms.errors import UserError

if TYPE_CHECKING:
    from apache_beam import GcpSecret

    from dp_transforms.logs import EventFields

STANDARD_INPUT = "-"  # a log on it
_SECRET_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")
_FLAGS_OF_FIELDS = {"user": "--user-field", "item": "--item-field", "time": "--time-field"}
_FLAGS_OF_FIELDS |= {
    name: flag(name) for name in ("time_unit", "time_format", "time_zone", "csv_separator", "stream_field")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How times and cells are read."""

    time_unit: str | None = opt(
        INPUT,
        "Unit of times that are numbers, since 1970 UTC. Not needed for typed times and ISO 8601 text.",
        brief="Of times that are numbers: s, ms or us.",
        type=click.Choice(["s", "ms", "us", "iso"]),
    )
    time_format: str | None = opt(
        INPUT,
        "Form of times that are text and not ISO 8601: %d.%m.%Y %H:%M, %m/%d/%Y %I:%M %p, %d/%b/%Y:%H:%M:%S %z.",
        metavar="FORM",
    )
    time_zone: str | None = opt(
        INPUT,
        "Zone of times that have none, such as Europe/Berlin. Of an hour that occurs twice the first one is"
        " meant; one that is skipped is read with the offset before. Default: UTC.",
        metavar="ZONE",
    )
    csv_separator: str | None = opt(
        INPUT,
        "What separates the cells of CSV files: one character, or tab. Default: a comma, in .tsv a tab.",
        metavar="CHARACTER",
    )
    csv_line_ends_in_cells: bool = switch(
        INPUT,
        "Quoted cells of CSV files may contain line ends. Only for files whose writer quotes every such cell: "
        "else one row can swallow others. A quote that is not closed then ends the run. Without this option each line "
        "is one row, and a line with an open quote is rejected alone.",
    )

    @property
    def separator(self) -> str | None:
        """The character of --csv-separator."""
        return "\t" if self.csv_separator in ("tab", "\\t") else self.csv_separator

    def fields(
        self,
        user: str = "user",
        item: str = "item",
        time: str = "time",
        facets: tuple[str, ...] = (),
        stream_field: str | None = None,
    ) -> EventFields:
        """These fields, read so. Raises UserError."""
        from dp_transforms.logs import EventFields  # a plan needs no reader

        try:
            return EventFields(
                user,
                item,
                time,
                self.time_unit,
                csv_line_ends_in_cells=self.csv_line_ends_in_cells,
                time_format=self.time_format,
                time_zone=self.time_zone,
                csv_separator=self.separator,
                facets=facets,
                stream_field=stream_field,
            )
        except ValueError as error:
            names, must, rest = str(error).partition(" must ")  # what follows may hold a name of the operator's own
            flags = re.sub(rf"\b({'|'.join(_FLAGS_OF_FIELDS)})\b", lambda match: _FLAGS_OF_FIELDS[match[1]], names)
            raise UserError(flags + must + rest) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """The names of the fields of an event, and how they are read."""

    user_field: str = opt(
        INPUT, "Name of the field with the user: text or a whole number.", brief="Field with the user.", default="user"
    )
    item_field: str = opt(
        INPUT, "Name of the field with the item: text or a whole number.", brief="Field with the item.", default="item"
    )
    stream_field: str | None = opt(
        INPUT,
        "Name of the field with the stream, such as search or click. Items are then called `STREAM: ITEM`, and a user"
        " has one budget for all streams.",
        metavar="NAME",
    )
    time_field: str = opt(INPUT, "Name of the field with the time.", brief="Field with the time.", default="timestamp")
    reading: ReadingOptions = nested(ReadingOptions)

    def fields(self, facets: tuple[str, ...] = ()) -> EventFields:
        """facets: of `--by`. Raises UserError."""
        return self.reading.fields(self.user_field, self.item_field, self.time_field, facets, self.stream_field)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """How tables, pages and charts name items and times."""

    titles: str | None = opt(
        OUTPUT,
        "What people call the items: CSV with the columns item and title.",
        metavar="FILE.csv",
    )
    zone: datetime.tzinfo = opt(
        OUTPUT,
        "Time zone of tables, pages and charts, such as Europe/Berlin. JSON stays in UTC.",
        "--tz",
        type=TIME_ZONE,
        default="UTC",
        metavar="ZONE",
    )


def log_format_option(group: str) -> str | None:
    """The field of a command that takes standard input for a log."""
    made: str | None = opt(
        group,
        "Format of a LOG on standard input, which is named -.",
        "--format",
        type=click.Choice(["csv", "tsv", "jsonl", "avro", "parquet"]),
    )
    return made


def force_option() -> bool:
    """The field of a command that writes views."""
    made: bool = switch("", "Replace a page, chart or table that is there.")
    return made


def plan_file_option() -> str | None:
    """The field of a command that takes a plan, or the options of one."""
    made: str | None = opt(
        BUDGET,
        "A plan of `shh plan --output`, in place of the budget options.",
        "--plan",
        brief="A file of `shh plan`.",
        needed="or the next five",
        metavar="FILE",
    )
    return made


def noise_key_secret(version: str) -> GcpSecret:
    """A noise key in Google Secret Manager, which workers fetch themselves. Nothing is fetched here.

    version: of ``--noise-key-secret``. Raises UserError for anything but a fixed version.
    """
    if not _SECRET_VERSION.fullmatch(version):
        raise UserError(
            "--noise-key-secret must be projects/P/secrets/S/versions/N with a number N: a key must not change"
            " while a run goes on."
        )
    from apache_beam import GcpSecret  # a stream waits for Beam anyway; a replay here must not

    return GcpSecret(version)
