"""Parameter types and errors that the subcommands share."""

from __future__ import annotations

import datetime

import click

from dp_transforms.cli.grouped_options import BUDGET, INPUT, AnyFunction, add_options, option
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import parse_duration, parse_utc

MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
UNREADABLE = 2  # exit code of a command line that cannot be read, or is not complete


class PublishedError(UserError):
    """The windows are published already, from another log: they stay as they are, and nothing is left to do."""

    exit_code = 3


class NothingFoundError(UserError):
    """There is nothing of what was asked for: nothing was written, and a replay has spent nothing."""

    exit_code = 4


class LogError(UserError):
    """The log alone is why nothing was published: it fails so with any noise, and nobody has seen what was drawn."""


class Duration(click.ParamType):
    """``90s``, ``15m``, ``1h``, ``1d``, ``1w``: whole seconds. may_be_zero: ``0s`` is accepted too."""

    name = "duration"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds == 0 and not self._may_be_zero:
            self.fail(f"{value!r} is not a duration. Use a number and s, m, h, d or w, such as 1h.", param, ctx)
        return seconds


class UtcTime(click.ParamType):
    """An ISO 8601 date or time, UTC unless it says otherwise: whole seconds since 1970 UTC."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_utc(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeZoneName(click.ParamType):
    """A name of the IANA time zone database, such as Europe/Berlin."""

    name = "zone"

    def convert(
        self, value: str | datetime.tzinfo, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime.tzinfo:
        if isinstance(value, datetime.tzinfo):
            return value
        import zoneinfo

        try:
            return zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            from dp_transforms.logs.time_formats import zone_remedy

            self.fail(f"{value!r} is not a time zone that this machine knows. {zone_remedy(value)}", param, ctx)


DURATION = Duration()
DURATION_OR_ZERO = Duration(may_be_zero=True)
UTC_TIME = UtcTime()
TIME_ZONE = TimeZoneName()
FORCE_OPTION = click.option("--force", is_flag=True, help="Replace a page or chart that is there.")
TITLES_OPTION = click.option(
    "--titles",
    metavar="FILE.csv",
    help="What people call the items, on pages and charts: CSV with the columns item and title.",
)
TIME_ZONE_OPTION = click.option(
    "--tz",
    "zone",
    type=TIME_ZONE,
    default="UTC",
    show_default=True,
    metavar="ZONE",
    help="Time zone of tables, pages and charts, such as Europe/Berlin. JSON stays in UTC.",
)

_TIME_TEXT_OPTIONS = (
    option(
        INPUT,
        "--time-format",
        metavar="FORM",
        help="Form of times that are text and not ISO 8601: %d.%m.%Y %H:%M, %m/%d/%Y %I:%M %p, %d/%b/%Y:%H:%M:%S %z.",
    ),
    option(
        INPUT,
        "--time-zone",
        metavar="ZONE",
        help="Zone of times that have none, such as Europe/Berlin. Of an hour that occurs twice the first one is"
        " meant; one that is skipped is read with the offset before. Default: UTC.",
    ),
    option(
        INPUT,
        "--csv-separator",
        metavar="CHARACTER",
        help="What separates the cells of CSV files: one character, or tab. Default: a comma, in .tsv a tab.",
    ),
)
_FIELD_OPTIONS = (
    option(
        INPUT,
        "--user-field",
        brief="Field with the user.",
        default="user",
        show_default=True,
        help="Name of the field with the user: text or a whole number.",
    ),
    option(
        INPUT,
        "--item-field",
        brief="Field with the item.",
        default="item",
        show_default=True,
        help="Name of the field with the item: text or a whole number.",
    ),
    option(
        INPUT,
        "--time-field",
        brief="Field with the time.",
        default="timestamp",
        show_default=True,
        help="Name of the field with the time.",
    ),
    option(
        INPUT,
        "--time-unit",
        brief="Of times that are numbers: s, ms or us.",
        type=click.Choice(["s", "ms", "us", "iso"]),
        help="Unit of times that are numbers, since 1970 UTC. Not needed for typed times and ISO 8601 text.",
    ),
    *_TIME_TEXT_OPTIONS,
    option(
        INPUT,
        "--csv-line-ends-in-cells",
        is_flag=True,
        help="Quoted cells of CSV files may contain line ends. Only for files whose writer quotes every such cell: "
        "else one row can swallow others. A quote that is not closed then ends the run. Without this option each line "
        "is one row, and a line with an open quote is rejected alone.",
    ),
)
READING_OPTIONS = ("time_unit", "time_format", "time_zone", "csv_separator", "csv_line_ends_in_cells")
_PLAN_OPTION = option(
    BUDGET,
    "--plan",
    "plan_file",
    brief="A file of `shh plan`.",
    needed="or the next five",
    metavar="FILE",
    help="A plan of `shh plan --output`, in place of the budget options.",
)


def field_options(function: AnyFunction) -> AnyFunction:
    """Adds the names of the fields of an event, how they are read, and --plan."""
    return log_field_options(_PLAN_OPTION(function))


def log_field_options(function: AnyFunction) -> AnyFunction:
    """Adds the names of the fields of an event, and how they are read."""
    return add_options(function, *_FIELD_OPTIONS)


def time_text_options(function: AnyFunction) -> AnyFunction:
    """Adds how times that are text are read, and what separates cells."""
    return add_options(function, *_TIME_TEXT_OPTIONS)
