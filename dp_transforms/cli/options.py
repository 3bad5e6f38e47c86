"""What the options of all commands are made of, the options that several commands share, and what they are read as.

Commands have dozens of options, so they stand in groups: ``--help`` shows those of every day, ``--help-all`` all.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import parse_duration, parse_utc

if TYPE_CHECKING:
    from apache_beam import GcpSecret

    from dp_transforms.logs import EventFields

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED = "Input", "Budget", "Output", "Engine", "Advanced"
GROUPS = (INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED)
_SHOWS_ALL = "shh.help_all"
MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
UNREADABLE = 2  # exit code of a command line that cannot be read, or is not complete
_SECRET_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")


class GroupedOption(click.Option):
    """group: one of `GROUPS`. brief: what the short help says of it; without, only the long one has it. needed: what
    stands behind an option that a run needs; click cannot know, since a plan or another input may stand for it."""

    def __init__(self, *names: Any, group: str, brief: str = "", needed: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group, self.brief, self.needed = group, brief, needed

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.brief and not ctx.meta.get(_SHOWS_ALL):
            kind = str(self.name).rpartition("_")[2].upper() if isinstance(self.type, click.Choice) else None
            takes = "" if self.is_flag else f" {self.metavar or kind or self.type.name.upper()}"
            record: tuple[str, str] | None = self.opts[0] + takes, self.brief
        else:
            record = super().get_help_record(ctx)
        return (record[0], f"{record[1]} [{self.needed}]") if record and self.needed else record


def flag(name: str) -> str:
    """``hits_per_user`` -> ``--hits-per-user``."""
    return "--" + name.replace("_", "-")


def option(group: str, *names: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """`click.option` of a group; attributes: also those of `GroupedOption`."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def add_options(function: AnyFunction, *options: Callable[[AnyFunction], AnyFunction]) -> AnyFunction:
    """The function with these options, in this order."""
    for each in reversed(options):
        function = each(function)
    return function


def adds(*options: Callable[[AnyFunction], AnyFunction]) -> Callable[[AnyFunction], AnyFunction]:
    """A decorator that adds these options, in this order."""
    return lambda function: add_options(function, *options)


class GroupedCommand(click.Command):
    """A command with `GroupedOption`s, and ``--help-all``."""

    def __init__(self, *words: Any, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        shows: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
        self.params.append(GroupedOption(["--help-all"], group=ADVANCED, help="Show all options.", **shows))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.params if isinstance(each, GroupedOption)]
        shown = [each for each in options if each.brief or ctx.meta.get(_SHOWS_ALL)]
        for group in GROUPS:
            of_group = sorted((each for each in shown if each.group == group), key=lambda each: not each.needed)
            if of_group:
                with formatter.section(group):
                    formatter.write_dl([record for each in of_group if (record := each.get_help_record(ctx))])
        if len(shown) < len(options):
            formatter.write(f"\nAll {len(options)} options: {ctx.command_path} --help-all\n")


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class PublishedError(UserError):
    """The windows are published already, from another log: they stay as they are, and nothing is left to do."""

    exit_code = 3


class NothingFoundError(UserError):
    """There is nothing of what was asked for: nothing was written, and a replay has spent nothing."""

    exit_code = 4


class LogError(UserError):
    """The log alone is why nothing was published: it fails so with any noise, and nobody has seen what was drawn."""


@contextlib.contextmanager
def user_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Errors of these kinds become UserErrors. Only for messages that were written to be shown."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{prefix}{error}") from None


class ParsedText(click.ParamType):
    """What a function makes of the text of an option, or of its default; its ValueError says what is wrong with it."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> int:
    """``90s``, ``15m``, ``1h``, ``1d``, ``1w``: whole seconds, at least 1."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError(f"{text!r} is not a duration. Use a number and s, m, h, d or w, such as 1h.")
    return seconds


def _time_zone(name: str) -> datetime.tzinfo:
    """name: of the IANA time zone database, such as Europe/Berlin."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        from dp_transforms.logs.time_formats import zone_remedy

        raise ValueError(f"{name!r} is not a time zone that this machine knows. {zone_remedy(name)}") from None


DURATION = ParsedText("duration", _duration)
DURATION_OR_ZERO = ParsedText("duration", parse_duration)
UTC_TIME = ParsedText("time", parse_utc)  # whole seconds since 1970 UTC
FORCE_OPTION = click.option("--force", is_flag=True, help="Replace a page or chart that is there.")
TITLES_OPTION = click.option(
    "--titles",
    metavar="FILE.csv",
    help="What people call the items, on pages and charts: CSV with the columns item and title.",
)
TIME_ZONE_OPTION = click.option(
    "--tz",
    "zone",
    type=ParsedText("zone", _time_zone),
    default="UTC",
    show_default=True,
    metavar="ZONE",
    help="Time zone of tables, pages and charts, such as Europe/Berlin. JSON stays in UTC.",
)
NOISE_KEY_SECRET = option(
    BUDGET,
    "--noise-key-secret",
    metavar="VERSION",
    help="The noise key as a version of a secret in Google Secret Manager, projects/P/secrets/S/versions/1.",
)
# How times that are text are read, and what separates cells.
time_text_options = adds(
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
# The names of the fields of an event, and how they are read.
log_field_options = adds(
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
    time_text_options,
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
field_options = adds(
    log_field_options,
    option(
        BUDGET,
        "--plan",
        "plan_file",
        brief="A file of `shh plan`.",
        needed="or the next five",
        metavar="FILE",
        help="A plan of `shh plan --output`, in place of the budget options.",
    ),
)

_FLAGS_OF_FIELDS = {"user": "--user-field", "item": "--item-field", "time": "--time-field"}
_FLAGS_OF_FIELDS |= {name: flag(name) for name in ("time_unit", "time_format", "time_zone", "csv_separator")}


def separator_of(options: Mapping[str, Any]) -> str | None:
    """The character of --csv-separator."""
    given: str | None = options["csv_separator"]
    return "\t" if given in ("tab", "\\t") else given


def reading_of(options: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """`EventFields.time_reading`, of options that may name no field yet. Raises UserError."""
    fields = event_fields({**options, "user_field": "user", "item_field": "item", "time_field": "time"})
    return fields.time_reading


def event_fields(options: Mapping[str, Any]) -> EventFields:
    """The fields that the options name. Raises UserError."""
    from dp_transforms.logs import EventFields  # a plan needs no reader

    try:
        return EventFields(
            options["user_field"],
            options["item_field"],
            options["time_field"],
            options["time_unit"],
            csv_line_ends_in_cells=options["csv_line_ends_in_cells"],
            time_format=options["time_format"],
            time_zone=options["time_zone"],
            csv_separator=separator_of(options),
        )
    except ValueError as error:
        names, must, rest = str(error).partition(" must ")  # what follows may hold a name of the operator's own
        flags = re.sub(rf"\b({'|'.join(_FLAGS_OF_FIELDS)})\b", lambda match: _FLAGS_OF_FIELDS[match[1]], names)
        raise UserError(flags + must + rest) from None


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
