"""``shh doctor LOG...``: a look at a log without a run. Also what ``shh replay LOG`` does that has no budget yet."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console

from dp_transforms.checks import nearest, shown, without_secrets
from dp_transforms.cli import log_fields
from dp_transforms.cli.log_fields import ADDRESS, DEVICE, OTHER, SESSION, Choice, Field, Times
from dp_transforms.cli.log_sample import FORMATS, LogSample, sample_log, unpacked
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import READING, Command, Options, fields_of, option
from dp_transforms.cli.output_file import free_report_name
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields, EventFileError
from dp_transforms.logs.discovery import format_of_log
from dp_transforms.logs.times import parse_values
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.stores.remote_files import UrlError
from dp_transforms.views.report_words import escape_text, is_ascii_only, label_text, length_text, local_text

FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows, so do not publish it."
_WHY_DECLARED = (
    "Why the range must be declared: a plan and a report are public, and --start and --end are in them. Copied from the"
    " data they would say when the first and the last event were, which are events of two people, and no noise covers"
    " that. So give the range that you would give without the log, such as the month that was collected. For a trial of"
    " your own it does not matter."
)
_NOT_PERSONS = {
    DEVICE: "each device or browser of a person gets a budget of its own, so the person is not protected",
    ADDRESS: "a person with several gets a budget for each, so the person is not protected, and people behind one"
    " address share one",
    SESSION: "each session of a person gets a budget of its own, so the person is not protected",
}
ROLES = {"user": "user", "item": "item", "time": "timestamp"}  # and the usual name of its field
_DAY = 86_400
_WINDOWS = ((42 * _DAY, 3600), (1100 * _DAY, _DAY))  # up to such a range: the proposed length
_MOST_SHOWN = 40


class Glance(NamedTuple):
    """How a log may be read. choices: by role. low, high: of the times that were seen, in microseconds; None without
    any, or where it must be asked how they count. odd: how many times are before 1990 or after 2100, and not between
    these."""

    sample: LogSample
    fields: list[Field]
    choices: Mapping[str, Choice]
    reading: EventFields
    low: int | None = None
    high: int | None = None
    odd: int = 0

    @property
    def times(self) -> Times | None:
        return self.choices["time"].field.times if self.choices["time"].field else None

    @property
    def nested(self) -> list[str]:
        """The chosen fields that are inside of objects."""
        return [choice.field.name for choice in self.choices.values() if choice.field and len(choice.field.path) > 1]

    @property
    def is_ready(self) -> bool:
        """Whether the log can be replayed as it is."""
        ids = [self.choices[role].field for role in ("user", "item")]
        are_ids = all(field is not None and field.may_be_id for field in ids)
        return are_ids and self.low is not None and not self.nested and not self.sample.faults


@click.command(
    "doctor",
    cls=Command,
    params=[
        click.Argument(["logs"], nargs=-1, required=True, metavar="LOG..."),
        option(["--user-field"], metavar="NAME", help="Look at this field as the user. Default: one is proposed."),
        option(["--item-field"], metavar="NAME", help="Look at this field as the item. Default: one is proposed."),
        option(["--time-field"], metavar="NAME", help="Look at this field as the time. Default: one is proposed."),
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
    choices: dict[str, Choice] = {}
    for role, name in given.items():
        if fields and name not in by_name:
            raise UserError(f"there is no field {shown(name)}{nearest(name, by_name)}")
        choices[role] = Choice(by_name.get(name), [])
    for role in ("time", "user", "item"):
        taken = [choice.field.path for choice in choices.values() if choice.field]
        if role not in choices:
            choices[role] = log_fields.CHOOSE[role]([field for field in fields if field.path not in taken])
    return _with_range(Glance(sample, fields, {role: choices[role] for role in ROLES}, reading))


def _with_range(glance: Glance) -> Glance:
    time = glance.choices["time"].field
    if time is None or time.times is None or time.times.is_doubtful:
        return glance
    stated = [bound for each in glance.sample.samples for bound in _stated(each.footer, time.name)]
    bounds = parse_values(stated, time.times.unit, None, glance.reading.time_zone)
    micros = np.concatenate([time.times.micros, bounds.micros[bounds.faults == 0]])
    usual = micros[(micros >= log_fields.EARLIEST) & (micros < log_fields.LATEST)]
    low, high = (int(usual.min()), int(usual.max())) if len(usual) else (None, None)
    return glance._replace(low=low, high=high, odd=len(micros) - len(usual))


def _stated(footer: Any, name: str) -> Iterator[Any]:
    """The smallest and the largest value of each row group of a Parquet file, of which few rows were read."""
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)] if footer else []
    for group in range(footer.num_row_groups if name in paths else 0):
        # Of a column that was read: at the metadata of one that contradict its file Arrow may end the process.
        stated = footer.row_group(group).column(paths.index(name)).statistics
        if stated and stated.has_min_max:
            with contextlib.suppress(ValueError, OverflowError):  # a time that Python's calendar has not
                yield from (stated.min, stated.max)


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
    if faults := [*_faults_of_files(glance), *_faults_of_ids(glance), *_faults_of_time(glance)]:
        blocks.append(["Look at this:", *(f"  - {fault}" for fault in faults[:_MOST_SHOWN])])
    if glance.low is not None and glance.high is not None:
        zone = glance.reading.time_zone or "UTC"
        low, high = (local_text(micros, zoneinfo.ZoneInfo(zone))[:16] for micros in (glance.low, glance.high))
        blocks.append([f"The events that were looked at are from {low} to {high} {zone}.", _WHY_DECLARED])
    if glance.fields:
        blocks.append([*_command_lines(glance, logs, more_items)])
    ascii_only = is_ascii_only(console)
    say("\n\n".join("\n".join(escape_text(without_secrets(line), ascii_only) for line in block) for block in blocks))
    return glance


def _log_lines(glance: Glance) -> Iterator[str]:
    """The files and their fields."""
    samples, faults, files, size = glance.sample
    formats = ", ".join(sorted({FORMATS[format_of_log(each.path)] for each in samples}))
    which = f"{files:,} files" if files > 1 else samples[0].path
    looked = "all rows" if all(each.is_whole for each in samples) and files == len(samples) else "its beginning and end"
    some = f" of {len(samples) + len(faults)}, the first and the last by name" if files > 1 else ""
    rows = sum(each.rows for each in samples)
    yield f"{which}: {formats}, {size:,} bytes. Looked at {rows:,} rows ({looked}{some})."
    if not glance.fields:
        yield "There is no row in them."
        return
    table = [("field", "holds", "different", "empty")]
    for field in glance.fields[:_MOST_SHOWN]:
        holds = field.holds or (f"{field.kind}, times" if field.is_time and field.kind == "text" else field.kind)
        different = "" if field.kind == OTHER else f"{len(field.counts):,}"
        table.append((label_text(field.name), holds, different, f"{field.empty:,}"))
    widths = [max(len(row[at]) for row in table) for at in (0, 1)]
    yield from ("", *(f"  {row[0]:{widths[0]}}   {row[1]:{widths[1]}}   {row[2]:>9}   {row[3]:>6}" for row in table))
    if len(glance.fields) > _MOST_SHOWN:
        yield f"  and {len(glance.fields) - _MOST_SHOWN} more"


def _role_line(glance: Glance, role: str) -> str:
    """Which field has a role; for the time, how it counts."""
    field, weighed = glance.choices[role]
    if field is None:
        why = {"user": "the one that a person keeps", "item": "items are published", "time": "when the event was"}[role]
        return f"{role}   --{role}-field ?   ({why}; weighed: {_names(weighed) or 'none'})"
    line, found = f"{role}   --{role}-field {label_text(field.name)}", field.times
    if role != "time" or found is None:
        return line
    forms = " or ".join(map(shlex.quote, found.forms))
    if found.is_doubtful:
        return f"{line} --time-format ?   (the order of day, month and year must be said: {forms})"
    if found.unit not in (None, "iso"):
        return f"{line}   --time-unit {found.unit}   (numbers that count {found.unit} since 1970 UTC)"
    zone = glance.reading.time_zone or "UTC; if it is local time, look again with --time-zone, such as Europe/Berlin"
    how = "with a zone" if found.has_zone else f"without a zone: read as {zone}"
    return f"{line}{f'   --time-format {forms}' if forms else ''}   ({field.kind} {how})"


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(label_text(field.name) for field in fields[:_MOST_SHOWN])


def _faults_of_files(glance: Glance) -> Iterator[str]:
    """What is damaged, and what differs. Holds no cell."""
    yield from map(str, glance.sample.faults)
    chosen = {choice.field.path[0] for choice in glance.choices.values() if choice.field}
    with_rows = [each for each in glance.sample.samples if each.records]
    for each in glance.sample.samples:
        for reason, count in each.broken.items():
            yield f"{each.path}: {count:,} of {each.rows:,} rows that were looked at: {reason}."
        if not each.sees_end and each.footer is None:
            yield f"{each.path}: its end was not seen. If its events go on, --end must be later, or they are left out."
        if each.records and (each.separator != with_rows[0].separator or not chosen <= set().union(*each.records)):
            yield f"{each.path}: it has other fields than most files, or another separator. Replay it by itself."


def _faults_of_ids(glance: Glance) -> Iterator[str]:
    """What is in the way of user and item, or may be wrong with them. Holds no cell."""
    user, item = (glance.choices[role].field for role in ("user", "item"))
    of_rows = {
        "user": "is it the id of a row? Then nobody is protected: the guarantee is for one user with all of its events",
        "item": "then nothing is held by many. Perhaps there is a coarser field, such as a page in place of a link",
    }
    for role, field in (("user", user), ("item", item)):
        if field is not None and not field.may_be_id:
            yield f"{label_text(field.name)} holds {field.kind}; a {role} must be text or a whole number. Convert it."
        if field is not None and field.empty:
            rows = f"{field.empty:,} of {len(field.cells):,} rows"
            yield f"{label_text(field.name)}: {rows} have no {role}; such rows are left out."
        if field is not None and field.differs_in_each:
            yield f"{label_text(field.name)} differs in nearly every row: {of_rows[role]}."
    if item is not None and item.is_private:
        what = f"holds {item.holds}" if item.holds else "is named like a user"
        yield f"{label_text(item.name)} {what}: items are published, so choose another field."
    if user is None:
        return
    label, kind = label_text(user.name), user.user_kind
    if user.holds == log_fields.WITH_PORTS:
        yield f"{label} holds {user.holds}: each connection would be a user of its own. Cut the ports off."
    if kind in _NOT_PERSONS:
        yield f"{label} seems to be {'an' if kind == ADDRESS else 'a'} {kind}: {_NOT_PERSONS[kind]}."
    if others := _names([field for field in glance.choices["user"].weighed if field is not user]):
        yield f"besides {label} the user could be {others}. Name the one that a person keeps: --user-field."
    if item is not None and (shared := len(user.counts.keys() & item.counts.keys())) > 1:
        yield (
            f"{shared:,} values of {label_text(item.name)} are also values of {label}: if both are people, choose"
            " another item, since items are published. (Numbers may be alike by chance.)"
        )


def _faults_of_time(glance: Glance) -> Iterator[str]:
    """Holds no cell."""
    field, found = glance.choices["time"].field, glance.times
    if field is None:
        return
    label = label_text(field.name)
    if found is None:
        yield (
            f"{label} cannot be read as times. They must be typed, ISO 8601 text, numbers in s, ms or us, or of the"
            " form that --time-format says, such as '%d.%m.%Y %H:%M' (docs/formats.md)."
        )
        return
    if found.unit == "ns":
        yield f"{label} seems to count nanoseconds, which have no unit here. Convert them to microseconds."
    elif unread := len(field.cells) - field.empty - len(found.micros):
        yield f"{label}: {unread:,} of {len(field.cells):,} values are no times; such rows are left out."
    clocks = _names([each for each in glance.fields if each.holds == log_fields.CLOCKS])
    if not found.fineness and clocks:
        yield f"{label} holds days, and the clock is in {clocks}: join both to one time, or take windows of days."
    if glance.odd:
        yield f"{glance.odd:,} rows have times before 1990 or after 2100: is the unit right?"


def _command_lines(glance: Glance, logs: Sequence[str], more_items: Sequence[str]) -> Iterator[str]:
    """The command, with ? for what must be said; before it one that flattens a log with fields inside of objects."""
    names = {role: choice.field.name if choice.field else "?" for role, choice in glance.choices.items()}
    if glance.nested:
        logs, flatten = _flattened(glance)
        yield from (f"{', '.join(map(label_text, glance.nested))} must not be inside of an object:", f"  {flatten}")
        names = {role: "?" if name == "?" else ROLES[role] for role, name in names.items()}
    words = [word for role, usual in ROLES.items() if names[role] != usual for word in (f"--{role}-field", names[role])]
    if more_items:
        words += ["--item-field", names["item"]] if "--item-field" not in words else []
        words += [word for name in more_items for word in ("--item-field", name)]
    found, separator = glance.times, next((each.separator for each in glance.sample.samples if each.records), None)
    for flag, value in (
        ("--time-unit", found.unit if found else glance.reading.time_unit),
        ("--time-format", ("?" if found.is_doubtful else found.forms[0]) if found and found.forms else None),
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
    """Whole days around the times that were seen, and the length of windows. The days are those of the time zone, all
    of 24 hours."""
    if glance.low is None or glance.high is None:
        return "?", "?", "1h"
    zone = zoneinfo.ZoneInfo(glance.reading.time_zone or "UTC")
    offset = datetime.datetime.fromtimestamp(glance.low // MICROS_PER_SECOND, zone).utcoffset() or datetime.timedelta()
    shift = round(offset.total_seconds())
    low, high = ((micros // MICROS_PER_SECOND + shift) // _DAY * _DAY - shift for micros in (glance.low, glance.high))
    length = next((length for most, length in _WINDOWS if high + _DAY - low <= most), 7 * _DAY)
    if glance.times and not glance.times.fineness:
        length = max(length, _DAY)
    start, end = (
        datetime.datetime.fromtimestamp(at, datetime.timezone(offset)).isoformat().replace("+00:00", "Z")
        for at in (low, high + _DAY)
    )
    return start, end, length_text(length * MICROS_PER_SECOND)


def _flattened(glance: Glance) -> tuple[list[str], str]:
    """A log whose fields have the usual names, and the command that makes it."""
    samples = glance.sample.samples
    files = [each.path for each in samples] if len(samples) == glance.sample.files else ["FILES"]
    paths = {ROLES[role]: choice.field.path if choice.field else () for role, choice in glance.choices.items()}
    log_format = format_of_log(samples[0].path)
    if log_format == "parquet":
        parts = [f"{'.'.join(map(json.dumps, path)) or '?'} AS {json.dumps(name)}" for name, path in paths.items()]
        query = f"COPY (SELECT {', '.join(parts)} FROM read_parquet({files})) TO 'flat.parquet'"
        return ["flat.parquet"], f"duckdb -c {shlex.quote(query)}"
    parts = [f"{name}: {''.join(map(_jq, path)) or '?'}" for name, path in paths.items()]
    read = unpacked(*files) if log_format == "json" else f"fastavro {shlex.join(files)}"
    return ["flat.jsonl"], f"{read} | jq -c {shlex.quote('{' + ', '.join(parts) + '}')} > flat.jsonl"


def _jq(name: str) -> str:
    return f".{name}" if name.isidentifier() and name.isascii() else f"[{json.dumps(name)}]"
