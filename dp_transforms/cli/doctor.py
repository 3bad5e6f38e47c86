"""``shh doctor LOG...``: a look at a log without a run. Also what ``shh replay LOG`` does that has no budget yet."""

from __future__ import annotations

import datetime
import json
import shlex
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import click
from rich.console import Console

from dp_transforms.checks import nearest, shown, without_secrets
from dp_transforms.cli import log_fields
from dp_transforms.cli.log_fields import ADDRESS, DEVICE, SESSION, Field, Times
from dp_transforms.cli.log_sample import FORMATS, LogSample, sample_log, unpacked
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import READING, Command, Options, fields_of, option
from dp_transforms.cli.output_file import free_report_name
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields, EventFileError
from dp_transforms.logs.discovery import format_of_log
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.stores.remote_files import UrlError
from dp_transforms.views.report_words import escape_text, is_ascii_only, label_text, local_text

FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows, so do not publish it."
_WHY_DECLARED = (
    "Why the range must be declared: --start and --end are public. Copied from the data they would say when two people"
    " had the first and the last event, which no noise covers. So give a range that you would give without the log."
)
_NOT_PERSONS = {
    DEVICE: "a device: each device or browser of a person gets a budget of its own",
    ADDRESS: "an address of the network: a person with several gets a budget for each, people behind one share it",
    SESSION: "a session: each session of a person gets a budget of its own",
}
ROLES = {"user": "user", "item": "item", "time": "timestamp"}  # and the usual name of its field
_WHAT = {"user": "the one that a person keeps", "item": "items are published", "time": "when the event was"}
_MOST_SHOWN = 40


class Glance(NamedTuple):
    """How a log may be read. chosen, weighed: by role, the field, None where it must be asked, and the fields that may
    be it. bounds: of the times that were seen, in microseconds; None without any, or where it must be asked how they
    count."""

    sample: LogSample
    fields: list[Field]
    chosen: Mapping[str, Field | None]
    weighed: Mapping[str, list[Field]]
    reading: EventFields
    bounds: tuple[int, int] | None

    @property
    def times(self) -> Times | None:
        return self.chosen["time"].times if self.chosen["time"] else None

    @property
    def nested(self) -> list[str]:
        """The chosen fields that are inside of objects."""
        return [label_text(field.name) for field in self.chosen.values() if field and len(field.path) > 1]

    @property
    def is_ready(self) -> bool:
        """Whether the log can be replayed as it is."""
        are_ids = all(field is not None and field.is_id for field in map(self.chosen.get, ("user", "item")))
        return are_ids and self.bounds is not None and not self.nested and not self.sample.faults


@click.command(
    "doctor",
    cls=Command,
    params=[
        click.Argument(["logs"], nargs=-1, required=True, metavar="LOG..."),
        *(
            option(
                [f"--{role}-field"], metavar="NAME", help=f"Look at this field as the {role}. Default: one is proposed."
            )
            for role in ROLES
        ),
        *READING,
    ],
)
def command(options: Options) -> None:
    """Look at a log without a run: which fields and times it has, what is damaged, and how to replay it.

    LOG is what `shh replay` takes. Some rows at the beginning and the end of some
    files are read, however large they are. What is printed is for the operator alone: no privacy covers it.

    \b
    shh doctor clicks.csv
    """
    given = {role: name for role in ROLES if (name := getattr(options, f"{role}_field")) is not None}
    reading = fields_of(options, are_named=False)
    if not show_glance(options.logs, given, reading, click.echo, Console()).is_ready:
        raise UserError("the log cannot be replayed as it is; what is in the way is said above.")


def look_at(logs: Sequence[str], given: Mapping[str, str], reading: EventFields) -> Glance:
    """given: the fields that the operator named, by role. reading: how times and cells are read, as far as it is
    declared. Raises UserError if there is no log, or no such field."""
    try:
        with operator_console().status("looking at the log"):
            sample = sample_log(logs, reading.csv_separator)
    except (EventFileError, UrlError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"the log cannot be read: {error.strerror}.") from None
    if not sample.samples and len(sample.faults) == 1:
        raise UserError(str(sample.faults[0]))
    fields = log_fields.fields_of([record for each in sample.samples for record in each.records], reading.time_reading)
    by_name = {field.name: field for field in reversed(fields)}
    chosen, weighed = dict[str, Field | None](), dict[str, list[Field]]()
    for role, name in given.items():
        if fields and name not in by_name:
            raise UserError(f"there is no field {shown(name)}{nearest(name, by_name)}")
        chosen[role], weighed[role] = by_name.get(name), []
    for role in ("time", "user", "item"):
        if role not in given:
            free = [field for field in fields if field not in chosen.values()]
            chosen[role], weighed[role] = log_fields.CHOOSE[role](free)
    bounds = _bounds(sample, chosen["time"], reading)
    return Glance(sample, fields, {role: chosen[role] for role in ROLES}, weighed, reading, bounds)


def _bounds(sample: LogSample, time: Field | None, reading: EventFields) -> tuple[int, int] | None:
    """Of the times of 1990 to 2100 that were seen, or that footers of Parquet state."""
    if time is None or time.times is None or time.times.is_doubtful:
        return None
    stated = [value for each in sample.samples for value in each.stated.get(time.name, ())]
    read = log_fields.read_times(stated, next(iter(time.times.forms), None), reading.time_zone)
    micros = [*time.times.micros.tolist(), *(read.micros.tolist() if read else ())]
    usual = [each for each in micros if log_fields.EARLIEST <= each < log_fields.LATEST]
    return (min(usual), max(usual)) if usual else None


def show_glance(
    logs: Sequence[str],
    given: Mapping[str, str],
    reading: EventFields,
    say: Callable[[str], None],
    console: Console,
    more_items: Sequence[str] = (),
) -> Glance:
    """Says what a log is like, and the command that replays it. given, reading: as of `look_at`. console: where it is
    said. more_items: further fields of the item. Raises UserError."""
    glance = look_at(logs, given, reading)
    blocks = [[FOR_THE_OPERATOR], [*_log_lines(glance)]]
    if glance.fields:
        blocks.append(["Read it as:", *(f"  {_role_line(glance, role)}" for role in ROLES)])
    if faults := [*_faults_of_files(glance), *_faults_of_fields(glance)]:
        blocks.append(["Look at this:", *(f"  - {fault}" for fault in faults[:_MOST_SHOWN])])
    if glance.bounds:
        zone = reading.time_zone or "UTC"
        low, high = (local_text(micros, zoneinfo.ZoneInfo(zone))[:16] for micros in glance.bounds)
        blocks.append([f"The events that were looked at are from {low} to {high} {zone}.", _WHY_DECLARED])
    if glance.fields:
        blocks.append([*_command_lines(glance, logs, more_items)])
    ascii_only = is_ascii_only(console)
    say("\n\n".join("\n".join(escape_text(without_secrets(line), ascii_only) for line in block) for block in blocks))
    return glance


def _log_lines(glance: Glance) -> Iterator[str]:
    """The files and their fields."""
    samples, faults, count, size = glance.sample
    formats = ", ".join(sorted({FORMATS[format_of_log(each.path)] for each in samples}))
    which = f"{count:,} files" if count > 1 else samples[0].path
    looked = f"{sum(each.rows for each in samples):,} rows at beginnings and ends"
    yield f"{which}: {formats}, {size:,} bytes. Looked at {looked} of {len(samples) + len(faults)}, by name."
    if not glance.fields:
        yield "There is no row in them."
        return
    cells = [(label_text(each.name), each.holds, len(each.counts), each.empty) for each in glance.fields[:_MOST_SHOWN]]
    wide, next_wide = (max(5, *(len(str(row[at])) for row in cells)) for at in (0, 1))
    yield from ("", f"  {'field':{wide}}   {'holds':{next_wide}}   different    empty")
    yield from (
        f"  {name:{wide}}   {holds:{next_wide}}   {count:9,}   {empty:6,}" for name, holds, count, empty in cells
    )
    if len(glance.fields) > _MOST_SHOWN:
        yield f"  and {len(glance.fields) - _MOST_SHOWN} more"


def _role_line(glance: Glance, role: str) -> str:
    """Which field has a role, and what was weighed; for the time, how it counts."""
    field, found = glance.chosen[role], glance.times
    names = [label_text(other.name) for other in glance.weighed[role] if other is not field]
    weighed = f"weighed: {', '.join(names[:_MOST_SHOWN]) or 'none'}"
    if field is None:
        return f"{role}   --{role}-field ?   ({_WHAT[role]}; {weighed})"
    line = f"{role}   --{role}-field {label_text(field.name)}"
    if role != "time" or found is None:
        return f"{line}   ({_WHAT[role]}; {weighed})" if names else line
    forms = " or ".join(map(shlex.quote, found.forms))
    if found.is_doubtful:
        return f"{line} --time-format ?   (the order of day, month and year must be said: {forms})"
    if found.forms:
        line += f"   --time-format {forms}"
    if found.unit:
        return f"{line}   (numbers that count {found.unit} since 1970 UTC)"
    zone = glance.reading.time_zone or "UTC; if it is local time, look again with --time-zone, such as Europe/Berlin"
    how = "with a zone" if found.has_zone else f"without a zone: read as {zone}"
    return f"{line}   ({field.holds} {how})"


def _faults_of_files(glance: Glance) -> Iterator[str]:
    """What is damaged, and what differs. Holds no cell."""
    yield from map(str, glance.sample.faults)
    chosen = {field.path[0] for field in glance.chosen.values() if field}
    with_rows = [each for each in glance.sample.samples if each.records]
    for each in glance.sample.samples:
        for reason, count in each.broken.items():
            yield f"{each.path}: {count:,} of {each.rows:,} rows that were looked at: {reason}."
        if not each.sees_end:
            yield f"{each.path}: its end was not seen. If its events go on, --end must be later, or they are left out."
        if each.records and (each.separator != with_rows[0].separator or not chosen <= set().union(*each.records)):
            yield f"{each.path}: it has other fields than most files, or another separator. Replay it by itself."


def _faults_of_fields(glance: Glance) -> Iterator[str]:
    """What is in the way of a role, or may be wrong with it. Holds no cell."""
    names = {role: label_text(field.name) for role, field in glance.chosen.items() if field}
    user, item, time = (glance.chosen[role] for role in ROLES)
    for role, field in (("user", user), ("item", item)):
        if field and not field.is_id:
            yield f"{names[role]} holds {field.holds}; a {role} must be text or a whole number. Convert it."
    if user and user.differs_in_each:
        yield (
            f"{names['user']} differs in nearly every row: is it the id of a row? Then nobody is protected: the"
            " guarantee is for one user with all of its events."
        )
    if user and user.holds == log_fields.WITH_PORTS:
        yield f"{names['user']} holds {user.holds}: each connection would be a user. Cut the ports off."
    if user and user.user_kind in _NOT_PERSONS:
        yield f"{names['user']} seems to be {_NOT_PERSONS[user.user_kind]}, so the person is not protected."
    if item and item.is_private:
        what = "is named like a user" if item.holds in (log_fields.TEXT, log_fields.WHOLE) else f"holds {item.holds}"
        yield f"{names['item']} {what}: items are published, so choose another field."
    if time and not time.times:
        yield (
            f"{names['time']} cannot be read as times. They must be typed, ISO 8601 text, numbers in s, ms or us, or of"
            " the form that --time-format says, such as '%d.%m.%Y %H:%M' (docs/formats.md)."
        )
    if not time or not time.times:
        return
    if unread := len(time.cells) - time.empty - len(time.times.micros):
        yield f"{names['time']}: {unread:,} of {len(time.cells):,} values are no times; such rows are left out."
    clocks = ", ".join(label_text(each.name) for each in glance.fields if each.holds == log_fields.CLOCKS)
    if not time.times.fineness and clocks:
        yield f"{names['time']} holds days, and the clock is in {clocks}: join both to one time."


def _command_lines(glance: Glance, logs: Sequence[str], more_items: Sequence[str]) -> Iterator[str]:
    """The command, with ? for what must be said; before it one that flattens a log with fields inside of objects."""
    names = {role: field.name if field else "?" for role, field in glance.chosen.items()}
    if glance.nested:
        logs, flatten = _flattened(glance)
        yield from (f"{', '.join(glance.nested)} must not be inside of an object:", f"  {flatten}")
        names = {role: "?" if name == "?" else ROLES[role] for role, name in names.items()}
    words = [word for role, usual in ROLES.items() if names[role] != usual for word in (f"--{role}-field", names[role])]
    if more_items:
        words += ["--item-field", names["item"]] if "--item-field" not in words else []
        words += [word for name in more_items for word in ("--item-field", name)]
    found, separator = glance.times, next((each.separator for each in glance.sample.samples if each.records), None)
    form = "?" if found and found.is_doubtful else next(iter(found.forms), None) if found else None
    for flag, value in (
        ("--time-format", form or glance.reading.time_unit),
        ("--time-zone", glance.reading.time_zone),
        ("--csv-separator", "tab" if separator == "\t" else separator),
    ):
        words += [flag, value] if value else []
    start, end, window = _proposed_range(glance)
    command = (
        ["shh", "replay", *(f"./{log}" if log.startswith("-") else log for log in logs)],
        words,
        ["--start", start, "--end", end],
        ["--window", window, "--epsilon", "2", "--delta", "1e-9"],
        ["--output", free_report_name()],
    )
    yield "For a private report, with a range of your own:"
    *lines, last = (shlex.join(line).replace("'?'", "?") for line in command if line)
    yield from (f"{'      ' if at else '  '}{line} \\" for at, line in enumerate(lines))
    yield f"      {last}"
    yield "What it would find: shh plan, with its options of a budget."


def _proposed_range(glance: Glance) -> tuple[str, str, str]:
    """Whole days around the times that were seen, of the time zone and all of 24 hours; and the length of windows."""
    if glance.bounds is None or glance.times is None:
        return "?", "?", "1h"
    first, last = (
        datetime.datetime.fromtimestamp(micros // MICROS_PER_SECOND, datetime.UTC) for micros in glance.bounds
    )
    offset = first.astimezone(zoneinfo.ZoneInfo(glance.reading.time_zone or "UTC")).utcoffset()
    zone = datetime.timezone(offset or datetime.timedelta())
    begin, end = (each.astimezone(zone).replace(hour=0, minute=0, second=0) for each in (first, last))
    end += datetime.timedelta(days=1)
    start, stop = (each.isoformat().replace("+00:00", "Z") for each in (begin, end))
    return start, stop, "1h" if glance.times.fineness else "1d"


def _flattened(glance: Glance) -> tuple[list[str], str]:
    """A log whose fields have the usual names, and the command that makes it."""
    samples = glance.sample.samples
    paths = {ROLES[role]: field.path if field else () for role, field in glance.chosen.items()}
    names = [each.path for each in samples] if len(samples) == glance.sample.files else ["FILES"]
    log_format = format_of_log(samples[0].path)
    if log_format == "parquet":
        parts = [f"{'.'.join(map(json.dumps, path)) or '?'} AS {json.dumps(name)}" for name, path in paths.items()]
        query = f"COPY (SELECT {', '.join(parts)} FROM read_parquet({names})) TO 'flat.parquet'"
        return ["flat.parquet"], f"duckdb -c {shlex.quote(query)}"
    parts = [
        f"{name}: .{''.join(map(_jq, path)).removeprefix('.')}" if path else f"{name}: ?"
        for name, path in paths.items()
    ]
    read = unpacked(*names) if log_format == "json" else f"fastavro {shlex.join(names)}"
    return ["flat.jsonl"], f"{read} | jq -c {shlex.quote('{' + ', '.join(parts) + '}')} > flat.jsonl"


def _jq(name: str) -> str:
    return f".{name}" if name.isidentifier() and name.isascii() else f"[{json.dumps(name)}]"
